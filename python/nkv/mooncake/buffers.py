"""Memory of this process: what reads return, and what engines allocate."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

from .. import _nkv
from .codes import INVALID_PARAMS, OK

_ALIGNMENT = 64


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


def handle_of(owner: _nkv.Bytes) -> BufferHandle:
    """The handle of an object's bytes."""
    handle: BufferHandle = _handle_type(len(owner)).from_address(owner.address)
    handle._owner = owner
    return handle


def pages(size: int) -> tuple[mmap.mmap, int]:
    """Zeros at the start of a page, and their address. They are taken from the system when used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, size, flags=flags)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


class MooncakeHostMemAllocator:
    """Page-aligned memory of this process, as engines allocate their pools."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def alloc(self, size: int) -> int:
        """The address of so many bytes of zeros; 0 if there is no room, or that is no size."""
        if size <= 0:
            return 0
        try:
            memory, address = pages(size)
        except (OSError, OverflowError, ValueError):
            return 0
        self._held[address] = memory
        return address

    def free(self, address: int) -> int:
        """Gives it back."""
        return OK if self._held.pop(address, None) is not None else INVALID_PARAMS


class Pool:
    """Memory that is handed out from its start on, and goes with the pool."""

    def __init__(self, size: int) -> None:
        self._memory: mmap.mmap | None = None
        self._next = 0
        if size:
            self._memory, self._next = pages(size)
        self._end = self._next + size

    def alloc(self, size: int) -> int:
        """The address of so many bytes; 0 if there is no room for them."""
        if not 0 < size <= self._end - self._next:
            return 0
        address = self._next
        self._next = min(self._end, address + -(-size // _ALIGNMENT) * _ALIGNMENT)
        return address


def bind_to_numa_node(_node: int) -> None:
    """Does nothing: nkv's memory is its nodes'."""
