//! SIGKILL of a producer: committed objects stay, READY objects are adopted, open plans leave
//! nothing, and other clients are not affected.

use super::board::Stored;
use super::hole_rounds::{Hole, stop_half_way};
use super::load::shown;
use super::producer::{Task, key};
use super::stage::{RANKS, TestCluster};
use super::victim::{Journal, Phase, ProducerProcess};
use crate::random::{Random, rounds, seed};
use nkv::{ErrorKind, PutOptions, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::collections::BTreeMap;
use std::time::Duration;

/// Tasks in this process.
pub const WORKERS: u32 = 3;
/// A producer has committed something within this.
pub const FIRST_COMMIT_MS: u64 = nkv_pace::HANGS_MS;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Delay of the kill after the victim's first commit.
const KILL_AFTER_MS: (u64, u64) = (50, 900);
/// One round in so many waits for READY before the kill, so that there is an object to adopt.
const AIMED_EVERY: u64 = 5;
/// A producer sets READY within this.
const READY_MS: u64 = nkv_pace::HANGS_MS;
/// The load goes on this long after the kill.
pub const AFTERWARDS_MS: u64 = 300;
/// Of a hundred kills of producers that write by plans, at least so many must fall between open and
/// READY;
const MIN_BETWEEN_PERCENT: u64 = 20;
/// Not checked for fewer kills than this.
const FEW_KILLS: u64 = 5;
/// A version that no producer wrote.
const SECOND_VERSION: u64 = u64::MAX;

/// The test.
pub fn sigkill_of_a_producer_under_load() {
    let (seed, rounds) = (seed(), rounds());
    println!("chaos: producers: seed={seed} rounds={rounds}");
    let mut stage = TestCluster::start();
    let mut fell: BTreeMap<&str, u64> = BTreeMap::new();
    for number in 0..rounds {
        *fell.entry(round(&mut stage, seed, number)).or_default() += 1;
        stage.board.calls.assert_no_fault(&format!("producer round {number} of seed {seed}"));
    }
    let between = fell.get(BETWEEN).copied().unwrap_or(0);
    let sums = stage.board.calls.sums();
    println!(
        "chaos: seed={seed} rounds={rounds} producer_kills={rounds} \
         between_open_and_ready={between} wrong_bytes={} calls={} slowest_call_ms={} \
         slowest_settle_ms={}",
        sums.wrong_bytes, sums.calls, sums.slowest_ms, stage.slowest_settle_ms
    );
    println!("chaos: kills fell {fell:?}; the slowest call was {}", sums.slowest);
    println!("chaos: calls {:?}", sums.outcomes);
    assert_eq!(sums.wrong_bytes, 0);
    let by_plan = rounds / 2;
    assert!(
        by_plan < FEW_KILLS || between * 100 >= by_plan * MIN_BETWEEN_PERCENT,
        "only {between} of about {by_plan} kills of producers with plans fell between open and \
         READY"
    );
}

const BETWEEN: &str = "between open and READY";

fn where_it_fell(journal: &Journal) -> &'static str {
    match journal.objects.last().map(|w| w.phase) {
        None => "before the first open",
        Some(Phase::Open) => BETWEEN,
        Some(Phase::Publishing) => "around READY",
        Some(Phase::Ready) => "between READY and the commit's answer",
        Some(Phase::Putting(_)) => "in a put through a log",
        Some(Phase::Committed | Phase::Unlocated | Phase::Lost) => "between two objects",
    }
}

fn round(stage: &mut TestCluster, seed: u64, number: u64) -> &'static str {
    use TransportChoice::{Shm, Tcp};
    let mut random = Random::new(seed, number);
    let (dies, lives) = if (seed + number).is_multiple_of(2) { (Shm, Tcp) } else { (Tcp, Shm) };
    // Half of the victims put through logs only, and half by plans only.
    let by_log = ((seed + number) / 2).is_multiple_of(2);
    let kill_after = random.between(KILL_AFTER_MS.0, KILL_AFTER_MS.1);
    let percent = if by_log { 100 } else { 0 };
    let victim = format!("victim{number}");
    let mut victim = start(stage, (dies, percent), victim, random.next());
    let survivor = format!("survivor{number}");
    let mut survivor = start(stage, (lives, 50), survivor, random.next());
    let workers = stage.workers(WORKERS, &format!("p{number}"), &mut random);
    let load = stage.load(workers);
    wait_for(&victim, FIRST_COMMIT_MS, has_committed);
    wait_for(&survivor, FIRST_COMMIT_MS, has_committed);

    std::thread::sleep(Duration::from_millis(kill_after));
    let before = voided(stage);
    let hole = if by_log { stop_half_way(stage, &victim) } else { None };
    if !by_log && (seed + number).is_multiple_of(AIMED_EVERY) {
        wait_for(&victim, READY_MS, |j| j.objects.last().is_some_and(|w| w.phase == Phase::Ready));
    }
    let journal = victim.kill();
    let fell = where_it_fell(&journal);
    println!("chaos: producer round {number}: by {dies}, after {kill_after} ms, {fell}: {hole:?}");
    std::thread::sleep(Duration::from_millis(AFTERWARDS_MS));

    let survived = survivor.end();
    stage.quiet(load);
    stage.settle(RANKS);
    check_hole(stage, hole.filter(|_| dies == Shm), &before);
    stage.check_unsure("after the TTLs");
    check_survivor(stage, &survived);
    check_victim(stage, &victim.task.name, &journal);
    stage.check_stored("after the TTLs");
    stage.remove_all("at the round's end");
    fell
}

/// Starts a producer that puts `log_percent` of a hundred objects through logs.
pub fn start(
    stage: &TestCluster,
    (transport, log_percent): (TransportChoice, u64),
    name: String,
    seed: u64,
) -> ProducerProcess {
    let (node, job) = (stage.cluster.address(0), stage.cluster.job().to_string());
    let (ranks, goes_on) = (RANKS, false);
    let task = Task { node, job, transport, seed, name, ranks, log_percent, goes_on };
    ProducerProcess::start(task, &stage.board)
}

/// Void bytes of every rank's log.
fn voided(stage: &TestCluster) -> Vec<u64> {
    (0..RANKS).map(|rank| stage.gauges(rank).log_voided_bytes).collect()
}

/// A hole that a killed producer left becomes void, and nothing else does: living producers finish
/// their claims.
fn check_hole(stage: &TestCluster, hole: Option<Hole>, before: &[u64]) {
    for (rank, before) in (0..RANKS).zip(before) {
        let expected = hole.filter(|hole| hole.rank == rank).map_or(0, |hole| hole.bytes);
        let voided = stage.gauges(rank).log_voided_bytes - before;
        if voided != expected {
            let text = format!("{voided} bytes of rank {rank}'s log became void: {hole:?}");
            stage.board.calls.fault(text);
        }
    }
}

/// True once a producer has put something.
pub fn has_committed(journal: &Journal) -> bool {
    journal.objects.iter().any(|w| w.phase == Phase::Committed)
}

/// Waits until `holds` is true of a producer's journal.
pub fn wait_for(producer: &ProducerProcess, limit_ms: u64, holds: impl Fn(&Journal) -> bool) {
    let until = BootClock.now_ms() + limit_ms;
    while !holds(&producer.journal()) {
        let context = producer.journal();
        assert!(BootClock.now_ms() < until, "{} got no further: {context:?}", producer.task.name);
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_over(phase: Phase) -> bool {
    matches!(phase, Phase::Committed | Phase::Unlocated)
}

/// A living producer finishes every object that it began.
fn check_survivor(stage: &TestCluster, journal: &Journal) {
    let unfinished: Vec<_> = journal.objects.iter().filter(|w| !is_over(w.phase)).collect();
    if !journal.ended || !unfinished.is_empty() {
        let text = format!("the surviving producer did not finish: {unfinished:?}");
        stage.board.calls.fault(text);
    }
}

/// Objects that the victim committed are on the board and checked with it; the rest is checked
/// here. Only its last object can be unfinished.
pub fn check_victim(stage: &TestCluster, name: &str, journal: &Journal) {
    let Some(last) = journal.objects.last().filter(|w| !is_over(w.phase)) else {
        return;
    };
    let key = key(name, last.number);
    let (meta, version) = (last.meta.clone(), last.number);
    let stored = Stored { key, version, len: last.len, meta, mark: None };
    let (calls, found) = (&stage.board.calls, stage.read(&stored));
    let what = shown(&stored.key);
    match (last.phase, found) {
        (Phase::Open, None) => calls.fault(format!("{what} was never READY and is read")),
        (_, None) => stage.board.add(stored),
        // READY was set: the owner keeps the object [I10].
        (Phase::Ready, Some(e)) => calls.fault(format!("{what} was READY and is lost: {e}")),
        (_, Some(e)) if e.kind() == ErrorKind::NotFound => write_again(stage, stored),
        (_, Some(e)) => calls.fault(format!("{what} is neither whole nor absent: {e}")),
    }
}

/// Its key is free again.
fn write_again(stage: &TestCluster, lost: Stored) {
    let again = Stored { version: SECOND_VERSION, meta: None, mark: None, ..lost };
    let bytes = crate::content::bytes(&again.key, again.version, again.len);
    let opts = PutOptions::default();
    let put = stage.observer.put(&again.key, &bytes, &opts);
    match stage.rt.block_on(stage.board.calls.make("put again", "", put)) {
        Ok(()) => stage.board.add(again),
        Err(e) => stage.board.calls.fault(format!("{}: put again: {e}", shown(&again.key))),
    }
}
