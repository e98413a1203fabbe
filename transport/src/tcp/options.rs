//! How a client of the agent behaves.

use crate::wire::auth::Credentials;
use nkv_store::Stripes;

/// Credentials and limits of one client.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// What to prove to the agent; none only for an agent without a guard.
    pub credentials: Option<Credentials>,
    /// Time limit in milliseconds for connecting and the handshake together.
    pub connect_ms: u64,
    /// A post without progress for this many milliseconds ends with `Timeout`. So does one whose
    /// total time, connecting included, exceeds this plus 1 s for each MiB of its payload.
    pub stall_ms: u64,
    /// Most connections at a time. A post uses one, and with stripes further ones if available.
    pub max_connections: usize,
    /// How large reads and writes are cut; each stripe uses its own connection.
    pub stripes: Stripes,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            credentials: None,
            connect_ms: 1_000,
            stall_ms: 1_500,
            max_connections: 16,
            stripes: Stripes::NONE,
        }
    }
}
