"""The names of Mooncake's store, served by nkv: what inference engines call, unchanged.

``MooncakeDistributedStore`` has the methods, arguments, return values and error codes of
mooncake-transfer-engine 0.3.13. Differences:

- ``setup`` attaches to running nodes at ``master_server_addr`` (``nkv-node``; its rank 0 is the
  master), whose memory it uses: ``global_segment_size`` and ``local_buffer_size`` take none.
  ``metadata_server`` is not needed. ``protocol`` "rdma" and "tcp" both use shared memory on the
  nodes' host and the fastest there is elsewhere.
- A call before ``setup`` or after ``close`` returns -600 (there the process crashes). An array that
  is not contiguous, address 0 and negative sizes are refused with -600.
- ``put_from`` of 0 bytes and ``put_parts`` without parts store an empty value; there they return 0
  and store nothing. A value shorter than the places it is read into is read; there that is -800.
- An upsert removes, then puts: a reader may find nothing between. ``remove_by_regex`` misses what
  was put in the last 200 ms.
- Values that were put as arrays by ``NanoKVCache`` are read with their trailer.
- ``replica_num`` above 1, pins and groups are accepted and have no effect: there is one copy, which
  the log says once. Leases are not needed: what is read cannot change under its reader.

``python -m nkv.mooncake DIRECTORY`` writes a package ``mooncake`` there, which leads here; a
directory that is first on PYTHONPATH makes every engine use it.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import mmap
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from . import _nkv, arrays, errors
from .layouts import given

_log = logging.getLogger("nkv.mooncake")

OK = 0
NO_SPACE = -200
INVALID_PARAMS = -600
REPLICA_NOT_READY = -703
OBJECT_NOT_FOUND = -704
OBJECT_EXISTS = -705
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
RPC_TIMEOUT = -901

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFound, OBJECT_NOT_FOUND),
    (errors.NotReady, REPLICA_NOT_READY),
    (errors.AlreadyExists, OBJECT_EXISTS),
    (errors.OutOfMemory, NO_SPACE),
    (errors.Timeout, RPC_TIMEOUT),
    (errors.Disconnected, RPC_FAIL),
    (errors.Corrupt, CHECKSUM_MISMATCH),
    (errors.InvalidArgument, INVALID_PARAMS),
)

#: How often an upsert begins again because another put came between.
_REPLACE_TRIES = 16
_MAX_KEY_BYTES = 1024


def _code(error: BaseException) -> int:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, (ValueError, OverflowError, BufferError)):
        return INVALID_PARAMS
    return TRANSFER_FAIL


class ObjectDataType(enum.IntEnum):
    """What an object holds. nkv treats all alike."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.IntEnum):
    """What a put does to a pin. nkv has none."""

    KEEP = 0
    SET = 1
    CLEAR = 2


class ReplicateConfig:
    """Wishes of a put. ``preferred_segment`` is a rank's number, or a name that is ignored."""

    def __init__(self) -> None:
        self.replica_num = 1
        self.with_soft_pin = False
        self.soft_pin_action: Any = SoftPinAction.KEEP
        self.soft_pin_ttl_ms = 0
        self.with_hard_pin = False
        self.preferred_segment = ""
        self.preferred_segments: list[str] = []
        self.prefer_alloc_in_same_node = False
        self.group_ids: list[str] = []
        self.data_type: Any = ObjectDataType.UNKNOWN
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.preferred_nof_segments: list[str] = []


class BufferHandle:
    """Bytes of an object, in a buffer of their own; also by the buffer protocol."""

    _owner: _nkv.Bytes

    def ptr(self) -> int:
        """Where it begins."""
        return self._owner.address

    def size(self) -> int:
        """How long it is."""
        return len(self._owner)


@functools.lru_cache(maxsize=256)
def _handle_type(size: int) -> Any:
    # A class of Python exports no buffer before 3.12; an array of ctypes does.
    return type("BufferHandle", (BufferHandle, ctypes.c_ubyte * size), {})


def _handle(owner: _nkv.Bytes) -> BufferHandle:
    handle: BufferHandle = _handle_type(len(owner)).from_address(owner.address)
    handle._owner = owner
    return handle


class MooncakeHostMemAllocator:
    """Page-aligned memory of this process, as engines allocate their pools."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def alloc(self, size: int) -> int:
        """The address of so many bytes of zeros; 0 if that is no size."""
        if size <= 0:
            return 0
        memory = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._held[address] = memory
        return address

    def free(self, address: int) -> int:
        """Gives it back."""
        return OK if self._held.pop(address, None) is not None else INVALID_PARAMS


def bind_to_numa_node(_node: int) -> None:
    """Does nothing: nkv's memory is its nodes'."""


_warned: set[str] = set()


def _warn_once(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        _log.warning("%s", what)


def _preferred(config: ReplicateConfig | None) -> int | None:
    if config is None:
        return None
    if config.replica_num > 1:
        _warn_once("replica_num above 1: nkv keeps one copy")
    named = config.preferred_segment or (config.preferred_segments or [""])[0]
    return int(named) if named.isdecimal() and named.isascii() else None


class MooncakeDistributedStore:
    """See the module's description."""

    def __init__(self) -> None:
        self._c: _nkv.Cache | None = None
        self._host = ""
        self._registered: dict[int, int] = {}

    # Start and end

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Attaches to the nodes: by positions, by names, or by one dict (all as in Mooncake)."""
        names = (
            "local_hostname",
            "metadata_server",
            "global_segment_size",
            "local_buffer_size",
            "protocol",
            "rdma_devices",
            "master_server_addr",
        )
        by_dict = bool(args) and isinstance(args[0], dict)
        named: dict[str, Any] = dict(args[0]) if by_dict else {}
        if not by_dict:
            named.update(zip(names, args, strict=False))
        named.update(kwargs)
        master = named.get("master_server_addr") or named.get("master_server_address")
        return self._attach(str(named.get("local_hostname") or ""), str(master or ""))

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Attaches to the nodes at an address."""
        return self._attach("", server_address)

    # Names of the first versions.
    def initAll(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """Attaches, unless ``setup`` did, to rank 0 on this host."""
        return OK if self._c is not None else self._attach("", "")

    init_all = initAll

    def _attach(self, host: str, master: str) -> int:
        job = os.environ.get("NKV_JOB") or "nkv"
        addresses = [master] if master else []
        try:
            self._c = _nkv.Cache.connect(addresses, job, None, "auto", 2_000, True)
        except Exception as error:
            _log.error("setup: %s", error)
            return _code(error)
        self._host = host or socket.gethostname()
        return OK

    def close(self) -> int:
        """Detaches. What was put stays."""
        if self._c is not None:
            self._c.close()
            self._c = None
        return OK

    tearDownAll = close

    def get_hostname(self) -> str:
        """The name that ``setup`` was given, or the host's."""
        return self._host

    def health_check(self) -> int:
        """0: the nodes answer; 1: not set up; 2: they do not."""
        if self._c is None:
            return 1
        answer = self._try(lambda c: c.exists(["nkv/health"]))
        return 2 if isinstance(answer, int) else 0

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Checks the range and remembers it; nothing is registered with RDMA devices here."""
        if buffer_ptr <= 0 or size <= 0:
            return INVALID_PARAMS
        self._registered[buffer_ptr] = size
        return OK

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets the range; -600 if it was not registered."""
        return OK if self._registered.pop(buffer_ptr, None) is not None else INVALID_PARAMS

    # Calls

    def _try(self, call: Callable[[_nkv.Cache], Any], failed: Any = None) -> Any:
        """What the call returns, or the code of its error; ``failed`` in its place if given."""
        if self._c is None:
            return INVALID_PARAMS if failed is None else failed
        try:
            return call(self._c)
        except TypeError:
            raise
        except Exception as error:
            _log.debug("%s", error)
            return _code(error) if failed is None else failed

    def _many(
        self, n: int, call: Callable[[_nkv.Cache], Iterable[Any]], value: Callable[[Any], Any]
    ) -> list[Any]:
        """The results of a batch: values, or the codes of their errors."""
        done = self._try(call)
        if isinstance(done, int):
            return [done] * n
        return [_code(one) if isinstance(one, BaseException) else value(one) for one in done]

    def _put_all(
        self,
        keys: Sequence[str],
        values: Sequence[Sequence[Any]],
        config: ReplicateConfig | None,
        replaces: bool = False,
    ) -> list[int]:
        """Stores values, each in parts of any kind."""
        try:
            sources = [[arrays.source(part, typed=False) for part in parts] for parts in values]
        except errors.InvalidArgument as error:
            _log.debug("%s", error)
            return [INVALID_PARAMS] * len(keys)
        if len(keys) != len(values):
            return [INVALID_PARAMS] * len(keys)
        parts = [[given(source) for source in some] for some in sources]
        put = self._replace_all if replaces else self._put_parts
        done = put(keys, parts, config)
        # Until here they keep the memory.
        del sources
        return done

    def _put_parts(
        self,
        keys: Sequence[str],
        parts: Sequence[Any],
        config: ReplicateConfig | None,
        fails: bool = False,
    ) -> list[int]:
        wanted = (_preferred(config), 0, fails)
        return self._many(len(keys), lambda c: c.put_many(keys, parts, wanted), lambda _: OK)

    def _replace_all(
        self, keys: Sequence[str], parts: Sequence[Any], config: ReplicateConfig | None
    ) -> list[int]:
        """Removes what is there, then puts; again if another put comes between."""
        codes = [OBJECT_EXISTS] * len(keys)
        for _ in range(_REPLACE_TRIES):
            at = [i for i, code in enumerate(codes) if code == OBJECT_EXISTS]
            if not at:
                break
            names = [keys[i] for i in at]
            removed = self.batch_remove(names)
            stored = self._put_parts(names, [parts[i] for i in at], config, True)
            for i, gone, done in zip(at, removed, stored, strict=True):
                codes[i] = done if gone in (OK, OBJECT_NOT_FOUND) else gone
        return codes

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Stores bytes, all of an array's. 0 also if the key is stored."""
        if _is_empty(value):
            return INVALID_PARAMS
        return self._put_all([key], [[value]], config)[0]

    def put_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """Stores parts as one value."""
        return self._put_all([key], [parts], config)[0]

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Stores many; the first error's code."""
        if len(keys) != len(values):
            return INVALID_PARAMS
        done = self._put_all(keys, [[value] for value in values], config)
        return next((code for code in done if code != OK), OK)

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Stores the bytes at an address."""
        if buffer_ptr <= 0 or size < 0:
            return INVALID_PARAMS
        wanted = (_preferred(config), 0, False)
        done = self._try(lambda c: c.put(key, (buffer_ptr, size), b"", wanted))
        return OK if done is None else int(done)

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores the bytes at addresses."""
        return self.batch_put_from_multi_buffers(
            keys, [[at] for at in buffer_ptrs], [[size] for size in sizes], config
        )

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores values that lie in several places each."""
        parts = _places(keys, all_buffer_ptrs, all_sizes)
        if parts is None:
            return [INVALID_PARAMS] * len(keys)
        return self._put_parts(keys, parts, config)

    # An upsert replaces what is there. Between, no value is.

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Stores a value, in place of what is there."""
        if _is_empty(value):
            return INVALID_PARAMS
        return self._put_all([key], [[value]], config, True)[0]

    def upsert_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """As ``put_parts``, in place of what is there."""
        return self._put_all([key], [parts], config, True)[0]

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """As ``put_batch``, in place of what is there."""
        if len(keys) != len(values):
            return INVALID_PARAMS
        done = self._put_all(keys, [[value] for value in values], config, True)
        return next((code for code in done if code != OK), OK)

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """As ``put_from``, in place of what is there."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``batch_put_from``, in place of what is there."""
        parts = _places(keys, [[at] for at in buffer_ptrs], [[size] for size in sizes])
        if parts is None:
            return [INVALID_PARAMS] * len(keys)
        return self._replace_all(keys, parts, config)

    # Reads

    def get(self, key: str) -> bytes:
        """The value; b"" if there is none."""
        found = self._try(lambda c: c.get(key), b"")
        return found if isinstance(found, bytes) else bytes(arrays.memory(found, readonly=True))

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """The values; b"" for each that is not there."""
        found = self._many(len(keys), lambda c: c.get_many(keys), lambda one: one)
        return [
            b"" if isinstance(f, int) else bytes(arrays.memory(f, readonly=True)) for f in found
        ]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value in a buffer of its own; None if there is none."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """The values in buffers of their own; None for each that is not there."""
        found = self._many(len(keys), lambda c: c.get_many(keys), _handle)
        return [None if isinstance(one, int) else one for one in found]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads a value to an address; returns its length, or a code below 0."""
        if buffer_ptr <= 0 or size < 0:
            return INVALID_PARAMS
        return int(self._try(lambda c: c.get_into(key, [(buffer_ptr, size)])))

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Reads values to addresses."""
        return self.batch_get_into_multi_buffers(
            keys, [[at] for at in buffer_ptrs], [[size] for size in sizes]
        )

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads values, each into several places, one after another."""
        places = _places(keys, all_buffer_ptrs, all_sizes)
        if places is None:
            return [INVALID_PARAMS] * len(keys)
        return self._many(len(keys), lambda c: c.get_many_into(keys, places), int)

    def is_exist(self, key: str) -> int:
        """1 if the key can be read, 0 if not, a code below 0 after an error."""
        if not key and self._c is not None:
            return 0
        found = self._try(lambda c: c.exists([key]))
        return found if isinstance(found, int) else int(found[0])

    isExist = is_exist

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """The same for many."""
        valid = [key for key in keys if 0 < len(key.encode()) <= _MAX_KEY_BYTES]
        found = self._try(lambda c: c.exists(valid))
        if isinstance(found, int):
            return [found] * len(keys)
        there = dict(zip(valid, found, strict=True))
        return [int(there[key]) if key in there else INVALID_PARAMS if key else 0 for key in keys]

    def get_size(self, key: str) -> int:
        """The length of a value, or a code below 0."""
        found = self._try(lambda c: c.location(key))
        return found if isinstance(found, int) else int(found[4])

    # Removal

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a key."""
        done = self._try(lambda c: c.remove(key))
        return OK if done is None else int(done)

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Removes keys."""
        return self._many(len(keys), lambda c: c.remove_many(keys), lambda _: OK)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the keys in which the pattern matches; how many, or a code below 0."""
        return int(self._try(lambda c: c.remove_matching(regex_pattern)))

    def remove_all(self, force: bool = False) -> int:
        """Removes every key; how many, or a code below 0."""
        return int(self._try(lambda c: c.remove_all()))


def _is_empty(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray)) and not value


def _places(
    keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
) -> list[list[tuple[int, int]]] | None:
    """Addresses with their sizes; None if they do not belong together."""
    if not len(keys) == len(addresses) == len(sizes):
        return None
    places = []
    for some, lengths in zip(addresses, sizes, strict=True):
        if len(some) != len(lengths) or any(at <= 0 for at in some) or min(lengths, default=0) < 0:
            return None
        places.append(list(zip(some, lengths, strict=True)))
    return places


_PACKAGE = """\
\"\"\"Mooncake's store, served by nkv.\"\"\"
"""
_STORE = """\
\"\"\"Mooncake's store, served by nkv.\"\"\"

from nkv.mooncake import *  # noqa: F403
"""

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
]


def install(directory: str | os.PathLike[str]) -> Path:
    """Writes a package ``mooncake`` into a directory; returns the package's folder.

    An existing ``mooncake`` there that is another's is an error.
    """
    package = Path(directory) / "mooncake"
    marker = package / "store.py"
    if package.exists() and not (marker.exists() and "nkv.mooncake" in marker.read_text()):
        raise errors.InvalidArgument(f"{package} exists and is not nkv's: give another directory")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_PACKAGE)
    marker.write_text(_STORE)
    return package


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m nkv.mooncake DIRECTORY\n")
        sys.exit(2)
    folder = shlex.quote(str(install(sys.argv[1]).parent.resolve()))
    print(f"export PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}")
