"""Parts of objects: ranged reads, and sessions that read or write an object piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _nkv, errors
from ..layouts import retention_of
from .codes import INVALID_PARAMS, OK, code_of
from .config import ReplicateConfig, log, preferred_ranks
from .core import Core

_Numbers = Sequence[int]


def _copied(into: int, source: int, size: int) -> int:
    """Copies bytes of the host to it or to a GPU; their number, or a code."""
    try:
        _nkv.copy_to(into, source, size)
    except (errors.Error, ValueError) as error:
        log.debug("%s", error)
        return code_of(error)
    return size


class Ranges(Core):
    """Ranges of objects."""

    def __init__(self) -> None:
        super().__init__()
        self._reading: dict[str, Any] = {}
        self._writing: dict[str, tuple[_nkv.Plan, int]] = {}

    def close(self) -> int:
        """Detaches. What was put stays; open sessions end, and their puts are given up."""
        self._reading.clear()
        self._writing.clear()
        return super().close()

    tearDownAll = close

    def get_into_ranges(
        self,
        buffer_ptrs: _Numbers,
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[_Numbers]],
        all_src_offsets: Sequence[Sequence[_Numbers]],
        all_sizes: Sequence[Sequence[_Numbers]],
    ) -> list[list[list[int]]]:
        """Reads ranges of objects into registered buffers. Of another host's objects all is read.

        For each buffer a list of keys, for each key a list of ranges: offset in the buffer, offset
        in the object, bytes. Returns for each range its bytes, or a code below 0.
        """
        shapes = (all_dst_offsets, all_src_offsets, all_sizes)
        fits = all(len(one) == len(buffer_ptrs) for one in (all_keys, *shapes))
        if not fits:
            return [[[INVALID_PARAMS]] for _ in buffer_ptrs]
        wanted = list(dict.fromkeys(key for keys in all_keys for key in keys))
        seen = dict(zip(wanted, self._seen_many(wanted), strict=True))
        results = []
        for i, keys in enumerate(all_keys):
            ranges = [one[i] for one in shapes]
            if any(len(one) != len(keys) for one in ranges):
                results.append([[INVALID_PARAMS] for _ in keys])
                continue
            room = self._room(buffer_ptrs[i])
            rows = zip([seen[key] for key in keys], *ranges, strict=True)
            results.append([self._read(buffer_ptrs[i], room, *row) for row in rows])
        return results

    def _read(
        self, buffer: int, room: int, seen: Any, into: _Numbers, start: _Numbers, sizes: _Numbers
    ) -> list[int]:
        """Reads ranges of one object."""
        if not len(into) == len(start) == len(sizes):
            return [INVALID_PARAMS] * max(len(into), 1)
        if not sizes:
            return []
        if isinstance(seen, int):
            return [seen] * len(sizes)
        done = []
        for to, at, n in zip(into, start, sizes, strict=True):
            fits = min(to, at, n) >= 0 and to + n <= room and at + n <= len(seen)
            done.append(_copied(buffer + to, seen.address + at, n) if fits else INVALID_PARAMS)
        return done

    # A session of reads keeps the values as they are: nothing that it reads can change.

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begins to read objects; 0 or a code for each."""
        done = []
        for key, seen in zip(keys, self._seen_many(keys), strict=True):
            if not isinstance(seen, int):
                self._reading[key] = seen
            done.append(seen if isinstance(seen, int) else OK)
        return done

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[_Numbers],
        all_sizes: Sequence[_Numbers],
        all_src_offsets: Sequence[_Numbers],
    ) -> list[int]:
        """Reads ranges of objects of a session to addresses; the bytes of each key, or a code."""
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID_PARAMS] * len(keys)
        rows = zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets, strict=True)
        return [self._read_held(*row) for row in rows]

    def _read_held(self, key: str, buffers: _Numbers, sizes: _Numbers, start: _Numbers) -> int:
        seen = self._reading.get(key)
        ranges = _ranges(buffers, sizes, start)
        if seen is None or ranges is None or any(at + n > len(seen) for _, n, at in ranges):
            return INVALID_PARAMS
        done = [_copied(buffer, seen.address + at, n) for buffer, n, at in ranges]
        return min(done, default=0) if any(n < 0 for n in done) else sum(sizes)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Ends the reads of these keys. 0, also if there were none."""
        for key in keys:
            self._reading.pop(key, None)
        return OK

    # A session of writes is a plan: nobody reads the object until it ends.

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: _Numbers, config: ReplicateConfig | None = None
    ) -> list[int]:
        """Makes room for objects of so many bytes; 0 or a code for each."""
        if len(keys) != len(sizes):
            return [INVALID_PARAMS] * len(keys)
        return [self._open(key, size, config) for key, size in zip(keys, sizes, strict=True)]

    def _open(self, key: str, size: int, config: ReplicateConfig | None) -> int:
        if size <= 0 or key in self._writing:
            return INVALID_PARAMS
        wanted = (preferred_ranks(config)[:1], 0, True, 1, 1, retention_of(), None)
        plan = self._try(lambda c: c.open(key, size, wanted))
        if isinstance(plan, int):
            return plan
        self._writing[key] = (plan, size)
        return OK

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[_Numbers],
        all_sizes: Sequence[_Numbers],
        all_dst_offsets: Sequence[_Numbers],
    ) -> list[int]:
        """Writes ranges of objects of a session; the bytes of each key, or a code."""
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets):
            return [INVALID_PARAMS] * len(keys)
        rows = zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True)
        return [self._write_held(*row) for row in rows]

    def _write_held(self, key: str, buffers: _Numbers, sizes: _Numbers, into: _Numbers) -> int:
        plan, total = self._writing.get(key, (None, 0))
        ranges = _ranges(buffers, sizes, into)
        if plan is None or ranges is None or any(to + n > total for _, n, to in ranges):
            return INVALID_PARAMS
        for buffer, n, to in ranges:
            code = self._ended(lambda at=buffer, n=n, to=to: plan.write_at(to, (at, n)))
            if code != OK:
                return code
        return sum(sizes)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Makes objects readable. -600 for one of which bytes are missing: it stays open."""
        return [self._end(key, "publish") for key in keys]

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Gives objects up."""
        return [self._end(key, "abort") for key in keys]

    def _end(self, key: str, how: str) -> int:
        plan = self._writing.get(key)
        if plan is None:
            return INVALID_PARAMS
        code = self._ended(getattr(plan[0], how))
        if code != INVALID_PARAMS:
            self._writing.pop(key, None)
        return code

    def _ended(self, call: Any) -> int:
        """The code of a call of a plan."""
        try:
            call()
        except TypeError:
            raise
        except Exception as error:
            log.debug("%s", error)
            return code_of(error)
        return OK


def _ranges(
    buffers: _Numbers, sizes: _Numbers, offsets: _Numbers
) -> list[tuple[int, int, int]] | None:
    """Addresses, sizes and offsets together; None if they do not belong together."""
    if not len(buffers) == len(sizes) == len(offsets) or any(at <= 0 for at in buffers):
        return None
    if min((0, *sizes, *offsets)) < 0:
        return None
    return list(zip(buffers, sizes, offsets, strict=True))
