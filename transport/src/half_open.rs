//! Peers that vanish without a word (power lost, cable cut, address gone): the kernel asks after a
//! silent one and gives up on what stays unacknowledged, on both ends of every tcp connection, so
//! that none of them is held for ever. It says nothing about peers that are there and stand still.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;

/// Silence before the kernel asks.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Questions without an answer that end the connection.
const ASK_TIMES: u32 = 3;
/// Sent bytes that nobody acknowledges, or has room for, end the connection after so long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// Has the kernel end this connection once its peer is gone.
pub(crate) fn watch(socket: SockRef<'_>) -> io::Result<()> {
    let ask =
        TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&ask)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
