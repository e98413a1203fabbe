//! A disk in memory that loses power, is killed in the middle of a write, and fails on demand.

use nkv_ssd::piece::Piece;
use nkv_ssd::storage::{BlockFile, Storage};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex};

/// What a disk writes as one.
const SECTOR: usize = 512;

/// A small generator, so that each seed is one run.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[derive(Debug, Default, Clone)]
struct Blob {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync, in order.
    unsynced: Vec<(usize, Vec<u8>)>,
}

/// What is done to names until the directory is synced.
#[derive(Debug, Clone)]
enum NameChange {
    Made(String, usize),
    Renamed(String, String),
    Removed(String),
}

#[derive(Debug, Default)]
struct World {
    blobs: Vec<Blob>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    changes: Vec<NameChange>,
    /// Writes, syncs and changes of names until the process is killed in the middle of one.
    until_killed: Option<u64>,
    killed: bool,
    rng: Option<Rng>,
    free_bytes: u64,
    /// What the next reads and writes fail with.
    pub failing: Failing,
}

/// Faults of the disk, as long as they are set.
#[derive(Debug, Default, Clone, Copy)]
pub struct Failing {
    pub reads: bool,
    pub writes: Option<ErrorKind>,
    pub syncs: bool,
    pub names: bool,
    pub removals: bool,
    /// After so many removals one fails.
    pub removals_until_one_fails: Option<u64>,
    pub panics: bool,
}

/// See the module. Clones are one disk.
#[derive(Debug, Clone)]
pub struct Ram(Arc<Mutex<World>>);

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Made(name, blob) => drop(names.insert(name.clone(), *blob)),
        NameChange::Renamed(from, to) => {
            if let Some(blob) = names.remove(from) {
                names.insert(to.clone(), blob);
            }
        }
        NameChange::Removed(name) => drop(names.remove(name)),
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, from: &[u8]) {
    if bytes.len() < at + from.len() {
        bytes.resize(at + from.len(), 0);
    }
    bytes[at..at + from.len()].copy_from_slice(from);
}

impl Ram {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(World { free_bytes: 1 << 40, ..World::default() })))
    }

    pub fn fails(&self, failing: Failing) {
        self.0.lock().unwrap().failing = failing;
    }

    pub fn has_free(&self, bytes: u64) {
        self.0.lock().unwrap().free_bytes = bytes;
    }

    /// The process dies in the middle of the `count`th change from now.
    pub fn kill_after(&self, count: u64, rng: Rng) {
        let mut world = self.0.lock().unwrap();
        (world.until_killed, world.rng) = (Some(count), Some(rng));
    }

    pub fn is_killed(&self) -> bool {
        self.0.lock().unwrap().killed
    }

    /// The disk as the next process finds it. After a loss of power any of the sectors and names
    /// that were not synced may be there or not.
    pub fn after_the_crash(&self, power_lost: bool, rng: &mut Rng) -> Ram {
        let world = self.0.lock().unwrap();
        let mut after = World { free_bytes: world.free_bytes, ..World::default() };
        if !power_lost {
            after.names = world.names.clone();
            after.blobs = world.blobs.clone();
            return Ram(Arc::new(Mutex::new(after)));
        }
        after.names = world.durable_names.clone();
        for change in &world.changes {
            if rng.one_in(2) {
                apply(&mut after.names, change);
            }
        }
        for blob in &world.blobs {
            let mut kept = blob.durable.clone();
            let likely = rng.below(4) + 1;
            let mut sectors: Vec<(usize, &[u8])> = Vec::new();
            for (at, bytes) in &blob.unsynced {
                let each = bytes.chunks(SECTOR).enumerate();
                sectors.extend(each.map(|(number, sector)| (at + number * SECTOR, sector)));
            }
            while !sectors.is_empty() {
                let (at, sector) = sectors.swap_remove(rng.below(sectors.len() as u64) as usize);
                if rng.below(4) < likely {
                    put(&mut kept, at, sector);
                }
            }
            after.blobs.push(Blob { seen: kept.clone(), durable: kept, unsynced: Vec::new() });
        }
        after.durable_names = after.names.clone();
        Ram(Arc::new(Mutex::new(after)))
    }

    /// Changes bytes of files whose names begin so.
    pub fn damage(&self, prefix: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut world = self.0.lock().unwrap();
        let found = world.names.iter().filter(|(name, _)| name.starts_with(prefix));
        let blobs: Vec<usize> = found.map(|(_, blob)| *blob).collect();
        assert!(!blobs.is_empty(), "no file {prefix}");
        for blob in blobs {
            change(&mut world.blobs[blob].seen);
            world.blobs[blob].durable = world.blobs[blob].seen.clone();
        }
    }
}

impl World {
    /// Counts a change; false if the process is dead, or dies with this one.
    fn goes_on(&mut self) -> Result<bool> {
        if self.killed {
            return Err(Error::other("killed"));
        }
        match &mut self.until_killed {
            Some(0) => {
                self.killed = true;
                Ok(false)
            }
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None => Ok(true),
        }
    }

    fn change(&mut self, change: NameChange) -> Result<()> {
        if !self.goes_on()? {
            return Err(Error::other("killed"));
        }
        apply(&mut self.names, &change);
        self.changes.push(change);
        Ok(())
    }
}

impl Storage for Ram {
    fn open(&self, name: &str, create: bool) -> Result<Box<dyn BlockFile>> {
        let mut world = self.0.lock().unwrap();
        let blob = match world.names.get(name) {
            Some(blob) => *blob,
            None if create => {
                world.blobs.push(Blob::default());
                let blob = world.blobs.len() - 1;
                world.change(NameChange::Made(name.to_owned(), blob))?;
                blob
            }
            None => return Err(ErrorKind::NotFound.into()),
        };
        Ok(Box::new(RamFile { ram: self.clone(), blob }))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().unwrap().names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut world = self.0.lock().unwrap();
        if !world.names.contains_key(from) {
            return Err(ErrorKind::NotFound.into());
        }
        world.change(NameChange::Renamed(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut world = self.0.lock().unwrap();
        if !world.names.contains_key(name) {
            return Err(ErrorKind::NotFound.into());
        }
        let left = world.failing.removals_until_one_fails;
        world.failing.removals_until_one_fails = left.and_then(|left| left.checked_sub(1));
        if world.failing.removals || left == Some(0) {
            return Err(Error::other("the disk does not remove files"));
        }
        world.change(NameChange::Removed(name.to_owned()))
    }

    fn sync_names(&self) -> Result<()> {
        let mut world = self.0.lock().unwrap();
        if !world.goes_on()? {
            return Err(Error::other("killed"));
        }
        if world.failing.names {
            return Err(Error::other("the disk does not sync names"));
        }
        world.durable_names = world.names.clone();
        world.changes.clear();
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().free_bytes)
    }

    fn shown(&self) -> String {
        "/ram".to_owned()
    }
}

#[derive(Debug)]
struct RamFile {
    ram: Ram,
    blob: usize,
}

impl BlockFile for RamFile {
    fn size(&self) -> Result<u64> {
        Ok(self.ram.0.lock().unwrap().blobs[self.blob].seen.len() as u64)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        let mut world = self.ram.0.lock().unwrap();
        if !world.goes_on()? {
            return Err(Error::other("killed"));
        }
        let blob = &mut world.blobs[self.blob];
        // A length is durable at once: what is in it is not.
        blob.seen.resize(len as usize, 0);
        blob.durable.resize(len as usize, 0);
        blob.unsynced.retain(|(at, bytes)| at + bytes.len() <= len as usize);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [Piece<'_>]) -> Result<()> {
        let world = self.ram.0.lock().unwrap();
        if world.failing.reads {
            return Err(Error::other("the disk does not read"));
        }
        let mut at = at as usize;
        for piece in into {
            let bytes = world.blobs[self.blob].seen.get(at..at + piece.len());
            piece.fill(bytes.ok_or(ErrorKind::UnexpectedEof)?);
            at += piece.len();
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[Piece<'_>]) -> Result<()> {
        let bytes: Vec<u8> = from.iter().flat_map(Piece::to_vec).collect();
        assert!(at.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
        let mut world = self.ram.0.lock().unwrap();
        let whole = world.goes_on()?;
        if world.failing.panics {
            drop(world);
            panic!("the disk panics");
        }
        if let Some(kind) = world.failing.writes {
            return Err(kind.into());
        }
        let mut rng = world.rng.clone().unwrap_or_else(|| Rng::new(1));
        let blob = &mut world.blobs[self.blob];
        if whole {
            put(&mut blob.seen, at as usize, &bytes);
            blob.unsynced.push((at as usize, bytes));
        } else {
            for (number, sector) in bytes.chunks(SECTOR).enumerate().filter(|_| rng.one_in(2)) {
                let at = at as usize + number * SECTOR;
                put(&mut blob.seen, at, sector);
                blob.unsynced.push((at, sector.to_vec()));
            }
        }
        if blob.durable.len() < blob.seen.len() {
            let len = blob.seen.len();
            blob.durable.resize(len, 0);
        }
        whole.then_some(()).ok_or_else(|| Error::other("killed"))
    }

    fn sync_data(&self) -> Result<()> {
        let mut world = self.ram.0.lock().unwrap();
        if !world.goes_on()? {
            return Err(Error::other("killed"));
        }
        let fails = world.failing.syncs;
        let blob = &mut world.blobs[self.blob];
        // As a disk does whose sync fails: what was written is seen, and is lost with the power,
        // also if a later sync succeeds.
        for (at, bytes) in std::mem::take(&mut blob.unsynced) {
            if !fails {
                put(&mut blob.durable, at, &bytes);
            }
        }
        if fails { Err(Error::other("the disk does not sync")) } else { Ok(()) }
    }
}
