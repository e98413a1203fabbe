//! One-sided verbs over tcp: a client that posts batches, and an agent beside the segment that
//! executes them with real memory accesses in its own threads. Blocking sockets and one thread per
//! connection: measured faster than any event loop for payloads. No actor takes part; the agent
//! asks only its [`crate::access::Access`] for permission.

mod accept;
mod agent;
mod agent_state;
mod append;
mod batch;
mod broken;
mod client;
mod connections;
mod deadline;
mod execute;
mod find;
mod frame;
mod gather;
mod line;
mod options;
mod pipeline;
mod pool;
mod reply;
mod request;
mod serve;
mod striped;
mod tags;

pub use agent::TcpAgent;
pub use agent_state::{AgentLimits, TcpCounters};
pub use client::TcpVerbs;
pub use frame::{MAX_OPS, MAX_REQUEST_BYTES, TCP_VERSION};
pub use options::TcpOptions;
