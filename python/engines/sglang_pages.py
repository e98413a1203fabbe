"""SGLang's HiCache with its Mooncake backend: pages of the host pool go out and come back.

Controller, pools, backend and their threads are SGLang's own, with the pools in host memory. There
is no scheduler, whose part in a load is played here: it gives a hit the memory to load into.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import beside
import torch
import torch.distributed as dist
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

LAYERS, HEADS, HEAD_DIM, PAGE, TOKENS = 4, 2, 64, 64, 256
LATENT, ROPE = 64, 16
#: The page that is damaged.
DAMAGED = 2
ANSWER_S = 20
MOONCAKE = {
    "master_server_address": beside.ADDRESS,
    "local_hostname": "127.0.0.1",
    "metadata_server": "P2PHANDSHAKE",
    "protocol": "tcp",
    "device_name": "",
    "global_segment_size": "0",
    "check_server": False,
}


def alone() -> None:
    """One process that is all ranks."""
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/group", rank=0, world_size=1)
    sizes = {f"{group}_size": 1 for group in ("tp", "pp", "attn_dcp", "attn_tp", "attn_dp")}
    ranks = {f"{group}_rank": 0 for group in ("tp", "pp", "attn_dcp", "attn_tp", "attn_dp")}
    get_parallel().override_permanently(**sizes, **ranks)


def pools(layout: str) -> tuple[Any, Any, int]:
    """The "device" pool, the host's pool, and the bytes of all tokens.

    The backend takes heads with pages first, and latent attention (MLA) layer by layer: a page is
    then a value of many places.
    """
    shared: dict[str, Any] = {
        "device_capacity_tokens": TOKENS,
        "start_layer": 0,
        "end_layer": LAYERS,
        "pin_memory": False,
    }
    dtype = torch.bfloat16
    if layout == "page_first":
        device = MHATokenToKVPool(TOKENS, PAGE, dtype, HEADS, HEAD_DIM, LAYERS, "cpu", False)
        info = device.get_device_pool_infos()[0].buffer_info
        host = MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, **shared)
        return device, host, 2 * LAYERS * TOKENS * HEADS * HEAD_DIM * 2
    device = MLATokenToKVPool(TOKENS, PAGE, dtype, LATENT, ROPE, LAYERS, "cpu", False)
    info = device.get_device_pool_infos()[0].buffer_info
    host = MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, target_layer_num=LAYERS, **shared)
    return device, host, LAYERS * TOKENS * (LATENT + ROPE) * 2


class Pages:
    """A controller, and the pages of one sequence."""

    def __init__(self, layout: str) -> None:
        device, self.host, self.bytes = pools(layout)
        self.controller = HiCacheController(
            types.SimpleNamespace(get_kvcache=lambda: device),
            self.host,
            PAGE,
            dist.group.WORLD,
            None,
            io_backend="direct",
            storage_backend="mooncake",
            prefetch_threshold=PAGE,
            model_name=f"tiny-{layout}",
            storage_backend_extra_config=MOONCAKE,
        )
        first = 1000 if layout == "page_first" else 5000
        self.tokens = list(range(first, first + TOKENS))
        self.hashes = get_storage_hash_str(self.tokens, None, page_size=PAGE)
        self.at = self.host.alloc(TOKENS)
        self.source = torch.randn(self.host.kv_buffer.shape).bfloat16()
        shape = self.host.kv_buffer.shape
        self.token_axis = next(axis for axis, rows in enumerate(shape) if rows >= 2 * TOKENS)

    def store(self) -> int:
        """How many tokens were stored."""
        self.host.kv_buffer.copy_(self.source)
        self.controller.write_storage(self.at, self.tokens, hash_value=self.hashes)
        return int(self.controller.ack_backup_queue.get(timeout=ANSWER_S).completed_tokens)

    def load(self, request: str) -> tuple[int, bool]:
        """How many tokens are loaded, and whether they are the stored ones."""
        self.host.kv_buffer.zero_()
        self.controller.prefetch(request, self.tokens)
        hit = self.controller.prefetch_hit_queue.get(timeout=ANSWER_S)
        if hit.storage_hit_count == 0:
            return 0, True
        hit.host_indices = self.at[: hit.storage_hit_count]
        self.controller.prefetch_buffer.put(hit)
        loaded, ended = 0, False
        while not ended:
            answer = self.controller.ack_prefetch_queue.get(timeout=ANSWER_S)
            loaded, ended = max(loaded, answer.completed_tokens or 0), answer.completed_req
        return loaded, torch.equal(
            self._first(self.host.kv_buffer, loaded), self._first(self.source, loaded)
        )

    def _first(self, buffer: torch.Tensor, tokens: int) -> torch.Tensor:
        """The first tokens of a pool's memory."""
        return buffer.index_select(self.token_axis, self.at[:tokens])


def layout(rank: beside.Rank, name: str) -> None:
    """Stores and loads in one layout, then damages what is stored."""
    pages = Pages(name)
    what = f"sglang, {name}"
    stored = pages.store()
    beside.check(f"{what}: stored", stored == TOKENS, f"{stored} tokens")
    before = rank.settled()
    loaded, equal = pages.load("whole")
    served = rank.settled(before + pages.bytes) - before
    beside.check(f"{what}: equal KV", equal and loaded == TOKENS, f"{loaded} tokens loaded")
    beside.check_served(what, served, pages.bytes)
    beside.figures(loaded, served)
    damaged = rank.keys(pages.hashes[DAMAGED])[0]
    beside.damages(what, rank, damaged, pages.load, TOKENS)
    pages.controller.detach_storage_backend()


def main() -> None:
    """Both layouts."""
    alone()
    for name in ("page_first", "layer_first"):
        layout(beside.Rank(), name)


if __name__ == "__main__":
    beside.run(main)
