//! The state of one segment, computed only from the words written to its memory, from no actor and
//! no message: which objects are readable, which put wrote their bytes, and what ended them. Rules
//! about the segment alone are checked here; the ledger checks what an object's end means for its
//! put.

mod log;

use crate::ledger::{Ledger, SlotEpoch};
use crate::stack;
use nkv_actors::actor::ActorWatch;
use nkv_store::layout::{
    HEADER_BYTES, KEY_CHECK_OFF, OWNER_OFF, ObjHeader, PUBLISH_OFF, epoch_of, flag, low, state,
};
use nkv_store::{AnonMemory, Heap, KeyId, Memory, SegmentIdentity, SegmentLayout, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Messages in whose handlers an owner evicts.
const EVICTING: [&str; 3] = ["Evict", "EvictWindow", "RetireAll"];
/// Part of the quarantine in which a retired extent must not be written to: clocks of hosts differ.
const SURE_PERCENT: u32 = 90;

/// Why an object ceased to be readable, as far as it can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The owner's own choice.
    Evicted,
    /// This message of the owner's was being handled.
    Handling(&'static str),
    /// Before it was known which actor is the owner.
    Unseen,
    /// Its process ended.
    Died,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    end: u64,
    slot: u32,
    epoch: u32,
}

#[derive(Debug, Clone, Copy)]
struct Retired {
    start: u64,
    end: u64,
    at: Instant,
}

/// A segment that its owner has formatted.
#[derive(Debug, Clone, Copy)]
struct Formatted {
    layout: SegmentLayout,
    identity: SegmentIdentity,
}

#[derive(Default)]
struct Inner {
    segment: Option<Formatted>,
    owner: Option<ActorWatch>,
    // Readable objects by where their payload begins.
    readable: BTreeMap<u64, Extent>,
    // Where each slot's readable object begins.
    starts: BTreeMap<u32, u64>,
    retired: VecDeque<Retired>,
}

/// Sees every change of one segment.
pub struct Watch {
    ledger: Arc<Ledger>,
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment was formatted: from here on its words are checked.
    pub fn formatted(&self, heap: &Heap) {
        let segment = Formatted { layout: *heap.layout(), identity: *heap.identity() };
        self.lock().segment = Some(segment);
    }

    /// This actor is its owner.
    pub fn owned_by(&self, owner: ActorWatch) {
        self.lock().owner = Some(owner);
    }

    /// A client read here.
    pub fn read(&self) {
        if let Some(segment) = self.lock().segment {
            stack::reads_from(segment.identity.incarnation);
        }
    }

    /// Bytes were written. Checks that none of them is readable [I6].
    pub fn written(&self, offset: u64, len: usize) {
        let inner = self.lock();
        let Some(segment) = &inner.segment else { return };
        if len == 0 || offset < payloads(segment) {
            return;
        }
        let end = offset + len as u64;
        let before = inner.readable.range(..end).next_back();
        if let Some((start, hit)) = before.filter(|(_, e)| e.end > offset) {
            self.ledger.wrong(format!(
                "[I6] bytes {offset}..{end} of rank {} were written over slot {} at epoch {}, \
                 which is readable at {start}..{}",
                segment.identity.rank, hit.slot, hit.epoch, hit.end
            ));
        }
    }

    /// A word was changed.
    pub fn word(&self, memory: &AnonMemory, offset: u64, before: u64, after: u64) {
        let mut inner = self.lock();
        let Some(segment) = inner.segment else { return };
        let layout = segment.layout;
        let Some(into) = offset.checked_sub(layout.header_base) else { return };
        let slot = (into / HEADER_BYTES) as u32;
        if slot >= layout.slots {
            return;
        }
        let at = layout.header_off(slot);
        let Ok(header) = header_at(memory, at) else { return };
        let log = layout.device_log().filter(|log| slot < log.slots());
        match (offset - at, log) {
            (OWNER_OFF, None) => {
                let cause = handled(inner.owner.as_ref());
                self.owner_word(&mut inner, &segment, (slot, cause), before, after);
            }
            (OWNER_OFF, Some(log)) => {
                self.owner_word_of_log(
                    &mut inner,
                    (&segment, &log),
                    (memory, slot),
                    (before, after),
                );
            }
            (PUBLISH_OFF, log) if low(after) == state::WRITING => {
                if let Some(log) = log {
                    self.in_time(&segment, &log, memory, (slot, after), &header);
                }
                self.begun(&inner, &segment, slot, &header);
            }
            (PUBLISH_OFF, Some(log)) if low(after) == state::READY => {
                self.in_time(&segment, &log, memory, (slot, after), &header);
                self.settled(&segment, slot, &header, memory);
            }
            (PUBLISH_OFF, None) if low(after) == state::READY => {
                self.published(&mut inner, &segment, slot, &header, memory);
            }
            _ => {}
        }
    }

    fn owner_word(
        &self,
        inner: &mut Inner,
        g: &Formatted,
        (slot, cause): (u32, Cause),
        before: u64,
        after: u64,
    ) {
        let (was, is) = (low(before) & flag::LIVE != 0, low(after) & flag::LIVE != 0);
        let (epoch, next) = (epoch_of(before), epoch_of(after));
        if next < epoch || (is && !was && next == epoch) {
            self.ledger.wrong(format!(
                "[I3] slot {slot} of rank {} went from epoch {epoch} to {next} and is served again",
                g.identity.rank
            ));
        }
        if !was || is {
            return;
        }
        let Some(start) = inner.starts.remove(&slot) else { return };
        let Some(gone) = inner.readable.remove(&start) else { return };
        inner.retired.push_back(Retired { start, end: gone.end, at: Instant::now() });
        let spot = SlotEpoch { incarnation: g.identity.incarnation, slot, epoch };
        self.ledger.retired(spot, cause);
    }

    /// A producer begins to write: checks that it does not touch an extent in quarantine [I8].
    fn begun(&self, inner: &Inner, g: &Formatted, slot: u32, header: &ObjHeader) {
        let sure = Duration::from_nanos(g.layout.quarantine_ns()) * SURE_PERCENT / 100;
        let (start, end) = (header.payload_base, header.payload_base + header.bytes_total);
        let early = |r: &&Retired| r.start < end && start < r.end && r.at.elapsed() < sure;
        if let Some(r) = inner.retired.iter().rev().find(early) {
            self.ledger.wrong(format!(
                "[I8] slot {slot} of rank {} is written at {start}..{end}, {:?} after what lay at \
                 {}..{} was retired; its quarantine is {} ms",
                g.identity.rank,
                r.at.elapsed(),
                r.start,
                r.end,
                g.layout.quarantine_ns() / 1_000_000
            ));
        }
    }

    /// READY was set: every byte must be there [I4], and be of one put of this key.
    fn published(
        &self,
        inner: &mut Inner,
        g: &Formatted,
        slot: u32,
        header: &ObjHeader,
        memory: &AnonMemory,
    ) {
        let epoch = epoch_of(header.owner);
        if low(header.owner) & flag::LIVE == 0 || epoch_of(header.publish) != epoch {
            // Too late: its slot was retired. No reader takes it as valid.
            return;
        }
        let Some(bytes) = self.bytes_of(slot, header, memory) else { return };
        let key = KeyId { hash: header.key_hash, check: header.key_check };
        let spot = SlotEpoch { incarnation: g.identity.incarnation, slot, epoch };
        self.ledger.published(spot, g.identity.rank, key, &bytes);
        self.serves(inner, g, spot, header);
    }

    /// The payload bytes that a header describes.
    fn bytes_of(&self, slot: u32, header: &ObjHeader, memory: &AnonMemory) -> Option<Vec<u8>> {
        let (start, len) = (header.payload_base, header.bytes_total);
        let inside = start.checked_add(len).is_some_and(|end| end <= memory.len());
        let mut bytes = vec![0; if inside { len as usize } else { 0 }];
        if !inside || memory.read(start, &mut bytes).is_err() {
            self.ledger.wrong(format!("[I2] slot {slot} claims {len} bytes at {start}: outside"));
            return None;
        }
        Some(bytes)
    }

    /// From here on it is readable: checks that no other readable object overlaps it.
    fn serves(&self, inner: &mut Inner, g: &Formatted, spot: SlotEpoch, header: &ObjHeader) {
        let (start, len, SlotEpoch { slot, epoch, .. }) =
            (header.payload_base, header.bytes_total, spot);
        let end = start + len;
        let before = inner.readable.range(..end.max(start + 1)).next_back();
        if let Some((at, other)) = before.filter(|(_, e)| e.end > start) {
            self.ledger.wrong(format!(
                "[I10] slot {slot} of rank {} published {start}..{end} over slot {} at {at}",
                g.identity.rank, other.slot
            ));
        }
        if len > 0 {
            inner.readable.insert(start, Extent { end, slot, epoch });
            inner.starts.insert(slot, start);
        } else {
            // An empty object has no place of its own; its slot stands for it.
            let place = NO_PLACE + u64::from(slot);
            inner.readable.insert(place, Extent { end: place, slot, epoch });
            inner.starts.insert(slot, place);
        }
        let old = Duration::from_nanos(g.layout.quarantine_ns());
        while inner.retired.front().is_some_and(|r| r.at.elapsed() > old) {
            inner.retired.pop_front();
        }
    }
}

/// Where payloads begin: those of the log come first.
fn payloads(g: &Formatted) -> u64 {
    g.layout.device_log().map_or(g.layout.arena.offset, |log| log.region().offset)
}

/// Why an owner retires something of the managed arena.
fn handled(owner: Option<&ActorWatch>) -> Cause {
    match owner.map(ActorWatch::doing) {
        None => Cause::Unseen,
        Some(doing) if EVICTING.contains(&doing) => Cause::Evicted,
        Some(doing) => Cause::Handling(doing),
    }
}

/// The header at an offset, as its words are now.
fn header_at(memory: &AnonMemory, at: u64) -> Result<ObjHeader, StoreError> {
    let word = |i: u64| memory.load(at + i);
    let pages = word(8)?;
    Ok(ObjHeader {
        key_hash: word(0)?,
        n_pages: low(pages),
        page_size: epoch_of(pages),
        payload_base: word(16)?,
        bytes_total: word(24)?,
        publish: word(PUBLISH_OFF)?,
        last_access: 0,
        owner: word(OWNER_OFF)?,
        key_check: word(KEY_CHECK_OFF)?,
    })
}

/// Places of empty objects begin here: past every segment.
const NO_PLACE: u64 = 1 << 60;
