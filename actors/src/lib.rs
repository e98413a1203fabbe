//! nkv-actors: the control plane of nkv.
//!
//! - Actors decide, the data plane moves the payload bytes, and no payload byte waits in a mailbox.
//! - [`actor`] is the only module that uses actix actors; a role that panics is rebuilt from the
//!   durable state outside it.
//! - [`master`], [`owner`], [`client::producer`] and [`evictor`] are the roles; [`message`] lists
//!   their messages.
//! - [`client`] is the handle, [`node`] a rank with all its parts.
//! - [`environment`] and [`machine`] are the external dependencies, which a simulation replaces.

pub mod actor;
pub mod announce_poller;
pub mod attachment;
pub mod client;
mod control_hello;
mod counted_queue;
mod current_master;
pub mod durations;
pub mod election;
pub mod environment;
pub mod error;
pub mod evictor;
pub mod executor;
#[cfg(any(test, feature = "hostile"))]
pub mod hostile;
mod log_claims;
pub mod machine;
pub mod master;
pub mod membership;
pub mod message;
pub mod node;
pub mod owner;
mod pattern;
pub mod placement;
mod race;
mod replication;
pub mod server;
mod slot_map;
pub mod slow_path;
mod striping;
pub mod tier;
pub mod uplink;
mod work_queue;

pub use bytes::Bytes;
pub use client::{
    Blocking, BlockingWhenReady, Client, ClientConfig, DeviceClaims, DeviceLog, DevicePut,
    DevicePuts, DeviceView, IfExists, KernelAccess, MappedSegment, ObjectView, PlanAddresses,
    PoolFigures, PoolInfo, PoolOptions, PublishError, PutOptions, ReadSlot, SavedOn, ShmPool,
    StoreSlot, TransportChoice, WhenReady, WritePlan,
};
pub use environment::Environment;
pub use error::{Error, ErrorKind, Result};
pub use nkv_transport::wire::auth::{Credentials, Secret, SecretError};
pub use node::{
    AttachedTo, Cluster, DrainReport, ElectionChoice, Ended, MemoryChoice, Node, NodeConfig,
    NodeStatus, PinnedStatus, SegmentStatus, StartError,
};
pub use placement::{Placement, RackPath};
pub use striping::MAX_STRIPES;
