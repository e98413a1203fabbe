"""Values with digests (NKV_CHECKSUMS): the same answers, and damage is an error."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import nkv
from nkv import mooncake

CORRUPT = -801
Job = tuple[nkv.NanoKVCache, str, str]


@pytest.fixture
def store(job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[mooncake.MooncakeDistributedStore]:
    """A store whose values have digests."""
    cache, name, address = job
    cache.remove_all()
    monkeypatch.setenv("NKV_JOB", name)
    monkeypatch.setenv("NKV_CHECKSUMS", "1")
    store = mooncake.MooncakeDistributedStore()
    assert store.setup({"master_server_addr": address.removeprefix("tcp://")}) == 0
    yield store
    store.close()


def damage(job: Job, key: str) -> None:
    """Changes one byte of a value in the rank's memory."""
    cache, name, _ = job
    incarnation = cache.stats()["ranks"][0]["incarnation"]
    place = cache.get_location(key)
    segment = os.open(Path(f"/dev/shm/nkv.{name}.0.{incarnation}"), os.O_RDWR)
    try:
        at = place.payload_off + place.bytes_total // 2
        os.pwrite(segment, bytes([os.pread(segment, 1, at)[0] ^ 1]), at)
    finally:
        os.close(segment)


def test_values_come_back_by_every_call(store: mooncake.MooncakeDistributedStore) -> None:
    value = bytes(range(256)) * 300
    room = ctypes.create_string_buffer(len(value) + 100)
    at = ctypes.addressof(room)
    assert store.put("a", value) == 0
    ctypes.memmove(at, value, len(value))
    assert store.batch_put_from(["b", "c"], [at, at], [len(value), 5]) == [0, 0]
    assert store.put_from("d", at, 16) == 0
    assert store.put_parts("e", value[:9], value[9:]) == 0
    assert store.upsert("c", value[:77]) == 0
    assert store.get("a") == store.get("b") == store.get("e") == value
    assert store.get_batch(["c", "d", "none"]) == [value[:77], value[:16], b""]
    assert bytes(store.get_buffer("a")) == value
    assert [store.get_size(key) for key in "abcd"] == [len(value), len(value), 77, 16]
    for size in (len(value), len(value) + 7, len(value) + 100):
        ctypes.memset(at, 0, len(room))
        assert store.get_into("a", at, size) == len(value)
        assert room.raw[: len(value)] == value
    assert store.get_into("a", at, len(value) - 1) < 0
    halves = [[at, at + 100], [at + 200]]
    assert store.batch_get_into_multi_buffers(["c", "d"], halves, [[50, 27], [16]]) == [77, 16]
    assert room.raw[:50] + room.raw[100:127] == value[:77]
    assert room.raw[200:216] == value[:16]


def test_damage_is_an_error_by_every_call(
    store: mooncake.MooncakeDistributedStore, job: Job
) -> None:
    room = ctypes.create_string_buffer(2000)
    at = ctypes.addressof(room)
    assert store.put_batch(["whole", "damaged"], [bytes(900), bytes(900)]) == 0
    damage(job, "damaged")
    assert store.get_into("damaged", at, 1000) == CORRUPT
    assert store.batch_get_into(["whole", "damaged"], [at, at + 1000], [900, 1000]) == [
        900,
        CORRUPT,
    ]
    assert store.get("damaged") == b""
    assert store.get_batch(["whole", "damaged"]) == [bytes(900), b""]
    assert store.get_buffer("damaged") is None
    assert store.upsert("damaged", b"anew") == 0
    assert store.get("damaged") == b"anew"


def test_a_value_without_a_digest_is_none(
    store: mooncake.MooncakeDistributedStore, job: Job
) -> None:
    job[0].put("plain", bytes(100))
    assert store.get("plain") == b""
    room = ctypes.create_string_buffer(200)
    assert store.get_into("plain", ctypes.addressof(room), 200) == CORRUPT


def test_a_session_of_puts_is_refused(store: mooncake.MooncakeDistributedStore) -> None:
    assert store.batch_put_session_start(["pieces"], [100])[0] < 0
    assert store.put("pieces", b"whole") == 0
    assert store.get("pieces") == b"whole"
