"""Writes of tensors that are spread over ranks: each rank's part is an object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import layouts, tensor_bytes
from .codes import INVALID_PARAMS, OK
from .config import ReplicateConfig, log, of_items
from .tensor_bytes import Axis, Header, Manifest
from .tensors import Elements, Tensors, elements_at, elements_of

#: What one write stores: keys and parts of their values.
_Objects = list[tuple[str, list[Any]]]


def _cut(whole: Elements, axes: Sequence[Axis]) -> list[Any] | None:
    """One part of a whole tensor as parts of a value; None if it cannot be cut so."""
    header = tensor_bytes.part_of(whole.header, axes)
    if header is None:
        log.error("a tensor of shape %s cannot be cut by %s", whole.header.whole, list(axes))
        return None
    return [header.packed(), *((whole.address + at, n) for at, n in tensor_bytes.rows(header) if n)]


def _every_part(key: str, whole: Elements, axes: Sequence[Axis]) -> _Objects | None:
    """The parts of all ranks along the cut."""
    size = next(axis.size for axis in axes if axis.kind == "tp")
    parts = []
    for rank in range(size):
        own = layouts.with_rank(axes, rank, size)
        part = _cut(whole, own)
        if part is None:
            return None
        parts.append((layouts.part_key(key, own), part))
    return parts


def _one_part(key: str, whole: Elements, tp: Axis, axes: Sequence[Axis]) -> _Objects | None:
    """The part of one rank, cut out of a whole tensor, and its manifest."""
    part = _cut(whole, axes)
    manifest = Manifest(whole.header.dtype, whole.header.whole, tp.split_dim or 0, tp.size)
    if part is None:
        return None
    return [
        (layouts.part_key(key, axes), part),
        (layouts.manifest_key(key), [manifest.packed()]),
    ]


def _writers_part(key: str, whole: Elements, writer: Axis) -> _Objects | None:
    objects = _one_part(key, whole, writer, [writer])
    if objects is None:
        return None
    names = layouts.writer_key(key, writer), layouts.writer_manifest_key(key)
    return [(name, parts) for name, (_, parts) in zip(names, objects, strict=True)]


def _as_it_is(key: str, part: Elements, axes: Sequence[Axis]) -> _Objects:
    """A tensor that is the part itself, under axes that cut nothing."""
    header = part.header._replace(axes=tuple(axes))
    return [(layouts.part_key(key, axes), Elements(header, part.address, None).parts())]


def _own_part(key: str, part: Elements, tp: Axis) -> _Objects | None:
    """A tensor that is one of ``size`` equal parts of a whole, and its manifest."""
    local, split = part.header.local, tp.split_dim or 0
    if split >= len(local):
        return None
    whole = (*local[:split], local[split] * tp.size, *local[split + 1 :])
    header = Header(part.header.dtype, whole, local, (tp,))
    manifest = Manifest(header.dtype, whole, split, tp.size)
    return [
        (layouts.part_key(key, [tp]), Elements(header, part.address, None).parts()),
        (layouts.manifest_key(key), [manifest.packed()]),
    ]


def _objects(
    key: str, given: Elements | None, parallelism: Any, writer: Any, is_object: bool
) -> _Objects | None:
    """What a write with parallelism stores; None if it makes no sense.

    ``is_object``: the elements are of a tensor object in memory, and whole; then all parts are cut.
    """
    if given is None or (parallelism is not None and writer is not None):
        return None
    if writer is not None:
        axis = layouts.writer_of(writer)
        return None if axis is None else _writers_part(key, given, axis)
    if parallelism is None:
        return [(key, given.parts())]
    axes = layouts.axes_of(parallelism)
    if axes is None:
        return None
    tp = next((axis for axis in axes if axis.kind == "tp"), None)
    if tp is None:
        return _as_it_is(key, given, axes)
    if is_object:
        return _every_part(key, given, axes)
    return _own_part(key, given, tp) if len(axes) == 1 else _one_part(key, given, tp, axes)


class PartWrites(Tensors):
    """Tensors in parts."""

    def _write(
        self, wanted: Sequence[_Objects | None], config: ReplicateConfig | None, replaces: bool
    ) -> list[int]:
        """Stores all objects of all tensors as one batch; the first error of each tensor."""
        flat = [one for objects in wanted for one in objects or ()]
        of = [i for i, objects in enumerate(wanted) for _ in objects or ()]
        config = of_items(config, len(wanted), of)
        done = self._store([k for k, _ in flat], [p for _, p in flat], config, replaces)
        codes, at = [], 0
        for objects in wanted:
            own = done[at : at + len(objects or ())]
            at += len(own)
            failed = next((code for code in own if code != OK), OK)
            codes.append(INVALID_PARAMS if objects is None else failed)
        return codes

    # The parts of all ranks at once.

    def put_tensor_with_tp(
        self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Stores a whole tensor as ``tp_size`` equal parts along ``split_dim``."""
        return self.pub_tensor_with_tp(key, tensor, None, tp_rank, tp_size, split_dim)

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """The same for many."""
        return self.batch_pub_tensor_with_tp(
            base_keys, tensors_list, None, tp_rank, tp_size, split_dim
        )

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """As ``put_tensor_with_tp``."""
        return self.batch_pub_tensor_with_tp([key], [tensor], config, tp_rank, tp_size, split_dim)[
            0
        ]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """As ``batch_put_tensor_with_tp``."""
        found = [elements_of(one) for one in tensors_list]
        return self._put_all_parts(base_keys, found, config, tp_size, split_dim)

    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """The same of the tensor object at an address."""
        found = [elements_at(buffer_ptr, size)]
        return self._put_all_parts([key], found, None, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """The same for many."""
        if len(buffer_ptrs) != len(sizes):
            return [INVALID_PARAMS] * len(base_keys)
        found = [elements_at(at, size) for at, size in zip(buffer_ptrs, sizes, strict=True)]
        return self._put_all_parts(base_keys, found, None, tp_size, split_dim)

    def _put_all_parts(
        self,
        keys: Sequence[str],
        found: Sequence[Elements | None],
        config: ReplicateConfig | None,
        size: int,
        split_dim: int,
    ) -> list[int]:
        if len(keys) != len(found):
            return [INVALID_PARAMS] * len(keys)
        if size <= 1:
            return self._put_elements(keys, found, config, False)
        axes = [Axis("tp", 0, size, split_dim, 0)]
        wanted = [
            None if one is None else _every_part(key, one, axes)
            for key, one in zip(keys, found, strict=True)
        ]
        return self._write(wanted, config, False)

    # One rank's part, or whatever a request asks for.

    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Stores one rank's part, and how the whole is cut.

        A tensor with a tp axis alone is the part; with more axes it is the whole, of which the part
        is cut; so with a ``writer_partition``. Without both it is stored whole.
        """
        found = _objects(key, elements_of(tensor), parallelism, writer_partition, False)
        return self._write([found], config, False)[0]

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """The same, in place of what is there."""
        found = _objects(key, elements_of(tensor), parallelism, writer_partition, False)
        return self._write([found], config, True)[0]

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """The same for many; each with its own request, or all whole."""
        found = [elements_of(one) for one in tensors_list]
        return self._batch(keys, found, parallelisms, writer_partitions, False, config, False)

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """The same, in place of what is there."""
        found = [elements_of(one) for one in tensors_list]
        return self._batch(keys, found, parallelisms, writer_partitions, False, config, True)

    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """The same of a tensor object at an address. With a tp axis it is whole: all are stored."""
        found = elements_at(buffer_ptr, size)
        wanted = _objects(key, found, parallelism, writer_partition, True)
        return self._write([wanted], config, False)[0]

    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """The same, in place of what is there."""
        found = elements_at(buffer_ptr, size)
        wanted = _objects(key, found, parallelism, writer_partition, True)
        return self._write([wanted], config, True)[0]

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """The same for many."""
        found = _all_at(buffer_ptrs, sizes)
        return self._batch(keys, found, parallelisms, writer_partitions, True, config, False)

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """The same, in place of what is there."""
        found = _all_at(buffer_ptrs, sizes)
        return self._batch(keys, found, parallelisms, writer_partitions, True, config, True)

    def _batch(
        self,
        keys: Sequence[str],
        found: Sequence[Elements | None],
        parallelisms: Any,
        writers: Any,
        is_object: bool,
        config: ReplicateConfig | None,
        replaces: bool,
    ) -> list[int]:
        lists = [parallelisms or [None] * len(keys), writers or [None] * len(keys)]
        both = parallelisms is not None and writers is not None
        if both or any(not isinstance(one, list) or len(one) != len(keys) for one in lists):
            return [INVALID_PARAMS] * len(keys)
        if len(found) != len(keys):
            return [INVALID_PARAMS] * len(keys)
        rows = zip(keys, found, lists[0], lists[1], strict=True)
        return self._write([_objects(*row, is_object) for row in rows], config, replaces)


def _all_at(addresses: Sequence[int], sizes: Sequence[int]) -> list[Elements | None]:
    if len(addresses) != len(sizes):
        return []
    return [elements_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
