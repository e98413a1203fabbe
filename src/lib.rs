//! nkv, a distributed KV cache for LLM inference: the public API for embedding. Re-exports only.
//!
//! Start a rank with [`Node::start`], or several in one process with [`Cluster::start`]; use
//! [`Node::client`], or [`Client::connect`] from a process that owns no segment.

pub use nkv_actors::*;
pub use nkv_store as store;
pub use nkv_transport as transport;
pub use nkv_transport::wire::Address;
