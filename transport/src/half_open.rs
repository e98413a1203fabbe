//! Detects tcp peers that vanish without closing (power lost, cable cut, address gone): the kernel
//! sends keepalive probes to a silent peer and ends a connection whose data stays unacknowledged,
//! at both ends of every tcp connection, so that none is held without end. It does not detect a
//! peer whose process is alive but stopped.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;

/// Silence before the first keepalive probe.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// Time between two probes.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Unanswered probes that end the connection.
const ASK_TIMES: u32 = 3;
/// A connection ends if sent bytes stay unacknowledged, or the peer's window stays full, for this
/// long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// Makes the kernel end this connection once its peer is gone.
pub(crate) fn watch(socket: SockRef<'_>) -> io::Result<()> {
    let ask =
        TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&ask)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
