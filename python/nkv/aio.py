"""The calls of a cache for asyncio: each is the twin of the call without its "a"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _nkv, arrays
from .layouts import (
    Key,
    Library,
    ObjMeta,
    Place,
    check_fit,
    fails,
    given,
    group_of,
    or_none,
    places_of,
    replicas_of,
    retention_of,
    stripes_of,
)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


async def _finished(start: Callable[[Callable[[Any], None]], _nkv.Task]) -> Any:
    """Starts a call and waits for it. If the wait is cancelled, so is the call."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def done(result: Any) -> None:
        # Called by a thread of nkv's. A loop that is closed waits for nothing.
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future, result)

    task = start(done)
    try:
        return await future
    except asyncio.CancelledError:
        task.cancel()
        raise


class AsyncCalls:
    """Calls that are awaited. They run on two threads of nkv's, however many there are."""

    _c: _nkv.Cache

    async def aput(
        self,
        key: Key,
        value: Any,
        *,
        preferred_segment: Place | Sequence[Place] | None = None,
        page_bytes: int = 0,
        if_exists: Literal["keep", "fail"] = "keep",
        replicas: int = 1,
        stripes: int = 1,
        evict_first: bool = False,
        soft_pin_ttl: float | None = None,
        hard_pin: bool = False,
        ttl_after_first_get: float | None = None,
        group: Key | None = None,
    ) -> None:
        """As ``put``. The value must not change until it is done."""
        source = arrays.source(value)
        kept = retention_of(evict_first, soft_pin_ttl, hard_pin, ttl_after_first_get)
        copies = replicas_of(replicas), stripes_of(stripes), kept, group_of(group)
        wanted = (places_of(preferred_segment), page_bytes, fails(if_exists), *copies)
        await _finished(
            lambda done: self._c.start_put(
                key, given(source), source.owner, source.trailer, wanted, done
            )
        )

    async def aget(self, key: Key, *, dst: Any = None, library: Library | None = None) -> Any:
        """As ``get``."""
        if dst is None:
            found = await _finished(lambda done: self._c.start_get(key, done))
            return arrays.restored(found, readonly=False, library=library)
        place, tail = arrays.source(dst, dst=True), bytearray(arrays.MAX_TRAILER_BYTES)
        parts = [given(place), tail]
        read = await _finished(
            lambda done: self._c.start_get_into(key, parts, (place.owner, tail), done)
        )
        check_fit(key, place, read, tail)
        return dst

    async def aget_many(self, keys: Sequence[Key], *, library: Library | None = None) -> list[Any]:
        """As ``get_many``."""
        found = await _finished(lambda done: self._c.start_get_many(keys, done))
        return or_none(found, lambda one: arrays.restored(one, readonly=False, library=library))

    async def aget_when_ready(
        self, key: Key, timeout: float, *, library: Library | None = None
    ) -> Any:
        """As ``get_when_ready``."""
        found = await _finished(lambda done: self._c.start_get_when_ready(key, timeout, done))
        return arrays.restored(found, readonly=False, library=library)

    async def aexists(self, key: Key, prefetch: bool = False, prefetch_wait: bool = False) -> bool:
        """As ``exists``."""
        (found,) = await self.aexists_many([key], prefetch, prefetch_wait)
        return bool(found)

    async def aexists_many(
        self, keys: Sequence[Key], prefetch: bool = False, prefetch_wait: bool = False
    ) -> list[bool]:
        """As ``exists_many``."""
        found: list[bool] = await _finished(
            lambda done: self._c.start_exists(keys, done, prefetch, prefetch_wait)
        )
        return found

    async def amatch_prefix(self, keys: Sequence[Key]) -> list[ObjMeta]:
        """As ``match_prefix``."""
        found = await _finished(lambda done: self._c.start_match_prefix(keys, done))
        return [ObjMeta(*one) for one in found]

    async def aremove(self, key: Key) -> None:
        """As ``remove``."""
        await _finished(lambda done: self._c.start_remove(key, done))
