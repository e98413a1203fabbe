"""Calls of Mooncake's store and what they return, one after another.

Recorded against the real one (mooncake-transfer-engine-non-cuda 0.3.13.post1 with torch, a master
beside it):

    python mooncake_calls.py HOST:PORT recorded

and replayed against nkv by test_mooncake.py and test_mooncake_parts.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BYTES = 1 << 20


def shown(value: Any) -> Any:
    """A result as JSON."""
    if isinstance(value, bytes):
        return f"bytes {len(value)} {value[:8].hex()}"
    if callable(getattr(value, "data_ptr", None)):
        # A tensor's bits.
        bits = ctypes.string_at(value.data_ptr(), value.numel() * value.element_size())
        return f"tensor {value.dtype} {tuple(value.shape)} {bits.hex()}"
    if callable(getattr(value, "size", None)):
        return f"buffer {value.size()} {memoryview(value).tobytes()[:4].hex()}"
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    return value


def axes_shown(parallelism: Any) -> str:
    """Axes of a request, in short."""
    axes = []
    for axis in getattr(parallelism, "axes", []):
        where = (axis.split_dim, axis.expert_id, axis.stage_id)
        axes.append(f"{axis.kind} {axis.rank}/{axis.size} {where}")
    return "; ".join(axes)


class Recorder:
    """Makes calls of one store; notes each with its name and what it returned.

    ``p`` and ``q`` are two buffers; the first begins with 100 bytes of 7.
    """

    def __init__(self, store: Any, master: str) -> None:
        self.store, self.master = store, master
        self.results: list[tuple[str, Any]] = []
        self.source = (ctypes.c_ubyte * BYTES)(*([7] * 100))
        self.target = (ctypes.c_ubyte * BYTES)()
        self.p, self.q = ctypes.addressof(self.source), ctypes.addressof(self.target)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Makes a call; returns what it returned."""
        found: Any = None
        try:
            found = getattr(self.store, name)(*args, **kwargs)
            result = shown(found)
        except Exception as error:
            result = f"raises {type(error).__name__}"
        words = ", ".join([*map(self.described, args), *kwargs])
        self.note(f"{name}({words})", result)
        return found

    def note(self, name: str, result: Any) -> None:
        """Notes a result that no call of the store returned."""
        self.results.append((f"{len(self.results):02} {name}", result))

    def described(self, value: Any) -> str:
        """An argument, the same in every process."""
        if isinstance(value, memoryview):
            return f"memoryview({bytes(value)!r})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.described, value))}]"
        if callable(getattr(value, "data_ptr", None)):
            return f"tensor({str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)})"
        if hasattr(value, "axes"):
            return f"axes({axes_shown(value)})"
        if hasattr(value, "mode"):
            return f"target({value.mode}, {axes_shown(value.parallelism)})"
        if hasattr(value, "split_dim"):
            return f"writer({value.rank}/{value.size}, {value.split_dim})"
        if hasattr(value, "replica_num"):
            return "config"
        if type(value) is int and value >= min(self.p, self.q):
            name, start = ("p", self.p) if self.p <= value < self.p + BYTES else ("q", self.q)
            return f"{name}+{value - start}"
        return "master" if value == self.master else repr(value) if value is not None else "None"

    def setup(self) -> None:
        """Attaches, and registers the buffers."""
        sizes = (256 << 20, 64 << 20)
        self.call("setup", "127.0.0.1", "P2PHANDSHAKE", *sizes, "tcp", "", self.master)
        self.call("register_buffer", self.p, BYTES)
        self.call("register_buffer", self.q, BYTES)


def calls(store: Any, master: str, settle: Callable[[], None]) -> list[tuple[str, Any]]:
    """Calls of objects as bytes."""
    recorder = Recorder(store, master)
    call, p, q = recorder.call, recorder.p, recorder.q
    recorder.setup()
    call("register_buffer", 0, 10)
    call("put", "a", b"hello")
    call("put", "a", b"other")
    call("get", "a")
    call("get", "zz")
    call("put", "e", b"")
    call("get", "e")
    call("is_exist", "e")
    call("put", "", b"x")
    call("get", "")
    call("is_exist", "")
    call("is_exist", "a")
    call("is_exist", "zz")
    call("batch_is_exist", ["a", "zz", "e"])
    call("batch_is_exist", [])
    call("get_size", "a")
    call("get_size", "zz")
    call("put_from", "f", p, 1000)
    call("get_into", "f", q, 1000)
    recorder.results.append(("read", bytes(recorder.target[:4]).hex()))
    call("get_into", "f", q, 5000)
    call("get_into", "f", q, 10)
    call("get_into", "zz", q, 10)
    call("get_into", "f", q, 0)
    call("put_from", "f0", p, 0)
    call("is_exist", "f0")
    call("batch_put_from", ["g1", "g2"], [p, p + 100], [100, 200])
    call("batch_put_from", ["g1", "g3"], [p, p + 100], [100, 200])
    call("batch_put_from", ["g1", "g2"], [p], [100, 200])
    call("batch_put_from", [], [], [])
    call("batch_get_into", ["g1", "zz", "g2"], [q, q + 1000, q + 2000], [100, 100, 200])
    call("batch_get_into", ["g1"], [q, q], [1, 1])
    call("batch_get_into", ["g2"], [q], [100])
    call("batch_put_from_multi_buffers", ["m1", "m2"], [[p, p + 100], [p]], [[100, 50], [300]])
    call("batch_get_into_multi_buffers", ["m1", "zz"], [[q, q + 500], [q]], [[100, 50], [10]])
    call("batch_get_into_multi_buffers", ["m1"], [[q, q + 500]], [[50, 100]])
    call("batch_get_into_multi_buffers", ["m1"], [[q]], [[50]])
    call("batch_get_into_multi_buffers", ["m1"], [[q, q + 500]], [[100, 100]])
    call("batch_get_into_multi_buffers", ["m1"], [[q, q]], [[50]])
    call("get_size", "m1")
    call("put_parts", "p", b"ab", memoryview(b"cde"), bytearray(b"f"))
    call("get", "p")
    call("put_parts", "pn")
    call("is_exist", "pn")
    call("put_batch", ["b1", "b2"], [b"1", b"22"])
    call("put_batch", ["b1", "b2"], [b"1"])
    call("get_batch", ["b1", "zz", "b2"])
    call("get_buffer", "b2")
    call("get_buffer", "zz")
    call("batch_get_buffer", ["b1", "zz"])
    call("upsert", "a", b"new")
    call("get", "a")
    call("upsert", "u", b"n")
    call("upsert_from", "a", p, 100)
    call("get_size", "a")
    call("remove", "u")
    call("remove", "u")
    call("remove", "b1", True)
    call("batch_remove", ["g1", "zz", "g2"], True)
    call("health_check")
    call("get_hostname")
    settle()
    call("remove_by_regex", "^m", True)
    call("remove_by_regex", "^nothing", True)
    call("remove_by_regex", "(", True)
    call("is_exist", "m1")
    call("put", "i", 5)
    call("put", "i", None)
    call("put", "i", "text")
    call("put", 5, b"x")
    call("put", b"k", b"x")
    call("get", b"k")
    call("remove_all", True)
    call("batch_is_exist", ["a", "f", "p"])
    call("unregister_buffer", p)
    call("unregister_buffer", p)
    call("close")
    return recorder.results


def main(master: str, folder: Path) -> None:
    """Records everything."""
    import mooncake.store as module  # noqa: PLC0415 - only to record
    import mooncake_parts  # noqa: PLC0415 - it uses this module

    def written(name: str, found: list[tuple[str, Any]]) -> None:
        text = json.dumps(found, indent=1) + "\n"
        (folder / f"mooncake-{name}0.3.13.json").write_text(text)

    def store() -> Any:
        return module.MooncakeDistributedStore()

    written("", calls(store(), master, lambda: time.sleep(0.5)))
    written("parts-", mooncake_parts.calls(store(), master))
    tensor = mooncake_parts.torch_tensor
    written("tensors-", mooncake_parts.tensor_calls(module, store(), master, tensor))
    written("reads-", mooncake_parts.read_calls(module, store(), master, tensor))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    # The real one may crash while it ends.
    sys.stdout.flush()
    os._exit(0)
