"""A digest behind every value (``NKV_CHECKSUMS=1``): damaged memory is an error, not other data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .. import _nkv, errors

#: Bytes of a digest, as ``seal`` makes it.
SEAL_BYTES = 16


class Unsealed:
    """An object's bytes without its digest."""

    def __init__(self, owner: _nkv.Bytes | _nkv.View, size: int) -> None:
        self._owner, self._size = owner, size

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._owner.address

    def __len__(self) -> int:
        return self._size


#: Calls that concern no value's bytes.
_AS_THEY_ARE = {
    "close",
    "exists",
    "list_keys",
    "match_prefix",
    "register",
    "remove",
    "remove_all",
    "remove_many",
    "remove_matching",
    "stats",
}


class Sealed:
    """A cache whose values all end with their digest; those without one are ``Corrupt``.

    Where a place to read into is longer than its value, the digest may lie behind the value there.
    Of places that overlap only what was read last is right.
    """

    def __init__(self, cache: _nkv.Cache) -> None:
        self._c = cache

    def __getattr__(self, name: str) -> Any:
        if name not in _AS_THEY_ARE:
            # Plans among others: who writes a value in pieces makes no digest.
            raise errors.Unsupported(f"{name} is not there with NKV_CHECKSUMS")
        return getattr(self._c, name)

    def put(self, key: str, data: Any, trailer: bytes, wanted: Any) -> None:
        """As the cache's."""
        (error,) = self.put_many([key], [[data, trailer] if trailer else [data]], wanted)
        if error is not None:
            raise error

    def put_many(self, keys: Sequence[str], values: Sequence[Sequence[Any]], wanted: Any) -> Any:
        """As the cache's."""
        return self._c.put_many(keys, [[*parts, _nkv.seal(parts)] for parts in values], wanted)

    def put_many_at(self, keys: Any, addresses: Any, sizes: Any, wanted: Any) -> Any:
        """As the cache's."""
        return self.put_many(keys, list(_pairs(addresses, sizes)), wanted)

    def get(self, key: str) -> Unsealed:
        """As the cache's."""
        return _opened(self._c.get(key))

    def view(self, key: str) -> Unsealed:
        """As the cache's."""
        return _opened(self._c.view(key))

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        """As the cache's."""
        return [_or_error(found) for found in self._c.get_many(keys)]

    def get_into(self, key: str, parts: Sequence[Any]) -> int:
        """As the cache's. After ``Corrupt`` the parts hold what was found."""
        whole = [*parts, bytearray(SEAL_BYTES)]
        return _length(whole, self._c.get_into(key, whole))

    def get_many_into(self, keys: Sequence[str], places: Sequence[Sequence[Any]]) -> list[Any]:
        """As the cache's; likewise."""
        whole = [[*parts, bytearray(SEAL_BYTES)] for parts in places]
        read = self._c.get_many_into(keys, whole)
        return [
            n if isinstance(n, BaseException) else _length_or_error(parts, n)
            for parts, n in zip(whole, read, strict=True)
        ]

    def get_many_at(self, keys: Any, addresses: Any, sizes: Any) -> list[Any]:
        """As the cache's; likewise."""
        return self.get_many_into(keys, list(_pairs(addresses, sizes)))

    def size(self, key: str) -> int:
        """The bytes of the value alone."""
        return max(0, int(self._c.size(key)) - SEAL_BYTES)


def _pairs(addresses: Any, sizes: Any) -> Iterator[list[tuple[int, int]]]:
    """Of each value; addresses and sizes are numbers, or a list for each value."""
    for some, lengths in zip(addresses, sizes, strict=True):
        if isinstance(some, Iterable):
            yield list(zip(some, lengths, strict=True))
        else:
            yield [(some, lengths)]


def _length(parts: Sequence[Any], read: int) -> int:
    size = _nkv.unseal(parts, read)
    if size is None:
        raise errors.Corrupt(f"{read} bytes do not end with their digest: remove the key")
    return size


def _length_or_error(parts: Sequence[Any], read: int) -> int | errors.Error:
    try:
        return _length(parts, read)
    except errors.Corrupt as error:
        return error


def _opened(owner: _nkv.Bytes | _nkv.View) -> Unsealed:
    return Unsealed(owner, _length([(owner.address, len(owner))], len(owner)))


def _or_error(found: Any) -> Any:
    if isinstance(found, BaseException):
        return found
    try:
        return _opened(found)
    except errors.Corrupt as error:
        return error
