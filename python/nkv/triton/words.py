"""Addresses and words of control memory in Triton's language.

Words that other processes read or write have scope sys, as in gpu/kernels/nkv.cu. A word is read by
an atomic addition of the constant 0, which Triton compiles to a plain load with that order: no
kernel writes to a word of another party, and so none undoes what that party writes.
"""

import triton
import triton.language as tl

#: Offsets in an object's header, and states of its publish word (docs/PROTOCOL.md, section 1).
PAYLOAD_BASE_OFF = tl.constexpr(16)
BYTES_TOTAL_OFF = tl.constexpr(24)
KEY_CHECK_OFF = tl.constexpr(32)
PUBLISH_OFF = tl.constexpr(40)
OWNER_OFF = tl.constexpr(56)
HEADER_BYTES = tl.constexpr(64)
WRITING = tl.constexpr(1)
READY = tl.constexpr(2)
DEAD = tl.constexpr(3)
LIVE = tl.constexpr(1)

#: Bytes of a tile in the loops that copy: four vectors for each of 128 threads.
TILE_BYTES = tl.constexpr(8192)

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def payload_address(at, rank, heap_bases_ptr):
    at = tl.cast(at, tl.int64)
    if heap_bases_ptr is not None:
        at += tl.load(heap_bases_ptr + 2 * rank)
    return at


@triton.jit
def control_address(at, rank, heap_bases_ptr):
    at = tl.cast(at, tl.int64)
    if heap_bases_ptr is not None:
        at += tl.load(heap_bases_ptr + 2 * rank + 1)
    return at


@triton.jit
def pointer(at, dtype: tl.constexpr):
    """An address, or a pointer of any type, as a pointer of this one."""
    return at.to(tl.pointer_type(dtype), bitcast=at.dtype.is_ptr())


@triton.jit
def word_ptr(at):
    return pointer(at, tl.uint64)


@triton.jit
def load_acquire(at):
    return tl.atomic_add(word_ptr(at), 0, sem="acquire", scope="sys")


@triton.jit
def load_relaxed(at):
    return tl.atomic_add(word_ptr(at), 0, sem="relaxed", scope="sys")


@triton.jit
def store_field(at, value):
    """A field that a release behind it makes visible."""
    tl.store(word_ptr(at), tl.cast(value, tl.uint64))


@triton.jit
def publish_word(epoch, STATE: tl.constexpr):
    """The word of a state and an epoch, which takes the upper half."""
    return (tl.cast(epoch, tl.uint64) << 32) | STATE


@triton.jit
def fence():
    """All reads of this thread so far come before all that follow."""
    if not _INTERPRETED:
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def copy_tiles(
    dst,
    src,
    n,
    first,
    step,
    dtype: tl.constexpr = tl.uint8,
    ALIGNED_DST: tl.constexpr = True,
    ALIGNED_SRC: tl.constexpr = True,
    CACHE: tl.constexpr = "",
):
    """Copies ``n`` elements: tile ``first``, ``first + step``, and so on; then what is left.

    ``ALIGNED_DST``, ``ALIGNED_SRC``: it is a multiple of 16. Else Triton knows it, or does not.
    """
    dst = dst.to(tl.pointer_type(dtype), bitcast=dst.dtype.is_ptr())
    src = src.to(tl.pointer_type(dtype), bitcast=src.dtype.is_ptr())
    # Hints hold for the result of an operation, and are lost with that of a function.
    if ALIGNED_DST:
        dst = tl.multiple_of(dst, 16)
    if ALIGNED_SRC:
        src = tl.multiple_of(src, 16)
    TILE: tl.constexpr = TILE_BYTES * 8 // dtype.primitive_bitwidth
    TAIL: tl.constexpr = TILE // 16
    n = tl.cast(n, tl.int64)
    offs = tl.arange(0, TILE)
    full = n // TILE
    for tile in range(tl.cast(first, tl.int64), full, step):
        at = tile * TILE
        tl.store(dst + at + offs, tl.load(src + at + offs, cache_modifier=CACHE))
    if full % step == first:
        # Masked, and so not by vectors.
        few = tl.arange(0, TAIL)
        for at in range(full * TILE, n, TAIL):
            mask = at + few < n
            tl.store(dst + at + few, tl.load(src + at + few, mask, cache_modifier=CACHE), mask)
