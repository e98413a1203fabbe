"""Kernels made of the device functions of nkv.triton: one for each way to use them.

scripts/triton-kernels compiles them; the tests beside this folder run what comes out.
"""

import triton
import triton.language as tl

from nkv.triton import (
    KV_READABLE,
    kv_commit_ready,
    kv_commit_ready_last,
    kv_log_put,
    kv_read_remote,
    kv_still_ready,
    kv_store_page_from_src,
    kv_store_page_values,
    kv_wait_ready,
)


@triton.jit
def push_object(src, n_pages, header, payload, page_bytes, rank, bases, found, TILE: tl.constexpr):
    """One program writes all pages, each a tile, and publishes."""
    offs = tl.arange(0, TILE)
    for page in range(n_pages):
        values = tl.load(src + page * TILE + offs, cache_modifier=".cg")
        kv_store_page_values(values, payload, page, page_bytes, 0, rank, bases)
    published = kv_commit_ready(header, 0, rank, bases)
    tl.store(found, published.to(tl.int64))


@triton.jit
def push_pages(src, n_elems, header, payload, page_bytes, epoch, counter, found):
    """Each program writes a page from memory; the last one publishes."""
    page = tl.program_id(0)
    kv_store_page_from_src(src + page * n_elems, n_elems, payload, page, page_bytes)
    published = kv_commit_ready_last(counter, header, epoch=epoch)
    if published:
        tl.store(found, 1)


@triton.jit
def wait_read(
    header, epoch, key_hash, key_check, base, total, spins, payload, dst, rank, bases, result
):
    """Programs wait for an object and read it together; the largest of their results counts."""
    outcome = kv_wait_ready(
        header, epoch, key_hash, base, total, spins, rank, bases, key_check=key_check
    )
    if outcome == KV_READABLE:
        kv_read_remote(dst, payload, total, 0, rank, bases)
        outcome = kv_still_ready(
            header, epoch, key_hash, base, total, rank, bases, key_check=key_check
        )
    tl.atomic_max(result, outcome.to(tl.int64), sem="relaxed", scope="gpu")


@triton.jit
def log_put(objects, count, bump, limit, headers, payload, offset, log_bytes, spins, results):
    """As nkv_log_put: objects of 48 bytes each; the programs take them in turn."""
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        of = objects + i * 6
        pages = tl.load(of + 5)
        position, status = kv_log_put(
            tl.load(of),
            tl.load(of + 1),
            tl.load(of + 2),
            tl.load(of + 3),
            tl.load(of + 4),
            pages & 0xFFFFFFFF,
            pages >> 32,
            bump,
            limit,
            headers,
            payload,
            offset,
            log_bytes,
            spins,
        )
        tl.store(results + 2 * i, position)
        tl.store(results + 2 * i + 1, status.to(tl.uint64))


#: Kernel: (types of its parameters, values of its constants). An address is 64 bits; what is a
#: multiple of 16 has a star.
KERNELS = {
    "push_object": (
        {
            "src": "*fp16",
            "n_pages": "i32",
            "header": "i64",
            "payload": "i64",
            "page_bytes": "i32",
            "rank": "i32",
            "bases": "*i64",
            "found": "*i64",
        },
        {"TILE": 512},
    ),
    "push_pages": (
        {
            "src": "*fp32",
            "n_elems": "i32",
            "header": "i64",
            "payload": "i64",
            "page_bytes": "i32",
            "epoch": "i64",
            "counter": "*i32",
            "found": "*i64",
        },
        {},
    ),
    "wait_read": (
        {
            "header": "i64",
            "epoch": "i64",
            "key_hash": "u64",
            "key_check": "u64",
            "base": "i64",
            "total": "i64",
            "spins": "i64",
            "payload": "i64",
            "dst": "*fp16",
            "rank": "i32",
            "bases": "*i64",
            "result": "*i64",
        },
        {},
    ),
    "log_put": (
        {
            "objects": "*u64",
            "count": "i32",
            "bump": "i64",
            "limit": "i64",
            "headers": "i64",
            "payload": "i64",
            "offset": "i64",
            "log_bytes": "i64",
            "spins": "i64",
            "results": "*u64",
        },
        {},
    ),
}
#: Parameters that are multiples of 16, as Triton finds out at a launch.
ALIGNED = {"src", "payload", "page_bytes", "n_elems", "dst", "header"}
