//! nkv, a distributed KV cache for LLM inference: the public API for embedding. Re-exports only.
//!
//! Start a rank with [`Node::start`], or several in one process with [`Cluster::start`]; use
//! [`Node::client`], or [`Client::connect`] from a process that owns no segment. [`actors`] has the
//! handles of a node's actors and the messages that they take.

pub use nkv_actors::{
    AttachedTo, Blocking, BlockingWhenReady, Bytes, Client, ClientConfig, Cluster, Credentials,
    DeviceClaims, DeviceLog, DevicePut, DevicePuts, DeviceView, DrainReport, ElectionChoice, Ended,
    Environment, Error, ErrorKind, IfExists, KernelAccess, MAX_STRIPES, MappedSegment,
    MemoryChoice, Node, NodeConfig, NodeStatus, ObjectView, PinnedStatus, Placement, PlanAddresses,
    PoolFigures, PoolInfo, PoolOptions, PublishError, PutOptions, RackPath, ReadSlot, Result,
    SavedOn, Secret, SecretError, SegmentStatus, ShmPool, StartError, StoreSlot, TransportChoice,
    WhenReady, WritePlan, message,
};
pub use nkv_store::{Buffer, KeyId, PolicyKind, Retention, Watermarks};
pub use nkv_transport::wire::Address;

/// Handles of the actors of a node, and the messages that they take.
pub mod actors {
    pub use nkv_actors::actor::{ActorAddr, ActorStatus};
    pub use nkv_actors::announce_poller::AnnouncePoller;
    pub use nkv_actors::client::producer::Producer;
    pub use nkv_actors::evictor::Evictor;
    pub use nkv_actors::master::{Ask, Master};
    pub use nkv_actors::owner::{GetGauges, Owner};
}
