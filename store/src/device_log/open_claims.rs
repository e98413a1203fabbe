//! The claims that this process has open in one segment's log, so that it can answer the question
//! of the hole rule: "have you no claim open below B?" [I14]. A fixed number of entries, no lock,
//! no wait; it neither claims nor writes.
//!
//! Why the answer is right with a fetch-and-add in flight. A put enters with a lower bound of its
//! position *before* it posts its fetch-and-add. Let its claim begin at p < B, where the owner read
//! B from `bump_ptr`. Then its fetch-and-add is not after the one whose result the owner read. All
//! changes of `bump_ptr` are read-modify-writes, so the owner's acquire load synchronises with its
//! release. The entry was stored before, so it happens before the load, hence before the question
//! and before the scan. The scan finds the entry at its lower bound or at p, both below B: open. Or
//! it finds a value that the put stored later, when everything it had posted for that claim had
//! landed: the store is a release and the scan's load an acquire, so a party that acts on the
//! answer finds the claim settled. An entry that the scan does not find belongs to a put whose
//! fetch-and-add comes after B was read: its position is B or above. So an answer "none open" stays
//! true.
//!
//! The same holds over a NIC: the verb is posted after the entry is stored, and the question
//! arrives after the owner's read.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Entries of a table: concurrent puts of one process into one segment. Further puts use the plan
/// path.
pub const OPEN_CLAIMS: usize = 256;

pub(super) const TAKEN: u64 = 1;
/// The put gave up without knowing whether everything it posted has landed.
pub(super) const IN_DOUBT: u64 = 2;
const FLAGS: u64 = TAKEN | IN_DOUBT;

/// The word of an entry: an atomic in production, or a model checker's.
pub trait Entry {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Stores it.
    fn store(&self, value: u64, order: Ordering);
    /// Replaces it if it is `expect`; true if it was.
    fn exchange(&self, expect: u64, new: u64, done: Ordering, failed: Ordering) -> bool;
}

/// One entry in a cache line of its own: two puts never write to the same line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Line(AtomicU64);

impl Entry for Line {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    #[inline]
    fn exchange(&self, expect: u64, new: u64, done: Ordering, failed: Ordering) -> bool {
        self.0.compare_exchange(expect, new, done, failed).is_ok()
    }
}

/// When the verbs of a put have landed. Decides what happens to the entry of a put that ends
/// without [`OpenClaim::leave`], by a panic or an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// When the call that posts them returns (mapped memory, or an agent that writes for its
    /// connections): after the call nothing is written any more, and the entry is freed.
    InCall,
    /// At an unknown time: the entry stays, in doubt, until [`OpenClaims::fenced`].
    Later,
}

/// The open claims of this process in one segment. There must be one table per segment and process,
/// however many handles there are, else its answer is incomplete.
#[derive(Debug)]
pub struct OpenClaims<E = Line> {
    pub(super) entries: Box<[E]>,
    landing: Landing,
}

impl OpenClaims {
    /// An empty table of [`OPEN_CLAIMS`] entries.
    pub fn new(landing: Landing) -> OpenClaims {
        OpenClaims::with((0..OPEN_CLAIMS).map(|_| Line::default()).collect(), landing)
    }

    /// Enters a put that is about to claim, with the bump it has just read. `None` if the table is
    /// full: use the plan path.
    #[inline]
    pub fn enter(&self, lower_bound: u64) -> Option<OpenClaim<'_>> {
        self.enter_from(home(), lower_bound)
    }

    /// As [`OpenClaims::enter`], for claims that outlast the call, as those of a launch do.
    pub fn enter_launch(self: &Arc<Self>, lower_bound: u64) -> Option<LaunchClaims> {
        let entered = self.enter(lower_bound)?;
        let at = entered.at;
        std::mem::forget(entered);
        Some(LaunchClaims { table: self.clone(), at, ended: false })
    }
}

impl<E: Entry> OpenClaims<E> {
    /// A table with these entries, which must all be zero.
    pub fn with(entries: Box<[E]>, landing: Landing) -> Self {
        Self { entries, landing }
    }

    /// [`OpenClaims::enter`], with the search for a free entry starting at entry `home`.
    #[inline]
    pub fn enter_from(&self, home: usize, lower_bound: u64) -> Option<OpenClaim<'_, E>> {
        let word = lower_bound & !FLAGS | TAKEN;
        let (before, after) = self.entries.split_at(home.min(self.entries.len()));
        let free = |entry: &E| {
            // The required order is that of the fetch-and-add's release. A NIC's verb is posted
            // after this exchange too, which is a full barrier on every host that has such a NIC.
            entry.load(Ordering::Relaxed) == 0
                && entry.exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
        };
        let at = after.iter().position(free).map(|at| before.len() + at);
        let at = at.or_else(|| before.iter().position(free))?;
        Some(OpenClaim { table: self, at })
    }

    /// The answer to "have you no claim open below `below`?". Once true it stays true. False means
    /// only "not yet": ask again.
    pub fn clear_below(&self, below: u64) -> bool {
        self.entries.iter().all(|entry| {
            let word = entry.load(Ordering::Acquire);
            word == 0 || word & !FLAGS >= below
        })
    }

    /// The connection over which the claims in doubt were made can write no more (destroyed and
    /// drained, or revoked with no operation in flight): frees their entries and returns how many.
    pub fn fenced(&self) -> usize {
        let forget = |entry: &&E| {
            let word = entry.load(Ordering::Relaxed);
            word & IN_DOUBT != 0 && entry.exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
        };
        self.entries.iter().filter(forget).count()
    }
}

/// One put's entry.
#[derive(Debug)]
#[must_use = "dropped, it is left or in doubt, by the table's `Landing`"]
pub struct OpenClaim<'a, E: Entry = Line> {
    table: &'a OpenClaims<E>,
    at: usize,
}

impl<E: Entry> OpenClaim<'_, E> {
    /// Stores the position that the fetch-and-add returned; or, after a skip has landed and before
    /// the next fetch-and-add, the bump just read. Never less than the value noted before.
    #[inline]
    pub fn note(&self, position: u64) {
        // Release: a scan that sees the bound of a later claim also sees that the skip before it
        // has landed.
        self.entry().store(position & !FLAGS | TAKEN, Ordering::Release);
    }

    /// The claim is done: settled and everything posted for it has landed, or abandoned.
    #[inline]
    pub fn leave(self) {
        self.entry().store(0, Ordering::Release);
        std::mem::forget(self);
    }

    #[inline]
    fn entry(&self) -> &E {
        &self.table.entries[self.at]
    }
}

impl<E: Entry> Drop for OpenClaim<'_, E> {
    fn drop(&mut self) {
        let word = match self.table.landing {
            Landing::InCall => 0,
            Landing::Later => self.entry().load(Ordering::Relaxed) | IN_DOUBT,
        };
        self.entry().store(word, Ordering::Release);
    }
}

/// The entry of a launch, whose kernel makes any number of claims. Dropped before the launch has
/// ended, it is in doubt for as long as the process lives.
#[derive(Debug)]
pub struct LaunchClaims {
    table: Arc<OpenClaims>,
    at: usize,
    ended: bool,
}

impl LaunchClaims {
    /// The launch has ended: its claims are settled, or abandoned.
    pub fn leave(mut self) {
        self.ended = true;
    }
}

impl Drop for LaunchClaims {
    fn drop(&mut self) {
        let entry = &self.table.entries[self.at];
        let word = if self.ended { 0 } else { entry.load(Ordering::Relaxed) | IN_DOUBT };
        entry.store(word, Ordering::Release);
    }
}

/// The entry where this thread's search begins: threads share one only if there are more threads
/// than entries.
#[inline]
fn home() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static HOME: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    HOME.with(|home| {
        if home.get() == usize::MAX {
            home.set(THREADS.fetch_add(1, Ordering::Relaxed) % OPEN_CLAIMS);
        }
        home.get()
    })
}
