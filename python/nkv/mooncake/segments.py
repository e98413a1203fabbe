"""Where objects lie. What needs more copies or memory of this process is refused with a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .codes import FAILED, INVALID_PARAMS, OBJECT_NOT_FOUND, OK, TASK_NOT_FOUND
from .core import Core
from .descriptors import (
    Descriptor,
    LocalDiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
)

_NO_TASK = (0, 0)


class Segments(Core):
    """Places of objects."""

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Where the copies of an object lie; empty if there is none."""
        found = self._try(lambda c: c.replicas(key))
        return [] if isinstance(found, int) else [_described(one) for one in found]

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """The same for many, without the keys that are not there."""
        found = {key: self.get_replica_desc(key) for key in keys}
        return {key: some for key, some in found.items() if some}

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Removes objects all of whose copies a segment has, or any without a name; their keys.

        ``segment_name`` is a rank's number. One copy of several is not removed.
        """
        at = self.batch_get_replica_desc(keys)
        here = [
            key
            for key, found in at.items()
            if not segment_name or all(one.rank() == segment_name for one in found)
        ]
        return [key for key, code in zip(here, self._remove_many(here), strict=True) if code == OK]

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]:
        """-600, as for segments that are not there. -704 without the key."""
        return _NO_TASK, self._no_task(key)

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """The same: what is stored does not move."""
        return _NO_TASK, self._no_task(key)

    def _no_task(self, key: str) -> int:
        found = self._try(lambda c: c.exists([key]))
        return found if isinstance(found, int) else (OBJECT_NOT_FOUND, INVALID_PARAMS)[found[0]]

    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        """-1400: there is no such task."""
        return None, TASK_NOT_FOUND

    # Memory is the nodes': a client has none to give.

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Refused with -1."""
        return {"ret": FAILED, "segment_ids": []}

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Refused with -1: start another ``nkv-node``."""
        return {"ret": FAILED, "segment_ids": [], "allocated_size": 0}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """-1: none of them is mounted; 0 for none."""
        return FAILED if segment_ids else OK

    unmount_and_free_segment = unmount_segment

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0: there is none."""
        return OK

    def get_offload_rpc_read_count(self) -> int:
        """0: nothing is read from a disk."""
        return 0


class MooncakeDistributedNoFRegister:
    """Registers disks that are reached over a network: not with nkv."""

    def real_register(self, *_: Any) -> int:
        """-600."""
        return INVALID_PARAMS

    def real_unregister_by_endpoint(self, *_: Any) -> int:
        """-600."""
        return INVALID_PARAMS


def _described(found: tuple[Any, ...]) -> ReplicaDescriptor:
    _, rank, _, payload, size, *_, tier = found
    if tier == "disk":
        return ReplicaDescriptor(LocalDiskDescriptor(size, str(rank)))
    return ReplicaDescriptor(MemoryDescriptor(Descriptor(size, payload, str(rank))))
