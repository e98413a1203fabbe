"""The bytes of Mooncake's tensor objects: a header of 304 bytes, then the elements in C order.

Little endian. 40 bytes: magic ``NOOM``, version (1), bytes of the header, type, number of
dimensions, kind (0 whole, 1 a part), 0, where the elements begin, their bytes. Then 8 dimensions of
the whole tensor and 8 of what is stored here (8 bytes each, -1 where there is none); the number of
axes; four axes of 32 bytes: kind (0 dp, 1 tp, 2 ep, 3 pp), position, rank, size, split dimension or
-1, expert or stage, length along the split dimension.

A manifest, of 96 bytes, says how the parts of a tensor were cut.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEADER_BYTES = 304
MAX_DIMENSIONS = 8
MAX_AXES = 4
#: Most parts of a tensor, and the end of ranks, sizes and numbers of axes.
MAX_PARTS = 1 << 20
END = 1 << 31
#: Types by number: torch's names, and bytes of an element.
DTYPES = (
    ("float32", 4),
    ("float64", 8),
    ("int8", 1),
    ("uint8", 1),
    ("int16", 2),
    ("uint16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("bool", 1),
    ("float16", 2),
    ("bfloat16", 2),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
)
NUMBERS = {name: number for number, (name, _) in enumerate(DTYPES)}
AXIS_KINDS = ("dp", "tp", "ep", "pp")

_FIXED = struct.Struct("<4sHHiiIIQQ")
_DIMS = struct.Struct("<8q")
_AXES = struct.Struct("<II")
_AXIS = struct.Struct("<6iq")
_MAGIC, _VERSION = b"NOOM", 1
_MANIFEST = struct.Struct("<4sHHiiiiii8q")
_MANIFEST_MAGIC = b"NAMW"

Shape = tuple[int, ...]


class Axis(NamedTuple):
    """One axis along which a tensor is spread; ``number`` is the expert's or the stage's."""

    kind: str
    rank: int
    size: int
    split_dim: int | None
    number: int


class Header(NamedTuple):
    """What a header says: ``whole`` and ``local`` are shapes; no axes means a whole tensor."""

    dtype: int
    whole: Shape
    local: Shape
    axes: tuple[Axis, ...] = ()

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype][1]

    @property
    def data_bytes(self) -> int:
        """Bytes of the elements that are stored here."""
        return math.prod(self.local) * self.item_bytes

    def tp(self) -> Axis | None:
        """The axis along which the tensor is cut."""
        return next((axis for axis in self.axes if axis.kind == "tp"), None)

    def packed(self) -> bytes:
        """The header's 304 bytes."""
        parts = [
            _FIXED.pack(
                _MAGIC,
                _VERSION,
                HEADER_BYTES,
                self.dtype,
                len(self.local),
                int(bool(self.axes)),
                0,
                HEADER_BYTES,
                self.data_bytes,
            ),
            _packed_dims(self.whole),
            _packed_dims(self.local),
            _AXES.pack(len(self.axes), 0),
        ]
        for at, (kind, rank, size, split_dim, number) in enumerate(self.axes):
            split, length = (-1, 0) if split_dim is None else (split_dim, self.local[split_dim])
            parts.append(_AXIS.pack(AXIS_KINDS.index(kind), at, rank, size, split, number, length))
        return b"".join(parts).ljust(HEADER_BYTES, b"\0")


def _packed_dims(dims: Shape) -> bytes:
    return _DIMS.pack(*dims, *[-1] * (MAX_DIMENSIONS - len(dims)))


def parse(data: bytes, total: int) -> Header | None:
    """The header of an object of ``total`` bytes, which begins with ``data``; None if it has none.

    What the header says must fit the object exactly.
    """
    if len(data) < HEADER_BYTES or total < HEADER_BYTES:
        return None
    fixed = _FIXED.unpack_from(data)
    magic, version, length, dtype, n, part, _, offset, data_bytes = fixed
    known = (magic, version, length, offset) == (_MAGIC, _VERSION, HEADER_BYTES, HEADER_BYTES)
    if not known or not 0 <= dtype < len(DTYPES) or not 0 <= n <= MAX_DIMENSIONS:
        return None
    at = _FIXED.size
    whole, local = (_DIMS.unpack_from(data, at + 64 * i)[:n] for i in range(2))
    count, _ = _AXES.unpack_from(data, at + 128)
    if count > MAX_AXES or part != int(count > 0) or min((0, *whole, *local)) < 0:
        return None
    axes = []
    for i in range(count):
        axis = _AXIS.unpack_from(data, at + 136 + _AXIS.size * i)
        kind, _, rank, size, split, number, _ = axis
        if not 0 <= kind < len(AXIS_KINDS) or not 0 <= rank < size or not -1 <= split < n:
            return None
        axes.append(Axis(AXIS_KINDS[kind], rank, size, None if split < 0 else split, number))
    header = Header(dtype, whole, local, tuple(axes))
    fits = header.data_bytes == data_bytes and HEADER_BYTES + data_bytes == total
    return header if fits else None


def parse_at(address: int, total: int) -> Header | None:
    """The same for an object at an address."""
    return parse(ctypes.string_at(address, HEADER_BYTES), total) if total >= HEADER_BYTES else None


def part_of(whole: Header, axes: Sequence[Axis]) -> Header | None:
    """The header of one part of a whole tensor; None if it cannot be cut so into equal parts."""
    tp = next((axis for axis in axes if axis.kind == "tp"), None)
    if tp is None or tp.split_dim is None or whole.local != whole.whole:
        return None
    dim = tp.split_dim
    if not 0 <= dim < len(whole.whole) or not 1 <= tp.size <= MAX_PARTS:
        return None
    if whole.whole[dim] % tp.size:
        return None
    local = list(whole.whole)
    local[dim] //= tp.size
    return Header(whole.dtype, whole.whole, tuple(local), tuple(axes))


def rows(part: Header) -> Iterator[tuple[int, int]]:
    """Where a part's bytes lie among those of the whole: offsets and lengths, in order."""
    tp = part.tp()
    assert tp is not None and tp.split_dim is not None
    for at, _, length in overlaps(part, part.whole, tp.split_dim, 0, part.whole[tp.split_dim]):
        yield at, length


def overlaps(
    part: Header, whole: Shape, dim: int, start: int, extent: int
) -> Iterator[tuple[int, int, int]]:
    """What a part has of a slab of the whole tensor: ``extent`` from ``start`` along ``dim``.

    Yields an offset in the slab, one in the part, and a length, in bytes.
    """
    tp = part.tp()
    assert tp is not None
    own = part.local[dim]
    first, last = max(start, tp.rank * own), min(start + extent, (tp.rank + 1) * own)
    inner = math.prod(whole[dim + 1 :]) * part.item_bytes
    length = (last - first) * inner
    if length <= 0:
        return
    for outer in range(math.prod(whole[:dim])):
        into = (outer * extent + first - start) * inner
        yield into, (outer * own + first - tp.rank * own) * inner, length


class Manifest(NamedTuple):
    """How a tensor was cut: into ``parts`` equal parts along ``split_dim``."""

    dtype: int
    whole: Shape
    split_dim: int
    parts: int

    def packed(self) -> bytes:
        """The manifest's bytes."""
        dims = (*self.whole, *[-1] * (MAX_DIMENSIONS - len(self.whole)))
        n = len(self.whole)
        fixed = (_MANIFEST_MAGIC, _VERSION, _MANIFEST.size, self.dtype, n, self.split_dim)
        return _MANIFEST.pack(*fixed, self.parts, 0, 0, *dims)


def parse_manifest(data: bytes) -> Manifest | None:
    """What a manifest says; None if it is none."""
    if len(data) < _MANIFEST.size:
        return None
    magic, version, length, dtype, n, split, count, _, _, *dims = _MANIFEST.unpack_from(data)
    if (magic, version, length) != (_MANIFEST_MAGIC, _VERSION, _MANIFEST.size):
        return None
    if not 0 <= split < n <= MAX_DIMENSIONS or count < 1 or not 0 <= dtype < len(DTYPES):
        return None
    return Manifest(dtype, tuple(dims[:n]), split, count) if min(dims[:n]) > 0 else None
