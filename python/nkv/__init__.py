"""nkv: a distributed KV cache for LLM inference."""

from . import _nkv, arrays
from .cache import NanoKVCache
from .errors import (
    AlreadyExists,
    Corrupt,
    Disconnected,
    Error,
    Internal,
    InvalidArgument,
    NotFound,
    NotReady,
    OutOfMemory,
    Reclaimed,
    Timeout,
    Unsupported,
)
from .layouts import DEFAULT_PAGE_BYTES, Key, ListedKey, ObjMeta, Removed, WritePlan
from .pool import PoolInfo, ShmPool, Slot

__version__ = _nkv.__version__

connect = NanoKVCache.connect

__all__ = [
    "DEFAULT_PAGE_BYTES",
    "AlreadyExists",
    "Corrupt",
    "Disconnected",
    "Error",
    "Internal",
    "InvalidArgument",
    "Key",
    "ListedKey",
    "NanoKVCache",
    "NotFound",
    "NotReady",
    "ObjMeta",
    "OutOfMemory",
    "PoolInfo",
    "Reclaimed",
    "Removed",
    "ShmPool",
    "Slot",
    "Timeout",
    "Unsupported",
    "WritePlan",
    "__version__",
    "arrays",
    "connect",
]
