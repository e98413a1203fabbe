"""How a caller says that a tensor is spread, checked; and the keys of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .config import log
from .tensor_bytes import AXIS_KINDS, END, MAX_AXES, Axis

_NUMBER = {"ep": ("eid", "expert_id"), "pp": ("sid", "stage_id")}


def axes_of(parallelism: Any) -> tuple[Axis, ...] | None:
    """The axes of a ``TensorParallelism``, or of anything alike; None if they make no sense."""
    try:
        axes = tuple(_axis(one) for one in parallelism.axes)
    except (AttributeError, TypeError, ValueError) as error:
        log.error("parallelism: %s", error)
        return None
    kinds = {axis.kind for axis in axes}
    if not 0 < len(axes) <= MAX_AXES or len(kinds) < len(axes):
        log.error("parallelism: 1 to %d axes of different kinds are expected", MAX_AXES)
        return None
    return axes


def _axis(given: Any) -> Axis:
    kind, rank, size = str(given.kind).lower(), int(given.rank), int(given.size)
    split = None if given.split_dim is None else int(given.split_dim)
    number = getattr(given, _NUMBER[kind][1]) if kind in _NUMBER else 0
    if kind not in AXIS_KINDS or not 0 <= rank < size < END:
        raise ValueError(f"no axis: {kind!r}, rank {rank} of {size}")
    if (kind == "tp") != (split is not None) or number is None or abs(int(number)) >= END:
        raise ValueError(f"{kind}: tp, and nothing else, has split_dim; ep expert_id; pp stage_id")
    return Axis(kind, rank, size, split, int(number))


def writer_of(partition: Any) -> Axis | None:
    """The cut of a writer: ``rank`` of ``size`` parts along ``split_dim``; None if it is none."""
    try:
        rank, size, split = int(partition.rank), int(partition.size), int(partition.split_dim)
    except (AttributeError, TypeError, ValueError) as error:
        log.error("writer_partition: %s", error)
        return None
    valid = 0 <= rank < size < END and split >= 0
    return Axis("tp", rank, size, split, 0) if valid else None


def ordered(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes in the order in which keys name them."""
    return tuple(sorted(axes, key=lambda axis: AXIS_KINDS.index(axis.kind)))


def with_rank(axes: Sequence[Axis], rank: int, size: int) -> tuple[Axis, ...]:
    """The same axes, of another part along the cut."""
    return tuple(
        axis._replace(rank=rank, size=size) if axis.kind == "tp" else axis for axis in axes
    )


def tp_key(key: str, rank: int) -> str:
    """The key of a part that is cut along one axis."""
    return f"{key}_tp_{rank}"


def part_key(key: str, axes: Sequence[Axis]) -> str:
    """The key of a part."""
    if [axis.kind for axis in axes] == ["tp"]:
        return tp_key(key, axes[0].rank)
    for axis in ordered(axes):
        key += f"__{axis.kind}_{axis.rank}of{axis.size}"
        key += "" if axis.split_dim is None else f"_sd{axis.split_dim}"
        key += f"_{_NUMBER[axis.kind][0]}{axis.number}" if axis.kind in _NUMBER else ""
    return key


def writer_key(key: str, writer: Axis) -> str:
    """The key of a writer's part."""
    return f"{key}__writer_{writer.rank}of{writer.size}_sd{writer.split_dim}"


def writer_manifest_key(key: str) -> str:
    """The key of what says how writers cut a tensor."""
    return f"{key}__writer_manifest"


def manifest_key(key: str) -> str:
    """The key of what says how a tensor is cut."""
    return f"{key}__parallelism_manifest"
