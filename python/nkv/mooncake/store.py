"""The store, of its parts."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from . import tensor_bytes
from .objects import Objects
from .part_reads import PartReads
from .ranges import Ranges
from .segments import Segments
from .tensors import elements_of, tensor_of


class MooncakeDistributedStore(Ranges, Objects, Segments, PartReads):
    """See the package's description."""


def tensor_metadata_size() -> int:
    """Bytes of the header of a tensor object."""
    return tensor_bytes.HEADER_BYTES


def serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Header, address, bytes and owner of a tensor's elements. InvalidArgument if it is none."""
    found = elements_of(tensor)
    if found is None:
        raise InvalidArgument("unsupported tensor for Mooncake tensor serialization")
    return found.header.packed(), found.address, found.header.data_bytes, found.owner


def deserialize_tensor(data: bytes) -> Any:
    """The tensor of a tensor object. InvalidArgument if it is none."""
    header = tensor_bytes.parse(data, len(data))
    if header is None:
        raise InvalidArgument("invalid serialized Mooncake tensor payload")
    return tensor_of(bytearray(data), header)
