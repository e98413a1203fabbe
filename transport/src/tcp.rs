//! One-sided verbs over tcp: a client that posts batches, and an agent beside the segment that
//! executes them with real memory accesses in its own threads. Blocking sockets and one thread per
//! connection: measured faster than any event loop for payloads. No actor takes part; the agent
//! asks only its [`crate::access::Access`] for permission.

mod accept;
mod agent;
mod batch;
mod client;
mod deadline;
mod execute;
mod frame;
mod gather;
mod handshake;
mod line;
mod pipeline;
mod pool;
mod reply;
mod request;
mod serve;
mod striped;
mod tags;

pub use agent::{AgentLimits, TcpAgent, TcpCounters};
pub use client::{TcpOptions, TcpVerbs};
pub use frame::{MAX_OPS, MAX_REQUEST_BYTES, TCP_VERSION};
