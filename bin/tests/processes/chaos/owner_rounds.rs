//! SIGKILL of an owner: its keys are gone, those of other owners are served, and its successor
//! joins at once. master_rounds.rs kills rank 0, the master.

use super::board::{Stored, Victim};
use super::load::shown;
use super::stage::{POLL_INTERVAL, RANKS, SLACK_MS, TTL_MS, TestCluster};
use crate::random::{Random, rounds, seed};
use nkv::message::Location;
use nkv::{ErrorKind, PutOptions};
use nkv_pace::{HANGS_MS, Stopwatch};
use nkv_store::clock::{BootClock, Clock};
use std::sync::Arc;
use std::time::Duration;

/// Tasks in this process.
const WORKERS: u32 = 4;
/// The cluster holds at least so many keys before the kill.
const KEYS_BEFORE: usize = 90;
const KEYS_LIMIT_MS: u64 = HANGS_MS;
/// Delay of the kill after that.
const KILL_AFTER_MS: (u64, u64) = (0, 500);
/// The load goes on this long after the kill: every call affected by it ends meanwhile.
const AFTERWARDS_MS: u64 = 1_200;
/// In every other round, as the seed has it, the successor starts so soon after the kill.
const SUCCESSOR_AFTER_MS: u64 = 100;
/// A successor takes new objects within this time of its start: less than the rest of its
/// predecessor's TTL, which it must not wait for. There are eight heartbeats per TTL.
const JOIN_MS: u64 = TTL_MS - TTL_MS / 8 - SUCCESSOR_AFTER_MS;
/// The master detects the broken link within this, and places no object on the rank from then on.
const SUSPECT_MS: u64 = 500;
/// The load on the whole cluster afterwards.
const WHOLE_AGAIN_MS: u64 = 300;
/// Puts to the successor that are checked.
const NEW_KEYS: u64 = 8;

/// Results of the rounds.
#[derive(Default)]
struct Seen {
    keys_lost: u64,
    unsure_whole: u64,
    slowest_join_ms: u64,
}

/// The test.
pub fn sigkill_of_an_owner_under_load() {
    let (seed, rounds) = (seed(), rounds());
    println!("chaos: owners: seed={seed} rounds={rounds}");
    let mut stage = TestCluster::start();
    let mut seen = Seen::default();
    for number in 0..rounds {
        round(&mut stage, &mut seen, seed, number);
        stage.board.calls.assert_no_fault(&format!("owner round {number} of seed {seed}"));
    }
    let sums = stage.board.calls.sums();
    println!(
        "chaos: seed={seed} rounds={rounds} owner_kills={rounds} wrong_bytes={} calls={} \
         slowest_call_ms={} slowest_settle_ms={} slowest_join_ms={} keys_lost={} unsure_whole={}",
        sums.wrong_bytes,
        sums.calls,
        sums.slowest_ms,
        stage.slowest_settle_ms,
        seen.slowest_join_ms,
        seen.keys_lost,
        seen.unsure_whole
    );
    println!("chaos: the slowest call was {}", sums.slowest);
    println!("chaos: calls {:?}", sums.outcomes);
    assert_eq!(sums.wrong_bytes, 0);
}

fn round(stage: &mut TestCluster, seen: &mut Seen, seed: u64, number: u64) {
    let mut random = Random::new(seed, number);
    let rank = random.between(1, u64::from(RANKS) - 1) as u32;
    let soon = (seed + number).is_multiple_of(2);
    let kill_after = random.between(KILL_AFTER_MS.0, KILL_AFTER_MS.1);
    let successor_after = random.below(SUCCESSOR_AFTER_MS);
    println!(
        "chaos: owner round {number}: rank {rank} is killed after {kill_after} ms, its successor \
         starts {}",
        if soon { "at once" } else { "after the TTL" }
    );
    let workers = stage.workers(WORKERS, &format!("o{number}"), &mut random);
    let load = stage.load(workers);
    wait_for_keys(stage);
    std::thread::sleep(Duration::from_millis(kill_after));

    let doomed = doom(stage, rank);
    stage.cluster.kill9(rank);
    let killed = BootClock.now_ms();
    wait_until_suspect(stage, doomed);
    if soon {
        std::thread::sleep(Duration::from_millis(successor_after));
        restart(stage, seen, rank);
    }
    let rest = AFTERWARDS_MS.saturating_sub(BootClock.now_ms() - killed);
    std::thread::sleep(Duration::from_millis(rest));
    let workers = stage.quiet(load);

    let lost = stage.board.take_of(doomed.incarnation);
    seen.keys_lost += lost.len() as u64;
    wait_until_gone(stage, doomed);
    stage.settle(if soon { RANKS } else { RANKS - 1 });
    check_lost(stage, &lost);
    seen.unsure_whole += stage.check_unsure("after the TTL");
    stage.check_stored("after the TTL");
    if !soon {
        restart(stage, seen, rank);
    }
    check_successor(stage, number, rank);

    // The same handles, now on a whole cluster: nothing may fail any more.
    stage.board.doom(None);
    let load = stage.load(workers);
    std::thread::sleep(Duration::from_millis(WHOLE_AGAIN_MS));
    drop(stage.quiet(load));
    stage.settle(RANKS);
    stage.check_unsure("on the whole cluster");
    stage.check_stored("on the whole cluster");
    stage.remove_all("at the round's end");
}

/// Without a load no frame to the dead rank fails: only its broken link shows its death.
pub fn sigkill_of_an_idle_owner_is_seen_at_once() {
    let mut random = Random::new(seed(), 0);
    let mut stage = TestCluster::start();
    let rank = random.between(1, u64::from(RANKS) - 1) as u32;
    let doomed = doom(&stage, rank);
    stage.cluster.kill9(rank);
    wait_until_suspect(&stage, doomed);
    restart(&mut stage, &mut Seen::default(), rank);
    stage.board.calls.assert_no_fault("an idle owner");
}

fn wait_until_suspect(stage: &TestCluster, doomed: Victim) {
    stage.wait_for("the dead rank to be suspect", SUSPECT_MS, |s| {
        s.ranks.iter().all(|r| r.incarnation != doomed.incarnation || r.state == "suspect")
    });
}

/// Waits until the load has stored enough keys for a kill.
pub fn wait_for_keys(stage: &TestCluster) {
    let until = BootClock.now_ms() + KEYS_LIMIT_MS;
    while stage.board.len() < KEYS_BEFORE {
        let n = stage.board.len();
        assert!(BootClock.now_ms() < until, "{n} keys: {:?}", stage.board.calls.sums());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// From now on calls that need this rank may fail.
pub fn doom(stage: &TestCluster, rank: u32) -> Victim {
    let view = stage.rt.block_on(stage.observer.membership()).unwrap();
    let found = view.ranks.iter().find(|(info, _)| info.rank == rank);
    let (info, _) = found.unwrap_or_else(|| panic!("rank {rank} is not in {view:?}"));
    let doomed = Victim { rank, incarnation: info.incarnation };
    stage.board.doom(Some(doomed));
    doomed
}

/// Starts the dead rank's successor; it must join and take objects at once.
fn restart(stage: &mut TestCluster, seen: &mut Seen, rank: u32) {
    let (since, watch) = (BootClock.now_ms(), Stopwatch::start());
    stage.cluster.restart(rank);
    let opts = PutOptions::default().preferred_rank(rank);
    let mut tries = 0;
    loop {
        tries += 1;
        let key = format!("successor/{since}/{tries}").into_bytes();
        let (version, len) = (tries, 100);
        let value = crate::content::bytes(&key, version, len);
        let put = stage.observer.put(&key, &value, &opts);
        let put = stage.rt.block_on(stage.board.calls.make("put", "to the successor", put));
        let meta = stage.rt.block_on(stage.observer.get_location(&key));
        let meta = meta.ok().and_then(Location::into_memory);
        let took = watch.took();
        let there = meta.as_ref().is_some_and(|m| m.rank == rank);
        if let Err(e) = put {
            if e.kind() != ErrorKind::NotReady {
                stage.board.calls.fault(format!("a put to the successor of rank {rank}: {e}"));
            }
            stage.board.add_failed(Stored { key, version, len, meta: None, mark: None }, &e);
        } else {
            stage.board.add(Stored { key, version, len, meta, mark: None });
        }
        if there {
            seen.slowest_join_ms = seen.slowest_join_ms.max(took.ms);
            return;
        }
        assert!(took.within(JOIN_MS), "rank {rank} takes no objects after its start: {took}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Past the TTL the dead incarnation is no member.
fn wait_until_gone(stage: &TestCluster, doomed: Victim) {
    stage.wait_for("the dead rank to be gone", TTL_MS + SLACK_MS, |s| {
        s.ranks.iter().all(|r| r.incarnation != doomed.incarnation)
    });
}

/// Checks that objects of the dead rank are absent, by key and by location.
pub fn check_lost(stage: &TestCluster, lost: &[Arc<Stored>]) {
    let calls = &stage.board.calls;
    for s in lost {
        match stage.read(s) {
            Some(e) if e.kind() == ErrorKind::NotFound => {}
            other => {
                let found = other.map_or("it is read".to_string(), |e| e.to_string());
                calls.fault(format!("{} lay on the dead rank: {found}", shown(&s.key)));
            }
        }
        let Some(meta) = &s.meta else { continue };
        let mut dst = vec![0; s.len];
        let read = calls.make("read_into lost", "", stage.observer.read_into(meta, &mut dst));
        match stage.rt.block_on(read) {
            Err(e) if matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::NotFound) => {}
            Ok(_) => calls.fault(format!("{} is read from a dead incarnation", shown(&s.key))),
            Err(e) => calls.fault(format!("{} read where it lay: {e}", shown(&s.key))),
        }
    }
}

/// Checks that new objects go to the successor, and no file of its predecessor is left on this
/// host.
fn check_successor(stage: &TestCluster, number: u64, rank: u32) {
    let calls = &stage.board.calls;
    let opts = PutOptions::default().preferred_rank(rank);
    for i in 0..NEW_KEYS {
        let key = format!("new/{number}/{i}").into_bytes();
        let (version, len) = (i, 5_000);
        let value = crate::content::bytes(&key, version, len);
        let put = calls.make("put", "new", stage.observer.put(&key, &value, &opts));
        let placed = stage.rt.block_on(put);
        let meta = stage.rt.block_on(stage.observer.get_location(&key));
        match (placed, meta) {
            (Ok(()), Ok(meta)) if meta.rank() == rank => {
                let meta = meta.into_memory();
                stage.board.add(Stored { key, version, len, meta, mark: None });
            }
            other => calls.fault(format!("a new object for rank {rank}: {other:?}")),
        }
    }
    let mut left = stage.cluster.left_in_shm();
    left.retain(|name| !name.ends_with(".sock") && !name.ends_with(".lock"));
    if left.len() != RANKS as usize {
        calls.fault(format!("{RANKS} ranks have these segments: {left:?}"));
    }
}
