"""Tensors of torch in a GPU: put, read and viewed. Needs a GPU; prints a line for each check.

python python/tests_gpu/torch_on_gpu.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

import nkv

_SETTINGS: dict[str, Any] = {"port": 0, "http": "off", "prefault": False, "gpu": 0}


def same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bytes."""
    bits = [tensor.contiguous().view(torch.uint8).cpu() for tensor in (one, other)]
    return (
        one.dtype == other.dtype and one.shape == other.shape and bool((bits[0] == bits[1]).all())
    )


def every_type(cache: nkv.NanoKVCache) -> None:
    """Tensors of each type come back, here, on the GPU and into a place."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64):
        tensor = torch.randn(37, 1_001, device="cuda").to(dtype)
        key = f"type:{dtype}"
        cache.put(key, tensor)
        assert same(cache.get(key), tensor.cpu())
        assert same(cache.get(key, device="cuda"), tensor)
        place = torch.empty_like(tensor)
        assert cache.get(key, dst=place) is place and same(place, tensor)


def views(cache: nkv.NanoKVCache) -> None:
    """A view is a tensor in the owner's memory, and nothing is copied."""
    tensor = torch.randn(64, 4_096, device="cuda", dtype=torch.bfloat16)
    cache.put("viewed", tensor)
    view = cache.get_view("viewed")
    at = cache.get_location("viewed")
    assert view.data_ptr() == cache.device_ptr(at.owner_rank, at.payload_off)
    cache.remove("viewed")
    assert same(view, tensor)


def streams(cache: nkv.NanoKVCache) -> None:
    """A put after a kernel of the caller's stream stores what that kernel writes."""
    stream = torch.cuda.Stream()
    for turn in range(20):
        tensor = torch.zeros(1 << 20, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # Some milliseconds, so that a put that did not wait would see zeros.
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
            tensor.fill_(turn + 1)
            cache.put(f"stream:{turn}", tensor)
        assert bool((cache.get(f"stream:{turn}") == turn + 1).all())


def many(cache: nkv.NanoKVCache) -> None:
    """A batch of pages of one large tensor, into another."""
    pages = torch.randn(64, 64 << 10, device="cuda")
    cache.put_many([(f"page:{i}", page) for i, page in enumerate(pages)])
    into = torch.empty_like(pages)
    for i in range(len(pages)):
        cache.get(f"page:{i}", dst=into[i])
    assert same(into, pages)


def main() -> None:
    """Runs all checks with payloads in the GPU and in shared memory."""
    checks: list[Callable[[nkv.NanoKVCache], None]] = [every_type, views, streams, many]
    for memory in ("cuda", "dram"):
        job = f"torch-{memory}-{os.getpid()}"
        with nkv.NanoKVCache(512 << 20, memory=memory, job=job, **_SETTINGS) as cache:
            for check in checks:
                if memory == "dram" and check is views:
                    continue
                check(cache)
                print(f"torch {memory} {check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
