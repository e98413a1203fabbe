"""Tables of embeddings, one object for each head: rows are read by their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import arrays
from .codes import OK
from .ranges import Ranges

if TYPE_CHECKING:
    import numpy as np

_ITEM_BYTES = 4


class EngramStoreConfig:
    """``embedding_dim``: float32 numbers of a row; ``table_vocab_sizes``: rows of each head."""

    def __init__(self) -> None:
        self.embedding_dim = 64
        self.table_vocab_sizes = [1024]


class EngramStore:
    """The tables of one layer, at keys ``engram:lLAYER:hHEAD``. Errors are RuntimeError."""

    def __init__(
        self, layer_id: int, config: EngramStoreConfig, store: Ranges | None = None
    ) -> None:
        if store is not None and not isinstance(store, Ranges):
            raise RuntimeError("EngramStore: a MooncakeDistributedStore is expected")
        self._layer = int(layer_id)
        self._dim = int(config.embedding_dim)
        self._rows = [int(rows) for rows in config.table_vocab_sizes]
        self._store = store

    def get_embedding_dim(self) -> int:
        """Numbers of a row."""
        return self._dim

    def get_num_heads(self) -> int:
        """Tables."""
        return len(self._rows)

    def get_table_vocab_sizes(self) -> list[int]:
        """Rows of each table."""
        return list(self._rows)

    def get_store_keys(self) -> list[str]:
        """The tables' keys."""
        return [f"engram:l{self._layer}:h{head}" for head in range(len(self._rows))]

    def populate(self, embedding_buffers: list[Any]) -> None:
        """Stores the tables: float32 arrays of shape [rows, embedding_dim], one for each head."""
        import numpy as np  # noqa: PLC0415 - nkv works without it

        if len(embedding_buffers) != len(self._rows):
            raise RuntimeError("embedding_buffers size must match num_heads")
        for rows, table in zip(self._rows, embedding_buffers, strict=True):
            if not isinstance(table, np.ndarray):
                raise RuntimeError("embedding_buffers must be NumPy arrays")
            if table.shape != (rows, self._dim) or table.dtype != np.float32:
                raise RuntimeError(f"a table of float32 and shape {(rows, self._dim)} is expected")
        tables = [np.ascontiguousarray(table) for table in embedding_buffers]
        parts = [[(table.ctypes.data, table.nbytes)] for table in tables]
        store, keys = self._store, self.get_store_keys()
        # Tables that are there stay, and that is an error.
        if store is None or any(code != OK for code in store._put_parts(keys, parts, None, True)):
            raise RuntimeError("populate failed")

    def lookup(self, row_ids: Any) -> np.ndarray[Any, Any]:
        """The rows of numbers [B, L, heads], as float32 of shape [B, L, heads, embedding_dim]."""
        import numpy as np  # noqa: PLC0415 - nkv works without it

        ids = np.asarray(row_ids).astype(np.int64)
        if ids.ndim != 3:
            raise RuntimeError("row_ids array must have shape [B, L, H]")
        if ids.shape[2] != len(self._rows):
            raise RuntimeError("row_ids last dimension must match num_heads")
        found = np.empty((*ids.shape, self._dim), np.float32)
        for head, key in enumerate(self.get_store_keys()):
            seen = 0 if self._store is None else self._store._seen(key)
            size = self._rows[head] * self._dim * _ITEM_BYTES
            wanted = ids[:, :, head]
            inside = wanted.size == 0 or (wanted.min() >= 0 and wanted.max() < self._rows[head])
            if isinstance(seen, int) or len(seen) != size or not inside:
                raise RuntimeError("EngramStore lookup failed")
            table = np.frombuffer(arrays.memory(seen, readonly=True), np.float32).reshape(
                -1, self._dim
            )
            found[:, :, head] = table[wanted]
        return found

    def remove_from_store(self, force: bool = False) -> int:
        """Removes the tables; how many there were."""
        if self._store is None:
            return 0
        return sum(code == OK for code in self._store._remove_many(self.get_store_keys()))
