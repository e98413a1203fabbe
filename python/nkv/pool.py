"""The memory of a rank as a pool of worker processes on its host.

A worker is given slots in it, copies its bytes there and commits them, or reads them where they
are. No byte goes through the rank's process, and none is serialized.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _nkv, arrays
from .errors import Error, InvalidArgument
from .layouts import Key, listed


@dataclass(frozen=True)
class PoolInfo:
    """The memory that a pool is: a file in /dev/shm of ``pool_size`` bytes, with the index.

    ``store_bytes`` of it are for slots to write: what the rank has beside its log. ``boot_id`` is
    another one after each start of the rank.
    """

    rank: int
    shm_name: str
    pool_size: int
    store_bytes: int
    boot_id: int


@dataclass(frozen=True)
class Slot:
    """A place in the memory of a rank: to write until its commit, or to read until it is finished.

    ``offset`` and ``length`` are bytes in the file ``shm_name``; keep the slot also where only they
    are used. Arrays and tensors made from a slot keep it. What was given to read is not reused
    before the last of them is gone, and what was given to write not before that or the commit. An
    array of a slot that is committed shows the object, and later what else is put there: nobody may
    write to it, nor to one that was given to read.
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
    _native: _nkv.Slot = field(repr=False, compare=False)

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
        self._mismatched = 0
        if native.has_little_room():
            info = self.info
            warnings.warn(
                f"slots of a pool are not in a rank's log: rank {info.rank} has {info.store_bytes} "
                f"of its {info.pool_size} bytes for them; start it with log_bytes 0",
                stacklevel=3,
            )

    @property
    def info(self) -> PoolInfo:
        """The memory as it was last seen."""
        return PoolInfo(*self._pool.info())

    def prepare_store(self, keys: Iterable[Key], shape: Sequence[int], dtype: Any) -> list[Slot]:
        """Slots to write, one for each key that is not stored or being written and has room.

        The others are skipped, and counted in :attr:`figures` by reason. Memory that is full is
        waited for, about a second. A key that has another slot of this worker, which its rank has
        ended, loses that.

        Args:
            keys: as of ``put``.
            shape: of each object.
            dtype: its type: a name such as "bfloat16", or a type of torch or NumPy.
        """
        names = listed(keys)
        dims = _dims(shape)
        described, size = arrays.of_torch(arrays.name_of_type(dtype), dims)
        trailer = arrays.trailer(described, size)
        given = {name.encode() if isinstance(name, str) else bytes(name): name for name in names}
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
            has expired. An error ends the slot: store that key again. Without ``return_errors`` the
            first is raised, after all were tried.
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
        others is not there, and counted as mismatched: it cannot be stored again with these before
        it is removed. Where workers may differ, let the layout of the pool say so.
        """
        names = listed(keys)
        dims = None if shape is None else _dims(shape)
        wanted = None if dtype is None else arrays.long_name(arrays.name_of_type(dtype))
        found = self._pool.prepare_retrieve(names)
        if found is None:
            return None
        slots = []
        for name, native in zip(names, found, strict=True):
            whole = arrays.memory(native, readonly=True)
            parsed = arrays.parse(whole[-arrays.MAX_TRAILER_BYTES :], len(whole))
            described, tail = parsed or (arrays.plain(len(whole)), 0)
            slots.append(_slot(name, native, whole[: len(whole) - tail], described))
        other = [
            slot
            for slot in slots
            if dims not in (None, slot.shape) or wanted not in (None, slot.dtype)
        ]
        if other:
            self._mismatched += len(other)
            self._pool.finish_slots(found)
            return None
        return slots

    def finish_read(self, keys: Iterable[Key | Slot]) -> int:
        """These slots were read, or objects of these keys: the one that was given first.

        Returns how many of them this worker had been given and not finished.
        """
        named = list(keys) if not isinstance(keys, (str, bytes)) else listed(keys)
        slots = self._pool.finish_slots([item._native for item in named if isinstance(item, Slot)])
        by_key = listed(item for item in named if not isinstance(item, Slot))
        return slots + self._pool.finish_read(by_key)

    @property
    def outstanding(self) -> tuple[int, int]:
        """Slots that were given to write and to read, and are not ended."""
        return self._pool.outstanding()

    @property
    def figures(self) -> dict[str, int]:
        """Slots prepared, committed, retrieved and expired, and keys without one, by reason.

        ``skipped_exists``: stored already; ``skipped_busy``: being written or removed, or not known
        to the master yet, so that a later try may store them; ``skipped_full``: no room;
        ``failed``: another error. ``missed``: retrieved and not there; ``mismatched``: there, of
        another shape or type. ``restarts``: how often the rank was found started again.
        """
        return {**self._pool.figures(), "mismatched": self._mismatched}


def _dims(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(dim) for dim in shape)
    except TypeError as error:
        raise InvalidArgument(f"a shape is a sequence of whole numbers, not {shape!r}") from error
    if any(dim < 0 for dim in dims):
        raise InvalidArgument(f"a shape with a negative dimension: {dims}")
    if any(dim > arrays.MAX_DIM for dim in dims) or math.prod(dims) > arrays.MAX_DIM:
        raise InvalidArgument(f"no memory holds an object of shape {dims}")
    return dims


def _slot(key: Key, native: _nkv.Slot, data: memoryview, shape: arrays.Shape) -> Slot:
    shm_name, offset = native.place
    dtype = arrays.long_name(shape.dtype)
    return Slot(key, shm_name, offset, len(data), tuple(shape.dims), dtype, data, shape, native)
