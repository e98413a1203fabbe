//! A real tcp client with a hostile agent: the input is all that the agent sends. The client may
//! fail in any way except hang, and succeeds only with an answer to every request. The first byte
//! decides whether a valid welcome is sent first.

use crate::agent::{INCARNATION, JOB, SEGMENT_BYTES};
use nkv_transport::{Op, TcpOptions, TcpVerbs, Verbs};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Longer than the client's own limits: a client that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The client's limit; the agent closes its half at once, so it is never reached.
const CLIENT_MS: u64 = 4_000;

/// The larger of the reads.
pub const LARGE_BYTES: usize = 600;
/// Welcome, response, two results and both reads: with fewer bytes a batch cannot have succeeded.
const LEAST_BYTES: usize = 48 + 40 + 2 * 8 + 8 + LARGE_BYTES;

struct Agent {
    at: SocketAddr,
    send: Sender<Vec<u8>>,
    done: Receiver<()>,
}

static AGENT: LazyLock<Mutex<Agent>> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
    let at = listener.local_addr().expect("its address");
    let (send, received) = channel::<Vec<u8>>();
    let (finished, done) = channel();
    let serve = move || {
        for words in received {
            let (mut peer, _) = listener.accept().expect("the client connects");
            let _ = peer.write_all(&words);
            let _ = peer.shutdown(Shutdown::Write);
            let _ = peer.set_read_timeout(Some(TIMEOUT));
            let _ = std::io::copy(&mut (&mut peer).take(1 << 20), &mut std::io::sink());
            drop(peer);
            if finished.send(()).is_err() {
                return;
            }
        }
    };
    nkv_store::threads::spawn_named("fuzz-agent", serve).expect("a thread");
    Mutex::new(Agent { at, send, done })
});

/// A welcome that the client takes for its owner's.
pub fn welcome() -> Vec<u8> {
    let mut bytes = b"nkvtcp-w".to_vec();
    bytes.extend(nkv_transport::tcp::TCP_VERSION.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    for word in [INCARNATION, SEGMENT_BYTES, 1 << 20] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(64u32.to_le_bytes());
    bytes
}

pub fn run(input: &[u8]) -> bool {
    let Some((with_welcome, bytes)) = input.split_first() else {
        return false;
    };
    let mut words = if with_welcome & 1 == 1 { welcome() } else { Vec::new() };
    words.extend_from_slice(bytes);
    let agent = AGENT.lock().unwrap_or_else(PoisonError::into_inner);
    agent.send.send(words.clone()).expect("the agent's thread runs");
    let understood = post(&agent.at.to_string(), &words);
    agent.done.recv_timeout(TIMEOUT).expect("the client hung up in time");
    understood
}

/// One batch of every verb; true if it succeeded.
fn post(at: &str, words: &[u8]) -> bool {
    let (connect_ms, stall_ms) = (CLIENT_MS, CLIENT_MS);
    let opts = TcpOptions { connect_ms, stall_ms, max_connections: 1, ..TcpOptions::default() };
    let Ok(client) = TcpVerbs::connect(at, INCARNATION, JOB, opts) else {
        return false;
    };
    let (mut small, mut large) = ([0; 8], [0; LARGE_BYTES]);
    let mut ops = [
        Op::Write { offset: 0, src: &[1; 8] },
        Op::FetchAdd { offset: 8, add: 1, old: 0 },
        Op::CompareSwap { offset: 16, expect: 0, new: 1, old: 0 },
        Op::Store { offset: 24, value: 1 },
        Op::Read { offset: 0, dst: &mut small },
        Op::Flush,
        Op::Read { offset: 1024, dst: &mut large },
    ];
    if client.post(1, &mut ops).is_err() {
        return false;
    }
    assert!(words.len() >= LEAST_BYTES, "an answer that was not sent");
    true
}
