//! SIGKILL of rank 0, which is the master and an owner in one process, and its return at the same
//! port. While it is away, reads from other ranks succeed and calls that need it end in time;
//! afterwards every object of the living owners is found, and removed ones are not.

use super::board::{Fate, Stored, Victim, is_expected_without_master};
use super::load::{Worker, shown};
use super::owner_rounds::{check_lost, doom, wait_for_keys};
use super::producer::Task;
use super::stage::{POLL_INTERVAL, RANKS, SLACK_MS, TTL_MS, TestCluster};
use super::victim::{Phase, ProducerProcess, stored};
use crate::random::{Random, rounds, seed};
use nkv::message::Existence;
use nkv::{Error, ErrorKind, PutOptions, Result, TransportChoice};
use nkv_pace::Stopwatch;
use nkv_store::clock::{BootClock, Clock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Tasks in this process.
const WORKERS: u32 = 3;
/// Delay of the kill after the cluster holds enough keys.
const KILL_AFTER_MS: (u64, u64) = (0, 500);
/// How long rank 0 is away; in every other round it is started again at once.
const AWAY_MS: (u64, u64) = (200, 1_500);
/// Keys that are read while it is away.
const KEYS_READ: usize = 24;
/// It takes objects, and places them on any rank, within this time of its start: the other ranks
/// try to reconnect every half second, and a rank that does not report within a TTL is not waited
/// for.
const RETURN_MS: u64 = TTL_MS + SLACK_MS;
/// The load goes on this long after its return.
const AFTERWARDS_MS: u64 = 400;
/// The load on the whole cluster afterwards.
const WHOLE_AGAIN_MS: u64 = 300;
/// Keys in one batch of `exists`.
const EXISTS_KEYS: usize = 256;

/// Results of the rounds.
#[derive(Default)]
struct Seen {
    keys_lost: u64,
    keys_found: u64,
    removed_checked: u64,
    reads_without: u64,
    unsure_whole: u64,
    slowest_return_ms: u64,
    producers: BTreeMap<String, u64>,
}

/// The test.
pub fn sigkill_of_rank_0_under_load() {
    let (seed, rounds) = (seed(), rounds());
    println!("chaos: rank 0: seed={seed} rounds={rounds}");
    let mut stage = TestCluster::start();
    let mut seen = Seen::default();
    for number in 0..rounds {
        round(&mut stage, &mut seen, seed, number);
        stage.board.calls.assert_no_fault(&format!("rank 0 round {number} of seed {seed}"));
    }
    let sums = stage.board.calls.sums();
    println!(
        "chaos: seed={seed} rounds={rounds} master_kills={rounds} wrong_bytes={} calls={} \
         slowest_call_ms={} slowest_settle_ms={} slowest_return_ms={} keys_found={} keys_lost={} \
         removed_checked={} reads_without_master={} unsure_whole={}",
        sums.wrong_bytes,
        sums.calls,
        sums.slowest_ms,
        stage.slowest_settle_ms,
        seen.slowest_return_ms,
        seen.keys_found,
        seen.keys_lost,
        seen.removed_checked,
        seen.reads_without,
        seen.unsure_whole
    );
    println!("chaos: the slowest call was {}", sums.slowest);
    println!(
        "chaos: calls {:?}; calls of slow producers that failed: {:?}",
        sums.outcomes, seen.producers
    );
    assert_eq!(sums.wrong_bytes, 0);
}

fn round(stage: &mut TestCluster, seen: &mut Seen, seed: u64, number: u64) {
    let mut random = Random::new(seed, number);
    let at_once = (seed + number).is_multiple_of(2);
    let kill_after = random.between(KILL_AFTER_MS.0, KILL_AFTER_MS.1);
    let away = if at_once { 0 } else { random.between(AWAY_MS.0, AWAY_MS.1) };
    println!("chaos: rank 0 round {number}: killed after {kill_after} ms, away for {away} ms");
    // Their plans are open for long: at most kills each producer has one open.
    let mut producers = producers(stage, number, &mut random);
    let workers = stage.workers(WORKERS, &format!("m{number}"), &mut random);
    let load = stage.load(workers);
    wait_for_keys(stage);
    std::thread::sleep(Duration::from_millis(kill_after));

    let doomed = doom(stage, 0);
    let located = locate_some(stage, doomed);
    stage.cluster.kill9(0);
    let killed = BootClock.now_ms();
    if !at_once {
        seen.reads_without += read_without_master(stage, &located);
        call_without_master(stage, &located);
        let rest = away.saturating_sub(BootClock.now_ms() - killed);
        std::thread::sleep(Duration::from_millis(rest));
    }
    restart(stage, seen, number);
    std::thread::sleep(Duration::from_millis(AFTERWARDS_MS));
    for p in &mut producers {
        end(stage, seen, p);
    }
    let workers = stage.quiet(load);

    let lost = stage.board.take_of(doomed.incarnation);
    seen.keys_lost += lost.len() as u64;
    stage.settle(RANKS);
    check_lost(stage, &lost);
    seen.unsure_whole += stage.check_unsure("after rank 0's return");
    seen.keys_found += stage.board.len() as u64;
    check_all_exist(stage);
    seen.removed_checked += check_removed(stage, &workers);

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

fn producers(stage: &TestCluster, number: u64, random: &mut Random) -> Vec<ProducerProcess> {
    let start = |transport: TransportChoice| {
        let task = Task {
            node: stage.cluster.address(0),
            job: stage.cluster.job().to_string(),
            transport,
            seed: random.next(),
            name: format!("slow-{transport}{number}"),
            ranks: RANKS,
            log_percent: 30,
            goes_on: true,
        };
        ProducerProcess::start(task, &stage.board)
    };
    [TransportChoice::Shm, TransportChoice::Tcp].map(start).into()
}

/// Ends a producer. Its committed objects are on the board; those with failed calls are checked
/// later.
fn end(stage: &TestCluster, seen: &mut Seen, producer: &mut ProducerProcess) {
    let journal = producer.end();
    for (kind, n) in journal.lost {
        *seen.producers.entry(kind).or_default() += n;
    }
    let over = |phase| matches!(phase, Phase::Committed | Phase::Unlocated);
    for w in journal.objects.iter().filter(|w| !over(w.phase)) {
        let s = stored(&producer.task.name, w, &stage.board);
        if w.phase == Phase::Lost {
            stage.board.add_unsure(s, Fate::Either);
        } else {
            stage.board.calls.fault(format!("a producer left {w:?} behind"));
        }
    }
}

/// Reads some keys of living ranks once: from then on this handle has their locations.
fn locate_some(stage: &TestCluster, doomed: Victim) -> Vec<Arc<Stored>> {
    let lives =
        |s: &Arc<Stored>| s.meta.as_ref().is_some_and(|m| m.at.incarnation != doomed.incarnation);
    let some: Vec<_> = stage.board.all().into_iter().filter(lives).take(KEYS_READ).collect();
    for s in &some {
        if let Some(e) = stage.read(s).filter(|e| !stage.board.log_made_room(s, e)) {
            stage.board.calls.fault(format!("{} before the kill: {e}", shown(&s.key)));
        }
    }
    some
}

/// Objects located before are still readable, by location and by key.
fn read_without_master(stage: &TestCluster, located: &[Arc<Stored>]) -> u64 {
    let calls = &stage.board.calls;
    for s in located {
        // If a log may have evicted it, only the master knows whether it lies elsewhere.
        let excused = |e: &Error| stage.board.passed(s) && is_expected_without_master(e);
        if let Some(e) = stage.read(s).filter(|e| !stage.board.log_made_room(s, e) && !excused(e)) {
            calls.fault(format!("get {} without rank 0: {e}", shown(&s.key)));
        }
        let Some(meta) = &s.meta else { continue };
        let mut dst = vec![0; s.len];
        let read = calls.make("read_into without", "", stage.observer.read_into(meta, &mut dst));
        match stage.rt.block_on(read) {
            Ok(n) => drop(calls.compare(&s.key, s.version, s.len, &dst[..n])),
            // A log's owner may have copied it since; by its key it was just read.
            Err(e) if e.kind() == ErrorKind::NotFound && stage.board.mark(s).is_some() => {}
            Err(e) => calls.fault(format!("read {} without rank 0: {e}", shown(&s.key))),
        }
    }
    2 * located.len() as u64
}

/// Calls that need rank 0 fail in time, with an error that says so.
fn call_without_master(stage: &TestCluster, located: &[Arc<Stored>]) {
    let (rt, client, calls) = (&stage.rt, &stage.observer, &stage.board.calls);
    if located.is_empty() {
        return calls.fault("no key on a living rank before the kill".to_string());
    }
    // By the log of rank 1 it needs no master.
    let opts = PutOptions::default().preferred_rank(1).device_alloc(false);
    let fresh = b"put without rank 0";
    let judge = |verb: &str, end: std::result::Result<(), Error>| match end {
        Err(e) if matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::Timeout) => {}
        other => calls.fault(format!("{verb} without rank 0: {other:?}")),
    };
    let end = rt.block_on(calls.make("get_location without", "", client.get_location(fresh)));
    judge("get_location", end.map(drop));
    let end = rt.block_on(calls.make("exists without", "", client.exists(&[fresh])));
    judge("exists", end.map(drop));
    judge("put", rt.block_on(calls.make("put without", "", client.put(fresh, b"x", &opts))));
    judge("remove", rt.block_on(calls.make("remove without", "", client.remove(fresh))));
    let node = stage.cluster.address(1);
    let connecting = async {
        let config =
            nkv::ClientConfig { job: stage.cluster.job().to_string(), ..Default::default() };
        nkv::Client::connect(&node, config).await
    };
    judge("connect", rt.block_on(calls.make("connect without", "", connecting)).map(drop));
}

/// Starts rank 0 again; it must place objects on every rank soon.
fn restart(stage: &mut TestCluster, seen: &mut Seen, number: u64) {
    let watch = Stopwatch::start();
    stage.cluster.restart(0);
    for rank in 0..RANKS {
        let opts = PutOptions::default().preferred_rank(rank);
        let mut unplaced = Vec::new();
        for tries in 0.. {
            let key = format!("returned/{number}/{rank}/{tries}").into_bytes();
            let (version, len) = (tries, 3_000);
            let value = crate::content::bytes(&key, version, len);
            let put = stage.observer.put(&key, &value, &opts);
            let put = stage.rt.block_on(stage.board.calls.make("put", "after the return", put));
            let took = watch.took();
            let there = noted(stage, (key, version, len), put, &mut unplaced) == Some(rank);
            if there {
                seen.slowest_return_ms = seen.slowest_return_ms.max(took.ms);
                break;
            }
            let stats = || stage.rt.block_on(stage.observer.stats());
            assert!(
                took.within(RETURN_MS),
                "{took} after rank 0's start, none for {rank}: {:#?}",
                stats()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        // From now on evictions are judged by the new log's positions.
        stage.note_logs();
        for mut s in unplaced {
            s.mark = stage.board.logs.start_of(rank);
            stage.board.add_unsure(s, Fate::Whole);
        }
    }
}

/// Records a put after the return; returns its rank, if known. `unplaced`: acknowledged, its rank
/// not known.
fn noted(
    stage: &TestCluster,
    (key, version, len): (Vec<u8>, u64, usize),
    put: Result<()>,
    unplaced: &mut Vec<Stored>,
) -> Option<u32> {
    let stored = |meta| Stored { key: key.clone(), version, len, meta, mark: None };
    match put {
        Ok(()) => match stage.rt.block_on(stage.observer.get_location(&key)) {
            Ok(meta) => {
                let rank = meta.rank();
                stage.board.add(stored(meta.into_memory()));
                return Some(rank);
            }
            Err(_) => unplaced.push(stored(None)),
        },
        Err(e) => {
            if !is_expected_without_master(&e) {
                stage.board.calls.fault(format!("put {} after the return: {e}", shown(&key)));
            }
            stage.board.add_failed(stored(None), &e);
        }
    }
    None
}

/// Checks that every object on the board exists by its key string, and reads it.
fn check_all_exist(stage: &TestCluster) {
    let all = stage.board.all();
    for some in all.chunks(EXISTS_KEYS) {
        expect_existence(stage, &some.iter().map(|s| &**s).collect::<Vec<_>>(), Existence::Ready);
    }
    stage.check_stored("after rank 0's return");
}

/// Checks that objects removed before, during or after are absent, by key and by location.
fn check_removed(stage: &TestCluster, workers: &[Worker]) -> u64 {
    let calls = &stage.board.calls;
    let mut checked = 0;
    for worker in workers {
        for some in worker.gone.chunks(EXISTS_KEYS) {
            expect_existence(stage, &some.iter().collect::<Vec<_>>(), Existence::Absent);
        }
        for s in &worker.gone {
            checked += 1;
            match stage.read(s) {
                Some(e) if e.kind() == ErrorKind::NotFound => {}
                other => calls.fault(format!("{} was removed: {other:?}", shown(&s.key))),
            }
        }
    }
    checked
}

fn expect_existence(stage: &TestCluster, all: &[&Stored], expected: Existence) {
    let calls = &stage.board.calls;
    let keys: Vec<&[u8]> = all.iter().map(|s| &s.key[..]).collect();
    let asked = calls.make("exists after the return", "", stage.observer.exists(&keys));
    match stage.rt.block_on(asked) {
        Ok(found) => {
            for (s, found) in all.iter().zip(found).filter(|(_, found)| *found != expected) {
                // In a log an object can be read before it is listed.
                let found_there = || stage.board.mark(s).is_some() && stage.read(s).is_none();
                if expected == Existence::Ready && (found_there() || stage.board.passed(s)) {
                    continue;
                }
                let key = shown(&s.key);
                calls.fault(format!("{key} should be {expected:?} and is {found:?}"));
            }
        }
        Err(e) => calls.fault(format!("exists after rank 0's return: {e}")),
    }
}
