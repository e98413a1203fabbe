"""Mooncake's names with addresses of a GPU, as an engine registers its KV cache."""

from __future__ import annotations

import numpy as np
import pytest
from device_arrays import Array, values

import nkv
from nkv import mooncake


@pytest.fixture
def store(
    rank: nkv.NanoKVCache, monkeypatch: pytest.MonkeyPatch
) -> mooncake.MooncakeDistributedStore:
    """A store that is set up."""
    monkeypatch.setenv("NKV_JOB", str(rank.job_name))  # type: ignore[attr-defined]
    store = mooncake.MooncakeDistributedStore()
    assert store.setup("here", "P2PHANDSHAKE", 0, 0, "tcp", "", rank.control_address) == 0
    return store


def test_registered_memory_of_a_gpu_is_put_and_filled(
    store: mooncake.MooncakeDistributedStore, key: str
) -> None:
    of = values("u1", 100_000)
    source, place = Array(of), Array(np.zeros_like(of))
    host = np.zeros_like(of)
    for array in (source, place):
        assert store.register_buffer(array.address, array.nbytes) == 0
    assert store.register_buffer(host.ctypes.data, host.nbytes) == 0
    assert store.put_from(key, source.address + 100, 50_000) == 0
    assert store.get_into(key, place.address + 7, 60_000) == 50_000
    assert place.host()[7:50_007].tobytes() == of[100:50_100].tobytes()
    assert store.get_into(key, host.ctypes.data, host.nbytes) == 50_000
    assert host[:50_000].tobytes() == of[100:50_100].tobytes()
    keys = [f"{key}/{i}" for i in range(10)]
    at, sizes = [source.address + 1_000 * i for i in range(10)], [900 + i for i in range(10)]
    assert store.batch_put_from(keys, at, sizes) == [0] * 10
    into = [place.address + 5_000 * i for i in range(10)]
    assert store.batch_get_into(keys, into, [1_000] * 10) == sizes
    for i, size in enumerate(sizes):
        assert place.host()[5_000 * i :][:size].tobytes() == of[1_000 * i :][:size].tobytes()
    parts = [[source.address, source.address + 60_000], [host.ctypes.data, source.address + 5]]
    lengths = [[3_000, 5], [4_000, 4_001]]
    assert store.batch_put_from_multi_buffers([f"{key}/a", f"{key}/b"], parts, lengths) == [0, 0]
    assert store.get(f"{key}/a") == of[:3_000].tobytes() + of[60_000:60_005].tobytes()
    assert store.get(f"{key}/b") == host[:4_000].tobytes() + of[5:4_006].tobytes()
    ranges = [[[7, 90_000]]], [[[2_000, 0]]], [[[1_000, 5]]]
    read = store.get_into_ranges([place.address], [[f"{key}/a"]], *ranges)
    assert read == [[[1_000, 5]]]
    stored = of[:3_000].tobytes() + of[60_000:60_005].tobytes()
    assert place.host()[7:1_007].tobytes() == stored[2_000:3_000]
    assert place.host()[90_000:90_005].tobytes() == stored[:5]
    # What goes beyond the range is refused, and another store's end changes nothing.
    assert store.batch_put_from([f"{key}/c"], [source.address + 99_000], [1_001]) != [0]
    other = mooncake.MooncakeDistributedStore()
    assert other.register_buffer(source.address, source.nbytes) == 0
    other.close()
    assert store.put_from(f"{key}/d", source.address, 10) == 0
    for array in (source, place):
        assert store.unregister_buffer(array.address) == 0
    store.close()
