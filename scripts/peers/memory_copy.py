"""Reference times: the C library's memcpy over as many buffers as a store has objects alive, so
that their bytes are as far from the caches."""

import ctypes
import mmap
import statistics

from measure import LIVE_BYTES, SIZES, content, rounds, timed_us

# Enough calls for a steady median of a few hundred nanoseconds.
CALLS = 2000


def memcpy():
    _objects, objects = touched(LIVE_BYTES)
    used, buffer = touched(max(SIZES))
    # The interpreter's cost of an empty call, which is no part of a copy.
    call_us = statistics.median(
        timed_us(lambda: ctypes.memmove(buffer, objects, 0)) for _ in range(CALLS)
    )
    return {str(size): copies(size, objects, used, buffer, call_us) for size in SIZES}


def copies(size, objects, used, buffer, call_us):
    used[:size] = content(size)
    row = rounds(
        size,
        lambda _, place: ctypes.memmove(objects + place * size, buffer, size),
        lambda _, place: ctypes.memmove(buffer, objects + place * size, size),
        lambda: None,
    )
    return {name: round(max(time - call_us, 0.01), 2) for name, time in row.items()}


def touched(size):
    """(anonymous memory with all pages faulted in, its address); hold the first as long as the
    second is used."""
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, size)
    return memory, address
