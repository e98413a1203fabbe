"""A pool of registered buffers of this process, which are used again."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from types import TracebackType
from typing import Any

from .buffers import pages
from .core import Core

_PAGE = 4096
#: More bytes than any machine has.
_MOST = 1 << 47


class _Region:
    """Memory of the pool, registered with the store."""

    def __init__(self, size: int, alignment: int) -> None:
        self.size = size
        extra = alignment if alignment > _PAGE else 0
        self._memory, start = pages(size + extra)
        self.address = -(-start // alignment) * alignment


class BufferLease:
    """A buffer of a pool, until ``release``, the end of a ``with`` block, or its own end."""

    def __init__(self, pool: BufferPool, region: _Region, size: int) -> None:
        self._pool = pool
        self._region: _Region | None = region
        self._size = size
        self._views: list[weakref.ref[Any]] = []

    def _open(self) -> _Region:
        if self._region is None:
            raise RuntimeError("buffer lease is closed")
        return self._region

    @property
    def ptr(self) -> int:
        """Where it begins."""
        return self._open().address

    @property
    def size(self) -> int:
        """The bytes that were asked for."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """Its bytes, writable."""
        array = (ctypes.c_ubyte * self._size).from_address(self._open().address)
        # The array lives as long as views of it do, and keeps the lease.
        array._lease = self  # type: ignore[attr-defined]
        self._views = [ref for ref in self._views if ref() is not None]
        self._views.append(weakref.ref(array))
        return memoryview(array).cast("B")

    def release(self) -> None:
        """Gives it back. RuntimeError while there are views of it; nothing if it is closed."""
        if self._region is None:
            return
        if any(ref() is not None for ref in self._views):
            raise RuntimeError("cannot release a buffer with exported views")
        region, self._region = self._region, None
        self._pool._take_back(region)

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_region", None) is not None:
            self.release()


class BufferPool:
    """Buffers in powers of two from ``min_size_class`` on; above ``max_size_class`` as asked for.

    ``max_bytes`` and ``max_regions`` limit the pool; 0 and None do not. A pool that is exhausted
    waits for a buffer, at most ``default_timeout`` seconds, or raises RuntimeError at once if
    ``block_on_exhaustion`` is false.
    """

    def __init__(
        self,
        store: Core,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        if not isinstance(store, Core):
            raise RuntimeError("BufferPool: a MooncakeDistributedStore is expected")
        if min_size_class <= 0 or alignment <= 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment & (alignment - 1) or not 8 <= alignment <= _MOST:
            raise RuntimeError("alignment must be a power of two, and at least 8")
        self._store = store
        self._max_bytes, self._max_regions = max_bytes, max_regions
        self._min, self._max, self._alignment = min_size_class, max_size_class, alignment
        self._blocks, self._timeout = block_on_exhaustion, default_timeout
        self._changed = threading.Condition(threading.RLock())
        self._free: list[_Region] = []
        self._used = 0
        self._bytes = 0
        self._closed = False
        if prewarm_size is not None and prewarm_count:
            self.prewarm(prewarm_size, prewarm_count)

    def _class_of(self, size: int) -> int:
        if size < 0:
            raise TypeError(f"a size of {size} bytes")
        limit = self._max_bytes or _MOST
        if size > limit:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        if self._max is not None and size > self._max:
            return size
        return min(max(self._min, 1 << max(size - 1, 0).bit_length()), max(limit, size))

    def _more(self, size: int) -> _Region | None:
        """Another region, in the place of free ones if there must be; None if there is no room."""
        while True:
            regions = self._used + len(self._free)
            few = self._max_regions is None or regions < self._max_regions
            if few and (not self._max_bytes or self._bytes + size <= self._max_bytes):
                break
            if not self._free:
                return None
            self._drop(self._free.pop())
        region = _Region(size, self._alignment)
        if self._store.register_buffer(region.address, size) != 0:
            raise RuntimeError("the store refuses the buffer")
        self._bytes += size
        return region

    def _drop(self, region: _Region) -> None:
        self._store.unregister_buffer(region.address)
        self._bytes -= region.size

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """A buffer of at least so many bytes. RuntimeError if there is none in time."""
        wanted = self._class_of(size)
        blocks = self._blocks if block is None else block
        limit = self._timeout if timeout is None else timeout
        deadline = None if limit is None else time.monotonic() + limit
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                fitting = next((one for one in self._free if one.size == wanted), None)
                if fitting is not None:
                    self._free.remove(fitting)
                region = fitting or self._more(wanted)
                if region is not None:
                    self._used += 1
                    return BufferLease(self, region, size)
                if not blocks:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    def buffer(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """The same, for a ``with`` block."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Makes so many buffers beforehand, as far as there is room."""
        leases = []
        for _ in range(count):
            try:
                leases.append(self.acquire(size, block=False))
            except RuntimeError:
                break
        for lease in leases:
            lease.release()

    def _take_back(self, region: _Region) -> None:
        with self._changed:
            self._used -= 1
            self._free.append(region)
            self._changed.notify_all()

    def close(self) -> None:
        """Gives the memory back. RuntimeError while a buffer is in use."""
        with self._changed:
            if self._used:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            while self._free:
                self._drop(self._free.pop())
            self._changed.notify_all()


RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
