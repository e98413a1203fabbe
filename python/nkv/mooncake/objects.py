"""Objects: puts, upserts, reads, removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _nkv, arrays
from .buffers import BufferHandle, handle_of
from .codes import INVALID_PARAMS, OK
from .config import ReplicateConfig, wanted_of
from .core import Core, places_of

_MAX_KEY_BYTES = 1024


class Objects(Core):
    """Objects as bytes."""

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Stores bytes, all of an array's. 0 also if the key is stored."""
        if _is_empty(value):
            return INVALID_PARAMS
        return self._put_all([key], [[value]], config)[0]

    def put_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """Stores parts as one value."""
        return self._put_all([key], [parts], config)[0]

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Stores many; the first error's code."""
        if len(keys) != len(values):
            return INVALID_PARAMS
        done = self._put_all(keys, [[value] for value in values], config)
        return next((code for code in done if code != OK), OK)

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Stores the bytes at an address."""
        if buffer_ptr <= 0 or size < 0:
            return INVALID_PARAMS
        wanted = wanted_of(1, config)
        if wanted is None:
            return INVALID_PARAMS
        done = self._try(lambda c: c.put(key, (buffer_ptr, size), b"", wanted))
        return OK if done is None else int(done)

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Stores the bytes at two addresses as one value: those of the metadata first."""
        places = [(metadata_buffer_ptr, metadata_size), (buffer_ptr, size)]
        used = [place for place in places if place[1]]
        if any(address <= 0 or n < 0 for address, n in used):
            return INVALID_PARAMS
        return self._put_parts([key], [used], config)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores the bytes at addresses."""
        return self._put_at(keys, buffer_ptrs, sizes, config)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores values that lie in several places each."""
        return self._put_at(keys, all_buffer_ptrs, all_sizes, config)

    def _put_at(
        self,
        keys: Sequence[str],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        config: ReplicateConfig | None,
    ) -> list[int]:
        wanted = wanted_of(len(keys), config)
        if wanted is None:
            return [INVALID_PARAMS] * len(keys)
        return self._many(len(keys), lambda c: c.put_many_at(keys, addresses, sizes, wanted), _ok)

    # An upsert replaces what is there. Between, no value is.

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Stores a value, in place of what is there."""
        if _is_empty(value):
            return INVALID_PARAMS
        return self._put_all([key], [[value]], config, True)[0]

    def upsert_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """As ``put_parts``, in place of what is there."""
        return self._put_all([key], [parts], config, True)[0]

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """As ``put_batch``, in place of what is there."""
        if len(keys) != len(values):
            return INVALID_PARAMS
        done = self._put_all(keys, [[value] for value in values], config, True)
        return next((code for code in done if code != OK), OK)

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """As ``put_from``, in place of what is there."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``batch_put_from``, in place of what is there."""
        parts = places_of(keys, [[at] for at in buffer_ptrs], [[size] for size in sizes])
        if parts is None:
            return [INVALID_PARAMS] * len(keys)
        return self._replace_all(keys, parts, config)

    # Reads

    def get(self, key: str) -> bytes:
        """The value; b"" if there is none."""
        found = self._try(lambda c: c.get(key), b"")
        return found if isinstance(found, bytes) else bytes(arrays.memory(found, readonly=True))

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """The values; b"" for each that is not there."""
        found = self._many(len(keys), lambda c: c.get_many(keys), lambda one: one)
        return [
            b"" if isinstance(f, int) else bytes(arrays.memory(f, readonly=True)) for f in found
        ]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value in a buffer of its own; None if there is none."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """The values in buffers of their own; None for each that is not there."""
        found = self._many(len(keys), lambda c: c.get_many(keys), handle_of)
        return [None if isinstance(one, int) else one for one in found]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads a value to an address; returns its length, or a code below 0."""
        if buffer_ptr <= 0 or size < 0:
            return INVALID_PARAMS
        return int(self._try(lambda c: c.get_into(key, [(buffer_ptr, size)])))

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Reads values to addresses."""
        return self._many(len(keys), lambda c: c.get_many_at(keys, buffer_ptrs, sizes), int)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads values, each into several places, one after another."""
        return self._many(len(keys), lambda c: c.get_many_at(keys, all_buffer_ptrs, all_sizes), int)

    def is_exist(self, key: str) -> int:
        """1 if the key can be read, 0 if not, a code below 0 after an error."""
        if not key and self._c is not None:
            return 0
        found = self._try(lambda c: c.exists([key]))
        return found if isinstance(found, int) else int(found[0])

    isExist = is_exist

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """The same for many."""
        valid = [key for key in keys if 0 < len(key.encode()) <= _MAX_KEY_BYTES]
        found = self._try(lambda c: c.exists(valid))
        if isinstance(found, int):
            return [found] * len(keys)
        there = dict(zip(valid, found, strict=True))
        return [int(there[key]) if key in there else INVALID_PARAMS if key else 0 for key in keys]

    def get_size(self, key: str) -> int:
        """The length of a value, or a code below 0."""
        return int(self._try(lambda c: c.size(key)))

    # Removal

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a key."""
        done = self._try(lambda c: c.remove(key))
        return OK if done is None else int(done)

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Removes keys."""
        return self._remove_many(keys)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the keys in which the pattern matches; how many, or a code below 0."""
        return self._removed(lambda c: c.remove_matching(regex_pattern))

    def remove_all(self, force: bool = False) -> int:
        """Removes every key; how many, or a code below 0."""
        return self._removed(lambda c: c.remove_all())

    def _removed(self, call: Callable[[_nkv.Cache], tuple[int, int]]) -> int:
        # Most objects of a disk were in memory, too, and the other way round.
        return int(self._try(lambda c: max(call(c))))


def _ok(_: object) -> int:
    return OK


def _is_empty(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray)) and not value
