"""Prefill pushes a layer's KV from a Triton kernel into the memory of the decode worker's rank.

    pip install . torch triton
    TRITON_INTERPRET=1 python examples/prefill_decode_triton.py    # on a CPU
    python examples/prefill_decode_triton.py                       # with a GPU

Two ranks of one job on this host. The kernel writes the pages and sets READY; nobody calls commit.
The decode worker finds the object and compares it with its own computation. With a GPU both ranks
keep their payloads there; no GPU has run it yet.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch
import triton
import triton.language as tl

from nkv import NanoKVCache
from nkv.triton import kv_commit_ready, kv_store_page_values

prefill_rank, decode_rank = 0, 1
in_gpu = torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET")
#: Three pages and a part of a fourth, of float16.
VALUES = 3 * 128 * 1024 + 1000
kv_bytes = VALUES * 2
TILE = 4096


@triton.jit
def prefill_kernel(
    hidden,
    n_values,
    plan_hdr_ptr,
    plan_payload,
    page_bytes,
    n_pages,
    src_rank,
    dst_rank,
    heap_bases_ptr,
    TILE: tl.constexpr,
):
    """Computes tiles, stores them into the pages, and publishes the object."""
    # heap_bases_ptr would translate offsets; both addresses are those of this process already.
    offs = tl.arange(0, TILE)
    tiles = page_bytes // (2 * TILE)
    for page in range(n_pages):
        for tile in range(tiles):
            at = (page * tiles + tile) * TILE + offs
            mask = at < n_values
            values = tl.load(hidden + at, mask=mask) * 2 + 1
            base = plan_payload + tl.cast(page, tl.int64) * page_bytes
            kv_store_page_values(values, base, tile, 2 * TILE, src_rank, dst_rank, mask=mask)
    kv_commit_ready(plan_hdr_ptr, src_rank, dst_rank)


def hidden_states() -> torch.Tensor:
    """What both workers compute the KV from."""
    torch.manual_seed(42)
    return torch.randn(VALUES).to(torch.float16)


# The example of the design, as it stands there.
# fmt: off
def prefill() -> None:
    """The producer: plans, writes from a kernel, and flips READY there."""
    cache = NanoKVCache(heap_bytes=2<<30, master_rank=0, page_bytes=256*1024)
    plan = cache.open_for_write(key="sess:42:kv:L0", bytes_total=kv_bytes,
                                preferred_segment=decode_rank)

    # Producer kernel args
    plan_hdr_ptr   = cache.device_ptr(plan.dst_rank, plan.header_off)
    plan_payload   = cache.device_ptr(plan.dst_rank, plan.payload_base)
    heap_bases_ptr = cache.heap_bases_tensor  # iris.get_heap_bases()

    grid = (1,)
    prefill_kernel[grid](
        hidden_states().to("cuda" if in_gpu else "cpu"), VALUES,  # compute inputs
        plan_hdr_ptr, plan_payload, plan.page_bytes, plan.n_pages,
        src_rank=cache.rank, dst_rank=plan.dst_rank,
        heap_bases_ptr=heap_bases_ptr, TILE=TILE,
    )
    if in_gpu:
        torch.cuda.synchronize()
    # Until the decode worker has it.
    print("published", flush=True)
    sys.stdin.readline()
    cache.close()


def decode() -> None:
    """The consumer: finds what the kernel published, and reads it."""
    cache = NanoKVCache(heap_bytes=2<<30, master_rank=0, page_bytes=256*1024)
    # Until the prefill worker's kernel has ended.
    sys.stdin.readline()

    # Decode side
    meta = cache.get_location("sess:42:kv:L0")    # ObjMeta
    local = cache.get("sess:42:kv:L0")            # pulls via iris.load if remote

    assert (meta.owner_rank, meta.n_pages, meta.bytes_total) == (decode_rank, 4, kv_bytes)
    found = torch.frombuffer(local, dtype=torch.float16)
    assert torch.equal(found, hidden_states() * 2 + 1)
    print("equal", flush=True)
    sys.stdin.readline()
    cache.close()
# fmt: on


def main() -> None:
    """Starts both workers, as torchrun would, and tells each when the other is done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"NKV_JOB": f"triton-{os.getpid()}", "NKV_PORT": str(port), "NKV_PREFAULT": "false"}
    if in_gpu:
        job |= {"NKV_MEMORY": "cuda", "NKV_GPU": "0"}
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **job}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, role],
            env={**os.environ, **world, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, role in ((prefill_rank, "prefill"), (decode_rank, "decode"))
    ]
    said = []
    for worker in workers:
        if said:
            tell(worker)
        assert worker.stdout is not None
        said.append(worker.stdout.readline().strip())
    for worker in reversed(workers):
        tell(worker)
        assert worker.wait(60) == 0
    assert said == ["published", "equal"], said
    print(f"{kv_bytes} bytes, pushed by a kernel, equal in the decode worker")


def tell(worker: subprocess.Popen[str]) -> None:
    """Lets a worker go on."""
    assert worker.stdin is not None
    try:
        worker.stdin.write("\n")
        worker.stdin.flush()
    except BrokenPipeError:
        sys.exit("a worker has ended; its error is above")


if __name__ == "__main__":
    {"prefill": prefill, "decode": decode}.get(sys.argv[-1], main)()
