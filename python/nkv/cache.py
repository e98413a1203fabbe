"""NanoKVCache: objects of KV bytes under keys, shared by the ranks of a job."""

from __future__ import annotations

import atexit
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import _nkv, arrays, cuda
from .aio import AsyncCalls
from .errors import Error, InvalidArgument, NotFound, NotReady, Timeout, Unsupported
from .layouts import (
    Key,
    Library,
    ListedKey,
    ObjMeta,
    Place,
    Registration,
    Removed,
    WritePlan,
    check_fit,
    disks_of,
    fails,
    given,
    group_of,
    groups_of,
    listed,
    of_dst,
    or_none,
    places_of,
    replicas_of,
    retention_of,
    stripes_of,
)
from .pool import ShmPool


def _sources(items: Iterable[tuple[Key, Any]]) -> list[tuple[Key, arrays.Source]]:
    """Keys and the memory of values, which the list keeps."""
    return [(key, arrays.source(value)) for key, value in items]


def _parts(pairs: list[tuple[Key, arrays.Source]]) -> tuple[list[Key], list[list[Any]]]:
    """Keys, and for each value its bytes, by address, and its trailer, if it has one."""
    parts = [[given(value), value.trailer][: 1 + bool(value.trailer)] for _, value in pairs]
    return [key for key, _ in pairs], parts


def _raise_first(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


_open: weakref.WeakSet[NanoKVCache] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for cache in list(_open):
        cache.close()


class NanoKVCache(AsyncCalls):
    """A rank of a job in this process, with its memory; or, by :meth:`connect`, a handle alone.

    Args:
        heap_bytes: payload bytes of this rank; None: a quarter of the memory, at most 1 GiB.
        master_rank: 0; the master is always at rank 0.
        page_bytes: bytes per page where a put names none; that of rank 0 counts.
        settings: any setting of nkv-node by its key, such as ``rank``, ``world_size``, ``job``,
            ``master_addr``, ``port``, ``listen``, ``log_bytes``, ``policy``. What is not given
            comes from ``NKV_*`` variables, and from what torchrun, Open MPI or Slurm exports.

    It returns once every rank of the job has joined, or after two TTLs (20 s) without some: they
    join later, or have come and gone. Calls may come from any number of threads.
    After fork a child must not use it (start processes by "spawn").
    """

    def __init__(
        self,
        heap_bytes: int | None = None,
        master_rank: int = 0,
        page_bytes: int | None = None,
        **settings: Any,
    ) -> None:
        if master_rank != 0:
            raise InvalidArgument(
                f"master_rank {master_rank}: the master is at rank 0, whose host is master_addr"
            )
        if heap_bytes is not None:
            settings["heap_bytes"] = heap_bytes
        if page_bytes is not None:
            settings["page_bytes"] = page_bytes
        values = {key: _setting(value) for key, value in settings.items()}
        self._attach(_nkv.Cache.start(values))
        try:
            if not self._c.wait_ready():
                raise Timeout(
                    "the ranks of the job did not come together within the limit to join: start "
                    "the others, or give join_timeout_ms"
                )
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(
        cls,
        *addresses: str,
        job: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        transport: Literal["auto", "shm", "tcp", "rdma"] | None = None,
        call_timeout_ms: int = 2_000,
        device_alloc: bool = True,
        cache_on_read: bool = False,
    ) -> NanoKVCache:
        """A handle of a running cluster, without memory of its own.

        Args:
            addresses: control addresses of nodes (HOST, HOST:PORT or unix:///PATH); the first that
                reaches the master is used. None: ``NKV_CONNECT``, or rank 0 on this host.
            job: the cluster's; None: ``NKV_JOB``, or "nkv".
            secret_file: file with the job's secret; None: ``NKV_SECRET_FILE`` or ``NKV_SECRET``.
            transport: how payload bytes move; "auto" is the fastest there is. None:
                ``NKV_TRANSPORT``, or "auto".
            call_timeout_ms: limit of a request to the master.
            device_alloc: whether puts go into the owners' device logs, without a message.
            cache_on_read: whether what is read from another host is kept at the rank of this host,
                as an extra replica that is evicted before all other objects; objects up to 16 MiB,
                with the transport "auto".
        """
        self = cls.__new__(cls)
        given_here = addresses or (os.environ.get("NKV_CONNECT", ""),)
        named = [one for some in given_here for one in some.split(",") if one]
        way = transport or os.environ.get("NKV_TRANSPORT") or "auto"
        secret = None if secret_file is None else os.fspath(secret_file)
        job = job if job is not None else os.environ.get("NKV_JOB") or "nkv"
        access = (way, call_timeout_ms, device_alloc, cache_on_read)
        self._attach(_nkv.Cache.connect(named, job, secret, access))
        return self

    def _attach(self, native: _nkv.Cache) -> None:
        self._c = native
        _open.add(self)

    def close(self) -> None:
        """Leaves the cluster: open plans are finished or given up, and this rank's memory goes."""
        _open.discard(self)
        self._c.close()

    def __repr__(self) -> str:
        where = "a handle" if self._c.rank is None else f"rank {self._c.rank}"
        return f"<nkv.NanoKVCache: {where}>"

    def __reduce__(self) -> Any:
        raise TypeError("a cache belongs to its process: connect in the other one")

    def __enter__(self) -> NanoKVCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Objects

    def put(
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
        """Stores a value under a key. Values are immutable.

        Args:
            key: 1 to 1,024 bytes; a str counts as UTF-8.
            value: bytes, a contiguous NumPy array, a torch tensor of the host or of a GPU, or
                anything with the buffer protocol, DLPack, ``__array_interface__`` or
                ``__cuda_array_interface__``. It is read in place, in a GPU after what is in its
                stream; by tcp and by plans an array is joined with its trailer first.
            preferred_segment: the rank that should own it; None: by the job's placement. A list
                names one for each replica, and asks for so many: a rank, a kind of memory ("host",
                or "device", of a GPU), or both ("3:device"). "disk", or "3:disk", is one more copy,
                on the SSD of a rank: the put waits for it, and raises an error if it is not made,
                though the value is in memory then.
            page_bytes: bytes per page; 0: the job's.
            if_exists: over a key that is stored, "keep" does nothing, and "fail" raises
                AlreadyExists (and asks the master).
            replicas: on how many ranks, 8 at most; fewer are no error: :meth:`put_replicas` says
                how many. A tensor of a GPU gets one, but by tcp.
            stripes: into how many parts the value is cut, each for another rank, 64 at most; no
                more than there are ranks. If one is lost, the object is. A tensor of a GPU gets
                one, but by tcp.
            evict_first: it is evicted before all others.
            soft_pin_ttl: seconds since its last use in which it is evicted only where nothing else
                is left.
            hard_pin: it is never evicted. These have half of a heap at most; beyond that a put
                raises OutOfMemory.
            ttl_after_first_get: seconds after its first read in which it is removed, on all ranks.
                These four exclude each other.
            group: name of the group that it belongs to, as keys are. A read of one object of a
                group counts as a read of all, and when one is evicted, the others are among the
                first to follow. A hint.
        """
        source = arrays.source(value)
        kept = retention_of(evict_first, soft_pin_ttl, hard_pin, ttl_after_first_get)
        copies = replicas_of(replicas), stripes_of(stripes), kept, group_of(group)
        wanted = (places_of(preferred_segment), page_bytes, fails(if_exists), *copies)
        self._c.put(key, given(source), source.trailer, wanted)

    def put_many(
        self,
        items: Iterable[tuple[Key, Any]],
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
        group: Key | Sequence[Key | None] | None = None,
        return_errors: bool = False,
    ) -> list[Error | None]:
        """Stores many values: one request for each owner at most. ``group`` is one for all, or one,
        or None, for each.

        Returns:
            For each item None, or its error. Without ``return_errors`` the first is raised, after
            all have been tried.
        """
        kept = retention_of(evict_first, soft_pin_ttl, hard_pin, ttl_after_first_get)
        copies = replicas_of(replicas), stripes_of(stripes), kept, groups_of(group)
        wanted = (places_of(preferred_segment), page_bytes, fails(if_exists), *copies)
        pairs = _sources(items)
        done: list[Any] = self._c.put_many(*_parts(pairs), wanted)
        if not return_errors:
            _raise_first(done)
        return done

    def put_replicas(
        self,
        items: Iterable[tuple[Key, Any]],
        replicas: int,
        *,
        preferred_segment: Place | Sequence[Place] | None = None,
        page_bytes: int = 0,
        if_exists: Literal["keep", "fail"] = "keep",
    ) -> list[int]:
        """Stores many values, each on as many ranks, on other hosts as far as there are any.

        Returns:
            For each how many replicas were made, and can be read; 0 if the key was stored before.
            Fewer than asked for are no error, as long as there is one.
        """
        copies = replicas_of(replicas), 1, retention_of(), None
        wanted = (places_of(preferred_segment), page_bytes, fails(if_exists), *copies)
        pairs = _sources(items)
        done = self._c.put_replicas(*_parts(pairs), wanted)
        _raise_first([error for error in done if isinstance(error, BaseException)])
        return done

    def replicate(self, keys: Iterable[Key], replicas: int) -> None:
        """Has keys have so many replicas: more are made soon after, those that are too many go.

        Lost ones are made again. NotFound if a key is not in memory, after all were asked for.
        """
        _raise_first(self._c.replicate(listed(keys), replicas_of(replicas)))

    def save_to_disk(self, keys: Iterable[Key], disks: int | Iterable[int] = 1) -> list[list[int]]:
        """Saves keys on the disks of so many ranks, or of these ranks, and waits for that.

        They stay in memory, too. A copy on disk outlives its process; a power loss only where the
        rank has ``ssd_durability="persistent"``.

        Returns:
            For each key the ranks whose disks have it: fewer than asked for if there are no more.
            NotFound if a key is not stored, InvalidArgument if no rank has a disk, or not the one
            that is named; after all were tried.
        """
        done = self._c.save_to_disk(listed(keys), disks_of(disks))
        _raise_first([error for error in done if isinstance(error, BaseException)])
        return [ranks for ranks in done if isinstance(ranks, list)]

    def get_replicas(self, key: Key) -> list[ObjMeta]:
        """Where each replica lies that can be read now. NotFound if there is none."""
        return [ObjMeta(*found) for found in self._c.replicas(key)]

    def get(
        self, key: Key, *, dst: Any = None, library: Library | None = None, device: Any = None
    ) -> Any:
        """The value of a key. NotFound (a KeyError) if there is none.

        Args:
            key: as in :meth:`put`.
            dst: a writable array, tensor or buffer of the value's size, of the host or of a GPU,
                which is filled and returned. After an error its contents are undefined.
            device: a device of torch, such as "cuda:0": the value as a tensor there.
            library: "torch", "numpy" or "bytes" to have the value as such; None: as it was put. A
                value that was no array is a memoryview.
        """
        if device is not None:
            if dst is not None:
                raise InvalidArgument("dst and device: give one of them")
            return self._committed(key, lambda: cuda.fetched(self._c, key, device, library))
        if dst is None:
            found = self._committed(key, lambda: self._c.get(key))
            return arrays.restored(found, readonly=False, library=library)
        place = arrays.source(dst, dst=True)
        tail = bytearray(arrays.MAX_TRAILER_BYTES)
        try:
            parts = [given(place), tail]
            total = self._committed(key, lambda: self._c.get_into(key, parts))
        except InvalidArgument as error:
            raise of_dst(key, f"{place.size} bytes: {error}") from None
        check_fit(key, place, total, tail)
        return dst

    def get_many(
        self, keys: Iterable[Key], *, library: Library | None = None, return_errors: bool = False
    ) -> list[Any]:
        """The values of keys; None for each that is not there.

        Other errors are raised, or, with ``return_errors``, stand in the place of their values.
        """
        return or_none(
            self._c.get_many(listed(keys)),
            lambda found: arrays.restored(found, readonly=False, library=library),
            return_errors,
        )

    def get_many_into(
        self, items: Iterable[tuple[Key, Any]], *, return_errors: bool = False
    ) -> list[Any]:
        """Reads objects as bytes into writable buffers: one request for each owner at most.

        A buffer must hold all bytes of its object: with an array's, its trailer (at most
        ``nkv.arrays.MAX_TRAILER_BYTES``), too.

        Returns:
            For each the number of bytes, or None if the key is not there. Errors as in
            :meth:`get_many`.
        """
        pairs = [(key, arrays.source(place, dst=True)) for key, place in items]
        read = self._c.get_many_into([key for key, _ in pairs], [[given(p)] for _, p in pairs])
        return or_none(read, int, return_errors)

    def get_view(self, key: Key, *, library: Library | None = None) -> Any:
        """The value in its owner's memory, without a copy; Unsupported if that is not mapped here.

        Its bytes do not change while the result, or anything made from it, lives, and nobody may
        write to them. Their space is reused only afterwards, so drop it soon. A value in a GPU is a
        tensor of torch there, or a :class:`nkv.cuda.DeviceArray`; kernels that are queued do not
        keep it, so wait for them first.
        """
        try:
            view = self._c.view(key)
        except Unsupported:
            if not any(control != payload for _, control, payload, _, _ in self._c.mapped()):
                raise
            return cuda.viewed(self._c.device_view(key), library)
        return arrays.restored(view, readonly=True, library=library)

    def register(self, memory: Any) -> Registration:
        """Registers writable memory with the RDMA devices: an array, or an address and a size.

        Transfers of 4 KiB and more out of it and into it are not copied on their way then. Takes
        seconds per GiB. Unsupported: no device is used here, or the memory cannot be locked.
        """
        return Registration(self._c, memory)

    def get_when_ready(self, key: Key, timeout: float, *, library: Library | None = None) -> Any:
        """The value of a key once it is written, also if nobody has begun to.

        Timeout after so many seconds; Reclaimed if its plan ends without it.
        """
        found = self._c.get_when_ready(key, timeout)
        return arrays.restored(found, readonly=False, library=library)

    def exists(self, key: Key, prefetch: bool = False, prefetch_wait: bool = False) -> bool:
        """Whether the key can be read, from memory or from disk.

        With ``prefetch``, what only a disk has is brought back into memory, preferably on this
        host, while the caller goes on: a ``get`` soon after finds it there. With ``prefetch_wait``
        too, the call returns when that is done. What cannot be brought back exists all the same.
        """
        return self._c.exists([key], prefetch, prefetch_wait)[0]

    def exists_many(
        self, keys: Iterable[Key], prefetch: bool = False, prefetch_wait: bool = False
    ) -> list[bool]:
        """As ``exists``, for each key."""
        return self._c.exists(listed(keys), prefetch, prefetch_wait)

    def match_prefix(self, keys: Iterable[Key]) -> list[ObjMeta]:
        """Locations of the longest run of keys, from the first one on, that can all be read."""
        return [ObjMeta(*found) for found in self._c.match_prefix(listed(keys))]

    def remove(self, key: Key) -> None:
        """Removes a key. NotFound if there is none."""
        self._c.remove(key)

    def remove_many(self, keys: Iterable[Key]) -> list[bool]:
        """Removes keys; for each whether it was there."""
        done = self._c.remove_many(listed(keys))
        _raise_first([error for error in done if not isinstance(error, NotFound)])
        return [error is None for error in done]

    def remove_matching(self, pattern: str) -> Removed:
        r"""Removes the keys in which a regular expression matches.

        Returns how many, of memory and disk.

        It matches anywhere unless it has ``^`` and ``$``. Its syntax is that of Rust's regex crate,
        without look-around; ``(?-u:\xff)`` is a byte.
        """
        return Removed(*self._c.remove_matching(pattern))

    def remove_all(self) -> Removed:
        """Removes every key; returns how many, of memory and disk."""
        return Removed(*self._c.remove_all())

    def keys(self, pattern: str | None = None) -> Iterator[ListedKey]:
        """The keys in order, those in which the regular expression matches."""
        after: bytes | None = None
        while page := self._c.list_keys(pattern, after, _LIST_PAGE):
            for row in page:
                yield ListedKey(*row)
            after = page[-1][0]

    # Plans

    def open_for_write(
        self,
        key: Key,
        bytes_total: int,
        *,
        preferred_segment: Place | Sequence[Place] | None = None,
        page_bytes: int = 0,
    ) -> WritePlan:
        """A plan to write an object of so many bytes. AlreadyExists if the key is stored.

        Where the owner's memory is mapped here, a kernel may write to it from then on, and set
        READY; the plan is committed then without a call. The object's memory is not reused while
        the plan is neither finished nor dropped: keep it until the kernel has ended.
        """
        wanted = (places_of(preferred_segment), page_bytes, True, 1, 1, retention_of(), None)
        plan = self._c.open(key, bytes_total, wanted)
        at = ObjMeta(*plan.location)
        return WritePlan(
            key_hash=at.key_hash,
            dst_rank=at.owner_rank,
            page_bytes=at.page_bytes,
            n_pages=at.n_pages,
            bytes_total=at.bytes_total,
            epoch=at.epoch,
            _header_off=at.header_off,
            _payload_base=at.payload_off,
            _plan=plan,
        )

    def commit(self, key: Key) -> None:
        """Makes the object of this cache's open plan of a key readable; READY may be set already.

        NotFound if this cache has no open plan for it; nothing, if it is committed because a kernel
        set READY.
        """
        self._c.commit(key)

    def get_location(self, key: Key) -> ObjMeta:
        """Where an object lies. NotFound, or NotReady while it is being written.

        What a kernel has published is found, as by :meth:`get`: they wait for its commit, which
        follows by itself.
        """
        return ObjMeta(*self._committed(key, lambda: self._c.location(key)))

    def _committed(self, key: Key, call: Callable[[], _T]) -> _T:
        """Repeats a call while the key has READY and is not committed."""
        until = time.monotonic() + _COMMIT_S
        while True:
            try:
                return call()
            except NotReady:
                if time.monotonic() >= until or not self._c.is_published(key):
                    raise
                time.sleep(_COMMIT_PAUSE_S)

    def shm_pool(
        self,
        rank: int | None = None,
        *,
        layout: Mapping[str, Any] | None = None,
        expected_bytes: int | None = None,
        write_ttl: float = 600.0,
        read_ttl: float = 300.0,
    ) -> ShmPool:
        """The memory of a rank on this host, to write and read in place: see :class:`ShmPool`.

        Args:
            rank: whose memory; None: that of the first rank on this host.
            layout: what the bytes mean, such as model, type, parallelism, tokens of a chunk; values
                that JSON can hold. It belongs to every key: with another one none of them is found.
            expected_bytes: the ``pool_size`` that this worker was told; InvalidArgument if it is
                another.
            write_ttl: seconds after which a slot that was not committed is given up.
            read_ttl: seconds after which a slot that was not finished is finished.
        """
        if rank is not None and not 0 <= rank < 2**32:
            raise InvalidArgument(f"a rank is a number from 0, not {rank}")
        if expected_bytes is not None and not 0 <= expected_bytes < 2**64:
            raise InvalidArgument(f"no memory has {expected_bytes} bytes")
        try:
            text = json.dumps(dict(layout), sort_keys=True) if layout else ""
        except TypeError as error:
            raise InvalidArgument(f"a layout has values that JSON can hold: {error}") from error
        return ShmPool(self._c.pool(rank, expected_bytes, text, (write_ttl, read_ttl)))

    # Figures and maintenance

    def stats(self) -> dict[str, Any]:
        """Figures of the cluster: the master's, and a row for each rank."""
        stats: dict[str, Any] = json.loads(self._c.stats())
        return stats

    def evict_until_below(self, usage_ratio: float) -> None:
        """Evicts on every rank until less than this part of its memory for plans is used."""
        self._c.evict_until_below(usage_ratio)

    def _view(self) -> dict[str, Any]:
        view: dict[str, Any] = json.loads(self._c.membership())
        return view

    @property
    def rank(self) -> int:
        """The number of the rank in this process. Unsupported for a handle alone."""
        if self._c.rank is None:
            raise Unsupported("this handle was made by connect: no rank runs in this process")
        return self._c.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return int(self._view()["world_size"])

    @property
    def control_address(self) -> str:
        """Where rank 0 is reached: for :meth:`connect`, and for the nkv program."""
        ranks = (info for info, _ in self._view()["ranks"])
        ((kind, at),) = min(ranks, key=lambda info: int(info["rank"]))["control"].items()
        return f"{kind.lower()}://{at}"

    # Addresses

    def device_ptr(self, rank: int, offset: int) -> int:
        """The address in this process of an offset in the first segment of a rank.

        Where its payloads are in a GPU, it is one for kernels of that GPU, and what precedes them
        is registered with it. Unsupported if this process does not map it: a handle of
        :meth:`connect` does once it has put or read something there. After the rank has started
        again it is one of its new segment: take those of an open plan from the plan.
        """
        for mapped, control, payload, payloads, size in self._c.mapped():
            if mapped == rank:
                if not 0 <= offset <= size:
                    raise InvalidArgument(f"offset {offset} in a segment of {size} bytes")
                if offset >= payloads:
                    return payload + offset
                return self._control(rank, control, payload) + offset
        raise Unsupported(f"this process does not map the memory of rank {rank}")

    def _control(self, rank: int, control: int, payload: int) -> int:
        """The base of control words, for kernels where payloads are in a GPU."""
        return control if control == payload else self._c.control_for_kernels(rank)

    @property
    def heap_bases(self) -> list[tuple[int, int]]:
        """For each rank the bases of the payloads and of the control words of its first segment.

        A base and an offset in the segment are an address, as of :meth:`device_ptr`. (0, 0) where
        it is not mapped. After a rank has started again they are other ones, for plans that were
        opened since.
        """
        bases = [(0, 0)] * self.world_size
        for rank, control, payload, _, _ in self._c.mapped():
            if rank < len(bases):
                bases[rank] = (payload, self._control(rank, control, payload))
        return bases

    @property
    def heap_bases_tensor(self) -> Any:
        """:attr:`heap_bases` as a tensor of int64, one row for each rank: for nkv.triton.

        In the GPU that has payloads, if one has.
        """
        import torch  # noqa: PLC0415 - only who uses tensors needs it

        in_gpu = (at + first for _, control, at, first, _ in self._c.mapped() if at != control)
        address = next(in_gpu, None)
        device = "cpu" if address is None else f"cuda:{_nkv.device_of(address)}"
        return torch.tensor(self.heap_bases, dtype=torch.int64, device=device)


_T = TypeVar("_T")
#: How long a read waits for the commit of what a kernel has published, and between two looks.
_COMMIT_S = 2.0
_COMMIT_PAUSE_S = 0.001
#: Keys that one request of a listing returns.
_LIST_PAGE = 10_000


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
