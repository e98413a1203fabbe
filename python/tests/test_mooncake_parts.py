"""Mooncake's names for parts of objects and for tensors: recorded answers, and what must hold."""

from __future__ import annotations

import ctypes
import gc
import json
import threading
from pathlib import Path
from typing import Any

import mooncake_parts
import numpy as np
import pytest

import nkv
from nkv import mooncake
from nkv.mooncake import tensor_bytes
from nkv.mooncake.tensor_bytes import Axis, Header

RECORDED = Path(__file__).parent / "recorded"
Job = tuple[nkv.NanoKVCache, str, str]
Store = mooncake.MooncakeDistributedStore

#: What nkv answers otherwise, and why.
DIFFERENT = {
    "batch_put_session_end(['s6'])": ([-600], "bytes are missing: it stays open"),
    "bytes of m3": ("6465666768", "metadata alone is a value, too"),
}


def compare(replayed: list[tuple[str, Any]], name: str) -> None:
    recorded = json.loads((RECORDED / f"mooncake-{name}-0.3.13.json").read_text())
    assert [call for call, _ in replayed] == [call for call, _ in recorded]
    for (call, answer), (_, expected) in zip(replayed, recorded, strict=True):
        wanted, why = DIFFERENT.get(call.split(" ", 1)[1], (expected, ""))
        assert json.loads(json.dumps(answer)) == wanted, f"{call}: Mooncake: {expected!r} {why}"


def attached(store: Store, job: Job) -> Store:
    assert store.setup("127.0.0.1", "", 0, 0, "tcp", "", job[2]) == 0
    return store


def test_ranges_sessions_and_segments_answer_as_mooncake(store: Store, job: Job) -> None:
    compare(mooncake_parts.calls(store, job[2].removeprefix("tcp://")), "parts")


def test_stored_tensors_are_the_bytes_of_mooncake(store: Store, job: Job) -> None:
    master, tensor = job[2].removeprefix("tcp://"), mooncake_parts.NumpyTensor
    compare(mooncake_parts.tensor_calls(mooncake, store, master, tensor), "tensors")


def test_parts_of_tensors_are_read_from_any_cut(store: Store, job: Job) -> None:
    """The copies that make a tensor of parts, without torch: the bytes that are drawn."""
    attached(store, job)
    requests = mooncake_parts.Requests(mooncake)
    whole = np.arange(4 * 12 * 5, dtype="i4").reshape(4, 12, 5)
    tensor = mooncake_parts.NumpyTensor("int32", 4, 12, 5)
    tensor._bytes = whole.reshape(-1).view("u1")
    for dim, cuts in ((0, (1, 2, 4)), (1, (2, 3, 4, 6)), (2, (5,))):
        for size in cuts:
            key = f"cut/{dim}/{size}"
            assert store.put_tensor_with_tp(key, tensor, 0, size, dim) == 0
            if size == 1:
                continue
            for other in cuts:
                for rank in range(other):
                    target = requests.target("shard", requests.tp(rank, other, dim))
                    picture = store._picture(key, target, True)
                    expected = np.split(whole, other, axis=dim)[rank]
                    assert picture is not None and picture.header.local == expected.shape
                    assert drawn(picture) == expected.tobytes()
            full = store._picture(key, requests.target("full", requests.tp(0, size, dim)), True)
            assert full is not None and drawn(full) == whole.tobytes()


def drawn(picture: Any) -> bytes:
    memory = (ctypes.c_ubyte * picture.bytes_total())()
    picture.draw(ctypes.addressof(memory))
    assert bytes(memory[: tensor_bytes.HEADER_BYTES]) == picture.header.packed()
    return bytes(memory[tensor_bytes.HEADER_BYTES :])


def test_parts_that_do_not_fit_together_are_no_tensor(store: Store, job: Job) -> None:
    attached(store, job)
    requests = mooncake_parts.Requests(mooncake)
    target = requests.target("full", requests.tp(0, 2, 0))

    def part(rank: int, size: int, whole: tuple[int, ...], local: tuple[int, ...]) -> bytes:
        header = Header(6, whole, local, (Axis("tp", rank, size, 0, 0),))
        return header.packed() + bytes(header.data_bytes)

    good = part(0, 2, (4, 3), (2, 3))
    bad = {
        "another rank": part(0, 2, (4, 3), (2, 3)),
        "another shape": part(1, 2, (4, 5), (2, 5)),
        "too long": part(1, 2, (4, 3), (3, 3)),
        "another size": part(1, 3, (6, 3), (2, 3)),
        "cut short": part(1, 2, (4, 3), (2, 3))[:-1],
        "empty": b"",
    }
    for name, data in bad.items():
        assert store.put(f"{name}_tp_0", good) == 0
        assert store.put_parts(f"{name}_tp_1", data) == 0
        assert store._picture(name, target, True) is None, name
    assert store.put("fits_tp_0", good) == 0
    assert store.put("fits_tp_1", part(1, 2, (4, 3), (2, 3))) == 0
    assert store._picture("fits", target, True) is not None


def test_a_session_reads_what_was_there_when_it_began(store: Store, job: Job) -> None:
    attached(store, job)
    into = ctypes.create_string_buffer(10)
    at = ctypes.addressof(into)
    assert store.put("kept", b"first value") == 0
    assert store.batch_get_session_start(["kept"]) == [0]
    assert store.upsert("kept", b"other value") == 0
    read = store.batch_get_into_multi_buffer_ranges(["kept"], [[at, at + 5]], [[5, 5]], [[0, 6]])
    assert read == [10] and into.raw == b"firstvalue"
    assert store.batch_get_session_end(["kept"]) == 0
    assert store.get("kept") == b"other value"


def test_an_open_put_session_is_seen_by_nobody_and_ends_with_the_store(
    store: Store, job: Job
) -> None:
    attached(store, job)
    data = ctypes.create_string_buffer(b"session", 7)
    at = ctypes.addressof(data)
    assert store.batch_put_session_start(["open"], [14]) == [0]
    write = store.batch_put_from_multi_buffer_ranges
    assert write(["open"], [[at]], [[7]], [[7]]) == [7]
    assert store.is_exist("open") == 0 and store.batch_put_session_end(["open"]) == [-600]
    assert write(["open"], [[at]], [[7]], [[0]]) == [7]
    assert store.batch_put_session_end(["open"]) == [0] and store.get("open") == b"session" * 2
    assert store.batch_put_session_start(["left"], [7]) == [0]
    assert store.close() == 0
    attached(store, job)
    assert write(["left"], [[at]], [[7]], [[0]]) == [-600]
    assert store.put("left", b"value") == 0 and store.get("left") == b"value"


class _Far:
    """The native handle of a store on another host: it views nothing."""

    def __init__(self, near: Any) -> None:
        self._near = near

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)

    def view(self, key: str) -> Any:
        raise nkv.Unsupported(key)


def test_objects_of_another_host_are_read_whole(store: Store, job: Job) -> None:
    attached(store, job)
    tensor = mooncake_parts.NumpyTensor("int32", 4, 6)
    assert store.put("far", bytes(range(100))) == 0
    assert store.put_tensor_with_tp("t", tensor, 0, 2, 1) == 0
    store._c = _Far(store._c)  # type: ignore[assignment]
    memory = (ctypes.c_ubyte * 20)()
    at = ctypes.addressof(memory)
    assert store.register_buffer(at, 20) == 0
    read = store.get_into_ranges([at], [["far", "no"]], [[[0], [0]]], [[[50], [0]]], [[[10], [1]]])
    assert read == [[[10], [-704]]] and bytes(memory[:10]) == bytes(range(50, 60))
    assert store.batch_get_session_start(["no", "far"]) == [-704, 0]
    ranged = store.batch_get_into_multi_buffer_ranges
    assert ranged(["far"], [[at, at + 5]], [[5, 5]], [[90, 10]]) == [10]
    assert bytes(memory[:10]) == bytes([*range(90, 95), *range(10, 15)])
    requests = mooncake_parts.Requests(mooncake)
    picture = store._picture("t", requests.target("full", requests.tp(0, 2, 1)), True)
    assert picture is not None and drawn(picture) == bytes(range(96))


def test_ranges_need_a_registered_buffer(store: Store, job: Job) -> None:
    attached(store, job)
    assert store.put("r", bytes(range(100))) == 0
    memory = (ctypes.c_ubyte * 100)()
    at = ctypes.addressof(memory)
    wanted = ([[["r"]]], [[[0]]], [[[0]]], [[[10]]])
    assert store.get_into_ranges([at], [["r"]], *wanted[1:]) == [[[-600]]]
    assert store.register_buffer(at, 100) == 0
    assert store.get_into_ranges([at], [["r"]], *wanted[1:]) == [[[10]]]
    assert store.get_into_ranges([at + 91], [["r"]], *wanted[1:]) == [[[-600]]]
    assert store.unregister_buffer(at) == 0
    assert store.get_into_ranges([at], [["r"]], *wanted[1:]) == [[[-600]]]


def test_replicas_are_cleared_by_rank(store: Store, job: Job) -> None:
    attached(store, job)
    assert store.put("x", b"1") == 0 and store.put("y", b"2") == 0
    described = store.batch_get_replica_desc(["x", "absent"])
    assert list(described) == ["x"]
    memory = described["x"][0].get_memory_descriptor().buffer_descriptor
    assert memory.transport_endpoint == "0"
    with pytest.raises(RuntimeError):
        described["x"][0].get_disk_descriptor()
    assert store.batch_replica_clear(["x", "y", "absent"], "1") == []
    assert store.batch_replica_clear(["x", "absent"], "0") == ["x"]
    assert store.batch_replica_clear(["x", "y"]) == ["y"]
    assert store.create_copy_task("y", ["0"]) == ((0, 0), -704)


def test_a_dummy_has_a_pool(store: Store, job: Job) -> None:
    assert store.setup_dummy(-1, 0, job[2]) == -600
    assert store.setup_dummy(1 << 20, 0, job[2]) == 0
    first, second = store.alloc_from_mem_pool(100), store.alloc_from_mem_pool(100)
    assert 0 < first < second and second - first >= 100 and second % 64 == 0
    assert store.alloc_from_mem_pool(1 << 20) == 0
    assert store.alloc_from_mem_pool(0) == 0
    ctypes.memset(first, 7, 100)
    assert store.put_from("pool", first, 100) == 0
    assert store.get_into("pool", second, 100) == 100
    assert ctypes.string_at(second, 100) == bytes([7] * 100)


def test_a_pool_of_buffers(store: Store, job: Job) -> None:
    attached(store, job)
    with pytest.raises(RuntimeError, match="alignment"):
        mooncake.BufferPool(store, 1 << 20, alignment=12345)
    pool = mooncake.BufferPool(store, 16384, 4096, alignment=65536, max_regions=1)
    with pool.buffer(100) as lease:
        assert lease.ptr % 65536 == 0 and lease.size == 100
        view = lease.buffer
        view[:4] = b"abcd"
        with pytest.raises(RuntimeError, match="exported views"):
            lease.release()
        assert store.put_from("lease", lease.ptr, 100) == 0
        assert store.get_into_ranges([lease.ptr], [["lease"]], [[[0]]], [[[0]]], [[[4]]]) == [[[4]]]
        with pytest.raises(RuntimeError, match="active leases"):
            pool.close()
        for block, error in ((False, "exhausted"), (True, "timed out")):
            with pytest.raises(RuntimeError, match=error):
                pool.acquire(1, block, 0.01)
        del view
        gc.collect()
    waiting = pool.acquire(1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(pool.acquire(9000)))
    thread.start()
    waiting.release()
    thread.join(10)
    assert found[0].size == 9000
    found.clear()
    with pytest.raises(RuntimeError, match="capacity"):
        pool.acquire(1 << 63)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_tables_of_embeddings(store: Store, job: Job) -> None:
    attached(store, job)
    config = mooncake.EngramStoreConfig()
    config.embedding_dim, config.table_vocab_sizes = 4, [5, 7]
    tables = mooncake.EngramStore(3, config, store)
    made = [np.arange(20, dtype="f4").reshape(5, 4), -np.arange(28, dtype="f4").reshape(7, 4)]
    tables.populate(made)
    assert tables.get_store_keys() == ["engram:l3:h0", "engram:l3:h1"]
    rows = np.array([[[1, 2], [4, 6]]])
    expected = np.stack([made[0][rows[:, :, 0]], made[1][rows[:, :, 1]]], axis=2)
    assert (tables.lookup(rows) == expected).all()
    for wrong in ([[[5, 0]]], [[[-1, 0]]], [[[0]]], [0]):
        with pytest.raises(RuntimeError):
            tables.lookup(wrong)
    for buffers in (made, made[:1], made[::-1], [made[0].tobytes(), made[1]]):
        with pytest.raises(RuntimeError):
            tables.populate(buffers)
    assert tables.remove_from_store() == 2 and tables.remove_from_store() == 0


def test_a_config_takes_its_fields_alone() -> None:
    config = mooncake.ReplicateConfig()
    config.replica_num, config.with_soft_pin, config.group_ids = 3, True, ["a"]
    assert "3" in str(config) and config.soft_pin_ttl_ms is None
    with pytest.raises(TypeError):
        config.replica_num = "x"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        config.replicas = 2
    with pytest.raises(RuntimeError):
        mooncake.ReadTarget().mode = "some"
    assert str(mooncake.ReplicaStatus.COMPLETE) == "ReplicaStatus.COMPLETE"


def test_a_size_is_checked_when_it_is_set_up(store: Store, job: Job) -> None:
    named = {"local_hostname": "x", "master_server_addr": job[2]}
    for size in ("16MB", "16 MB", "1.5g", 1024, "0"):
        assert store.setup({**named, "local_buffer_size": size}) == 0
    for size in ("50%", "much", None, float("nan"), "inf"):
        assert store.setup({**named, "global_segment_size": size}) == -600


def test_numbers_that_no_header_holds_are_refused(store: Store, job: Job) -> None:
    attached(store, job)
    requests, tensor = mooncake_parts.Requests(mooncake), mooncake_parts.NumpyTensor("int8", 0, 4)
    put = store.put_tensor_with_parallelism
    for axes in (
        requests.axes(("dp", 0, 1 << 31)),
        requests.axes(("ep", 0, 1, 1 << 31)),
        requests.axes(("pp", 0, 1, -(1 << 40))),
        requests.tp(0, 1 << 40, 0),
    ):
        assert put("large", tensor, axes) == -600
    assert put("large", tensor, None, None, requests.writer(0, 1 << 40, 0)) == -600
    assert store.put_tensor_with_tp("large", tensor, 0, 1 << 30, 0) == -600
    assert store.put_tensor_with_tp("empty", tensor, 0, 3, 0) == 0
    # A manifest that promises more parts than there are.
    manifest = tensor_bytes.Manifest(2, (1 << 40, 4), 0, 1 << 30)
    assert store.put("many__parallelism_manifest", manifest.packed()) == 0
    assert store.put("many__writer_manifest", manifest.packed()) == 0
    for axes in (requests.tp(0, 2, 0), None):
        assert store._picture("many", requests.target("full", axes), True) is None
