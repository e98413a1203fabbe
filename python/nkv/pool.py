"""The memory of a rank as a pool of worker processes on its host.

A worker is given slots in it, copies its bytes there and commits them, or reads them where they
are. No byte goes through the rank's process, and none is serialized.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _nkv, arrays
from .errors import Error
from .layouts import Key, listed


@dataclass(frozen=True)
class PoolInfo:
    """The memory that a pool is: a file in /dev/shm.

    ``boot_id`` is another one after each start of the rank.
    """

    rank: int
    shm_name: str
    pool_size: int
    boot_id: int


@dataclass(frozen=True)
class Slot:
    """A place in the memory of a rank: to write until its commit, or to read until it is finished.

    ``offset`` and ``length`` are bytes in the file ``shm_name``. Arrays and tensors made from a
    slot keep it: its memory is not reused before the last of them is gone, so keep none longer than
    needed. Nobody may write to one that was given to read, or that is committed.
    """

    key: Key
    shm_name: str
    offset: int
    length: int
    shape: tuple[int, ...]
    dtype: str
    #: The bytes, in place.
    data: memoryview = field(repr=False, compare=False)
    _shape: arrays.Shape = field(repr=False, compare=False)

    def array(self) -> Any:
        """A NumPy array in place."""
        return arrays.in_place(self.data, self._shape, "numpy")

    def tensor(self) -> Any:
        """A tensor of torch in place."""
        return arrays.in_place(self.data, self._shape, "torch")


class ShmPool:
    """The memory of a rank on this host. Made by :meth:`NanoKVCache.shm_pool`, once in a worker.

    To store: :meth:`prepare_store`, copy into the slots, :meth:`commit_store`. To retrieve:
    :meth:`prepare_retrieve`, read the slots, :meth:`finish_read`. What a worker was given stays its
    own until then, or until it dies: then it is taken back. Objects are those of ``put`` and
    ``get``, with their shape and type.
    """

    def __init__(self, native: _nkv.Pool) -> None:
        self._pool = native

    @property
    def info(self) -> PoolInfo:
        """The memory as it was last seen."""
        return PoolInfo(*self._pool.info())

    def prepare_store(self, keys: Iterable[Key], shape: Sequence[int], dtype: Any) -> list[Slot]:
        """Slots to write, one for each key that is not stored or being written and has room.

        The others are skipped, and counted in :attr:`figures`.

        Args:
            keys: as of ``put``.
            shape: of each object.
            dtype: its type: a name such as "bfloat16", or a type of torch or NumPy.
        """
        names = listed(keys)
        dims = tuple(int(dim) for dim in shape)
        described, size = arrays.of_torch(arrays.name_of_type(dtype), dims)
        trailer = arrays.trailer(described, size)
        given = {name.encode() if isinstance(name, str) else name: name for name in names}
        slots = []
        for native in self._pool.prepare_store(names, size + len(trailer)):
            whole = arrays.memory(native, readonly=False)
            whole[size:] = trailer
            slots.append(_slot(given[native.key], native, whole[:size], described))
        return slots

    def commit_store(
        self, keys: Iterable[Key], *, return_errors: bool = False
    ) -> list[Error | None]:
        """Makes stored objects readable: their slots are written, and not written any more.

        Returns:
            For each None, or its error, such as NotFound for a key that has no slot or whose slot
            has expired. Without ``return_errors`` the first is raised, after all were tried.
        """
        done: list[Any] = self._pool.commit_store(listed(keys))
        if not return_errors:
            for error in done:
                if error is not None:
                    raise error
        return done

    def abort_store(self, keys: Iterable[Key]) -> None:
        """Gives up slots that are not written after all: free once their arrays are gone, too."""
        self._pool.abort_store(listed(keys))

    def prepare_retrieve(
        self, keys: Iterable[Key], shape: Sequence[int] | None = None, dtype: Any = None
    ) -> list[Slot] | None:
        """Slots to read, one for each key; None if one of them is not there.

        What only a disk has is brought back first. With ``shape`` or ``dtype`` an object that has
        others is not there.
        """
        names = listed(keys)
        found = self._pool.prepare_retrieve(names)
        if found is None:
            return None
        slots = []
        for name, native in zip(names, found, strict=True):
            whole = arrays.memory(native, readonly=True)
            parsed = arrays.parse(whole[-arrays.MAX_TRAILER_BYTES :], len(whole))
            described, tail = parsed or (arrays.plain(len(whole)), 0)
            slots.append(_slot(name, native, whole[: len(whole) - tail], described))
        dims = None if shape is None else tuple(int(dim) for dim in shape)
        wanted = None if dtype is None else arrays.long_name(arrays.name_of_type(dtype))
        for slot in slots:
            if (dims or slot.shape) != slot.shape or (wanted or slot.dtype) != slot.dtype:
                self._pool.finish_read(names)
                return None
        return slots

    def finish_read(self, keys: Iterable[Key]) -> None:
        """The objects were read, each once for each time that it was given."""
        self._pool.finish_read(listed(keys))

    @property
    def outstanding(self) -> tuple[int, int]:
        """Slots that were given to write and to read, and are not ended."""
        return self._pool.outstanding()

    @property
    def figures(self) -> dict[str, int]:
        """Slots prepared, skipped because stored or full, committed, retrieved, missed, expired.

        And how often the rank was started again.
        """
        return self._pool.figures()


def _slot(key: Key, native: _nkv.Slot, data: memoryview, shape: arrays.Shape) -> Slot:
    shm_name, offset = native.place
    dtype = arrays.long_name(shape.dtype)
    return Slot(key, shm_name, offset, len(data), tuple(shape.dims), dtype, data, shape)
