"""What callers hand to the store: wishes of a put, and how tensors are split."""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from ..layouts import MAX_REPLICAS, MAX_RETENTION_S, retention_of

log = logging.getLogger("nkv.mooncake")


class Named(enum.IntEnum):
    """Numbers that are shown by their names."""

    __str__ = enum.Enum.__str__


class ObjectDataType(Named):
    """What an object holds. nkv treats all alike."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(Named):
    """What a put does to a pin. nkv has none."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class _Fields:
    """Fields with defaults; any other name, and a value of another type, is an error."""

    _defaults: ClassVar[dict[str, Any]] = {}
    #: Types of the fields whose default is None.
    _optional: ClassVar[dict[str, type]] = {}

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            object.__setattr__(self, name, list(value) if isinstance(value, list) else value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        default = self._defaults[name]
        wanted = self._optional.get(name, type(default))
        unset = value is None and name in self._optional
        if wanted is not type(None) and not unset and not isinstance(value, wanted):
            kind = type(value).__name__
            raise TypeError(
                f"{type(self).__name__}.{name}: {wanted.__name__} is expected, no {kind}"
            )
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._defaults)
        return f"{type(self).__name__}({fields})"


class ReplicateConfig(_Fields):
    """Wishes of a put. Preferred segments are ranks' numbers, of each replica one; other names are
    ignored.
    """

    replica_num: int
    with_soft_pin: bool
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_hard_pin: bool
    preferred_segment: str
    preferred_segments: list[str]
    prefer_alloc_in_same_node: bool
    group_ids: list[str] | None
    data_type: ObjectDataType
    nof_replica_num: int
    dfs_replica_num: int
    preferred_nof_segments: list[str]

    _defaults: ClassVar[dict[str, Any]] = {
        "replica_num": 1,
        "with_soft_pin": False,
        "soft_pin_action": SoftPinAction.PRESERVE,
        "soft_pin_ttl_ms": None,
        "with_hard_pin": False,
        "preferred_segment": "",
        "preferred_segments": [],
        "prefer_alloc_in_same_node": False,
        "group_ids": None,
        "data_type": ObjectDataType.UNKNOWN,
        "nof_replica_num": 0,
        "dfs_replica_num": 0,
        "preferred_nof_segments": [],
    }
    _optional: ClassVar[dict[str, type]] = {"soft_pin_ttl_ms": int, "group_ids": list}


class ParallelAxis(_Fields):
    """One axis along which a tensor is spread.

    ``kind`` is "tp" (split along ``split_dim``), "dp", "ep" (of ``expert_id``) or "pp" (of
    ``stage_id``); ``rank`` of ``size``.
    """

    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None

    _defaults: ClassVar[dict[str, Any]] = {
        "kind": "",
        "rank": 0,
        "size": 1,
        "split_dim": None,
        "expert_id": None,
        "stage_id": None,
    }
    _optional: ClassVar[dict[str, type]] = {"split_dim": int, "expert_id": int, "stage_id": int}


class TensorParallelism(_Fields):
    """The axes of a tensor: at most four, no two of a kind."""

    axes: list[ParallelAxis]

    _defaults: ClassVar[dict[str, Any]] = {"axes": []}


class ReadTarget(_Fields):
    """Which part of a tensor to read: "as_stored", "shard" or "full"."""

    mode: str
    parallelism: TensorParallelism | None

    _defaults: ClassVar[dict[str, Any]] = {"mode": "as_stored", "parallelism": None}
    _optional: ClassVar[dict[str, type]] = {"parallelism": TensorParallelism}

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "mode" and str(value).lower() not in ("as_stored", "shard", "full"):
            raise RuntimeError(f"Unsupported ReadTarget mode {value!r}")
        super().__setattr__(name, value)


#: Of a soft pin whose put names no time: that of Mooncake.
SOFT_PIN_TTL_MS = 30 * 60 * 1000

_warned: set[str] = set()


def _warn_once(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        log.warning("%s", what)


#: What a put asks for, as the native part takes it.
Wanted = tuple[list[str], int, bool, int, int, str, str | bytes | list[str | bytes | None] | None]


def wanted_of(n: int, config: ReplicateConfig | None, fails: bool = False) -> Wanted | None:
    """What a put of so many keys asks for, as the native part takes it. None if it names another
    number of groups.
    """
    replicas = 1 if config is None else config.replica_num
    if replicas > MAX_REPLICAS:
        _warn_once(f"replica_num above {MAX_REPLICAS}: nkv makes {MAX_REPLICAS} replicas")
    copies = max(1, min(replicas, MAX_REPLICAS))
    names = None if config is None else config.group_ids
    if names is not None and (len(names) != n or not all(isinstance(one, str) for one in names)):
        return None
    groups: list[str | bytes | None] = [name or None for name in names or ()]
    return preferred_ranks(config), 0, fails, copies, 1, _retention(config), groups or None


def of_items(config: ReplicateConfig | None, n: int, at: Sequence[int]) -> ReplicateConfig | None:
    """The same wishes for items of a batch of ``n``. What names no group for each, names none
    for any, which is wrong.
    """
    if config is None or config.group_ids is None:
        return config
    some = copy.copy(config)
    names = config.group_ids
    some.group_ids = [names[i] for i in at] if len(names) == n else []
    return some


def _retention(config: ReplicateConfig | None) -> str:
    """The pin that a put asks for. A soft one has whole seconds; Mooncake's default is 30 min."""
    if config is None or not (config.with_hard_pin or config.with_soft_pin):
        return retention_of()
    if config.with_hard_pin:
        return retention_of(hard_pin=True)
    ttl_ms = config.soft_pin_ttl_ms or SOFT_PIN_TTL_MS
    return retention_of(soft_pin_ttl=min(max(1, -(-ttl_ms // 1000)), MAX_RETENTION_S))


def preferred_ranks(config: ReplicateConfig | None) -> list[str]:
    """The ranks that a put asks for, the first replica's first; other names count for nothing."""
    if config is None:
        return []
    named = [config.preferred_segment, *config.preferred_segments]
    ranks = [name for name in named if name.isdecimal() and name.isascii()]
    return ranks[: max(1, min(config.replica_num, MAX_REPLICAS))]


def byte_size(value: Any) -> int | None:
    """A size: a number, or text such as "16MB" or "1024"; None if it is neither."""
    text = str(value).strip().lower().removesuffix("b").rstrip()
    factor = {"k": 10, "m": 20, "g": 30, "t": 40}.get(text[-1:])
    number = text[:-1].rstrip() if factor is not None else text
    try:
        return int(float(number) * (1 << (factor or 0)))
    except (ValueError, OverflowError):
        return None
