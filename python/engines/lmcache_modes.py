"""LMCache with its Mooncake connector: one engine stores, another loads, in both of its modes.

The engine, its connector and its threads are LMCache's own. Only the copies between "GPU" and
host memory are made here, since there is no GPU: a tensor stands in its place.
"""

from __future__ import annotations

from typing import Any

import beside
import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.metadata import LMCacheMetadata

LAYERS, HEADS, HEAD_DIM, CHUNK, TOKENS = 4, 2, 64, 64, 256
BYTES = 2 * LAYERS * TOKENS * HEADS * HEAD_DIM * 2


class OnHost(GPUConnectorInterface):
    """Keys and values of one sequence: [2, layers, tokens, hidden]."""

    def __init__(self, kv: torch.Tensor) -> None:
        self.kv = kv

    def from_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        """Copies tokens out."""
        memory_obj.tensor.copy_(self.kv[:, :, start:end])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        """Copies tokens in."""
        self.kv[:, :, start:end].copy_(memory_obj.tensor)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        """Copies several ranges out."""
        for one in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(*one)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        """Copies several ranges in."""
        for one in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(*one)

    def get_shape(self, num_tokens: int) -> torch.Size:
        """The shape of so many tokens."""
        return torch.Size([2, LAYERS, num_tokens, HEADS * HEAD_DIM])


def engine(name: str, kv: torch.Tensor, chunk_meta: bool) -> Any:
    """An engine that has no memory of its own beside Mooncake's store."""
    extra = {
        "save_chunk_meta": chunk_meta,
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "local_buffer_size": 64 << 20,
        "master_server_address": beside.ADDRESS,
    }
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=False,
        max_local_cpu_size=0.25,
        lmcache_instance_id=name,
        remote_url=f"mooncakestore://{beside.ADDRESS}/",
        remote_serde="naive",
        extra_config=extra,
    )
    metadata = LMCacheMetadata(
        model_name=f"tiny-{chunk_meta}",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_DIM),
        role="worker",
        chunk_size=CHUNK,
    )
    made = LMCacheEngineBuilder.get_or_create(
        name, config, metadata, OnHost(kv), lambda tensor, _: None, lambda one, _: one
    )
    made.post_init()
    return made


def load(loader: Any, tokens: torch.Tensor, source: torch.Tensor) -> tuple[int, bool]:
    """How many tokens are found and loaded, and whether they are the stored ones."""
    kv = loader.gpu_connector.kv
    kv.zero_()
    found = loader.lookup(tokens)
    loaded = int(loader.retrieve(tokens[:found]).sum()) if found else 0
    return loaded, torch.equal(kv[:, :, :loaded], source[:, :, :loaded])


def mode(rank: beside.Rank, chunk_meta: bool) -> None:
    """Stores and loads in one mode, then damages what is stored."""
    name = f"lmcache, save_chunk_meta {str(chunk_meta).lower()}"
    torch.manual_seed(int(chunk_meta))
    tokens = torch.arange(TOKENS) + 1000 * chunk_meta
    source = torch.randn(2, LAYERS, TOKENS, HEADS * HEAD_DIM).bfloat16()
    engine(f"store-{chunk_meta}", source, chunk_meta).store(tokens)
    part = f"tiny-{chunk_meta}"
    beside.until(lambda: len(rank.keys(part)) >= TOKENS // CHUNK, beside.REPORTED_S)

    loader = engine(f"load-{chunk_meta}", torch.zeros_like(source), chunk_meta)
    before = rank.settled()
    loaded, equal = load(loader, tokens, source)
    served = rank.settled(before + BYTES) - before
    beside.check(f"{name}: equal KV", equal and loaded == TOKENS, f"{loaded} tokens loaded")
    beside.check_served(name, served, BYTES)
    beside.figures(loaded, served)

    damaged = rank.keys(part)[0]
    beside.damages(name, rank, damaged, lambda _: load(loader, tokens, source), TOKENS)


def main() -> None:
    """Both modes."""
    for with_meta in (True, False):
        mode(beside.Rank(), with_meta)


if __name__ == "__main__":
    beside.run(main)
