//! What the load knows to be stored, and which rank is about to die: the yardstick of every answer.
//! A key of a living rank is served, always; only what touches the doomed rank may fail, and only
//! in ways that tell the caller what to do.

use super::calls::Calls;
use super::logs::{Logs, Mark};
use super::random::Random;
use nkv::message::ObjMeta;
use nkv::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys that the load leaves stored; past it what it puts it takes away again, so that nothing is
/// ever evicted but from a log.
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
    /// Where it lies, if this process asked.
    pub meta: Option<ObjMeta>,
    /// Where in a log it lies at least, if it may lie in one: a log keeps the newest.
    pub mark: Option<Mark>,
}

/// What is known of an object whose put or remove did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged, and then the master went: it is there.
    Whole,
    /// Its put was told that it left nothing [I12].
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
    // Puts and removes that failed by the doomed rank: to be found out.
    unsure: Mutex<Vec<(Stored, Fate)>>,
    doomed: Mutex<Option<Victim>>,
    stop: AtomicBool,
    /// The book of calls.
    pub calls: Calls,
    /// The logs of the ranks.
    pub logs: Logs,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a call may end that needs a dead rank: never hanging, never `Internal`, never wrong.
pub fn is_expected_of_dead_rank(e: &Error) -> bool {
    matches!(
        e.kind,
        ErrorKind::Disconnected
            | ErrorKind::Timeout
            | ErrorKind::NotFound
            | ErrorKind::NotReady
            | ErrorKind::Reclaimed
    )
}

/// How a call may end that needs the master while it is away or has just come back: as above, but
/// no object of a living rank is ever said to be absent.
pub fn is_expected_without_master(e: &Error) -> bool {
    e.kind != ErrorKind::NotFound && is_expected_of_dead_rank(e)
}

impl Victim {
    /// Rank 0 is the master too.
    pub fn is_master(self) -> bool {
        self.rank == 0
    }
}

impl SharedState {
    /// Committed from now on.
    pub fn add(&self, stored: Stored) {
        lock(&self.stored).push(Arc::new(stored));
    }

    /// Its put failed: whole or absent, and certainly absent if it was told Reclaimed.
    pub fn add_failed(&self, stored: Stored, e: &Error) {
        let reclaimed = e.kind == ErrorKind::Reclaimed;
        self.add_unsure(stored, if reclaimed { Fate::Absent } else { Fate::Either });
    }

    /// To be found out.
    pub fn add_unsure(&self, stored: Stored, fate: Fate) {
        lock(&self.unsure).push((stored, fate));
    }

    /// True if a read ended so because a log made room; what is gone for good is forgotten here.
    pub fn log_made_room(&self, s: &Stored, e: &Error) -> bool {
        if e.kind != ErrorKind::NotFound || !self.passed(s) {
            return false;
        }
        lock(&self.stored).retain(|other| other.key != s.key);
        true
    }

    /// True if a log may have made room at the expense of an object.
    pub fn passed(&self, s: &Stored) -> bool {
        self.mark(s).is_some_and(|mark| self.logs.may_have_passed(mark))
    }

    /// Where it lies in a log, if in any; also where that log was not known yet when it was stored.
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

    /// All keys, which are forgotten here.
    pub fn take_all(&self) -> Vec<Arc<Stored>> {
        std::mem::take(&mut *lock(&self.stored))
    }

    /// The keys of an incarnation, which are forgotten here.
    pub fn take_of(&self, incarnation: u64) -> Vec<Arc<Stored>> {
        let mut stored = lock(&self.stored);
        let (theirs, others) = std::mem::take(&mut *stored)
            .into_iter()
            .partition(|s| s.meta.as_ref().is_some_and(|m| m.at.incarnation == incarnation));
        *stored = others;
        theirs
    }

    /// What is to be found out, which is forgotten here.
    pub fn take_unsure(&self) -> Vec<(Stored, Fate)> {
        std::mem::take(&mut *lock(&self.unsure))
    }

    /// Says, before it happens, which rank dies.
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

    /// Whether it was asked to.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
