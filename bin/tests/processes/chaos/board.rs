//! The objects that the load has stored, and the rank that is about to be killed: every answer is
//! checked against them. A key of a living rank is always served; only calls that need the doomed
//! rank may fail, and only with errors that tell the caller what to do.

use super::calls::Calls;
use super::logs::{Logs, Mark};
use crate::random::Random;
use nkv::message::ObjMeta;
use nkv::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys that the load leaves stored; beyond that it removes what it puts, so that only logs evict.
pub const POOL_KEYS: usize = 400;

/// One committed object.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its key.
    pub key: Vec<u8>,
    /// Version of its contents.
    pub version: u64,
    /// Its bytes.
    pub len: usize,
    /// Its location, if this process asked for it.
    pub meta: Option<ObjMeta>,
    /// Its least position in a log, if it may lie in one: a log keeps the newest.
    pub mark: Option<Mark>,
}

/// What is known of an object whose put or remove failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged before the master died: it is readable.
    Whole,
    /// Its put ended with an error that means absent [I12].
    Absent,
    /// One or the other.
    Either,
}

/// The rank that is killed: its number and incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Rank number.
    pub rank: u32,
    /// Incarnation that dies.
    pub incarnation: u64,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct SharedState {
    stored: Mutex<Vec<Arc<Stored>>>,
    // Puts and removes that failed because of the doomed rank: to be checked later.
    unsure: Mutex<Vec<(Stored, Fate)>>,
    doomed: Mutex<Option<Victim>>,
    stop: AtomicBool,
    /// Records of calls.
    pub calls: Calls,
    /// The logs of the ranks.
    pub logs: Logs,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if a call that needs a dead rank may end with this error: it may not hang, return
/// `Internal`, or return wrong bytes.
pub fn is_expected_of_dead_rank(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Disconnected
            | ErrorKind::Timeout
            | ErrorKind::NotFound
            | ErrorKind::NotReady
            | ErrorKind::Reclaimed
    )
}

/// True if a call that needs the master may end with this error while the master is away or has
/// just restarted: as above, but not `NotFound` for an object of a living rank.
pub fn is_expected_without_master(e: &Error) -> bool {
    e.kind() != ErrorKind::NotFound && is_expected_of_dead_rank(e)
}

impl Victim {
    /// Rank 0 is the master too.
    pub fn is_master(self) -> bool {
        self.rank == 0
    }
}

impl SharedState {
    /// Adds a committed object.
    pub fn add(&self, stored: Stored) {
        lock(&self.stored).push(Arc::new(stored));
    }

    /// Adds an object whose put failed: whole or absent, and absent if the error was Reclaimed.
    pub fn add_failed(&self, stored: Stored, e: &Error) {
        let reclaimed = e.kind() == ErrorKind::Reclaimed;
        self.add_unsure(stored, if reclaimed { Fate::Absent } else { Fate::Either });
    }

    /// Adds an object to be checked later.
    pub fn add_unsure(&self, stored: Stored, fate: Fate) {
        lock(&self.unsure).push((stored, fate));
    }

    /// True if a read may have failed with this error because a log made room; an evicted object is
    /// removed from the board.
    pub fn log_made_room(&self, s: &Stored, e: &Error) -> bool {
        if e.kind() != ErrorKind::NotFound || !self.passed(s) {
            return false;
        }
        lock(&self.stored).retain(|other| other.key != s.key);
        true
    }

    /// True if a log may have made room at the expense of an object.
    pub fn passed(&self, s: &Stored) -> bool {
        self.mark(s).is_some_and(|mark| self.logs.may_have_passed(mark))
    }

    /// Its position in a log, if in any; also if that log was not mapped yet when it was stored.
    pub fn mark(&self, s: &Stored) -> Option<Mark> {
        s.mark.or_else(|| self.logs.mark_of(s.meta.as_ref()?))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        lock(&self.stored).len()
    }

    /// Any of the keys.
    pub fn pick(&self, random: &mut Random) -> Option<Arc<Stored>> {
        let stored = lock(&self.stored);
        (!stored.is_empty()).then(|| stored[random.below(stored.len() as u64) as usize].clone())
    }

    /// All keys.
    pub fn all(&self) -> Vec<Arc<Stored>> {
        lock(&self.stored).clone()
    }

    /// All keys; removes them from the board.
    pub fn take_all(&self) -> Vec<Arc<Stored>> {
        std::mem::take(&mut *lock(&self.stored))
    }

    /// The keys of an incarnation; removes them from the board.
    pub fn take_of(&self, incarnation: u64) -> Vec<Arc<Stored>> {
        let mut stored = lock(&self.stored);
        let (theirs, others) = std::mem::take(&mut *stored)
            .into_iter()
            .partition(|s| s.meta.as_ref().is_some_and(|m| m.at.incarnation == incarnation));
        *stored = others;
        theirs
    }

    /// Objects to be checked; removes them from the board.
    pub fn take_unsure(&self) -> Vec<(Stored, Fate)> {
        std::mem::take(&mut *lock(&self.unsure))
    }

    /// Sets the rank that is about to be killed.
    pub fn doom(&self, doomed: Option<Victim>) {
        *lock(&self.doomed) = doomed;
    }

    /// The rank that dies or is dead.
    pub fn doomed(&self) -> Option<Victim> {
        *lock(&self.doomed)
    }

    /// Asks the load to end.
    pub fn stop(&self, stop: bool) {
        self.stop.store(stop, Ordering::Release);
    }

    /// True if the load was asked to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
