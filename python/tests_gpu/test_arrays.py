"""Values in a GPU: put, read, viewed, in the order of their streams."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from device_arrays import Array, Stream, content, values

import nkv
from nkv import _nkv


@pytest.mark.parametrize(
    ("dtype", "shape"), [("u1", (1,)), ("f2", (3, 5, 7)), ("i8", (40_000,)), ("f4", (0, 3))]
)
def test_an_array_of_the_gpu_is_stored_with_its_shape_and_type(
    cache: nkv.NanoKVCache, key: str, dtype: str, shape: tuple[int, ...]
) -> None:
    of = values(dtype, *shape)
    cache.put(key, Array(of))
    found = cache.get(key)
    assert found.dtype == of.dtype and found.shape == of.shape
    assert found.tobytes() == of.tobytes()
    into = Array(np.zeros_like(of))
    assert cache.get(key, dst=into) is into
    assert into.host().tobytes() == of.tobytes()


def test_an_array_of_the_host_is_read_into_the_gpu_and_a_wrong_place_is_refused(
    cache: nkv.NanoKVCache, key: str
) -> None:
    of = values("f4", 100, 30)
    cache.put(key, of)
    into = Array(np.zeros((100, 30), "f4"))
    cache.get(key, dst=into)
    assert into.host().tobytes() == of.tobytes()
    for wrong in (np.zeros(2_999, "f4"), np.zeros(3_001, "f4"), np.zeros(3_000, "i4")):
        with pytest.raises(nkv.InvalidArgument, match="dst has"):
            cache.get(key, dst=Array(wrong))
    # A place as long as value and trailer together does not get both.
    whole = cache.get_location(key).bytes_total
    with pytest.raises(nkv.InvalidArgument, match="dst has"):
        cache.get(key, dst=Array(np.zeros(whole, "u1")))


def test_many_are_put_and_read_beside_those_of_the_host(cache: nkv.NanoKVCache, key: str) -> None:
    arrays = [values("u2", 1_000 + i, seed=i) for i in range(20)]
    mixed: list[Any] = [Array(of) if i % 2 else of for i, of in enumerate(arrays)]
    assert cache.put_many([(f"{key}/{i}", one) for i, one in enumerate(mixed)]) == [None] * 20
    found = cache.get_many([f"{key}/{i}" for i in range(20)])
    assert all(one.tobytes() == of.tobytes() for one, of in zip(found, arrays, strict=True))
    room = [Array(np.zeros(5_000, "u1")) for _ in arrays]
    read = cache.get_many_into([(f"{key}/{i}", one) for i, one in enumerate(room)])
    for of, one, size in zip(arrays, room, read, strict=True):
        assert size > of.nbytes and one.host()[: of.nbytes].tobytes() == of.tobytes()


def test_a_put_follows_the_stream_of_its_array_without_a_wait(
    cache: nkv.NanoKVCache, key: str
) -> None:
    for turn in range(8):
        stream = Stream()
        first, then = values("u1", 70_000, seed=turn), values("u1", 70_000, seed=100 + turn)
        array = Array(first, stream)
        array.fill(then)
        cache.put(f"{key}/{turn}", array)
        assert cache.get(f"{key}/{turn}").tobytes() == then.tobytes()
        stream.close()


def test_a_get_follows_what_is_in_the_stream_of_its_place(cache: nkv.NanoKVCache, key: str) -> None:
    of = values("u1", 70_000)
    cache.put(key, of)
    for turn in range(8):
        stream = Stream()
        into = Array(values("u1", 70_000, seed=turn), stream)
        cache.get(key, dst=into)
        stream.close()
        assert into.host().tobytes() == of.tobytes()


def test_a_thread_that_has_no_context_puts_and_registers(cache: nkv.NanoKVCache, key: str) -> None:
    of, done = values("f4", 3_000), []
    array = Array(of)

    def run() -> None:
        cache.put(key, array)
        done.append(_nkv.register_device(array.address, array.nbytes))
        done.append(_nkv.register_device(of.ctypes.data, of.nbytes))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True, False] and cache.get(key).tobytes() == of.tobytes()
    _nkv.unregister_device(array.address, array.nbytes)


def test_plans_take_pages_of_the_gpu(cache: nkv.NanoKVCache, key: str) -> None:
    of = values("u1", 10_000)
    plan = cache.open_for_write(key, 10_000, page_bytes=4_096)
    for page in (2, 0):
        plan.write_page(page, Array(of[page * 4_096 : (page + 1) * 4_096]))
    plan.write(4_096, Array(of[4_096:8_192]))
    plan.commit()
    assert bytes(cache.get(key)) == of.tobytes()


def test_awaited_calls_take_arrays_of_the_gpu(cache: nkv.NanoKVCache, key: str) -> None:
    async def both() -> Any:
        of, into = values("i4", 9_000), Array(np.zeros(9_000, "i4"))
        await cache.aput(key, Array(of))
        await cache.aget(key, dst=into)
        return of.tobytes() == into.host().tobytes()

    assert asyncio.run(both())


def test_a_view_of_a_value_in_the_gpu_is_an_array_there(
    rank: nkv.NanoKVCache, cache: nkv.NanoKVCache, key: str
) -> None:
    of = values("f4", 500, 8)
    cache.put(key, Array(of))
    kind = rank.memory_kind  # type: ignore[attr-defined]
    try:
        view = cache.get_view(key)
    except nkv.Unsupported as refused:
        assert "does not map" in str(refused) or "no memory of a device" in str(refused)
        assert "tcp" in repr(refused) or "tcp" in str(refused)
        return
    if kind == "dram":
        assert view.tobytes() == of.tobytes()
        return
    interface = view.__cuda_array_interface__
    assert interface["shape"] == (500, 8) and interface["typestr"] == "<f4"
    address, readonly = interface["data"]
    assert readonly and content(address, of.nbytes).tobytes() == of.tobytes()
    # It can be put again, and stays as it is after its key is gone.
    cache.put(f"{key}/again", view)
    cache.remove(key)
    assert cache.get(f"{key}/again").tobytes() == of.tobytes()
    # More than the rank has room for.
    for turn in range(80):
        cache.put(f"{key}/over/{turn}", values("u1", 1 << 19, seed=turn))
    assert content(address, of.nbytes).tobytes() == of.tobytes()


def test_addresses_of_payloads_are_the_gpus(rank: nkv.NanoKVCache, key: str) -> None:
    of = values("u1", 20_000)
    rank.put(key, of.tobytes())
    at = rank.get_location(key)
    address = rank.device_ptr(at.owner_rank, at.payload_off)
    if rank.memory_kind == "cuda":  # type: ignore[attr-defined]
        assert content(address, 20_000).tobytes() == of.tobytes()
    header = rank.device_ptr(at.owner_rank, at.header_off)
    assert int.from_bytes(ctypes.string_at(header, 8), "little") == at.key_hash
    plan = rank.open_for_write(f"{key}/plan", 4096)
    assert plan.header_ptr == rank.device_ptr(plan.dst_rank, plan.header_off)
    assert plan.payload_ptr == rank.device_ptr(plan.dst_rank, plan.payload_base)


def test_what_is_no_dense_array_of_a_gpu_is_refused(cache: nkv.NanoKVCache, key: str) -> None:
    array = Array(values("f4", 10, 10))

    class Changed:
        def __init__(self, **changes: Any) -> None:
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}

    with pytest.raises(nkv.InvalidArgument, match=r"not contiguous: use cupy\.ascontiguousarray"):
        cache.put(key, Changed(strides=(4, 40)))
    with pytest.raises(nkv.InvalidArgument, match="the protocol forbids it"):
        cache.put(key, Changed(stream=0))
    with pytest.raises(nkv.Unsupported, match="is not in a GPU: give it as memory of the host"):
        cache.put(key, Changed(data=(np.zeros(400, "u1").ctypes.data, False)))
    with pytest.raises(nkv.InvalidArgument, match="dst is read-only"):
        cache.get(key, dst=Changed(data=(array.address, True)))
    with pytest.raises(nkv.Unsupported, match=r"failed .*stream 0x77 on GPU 0: give a stream"):
        cache.put(key, Changed(stream=0x77))
    assert not cache.exists(key)
    with pytest.raises(TypeError, match="memory of a GPU: this call takes memory of the host"):
        cache.register(array)
