//! Thousands of connections that say nothing, on every port of a rank at once, for a while: clients
//! work beside them, /healthz answers, and a rank that is killed meanwhile comes back [I20].
//! `scripts/silent-connections` runs it with 10,000 on each port for a minute; the suite with
//! fewer.
#![expect(unsafe_code, reason = "threads with descriptor tables of their own")]

use crate::cluster_process::{ProcessCluster, until};
use nkv::{PutOptions, TransportChoice};
use nkv_pace::{HANGS, Stopwatch, Took, timed};
use nkv_store::threads::spawn_named;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections on each port, and for how long, unless the environment says otherwise.
const CONNECTIONS: u64 = 400;
const SECONDS: u64 = 3;
/// A probe is answered within this.
const HEALTHZ_MS: u64 = 100;
/// Pause between two new connections on one port once all are open; each replaces the oldest.
const AGAIN: Duration = Duration::from_millis(1);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// State shared by the connecting threads.
#[derive(Default)]
struct State {
    stop: AtomicBool,
    /// Ports that have had all their connections.
    full: AtomicUsize,
}

/// Gives the calling thread a descriptor table of its own: the limit of open files counts per
/// table, and all ports together may need more than a process may have.
fn own_descriptors() {
    // SAFETY: it changes only which descriptors this thread sees; those it opens from here on are
    // closed by itself.
    let failed = unsafe { libc::unshare(libc::CLONE_FILES) };
    assert_eq!(failed, 0, "unshare(CLONE_FILES): {}", std::io::Error::last_os_error());
}

/// Keeps `many` connections to one port open, replacing the oldest by new ones all the time.
fn silence(to: String, many: usize, state: Arc<State>) -> JoinHandle<u64> {
    spawn_named("silent", move || {
        own_descriptors();
        let (mut open, mut made) = (VecDeque::with_capacity(many), 0);
        while !state.stop.load(Ordering::Relaxed) {
            // With a full backlog it is refused, or waits.
            if let Ok(stream) = TcpStream::connect(&to) {
                open.push_back(stream);
                made += 1;
            }
            if open.len() > many {
                if made == many as u64 + 1 {
                    state.full.fetch_add(1, Ordering::Relaxed);
                }
                open.pop_front();
                std::thread::sleep(AGAIN);
            }
        }
        made
    })
    .unwrap()
}

#[test]
fn i20_thousands_of_silent_connections_keep_neither_clients_nor_probes_nor_ranks_out() {
    let many = setting("NKV_SILENT_CONNECTIONS", CONNECTIONS) as usize;
    let seconds = setting("NKV_SILENT_SECONDS", SECONDS);
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "2000"]);
    });
    let state = Arc::new(State::default());
    let node = cluster.node(0);
    let ports = [node.control().to_string(), node.data().to_string(), cluster.http(0).to_string()];
    let silent: Vec<_> = ports.map(|to| silence(to, many, state.clone())).into();
    until(HANGS, "all silent connections were made", || state.full.load(Ordering::Relaxed) == 3);
    let all = Stopwatch::start();
    let (mut calls, mut slowest, mut killed): (u64, Option<Took>, bool) = (0, None, false);
    while all.took().ms < seconds * 1_000 {
        let ((code, _), took) = timed(|| cluster.get(0, "/healthz"));
        assert_eq!(code, 200);
        assert!(took.within(HEALTHZ_MS), "/healthz took {took}");
        if slowest.is_none_or(|s| took.ms > s.ms) {
            slowest = Some(took);
        }
        for transport in [TransportChoice::Tcp, TransportChoice::Auto] {
            let client = cluster.connect_by(0, transport);
            let (key, on) = (calls.to_le_bytes(), PutOptions::default());
            client.put(&key, &[7; 4096], &on.preferred_rank(0)).unwrap();
            assert_eq!(client.get(&key).unwrap(), &[7; 4096][..]);
            client.remove(&key).unwrap();
            client.close();
            calls += 1;
        }
        if !killed && all.took().ms > seconds * 400 {
            killed = true;
            cluster.kill9(1);
            cluster.restart(1);
            cluster.wait_ready(HANGS);
        }
    }
    state.stop.store(true, Ordering::Relaxed);
    let made: Vec<u64> = silent.into_iter().map(|thread| thread.join().unwrap()).collect();
    let slowest = slowest.unwrap();
    println!(
        "{many} silent connections on each port for {seconds} s ({made:?} made): {calls} clients \
         connected and put, got and removed; rank 1 was killed and came back; the slowest \
         /healthz took {slowest}"
    );
    assert!(killed && calls > 0 && made.iter().all(|n| *n > many as u64));
}
