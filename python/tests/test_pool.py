"""The memory of a rank as a pool of workers, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from fixtures import settings

import nkv

CHUNK = (64, 1024)
HANGS_S = 60

#: What every worker begins with.
ATTACH = """
import sys, time
import numpy as np
import nkv

cache = nkv.connect(sys.argv[2], job=sys.argv[1])
pool = cache.shm_pool()
CHUNK = (64, 1024)
"""


def content(number: int) -> np.ndarray:
    """The bytes of a chunk: no two have a row in common."""
    return np.arange(64 * 1024, dtype=np.float32).reshape(CHUNK) + number * (1 << 17)


@contextmanager
def worker(
    job: tuple[nkv.NanoKVCache, str, str], body: str, *args: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that does this; it is killed at the end."""
    program = ATTACH + textwrap.dedent(body)
    command = [sys.executable, "-c", program, job[1], job[2], *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str], line: str) -> None:
    """Waits for a line of a worker."""
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def until(what: str, holds: object) -> None:
    """Waits until a call is true."""
    end = time.monotonic() + HANGS_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_what_is_written_in_place_is_an_object_like_any_other(
    cache: nkv.NanoKVCache, key: str
) -> None:
    pool = cache.shm_pool()
    keys = [f"{key}/{i}" for i in range(4)]
    slots = pool.prepare_store(keys, CHUNK, np.float32)
    assert [slot.key for slot in slots] == keys
    for number, slot in enumerate(slots):
        assert (slot.shape, slot.dtype, slot.length) == (CHUNK, "float32", 4 * 64 * 1024)
        assert slot.shm_name == pool.info.shm_name
        assert slot.offset + slot.length <= pool.info.pool_size
        slot.array()[:] = content(number)
    assert not cache.exists(keys[0])
    assert pool.prepare_retrieve(keys) is None
    assert pool.commit_store(keys) == [None] * 4
    assert (cache.get(keys[2], library="numpy") == content(2)).all()
    found = pool.prepare_retrieve(keys)
    assert found is not None
    for number, slot in enumerate(found):
        view = slot.array()
        assert not view.flags.writeable
        assert (view == content(number)).all()
    assert pool.outstanding == (0, 4)
    pool.finish_read(keys)
    assert pool.outstanding == (0, 0)
    assert pool.prepare_store(keys, CHUNK, "float32") == []
    figures = pool.figures
    assert (figures["prepared"], figures["committed"], figures["skipped_exists"]) == (4, 4, 4)


def test_an_object_of_another_shape_type_or_layout_is_not_there(
    cache: nkv.NanoKVCache, key: str
) -> None:
    pool = cache.shm_pool(layout={"model": "a", "tp": 2})
    assert len(pool.prepare_store([key], CHUNK, "float16")) == 1
    pool.commit_store([key])
    assert pool.prepare_retrieve([key], CHUNK, np.dtype("float16")) is not None
    pool.finish_read([key])
    assert pool.prepare_retrieve([key], (64, 1025), "float16") is None
    assert pool.prepare_retrieve([key], CHUNK, "bfloat16") is None
    assert pool.prepare_retrieve([key], ()) is None
    assert (pool.outstanding, pool.figures["mismatched"]) == ((0, 0), 3)
    # The order of a layout's names does not matter, its values do.
    same = cache.shm_pool(layout={"tp": 2, "model": "a"})
    assert same.prepare_retrieve([key]) is not None
    assert cache.shm_pool(layout={"model": "a", "tp": 4}).prepare_retrieve([key]) is None
    assert cache.shm_pool().prepare_retrieve([key]) is None


def test_what_cannot_be_is_a_clear_error(job: tuple[nkv.NanoKVCache, str, str], key: str) -> None:
    cache, name, address = job
    pool = cache.shm_pool()
    with pytest.raises(nkv.NotFound, match="has no place"):
        pool.commit_store([key])
    cache.put(key, content(1))
    for shape, dtype in [(CHUNK, "float31"), (("x",), None)]:
        with pytest.raises((nkv.InvalidArgument, ValueError)):
            pool.prepare_retrieve([key], shape, dtype)  # type: ignore[arg-type]
    assert pool.outstanding == (0, 0), "nothing is left behind"
    with pytest.raises(nkv.InvalidArgument, match="negative"):
        pool.prepare_store([key], (-1,), "float32")
    with pytest.raises(nkv.InvalidArgument, match="whole numbers"):
        pool.prepare_store([key], (1.5,), "float32")  # type: ignore[list-item]
    for shape in [(1 << 70, 2), (1 << 70, 0), (1 << 40, 1 << 40)]:
        with pytest.raises(nkv.InvalidArgument, match="no memory holds"):
            pool.prepare_store([key], shape, "float32")
    with pytest.raises(nkv.InvalidArgument, match="larger than what"):
        pool.prepare_store([f"{key}/large"], (1 << 40,), "float32")
    with pytest.raises(nkv.InvalidArgument, match="not -1"):
        cache.shm_pool(rank=-1)
    with pytest.raises(nkv.InvalidArgument, match="prefetch_wait without"):
        cache.exists(key, prefetch_wait=True)
    with pytest.raises(nkv.InvalidArgument, match="JSON"):
        cache.shm_pool(layout={"dtype": np.float32})
    with pytest.raises(nkv.InvalidArgument, match="float31"):
        pool.prepare_store([key], CHUNK, "float31")
    with pytest.raises(nkv.InvalidArgument, match="not 4096"):
        cache.shm_pool(expected_bytes=4096)
    with pytest.raises(nkv.Disconnected, match="rank 7"):
        cache.shm_pool(7)
    with (
        nkv.connect(address, job=name, transport="tcp") as handle,
        pytest.raises(nkv.Unsupported, match="does not map"),
    ):
        handle.shm_pool(0)


def test_eight_workers_store_and_retrieve_at_once(job: tuple[nkv.NanoKVCache, str, str]) -> None:
    body = """
    me, all_of = int(sys.argv[3]), 8
    def content(number):
        return np.arange(64 * 1024, dtype=np.float32).reshape(CHUNK) + number * (1 << 17)
    for round in range(6):
        number = 8 * round + me
        [slot] = pool.prepare_store([f"eight/{number}"], CHUNK, "float32")
        slot.array()[:] = content(number)
        pool.commit_store([slot.key])
        # What the next one stored in the same round.
        other = 8 * round + (me + 1) % all_of
        end = time.monotonic() + 60
        while (found := pool.prepare_retrieve([f"eight/{other}"], CHUNK, "float32")) is None:
            assert time.monotonic() < end
        assert (found[0].array() == content(other)).all()
        pool.finish_read([f"eight/{other}"])
    print("done", pool.outstanding)
    """
    processes = []
    program = ATTACH + textwrap.dedent(body)
    for number in range(8):
        command = [sys.executable, "-c", program, job[1], job[2], str(number)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=2 * HANGS_S)[0] for process in processes]
    assert outputs == ["done (0, 0)\n"] * 8
    assert (job[0].get("eight/17", library="numpy") == content(17)).all()


def test_a_worker_that_is_killed_before_its_commit_leaves_nothing(
    job: tuple[nkv.NanoKVCache, str, str], key: str
) -> None:
    cache = job[0]
    body = """
    [slot] = pool.prepare_store([sys.argv[3]], CHUNK, "float32")
    slot.array()[:32] = 1
    print("half written", flush=True)
    time.sleep(600)
    """
    pool = cache.shm_pool()
    with worker(job, body, key) as process:
        says(process, "half written")
        assert not cache.exists(key)
        assert pool.prepare_retrieve([key]) is None
        assert pool.prepare_store([key], CHUNK, "float32") == [], "the other one writes it"
        process.kill()
        process.wait()
    slots: list[nkv.Slot] = []

    def is_given() -> bool:
        slots.extend(pool.prepare_store([key], CHUNK, "float32"))
        return bool(slots)

    until("the slot comes back", is_given)
    assert pool.prepare_retrieve([key]) is None
    slots[0].array()[:] = content(3)
    pool.commit_store([key])
    assert (cache.get(key, library="numpy") == content(3)).all()


def test_a_worker_that_is_killed_while_it_reads_lets_its_slots_go() -> None:
    named = settings()
    with nkv.NanoKVCache(16 << 20, log_bytes=0, **named) as cache:
        job = (cache, str(named["job"]), cache.control_address)
        pool = cache.shm_pool()
        keys = [f"read/{i}" for i in range(40)]
        for number, name in enumerate(keys):
            cache.put(name, content(number))
        body = """
        keys = [f"read/{i}" for i in range(40)]
        found = pool.prepare_retrieve(keys)
        print(len(found), flush=True)
        time.sleep(600)
        """
        # Two thirds of the memory are read.
        with worker(job, body) as process:
            says(process, "40")
            cache.remove_all()
            given = pool.prepare_store([f"other/{i}" for i in range(60)], CHUNK, "float32")
            assert len(given) < 30, "what is being read is not given away"
            process.kill()
            process.wait()
        pool.abort_store(slot.key for slot in given)
        del given

        def all_is_back() -> bool:
            slots = pool.prepare_store([f"again/{i}" for i in range(55)], CHUNK, "float32")
            pool.abort_store(slot.key for slot in slots)
            return len(slots) == 55

        until("the memory comes back", all_is_back)


def test_a_slot_that_a_worker_forgot_expires() -> None:
    with nkv.NanoKVCache(16 << 20, log_bytes=0, **settings()) as cache:
        pool = cache.shm_pool(write_ttl=0.2, read_ttl=0.2)
        cache.put("read", content(1))
        found = pool.prepare_retrieve(["read"])
        assert found is not None
        read = found[0].array()
        written = pool.prepare_store(["key"], CHUNK, "float32")[0].array()
        written[:] = content(2)
        del found
        until("both expire", lambda: pool.outstanding == (0, 0))
        assert pool.figures["expired"] == 2
        cache.remove("read")
        # Twice the memory.
        flood(cache, 128)
        assert (read == content(1)).all(), "an array that is kept keeps its memory"
        assert (written == content(2)).all()
        del read, written
        until("it can be stored", lambda: pool.prepare_store(["key"], CHUNK, "float32"))


def flood(cache: nkv.NanoKVCache, count: int) -> None:
    """Puts objects, so that all memory that nobody keeps has other bytes."""
    for number in range(count):
        cache.put(f"flood/{number}", content(100 + number))


def test_an_array_of_a_slot_keeps_its_memory_when_its_handle_is_closed() -> None:
    named = settings()
    with nkv.NanoKVCache(16 << 20, log_bytes=0, **named) as cache:
        with nkv.connect(cache.control_address, job=str(named["job"])) as handle:
            pool = handle.shm_pool()
            [slot] = pool.prepare_store(["key"], CHUNK, "float32")
            kept = slot.array()
            kept[:] = content(1)
        del slot, pool, handle
        flood(cache, 128)
        assert (kept == content(1)).all()
        kept[:] = content(2)
        for number in range(128):
            [found] = cache.get_many([f"flood/{number}"], library="numpy")
            assert found is None or (found == content(100 + number)).all(), "not written over"
        assert not cache.exists("key")
        del kept
        again = cache.shm_pool()
        until("it can be stored", lambda: again.prepare_store(["key"], CHUNK, "float32"))


def test_slots_are_finished_by_themselves_or_by_key(cache: nkv.NanoKVCache, key: str) -> None:
    cache.put(key, content(1))
    pool = cache.shm_pool()
    first, second = pool.prepare_retrieve([key]), pool.prepare_retrieve([key])
    assert first is not None
    assert second is not None
    assert pool.finish_read(second) == 1
    assert pool.finish_read(second) == 0
    assert pool.outstanding == (0, 1), "the second time it is not there"
    assert pool.finish_read([key, "never given"]) == 1
    assert pool.outstanding == (0, 0)


def test_a_child_made_by_fork_has_no_pool(cache: nkv.NanoKVCache, key: str) -> None:
    cache.put(key, content(1))
    pool = cache.shm_pool()
    found = pool.prepare_retrieve([key])
    assert found is not None

    def refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except nkv.Disconnected:
            return True
        return False

    child = os.fork()
    if child == 0:
        calls: list[Callable[[], object]] = [
            lambda: pool.finish_read([key]),
            lambda: pool.abort_store([key]),
            lambda: pool.outstanding,
            lambda: pool.figures,
            lambda: pool.info,
        ]
        os._exit(0 if all(map(refused, calls)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.outstanding == (0, 1)
    pool.finish_read(found)


def test_a_log_that_leaves_slots_little_room_is_warned_of(cache: nkv.NanoKVCache) -> None:
    with pytest.warns(UserWarning, match="log_bytes 0"):
        info = cache.shm_pool().info
    assert info.store_bytes < info.pool_size // 2
    with (
        nkv.NanoKVCache(16 << 20, log_bytes=0, **settings()) as whole,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        whole.shm_pool()
