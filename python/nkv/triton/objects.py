"""Device functions that write the pages of a plan, publish it, and read an object."""

import triton
import triton.language as tl

from .words import (
    BYTES_TOTAL_OFF,
    KEY_CHECK_OFF,
    LIVE,
    OWNER_OFF,
    PAYLOAD_BASE_OFF,
    PUBLISH_OFF,
    READY,
    WRITING,
    control_address,
    copy_tiles,
    fence,
    load_acquire,
    payload_address,
    pointer,
    publish_word,
)

#: Results of :func:`kv_wait_ready` and :func:`kv_still_ready`; of several the largest counts.
KV_READABLE = tl.constexpr(1)
KV_NOT_READY = tl.constexpr(2)
KV_GONE = tl.constexpr(3)
KV_CHANGED = tl.constexpr(4)


@triton.jit
def kv_store_page_values(
    values,
    dst_base,
    page_idx,
    page_bytes,
    src_rank=None,
    dst_rank=None,
    heap_bases_ptr=None,
    mask=None,
):
    """Stores a tile at ``dst_base + page_idx * page_bytes``, row by row.

    A page larger than a tile is written by several calls, each with its own ``dst_base``; both
    ``dst_base`` and ``page_bytes`` are multiples of 16. ``mask`` has the shape of ``values``.
    """
    at = payload_address(dst_base, dst_rank, heap_bases_ptr)
    at += tl.cast(page_idx, tl.int64) * page_bytes
    flat = tl.reshape(values, [values.numel])
    page = tl.multiple_of(at.to(tl.pointer_type(values.dtype)), 16)
    if mask is None:
        tl.store(page + tl.arange(0, values.numel), flat)
    else:
        tl.store(page + tl.arange(0, values.numel), flat, mask=tl.reshape(mask, [values.numel]))


@triton.jit
def kv_store_page_from_src(
    src_ptr,
    n_elems,
    dst_base,
    page_idx,
    page_bytes,
    src_rank=None,
    dst_rank=None,
    heap_bases_ptr=None,
    use_cg: tl.constexpr = 1,
):
    """Copies ``n_elems`` elements of local memory into a page, tile by tile.

    ``use_cg``: loads do not use the L1 cache. ``dst_base`` and ``page_bytes`` are multiples of 16.
    """
    at = payload_address(dst_base, dst_rank, heap_bases_ptr)
    at += tl.cast(page_idx, tl.int64) * page_bytes
    copy_tiles(
        at,
        src_ptr,
        n_elems,
        0,
        1,
        dtype=src_ptr.dtype.element_ty,
        ALIGNED_SRC=False,
        CACHE=".cg" if use_cg else "",
    )


@triton.jit
def kv_commit_ready(header_ptr, src_rank=None, dst_rank=None, heap_bases_ptr=None, epoch=None):
    """Sets READY, after every store of this program: (WRITING, epoch) becomes (READY, epoch).

    For a kernel of one program, or one that wrote the object alone; else
    :func:`kv_commit_ready_last`. Without ``epoch`` the one is taken that the word has: a plan of
    ``open_for_write`` keeps its header and its memory until it is committed, aborted or dropped,
    also past its deadline, as long as its process lives (docs/PROTOCOL.md, section 4). With it no
    other object is published where that was not heeded.

    Returns:
        Whether READY was set.
    """
    # A release orders the stores of one thread: the barrier adds those of the others.
    tl.debug_barrier()
    word = control_address(header_ptr, dst_rank, heap_bases_ptr) + PUBLISH_OFF
    if epoch is None:
        expected = load_acquire(word)
        expected = (expected >> 32 << 32) | WRITING
    else:
        expected = publish_word(epoch, WRITING)
    ready = expected + (READY - WRITING)
    ptr = word.to(tl.pointer_type(tl.int64))
    expected = expected.to(tl.int64, bitcast=True)
    found = tl.atomic_cas(
        ptr, expected, ready.to(tl.int64, bitcast=True), sem="acq_rel", scope="sys"
    )
    return found == expected


@triton.jit
def kv_commit_ready_last(
    counter_ptr,
    header_ptr,
    src_rank=None,
    dst_rank=None,
    heap_bases_ptr=None,
    epoch=None,
):
    """As :func:`kv_commit_ready`, by the last program of the grid; every program calls it once.

    ``counter_ptr``: an int32 of this launch, 0 before and after it.
    """
    tl.debug_barrier()
    counter = pointer(counter_ptr, tl.int32)
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="sys")
    published = tl.cast(0, tl.int1)
    if before == programs - 1:
        tl.atomic_xchg(counter, 0, sem="relaxed", scope="sys")
        published = kv_commit_ready(header_ptr, src_rank, dst_rank, heap_bases_ptr, epoch)
    return published


@triton.jit
def _served(header, epoch, key_hash, payload_base, bytes_total, key_check):
    """Whether the header, whose publish word was READY, is that of the object, and LIVE."""
    owner = load_acquire(header + OWNER_OFF)
    same = ((owner & LIVE) != 0) & ((owner >> 32) == tl.cast(epoch, tl.uint64))
    same &= load_acquire(header) == tl.cast(key_hash, tl.uint64)
    base = load_acquire(header + PAYLOAD_BASE_OFF)
    same &= base == tl.cast(payload_base, tl.uint64)
    total = load_acquire(header + BYTES_TOTAL_OFF)
    same &= total == tl.cast(bytes_total, tl.uint64)
    if key_check is not None:
        same &= load_acquire(header + KEY_CHECK_OFF) == tl.cast(key_check, tl.uint64)
    return same


@triton.jit
def kv_wait_ready(
    header_ptr,
    epoch,
    key_hash,
    payload_base,
    bytes_total,
    max_spins,
    src_rank=None,
    heap_bases_ptr=None,
    key_check=None,
):
    """Waits until an object is READY, then checks that it is the one that the caller wants.

    The fields are those of its ObjMeta or WritePlan; ``payload_base`` is the segment offset.
    ``max_spins``: how often the publish word is read again. In a grid each program waits.

    Returns:
        ``KV_READABLE``; ``KV_NOT_READY``: not in time; ``KV_GONE``: another object, or not served.
    """
    header = control_address(header_ptr, src_rank, heap_bases_ptr)
    ready = publish_word(epoch, READY)
    found = load_acquire(header + PUBLISH_OFF)
    left = tl.cast(max_spins, tl.int64)
    while (found < ready) & (left > 0):
        found = load_acquire(header + PUBLISH_OFF)
        left -= 1
    # A later epoch, or given up by its producer, is above READY.
    result = tl.where(found < ready, KV_NOT_READY, KV_GONE)
    if found == ready:
        same = _served(header, epoch, key_hash, payload_base, bytes_total, key_check)
        result = tl.where(same, KV_READABLE, KV_GONE)
    return result


@triton.jit
def kv_read_remote(
    dst_local_ptr, src_payload_base, n_bytes, my_rank=None, src_rank=None, heap_bases_ptr=None
):
    """Copies an object's bytes, or a part of them, into local memory. All programs take a share.

    ``src_payload_base`` is a multiple of 16. What was read is the object only if it was readable
    before (:func:`kv_wait_ready`) and still is afterwards (:func:`kv_still_ready`).
    """
    src = payload_address(src_payload_base, src_rank, heap_bases_ptr)
    first, step = tl.program_id(0), tl.num_programs(0)
    copy_tiles(dst_local_ptr, src, n_bytes, first, step, ALIGNED_DST=False)


@triton.jit
def kv_still_ready(
    header_ptr,
    epoch,
    key_hash,
    payload_base,
    bytes_total,
    src_rank=None,
    heap_bases_ptr=None,
    key_check=None,
):
    """After a read: whether what this program read is the object, unchanged.

    Returns:
        ``KV_READABLE``, or ``KV_CHANGED``: what was read means nothing.
    """
    # Every read of every thread comes before the header is read again.
    fence()
    tl.debug_barrier()
    header = control_address(header_ptr, src_rank, heap_bases_ptr)
    same = load_acquire(header + PUBLISH_OFF) == publish_word(epoch, READY)
    same &= _served(header, epoch, key_hash, payload_base, bytes_total, key_check)
    return tl.where(same, KV_READABLE, KV_CHANGED)
