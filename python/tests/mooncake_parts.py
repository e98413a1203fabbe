"""Calls of parts of objects, and of tensors: what mooncake_calls.py records beside plain objects.

``module`` is ``mooncake.store`` or ``nkv.mooncake``; ``tensor`` makes a tensor of a type's name and
a shape, of torch where there is torch, else of NumPy.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from mooncake_calls import BYTES, Recorder

DTYPES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    *("uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
_ITEM_BYTES = {"bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
MakeTensor = Callable[..., Any]


def _elements(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Bytes that stand for elements: 0, 1, 2, ...; of booleans 0 and 1."""
    item = _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize
    count = int(np.prod(shape)) * item
    return (np.arange(count) % (2 if dtype == "bool" else 251)).astype("u1")


class NumpyTensor:
    """What the store asks of a torch tensor that it stores, made of NumPy."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = f"torch.{dtype}", shape
        self._bytes = _elements(dtype, shape)

    def data_ptr(self) -> int:
        """Where it begins."""
        return self._bytes.ctypes.data

    def detach(self) -> NumpyTensor:
        """Itself: it is what torch would make of it."""
        return self

    cpu = contiguous = resolve_neg = detach


def torch_tensor(dtype: str, *shape: int) -> Any:
    """The same of torch."""
    import torch  # noqa: PLC0415 - where there is torch

    data = _elements(dtype, shape)
    if data.size == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)


def calls(store: Any, master: str) -> list[tuple[str, Any]]:
    """Ranges, sessions, descriptors, tasks, mounts."""
    recorder = Recorder(store, master)
    call, p = recorder.call, recorder.p
    recorder.setup()
    recorder.source[:200] = range(200)
    call("put_from", "a", p, 100)
    call("put", "b", b"x" * 50)
    _range_calls(recorder)
    _session_calls(recorder)
    call("batch_get_replica_desc", ["zz"])
    call("batch_get_replica_desc", [])
    call("get_replica_desc", "zz")
    for one in store.get_replica_desc("a"):
        states = (one.is_memory_replica(), one.is_disk_replica(), one.is_local_disk_replica())
        size = one.get_memory_descriptor().buffer_descriptor.size
        recorder.note("descriptor of a", [int(one.status), *states, size])
    call("batch_replica_clear", ["a"], "nohost")
    call("batch_replica_clear", ["zz"])
    call("create_copy_task", "a", ["nohost:1"])
    call("create_copy_task", "a", [])
    call("create_copy_task", "zz", ["nohost:1"])
    call("create_move_task", "a", "x", "y")
    call("create_move_task", "zz", "x", "y")
    call("query_task", (1, 2))
    call("mount_segment", "/nowhere/at all", 1 << 20)
    call("allocate_and_mount_segment", 0)
    call("unmount_segment", ["x"])
    call("unmount_segment", [])
    call("unmount_and_free_segment", ["1-2"])
    call("unmount_local_disk_segment")
    call("alloc_from_mem_pool", 100)
    call("get_offload_rpc_read_count")
    for key, size, more in (("m1", 10, 5), ("m2", 10, 0), ("m3", 0, 5)):
        call("put_from_with_metadata", key, p, p + 100, size, more)
        recorder.note(f"bytes of {key}", store.get(key).hex())
    call("close")
    return recorder.results


def _range_calls(recorder: Recorder) -> None:
    call, q = recorder.call, recorder.q

    def read(*args: Any) -> None:
        ctypes.memset(q, 0, 100)
        call("get_into_ranges", *args)
        recorder.note("read", bytes(recorder.target[:100]).hex())

    read([q], [["a", "b"]], [[[0, 20], [50]]], [[[10, 30], [0]]], [[[5, 5], [50]]])
    read([q, q + 50], [["a"], ["b"]], [[[0]], [[0]]], [[[1]], [[2]]], [[[3]], [[4]]])
    read([q], [["zz", "a"]], [[[0], [0]]], [[[0], [0]]], [[[5], [5]]])
    read([q], [["a"]], [[[0, 0]]], [[[90, 0]]], [[[20, 5]]])
    read([q], [["a"]], [[[BYTES - 2, 0]]], [[[0, 0]]], [[[5, 5]]])
    read([q], [["a", "b"]], [[[0], []]], [[[0, 1], []]], [[[4, 4], []]])
    read([q], [["a", "b"]], [[[0]]], [[[0], [0]]], [[[4], [4]]])
    read([q, q], [["a"]], [[[0]]], [[[0]]], [[[4]]])
    read([], [], [], [], [])
    read([q], [["a"]], [[[0]]], [[[0]]], [[[0]]])


def _session_calls(recorder: Recorder) -> None:
    call, p, q = recorder.call, recorder.p, recorder.q
    ranged, written = "batch_get_into_multi_buffer_ranges", "batch_put_from_multi_buffer_ranges"
    call("batch_get_session_start", ["a", "zz", "b"])
    call("batch_get_session_start", ["a"])
    call("batch_get_session_start", [])
    ctypes.memset(q, 0, 200)
    call(ranged, ["a", "b"], [[q, q + 50], [q + 100]], [[10, 10], [20]], [[5, 50], [0]])
    recorder.note("read", bytes(recorder.target[:200]).hex())
    call(ranged, ["zz"], [[q]], [[10]], [[5]])
    call(ranged, ["a"], [[q]], [[100]], [[5]])
    call(ranged, ["a", "b"], [[q]], [[100]], [[5]])
    call(ranged, ["a"], [[q]], [[10, 10]], [[5]])
    call(ranged, ["a"], [[]], [[]], [[]])
    call(ranged, [], [], [], [])
    call("batch_get_session_end", ["a", "zz"])
    call("batch_get_session_end", ["a"])
    call(ranged, ["a"], [[q]], [[10]], [[5]])
    call("batch_put_session_start", ["s1", "s2", "a"], [100, 50, 10])
    call("batch_put_session_start", ["s1"], [100])
    call("batch_put_session_start", ["s3", "s4"], [100])
    call("batch_put_session_start", ["s5"], [0])
    call("is_exist", "s1")
    call(written, ["s1", "s2"], [[p, p + 50], [p]], [[50, 50], [50]], [[0, 50], [0]])
    call(written, ["s1"], [[p]], [[50]], [[80]])
    call(written, ["zz"], [[p]], [[50]], [[80]])
    call(written, ["s1"], [[p]], [[50, 1]], [[80]])
    call("batch_put_session_end", ["s1", "zz"])
    recorder.note("bytes of s1", recorder.store.get("s1").hex())
    call("batch_put_session_end", ["s1"])
    call("batch_put_session_revoke", ["s2", "zz"])
    call("is_exist", "s2")
    call("batch_put_session_start", ["s6"], [100])
    call("batch_put_session_end", ["s6"])


class Requests:
    """Requests of tensors' parts, of either module's classes."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def axes(self, *axes: tuple[Any, ...]) -> Any:
        """Axes: kind, rank, size, and split dimension, expert or stage."""
        made = []
        for kind, rank, size, *number in axes:
            axis = self._module.ParallelAxis()
            axis.kind, axis.rank, axis.size = kind, rank, size
            name = {"tp": "split_dim", "ep": "expert_id", "pp": "stage_id"}.get(kind)
            if name and number:
                setattr(axis, name, number[0])
            made.append(axis)
        parallelism = self._module.TensorParallelism()
        parallelism.axes = made
        return parallelism

    def tp(self, rank: int, size: int, dim: int) -> Any:
        """One axis that cuts."""
        return self.axes(("tp", rank, size, dim))

    def four(self, rank: int, size: int = 2) -> Any:
        """All four axes."""
        return self.axes(("tp", rank, size, 0), ("dp", 0, 3), ("ep", 0, 2, 7), ("pp", 1, 2, 5))

    def target(self, mode: str, parallelism: Any = None) -> Any:
        """What to read."""
        target = self._module.ReadTarget()
        target.mode, target.parallelism = mode, parallelism
        return target

    def writer(self, rank: int, size: int, dim: int) -> Any:
        """A writer's cut."""
        return types.SimpleNamespace(rank=rank, size=size, split_dim=dim)


def tensor_calls(module: Any, store: Any, master: str, tensor: MakeTensor) -> list[tuple[str, Any]]:
    """Writes of tensors, and the bytes that they store."""
    recorder = Recorder(store, master)
    recorder.setup()
    call = recorder.call

    def stored(*keys: str) -> None:
        for key in keys:
            recorder.note(f"bytes of {key}", store.get(key).hex())

    for dtype in DTYPES:
        call("put_tensor", dtype, tensor(dtype, 2, 3))
        stored(dtype)
    shapes = {"scalar": (), "empty": (0,), "eight": (1, 1, 2, 1, 1, 1, 1, 2), "nine": (1,) * 9}
    for name, shape in shapes.items():
        call("put_tensor", name, tensor("float32", *shape))
        stored(name)
    for value in (None, 5, b"bytes"):
        call("put_tensor", "none", value)
    x, y = tensor("int32", 4, 6), tensor("int32", 2, 3)
    call("batch_put_tensor", ["b1", "b2", "b3"], [x, None, y])
    call("batch_put_tensor", ["b4"], [x, y])
    call("batch_put_tensor", [], [])
    call("pub_tensor", "b5", x, module.ReplicateConfig())
    call("upsert_tensor", "b5", y)
    call("batch_upsert_pub_tensor", ["b1"], [y])
    stored("b1", "b5")
    _tp_calls(recorder, stored, x, tensor("int32", 3, 6))
    _parallel_calls(recorder, Requests(module), stored, x)
    _object_calls(recorder, Requests(module), stored)
    call("get_tensor_into_cuda", "b1", x)
    call("batch_get_tensor_into_cuda", ["b1"], [x])
    call("save_tensor_to_safetensor", "zz", "/nowhere/at all")
    call("close")
    return recorder.results


def _tp_calls(recorder: Recorder, stored: Callable[..., None], x: Any, odd: Any) -> None:
    call = recorder.call
    call("put_tensor_with_tp", "t1", x, 0, 2, 1)
    stored("t1_tp_0", "t1_tp_1", "t1")
    call("put_tensor_with_tp", "t2", x, 0, 5, 1)
    call("put_tensor_with_tp", "t3", x, 3, 2, 0)
    call("put_tensor_with_tp", "t4", x, 0, 2, 9)
    call("put_tensor_with_tp", "t5", x, 0, 1, 9)
    stored("t3_tp_1", "t5")
    call("batch_put_tensor_with_tp", ["t6", "t7", "t8"], [x, None, odd], 0, 2, 0)
    call("batch_put_tensor_with_tp", ["t9"], [x, x], 0, 2, 0)
    call("pub_tensor_with_tp", "t10", x, tp_size=2)
    call("batch_pub_tensor_with_tp", ["t11"], [x], tp_size=3, split_dim=1)
    stored("t6_tp_1", "t10_tp_0", "t11_tp_2")


def _parallel_calls(
    recorder: Recorder, requests: Requests, stored: Callable[..., None], x: Any
) -> None:
    def put(key: str, *args: Any) -> None:
        recorder.call("put_tensor_with_parallelism", key, x, *args)

    tp, four, data = requests.tp(1, 2, 1), requests.four(1), requests.axes(("dp", 1, 2))
    put("p1", tp)
    stored("p1", "p1_tp_1", "p1__parallelism_manifest")
    put("p2", four)
    part = "__dp_0of3__tp_1of2_sd0__ep_0of2_eid7__pp_1of2_sid5"
    stored(f"p2{part}", "p2__parallelism_manifest")
    put("p3", data)
    stored("p3__dp_1of2", "p3__parallelism_manifest")
    put("p4")
    stored("p4")
    for wrong in (
        requests.axes(("xx", 0, 1)),
        requests.axes(),
        requests.axes(("tp", 0, 2)),
        requests.axes(("tp", 2, 2, 0)),
        requests.axes(("ep", 0, 2)),
        requests.axes(("dp", 0, 2), ("dp", 1, 2)),
        requests.tp(0, 2, 9),
        5,
    ):
        put("p5", wrong)
    call = recorder.call
    batch = "batch_put_tensor_with_parallelism"
    call(batch, ["p6", "p7"], [x, x], [tp, None])
    call(batch, ["p8", "p9"], [x, x], [tp])
    call(batch, ["p8", "p9"], [x, x])
    call("upsert_tensor_with_parallelism", "p4", x, tp)
    stored("p6_tp_1", "p7", "p9", "p4_tp_1")


def _object_calls(recorder: Recorder, requests: Requests, stored: Callable[..., None]) -> None:
    """Tensor objects in memory: that of key t5."""
    call, p = recorder.call, recorder.p
    n = call("get_into", "t5", p, BYTES)
    call("put_tensor_from", "o1", p, n)
    call("put_tensor_from", "o2", p, n + 50)
    call("put_tensor_from", "o2", p, n - 1)
    call("put_tensor_from", "o2", p, 10)
    call("put_tensor_from", "o2", 0, n)
    call("batch_put_tensor_from", ["o3", "o4"], [p, p], [n, n - 1])
    call("batch_put_tensor_from", ["o3", "o4"], [p], [n])
    call("batch_put_tensor_from", [], [], [])
    call("upsert_tensor_from", "o1", p, n)
    call("batch_upsert_tensor_from", ["o5"], [p], [n])
    call("put_tensor_with_tp_from", "o6", p, n, 0, 2, 1)
    call("batch_put_tensor_with_tp_from", ["o7"], [p], [n], 0, 3, 1)
    stored("o1", "o5", "o6_tp_1", "o7_tp_2")
    put = "put_tensor_with_parallelism_from"
    call(put, "o8", p, n, requests.tp(1, 2, 1))
    call(put, "o9", p, n, requests.axes(("dp", 1, 2)))
    call(put, "o10", p, n, requests.four(1))
    part = "o10__dp_0of3__tp_{}of2_sd0__ep_0of2_eid7__pp_1of2_sid5"
    stored("o8_tp_0", "o8_tp_1", "o8__parallelism_manifest", "o9__dp_1of2")
    stored(part.format(0), part.format(1))
    call("batch_upsert_tensor_with_parallelism_from", ["o11"], [p], [n])
    stored("o11")


def read_calls(module: Any, store: Any, master: str, tensor: MakeTensor) -> list[tuple[str, Any]]:
    """Reads of tensors, whole and in parts."""
    recorder, requests = Recorder(store, master), Requests(module)
    recorder.setup()
    call, q = recorder.call, recorder.q
    for dtype in DTYPES:
        store.put_tensor(f"d/{dtype}", tensor(dtype, 2, 3))
        call("get_tensor", f"d/{dtype}")
    x = tensor("int32", 4, 6)
    for name, made in {"scalar": tensor("int32"), "empty": tensor("int32", 0), "x": x}.items():
        store.put_tensor(name, made)
        call("get_tensor", name)
    store.put_tensor("turned", x.transpose(0, 1))
    store.put("plain", b"x" * 400)
    call("batch_get_tensor", ["turned", "zz", "plain"])
    n = store.get_size("x")
    call("get_tensor_into", "x", q, BYTES)
    call("get_tensor_into", "x", q, n - 1)
    call("get_tensor_into", "zz", q, BYTES)
    call("batch_get_tensor_into", ["x", "zz"], [q, q + 5000], [5000, 5000])
    call("batch_get_tensor_into", ["x", "zz"], [q], [5000, 5000])
    store.put_tensor_with_tp("w", x, 0, 2, 1)
    call("get_tensor_with_tp", "w", 1, 2)
    call("get_tensor_with_tp", "x", 1, 1)
    call("get_tensor_with_tp", "w", 5, 2)
    call("batch_get_tensor_with_tp", ["w", "zz"], 0, 2)
    call("get_tensor_with_tp_into", "w", q, BYTES, 1, 2)
    call("batch_get_tensor_with_tp_into", ["w"], [q, q], [BYTES], 1, 2)
    for rank in range(2):
        store.put_tensor_with_parallelism("p", x, requests.tp(rank, 2, 1))
        store.put_tensor_with_parallelism("m", x, requests.four(rank))
        store.put_tensor_with_parallelism(
            "v", x, None, module.ReplicateConfig(), requests.writer(rank, 2, 0)
        )
    store.put_tensor_with_parallelism("d", x, requests.axes(("dp", 1, 2)))
    store.put_tensor_with_parallelism("half", x, requests.tp(1, 2, 0))
    wanted = _wanted(requests)
    for key, targets in wanted.items():
        for target in targets:
            call("get_tensor_with_parallelism", key, target)
            call("get_tensor_with_parallelism_into", key, q, BYTES, target)
    call("get_tensor_with_parallelism_into", "w", q, 310, wanted["w"][0])
    batch = "batch_get_tensor_with_parallelism"
    call(batch, ["w", "x"], [wanted["w"][0], None])
    call(batch, ["w", "x"], [None])
    call(batch, ["x"])
    call(f"{batch}_into", ["w", "x"], [q, q + 5000], [5000, 5000], [wanted["w"][0], None])
    call("close")
    return recorder.results


def _wanted(requests: Requests) -> dict[str, list[Any]]:
    """Targets to read each key by."""
    tp, four, target = requests.tp, requests.four, requests.target
    return {
        "w": [
            target("shard", tp(1, 2, 1)),
            target("shard", tp(1, 3, 1)),
            target("full", tp(0, 2, 1)),
            target("full", tp(0, 3, 1)),
            target("full"),
            target("as_stored"),
        ],
        "x": [target("shard", tp(1, 2, 0)), target("full", tp(1, 2, 0)), target("full")],
        "p": [
            target("shard", tp(0, 2, 1)),
            target("shard", tp(2, 4, 1)),
            target("full", tp(0, 2, 1)),
        ],
        "m": [target("shard", four(1)), target("full", four(0)), target("shard", four(3, 4))],
        "v": [
            target("full"),
            target("shard", tp(1, 2, 0)),
            target("full", tp(0, 2, 0)),
            target("as_stored", tp(0, 2, 0)),
        ],
        "d": [
            target("shard", requests.axes(("dp", 1, 2))),
            target("full", requests.axes(("dp", 1, 2))),
        ],
        "half": [target("full", tp(0, 2, 0)), target("shard", tp(0, 4, 0))],
        "zz": [target("full"), target("shard", tp(0, 2, 0))],
    }
