//! The holder's side of a pin table: which word pins which object and for how many views, and the
//! pinned bytes.

use super::{PINS, Table};
use crate::fork::{self, ProcessMark};
use crate::layout::Region;
use crate::memory::HostMemory;
use hashbrown::HashMap;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Held {
    // (slot, epoch) -> (word that pins the object, number of views).
    by_object: HashMap<(u32, u32), (u32, u32)>,
    free: Vec<u32>,
    used: u32,
    closed: bool,
}

impl Held {
    fn word(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = self.used;
            self.used += u32::from(next < PINS);
            (next < PINS).then_some(next)
        })
    }
}

/// The pins of one handle in one segment, which stays mapped as long as they live.
#[derive(Debug)]
pub struct Pins {
    memory: HostMemory,
    table: Table,
    held: Mutex<Held>,
    made: ProcessMark,
}

/// Why an object could not be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPin {
    /// All [`PINS`] words name other objects: drop views.
    Full,
    /// The handle has detached from this segment.
    Closed,
    /// The header is not valid after the pin was set: look the object up again.
    Changed,
}

impl Pins {
    /// The pins of the holder of table `number`; None if the segment has no such table.
    pub fn new(memory: HostMemory, pins: &Region, number: u32) -> Option<Pins> {
        let table = Table::of(pins, number)?;
        Some(Pins { memory, table, held: Mutex::default(), made: ProcessMark::here() })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins an object and returns its `len` bytes at `offset`. As [`Pins::pin`].
    pub fn pin_bytes(
        self: &Arc<Self>,
        object: (u32, u32),
        (offset, len): (u64, u64),
        still_valid: impl FnOnce() -> bool,
    ) -> Result<PinnedBytes, NoPin> {
        let at = self.memory.words().at("pin", offset, len).map_err(|_| NoPin::Changed)?;
        let pin = self.pin(object, still_valid)?;
        Ok(PinnedBytes { pin, at, len: len as usize })
    }

    /// Pins an object. `still_valid` is called after the fence and returns whether the header is
    /// still valid [I2].
    pub fn pin(
        self: &Arc<Self>,
        (slot, epoch): (u32, u32),
        still_valid: impl FnOnce() -> bool,
    ) -> Result<Pin, NoPin> {
        let mut held = self.lock();
        if held.closed {
            return Err(NoPin::Closed);
        }
        let known = held.by_object.get(&(slot, epoch)).copied();
        let (word, views) = match known {
            Some(known) => known,
            None => (held.word().ok_or(NoPin::Full)?, 0),
        };
        held.by_object.insert((slot, epoch), (word, views + 1));
        if views == 0 {
            // Inside the segment: the table was checked when this value was made.
            let set = self.table.set(self.memory.words(), word, slot, epoch);
            debug_assert!(set.is_ok(), "a pin table outside its segment");
        }
        drop(held);
        let pinned = Pin { pins: self.clone(), object: (slot, epoch) };
        // If it is dropped here, the pin is cleared.
        if still_valid() { Ok(pinned) } else { Err(NoPin::Changed) }
    }

    /// Refuses further pins; returns false and changes nothing while an object is pinned.
    pub fn close(&self) -> bool {
        let mut held = self.lock();
        held.closed |= held.by_object.is_empty();
        held.closed
    }

    fn release(&self, object: (u32, u32)) {
        let mut held = self.lock();
        let Some((word, views)) = held.by_object.get_mut(&object) else { return };
        *views -= 1;
        if *views > 0 {
            return;
        }
        let word = *word;
        held.by_object.remove(&object);
        held.free.push(word);
        let cleared = self.table.clear(self.memory.words(), word);
        debug_assert!(cleared.is_ok(), "a pin table outside its segment");
    }
}

/// A pinned object: its bytes stay in place, and do not change, until this is dropped.
#[derive(Debug)]
pub struct Pin {
    pins: Arc<Pins>,
    /// Slot and epoch.
    object: (u32, u32),
}

impl Drop for Pin {
    fn drop(&mut self) {
        // In a forked child the table is not mapped, and the pin is its parent's.
        if self.pins.made.is_here() {
            self.pins.release(self.object);
        }
    }
}

/// The bytes of a pinned object in place.
#[derive(Debug)]
pub struct PinnedBytes {
    pin: Pin,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are shared memory that nobody writes while they are pinned [I6] [I9]; the
// address is good for any thread of the process that mapped it.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for PinnedBytes {}

impl Deref for PinnedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // A child made by fork has no mapping here: panic with a text instead of SIGSEGV.
        assert!(self.pin.pins.made.is_here(), "{}", fork::MESSAGE);
        // SAFETY: `at` was checked to have `len` bytes in the mapping that `pins` keeps; published
        // bytes do not change [I6], and their extent is not given away while the pin stands [I9].
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::{Heap, HeapConfig};
    use crate::memory::AnonMemory;
    use crate::pins::scan;

    fn pins() -> (Heap, Arc<Pins>) {
        let config = HeapConfig { arena_bytes: 64 << 10, ..HeapConfig::default() };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory.clone(), &config).unwrap();
        let host = HostMemory::of(memory).unwrap();
        let pins = Pins::new(host, &heap.layout().pins, 3).unwrap();
        (heap, Arc::new(pins))
    }

    fn seen(heap: &Heap) -> Vec<(u32, u32)> {
        let host = HostMemory::of(heap.memory().clone()).unwrap();
        let mut all: Vec<_> =
            scan(host.words(), &heap.layout().pins).unwrap().into_iter().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn i9_an_object_stays_named_until_its_last_view_is_gone() {
        let (heap, pins) = pins();
        let a = pins.pin_bytes((5, 1), (8192, 16), || true).unwrap();
        let b = pins.pin_bytes((5, 1), (8192, 16), || true).unwrap();
        let c = pins.pin_bytes((0, 9), (8192, 16), || true).unwrap();
        assert_eq!((seen(&heap), pins.lock().by_object.len()), (vec![(0, 9), (5, 1)], 2));
        drop(a);
        assert_eq!(seen(&heap), [(0, 9), (5, 1)]);
        drop(c);
        assert_eq!(seen(&heap), [(5, 1)]);
        drop(b);
        assert!(seen(&heap).is_empty() && pins.lock().by_object.is_empty());
    }

    #[test]
    fn i9_a_pin_whose_second_look_fails_is_taken_back() {
        let (heap, pins) = pins();
        let named = || seen(&heap) == [(7, 2)];
        assert_eq!(pins.pin_bytes((7, 2), (0, 8), || !named()).unwrap_err(), NoPin::Changed);
        assert!(seen(&heap).is_empty());
        assert_eq!(pins.pin_bytes((7, 2), (u64::MAX, 8), || true).unwrap_err(), NoPin::Changed);
    }

    #[test]
    fn pins_are_bounded_and_end_with_the_handle() {
        let (heap, pins) = pins();
        let all: Vec<_> =
            (0..PINS).map(|i| pins.pin_bytes((i, 1), (0, 1), || true).unwrap()).collect();
        assert_eq!(pins.pin_bytes((PINS, 1), (0, 1), || true).unwrap_err(), NoPin::Full);
        assert_eq!(seen(&heap).len(), PINS as usize);
        assert!(!pins.close(), "an object is pinned");
        drop(all);
        assert!(pins.close());
        assert_eq!(pins.pin_bytes((1, 1), (0, 1), || true).unwrap_err(), NoPin::Closed);
        assert!(Pins::new(pins.memory.clone(), &heap.layout().pins, 128).is_none());
    }

    #[test]
    fn i9_a_dead_holders_table_is_wiped_and_nobody_elses() {
        let (heap, pins) = pins();
        let other = Arc::new(Pins::new(pins.memory.clone(), &heap.layout().pins, 4).unwrap());
        let (_a, _b) = (
            pins.pin_bytes((1, 1), (0, 1), || true).unwrap(),
            other.pin_bytes((2, 1), (0, 1), || true).unwrap(),
        );
        pins.table.wipe(pins.memory.words()).unwrap();
        assert_eq!(seen(&heap), [(2, 1)]);
    }
}
