//! nkv-transport: how bytes and words move.
//!
//! - [`verbs`] is the data plane's one trait of one-sided verbs; [`local`], [`shm`] and [`tcp`]
//!   implement it and pass one conformance suite.
//! - [`gate`], [`grants`], [`log_rights`] and [`access`] say who may place bytes, and let a fence
//!   be sure that nobody does.
//! - [`wire`] carries the control plane: frames, and the network seam. [`ring`] carries the same
//!   frames between two processes of one host without a system call.
//!
//! This crate knows segments, offsets and tokens; keys, objects and actors are others' business.
#![expect(unsafe_code, reason = "payload moves between sockets and shared memory by raw pointers")]

pub mod access;
pub mod error;
pub mod fabric;
pub mod gate;
pub mod grants;
mod half_open;
pub mod local;
pub mod log_rights;
mod mapped;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod ring;
pub mod shm;
pub mod tcp;
pub mod verbs;
pub mod wire;

pub use error::TransportError;
pub use local::LocalVerbs;
pub use shm::ShmVerbs;
pub use tcp::{AgentLimits, TcpAgent, TcpCounters, TcpOptions, TcpVerbs};
pub use verbs::{Alive, Kind, Op, Verbs};
