"""Arrays and tensors as bytes, and back.

An object that was put from an array ends with a trailer: its shape, the name of its type, and from
which library it came. So :meth:`NanoKVCache.get` returns what was put. An object without a trailer
is plain bytes, such as one that a kernel or a Rust program wrote.

The trailer, little endian: one u64 for each dimension; then 32 bytes: the magic ``NKVARRAY``,
version (1), library (0 none, 1 NumPy, 2 torch), number of dimensions, 0, name of the type (12
bytes, padded with zeros), and an 8-byte BLAKE2b digest of the number of payload bytes (u64) and all
before it. ``NanoKVCache.put`` gives plain bytes that end like a trailer one that says
so. Other writers do not: what they write and ends like a trailer is taken for an array.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import struct
import sys
from typing import Any, Literal, NamedTuple

from . import _nkv
from .errors import InvalidArgument

_MAGIC = b"NKVARRAY"
_FIXED = struct.Struct("<8sBBBx12s")
_DIGEST_BYTES = 8
_FIXED_BYTES = _FIXED.size + _DIGEST_BYTES
_VERSION = 1
#: Most dimensions of an array.
MAX_DIMENSIONS = 64
#: Longest dimension: more elements than any memory has.
MAX_DIM = 1 << 56
#: Bytes of the longest trailer.
MAX_TRAILER_BYTES = 8 * MAX_DIMENSIONS + _FIXED_BYTES

_PLAIN, _NUMPY, _TORCH = range(3)

#: Bytes of an element by the name of its type: NumPy's names, and those that only torch has.
_ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "f8_e4m3fn": 1,
    "f8_e5m2": 1,
    "f8_e4m3fnuz": 1,
    "f8_e5m2fnuz": 1,
    "f8_e8m0fnu": 1,
}
_LONG_NAMES = {name: name.replace("f8_", "float8_") for name in _ITEM_BYTES if name[:3] == "f8_"}
_SHORT_NAMES = {long: short for short, long in _LONG_NAMES.items()}


class Shape(NamedTuple):
    """What a trailer says."""

    library: int
    dtype: str
    dims: tuple[int, ...]


class Source(NamedTuple):
    """Bytes to be put: either an object with the buffer protocol, or an address and a size."""

    buffer: Any
    address: int
    size: int
    trailer: bytes
    #: Keeps the memory alive.
    owner: Any
    #: The memory, if it is in a GPU.
    tensor: Any = None


def long_name(dtype: str) -> str:
    """The name that torch and NumPy have for a type."""
    return _LONG_NAMES.get(dtype, dtype)


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a type."""
    return _ITEM_BYTES[dtype]


def typestr(dtype: str) -> str | None:
    """The type as array protocols name it; None if they cannot."""
    kinds = {"bool": "b", "int": "i", "uint": "u", "float": "f", "complex": "c"}
    kind = kinds.get(dtype.rstrip("0123456789"))
    item = _ITEM_BYTES[dtype]
    return f"{'|' if item == 1 else '<'}{kind}{item}" if kind else None


def library_of(shape: Shape) -> Literal["bytes", "numpy", "torch"]:
    """The library that a value came from."""
    libraries: tuple[Literal["bytes"], Literal["numpy"], Literal["torch"]]
    libraries = ("bytes", "numpy", "torch")
    return libraries[shape.library]


def plain(size: int) -> Shape:
    """The shape of bytes without one."""
    return Shape(_PLAIN, "uint8", (size,))


def _digest(described: bytes, payload_bytes: int) -> bytes:
    digest = hashlib.blake2b(struct.pack("<Q", payload_bytes), digest_size=_DIGEST_BYTES)
    digest.update(described)
    return digest.digest()


def trailer(shape: Shape, payload_bytes: int) -> bytes:
    """The trailer of an object with so many bytes before it."""
    if len(shape.dims) > MAX_DIMENSIONS:
        raise InvalidArgument(f"an array of {len(shape.dims)} dimensions: {MAX_DIMENSIONS} at most")
    name = shape.dtype.encode()
    fixed = _FIXED.pack(_MAGIC, _VERSION, shape.library, len(shape.dims), name)
    described = struct.pack(f"<{len(shape.dims)}Q", *shape.dims) + fixed
    return described + _digest(described, payload_bytes)


def parse(tail: bytes | memoryview, total: int) -> tuple[Shape, int] | None:
    """What the last bytes of an object of ``total`` bytes say: the shape, and the trailer's length.

    None if it has no trailer.
    """
    tail = bytes(tail[-MAX_TRAILER_BYTES:])
    if len(tail) < _FIXED_BYTES:
        return None
    magic, version, library, n, name = _FIXED.unpack_from(tail, len(tail) - _FIXED_BYTES)
    length = _FIXED_BYTES + 8 * n
    if magic != _MAGIC or version != _VERSION or n > MAX_DIMENSIONS or len(tail) < length:
        return None
    whole = tail[len(tail) - length :]
    described, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
    payload = total - length
    if payload < 0 or digest != _digest(described, payload):
        return None
    dtype = name.rstrip(b"\0").decode("ascii", "replace")
    dims = struct.unpack_from(f"<{n}Q", described)
    item = _ITEM_BYTES.get(dtype)
    sizes = all(dim <= MAX_DIM for dim in dims)
    if library > _TORCH or item is None or not sizes or math.prod(dims) * item != payload:
        return None
    return Shape(library, dtype, dims), length


def _plain_trailer(data: bytes | memoryview) -> bytes:
    """Marks plain bytes that end like a trailer as plain."""
    at = len(data) - _FIXED_BYTES
    if at < 0 or data[at : at + len(_MAGIC)] != _MAGIC:
        return b""
    if parse(data[-MAX_TRAILER_BYTES:], len(data)) is None:
        return b""
    return trailer(plain(len(data)), len(data))


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _torch_source(tensor: Any, dst: bool) -> Source:
    what = "dst" if dst else "the tensor"
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(
            f"{what} is on {tensor.device}: memory of the host and of NVIDIA's GPUs can be moved; "
            "use .cpu()"
        )
    if tensor.layout != sys.modules["torch"].strided or not tensor.is_contiguous():
        raise InvalidArgument(
            f"{what} of shape {tuple(tensor.shape)} is not contiguous"
            + ("" if dst else ": use .contiguous()")
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            f"{what} is a lazy conjugate or negative: use .resolve_conj() or .resolve_neg()"
        )
    long = str(tensor.dtype).removeprefix("torch.")
    dtype = _SHORT_NAMES.get(long, long)
    if dtype not in _ITEM_BYTES:
        raise InvalidArgument(f"{what} is of {tensor.dtype}, which cannot be stored")
    size = tensor.numel() * tensor.element_size()
    shape = Shape(_TORCH, dtype, tuple(tensor.shape))
    described = trailer(shape, size)
    if tensor.device.type == "cuda" and size:
        from . import cuda  # noqa: PLC0415 - only who has tensors in a GPU needs it

        return Source(None, 0, size, described, tensor, cuda.torch_place(tensor, size))
    return Source(None, tensor.data_ptr() if size else 0, size, described, tensor)


def _type_of(value: Any, code: str, what: str) -> str:
    """The name of an array's type."""
    # Types of ml_dtypes, such as bfloat16, say "void" to the protocol and their name to NumPy.
    named = str(getattr(value, "dtype", ""))
    short = _SHORT_NAMES.get(named, named)
    if short in _ITEM_BYTES and code[:1] != ">":
        return short
    kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
    name, item = kinds.get(code[1:2], ""), code[2:]
    dtype = name if name == "bool" or not item.isdecimal() else f"{name}{8 * int(item)}"
    if dtype not in _ITEM_BYTES or code[:1] == ">":
        raise InvalidArgument(
            f"{what} is of {named or code}, which cannot be stored with its type: give its bytes, "
            "such as array.view('u1')"
        )
    return dtype


def _array_source(
    value: Any, interface: dict[str, Any], dst: bool, typed: bool, cuda: bool = False
) -> Source:
    what = "dst" if dst else "the array"
    shape, code = tuple(interface["shape"]), str(interface["typestr"])
    dtype = _type_of(value, code, what) if typed else "uint8"
    if cuda and typed and dtype not in ("bool", "uint8") and code[2:] == "1":
        # Bytes of a type that the protocol lacks, with one dimension more.
        shape, code = shape[:-1], f"<V{_ITEM_BYTES[dtype]}"
    item = _ITEM_BYTES[dtype] if typed else int(code[2:] if cuda else value.itemsize)
    dense = True
    if interface.get("strides") is not None:
        step = item
        for dim, stride in zip(reversed(shape), reversed(interface["strides"]), strict=True):
            dense = dense and (stride == step or dim <= 1)
            step *= dim
    size = math.prod(shape) * item
    if not dense and size > 0:
        raise InvalidArgument(
            f"{what} of shape {shape} is not contiguous"
            + ("" if dst else f": use {'cupy' if cuda else 'numpy'}.ascontiguousarray")
        )
    address, readonly = interface["data"]
    if dst and readonly:
        raise InvalidArgument("dst is read-only")
    described = trailer(Shape(_NUMPY, dtype, shape), size) if typed else b""
    if cuda and size:
        from . import cuda as gpu  # noqa: PLC0415 - only who has arrays in a GPU needs it

        place = gpu.interface_place(interface, size)
        return Source(None, 0, size, described, (value, interface), place)
    # The dictionary too: it may be all that keeps the memory.
    return Source(None, address if size else 0, size, described, (value, interface))


def source(value: Any, *, dst: bool = False, typed: bool = True) -> Source:
    """The memory of a value, in place.

    Args:
        value: bytes and the like, a memoryview, a NumPy array, a torch tensor of the host or of a
            GPU, or anything with the buffer protocol, ``__array_interface__``,
            ``__cuda_array_interface__`` or DLPack. It must be contiguous.
        dst: whether it will be written.
        typed: whether shape and type of an array are stored with it.
    """
    if isinstance(value, bytes) and not dst:
        return Source(value, 0, len(value), _plain_trailer(value) if typed else b"", value)
    if _is_torch(value):
        return _torch_source(value, dst)
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        return _array_source(value, interface, dst, typed, cuda=True)
    interface = getattr(value, "__array_interface__", None)
    if isinstance(interface, dict):
        import numpy  # noqa: PLC0415 - nkv works without it

        if not isinstance(value, numpy.ndarray):
            # Scalars and foreign objects: NumPy knows every form that the protocol allows.
            if dst:
                raise TypeError(f"dst is a {type(value).__name__}: give a NumPy array")
            value = numpy.asarray(value)
            interface = value.__array_interface__
        if isinstance(value, numpy.ma.MaskedArray):
            raise InvalidArgument("a masked array: store array.data and array.mask, each alone")
        return _array_source(value, interface, dst, typed)
    try:
        data = memoryview(value)
    except TypeError:
        return _dlpack_source(value, dst, typed)
    if not data.c_contiguous:
        raise InvalidArgument("the memoryview is not contiguous")
    if dst and data.readonly:
        raise InvalidArgument("dst is read-only")
    flat = data.cast("B") if data.nbytes else memoryview(b"")
    plain = b"" if dst or not typed else _plain_trailer(flat)
    return Source(data, 0, data.nbytes, plain, data)


def address_of(place: Source) -> int:
    """Where a writable place begins."""
    if place.buffer is None:
        return place.address
    return ctypes.addressof(ctypes.c_char.from_buffer(place.buffer))


def _dlpack_source(value: Any, dst: bool, typed: bool) -> Source:
    if not hasattr(value, "__dlpack__"):
        raise TypeError(
            f"{type(value).__name__} has no bytes that can be read in place: give bytes, a NumPy "
            "array, a tensor, or anything with the buffer protocol, DLPack or __array_interface__"
        )
    import numpy  # noqa: PLC0415 - only who gives a DLPack object needs it

    try:
        array = numpy.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InvalidArgument(f"the DLPack object cannot be read by the CPU: {error}") from error
    return _array_source(array, array.__array_interface__, dst, typed)


def name_of_type(dtype: Any) -> str:
    """The name of a type that is given as a text, or by torch or NumPy."""
    named = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    if isinstance(dtype, type):
        named = dtype.__name__
    short = _SHORT_NAMES.get(named, named)
    if short not in _ITEM_BYTES:
        raise InvalidArgument(f"type {dtype!r}: known are {', '.join(_ITEM_BYTES)}")
    return short


def of_torch(dtype: str, dims: tuple[int, ...]) -> tuple[Shape, int]:
    """The shape of a tensor, and its bytes."""
    return Shape(_TORCH, dtype, dims), math.prod(dims) * _ITEM_BYTES[dtype]


def memory(owner: _nkv.Bytes | _nkv.View | _nkv.Slot, *, readonly: bool) -> memoryview:
    """A memoryview of memory of nkv, which keeps it alive."""
    if len(owner) == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * len(owner)).from_address(owner.address)
    array._owner = owner  # type: ignore[attr-defined]
    view = memoryview(array).cast("B")
    return view.toreadonly() if readonly else view


def in_place(data: memoryview, shape: Shape, library: str) -> Any:
    """An array or a tensor of bytes where they lie."""
    if library == "torch":
        return _tensor(data, shape)
    return _array(data, shape, strict=True)


def restored(owner: _nkv.Bytes | _nkv.View, *, readonly: bool, library: str | None) -> Any:
    """The value that was put: a tensor, an array, or bytes as a memoryview.

    Args:
        owner: its bytes.
        readonly: whether nobody may write to them.
        library: "torch", "numpy" or "bytes" to have it as such, whatever was put.
    """
    whole = memory(owner, readonly=readonly)
    found = parse(whole[-MAX_TRAILER_BYTES:], len(whole))
    if found is None:
        shape, data = plain(len(whole)), whole
    else:
        shape, data = found[0], whole[: len(whole) - found[1]]
    wanted = library or library_of(shape)
    if wanted == "torch" and (library or "torch" in sys.modules):
        return _tensor(data, shape)
    if wanted in ("numpy", "torch"):
        return _array(data, shape, strict=library is not None)
    if wanted == "bytes":
        return data
    raise InvalidArgument(f'library {library!r}: "torch", "numpy" or "bytes" is expected')


def _tensor(data: memoryview, shape: Shape) -> Any:
    import torch  # noqa: PLC0415 - only who asks for tensors needs it

    dtype = getattr(torch, long_name(shape.dtype))
    if len(data) == 0:
        return torch.empty(shape.dims, dtype=dtype)
    # Of a view torch warns that it could be written: nobody may.
    return torch.frombuffer(data, dtype=dtype).reshape(shape.dims)


def _array(data: memoryview, shape: Shape, *, strict: bool) -> Any:
    try:
        import numpy  # noqa: PLC0415 - nkv works without it
    except ImportError:
        if strict:
            raise
        return data
    try:
        dtype = numpy.dtype(long_name(shape.dtype))
    except TypeError as error:
        raise InvalidArgument(
            f'NumPy has no type {shape.dtype}: get the value with library="torch" or "bytes", '
            "a slot with tensor()"
        ) from error
    return numpy.frombuffer(data, dtype=dtype).reshape(shape.dims)
