"""What the store says of objects and tasks."""

from __future__ import annotations

from dataclasses import dataclass

from .. import errors
from .config import Named


class ReplicaStatus(Named):
    """State of a replica."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskStatus(Named):
    """State of a task."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class TaskType(Named):
    """Kind of a task."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


@dataclass
class Descriptor:
    """Bytes in a rank's memory.

    ``size`` is in bytes; ``buffer_address`` is the offset from the start of the rank's segment;
    ``transport_endpoint`` is the rank's number as text, as ``preferred_segment`` takes it.
    """

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""


@dataclass(frozen=True)
class MemoryDescriptor:
    """Where a replica in memory lies."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class DiskDescriptor:
    """Where a replica on a disk lies. nkv has none."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class ReplicaDescriptor:
    """The copy of an object: always in memory and complete."""

    _memory: MemoryDescriptor

    @property
    def status(self) -> ReplicaStatus:
        """COMPLETE: what is not cannot be asked about."""
        return ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """True."""
        return True

    def is_disk_replica(self) -> bool:
        """False."""
        return False

    def is_local_disk_replica(self) -> bool:
        """False."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where it lies."""
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raises RuntimeError: it lies in memory."""
        raise errors.Unsupported("the replica lies in memory")


@dataclass
class QueryTaskResponse:
    """What a task does. nkv starts none, so no call returns one."""

    id: tuple[int, int] = (0, 0)
    type: TaskType = TaskType.REPLICA_COPY
    status: TaskStatus = TaskStatus.PENDING
    created_at_ms_epoch: int = 0
    last_updated_at_ms_epoch: int = 0
    assigned_client: tuple[int, int] = (0, 0)
    message: str = ""
