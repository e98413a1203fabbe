//! Ranks as processes elect their master: one that is killed and never started again, one that is
//! stopped and comes back, and one that starts again under another master.

use crate::cluster_process::{EXIT_LIMIT, ProcessCluster, until};
use nkv::message::Existence;
use nkv::{Blocking, Error, ErrorKind, PutOptions};
use nkv_pace::{HANGS, HANGS_MS};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Rounds of the test with load: so many clusters lose their first master. NKV_TAKEOVERS sets it.
const ROUNDS: u32 = 2;
const WORKERS: u32 = 3;
/// Load before the master dies, and after another one serves.
const BEFORE: Duration = Duration::from_millis(600);
const AFTER: Duration = Duration::from_millis(600);
/// Pause between two calls of a worker.
const PACE: Duration = Duration::from_millis(2);
const BLOCK: usize = 4 << 10;

/// Three ranks that elect their master so, with a lease.
fn electing_within(by: &str, lease_ms: &'static str) -> ProcessCluster {
    ProcessCluster::start_electing(3, by, move |command| {
        command.args(["--heap-bytes", "64MiB", "--log-bytes", "24MiB"]);
        command.args(["--master-lease-ms", lease_ms]);
    })
}

/// The same. On a machine that is busy with something else a rank may return no stamp for a second:
/// a longer lease than the default.
pub fn electing(by: &str) -> ProcessCluster {
    electing_within(by, "2500")
}

/// The rank that is master, once one answers.
pub fn master(handle: &Blocking) -> u32 {
    let mut found = None;
    until(HANGS, "a master", || {
        found = handle.membership().ok().filter(|view| view.settled).map(|view| view.master);
        found.is_some()
    });
    found.unwrap()
}

fn content(key: &str) -> Vec<u8> {
    let seed = key.bytes().fold(0u64, |s, b| s.wrapping_mul(1_099_511_628_211) ^ u64::from(b));
    (0..BLOCK as u64 / 8).flat_map(|i| seed.wrapping_mul(2 * i + 1).to_le_bytes()).collect()
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// A put of it was acknowledged.
    There,
    /// A removal of it was.
    Removed,
    /// A call of it failed: either is right.
    Unsure,
}

/// One caller under load; it puts on ranks other than the one that dies.
struct Worker {
    number: u32,
    handle: Blocking,
    keys: BTreeMap<String, Fate>,
    // When the last call failed, and how many did.
    failed_ms: u64,
    failures: u64,
}

impl Worker {
    fn new(cluster: &ProcessCluster, number: u32) -> Self {
        let handle = cluster.connect(number % 3);
        Self { number, handle, keys: BTreeMap::new(), failed_ms: 0, failures: 0 }
    }

    fn failed(&mut self, e: &Error) {
        use ErrorKind::{Disconnected, NotReady, Timeout};
        assert!(matches!(e.kind(), Disconnected | NotReady | Timeout), "{e}");
        (self.failed_ms, self.failures) = (BootClock.now_ms(), self.failures + 1);
    }

    fn put(&mut self, i: u64, ranks: &[u32]) {
        let key = format!("{}/{i}", self.number);
        let rank = ranks[i as usize % ranks.len()];
        let opts = PutOptions::default().preferred_rank(rank).device_alloc(i.is_multiple_of(3));
        let fate = match self.handle.put(key.as_bytes(), &content(&key), &opts) {
            Ok(()) => Fate::There,
            Err(e) => {
                self.failed(&e);
                Fate::Unsure
            }
        };
        self.keys.insert(key, fate);
    }

    fn check(&mut self, key: &str, fate: Fate) {
        match self.handle.get(key.as_bytes()) {
            Ok(bytes) => {
                assert!(bytes == content(key), "{key} has other bytes");
                assert_ne!(fate, Fate::Removed, "{key} was removed, and is there");
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                assert_ne!(fate, Fate::There, "{key} was acknowledged, and is lost");
            }
            Err(e) => self.failed(&e),
        }
    }

    fn remove(&mut self, i: u64) {
        let key = format!("{}/{i}", self.number);
        let Some(before) = self.keys.get(&key).copied() else { return };
        let fate = match self.handle.remove(key.as_bytes()) {
            Ok(()) => Fate::Removed,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                assert_ne!(before, Fate::There, "{key} was acknowledged, and is lost");
                Fate::Removed
            }
            Err(e) => {
                self.failed(&e);
                Fate::Unsure
            }
        };
        self.keys.insert(key, fate);
    }

    /// Calls without a pause until told to end.
    fn run(mut self, ranks: &[u32], end: &AtomicBool, done: &AtomicU64) -> Self {
        for i in 0.. {
            if end.load(Ordering::Acquire) {
                break;
            }
            self.put(i, ranks);
            let read = i * 7 % (i + 1);
            let key = format!("{}/{read}", self.number);
            if let Some(fate) = self.keys.get(&key).copied() {
                self.check(&key, fate);
            }
            if let Some(removed) = i.checked_sub(40).filter(|i| i.is_multiple_of(4)) {
                self.remove(removed);
            }
            // The master answers this, whatever is cached.
            if let Err(e) = self.handle.exists(&[b"nothing"]) {
                self.failed(&e);
            }
            done.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PACE);
        }
        self
    }
}

/// As many clusters lose their first master as NKV_TAKEOVERS says.
pub fn takeovers(by: &str) {
    let all: Vec<(u64, u64)> = (0..rounds()).map(|round| takeover(round, by)).collect();
    let most = |of: fn(&(u64, u64)) -> u64| all.iter().map(of).max().unwrap_or(0);
    println!(
        "{} take-overs: calls failed for {} ms at most, another master served after {} ms",
        all.len(),
        most(|(failed, _)| *failed),
        most(|(_, served)| *served)
    );
}

fn rounds() -> u32 {
    let given = std::env::var("NKV_TAKEOVERS").ok();
    given.map_or(ROUNDS, |n| n.parse().unwrap_or_else(|_| panic!("NKV_TAKEOVERS={n}")))
}

/// Under load: kills the master; returns for how long calls failed, and when a new master served.
fn takeover(round: u32, by: &str) -> (u64, u64) {
    let mut cluster = electing_within(by, "1000");
    let watch = cluster.connect(0);
    let dies = master(&watch);
    let ranks: Vec<u32> = (0..3).filter(|rank| *rank != dies).collect();
    let (end, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let (worker, ranks) = (Worker::new(&cluster, n), ranks.clone());
            let (end, done) = (end.clone(), done.clone());
            spawn_named("worker", move || worker.run(&ranks, &end, &done)).unwrap()
        })
        .collect();
    std::thread::sleep(BEFORE);
    let killed_ms = BootClock.now_ms();
    cluster.kill9(dies);
    until(HANGS, "another master serves", || {
        watch.exists(&[b"nothing"]).is_ok_and(|found| found == [Existence::Absent])
    });
    let served_ms = BootClock.now_ms() - killed_ms;
    let before = done.load(Ordering::Relaxed);
    std::thread::sleep(AFTER);
    until(HANGS, "calls go on", || done.load(Ordering::Relaxed) > before + u64::from(WORKERS));
    end.store(true, Ordering::Release);
    let mut workers: Vec<Worker> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    let now = master(&watch);
    assert!(now != dies, "rank {now} is master");
    let failed_ms = workers.iter().map(|w| w.failed_ms).max().unwrap_or(0);
    let (mut there, mut removed, mut unsure) = (0, 0, 0);
    for worker in &mut workers {
        for (key, fate) in worker.keys.clone() {
            match fate {
                Fate::There => there += 1,
                Fate::Removed => removed += 1,
                Fate::Unsure => unsure += 1,
            }
            until(HANGS, &key, || {
                worker.failures = 0;
                worker.check(&key, fate);
                worker.failures == 0
            });
        }
    }
    let failed_ms = failed_ms.saturating_sub(killed_ms);
    println!(
        "take-over {round}: rank {dies} was killed, rank {now} served after {served_ms} ms, calls \
         failed for {failed_ms} ms; {there} objects found, {removed} removed, {unsure} unsure"
    );
    assert!(there > 100 && removed > 10, "{there} {removed}");
    watch.close();
    workers.iter().for_each(|w| w.handle.close());
    (failed_ms, served_ms)
}

/// The times are printed, and judged by no test.
#[test]
fn i6_the_master_is_killed_for_good_under_load_and_nothing_acknowledged_is_lost() {
    takeovers("ranks");
}

#[test]
fn i24_a_master_that_was_stopped_obeys_the_one_that_took_over() {
    let mut cluster = electing("ranks");
    let handle = cluster.connect(2);
    let first = master(&handle);
    let other = (first + 1) % 3;
    let on_it = PutOptions::default().preferred_rank(first).device_alloc(false);
    let elsewhere = PutOptions::default().preferred_rank(other).device_alloc(false);
    handle.put(b"on it", &content("on it"), &on_it).unwrap();
    handle.put(b"kept", &content("kept"), &elsewhere).unwrap();
    // Through the one that will be stopped, and so with its view of things.
    let stale = cluster.connect(first);
    cluster.node(first).stop();
    until(HANGS, "another master", || master(&handle) != first);
    until(HANGS, "a put", || handle.put(b"later", &content("later"), &elsewhere).is_ok());
    handle.remove(b"kept").unwrap();
    // What was asked of the stopped one is answered when it goes on, before it knows of the other.
    let late = std::thread::scope(|scope| {
        let asks = scope.spawn(|| stale.exists(&[b"kept", b"later"]));
        std::thread::sleep(Duration::from_millis(200));
        cluster.node(first).signal(Signal::CONT);
        asks.join().unwrap()
    });
    if let Ok(found) = late {
        assert_eq!(found, [Existence::Absent, Existence::Ready], "by a master of before");
    }
    // It lost its place, and joins the other with a new, empty memory.
    cluster.joined_again(first);
    let second = master(&handle);
    assert_ne!(second, first);
    let asked_ms = BootClock.now_ms();
    let found = loop {
        match stale.exists(&[b"kept", b"later", b"on it"]) {
            Ok(found) => break found,
            Err(e) => assert!(BootClock.now_ms() < asked_ms + HANGS_MS, "{e}"),
        }
        std::thread::sleep(PACE);
    };
    let expected = [Existence::Absent, Existence::Ready, Existence::Absent];
    assert_eq!(found, expected);
    assert_eq!(master(&stale), second);
    handle.put(b"on it", &content("again"), &on_it).unwrap();
    assert!(stale.get(b"on it").unwrap() == content("again"));
    stale.close();
    handle.close();
}

#[test]
fn a_rank_that_starts_again_joins_the_master_that_took_over_even_rank_0() {
    let mut cluster = electing("ranks");
    let handle = cluster.connect(1);
    let first = master(&handle);
    cluster.kill9(first);
    let second = master(&handle);
    assert_ne!(second, first);
    cluster.restart(first);
    cluster.wait_ready(EXIT_LIMIT);
    assert_eq!(master(&handle), second, "who comes back takes nothing over");
    // It survives the loss of the second one, too.
    cluster.kill9(second);
    until(HANGS, "a third master", || master(&handle) != second);
    until(HANGS, "a put", || handle.put(b"k", &content("k"), &PutOptions::default()).is_ok());
    assert!(handle.get(b"k").unwrap() == content("k"));
    handle.close();
}
