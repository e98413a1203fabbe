"""What every part of the store uses: the connection, codes for errors, puts of parts."""

from __future__ import annotations

import bisect
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from .. import _nkv, arrays, errors
from ..layouts import given
from .buffers import Pool
from .codes import INVALID_PARAMS, OBJECT_EXISTS, OBJECT_NOT_FOUND, OK, code_of
from .config import ReplicateConfig, byte_size, log, of_items, wanted_of
from .sealed import Sealed

#: How often an upsert begins again because another put came between.
_REPLACE_TRIES = 16
_SETUP = (
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
)


class Core:
    """The connection."""

    def __init__(self) -> None:
        self._c: _nkv.Cache | None = None
        self._host = ""
        self._registered: dict[int, int] = {}
        #: What RDMA devices know of them.
        self._devices: dict[int, _nkv.Registered] = {}
        self._uses_devices = False
        #: Those that are in a GPU.
        self._of_gpu: set[int] = set()
        #: The addresses of registered ranges, in order.
        self._starts: list[int] = []
        self._pool: Pool | None = None

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Attaches to the nodes: by positions, by names, or by one dict (all as in Mooncake)."""
        by_dict = bool(args) and isinstance(args[0], dict)
        named: dict[str, Any] = dict(args[0]) if by_dict else {}
        if not by_dict:
            named.update(zip(_SETUP, args, strict=False))
        named.update(kwargs)
        for name in ("global_segment_size", "local_buffer_size"):
            if byte_size(named.get(name, 0)) is None:
                log.error("setup: %s %r is no size", name, named[name])
                return INVALID_PARAMS
        tenant = named.get("tenant_id")
        if tenant not in (None, "", "default"):
            log.error("setup: tenant %r: give each tenant a job of its own, by NKV_JOB", tenant)
            return INVALID_PARAMS
        master = named.get("master_server_addr") or named.get("master_server_address")
        return self._attach(str(named.get("local_hostname") or ""), str(master or ""))

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Attaches to the nodes at an address, with a pool of so many bytes of this process."""
        if mem_pool_size < 0 or local_buffer_size < 0:
            return INVALID_PARAMS
        try:
            pool = Pool(mem_pool_size)
        except (OSError, OverflowError, ValueError) as error:
            log.error("setup_dummy: a pool of %s bytes: %s", mem_pool_size, error)
            return INVALID_PARAMS
        done = self._attach("", server_address)
        if done == OK:
            self._pool = pool
        return done

    # Names of the first versions.
    def initAll(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """Attaches, unless ``setup`` did, to rank 0 on this host."""
        return OK if self._c is not None else self._attach("", "")

    init_all = initAll

    def _attach(self, host: str, master: str) -> int:
        job = os.environ.get("NKV_JOB") or "nkv"
        addresses = [master] if master else []
        transport = os.environ.get("NKV_TRANSPORT") or "auto"
        try:
            cache = _nkv.Cache.connect(addresses, job, None, (transport, 2_000, True, False))
        except Exception as error:
            log.error("setup: %s", error)
            return code_of(error)
        sealed = os.environ.get("NKV_CHECKSUMS", "") not in ("", "0")
        self._c = cast(_nkv.Cache, Sealed(cache)) if sealed else cache
        self._uses_devices = transport in ("auto", "rdma")
        for start, size in self._registered.items():
            if start not in self._of_gpu:
                self._register(start, size)
        self._host = host or socket.gethostname()
        return OK

    def close(self) -> int:
        """Detaches. What was put stays."""
        if self._c is not None:
            self._c.close()
            self._c = None
        self._devices.clear()
        for buffer_ptr in list(self._of_gpu):
            self.unregister_buffer(buffer_ptr)
        return OK

    def __del__(self) -> None:
        for buffer_ptr in list(getattr(self, "_of_gpu", ())):
            self.unregister_buffer(buffer_ptr)

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
        """Remembers a range, of the host or of a GPU, and registers it with RDMA devices.

        The memory must stay until ``unregister_buffer``, or ``close``.
        """
        if buffer_ptr <= 0 or size <= 0:
            return INVALID_PARAMS
        if self._registered.get(buffer_ptr) == size:
            return OK
        # A GPU's memory is copied by its driver, and not known to RDMA devices.
        try:
            of_gpu = _nkv.register_device(buffer_ptr, size)
        except errors.Error as error:
            log.error("register_buffer: %s", error)
            return code_of(error)
        if buffer_ptr in self._registered:
            self.unregister_buffer(buffer_ptr)
        bisect.insort(self._starts, buffer_ptr)
        self._registered[buffer_ptr] = size
        if of_gpu:
            self._of_gpu.add(buffer_ptr)
        else:
            self._register(buffer_ptr, size)
        return OK

    def _register(self, buffer_ptr: int, size: int) -> None:
        """Registers a range with devices. Without, transfers by RDMA copy, if there are any."""
        if self._c is None or not self._uses_devices:
            return
        self._devices.pop(buffer_ptr, None)
        try:
            self._devices[buffer_ptr] = self._c.register((buffer_ptr, size))
        except Exception as error:
            log.debug("register_buffer: %s", error)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets the range; -600 if it was not registered."""
        size = self._registered.pop(buffer_ptr, None)
        if size is None:
            return INVALID_PARAMS
        self._starts.remove(buffer_ptr)
        self._devices.pop(buffer_ptr, None)
        if buffer_ptr in self._of_gpu:
            self._of_gpu.remove(buffer_ptr)
            _nkv.unregister_device(buffer_ptr, size)
        return OK

    def _room(self, address: int) -> int:
        """Bytes from an address to the end of the registered range that it lies in; 0: in none."""
        at = bisect.bisect_right(self._starts, address) - 1
        start = self._starts[at] if at >= 0 else 0
        return max(0, start + self._registered.get(start, 0) - address)

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of so many bytes of the pool of ``setup_dummy``; 0 if it has no room."""
        return self._pool.alloc(size) if self._pool is not None else 0

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
            log.debug("%s", error)
            return code_of(error) if failed is None else failed

    def _many(
        self, n: int, call: Callable[[_nkv.Cache], Iterable[Any]], value: Callable[[Any], Any]
    ) -> list[Any]:
        """The results of a batch: values, or the codes of their errors."""
        done = self._try(call)
        if isinstance(done, int):
            return [done] * n
        return [code_of(one) if isinstance(one, BaseException) else value(one) for one in done]

    def _seen(self, key: str) -> Any:
        """An object's bytes, with ``address`` and length, in place where that can be; or a code."""
        return self._seen_many([key])[0]

    def _seen_many(self, keys: Sequence[str]) -> list[Any]:
        """The same for many; what lies on another host comes in one batch."""

        def see(key: str) -> Any:
            try:
                return self._c.view(key) if self._c is not None else INVALID_PARAMS
            except (errors.Unsupported, errors.OutOfMemory):
                # Memory of another host, or more views than one process may have.
                return None
            except (errors.Error, ValueError) as error:
                return code_of(error)

        seen = [see(key) for key in keys]
        far = [i for i, one in enumerate(seen) if one is None]
        if far:
            names = [keys[i] for i in far]
            read = self._many(len(far), lambda c: c.get_many(names), lambda one: one)
            for i, one in zip(far, read, strict=True):
                seen[i] = one
        return seen

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
            log.debug("%s", error)
            return [INVALID_PARAMS] * len(keys)
        if len(keys) != len(values):
            return [INVALID_PARAMS] * len(keys)
        parts = [[given(source) for source in some] for some in sources]
        done = self._store(keys, parts, config, replaces)
        # Until here they keep the memory.
        del sources
        return done

    def _store(
        self,
        keys: Sequence[str],
        parts: Sequence[Any],
        config: ReplicateConfig | None,
        replaces: bool,
    ) -> list[int]:
        put = self._replace_all if replaces else self._put_parts
        return put(keys, parts, config)

    def _put_parts(
        self,
        keys: Sequence[str],
        parts: Sequence[Any],
        config: ReplicateConfig | None,
        fails: bool = False,
    ) -> list[int]:
        wanted = wanted_of(len(keys), config, fails)
        if wanted is None:
            return [INVALID_PARAMS] * len(keys)
        return self._many(len(keys), lambda c: c.put_many(keys, parts, wanted), lambda _: OK)

    def _remove_many(self, keys: Sequence[str]) -> list[int]:
        return self._many(len(keys), lambda c: c.remove_many(keys), lambda _: OK)

    def _replace_all(
        self, keys: Sequence[str], parts: Sequence[Any], config: ReplicateConfig | None
    ) -> list[int]:
        """Removes what is there, then puts; again if another put comes between."""
        if wanted_of(len(keys), config) is None:
            return [INVALID_PARAMS] * len(keys)
        codes = [OBJECT_EXISTS] * len(keys)
        for _ in range(_REPLACE_TRIES):
            at = [i for i, code in enumerate(codes) if code == OBJECT_EXISTS]
            if not at:
                break
            names = [keys[i] for i in at]
            removed = self._remove_many(names)
            some = of_items(config, len(keys), at)
            stored = self._put_parts(names, [parts[i] for i in at], some, True)
            for i, gone, done in zip(at, removed, stored, strict=True):
                codes[i] = done if gone in (OK, OBJECT_NOT_FOUND) else gone
        return codes


def places_of(
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
