"""Calls of Mooncake's store and what they return, one after another.

Recorded against the real one (mooncake-transfer-engine-non-cuda 0.3.13.post1, a master beside it):

    python mooncake_calls.py HOST:PORT recorded/mooncake-0.3.13.json

and replayed against nkv by test_mooncake.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

BYTES = 1 << 20


def shown(value: Any) -> Any:
    """A result as JSON."""
    if isinstance(value, bytes):
        return f"bytes {len(value)} {value[:8].hex()}"
    if callable(getattr(value, "size", None)):
        return f"buffer {value.size()} {memoryview(value).tobytes()[:4].hex()}"
    if isinstance(value, list):
        return [shown(one) for one in value]
    return value


def calls(store: Any, master: str, settle: Callable[[], None]) -> list[tuple[str, Any]]:
    """Makes the calls; each with its name and what it returned."""
    results: list[tuple[str, Any]] = []

    def call(name: str, *args: Any, **kwargs: Any) -> None:
        try:
            result = shown(getattr(store, name)(*args, **kwargs))
        except Exception as error:
            result = f"raises {type(error).__name__}"
        words = ", ".join([*map(described, args), *kwargs])
        results.append((f"{len(results):02} {name}({words})", result))

    source, target = (ctypes.c_ubyte * BYTES)(*([7] * 100)), (ctypes.c_ubyte * BYTES)()
    p, q = ctypes.addressof(source), ctypes.addressof(target)

    def described(value: Any) -> str:
        if isinstance(value, memoryview):
            return f"memoryview({bytes(value)!r})"
        if isinstance(value, list):
            return f"[{', '.join(map(described, value))}]"
        if type(value) is int and value >= min(p, q):
            return f"p+{value - p}" if p <= value < p + BYTES else f"q+{value - q}"
        return "master" if value == master else repr(value) if value is not None else "None"

    sizes = (256 << 20, 64 << 20)
    call("setup", "127.0.0.1", "P2PHANDSHAKE", *sizes, "tcp", "", master)
    call("register_buffer", p, BYTES)
    call("register_buffer", q, BYTES)
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
    results.append(("read", bytes(target[:4]).hex()))
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
    return results


if __name__ == "__main__":
    from mooncake.store import MooncakeDistributedStore

    found = calls(MooncakeDistributedStore(), sys.argv[1], lambda: time.sleep(0.5))
    with open(sys.argv[2], "w") as out:
        json.dump(found, out, indent=1)
        out.write("\n")
    # The real one may crash while it ends.
    sys.stdout.flush()
    os._exit(0)
