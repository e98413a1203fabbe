//! A producer that is stopped, or dies, between its claim in a log and READY. While it is stopped,
//! the living producers are asked and the hole stays; only its death makes the hole void [I14].

use super::load::shown;
use super::producer::key;
use super::producer_rounds::{
    AFTERWARDS_MS, FIRST_COMMIT_MS, WORKERS, check_victim, has_committed, start, wait_for,
};
use super::stage::{CLAIM_TTL_MS, POLL_INTERVAL, RANKS, SETTLE_MS, SLACK_MS, TestCluster};
use super::victim::{Phase, ProducerProcess};
use crate::random::{Random, seed};
use nkv::message::OwnerGauges;
use nkv::{ErrorKind, TransportChoice};
use nkv_pace::Stopwatch;
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

/// Limit of stopping a producer between its claim and READY.
const AIM_MS: u64 = nkv_pace::HANGS_MS;
/// A claim is looked for in the last this many bytes of a log.
const BACK_BYTES: u64 = 12 << 20;
/// The producer stays stopped for this long after all were asked.
const STANDS_MS: u64 = 3 * CLAIM_TTL_MS;

/// A claim that its producer does not settle.
#[derive(Debug, Clone, Copy)]
pub struct Hole {
    /// Rank of the log.
    pub rank: u32,
    /// Position of the claim.
    pub position: u64,
    /// Bytes claimed.
    pub bytes: u64,
}

/// Stops a producer between its claim and READY. None if it had passed READY every time.
pub fn stop_half_way(stage: &TestCluster, producer: &ProducerProcess) -> Option<Hole> {
    let until = BootClock.now_ms() + AIM_MS;
    while BootClock.now_ms() < until {
        let putting = producer.last().and_then(|w| match w.phase {
            Phase::Putting(rank) => Some((rank, key(&producer.task.name, w.number))),
            _ => None,
        });
        let found = putting.and_then(|(rank, key)| {
            let (position, bytes) = stage.board.logs.half_written(rank, &key, BACK_BYTES)?;
            Some(Hole { rank, position, bytes })
        });
        let Some(hole) = found else {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        };
        producer.stop();
        if stage.board.logs.is_half_written(hole.rank, hole.position) {
            return Some(hole);
        }
        producer.resume();
    }
    None
}

/// The test.
pub fn i14_a_hole_is_void_only_after_the_death_of_its_stopped_producer() {
    let seed = seed();
    println!("chaos: a stopped producer: seed={seed}");
    let mut random = Random::new(seed, 0);
    let mut stage = TestCluster::start();
    let mut victim =
        start(&stage, (TransportChoice::Shm, 100), "stopped".to_string(), random.next());
    let workers = stage.workers(WORKERS, "hole", &mut random);
    let load = stage.load(workers);
    wait_for(&victim, FIRST_COMMIT_MS, has_committed);
    let hole = stop_half_way(&stage, &victim);
    let hole = hole.unwrap_or_else(|| panic!("not stopped in mid-claim within {AIM_MS} ms"));

    let before = stage.gauges(hole.rank);
    assert_eq!((before.log_voided_bytes, before.log_fenced), (0, 0), "nobody has died");
    expect_standing(&stage, hole, &before);
    let journal = victim.kill();
    expect_fenced_then_void(&stage, hole);
    std::thread::sleep(Duration::from_millis(AFTERWARDS_MS));

    stage.quiet(load);
    stage.settle(RANKS);
    let after = stage.gauges(hole.rank);
    assert_eq!(after.log_voided_bytes, hole.bytes, "what the living claimed is settled by them");
    let put = key(&victim.task.name, journal.objects.last().unwrap().number);
    let read = stage.rt.block_on(stage.observer.get(&put));
    let end = read.map(|bytes| bytes.len()).map_err(|e| e.kind());
    assert_eq!(end, Err(ErrorKind::NotFound), "{} was never READY", shown(&put));
    check_victim(&stage, &victim.task.name, &journal);
    stage.check_unsure("after the hole");
    stage.check_stored("after the hole");
    stage.remove_all("at the end");
    stage.board.calls.assert_no_fault(&format!("a stopped producer, seed {seed}"));
    println!(
        "chaos: seed={seed} {hole:?} checks={} fenced={}",
        after.log_hole_checks, after.log_fenced
    );
}

/// All producers are asked, and as long as this one is stopped nothing becomes void.
fn expect_standing(stage: &TestCluster, hole: Hole, before: &OwnerGauges) {
    let asking = Stopwatch::start();
    let mut until = None;
    loop {
        let (now, g) = (BootClock.now_ms(), stage.gauges(hole.rank));
        assert_eq!((g.log_voided_bytes, g.log_fenced), (0, 0), "its producer stands, and lives");
        if g.log_hole_checks > before.log_hole_checks && until.is_none() {
            until = Some(now + STANDS_MS);
        }
        let late = !asking.took().within(CLAIM_TTL_MS + SLACK_MS + SLACK_MS);
        assert!(until.is_some() || !late, "nobody is asked about {hole:?}");
        if until.is_some_and(|until| now >= until) {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let still = stage.board.logs.is_half_written(hole.rank, hole.position);
    assert!(still, "nobody wrote to the claim of a process that lives");
}

/// The producer is dead: it is fenced first, then its hole becomes void.
fn expect_fenced_then_void(stage: &TestCluster, hole: Hole) {
    let killed = Stopwatch::start();
    while stage.gauges(hole.rank).log_voided_bytes == 0 {
        assert!(killed.took().within(SETTLE_MS), "a dead producer's claim stays: {hole:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
    // Counted before anything becomes void, so it is read afterwards.
    assert_eq!(stage.gauges(hole.rank).log_fenced, 1, "void without a fence");
}
