"""Arrays in a GPU: tensors of torch, and whatever has ``__cuda_array_interface__``.

What CUDA calls a stream is honoured: a copy waits for what is in the stream of its array, and is
complete when the call returns.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from . import _nkv, arrays
from .errors import InvalidArgument
from .layouts import Key, Library, given

#: The legacy default stream, which waits for all streams that are not non-blocking.
_LEGACY_STREAM = 1
#: How often a value is looked for again that was replaced while it was read.
_TRIES = 3


class DeviceArray:
    """Bytes of an object in a GPU, by ``__cuda_array_interface__``: for CuPy, Numba and torch.

    Its memory stays as it is while this lives. Nobody may write to it. Kernels that are queued do
    not keep it: wait for them before the last reference goes.
    """

    def __init__(self, owner: _nkv.ViewInDevice, size: int, shape: arrays.Shape | None) -> None:
        self._owner = owner
        self.nbytes = size
        self.dtype = shape.dtype if shape else "uint8"
        self.shape = shape.dims if shape else (size,)
        code = arrays.typestr(self.dtype)
        #: Types that only torch knows are given as bytes, with one more dimension.
        item = arrays.item_bytes(self.dtype)
        self.__cuda_array_interface__ = {
            "shape": self.shape if code else (*self.shape, item),
            "typestr": code or "|u1",
            "data": (owner.address if size else 0, True),
            "version": 3,
            # Whoever reads it need not wait for anything.
            "stream": None,
        }

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def address(self) -> int:
        """Its address, for kernels."""
        return self._owner.address


def place(address: int, size: int, stream: int | None) -> Any:
    """Memory of a GPU as the native part takes it; None if there is none of it."""
    return _nkv.Tensor([(address, size)], stream) if size else None


def torch_place(tensor: Any, size: int) -> Any:
    """The memory of a tensor, in the order of torch's current stream of its device."""
    torch = sys.modules["torch"]
    stream = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    return place(int(tensor.data_ptr()), size, stream or _LEGACY_STREAM)


def interface_place(interface: dict[str, Any], size: int) -> Any:
    """The memory that the protocol describes."""
    stream = interface.get("stream", _LEGACY_STREAM if interface.get("version", 0) < 3 else None)
    if stream == 0:
        raise InvalidArgument("a stream of 0 in __cuda_array_interface__: the protocol forbids it")
    return place(int(interface["data"][0]), size, stream)


def tail(of: Any, size: int) -> bytes:
    """The last bytes of memory in a GPU, which may be an object's trailer."""
    keep = min(size, arrays.MAX_TRAILER_BYTES)
    return bytes(of.read(size - keep, keep)) if keep else b""


def viewed(view: _nkv.ViewInDevice, library: Library | None) -> Any:
    """An object in place: a tensor of torch if it was put as one, else a :class:`DeviceArray`."""
    size = len(view)
    found = arrays.parse(tail(place(view.address, size, None), size), size)
    shape, payload = (None, size) if found is None else (found[0], size - found[1])
    wanted = library or (arrays.library_of(shape) if shape else "bytes")
    if wanted == "bytes":
        shape = None
    array = DeviceArray(view, payload, shape)
    if wanted == "torch" and (library or "torch" in sys.modules):
        import torch  # noqa: PLC0415 - only who asks for tensors needs it

        device = f"cuda:{_nkv.device_of(view.address)}" if size else "cuda"
        described = shape or arrays.plain(payload)
        if not payload:
            return _typed(torch.empty(0, dtype=torch.uint8, device=device), described)
        return _typed(torch.as_tensor(_Writable(view, payload), device=device), described)
    return array


class _Writable:
    """Bytes that say that they may be written: torch refuses others."""

    def __init__(self, owner: _nkv.ViewInDevice, size: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (owner.address, False),
            "version": 3,
            "stream": None,
        }


def fetched(native: _nkv.Cache, key: Key, device: Any, library: Library | None) -> Any:
    """A value as a tensor of torch on a device."""
    import torch  # noqa: PLC0415 - only who asks for tensors needs it

    if library not in (None, "torch", "bytes"):
        raise InvalidArgument(f"library {library!r}: values on {device} are tensors of torch")
    for turn in range(_TRIES):
        size = native.size(key)
        room = torch.empty(size, dtype=torch.uint8, device=device)
        into = arrays.source(room, dst=True, typed=False)
        try:
            total = native.get_into(key, [given(into)])
        except InvalidArgument:
            # Removed meanwhile, and a larger one was put.
            if turn == _TRIES - 1:
                raise
            continue
        whole = room[:total]
        keep = min(total, arrays.MAX_TRAILER_BYTES)
        found = arrays.parse(bytes(whole[total - keep :].cpu().numpy()), total)
        if found is None or library == "bytes":
            return whole if found is None else whole[: total - found[1]]
        return _typed(whole[: total - found[1]], found[0])
    raise AssertionError("unreachable")


def _typed(data: Any, shape: arrays.Shape) -> Any:
    torch = sys.modules["torch"]
    dtype = getattr(torch, arrays.long_name(shape.dtype))
    if math.prod(shape.dims) == 0:
        return torch.empty(shape.dims, dtype=dtype, device=data.device)
    return data.view(dtype).reshape(shape.dims)
