"""put, get and the rest, by a rank's own handle and by handles of other kinds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

import nkv

SIZES = [1, 7, 4096, 65_536, 65_537, 1 << 20]


def filled(size: int, seed: int = 0) -> bytes:
    """Bytes that differ with size and seed."""
    return np.random.default_rng(size * 31 + seed).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back(handle: nkv.NanoKVCache, key: str, size: int) -> None:
    value = filled(size)
    handle.put(key, value)
    assert handle.exists(key)
    assert bytes(handle.get(key)) == value
    into = bytearray(size)
    assert handle.get(key, dst=into) is into
    assert into == value


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4), (0, 4)])
def test_shape_and_type_of_an_array_come_back(
    handle: nkv.NanoKVCache, key: str, dtype: str, shape: tuple[int, ...]
) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    value = np.frombuffer(filled(size), dtype="u1").copy()
    value = (value % 2 if dtype == "?" else value).view(dtype).reshape(shape)
    handle.put(key, value)
    back = handle.get(key)
    assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, shape, value.tobytes())
    assert back.flags.writeable or size == 0
    into = np.zeros_like(value)
    handle.get(key, dst=into)
    assert into.tobytes() == value.tobytes()


def test_plain_bytes_that_end_like_an_array_stay_plain(handle: nkv.NanoKVCache, key: str) -> None:
    whole = bytes(nkv.arrays.source(np.arange(6, dtype="i8")).trailer)
    forged = bytes(48) + whole
    handle.put(key, forged)
    assert bytes(handle.get(key)) == forged
    handle.put(key + "/again", bytes(handle.get(key)))
    assert bytes(handle.get(key + "/again")) == forged


def test_a_dst_of_another_size_or_type_is_an_error(handle: nkv.NanoKVCache, key: str) -> None:
    handle.put(key, np.arange(12, dtype="f4"))
    for dst in (np.zeros(11, "f4"), np.zeros(13, "f4"), bytearray(1), bytearray(4096)):
        with pytest.raises(nkv.InvalidArgument, match="bytes"):
            handle.get(key, dst=dst)
    with pytest.raises(nkv.InvalidArgument, match="int32"):
        handle.get(key, dst=np.zeros(12, "i4"))
    raw = np.zeros(48, "u1")
    handle.get(key, dst=raw)
    assert raw.view("f4")[11] == 11
    with pytest.raises(nkv.InvalidArgument, match="read-only"):
        handle.get(key, dst=bytes(48))


def test_a_dst_as_long_as_value_and_trailer_is_refused(handle: nkv.NanoKVCache, key: str) -> None:
    value = np.arange(8, dtype="f4")
    handle.put(key, value)
    whole = value.nbytes + len(nkv.arrays.source(value).trailer)
    for dst in (np.zeros(whole // 4, "f4"), bytearray(whole)):
        with pytest.raises(nkv.InvalidArgument, match="32"):
            handle.get(key, dst=dst)


def test_numbers_of_numpy_and_foreign_arrays_are_read_whole(
    handle: nkv.NanoKVCache, key: str
) -> None:
    items = [(f"{key}/{i}", np.float64(i)) for i in range(100)]
    handle.put_many(items)
    assert [float(value) for value in handle.get_many([name for name, _ in items])] == [
        float(i) for i in range(100)
    ]

    class Foreign:
        """Its memory is named as bytes, as some libraries do."""

        __array_interface__: ClassVar[dict[str, object]] = {
            "shape": (2,),
            "typestr": "|u1",
            "data": b"AB",
            "version": 3,
        }

    handle.put(key, Foreign())
    assert handle.get(key).tobytes() == b"AB"


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, "M8[s]"),
        np.zeros(3, object),
        np.zeros(3, "S5"),
        np.zeros(3, ">f4"),
        np.ma.array([1, 2], mask=[False, True]),
    ],
    ids=lambda value: str(value.dtype),
)
def test_types_that_would_not_come_back_are_refused(
    handle: nkv.NanoKVCache, key: str, value: np.ndarray
) -> None:
    with pytest.raises(nkv.InvalidArgument, match="array"):
        handle.put(key, value)
    assert not handle.exists(key)


def test_a_forged_trailer_is_plain_bytes(handle: nkv.NanoKVCache, key: str) -> None:
    arrays = nkv.arrays
    for i, shape in enumerate(
        [
            arrays.Shape(9, "float32", (2,)),
            arrays.Shape(1, "float32", (0, 2**63)),
            arrays.Shape(0, "float32", (3,)),
            arrays.Shape(1, "nothing", (8,)),
            arrays.Shape(2, "float32", (3,)),
        ]
    ):
        forged = bytes(8) + arrays.trailer(shape, 8)
        plan = handle.open_for_write(f"{key}/{i}", len(forged))
        plan.write(0, forged)
        plan.commit()
        assert bytes(handle.get(f"{key}/{i}")) == forged


def test_of_two_objects_read_into_one_place_the_last_stays(
    handle: nkv.NanoKVCache, key: str
) -> None:
    handle.put_many([(key + "/a", b"1" * 100), (key + "/b", b"2" * 100)])
    same = bytearray(100)
    assert handle.get_many_into([(key + "/a", same), (key + "/b", same)]) == [100, 100]
    assert same == b"2" * 100
    with pytest.raises(ValueError, match="overlap"):
        handle._c.get_into(key + "/a", [same, same])


def test_what_is_not_contiguous_is_refused_and_nothing_is_stored(
    handle: nkv.NanoKVCache, key: str
) -> None:
    array = np.arange(12.0).reshape(3, 4)
    for value in (array.T, array[:, 1:], array[::-1]):
        with pytest.raises(nkv.InvalidArgument, match="contiguous"):
            handle.put(key, value)
    with pytest.raises(nkv.InvalidArgument, match="contiguous"):
        handle.put(key, memoryview(b"abcdef")[::2])
    assert not handle.exists(key)


def test_an_error_names_arguments_and_not_flags_of_other_programs() -> None:
    text = "as in docker run --gpus all: give --memory dram, or --log-bytes 0"
    error = nkv.errors.of_kind("Unsupported", text, None, None)
    assert str(error) == "as in docker run --gpus all: give memory dram, or log_bytes 0"


def test_a_miss_is_a_key_error_that_names_the_key(handle: nkv.NanoKVCache, key: str) -> None:
    with pytest.raises(KeyError) as caught:
        handle.get(key)
    assert isinstance(caught.value, nkv.NotFound)
    assert caught.value.key == key.encode()
    assert key[:40] in str(caught.value)


def test_a_key_keeps_its_first_value(handle: nkv.NanoKVCache, key: str) -> None:
    handle.put(key, b"first")
    handle.put(key, b"second")
    assert bytes(handle.get(key)) == b"first"
    with pytest.raises(nkv.AlreadyExists):
        handle.put(key, b"third", if_exists="fail")
    handle.remove(key)
    assert not handle.exists(key)
    with pytest.raises(nkv.NotFound):
        handle.remove(key)
    handle.put(key, b"second")
    assert bytes(handle.get(key)) == b"second"


@pytest.mark.parametrize("bad", [None, 1, 1.5, ["a"], object()])
def test_keys_are_text_or_bytes(handle: nkv.NanoKVCache, bad: object) -> None:
    for call in (handle.get, handle.exists, handle.remove, handle.get_location):
        with pytest.raises(TypeError, match="str or bytes"):
            call(bad)  # type: ignore[arg-type]
    with pytest.raises(nkv.InvalidArgument):
        handle.get("")
    with pytest.raises(nkv.InvalidArgument):
        handle.get(b"x" * 1025)


@pytest.mark.parametrize("bad", [None, 1, 1.5, "text", object(), [1, 2]])
def test_what_has_no_bytes_is_a_type_error(handle: nkv.NanoKVCache, key: str, bad: object) -> None:
    with pytest.raises(TypeError):
        handle.put(key, bad)
    assert not handle.exists(key)


def test_batches(handle: nkv.NanoKVCache, key: str) -> None:
    arrays = {f"{key}/{i}": np.full(1000 + i, i) for i in range(100)}
    assert handle.put_many(arrays.items()) == [None] * 100
    names = list(arrays)
    found = handle.get_many([*names, key + "/absent"])
    assert found[-1] is None
    assert all((a == b).all() for a, b in zip(found, arrays.values(), strict=False))
    assert handle.exists_many([*names, key + "/absent"]) == [True] * 100 + [False]
    assert len(handle.match_prefix([*names[:7], key + "/absent", *names[7:]])) == 7
    raw = [(f"{key}/raw/{i}", filled(5000, i)) for i in range(50)]
    handle.put_many(raw)
    places = [(name, bytearray(5000)) for name, _ in raw]
    assert handle.get_many_into([*places, (key + "/absent", bytearray(1))]) == [5000] * 50 + [None]
    assert all(place == value for (_, place), (_, value) in zip(places, raw, strict=True))
    assert handle.remove_many([*names, key + "/absent"]) == [True] * 100 + [False]
    assert handle.exists_many(names) == [False] * 100


def test_a_batch_reports_each_error(handle: nkv.NanoKVCache, key: str) -> None:
    items = [(key + "/1", b"a"), ("", b"b"), (key + "/2", b"c")]
    with pytest.raises(nkv.InvalidArgument):
        handle.put_many(items)
    done = handle.put_many(items, return_errors=True)
    assert [type(error) for error in done] == [type(None), nkv.InvalidArgument, type(None)]
    assert bytes(handle.get(key + "/2")) == b"c"


def test_a_plan_is_written_page_by_page(handle: nkv.NanoKVCache, key: str) -> None:
    value = filled(1_000_000)
    plan = handle.open_for_write(key, len(value), page_bytes=65_536)
    assert (plan.n_pages, plan.page_bytes, plan.bytes_total) == (16, 65_536, 1_000_000)
    with pytest.raises(nkv.NotReady):
        handle.get(key)
    for page in reversed(range(1, plan.n_pages)):
        plan.write_page(page, value[page * 65_536 : (page + 1) * 65_536])
    with pytest.raises(nkv.InvalidArgument):
        plan.commit()
    plan.write(0, np.frombuffer(value[:65_536], "f4"))
    handle.commit(key)
    at = handle.get_location(key)
    assert (at.key_hash, at.owner_rank, at.epoch) == (plan.key_hash, plan.dst_rank, plan.epoch)
    assert (at.header_off, at.payload_off) == (plan.header_off, plan.payload_base)
    assert bytes(handle.get(key)) == value
    with pytest.raises(nkv.AlreadyExists):
        handle.open_for_write(key, 10)


def test_a_plan_that_is_dropped_or_aborted_leaves_nothing(
    handle: nkv.NanoKVCache, key: str
) -> None:
    plan = handle.open_for_write(key, 100)
    plan.write(0, bytes(100))
    plan.abort()
    plan.abort()
    with pytest.raises(nkv.InvalidArgument, match="finished"):
        plan.write(0, bytes(1))
    plan = handle.open_for_write(key, 100)
    del plan
    deadline = time.monotonic() + 10
    while True:
        try:
            handle.open_for_write(key, 100).abort()
            break
        except nkv.NotReady:
            assert time.monotonic() < deadline
    assert not handle.exists(key)


def test_get_when_ready_waits_for_a_later_put(handle: nkv.NanoKVCache, key: str) -> None:
    def put() -> None:
        time.sleep(0.2)
        handle.put(key, b"late")

    thread = threading.Thread(target=put)
    thread.start()
    assert bytes(handle.get_when_ready(key, 20)) == b"late"
    thread.join()
    with pytest.raises(TimeoutError):
        handle.get_when_ready(key + "/never", 0.1)
    for limit in (-1.0, float("nan"), float("inf")):
        with pytest.raises(nkv.InvalidArgument):
            handle.get_when_ready(key, limit)


def test_many_threads_share_a_handle(handle: nkv.NanoKVCache, key: str) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        into = bytearray(20_000)
        for i in range(50):
            name, value = f"{key}/{number}/{i}", filled(20_000, number * 1000 + i)
            handle.put(name, value)
            handle.get(name, dst=into)
            if into != value or bytes(handle.get(name)) != value:
                wrong.append(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert wrong == []


def test_a_batch_takes_any_iterable_of_keys_and_not_one_key(
    handle: nkv.NanoKVCache, key: str
) -> None:
    handle.put_many((f"{key}/{i}", b"x") for i in range(3))
    names = [f"{key}/{i}" for i in range(4)]
    assert handle.exists_many(iter(names)) == [True] * 3 + [False]
    assert len(handle.match_prefix(iter(names))) == 3
    assert [None if v is None else bytes(v) for v in handle.get_many(iter(names))][2:] == [
        b"x",
        None,
    ]
    for call in (handle.get_many, handle.exists_many, handle.match_prefix, handle.remove_many):
        with pytest.raises(nkv.InvalidArgument, match="one key"):
            call(names[0])


def test_errors_of_a_batch_stand_in_their_places(handle: nkv.NanoKVCache, key: str) -> None:
    handle.put_many([(key + "/a", b"1234"), (key + "/b", b"12345678")])
    places = [(key + name, bytearray(4)) for name in ("/a", "/b", "/c")]
    with pytest.raises(nkv.InvalidArgument):
        handle.get_many_into(places)
    read = handle.get_many_into(places, return_errors=True)
    assert (read[0], type(read[1]), read[2]) == (4, nkv.InvalidArgument, None)


def test_an_error_names_its_key_and_a_full_rank(handle: nkv.NanoKVCache) -> None:
    handle.put("error/named", b"stored")
    calls: list[Callable[[], object]] = [
        lambda: handle.get("absent"),
        lambda: handle.get_view("absent"),
        lambda: handle.get_location("absent"),
        lambda: handle.remove("absent"),
        lambda: handle.commit("absent"),
    ]
    for call in calls:
        with pytest.raises(nkv.NotFound) as absent:
            call()
        assert absent.value.key == b"absent"
    for dst in (np.zeros(3, "u1"), np.zeros(300, "u1")):
        with pytest.raises(nkv.InvalidArgument) as small:
            handle.get("error/named", dst=dst)
        assert small.value.key == b"error/named"
    with pytest.raises(nkv.InvalidArgument, match="log") as large:
        handle.put("large", np.zeros(1 << 30, "u1"))
    assert (large.value.key, large.value.rank) == (b"large", 0)
