"""Device functions that put objects into a device log, as ``nkv_log_put`` of gpu/kernels does.

docs/reference/log.md has the rules. The claim word may be changed by kernels only where it lies in
the memory of their GPU, and the process enters the launch in its table of open claims before it.
"""

import triton
import triton.language as tl

from .words import (
    BYTES_TOTAL_OFF,
    DEAD,
    HEADER_BYTES,
    KEY_CHECK_OFF,
    PAYLOAD_BASE_OFF,
    PUBLISH_OFF,
    READY,
    WRITING,
    copy_tiles,
    load_acquire,
    load_relaxed,
    publish_word,
    store_field,
    word_ptr,
)

#: Results of a put: stored; no room, nothing is claimed; the claim waited in vain; four claims
#: crossed the log's end.
KV_LOG_STORED = tl.constexpr(1)
KV_LOG_FULL = tl.constexpr(2)
KV_LOG_WAITED = tl.constexpr(3)
KV_LOG_WRAPPED = tl.constexpr(4)

_MAX_CLAIMS = tl.constexpr(4)
_UNIT = tl.constexpr(4096)


@triton.jit
def _fits(position, n, limit):
    """Without overflow, also where another process overwrote a word."""
    return (position <= limit) & (n <= limit - position)


@triton.jit
def _log_header(position, headers_ptr, log_bytes):
    slot = position % tl.cast(log_bytes, tl.uint64) // _UNIT
    return tl.cast(headers_ptr, tl.int64) + slot.to(tl.int64) * HEADER_BYTES


@triton.jit
def _epoch(position, log_bytes):
    return position // tl.cast(log_bytes, tl.uint64) + 1


@triton.jit
def _exchange(header, epoch, STATE: tl.constexpr, SEM: tl.constexpr):
    word = publish_word(epoch, STATE).to(tl.int64, bitcast=True)
    ptr = (header + PUBLISH_OFF).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(ptr, word, sem=SEM, scope="sys")


@triton.jit
def _settle(
    position, claim_bytes, bytes_total, key_hash, key_check, pages, headers_ptr, offset, log_bytes
):
    """Writes the header of a claim: WRITING, or DEAD if it crosses the end. Returns the status."""
    header = _log_header(position, headers_ptr, log_bytes)
    at = position % tl.cast(log_bytes, tl.uint64)
    crosses = at + claim_bytes > tl.cast(log_bytes, tl.uint64)
    nothing = tl.cast(0, tl.uint64)
    store_field(header, tl.where(crosses, nothing, tl.cast(key_hash, tl.uint64)))
    store_field(header + 8, tl.where(crosses, nothing, pages))
    store_field(header + PAYLOAD_BASE_OFF, tl.cast(offset, tl.uint64) + at)
    total = tl.where(crosses, claim_bytes, tl.cast(bytes_total, tl.uint64))
    store_field(header + BYTES_TOTAL_OFF, total)
    check = tl.where(crosses, nothing, tl.cast(key_check, tl.uint64))
    store_field(header + KEY_CHECK_OFF, check)
    if crosses:
        tl.debug_barrier()
        _exchange(header, _epoch(position, log_bytes), DEAD, "release")
    else:
        _exchange(header, _epoch(position, log_bytes), WRITING, "relaxed")
    return tl.where(crosses, KV_LOG_WRAPPED, KV_LOG_STORED)


@triton.jit
def kv_log_claim(
    bytes_total,
    claim_bytes,
    key_hash,
    key_check,
    n_pages,
    page_bytes,
    bump_ptr,
    limit_ptr,
    headers_ptr,
    log_offset,
    log_bytes,
    max_spins,
):
    """Claims room for one object, writes its header's fields, and marks it as WRITING.

    ``claim_bytes`` is a multiple of 4,096. ``key_hash``, ``key_check``, ``n_pages``, ``page_bytes``
    and ``bytes_total`` are what its header says. ``bump_ptr``, ``limit_ptr`` and ``headers_ptr``
    are the addresses of the claim word, of ``heap_limit`` and of the log's first header;
    ``log_offset`` and ``log_bytes`` the segment offset of the log's first byte, and its length.
    ``max_spins``: how often a claim above the limit reads it again.

    Returns:
        The position, whose byte in the log is ``position % log_bytes``, and the status.
    """
    n = tl.cast(claim_bytes, tl.uint64)
    pages = tl.cast(n_pages, tl.uint64) | (tl.cast(page_bytes, tl.uint64) << 32)
    position = tl.cast(0, tl.uint64)
    status = tl.cast(KV_LOG_WRAPPED, tl.int32)
    claims = 0
    while (status == KV_LOG_WRAPPED) & (claims < _MAX_CLAIMS):
        # Acquired: what is stored into the claim comes after the owner cleared it.
        limit = load_acquire(limit_ptr)
        bump = load_relaxed(bump_ptr)
        if (bump % _UNIT == 0) & _fits(bump, n, limit):
            position = tl.atomic_add(word_ptr(bump_ptr), n, sem="relaxed", scope="sys")
            left = tl.cast(max_spins, tl.int64)
            fits = _fits(position, n, limit)
            while (not fits) & (left > 0):
                fits = _fits(position, n, load_acquire(limit_ptr))
                left -= 1
            status = tl.cast(KV_LOG_WAITED, tl.int32)
            if fits:
                status = _settle(
                    position,
                    n,
                    bytes_total,
                    key_hash,
                    key_check,
                    pages,
                    headers_ptr,
                    log_offset,
                    log_bytes,
                )
        else:
            status = tl.cast(KV_LOG_FULL, tl.int32)
        claims += 1
    return position, status


@triton.jit
def kv_log_publish(position, headers_ptr, log_bytes):
    """Sets READY for a claim, after every store of this program."""
    tl.debug_barrier()
    header = _log_header(position, headers_ptr, log_bytes)
    _exchange(header, _epoch(position, log_bytes), READY, "release")


@triton.jit
def kv_log_put(
    src_ptr,
    bytes_total,
    claim_bytes,
    key_hash,
    key_check,
    n_pages,
    page_bytes,
    bump_ptr,
    limit_ptr,
    headers_ptr,
    payload_ptr,
    log_offset,
    log_bytes,
    max_spins,
):
    """Puts one object by one program: claims, copies from ``src_ptr``, sets READY.

    ``payload_ptr`` is the address of the log's first byte, ``src_ptr`` that of the object, both
    multiples of 16; the others are those of :func:`kv_log_claim`, as is what is returned.
    """
    position, status = kv_log_claim(
        bytes_total,
        claim_bytes,
        key_hash,
        key_check,
        n_pages,
        page_bytes,
        bump_ptr,
        limit_ptr,
        headers_ptr,
        log_offset,
        log_bytes,
        max_spins,
    )
    if status == KV_LOG_STORED:
        at = (position % tl.cast(log_bytes, tl.uint64)).to(tl.int64)
        copy_tiles(payload_ptr + at, src_ptr, bytes_total, 0, 1)
        kv_log_publish(position, headers_ptr, log_bytes)
    return position, status
