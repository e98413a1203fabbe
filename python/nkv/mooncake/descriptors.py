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
    """Where a replica on a file system of all ranks lies. nkv has none."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class LocalDiskDescriptor:
    """Where a replica on the SSD of one rank lies.

    ``object_size`` is in bytes; ``transport_endpoint`` is the rank's number as text.
    """

    object_size: int
    transport_endpoint: str


@dataclass(frozen=True)
class ReplicaDescriptor:
    """The copy of an object, always complete: in memory, or on SSD alone."""

    _at: MemoryDescriptor | LocalDiskDescriptor

    @property
    def status(self) -> ReplicaStatus:
        """COMPLETE: what is not cannot be asked about."""
        return ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Whether it lies in memory."""
        return isinstance(self._at, MemoryDescriptor)

    def is_disk_replica(self) -> bool:
        """False."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether only the SSD of a rank has it: a read brings it back into memory first."""
        return isinstance(self._at, LocalDiskDescriptor)

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where it lies in memory; RuntimeError if it does not."""
        if isinstance(self._at, MemoryDescriptor):
            return self._at
        raise errors.Unsupported("the replica lies on the SSD of a rank")

    def get_local_disk_descriptor(self) -> LocalDiskDescriptor:
        """Where it lies on SSD; RuntimeError if it lies in memory."""
        if isinstance(self._at, LocalDiskDescriptor):
            return self._at
        raise errors.Unsupported("the replica lies in memory")

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raises RuntimeError: no replica lies on a shared file system."""
        raise errors.Unsupported("the replica lies on no shared file system")

    def rank(self) -> str:
        """The rank that has it, as text."""
        if isinstance(self._at, LocalDiskDescriptor):
            return self._at.transport_endpoint
        return self._at.buffer_descriptor.transport_endpoint


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
