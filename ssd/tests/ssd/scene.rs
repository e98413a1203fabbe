//! What the tests share: a segment, objects with contents of their own, a clock that is set.

use nkv_ssd::{Durability, WallClock, slab::SlabOptions};
use nkv_ssd::{
    Engine, FilesEngine, LoadError, Object, Payload, Saved, SlabEngine, SsdError, Storage,
    files::FilesOptions,
};
use nkv_store::{AnonMemory, Key, Memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const SLAB: u64 = 1 << 20;
pub const DAY_S: u64 = 86_400;

/// A clock that tests set, in seconds.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    pub fn advance_s(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    pub fn wall(&self) -> WallClock {
        let now = self.0.clone();
        Arc::new(move || now.load(Ordering::Relaxed))
    }
}

pub fn slab_options(clock: &Clock, slabs: u64, durability: Durability) -> SlabOptions {
    SlabOptions {
        capacity_bytes: slabs * SLAB,
        slab_bytes: SLAB,
        durability,
        ttl_s: 7 * DAY_S,
        clock: clock.wall(),
    }
}

/// Both engines, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Slab,
    Files,
}

pub const KINDS: [Kind; 2] = [Kind::Slab, Kind::Files];

impl Kind {
    pub fn open(
        self,
        storage: Arc<dyn Storage>,
        clock: &Clock,
        slabs: u64,
        durability: Durability,
    ) -> Result<Box<dyn Engine>, SsdError> {
        let options = slab_options(clock, slabs, durability);
        Ok(match self {
            Kind::Slab => Box::new(SlabEngine::open(storage, options)?),
            Kind::Files => {
                let SlabOptions { capacity_bytes, durability, ttl_s, clock, .. } = options;
                let options = FilesOptions { capacity_bytes, durability, ttl_s, clock };
                Box::new(FilesEngine::open(storage, options)?)
            }
        })
    }
}

pub fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

/// Bytes that no other key and version have.
pub fn content(key: &Key, version: u64, len: u64) -> Vec<u8> {
    let mut state = nkv_store::key::key_hash(key.as_bytes()) ^ version.wrapping_mul(0x9e37_79b9);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u8
    };
    (0..len).map(next).collect()
}

/// A segment from which objects are saved, and into which they are loaded.
pub struct Segment(AnonMemory);

impl Segment {
    pub fn new(bytes: usize) -> Self {
        Self(AnonMemory::new(bytes as u64).unwrap())
    }

    /// Saves bytes that lie at `offset` of the segment.
    pub fn save_at(&self, engine: &dyn Engine, offset: u64, key: &Key, bytes: &[u8]) -> Saved {
        self.0.write(offset, bytes).unwrap();
        let payload = Payload { memory: &self.0, offset, len: bytes.len() as u64 };
        engine.save(&[Object { key, layout: 0, payload }]).pop().unwrap()
    }

    pub fn save(&self, engine: &dyn Engine, key: &Key, bytes: &[u8]) -> Saved {
        self.save_at(engine, 0, key, bytes)
    }

    pub fn load_at(
        &self,
        engine: &dyn Engine,
        offset: u64,
        key: &Key,
    ) -> Result<Vec<u8>, LoadError> {
        let found = engine.find(key).ok_or(LoadError::NotFound)?;
        let payload = Payload { memory: &self.0, offset, len: found.len };
        assert_eq!(engine.load(key, payload)?, found);
        let mut bytes = vec![0; found.len as usize];
        self.0.read(offset, &mut bytes).unwrap();
        Ok(bytes)
    }

    pub fn load(&self, engine: &dyn Engine, key: &Key) -> Result<Vec<u8>, LoadError> {
        self.load_at(engine, 0, key)
    }
}

pub fn is_saved(saved: &Saved) -> bool {
    matches!(saved, Saved::Saved)
}
