//! A policy, and the objects that it must not choose in its order: those that go before all others,
//! those that go last, and those that stay.

use super::list::SlotList;
use super::until_read::UntilRead;
use super::{Policy, PolicyKind};
use crate::retention::Retention;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::time::Duration;

/// An object that may be evicted some day, unless it is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Bytes of its extent.
    pub bytes: u64,
    /// What was asked for when it was put.
    pub retention: Retention,
}

/// A soft pin.
#[derive(Debug, Clone, Copy)]
struct Soft {
    epoch: u32,
    ttl_ms: u64,
    /// When it ends, unless the object is used before.
    until_ms: u64,
    /// It was the policy's choice, and was set aside: its bytes.
    aside: Option<u64>,
}

/// Chooses what is evicted next. What is used without a pin costs no more than the policy alone.
pub struct Retained {
    usual: Box<dyn Policy>,
    /// Least recently used first.
    first: SlotList,
    /// The policy has them, too, until it chooses them.
    soft: HashMap<u32, Soft>,
    /// Those that were set aside, by when their pins end; no two have one slot.
    aside: BTreeMap<(u64, u32), u64>,
    aside_bytes: u64,
    /// Epoch and bytes.
    hard: HashMap<u32, (u32, u64)>,
    hard_bytes: u64,
    /// The policy has them, too.
    until_read: UntilRead,
}

impl Retained {
    /// For slots below `slots`.
    pub fn new(policy: PolicyKind, slots: u32) -> Self {
        Self {
            usual: policy.build(slots),
            first: SlotList::new(slots),
            soft: HashMap::new(),
            aside: BTreeMap::new(),
            aside_bytes: 0,
            hard: HashMap::new(),
            hard_bytes: 0,
            until_read: UntilRead::default(),
        }
    }

    /// A new object. One of an older epoch in the same slot is replaced, and so is the same one if
    /// it was found in its header before its owner had noted the retention there.
    pub fn admit(&mut self, c: Candidate, now_ms: u64) {
        if c.retention != Retention::Usual || self.has_special() {
            match self.epoch_of(c.slot) {
                Some(held) if held > c.epoch || held == c.epoch && self.is_held_as(&c) => return,
                Some(held) => self.forget(c.slot, held),
                None => {}
            }
        }
        match c.retention {
            Retention::Usual => {}
            Retention::LastOfBatch => return self.usual.admit_last(c.slot, c.epoch, c.bytes),
            Retention::EvictFirst | Retention::Extra => {
                return self.first.push(c.slot, c.epoch, c.bytes);
            }
            Retention::SoftPin(ttl) => self.pin_softly(&c, ttl, now_ms),
            Retention::UntilRead(_) => self.until_read.admit(&c, None),
            Retention::HardPin => return self.pin_hard(&c),
        }
        self.usual.admit(c.slot, c.epoch, c.bytes);
    }

    /// An object that was used before all objects held now, at `used_ms`, or never if that is 0.
    /// One that is already held keeps its place.
    pub fn admit_oldest(&mut self, c: Candidate, used_ms: u64) {
        if self.epoch_of(c.slot).is_some() {
            return;
        }
        match c.retention {
            Retention::Usual | Retention::LastOfBatch => {}
            Retention::EvictFirst | Retention::Extra => {
                return self.first.push_oldest(c.slot, c.epoch, c.bytes);
            }
            Retention::SoftPin(ttl) => self.pin_softly(&c, ttl, used_ms),
            Retention::UntilRead(_) => {
                self.until_read.admit(&c, Some(used_ms).filter(|used_ms| *used_ms > 0));
            }
            Retention::HardPin => return self.pin_hard(&c),
        }
        self.usual.admit_oldest(c.slot, c.epoch, c.bytes);
    }

    /// The epoch held of a slot.
    pub fn epoch_of(&self, slot: u32) -> Option<u32> {
        let aside = || self.soft.get(&slot).filter(|s| s.aside.is_some()).map(|s| s.epoch);
        let hard = || self.hard.get(&slot).map(|(epoch, _)| *epoch);
        let usual = self.usual.epoch_of(slot).or_else(|| self.first.epoch_of(slot));
        usual.or_else(aside).or_else(hard)
    }

    /// It was read at that time, as its header says: no matter in what order it is evicted.
    pub fn was_read(&mut self, slot: u32, epoch: u32, read_ms: u64) {
        self.until_read.read(slot, epoch, read_ms);
    }

    /// It was used.
    pub fn touch(&mut self, slot: u32, epoch: u32, now_ms: u64) {
        self.until_read.read(slot, epoch, now_ms);
        if !self.soft.is_empty()
            && let Some(s) = self.soft.get_mut(&slot).filter(|s| s.epoch == epoch)
        {
            let ended = std::mem::replace(&mut s.until_ms, now_ms.saturating_add(s.ttl_ms));
            // The policy has it again, as the newest.
            if let Some(bytes) = s.aside.take() {
                self.aside.remove(&(ended, slot));
                self.aside_bytes -= bytes;
                return self.usual.admit(slot, epoch, bytes);
            }
        }
        if self.first.len() == 0 || !self.first.renew(slot, epoch) {
            self.usual.touch(slot, epoch);
        }
    }

    /// A usual object goes before others from now on.
    pub fn go_first(&mut self, c: &Candidate) {
        let pinned = self.soft.contains_key(&c.slot) || self.until_read.holds(c.slot, c.epoch);
        if self.usual.epoch_of(c.slot) == Some(c.epoch) && !pinned {
            self.usual.forget(c.slot, c.epoch);
            self.first.push(c.slot, c.epoch, c.bytes);
        }
    }

    /// It is removed.
    pub fn forget(&mut self, slot: u32, epoch: u32) {
        self.usual.forget(slot, epoch);
        self.until_read.forget(slot, epoch);
        if !self.has_special() {
            return;
        }
        self.first.remove(slot, epoch);
        if let Some(s) = self.soft.get(&slot).copied().filter(|s| s.epoch == epoch) {
            self.soft.remove(&slot);
            if let Some(bytes) = s.aside {
                self.aside.remove(&(s.until_ms, slot));
                self.aside_bytes -= bytes;
            }
        }
        if let Some((_, bytes)) = self.hard.get(&slot).copied().filter(|(held, _)| *held == epoch) {
            self.hard.remove(&slot);
            self.hard_bytes -= bytes;
        }
    }

    /// Whether the next victim is one that goes before all others.
    pub fn has_first(&self) -> bool {
        self.first.len() > 0
    }

    /// Removes and returns the next victim: slot, epoch, bytes. A soft pin that has not ended is
    /// one where nothing else is left.
    pub fn victim(&mut self, now_ms: u64) -> Option<(u32, u32, u64)> {
        let victim = self.pop(now_ms)?;
        self.until_read.forget(victim.0, victim.1);
        Some(victim)
    }

    fn pop(&mut self, now_ms: u64) -> Option<(u32, u32, u64)> {
        if let Some(first) = self.first.pop() {
            return Some(first);
        }
        if let Some(ended) = self.pop_aside(now_ms) {
            return Some(ended);
        }
        while let Some((slot, epoch, bytes)) = self.usual.victim() {
            let soft = self.soft.get_mut(&slot).filter(|s| s.epoch == epoch);
            let Some(s) = soft else { return Some((slot, epoch, bytes)) };
            if s.until_ms <= now_ms {
                self.soft.remove(&slot);
                return Some((slot, epoch, bytes));
            }
            s.aside = Some(bytes);
            self.aside.insert((s.until_ms, slot), bytes);
            self.aside_bytes += bytes;
        }
        self.pop_aside(u64::MAX)
    }

    /// Objects whose time after their first read is over, at most so many. They stay, and are among
    /// these again after a while, until they are forgotten.
    pub fn take_due(&mut self, now_ms: u64, most: usize) -> Vec<(u32, u32)> {
        self.until_read.take_due(now_ms, most)
    }

    /// Objects that may be evicted.
    pub fn len(&self) -> usize {
        self.usual.len() + self.first.len() + self.aside.len()
    }

    /// True if it holds nothing, not even a hard pin.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.hard.is_empty()
    }

    /// Bytes held, those of hard pins included.
    pub fn bytes(&self) -> u64 {
        self.usual.bytes() + self.first.bytes() + self.aside_bytes + self.hard_bytes
    }

    /// Whether an object that is held has this retention, but for its time. What was found with
    /// another one than usual has that.
    fn is_held_as(&self, c: &Candidate) -> bool {
        let held = |epoch: Option<u32>| epoch == Some(c.epoch);
        match c.retention {
            Retention::Usual | Retention::LastOfBatch => true,
            Retention::EvictFirst | Retention::Extra => held(self.first.epoch_of(c.slot)),
            Retention::SoftPin(_) => held(self.soft.get(&c.slot).map(|soft| soft.epoch)),
            Retention::HardPin => held(self.hard.get(&c.slot).map(|(epoch, _)| *epoch)),
            Retention::UntilRead(_) => self.until_read.holds(c.slot, c.epoch),
        }
    }

    /// Whether anything is not usual.
    fn has_special(&self) -> bool {
        self.first.len() > 0
            || !self.soft.is_empty()
            || !self.hard.is_empty()
            || !self.until_read.is_empty()
    }

    fn pin_softly(&mut self, c: &Candidate, ttl: Duration, used_ms: u64) {
        let ttl_ms = ttl.as_millis() as u64;
        let until_ms = used_ms.saturating_add(ttl_ms);
        self.soft.insert(c.slot, Soft { epoch: c.epoch, ttl_ms, until_ms, aside: None });
    }

    fn pin_hard(&mut self, c: &Candidate) {
        self.hard.insert(c.slot, (c.epoch, c.bytes));
        self.hard_bytes += c.bytes;
    }

    /// The one set aside whose pin ends first, if it has ended at that time.
    fn pop_aside(&mut self, now_ms: u64) -> Option<(u32, u32, u64)> {
        let (&(until_ms, slot), _) = self.aside.first_key_value()?;
        if until_ms > now_ms {
            return None;
        }
        let bytes = self.aside.remove(&(until_ms, slot))?;
        self.aside_bytes -= bytes;
        Some((slot, self.soft.remove(&slot)?.epoch, bytes))
    }
}
