//! A process that dies at any write, with and without a loss of power, again and again.

use crate::disk::{Ram, Rng};
use crate::scene::{Clock, Kind, Segment, content, is_saved, key};
use nkv_ssd::Durability;
use nkv_ssd::{Engine, LoadError, Saved};
use std::collections::BTreeMap;

const KEYS: u64 = 24;
/// Few, so that an older object of a key has the same one.
const LENGTHS: [u64; 3] = [1_000, 9_000, 60_000];

/// What may be found under a key after a crash.
#[derive(Debug, Default, Clone)]
struct Known {
    /// Versions whose save began since the last removal that was acknowledged.
    may_be: Vec<(u64, u64)>,
    /// The last one was acknowledged, and no removal began since.
    must_be: bool,
}

/// Random calls on one directory, over several crashes.
struct Run {
    rng: Rng,
    ram: Ram,
    kind: Kind,
    durability: Durability,
    power_lost: bool,
    clock: Clock,
    segment: Segment,
    known: BTreeMap<u64, Known>,
    version: u64,
    evicts: bool,
}

#[derive(Default)]
struct Seen {
    saves: u64,
    kept: u64,
    killed: u64,
}

impl Run {
    fn new(seed: u64, kind: Kind, durability: Durability, power_lost: bool) -> Self {
        let mut rng = Rng::new(seed);
        let evicts = rng.one_in(3);
        Self {
            ram: Ram::new(),
            kind,
            durability,
            power_lost,
            clock: Clock::new(),
            segment: Segment::new(1 << 20),
            known: BTreeMap::new(),
            version: 0,
            evicts,
            rng,
        }
    }

    fn name(number: u64) -> nkv_store::Key {
        key(&format!("key/{number}"))
    }

    /// Opens the directory; None if the process is killed meanwhile.
    fn open(&self) -> Option<Box<dyn Engine>> {
        let slabs = if self.evicts { 2 } else { 4 };
        let storage = std::sync::Arc::new(self.ram.clone());
        match self.kind.open(storage, &self.clock, slabs, self.durability) {
            Ok(engine) => Some(engine),
            Err(_) if self.ram.is_killed() => None,
            Err(error) => panic!("[I23] a start was refused: {error}"),
        }
    }

    /// Power may take back what was acknowledged, also a removal: an older object of the key is
    /// then found again.
    fn loses_what_it_acknowledged(&self) -> bool {
        self.power_lost && self.durability == Durability::BestEffort
    }

    /// Calls until the process dies.
    fn lives(&mut self, seen: &mut Seen) {
        let Some(engine) = self.open() else { return };
        while !self.ram.is_killed() {
            let number = self.rng.below(KEYS);
            let name = Self::name(number);
            match self.rng.below(10) {
                0..6 => self.saves(&*engine, number, seen),
                6 => {
                    self.known.entry(number).or_default().must_be = false;
                    if engine.remove(&[&name]).is_ok() && !self.loses_what_it_acknowledged() {
                        self.known.remove(&number);
                    }
                }
                7 => drop(engine.maintain()),
                8 => self.clock.advance_s(self.rng.below(10)),
                _ => self.is_right(&*engine, number),
            }
        }
        seen.killed += 1;
    }

    fn saves(&mut self, engine: &dyn Engine, number: u64, seen: &mut Seen) {
        let name = Self::name(number);
        if engine.find(&name).is_some() {
            return;
        }
        self.version += 1;
        let (version, len) = (self.version, LENGTHS[self.rng.below(3) as usize]);
        self.known.entry(number).or_default().may_be.push((version, len));
        let saved = self.segment.save(engine, &name, &content(&name, version, len));
        if is_saved(&saved) {
            seen.saves += 1;
            let forgets = !self.loses_what_it_acknowledged();
            let known = self.known.entry(number).or_default();
            known.must_be = true;
            if forgets {
                known.may_be = vec![(version, len)];
            }
        } else {
            assert!(!matches!(saved, Saved::Collision), "{saved:?}");
        }
    }

    fn is_right(&self, engine: &dyn Engine, number: u64) {
        let name = Self::name(number);
        let known = self.known.get(&number).cloned().unwrap_or_default();
        match self.segment.load(engine, &name) {
            Ok(bytes) => {
                let whole = |(version, len): &(u64, u64)| bytes == content(&name, *version, *len);
                assert!(known.may_be.iter().any(whole), "[I21] wrong bytes of {number}: {known:?}");
            }
            Err(LoadError::NotFound) => {}
            // A record that was not on disk when the power went.
            Err(LoadError::Corrupt(_)) if self.power_lost => {}
            Err(_) if self.ram.is_killed() => {}
            Err(error) => panic!("key {number}: {error}"),
        }
    }

    /// The next process: all that was promised is there, and nothing else.
    fn comes_back(&mut self, seen: &mut Seen) {
        self.ram = self.ram.after_the_crash(self.power_lost, &mut self.rng);
        let Some(engine) = self.open() else { panic!("nothing kills it yet") };
        for number in 0..KEYS {
            let known = self.known.get(&number).cloned().unwrap_or_default();
            let found = engine.find(&Self::name(number)).is_some();
            let promised = self.durability == Durability::Persistent && !self.evicts;
            if known.must_be && promised {
                assert!(found, "[I22] key {number} was saved: {known:?}");
                assert!(self.segment.load(&*engine, &Self::name(number)).is_ok(), "[I22] {number}");
                seen.kept += 1;
            }
            self.is_right(&*engine, number);
        }
        let validated = engine.validate().unwrap();
        assert_eq!(engine.validate().unwrap().missing_cleaned, 0, "after {validated:?}");
        for number in 0..KEYS {
            let known = self.known.entry(number).or_default();
            known.must_be &= engine.find(&Self::name(number)).is_some();
        }
    }
}

fn runs(kind: Kind, durability: Durability, power_lost: bool, seeds: u64) {
    let mut seen = Seen::default();
    for seed in 0..seeds {
        let mut run = Run::new(seed, kind, durability, power_lost);
        for _ in 0..4 {
            let at = run.rng.below(120);
            run.ram.kill_after(at, run.rng.clone());
            run.lives(&mut seen);
            run.comes_back(&mut seen);
        }
    }
    let Seen { saves, kept, killed } = seen;
    println!(
        "{kind:?} {durability:?} power {power_lost}: {saves} saves, {killed} kills, {kept} kept"
    );
    assert!(saves > seeds && killed > seeds);
    assert!(durability == Durability::BestEffort || kept > seeds);
}

#[test]
fn i22_i23_slabs_survive_power_loss_at_any_write_under_persistent() {
    runs(Kind::Slab, Durability::Persistent, true, 250);
}

#[test]
fn i22_i23_slabs_survive_a_kill_at_any_write_under_persistent() {
    runs(Kind::Slab, Durability::Persistent, false, 100);
}

#[test]
fn i23_slabs_have_no_wrong_byte_after_power_loss_under_best_effort() {
    runs(Kind::Slab, Durability::BestEffort, true, 100);
}

#[test]
fn i23_slabs_have_no_wrong_byte_after_a_kill_under_best_effort() {
    runs(Kind::Slab, Durability::BestEffort, false, 100);
}

#[test]
fn i23_files_survive_a_kill_at_any_write() {
    runs(Kind::Files, Durability::Persistent, false, 50);
    runs(Kind::Files, Durability::Persistent, true, 50);
}

#[test]
fn i22_what_several_threads_save_at_once_survives_power_loss() {
    let mut kept = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let (ram, clock) = (Ram::new(), Clock::new());
        let open = |ram: &Ram| {
            let storage = std::sync::Arc::new(ram.clone());
            Kind::Slab.open(storage, &clock, 4, Durability::Persistent).unwrap()
        };
        let engine = open(&ram);
        ram.kill_after(rng.below(150), rng.clone());
        let acknowledged = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (engine, acknowledged) = (&*engine, &acknowledged);
                scope.spawn(move || {
                    let segment = Segment::new(1 << 16);
                    for number in 0..40 {
                        let name = key(&format!("key/{thread}/{number}"));
                        if is_saved(&segment.save(engine, &name, &content(&name, 1, 9_000))) {
                            acknowledged.lock().unwrap().push(name);
                        }
                    }
                });
            }
        });
        drop(engine);
        let engine = open(&ram.after_the_crash(true, &mut rng));
        let segment = Segment::new(1 << 16);
        for name in acknowledged.into_inner().unwrap() {
            let read = segment.load(&*engine, &name);
            assert!(read.is_ok_and(|read| read == content(&name, 1, 9_000)), "[I22] seed {seed}");
            kept += 1;
        }
    }
    assert!(kept > 1000, "{kept}");
}
