//! Two ends over a real socket and one memory: frames of all sizes in both directions, with every
//! kind of waiting, and the close of either end.

use crate::ring::layout::EndAt;
use crate::ring::sleep::ASLEEP;
use crate::ring::stream::{RingStream, Waiting};
use crate::wire::{MAX_FRAME_BYTES, WireError, read_frame, write_frame};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::shm::MemfdMemory;
use nkv_store::threads::spawn_named;
use proptest::prelude::*;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

pub(super) const LANE_BYTES: u64 = 4096;
const MEMORY_BYTES: u64 = 4096 + 2 * LANE_BYTES;
/// Time limit that no test here needs.
pub(super) const LIMIT: Duration = nkv_pace::HANGS;

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub(super) fn sockets() -> (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a, b)
}

/// A ring's memory as seen by a third party.
#[derive(Clone)]
struct Beside(Arc<MemfdMemory>);

impl Beside {
    fn new() -> Self {
        Self(Arc::new(MemfdMemory::create(MEMORY_BYTES).unwrap()))
    }

    fn mapped_again(&self) -> MemfdMemory {
        let fd = self.0.fd().try_clone_to_owned().unwrap();
        MemfdMemory::take(fd, MEMORY_BYTES).unwrap()
    }

    /// Waits until an end announces that it sleeps.
    fn until_asleep(&self, end: EndAt) {
        let until_ms = BootClock.now_ms() + LIMIT.as_millis() as u64;
        loop {
            let found = self.0.load(end.sleep.own).unwrap();
            if found & ASLEEP != 0 {
                return;
            }
            assert!(BootClock.now_ms() < until_ms, "{end:?} does not sleep within 10 s: {found}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A node in its own thread, which serves with `serve`; and the client's end, whose runtime is the
/// caller's.
fn pair<F: Future<Output = ()>>(
    waiting: Waiting,
    serve: impl FnOnce(RingStream) -> F + Send + 'static,
) -> (RingStream, JoinHandle<()>) {
    pair_of(&Beside::new(), waiting, serve)
}

fn pair_of<F: Future<Output = ()>>(
    ring: &Beside,
    waiting: Waiting,
    serve: impl FnOnce(RingStream) -> F + Send + 'static,
) -> (RingStream, JoinHandle<()>) {
    let (memory, ours_too) = (ring.mapped_again(), ring.mapped_again());
    let (theirs, ours) = sockets();
    let node = spawn_named("test-node", move || {
        runtime().block_on(async move {
            let socket = UnixStream::from_std(theirs).unwrap();
            serve(RingStream::node(memory, socket, LANE_BYTES)).await;
        });
    });
    let socket = UnixStream::from_std(ours).unwrap();
    (RingStream::client(ours_too, socket, LANE_BYTES, waiting).unwrap(), node.unwrap())
}

/// Answers every request with its bytes reversed, until the client ends. Polls for `spin`.
async fn echo(mut ring: RingStream, spin: Duration) {
    let mut buf = Vec::new();
    while let Some((id, mut bytes)) =
        read_frame::<_, Vec<u8>>(&mut ring, &mut buf, MAX_FRAME_BYTES).await.unwrap()
    {
        bytes.reverse();
        write_frame(&mut ring, &mut buf, id, &bytes).await.unwrap();
        ring.set_spin(spin);
    }
}

async fn ask(ring: &mut RingStream, id: u64, bytes: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
    let mut buf = Vec::new();
    write_frame(ring, &mut buf, id, bytes).await?;
    let answer = read_frame(ring, &mut buf, MAX_FRAME_BYTES).await?;
    Ok(answer.map(|(answered, bytes)| {
        assert_eq!(answered, id);
        bytes
    }))
}

fn sizes() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let size = prop_oneof![4 => 0..100_usize, 2 => 3000..5000_usize, 1 => 0..100_000_usize];
    let pause_us = prop_oneof![4 => Just(0_u64), 1 => 0..200_u64];
    proptest::collection::vec((size, pause_us), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn frames_of_all_sizes_come_through_whole_however_the_ends_wait(
        sizes in sizes(),
        spin_us in prop_oneof![Just(0_u64), Just(30), Just(1000)],
        waiting in prop_oneof![Just(Waiting::Thread), Just(Waiting::Task)],
    ) {
        runtime().block_on(async {
            let spin = Duration::from_micros(spin_us);
            let (mut ring, node) = pair(waiting, move |ring| echo(ring, spin));
            for (id, (size, pause_us)) in (1..).zip(sizes) {
                let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
                let answer = tokio::time::timeout(LIMIT, ask(&mut ring, id, &bytes)).await;
                let mut answer = answer.expect("an end hangs").unwrap().unwrap();
                answer.reverse();
                assert_eq!(answer, bytes);
                std::thread::sleep(Duration::from_micros(pause_us));
            }
            drop(ring);
            node.join().unwrap();
        });
    }
}

#[test]
fn i18_a_node_that_goes_ends_a_clients_wait() {
    for waiting in [Waiting::Thread, Waiting::Task] {
        runtime().block_on(async {
            let beside = Beside::new();
            let seen = beside.clone();
            let (mut ring, node) = pair_of(&beside, waiting, |mut ring| async move {
                let mut buf = Vec::new();
                read_frame::<_, Vec<u8>>(&mut ring, &mut buf, 100).await.unwrap();
                seen.until_asleep(EndAt::client(LANE_BYTES));
            });
            let answer = tokio::time::timeout(LIMIT, ask(&mut ring, 1, b"?")).await.unwrap();
            assert!(matches!(answer, Ok(None)), "{answer:?}");
            node.join().unwrap();
            // And at once from then on.
            let answer = tokio::time::timeout(LIMIT, ask(&mut ring, 2, b"?")).await.unwrap();
            assert!(matches!(answer, Ok(None) | Err(WireError::Io(_))), "{answer:?}");
        });
    }
}

#[test]
fn i18_a_node_that_goes_ends_a_clients_long_request() {
    for waiting in [Waiting::Thread, Waiting::Task] {
        runtime().block_on(async {
            let beside = Beside::new();
            let seen = beside.clone();
            let (mut ring, node) = pair_of(&beside, waiting, |ring| async move {
                seen.until_asleep(EndAt::client(LANE_BYTES));
                drop(ring);
            });
            let long = vec![1; 100_000];
            let answer = tokio::time::timeout(LIMIT, ask(&mut ring, 1, &long)).await.unwrap();
            assert!(matches!(answer, Err(WireError::Io(_))), "{answer:?}");
            node.join().unwrap();
        });
    }
}

#[test]
fn what_a_node_said_before_it_went_is_still_read() {
    for waiting in [Waiting::Thread, Waiting::Task] {
        runtime().block_on(async {
            let (mut ring, node) = pair(waiting, |mut ring| async move {
                write_frame(&mut ring, &mut Vec::new(), 7, &vec![1_u8, 2, 3]).await.unwrap();
            });
            node.join().unwrap();
            let mut buf = Vec::new();
            let last = read_frame::<_, Vec<u8>>(&mut ring, &mut buf, 100).await.unwrap();
            assert_eq!(last, Some((7, vec![1, 2, 3])));
            assert!(read_frame::<_, Vec<u8>>(&mut ring, &mut buf, 100).await.unwrap().is_none());
        });
    }
}

#[test]
fn i18_a_clients_time_limit_holds_while_the_node_stands_still() {
    for waiting in [Waiting::Thread, Waiting::Task] {
        runtime().block_on(async {
            let (go, stop) = std::sync::mpsc::channel::<()>();
            let (mut ring, node) = pair(waiting, move |ring| async move {
                // Its thread is stopped, and with it everything it would send.
                let _ = stop.recv_timeout(LIMIT);
                drop(ring);
            });
            let limit = Duration::from_millis(100);
            let began = tokio::time::Instant::now();
            let answer = tokio::time::timeout(limit, ask(&mut ring, 1, b"?")).await;
            let took = began.elapsed();
            assert!(answer.is_err() && took >= limit && took < LIMIT / 2, "{took:?}");
            drop(go);
            node.join().unwrap();
        });
    }
}

#[test]
fn i18_a_client_that_goes_ends_the_nodes_wait_for_room() {
    runtime().block_on(async {
        let beside = Beside::new();
        let (ring, node) = pair_of(&beside, Waiting::Task, |mut ring| async move {
            let long = vec![1_u8; 100_000];
            let written = write_frame(&mut ring, &mut Vec::new(), 1, &long).await;
            assert!(matches!(written, Err(WireError::Io(_))), "{written:?}");
        });
        beside.until_asleep(EndAt::node(LANE_BYTES));
        drop(ring);
        node.join().unwrap();
    });
}
