"""The names of Mooncake's store, served by nkv: what inference engines call, unchanged.

``MooncakeDistributedStore`` has the methods, arguments, return values and error codes of
mooncake-transfer-engine 0.3.13, and tensor objects are its bytes. Differences:

- ``setup`` attaches to running nodes at ``master_server_addr`` (``nkv-node``; its rank 0 is the
  master), whose memory it uses: ``global_segment_size`` and ``local_buffer_size`` take none, a put
  needs none of them, and what was put stays after ``close``. ``metadata_server`` is not needed.
  ``protocol`` "rdma" and "tcp" both use shared memory on the nodes' host and the fastest there is
  elsewhere. ``get_hostname`` has no port.
- A call before ``setup`` or after ``close`` returns -600 (there the process crashes). An array that
  is not contiguous, address 0 and negative sizes are refused with -600.
- ``put_from`` of 0 bytes and ``put_parts`` without parts store an empty value; there they return 0
  and store nothing. A value shorter than the places it is read into is read; there that is -800.
- An upsert removes, then puts: a reader may find nothing between.
- ``tenant_id`` other than "default" is refused with -600: give each tenant a job of its own.
- With ``NKV_CHECKSUMS=1`` in the environment every value ends with a digest, which reads check:
  -801 if it does not fit. What was put without one is refused in the same way, and sessions of
  puts are -800.
- ``register_buffer`` registers with RDMA devices, if there are any. As there, memory must stay
  until ``unregister_buffer``.
- Values that were put as arrays by ``NanoKVCache`` are read with their trailer.
- ``replica_num`` is obeyed, up to 8, but for tensors in a GPU and session puts; fewer copies than
  asked for are no error, as there. ``with_hard_pin`` and ``with_soft_pin`` are obeyed, but for
  session puts and tensors in a GPU; hard pins have half of a heap at most. ``group_ids`` has
  a name for each key ("": none): what has one name is kept, or evicted, together, as far as that
  goes; session puts have none. Leases are not needed: what is read cannot change under its
  reader, and ``remove`` and ``batch_replica_clear`` take at once what was just read or put.
- A segment is a rank, and its name the rank's number (``transport_endpoint`` of a descriptor,
  ``preferred_segment``, ``preferred_segments``, ``segment_name``). ``create_copy_task`` and
  ``create_move_task`` return -600, ``mount_segment`` and ``allocate_and_mount_segment`` -1:
  objects do not move, and a client gives no memory.
- ``get_into_ranges`` wants its buffers registered; ranges beyond a buffer or a value are -600, each
  alone. A put session that ends before all bytes were written is -600, and stays open; there it is
  0, and the rest is whatever was there. Of two puts of one key at a time one is served, and both
  return 0, as there.
- Memory of GPUs: a tensor there is put by way of the host; ``get_tensor_into_cuda`` is -600.
- A tensor that cannot be cut as a ``ReadTarget`` asks is None, as there; what its parts say of
  themselves is checked against each other first.
- Buffers of a ``BufferPool`` are all of this process; there is no local buffer of the store.
- Missing: ``get_alloc_func_addr``, ``get_free_func_addr``, and the capsules of the C++ module.

``python -m nkv.mooncake DIRECTORY`` writes a package ``mooncake`` there, which leads here; a
directory that is first on PYTHONPATH makes every engine use it. Other modules of an installed
Mooncake, such as ``mooncake.engine``, are found behind it.
"""

from .buffer_pool import BufferLease, BufferPool, RegisteredBufferLease, RegisteredBufferPool
from .buffers import BufferHandle, MooncakeHostMemAllocator, bind_to_numa_node
from .config import (
    ObjectDataType,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    SoftPinAction,
    TensorParallelism,
)
from .descriptors import (
    Descriptor,
    DiskDescriptor,
    LocalDiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    TaskStatus,
    TaskType,
)
from .engram import EngramStore, EngramStoreConfig
from .install import install as install
from .segments import MooncakeDistributedNoFRegister
from .store import MooncakeDistributedStore
from .store import deserialize_tensor as _deserialize_tensor
from .store import serialize_tensor as _serialize_tensor
from .store import tensor_metadata_size as _tensor_metadata_size

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "LocalDiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
]
