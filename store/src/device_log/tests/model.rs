//! Random interleavings of everything over the real step functions: producers that skip, wait,
//! abandon, abort, repeat keys and die with writes in flight; the owner that accepts, evicts,
//! removes, asks about holes and restarts; readers of three kinds that validate what they copied.
//! Memory is sequentially consistent here: reorderings are tested by the model checker
//! (tests/words/log*.rs). Each rule is also broken on purpose, and the test must detect it. For
//! more than the usual seeds:
//! `NKV_MODEL_SEEDS=100000 cargo test -p nkv-store --release any_life_of`.

mod owner;
mod producer;
mod reader;

use super::*;
use crate::layout::{HEADER_BYTES, OWNER_OFF, epoch_of, flag, low};
use crate::object::ready;
use crate::testkit::MemoryDouble;
use producer::Producer;
use reader::Reader;
use std::collections::{BTreeMap, VecDeque};

/// One step of the model is one nanosecond.
const RULES: LogRules = LogRules::with_a_quarter_free(120, 600);
const STEPS: u64 = 8000;
const SEEDS: u64 = 600;
/// The copying thread, among the numbers of producers.
const COPIER: u64 = u64::MAX;

/// The rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A producer that does not answer is reported as fenced, but is not.
    SkipsTheFence,
    /// Eviction leaves the owner word LIVE.
    KeepsLive,
    /// Producers do not wait for room.
    WritesAboveTheLimit,
    /// Puts enter the table of open claims after their fetch-and-add.
    EntersLate,
    /// A put leaves the table when its last verb is posted, not when it has landed.
    LeavesEarly,
    /// The tail passes pinned objects.
    IgnoresPins,
    /// The tail passes objects retired just now.
    SkipsTheQuarantine,
    /// The owner does not check for an existing key.
    IgnoresDuplicates,
    /// Abandoned claims are still written.
    WritesWhatItAbandoned,
}

/// What went wrong, for the tests of the tests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wrong {
    /// A reader accepted bytes of another object, or of two.
    Bytes(String),
    /// A write at or above the limit [I13].
    AboveTheLimit(u64),
    /// A write below the tail.
    BelowTheTail(u64),
    /// The READY of a producer that was not fenced failed.
    Reclaimed(u64),
    /// Void while a producer that can write has a claim open below [I14].
    VoidUnderAWriter(u64),
    /// Two objects of one key are served [I15].
    TwoOfOneKey(KeyId),
    /// An acknowledged put was never accepted.
    Lost(u64),
    /// What was live before a restart differs after it.
    Restart(String),
    /// Claims that count as neither settled nor unsettled.
    Counts(String),
    /// At the end a claim is not settled.
    Stuck(u64),
}

type Step = Result<(), Wrong>;

/// Memory in which, broken on purpose, LIVE cannot be cleared.
#[derive(Debug)]
struct Stubborn {
    plain: AnonMemory,
    slots: u64,
    keeps_live: bool,
}

impl Stubborn {
    /// True if this store clears LIVE of a slot at the epoch it is at.
    fn retires(&self, offset: u64, value: u64) -> Result<bool, StoreError> {
        let header = offset.wrapping_sub(HEADER_BASE);
        let owner = header < self.slots * HEADER_BYTES && header % HEADER_BYTES == OWNER_OFF;
        if !owner {
            return Ok(false);
        }
        let before = self.plain.load(offset)?;
        let was_live = low(before) & flag::LIVE != 0;
        Ok(was_live && low(value) & flag::LIVE == 0 && epoch_of(before) == epoch_of(value))
    }
}

impl MemoryDouble for Stubborn {
    fn inner(&self) -> &dyn Memory {
        &self.plain
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        if self.keeps_live && self.retires(offset, value)? {
            return Ok(());
        }
        self.plain.store(offset, value)
    }
}

/// A small deterministic generator (splitmix64): a seed is a run.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` calls on average.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What really happened to a claim; no party in the model has this information.
#[derive(Debug)]
struct Actual {
    n: u64,
    producer: u64,
    /// The word that fills the payload; 0 if there is no object.
    name: u64,
    key: KeyId,
    /// The producer is done: READY was stored, or no verb of it is in flight any more.
    done: bool,
    acknowledged: bool,
}

/// How often things happened, so that a run that never reached them is detected.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    puts: u64,
    reads: u64,
    rejected: u64,
    slow: u64,
    pinned: u64,
    crashes: u64,
    fences: u64,
    waits: u64,
    aborts: u64,
    restarts: u64,
    skipped: u64,
    abandoned: u64,
    voided: u64,
    duplicates: u64,
    removed: u64,
    evicted: u64,
    copies: u64,
    stale_copies: u64,
    passed_over: u64,
}

struct Model {
    dice: Dice,
    bug: Bug,
    /// Whether effects that no reader could see are checked, too.
    all_seeing: bool,
    now: u64,
    w: World,
    copier: Copier,
    producers: Vec<Producer>,
    next_producer: u64,
    readers: Vec<Reader>,
    cached: VecDeque<LogObject>,
    pins: Vec<(u32, u32)>,
    /// Abandoned claims in flight to the owner.
    mail: VecDeque<(u64, Abandon)>,
    asking: Option<HoleInquiry<u64>>,
    asked_below: u64,
    actual: BTreeMap<u64, Actual>,
    met: Met,
}

impl Model {
    fn new(seed: u64, bug: Bug, all_seeing: bool) -> Model {
        let mut dice = Dice(seed);
        let units = 8 + dice.below(12);
        let memory = Stubborn {
            plain: AnonMemory::new(LOG_BASE + units * U).unwrap(),
            slots: units,
            keeps_live: bug == Bug::KeepsLive,
        };
        let mut w = world_of(Arc::new(memory), units, RULES);
        let (memory, moves) = (w.memory.clone(), w.moves.clone());
        let copier = Copier::new(memory, w.layout, moves, U as usize).unwrap();
        w.index.blind = bug == Bug::IgnoresDuplicates;
        Model {
            dice,
            bug,
            all_seeing,
            now: 0,
            w,
            copier,
            producers: (0..3).map(Producer::new).collect(),
            next_producer: 3,
            readers: vec![Reader::Idle, Reader::Idle, Reader::Idle],
            cached: VecDeque::new(),
            pins: Vec::new(),
            mail: VecDeque::new(),
            asking: None,
            asked_below: 0,
            actual: BTreeMap::new(),
            met: Met::default(),
        }
    }

    fn step(&mut self) -> Step {
        self.now += 1;
        match self.dice.below(100) {
            0..30 => self.owner_step(),
            30..52 => self.reader_step(true),
            52..55 => {
                self.copier_step();
                Ok(())
            }
            _ => self.producer_step(true),
        }
    }

    /// No new puts; all parties continue until nothing is unsettled.
    fn finish(&mut self) -> Step {
        for _ in 0..200_000 {
            self.now += 1;
            self.copier_step();
            match self.dice.below(3) {
                0 => self.owner_step()?,
                1 => self.reader_step(false)?,
                _ => self.producer_step(false)?,
            }
            let idle = self.producers.iter().all(Producer::is_done);
            if idle && self.pins.is_empty() && self.w.log.unsettled_bytes().unwrap() == 0 {
                return self.nothing_lost();
            }
        }
        Err(Wrong::Stuck(self.w.log.unsettled_bytes().unwrap()))
    }

    /// Every acknowledged put was served, or one of its key was.
    fn nothing_lost(&mut self) -> Step {
        for (&p, actual) in self.actual.iter().filter(|(_, actual)| actual.acknowledged) {
            let at = (self.w.layout.slot(p), self.w.layout.epoch(p).unwrap());
            let served = self.w.index.inserted.contains(&at);
            if !served && !self.w.index.refused.borrow().contains(&actual.key) {
                return Err(Wrong::Lost(p));
            }
        }
        Ok(())
    }

    /// What must be true at any time.
    fn observe(&self) -> Step {
        if !self.all_seeing {
            return Ok(());
        }
        let log = &self.w.log;
        let (settled, unsettled) =
            (settled_bytes(&log.counts()), self.w.log.unsettled_bytes().unwrap());
        if settled + unsettled != log.claimed_bytes().unwrap() {
            return Err(Wrong::Counts(format!("{settled} + {unsettled}: {log:?}")));
        }
        let mut keys = HashSet::new();
        for slot in 0..self.w.layout.slots() {
            let at = self.w.layout.header_off(slot);
            let mut h = ObjHeader::default();
            self.w.memory.read(at, h.as_mut_bytes()).unwrap();
            let epoch = epoch_of(h.owner);
            let served = low(h.owner) & flag::LIVE != 0 && h.publish == ready(epoch);
            if served && !keys.insert((h.key_hash, h.key_check)) {
                return Err(Wrong::TwoOfOneKey(crate::object::key_of(&h)));
            }
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Bug, all_seeing: bool) -> Result<Met, Wrong> {
    let mut model = Model::new(seed, bug, all_seeing);
    for _ in 0..STEPS {
        model.step()?;
    }
    model.finish()?;
    let counts = model.w.log.counts();
    // Counts of the current table; those of earlier tables are in `met` already.
    model.note_counts(counts);
    Ok(model.met)
}

/// Runs seeds until one finds an error; returns the error, and the number of seeds.
fn caught(bug: Bug, all_seeing: bool) -> (Wrong, u64) {
    for seed in 0..4 * SEEDS {
        if let Err(wrong) = run(seed, bug, all_seeing) {
            println!("{bug:?}: seed {seed}: {wrong:?}");
            return (wrong, seed);
        }
    }
    panic!("{bug:?} was not caught in {} runs", 4 * SEEDS);
}

#[test]
fn i13_i14_i15_any_life_of_a_log_is_whole_and_loses_nothing() {
    let seeds = std::env::var("NKV_MODEL_SEEDS").map_or(SEEDS, |text| text.parse().unwrap());
    let mut sum = [0; 19];
    for seed in 0..seeds {
        let met =
            run(seed, Bug::None, true).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:?}"));
        let one = [
            met.puts,
            met.reads,
            met.rejected,
            met.slow,
            met.pinned,
            met.crashes,
            met.fences,
            met.waits,
            met.aborts,
            met.restarts,
            met.skipped,
            met.abandoned,
            met.voided,
            met.duplicates,
            met.removed,
            met.evicted,
            met.copies,
            met.stale_copies,
            met.passed_over,
        ];
        sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
    }
    println!("met in {seeds} runs: {sum:?}");
    // Copies end stale only if their original ends in the middle of them.
    let stale = sum[17];
    assert!(stale >= seeds / 30, "copies are too seldom stale: {sum:?}");
    sum[17] = seeds;
    assert!(sum.iter().all(|n| *n >= seeds / 4), "too seldom met to say anything: {sum:?}");
}

#[test]
fn i14_a_fence_that_is_skipped_is_caught_by_a_reader_alone() {
    assert!(matches!(caught(Bug::SkipsTheFence, false).0, Wrong::Bytes(_) | Wrong::Lost(_)));
    assert!(matches!(caught(Bug::SkipsTheFence, true).0, Wrong::VoidUnderAWriter(_)));
}

#[test]
fn i7_live_left_set_on_eviction_is_caught() {
    let (wrong, _) = caught(Bug::KeepsLive, false);
    assert!(matches!(wrong, Wrong::Bytes(_)), "{wrong:?}");
}

#[test]
fn i13_a_write_above_the_limit_is_caught_by_a_reader_alone() {
    let (wrong, _) = caught(Bug::WritesAboveTheLimit, false);
    assert!(matches!(wrong, Wrong::Bytes(_) | Wrong::Lost(_)), "{wrong:?}");
    let (wrong, _) = caught(Bug::WritesAboveTheLimit, true);
    assert!(matches!(wrong, Wrong::AboveTheLimit(_)), "{wrong:?}");
}

#[test]
fn i14_a_claim_entered_late_or_left_early_is_caught() {
    for bug in [Bug::EntersLate, Bug::LeavesEarly] {
        let (wrong, _) = caught(bug, true);
        assert!(matches!(wrong, Wrong::VoidUnderAWriter(_)), "{bug:?}: {wrong:?}");
    }
}

#[test]
fn i9_a_tail_that_passes_what_is_pinned_is_caught() {
    let (wrong, _) = caught(Bug::IgnoresPins, false);
    assert!(matches!(wrong, Wrong::Bytes(_)), "{wrong:?}");
}

#[test]
fn i8_a_quarantine_that_is_skipped_is_caught() {
    let (wrong, _) = caught(Bug::SkipsTheQuarantine, false);
    assert!(matches!(wrong, Wrong::Bytes(_)), "{wrong:?}");
}

#[test]
fn i15_an_owner_that_ignores_duplicates_is_caught() {
    let (wrong, _) = caught(Bug::IgnoresDuplicates, true);
    assert!(matches!(wrong, Wrong::TwoOfOneKey(_)), "{wrong:?}");
}

#[test]
fn i13_an_abandoned_claim_that_is_written_is_caught() {
    let (wrong, _) = caught(Bug::WritesWhatItAbandoned, true);
    assert!(matches!(wrong, Wrong::AboveTheLimit(_) | Wrong::BelowTheTail(_)), "{wrong:?}");
}
