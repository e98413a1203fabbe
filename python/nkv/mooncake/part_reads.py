"""Reads of tensors that are spread over ranks: a part as stored, another cut, or the whole."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import layouts, tensor_bytes
from .codes import INVALID_PARAMS
from .part_writes import PartWrites
from .tensor_bytes import HEADER_BYTES, Axis, Header, Manifest
from .tensors import tensor_at, tensor_of


class _Stored(NamedTuple):
    """A stored tensor object: what its header says, and its bytes."""

    header: Header
    seen: Any


class _Picture(NamedTuple):
    """A tensor to be read: its header, and the copies (to, address, bytes) that make its elements.

    ``to`` counts from the tensor's first element.
    """

    header: Header
    copies: list[tuple[int, int, int]]
    #: Keeps what is copied.
    owners: list[Any]

    def bytes_total(self) -> int:
        return HEADER_BYTES + self.header.data_bytes

    def draw(self, address: int) -> None:
        """Writes the tensor object."""
        ctypes.memmove(address, self.header.packed(), HEADER_BYTES)
        for to, start, n in self.copies:
            ctypes.memmove(address + HEADER_BYTES + to, start, n)


def _as_stored(found: _Stored | None) -> _Picture | None:
    if found is None:
        return None
    size = found.header.data_bytes
    copies = [(0, found.seen.address + HEADER_BYTES, size)] if size else []
    return _Picture(found.header, copies, [found.seen])


def _slab(
    parts: list[_Stored], dim: int, start: int, extent: int, axes: tuple[Axis, ...]
) -> _Picture:
    """``extent`` from ``start`` along ``dim`` of the tensor whose parts these are, in order."""
    first = parts[0].header
    local = (*first.whole[:dim], extent, *first.whole[dim + 1 :])
    copies = [
        (to, part.seen.address + HEADER_BYTES + at, n)
        for part in parts
        for to, at, n in tensor_bytes.overlaps(part.header, first.whole, dim, start, extent)
    ]
    header = Header(first.dtype, first.whole, local, axes)
    return _Picture(header, copies, [part.seen for part in parts])


class PartReads(PartWrites):
    """Tensors from parts."""

    def _stored(self, key: str) -> _Stored | None:
        """The tensor object of a key."""
        seen = self._seen(key)
        if isinstance(seen, int) or len(seen) < HEADER_BYTES:
            return None
        header = tensor_bytes.parse_at(seen.address, len(seen))
        return None if header is None else _Stored(header, seen)

    def _manifest(self, key: str) -> Manifest | None:
        seen = self._seen(key)
        if isinstance(seen, int) or not len(seen):
            return None
        return tensor_bytes.parse_manifest(ctypes.string_at(seen.address, min(len(seen), 256)))

    def _parts(
        self, key_of: Callable[[tuple[Axis, ...]], str], axes: Sequence[Axis], count: int
    ) -> list[_Stored] | None:
        """All parts along the cut of ``axes``; None if one is missing or is none of these."""
        parts: list[_Stored] = []
        for rank in range(count):
            own = layouts.with_rank(axes, rank, count)
            found, wanted = self._stored(key_of(own)), layouts.ordered(own)
            if found is None or layouts.ordered(found.header.axes) != wanted:
                return None
            if parts and found.header.whole != parts[0].header.whole:
                return None
            whole = found.header._replace(local=found.header.whole, axes=())
            # Equal parts, of a tensor that is as large as the parts say.
            if tensor_bytes.part_of(whole, found.header.axes) != found.header:
                return None
            parts.append(found)
        return parts

    def _all_parts(self, key: str, axes: tuple[Axis, ...]) -> list[_Stored] | None:
        """The parts of a tensor, however many they are, of the axes that are asked for."""
        tp = next((axis for axis in axes if axis.kind == "tp"), None)
        if tp is None:
            return None
        count = tp.size
        manifest = self._manifest(layouts.manifest_key(key))
        if manifest is not None and manifest.split_dim == tp.split_dim:
            count = manifest.parts
        elif len(axes) == 1:
            first = self._stored(layouts.tp_key(key, 0))
            cut = None if first is None else first.header.tp()
            count = count if cut is None else cut.size
        return self._parts(lambda own: layouts.part_key(key, own), axes, count)

    def _writers_whole(self, key: str) -> _Picture | None:
        """The whole of a tensor that writers stored in parts, or that one stored whole."""
        manifest = self._manifest(layouts.writer_manifest_key(key))
        if manifest is not None:
            axes = [Axis("tp", 0, manifest.parts, manifest.split_dim, 0)]
            parts = self._parts(lambda own: layouts.writer_key(key, own[0]), axes, manifest.parts)
            if parts:
                dim = manifest.split_dim
                return _slab(parts, dim, 0, parts[0].header.whole[dim], ())
        return _as_stored(self._stored(key))

    def _part(self, key: str, axes: tuple[Axis, ...], falls_back: bool) -> _Picture | None:
        """One rank's part: as it was stored, else cut anew out of the stored ones."""
        keys = [layouts.part_key(key, axes)]
        if [axis.kind for axis in axes] == ["tp"]:
            keys.append(layouts.writer_key(key, axes[0]))
        for name in keys:
            found = self._stored(name)
            if found is not None and layouts.ordered(found.header.axes) == layouts.ordered(axes):
                return _as_stored(found)
        parts = self._all_parts(key, axes)
        tp = next((axis for axis in axes if axis.kind == "tp"), None)
        if parts and tp is not None and tp.split_dim is not None:
            dim, whole = tp.split_dim, parts[0].header.whole
            if whole[dim] % tp.size == 0:
                extent = whole[dim] // tp.size
                return _slab(parts, dim, tp.rank * extent, extent, axes)
        return _as_stored(self._stored(keys[0])) if falls_back and len(keys) > 1 else None

    def _picture(self, key: str, target: Any, falls_back: bool) -> _Picture | None:
        """What a request asks for; None if it makes no sense or is not there."""
        if target is None:
            return _as_stored(self._stored(key))
        try:
            mode, parallelism = str(target.mode).lower(), target.parallelism
        except AttributeError:
            return None
        if parallelism is None:
            if mode == "full":
                return self._writers_whole(key)
            return _as_stored(self._stored(key)) if mode == "as_stored" else None
        axes = layouts.axes_of(parallelism)
        if axes is None:
            return None
        if mode == "shard":
            return self._part(key, axes, falls_back)
        parts = self._all_parts(key, axes) if mode == "full" else None
        if not parts:
            return None
        tp = parts[0].header.tp()
        dim = 0 if tp is None or tp.split_dim is None else tp.split_dim
        return _slab(parts, dim, 0, parts[0].header.whole[dim], ())

    def get_tensor_with_parallelism(self, key: str, target: Any = None) -> Any:
        """The tensor that a ``ReadTarget`` asks for; None if there is none.

        "shard": the part of the target's rank, also if the tensor was cut in other numbers;
        "full": the whole; "as_stored": what the key itself holds.
        """
        picture = self._picture(key, target, True)
        if picture is None:
            return None
        memory = (ctypes.c_ubyte * picture.bytes_total())()
        picture.draw(ctypes.addressof(memory))
        return tensor_of(memory, picture.header)

    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str], targets: Any = None
    ) -> list[Any]:
        """The same for many; each with its own target, or all as stored."""
        wanted = _targets(keys, targets)
        if wanted is None:
            return [None] * len(keys)
        return [
            self.get_tensor_with_parallelism(key, one)
            for key, one in zip(keys, wanted, strict=True)
        ]

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: Any = None
    ) -> Any:
        """The same, to an address: the tensor object, and the tensor in that memory."""
        picture = self._picture(key, target, False) if buffer_ptr > 0 else None
        if picture is None or picture.bytes_total() > size:
            return None
        picture.draw(buffer_ptr)
        return tensor_at(buffer_ptr, picture.bytes_total())

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Any = None,
    ) -> list[Any]:
        """The same for many."""
        wanted = _targets(keys, targets)
        if wanted is None or not len(keys) == len(buffer_ptrs) == len(sizes):
            return [None] * len(keys)
        rows = zip(keys, buffer_ptrs, sizes, wanted, strict=True)
        return [self.get_tensor_with_parallelism_into(*row) for row in rows]

    # By rank and size alone.

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """The part of a rank as it was stored; the whole if there is one rank."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        """The same for many."""
        return self.batch_get_tensor(_tp_keys(base_keys, tp_rank, tp_size))

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """The same, to an address."""
        keys = _tp_keys([key], tp_rank, tp_size)
        return self.get_tensor_into(keys[0], buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]:
        """The same for many."""
        if not len(base_keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(base_keys)
        keys = _tp_keys(base_keys, tp_rank, tp_size)
        return self.batch_get_tensor_into(keys, buffer_ptrs, sizes)


def _tp_keys(keys: Sequence[str], rank: int, size: int) -> list[str]:
    return [layouts.tp_key(key, rank) for key in keys] if size > 1 else list(keys)


def _targets(keys: Sequence[str], targets: Any) -> list[Any] | None:
    """A target for each key; None if there are not as many."""
    if targets is None:
        return [None] * len(keys)
    return targets if isinstance(targets, list) and len(targets) == len(keys) else None
