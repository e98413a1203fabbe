//! The handshake that every connection begins with, each end against a hostile peer. Keys are
//! fresh, so no prepared input of an unauthenticated peer may pass where a secret is required
//! [I20], and neither end sends or reads a byte beyond the handshake. The first byte picks the end
//! and the required authentication, the second is the seed of the pieces.

use crate::agent::JOB;
use crate::feed::Feed;
use nkv_store::OsRandom;
use nkv_transport::wire::auth::{
    ANSWER_BYTES, AuthMeans, Channel, Credentials, FINISH_BYTES, Guard, OPENING_BYTES, Secret,
    prove,
};
use nkv_transport::wire::{Peer, UnixPeer};
use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Runtime;

/// The stream's end comes at once: a handshake that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
});
static SECRET: LazyLock<Secret> =
    LazyLock::new(|| Secret::new(b"known to the job and nobody else", "the fuzzer").expect("long"));
static GUARD: LazyLock<Guard> =
    LazyLock::new(|| Guard::new(Credentials::of_client(JOB, Some(SECRET.clone()))));
/// Of a job without a secret: a unix socket then requires no authentication.
static OPEN_GUARD: LazyLock<Guard> =
    LazyLock::new(|| Guard::new(Credentials::of_client(JOB, None)));

/// Bytes that the peer sends, and bytes sent to it.
struct Talk<'a> {
    feed: Feed<'a>,
    sent: Vec<u8>,
}

impl AsyncRead for Talk<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.feed).poll_read(cx, buf)
    }
}

impl AsyncWrite for Talk<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sent.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The peer connects to a node; with a secret or without.
pub const NODE: [u8; 2] = [0, 1];
/// The peer is the node to which a client connects; with a secret or without.
pub const CLIENT: [u8; 2] = [2, 3];

pub fn run(input: &[u8]) -> bool {
    input.split_first_chunk().is_some_and(|([end, seed], bytes)| talk(*end, *seed, bytes).0)
}

/// Returns whether the peer passed, and the bytes sent to it.
pub fn talk(end: u8, seed: u8, bytes: &[u8]) -> (bool, Vec<u8>) {
    let mut talk = Talk { feed: Feed::new(bytes, None, u64::from(seed)), sent: Vec::new() };
    let secret = (end & 1 == 0).then(|| SECRET.clone());
    let asked = secret.is_some();
    let (passed, most_taken, most_sent) = if NODE.contains(&(end % 4)) {
        let guard = if asked { &GUARD } else { &OPEN_GUARD };
        let unix = Some(UnixPeer { pid: 1, uid: 0, process: None });
        let peer = Peer { unix, text: "a fuzzer".to_string() };
        let admitted = RUNTIME.block_on(guard.admit(&mut talk, &peer, TIMEOUT, &|| ()));
        (admitted.is_ok(), OPENING_BYTES + FINISH_BYTES, ANSWER_BYTES)
    } else {
        let means = secret.map_or(AuthMeans::Kernel, AuthMeans::Secret);
        let proved = RUNTIME.block_on(prove(&mut talk, means, Channel::Control, JOB, &OsRandom));
        (proved.is_ok(), ANSWER_BYTES, OPENING_BYTES + FINISH_BYTES)
    };
    assert!(!(asked && passed), "it passed without the secret");
    assert!(talk.feed.taken() <= most_taken, "more was taken than a handshake has");
    assert!(talk.sent.len() <= most_sent, "more was said than a handshake has");
    (passed, talk.sent)
}
