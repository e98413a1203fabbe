"""Device functions for Triton kernels that write, publish and read objects. Needs triton.

A kernel writes the pages of a plan and sets READY, or waits for an object and reads it, without its
host. docs/guides/gpu.md has an example, docs/reference/gpu-kernels.md the rules.

Addresses are int64. Without ``heap_bases_ptr`` they are those of ``NanoKVCache.device_ptr``. With
``heap_bases_ptr``, which is ``NanoKVCache.heap_bases_tensor`` on the device, they are offsets in
the first segment of ``dst_rank``, or of ``src_rank`` where something is read; the other rank is
there for the order of arguments only.
"""

from .check import PublishError, check_publish
from .log import (
    KV_LOG_FULL,
    KV_LOG_STORED,
    KV_LOG_WAITED,
    KV_LOG_WRAPPED,
    kv_log_claim,
    kv_log_publish,
    kv_log_put,
)
from .objects import (
    KV_CHANGED,
    KV_GONE,
    KV_NOT_READY,
    KV_READABLE,
    kv_commit_ready,
    kv_commit_ready_last,
    kv_read_remote,
    kv_still_ready,
    kv_store_page_from_src,
    kv_store_page_values,
    kv_wait_ready,
)

__all__ = [
    "KV_CHANGED",
    "KV_GONE",
    "KV_LOG_FULL",
    "KV_LOG_STORED",
    "KV_LOG_WAITED",
    "KV_LOG_WRAPPED",
    "KV_NOT_READY",
    "KV_READABLE",
    "PublishError",
    "check_publish",
    "kv_commit_ready",
    "kv_commit_ready_last",
    "kv_log_claim",
    "kv_log_publish",
    "kv_log_put",
    "kv_read_remote",
    "kv_still_ready",
    "kv_store_page_from_src",
    "kv_store_page_values",
    "kv_wait_ready",
]
