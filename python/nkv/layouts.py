"""What calls take and return: locations, plans, listed keys, and the memory of arguments."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from . import _nkv, arrays
from .errors import Error, InvalidArgument, NotFound, of_kind

Key = str | bytes
Library = Literal["torch", "numpy", "bytes"]

#: Bytes per page unless a cache or a put names others.
DEFAULT_PAGE_BYTES = 256 * 1024


@dataclass(frozen=True)
class ObjMeta:
    """Where a readable object lies. Offsets are bytes from the start of its owner's segment.

    ``tier`` is "memory", or "disk" for what only the SSD of that rank has: then offsets, page size,
    pages and epoch are 0, and a read brings the object back into memory first.
    """

    key_hash: int
    owner_rank: int
    header_off: int
    payload_off: int
    bytes_total: int
    page_bytes: int
    n_pages: int
    epoch: int
    tier: str = "memory"


@dataclass(frozen=True)
class WritePlan:
    """Permission to write one object into the memory of ``dst_rank``.

    A kernel writes pages from ``payload_base`` on and then READY, and the commit follows by itself;
    keep the plan until the kernel has ended. A host program calls ``write`` or ``write_page``, then
    ``commit`` of the cache, or of the plan. A plan that is dropped is aborted, unless it is READY.
    """

    key_hash: int
    dst_rank: int
    page_bytes: int
    n_pages: int
    bytes_total: int
    epoch: int
    _header_off: int = field(repr=False)
    _payload_base: int = field(repr=False)
    _plan: _nkv.Plan = field(repr=False, compare=False)

    @property
    def header_off(self) -> int:
        """Offset of the header. Who asks for it may let kernels write: the plan is held for them.

        Then header and WRITING are written, and the plan ends by ``commit``, ``abort``, or with its
        last reference, and not at its deadline. Once a kernel has set READY it is committed.
        """
        self._plan.hold_for_kernels()
        return self._header_off

    @property
    def payload_base(self) -> int:
        """Offset of page 0. As :attr:`header_off`."""
        self._plan.hold_for_kernels()
        return self._payload_base

    @property
    def header_ptr(self) -> int:
        """Address of the header in this process, for kernels. The plan is held as above.

        It is one in the segment that the plan is for. ``device_ptr`` and ``heap_bases`` of the
        cache know the rank's present segment, which is another one if the rank has started again.
        Disconnected if the plan's segment is gone, Unsupported if this process does not map it.
        """
        self._plan.hold_for_kernels()
        return self._plan.addresses()[0]

    @property
    def payload_ptr(self) -> int:
        """Address of page 0 in this process. As :attr:`header_ptr`."""
        self._plan.hold_for_kernels()
        return self._plan.addresses()[1]

    def write_page(self, index: int, data: Any) -> None:
        """Writes one page of ``page_bytes``; the last may be shorter. Any order, any thread."""
        source = arrays.source(data, typed=False)
        self._plan.write_page(index, given(source))

    def write(self, offset: int, data: Any) -> None:
        """Writes bytes at an offset of the object."""
        source = arrays.source(data, typed=False)
        self._plan.write_at(offset, given(source))

    def commit(self) -> None:
        """Makes the object readable. InvalidArgument if bytes are missing: the plan stays open."""
        self._plan.publish()

    def abort(self) -> None:
        """Gives the object up; does nothing if the plan is finished."""
        self._plan.abort()


class Registration:
    """Memory that RDMA devices know, until this is dropped or closed."""

    def __init__(self, cache: _nkv.Cache, memory: Any) -> None:
        # The memory must outlive what is registered.
        source = None if isinstance(memory, tuple) else arrays.source(memory, dst=True)
        self._memory = source
        place = memory if source is None else given(source)
        self._registered: _nkv.Registered | None = cache.register(place)

    def close(self) -> None:
        """Ends it; the memory may be freed then."""
        self._registered = None
        self._memory = None


@dataclass(frozen=True)
class ListedKey:
    """A key of a listing.

    ``state`` is "ready", "writing" (by a plan), "removing" or "unreachable" (its rank is away).
    """

    key: bytes
    bytes_total: int
    rank: int
    state: str


class Removed(NamedTuple):
    """What a removal by pattern, or of all keys, removed.

    An object that was in memory and on a disk counts as both.
    """

    in_memory: int
    on_disk: int

    def __bool__(self) -> bool:
        """Whether there was anything to remove."""
        return self.in_memory + self.on_disk > 0


#: Replicas of an object, at most.
MAX_REPLICAS = 8


def replicas_of(replicas: int) -> int:
    """Checks a number of replicas."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise InvalidArgument(f"{replicas} replicas: 1 to {MAX_REPLICAS}")
    return replicas


#: Stripes of an object, at most.
MAX_STRIPES = 64

#: A rank, a kind of memory ("host", "device", of a GPU, or "disk"), or both: "3:device".
Place = int | str


def places_of(preferred: Place | Sequence[Place] | None) -> list[str]:
    """Where the replicas of a put should go, as the native part takes them."""
    if preferred is None:
        return []
    listed = [preferred] if isinstance(preferred, (int, str)) else list(preferred)
    texts = [str(place) for place in listed]
    disks = sum(text.endswith("disk") for text in texts)
    for what, n in ("replicas", len(texts) - disks), ("disks", disks):
        if n > MAX_REPLICAS:
            raise InvalidArgument(f"{n} {what}: at most {MAX_REPLICAS}")
    return texts


def disks_of(disks: int | Iterable[int]) -> list[int | None]:
    """The rank of each disk, as the native part takes them: so many of any, or those of ranks."""
    ranks: list[int | None]
    ranks = [None] * min(disks, MAX_REPLICAS + 1) if isinstance(disks, int) else list(disks)
    if not 1 <= len(ranks) <= MAX_REPLICAS:
        raise InvalidArgument(f"{len(ranks)} disks: 1 to {MAX_REPLICAS}")
    return ranks


def stripes_of(stripes: int) -> int:
    """Checks a number of stripes."""
    if not 1 <= stripes <= MAX_STRIPES:
        raise InvalidArgument(f"{stripes} stripes: 1 to {MAX_STRIPES}")
    return stripes


#: The longest time of a retention, in seconds.
MAX_RETENTION_S = (1 << 24) - 1


def retention_of(
    evict_first: bool = False,
    soft_pin_ttl: float | None = None,
    hard_pin: bool = False,
    ttl_after_first_get: float | None = None,
) -> str:
    """What a put asks of the evictor, as the native part takes it: one of these, or nothing."""
    times = {"soft_pin_ttl": soft_pin_ttl, "ttl_after_first_get": ttl_after_first_get}
    given_times = {name: ttl for name, ttl in times.items() if ttl is not None}
    if evict_first + hard_pin + len(given_times) > 1:
        names = "evict_first, soft_pin_ttl, hard_pin and ttl_after_first_get"
        raise InvalidArgument(f"{names} exclude each other")
    for name, ttl in given_times.items():
        if not 1 <= ttl <= MAX_RETENTION_S:
            raise InvalidArgument(f"{name} {ttl}: 1 to {MAX_RETENTION_S} seconds")
        return f"{'soft-pin' if name == 'soft_pin_ttl' else 'until-read'}:{math.ceil(ttl)}"
    return "evict-first" if evict_first else "hard-pin" if hard_pin else "usual"


def group_of(group: Key | None) -> Key | None:
    """Checks the name of a group."""
    if group is not None and not isinstance(group, (str, bytes)):
        raise TypeError(f"group: a str or bytes is expected, not {type(group).__name__}")
    return group


def groups_of(group: Key | Sequence[Key | None] | None) -> Key | list[Key | None] | None:
    """One group, or one for each item."""
    if group is None or isinstance(group, (str, bytes)):
        return group
    return [group_of(name) for name in group]


def given(source: arrays.Source) -> Any:
    """What the native part takes: a buffer, an address and a size, or memory of a GPU."""
    if source.tensor is not None:
        return source.tensor
    return source.buffer if source.buffer is not None else (source.address, source.size)


def listed(keys: Iterable[Key]) -> list[Key]:
    """The keys of a batch; one key alone is an error, not a list of letters."""
    if isinstance(keys, (str, bytes)):
        raise InvalidArgument(f"keys is one key, {keys!r}: give a list of keys")
    return list(keys)


def or_none(
    results: Iterable[Any], value: Callable[[Any], Any], return_errors: bool = False
) -> list[Any]:
    """The values of a batch of reads; None for each key that is not there. Other errors raise."""
    values: list[Any] = []
    for found in results:
        if isinstance(found, NotFound):
            values.append(None)
        elif isinstance(found, BaseException) and return_errors:
            values.append(found)
        elif isinstance(found, BaseException):
            raise found
        else:
            values.append(value(found))
    return values


def fails(if_exists: str) -> bool:
    if if_exists not in ("keep", "fail"):
        raise InvalidArgument(f'if_exists {if_exists!r}: "keep" or "fail" is expected')
    return if_exists == "fail"


def check_fit(key: Key, place: arrays.Source, total: int, tail: bytearray) -> None:
    """Checks that an object has the size, and the type, of the place it was read into."""
    after = total - place.size
    # The object's last bytes: what follows the place, or its end.
    end = bytes(tail[:after]) if after > 0 else b""
    if after == 0 and total:
        keep = min(total, arrays.MAX_TRAILER_BYTES)
        if place.tensor is None:
            end = ctypes.string_at(arrays.address_of(place) + total - keep, keep)
        else:
            end = bytes(place.tensor.read(total - keep, keep))
    found = arrays.parse(end, total) if after >= 0 else None
    if after == 0 and found is None:
        return
    if found is None or found[1] != after:
        stored = total - (found[1] if found else 0)
        raise of_dst(key, f"{place.size} bytes, the value of {key!r} has {stored}")
    wanted = arrays.parse(place.trailer, place.size + len(place.trailer)) if place.trailer else None
    if wanted is not None and wanted[0].dtype not in (found[0].dtype, "uint8"):
        raise of_dst(key, f"type {wanted[0].dtype}, the value of {key!r} {found[0].dtype}")


def of_dst(key: Key, has: str) -> Error:
    """The error of a place that does not fit the value of a key."""
    name = key.encode() if isinstance(key, str) else key
    return of_kind("InvalidArgument", f"dst has {has}", name, None)
