//! nkv-transport: moves bytes and words between processes.
//!
//! - [`verbs`] is the trait of one-sided verbs of the data plane; [`mapped`] and [`tcp`]
//!   implement it and pass one conformance suite.
//! - [`gate`], [`grants`], [`log_rights`] and [`access`] decide who may write bytes, and let a
//!   fence prove that nobody writes any more.
//! - [`wire`] carries the control plane: frames, and the network interface. [`ring`] carries the
//!   same frames between two processes of one host without a system call.
//!
//! This crate handles segments, offsets and tokens; keys, objects and actors are not its concern.
#![expect(unsafe_code, reason = "payload moves between sockets and shared memory by raw pointers")]

pub mod access;
pub mod error;
pub mod fabric;
pub mod gate;
pub mod grants;
mod half_open;
pub mod log_rights;
pub mod mapped;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod ring;
pub mod tcp;
pub mod verbs;
pub mod wire;

pub use error::TransportError;
pub use mapped::MappedVerbs;
pub use tcp::{AgentLimits, TcpAgent, TcpCounters, TcpOptions, TcpVerbs};
pub use verbs::{Alive, Kind, Op, Verbs};
