"""Arrays in a GPU by the driver's calls alone, so that neither torch nor CuPy is needed."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

_driver = ctypes.CDLL("libcuda.so.1")


def call(name: str, *args: Any) -> None:
    """A call of the driver that must succeed."""
    code = getattr(_driver, name)(*args)
    if code:
        raise RuntimeError(f"{name} failed with {code}")


def use_gpu() -> None:
    """Makes GPU 0 the current one of this thread, as torch does."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


class Stream:
    """A stream that waits for no other."""

    def __init__(self) -> None:
        self.handle = ctypes.c_uint64()
        call("cuStreamCreate", ctypes.byref(self.handle), 1)

    def close(self) -> None:
        """Waits for what is in it."""
        call("cuStreamSynchronize", self.handle)
        call("cuStreamDestroy_v2", self.handle)


class Array:
    """A contiguous array in the GPU."""

    def __init__(self, of: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        self.shape, self.dtype, self.nbytes = of.shape, of.dtype, of.nbytes
        self.stream = stream
        self._address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, of.nbytes)))
        #: The copy reads it when it is executed.
        self._written = np.ascontiguousarray(of)
        self.fill(self._written)
        if stream is None:
            call("cuStreamSynchronize", ctypes.c_uint64(1))

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self._address.value)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream.handle.value if self.stream else 1,
        }

    def fill(self, of: np.ndarray[Any, Any]) -> None:
        """Queues a copy from the host."""
        stream = self.stream.handle if self.stream else ctypes.c_uint64(1)
        source = ctypes.c_void_p(of.ctypes.data)
        call("cuMemcpyHtoDAsync_v2", self._address, source, ctypes.c_size_t(self.nbytes), stream)

    def host(self) -> np.ndarray[Any, Any]:
        """Its content."""
        return content(self.address, self.nbytes).view(self.dtype).reshape(self.shape)

    def __del__(self) -> None:
        _driver.cuMemFree_v2(self._address)


def content(address: int, size: int) -> np.ndarray[Any, Any]:
    """Bytes of the GPU."""
    read = np.empty(size, np.uint8)
    into, stream = ctypes.c_void_p(read.ctypes.data), ctypes.c_uint64(1)
    size_of = ctypes.c_size_t(size)
    call("cuMemcpyDtoHAsync_v2", into, ctypes.c_uint64(address), size_of, stream)
    call("cuStreamSynchronize", stream)
    return read


def values(dtype: str, *shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """An array of the host with bytes that differ from place to place."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return bits.view(dtype).reshape(shape)
