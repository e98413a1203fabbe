"""torch tensors as objects. torch is imported by the reads that return one, and by nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import arrays
from . import tensor_bytes
from .codes import FILE_NOT_FOUND, INVALID_PARAMS, OK
from .config import ReplicateConfig, log, of_items
from .core import Core, places_of
from .tensor_bytes import HEADER_BYTES, NUMBERS, Header


class Elements(NamedTuple):
    """Elements of a tensor in this process's memory, in C order."""

    header: Header
    address: int
    #: Keeps the memory.
    owner: Any

    def parts(self) -> list[Any]:
        """What is stored: the header, then the elements."""
        size = self.header.data_bytes
        return [self.header.packed(), (self.address, size)] if size else [self.header.packed()]


def elements_of(tensor: Any) -> Elements | None:
    """A tensor's elements, copied only if they lie elsewhere or scattered; None if it is none.

    Type and shape must be such as Mooncake stores: at most 8 dimensions, no complex numbers.
    """
    if "Tensor" not in type(tensor).__name__:
        return None
    try:
        dense = tensor.detach().cpu().contiguous().resolve_neg()
        dtype = NUMBERS.get(str(dense.dtype).removeprefix("torch."))
        shape = tuple(int(dim) for dim in dense.shape)
        if dtype is None or len(shape) > tensor_bytes.MAX_DIMENSIONS:
            log.error("a tensor of %s and shape %s cannot be stored", dense.dtype, shape)
            return None
        return Elements(Header(dtype, shape, shape), dense.data_ptr(), dense)
    except Exception as error:
        # Whatever a class that is named like a tensor may do, as where it has no data.
        log.error("the tensor cannot be read: %s", error)
        return None


def elements_at(address: int, size: int) -> Elements | None:
    """The elements of a tensor object that lies at an address."""
    if address <= 0 or size < HEADER_BYTES:
        return None
    header = tensor_bytes.parse_at(address, size)
    return None if header is None else Elements(header, address + HEADER_BYTES, None)


def tensor_of(memory: Any, header: Header) -> Any:
    """The tensor in writable memory that begins with its header."""
    import torch  # noqa: PLC0415 - only who asks for tensors needs it

    dtype = getattr(torch, tensor_bytes.DTYPES[header.dtype][0])
    # As Mooncake: a scalar comes back as one element.
    shape = header.local or (1,)
    if header.data_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, offset=HEADER_BYTES).reshape(shape)


def tensor_at(address: int, total: int) -> Any:
    """The tensor object at an address, in place; None if there is none."""
    header = tensor_bytes.parse_at(address, total) if total > 0 else None
    if header is None:
        return None
    return tensor_of((ctypes.c_ubyte * total).from_address(address), header)


class Tensors(Core):
    """Whole tensors."""

    def _put_elements(
        self,
        keys: Sequence[str],
        found: Sequence[Elements | None],
        config: ReplicateConfig | None,
        replaces: bool,
    ) -> list[int]:
        """Stores tensors; -600 for each that is none."""
        codes = [INVALID_PARAMS] * len(keys)
        if len(keys) != len(found):
            return codes
        at = [i for i, one in enumerate(found) if one is not None]
        parts = [one.parts() for one in found if one is not None]
        config = of_items(config, len(keys), at)
        done = self._store([keys[i] for i in at], parts, config, replaces) if at else []
        for i, code in zip(at, done, strict=True):
            codes[i] = code
        return codes

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor: 304 bytes about it, then its elements. 0 also if the key is stored."""
        return self.batch_pub_tensor([key], [tensor])[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Stores tensors."""
        return self.batch_pub_tensor(keys, tensors_list)

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """As ``put_tensor``."""
        return self.batch_pub_tensor([key], [tensor], config)[0]

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``batch_put_tensor``."""
        return self._put_elements(keys, [elements_of(one) for one in tensors_list], config, False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Stores a tensor, in place of what is there."""
        return self.batch_upsert_pub_tensor([key], [tensor])[0]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Stores tensors, in place of what is there."""
        return self.batch_upsert_pub_tensor(keys, tensors_list)

    def upsert_pub_tensor(
        self, key: str, tensor: Any, config: ReplicateConfig | None = None
    ) -> int:
        """As ``upsert_tensor``."""
        return self.batch_upsert_pub_tensor([key], [tensor], config)[0]

    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``batch_upsert_tensor``."""
        return self._put_elements(keys, [elements_of(one) for one in tensors_list], config, True)

    # Tensor objects in memory: the header, then the elements.

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores the tensor object at an address."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Stores tensor objects; -600 for all if one is none."""
        return self._put_objects(keys, buffer_ptrs, sizes, False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As ``put_tensor_from``, in place of what is there."""
        return self.batch_upsert_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """As ``batch_put_tensor_from``, in place of what is there."""
        return self._put_objects(keys, buffer_ptrs, sizes, True)

    def _put_objects(
        self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int], replaces: bool
    ) -> list[int]:
        parts = places_of(keys, [[at] for at in addresses], [[size] for size in sizes])
        if parts is None or any(elements_at(*one[0]) is None for one in parts):
            return [INVALID_PARAMS] * len(keys)
        return self._store(keys, parts, None, replaces)

    # Reads

    def get_tensor(self, key: str) -> Any:
        """The tensor; None if there is none."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """The tensors; None for each key without one."""
        found = self._many(len(keys), lambda c: c.get_many(keys), lambda one: one)
        return [None if isinstance(one, int) else _read(one) for one in found]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Reads a tensor object to an address; the tensor in that memory, or None."""
        found = self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]
        return None if isinstance(found, int) else found

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any]:
        """The same for many."""
        places = places_of(keys, [[at] for at in buffer_ptrs], [[size] for size in sizes])
        if places is None:
            return [INVALID_PARAMS] * len(keys)
        read = self._many(len(keys), lambda c: c.get_many_into(keys, places), int)
        return [tensor_at(at, n) for at, n in zip(buffer_ptrs, read, strict=True)]

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """-600: memory of GPUs is not read into."""
        return INVALID_PARAMS

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[str], tensors_list: Sequence[Any]
    ) -> list[int]:
        """The same."""
        return [INVALID_PARAMS] * len(keys)

    # Files

    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Writes a tensor to a file, named as its key unless a name is given. -1100: no tensor."""
        tensor = self.get_tensor(key)
        if tensor is None:
            return FILE_NOT_FOUND
        try:
            from safetensors.torch import save_file  # noqa: PLC0415 - only this needs it

            save_file({key: tensor}, file_name or key)
        except Exception as error:
            log.error("%s: %s", file_name or key, error)
            return INVALID_PARAMS
        return OK

    def load_tensor_from_safetensor(
        self, key: str | None = None, file_name: str | None = None
    ) -> Any:
        """Stores a tensor of a file, and returns it: the one of that key, or the file's first.

        The file's name is the key if none is given. None if that cannot be done.
        """
        try:
            from safetensors.torch import load_file  # noqa: PLC0415 - only this needs it

            tensors = load_file(str(file_name))
            tensor = tensors[key] if key in tensors else next(iter(tensors.values()))
        except Exception as error:
            log.error("%s: %s", file_name, error)
            return None
        return tensor if self.put_tensor(key or str(file_name), tensor) == OK else None


def _read(owner: Any) -> Any:
    """The tensor of an object's bytes."""
    whole = arrays.memory(owner, readonly=False)
    header = tensor_bytes.parse(bytes(whole[:HEADER_BYTES]), len(whole))
    return None if header is None else tensor_of(whole, header)
