"""Plans whose bytes and READY are written by address, as a kernel does, and nobody calls commit."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest
from fixtures import settings

import nkv

WRITING, READY = 1, 2
PUBLISH_OFF = 40
VALUE = bytes(range(251)) * 40


def word(cache: nkv.NanoKVCache, plan: nkv.WritePlan, offset: int) -> ctypes.c_uint64:
    """A word of the plan's header."""
    at = cache.device_ptr(plan.dst_rank, plan.header_off + offset)
    return ctypes.c_uint64.from_address(at)


def publish(cache: nkv.NanoKVCache, plan: nkv.WritePlan) -> None:
    """What a kernel does."""
    publish_word = word(cache, plan, PUBLISH_OFF)
    assert publish_word.value == plan.epoch << 32 | WRITING
    ctypes.memmove(cache.device_ptr(plan.dst_rank, plan.payload_base), VALUE, len(VALUE))
    publish_word.value = plan.epoch << 32 | READY


def eventually(holds: Callable[[], Any]) -> None:
    """Waits for a condition, 20 s at most."""
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, holds
        time.sleep(0.01)


def is_free(cache: nkv.NanoKVCache, key: str) -> bool:
    """Whether a key can be put."""
    try:
        cache.put(key, b"x", if_exists="fail")
    except nkv.NotReady:
        return False
    return True


def test_what_a_kernel_published_is_found_without_a_commit(
    cache: nkv.NanoKVCache, key: str
) -> None:
    plan = cache.open_for_write(key, len(VALUE), page_bytes=4096)
    assert word(cache, plan, 0).value == plan.key_hash
    assert word(cache, plan, 8).value == 3 | 4096 << 32
    assert word(cache, plan, 16).value == plan.payload_base
    assert word(cache, plan, 24).value == len(VALUE)
    with pytest.raises(nkv.NotReady):
        cache.get(key)
    publish(cache, plan)
    at = cache.get_location(key)
    assert (at.epoch, at.header_off, at.n_pages) == (plan.epoch, plan.header_off, 3)
    assert bytes(cache.get(key)) == VALUE
    into = bytearray(len(VALUE))
    cache.get(key, dst=into)
    assert into == VALUE
    cache.commit(key)
    with pytest.raises(nkv.NotFound):
        cache.commit(key)
    plan.commit()
    assert cache.exists(key)


def test_a_read_by_tcp_finds_it_too(job: tuple[nkv.NanoKVCache, str, str], key: str) -> None:
    cache, name, address = job
    with nkv.connect(address, job=name, transport="tcp") as handle:
        plan = cache.open_for_write(key, len(VALUE))
        publish(cache, plan)
        eventually(lambda: handle.exists(key))
        assert bytes(handle.get(key)) == VALUE


def test_a_plan_that_is_ready_is_committed_though_it_is_dropped(
    cache: nkv.NanoKVCache, key: str
) -> None:
    for i in range(50):
        plan = cache.open_for_write(f"{key}/{i}", len(VALUE))
        publish(cache, plan)
        del plan
        assert bytes(cache.get(f"{key}/{i}")) == VALUE
    plan = cache.open_for_write(key, len(VALUE))
    del plan
    # It was not ready, so the key is free again.
    eventually(lambda: not cache.exists(key) and is_free(cache, key))


def test_a_handle_that_closes_commits_what_is_ready(
    job: tuple[nkv.NanoKVCache, str, str], key: str
) -> None:
    cache, name, address = job
    plans = []
    with nkv.connect(address, job=name) as handle:
        for i in range(20):
            plans.append(handle.open_for_write(f"{key}/{i}", len(VALUE)))
            publish(handle, plans[-1])
    for i in range(20):
        assert bytes(cache.get(f"{key}/{i}")) == VALUE


def test_addresses_of_a_plan_are_in_the_segment_that_it_is_for() -> None:
    of = settings()
    owner = nkv.NanoKVCache(16 << 20, **of)
    with owner, nkv.connect(owner.control_address, job=str(of["job"])) as handle:
        plan = handle.open_for_write("k", len(VALUE))
        assert plan.header_ptr == handle.device_ptr(plan.dst_rank, plan.header_off)
        assert plan.payload_ptr == handle.device_ptr(plan.dst_rank, plan.payload_base)
        owner.close()
        with pytest.raises(nkv.Disconnected, match=r"is gone .*: open a new plan"):
            eventually(lambda: plan.payload_ptr == 0)


@pytest.mark.parametrize("finishes", [True, False])
def test_an_object_of_a_kernel_that_runs_late_is_not_reused(finishes: bool) -> None:
    with nkv.NanoKVCache(16 << 20, write_ttl_ms=200, **settings()) as cache:
        plan = cache.open_for_write("late", len(VALUE))
        # From here on kernels may write.
        assert plan.payload_base > 0
        eventually(lambda: cache.stats()["ranks"][0]["owner"]["fencing"] == 1)
        for i in range(200):
            cache.put(f"other/{i}", bytes(100_000))
            with pytest.raises(nkv.NotReady):
                cache.open_for_write("late", 1)
        # It still may write: no other object has its bytes.
        ctypes.memset(cache.device_ptr(plan.dst_rank, plan.payload_base), 7, len(VALUE))
        for i in range(200):
            if cache.exists(f"other/{i}"):
                assert bytes(cache.get(f"other/{i}")) == bytes(100_000)
        if finishes:
            publish(cache, plan)
            assert bytes(cache.get("late")) == VALUE
            cache.commit("late")
        del plan
        if not finishes:
            eventually(lambda: is_free(cache, "late"))
            assert bytes(cache.get("late")) == b"x"


def test_a_plan_whose_addresses_nobody_asks_for_ends_at_its_deadline() -> None:
    with nkv.NanoKVCache(16 << 20, write_ttl_ms=200, **settings()) as cache:
        plan = cache.open_for_write("late", len(VALUE))
        eventually(lambda: is_free(cache, "late"))
        with pytest.raises(nkv.Reclaimed):
            _ = plan.header_off
        assert bytes(cache.get("late")) == b"x"
