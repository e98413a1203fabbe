//! Removal from disk. A removed object must not come back [I6]: not by a save that is in progress
//! while its key is removed from memory, and not by a promotion. So what is being removed is marked
//! first; nothing of it is saved or promoted until the master says that the removal is over
//! everywhere, or for a minute, if it never says so.

use super::{DiskTier, Removed, Taken, caught, lock};
use crate::error::{Error, Result};
use crate::message::DiskSelection;
use crate::pattern;
use crate::striping::is_stripe;
use hashbrown::{HashMap, HashSet};
use nkv_store::Key;
use nkv_store::log_limit::LogLimit;
use regex::bytes::Regex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a mark stays if nobody says that the removal is over.
const MARK_LIMIT_NS: u64 = 60_000_000_000;
/// How long it stays for the next round of a removal, which then finds it done.
const AGAIN_NS: u64 = 5_000_000_000;
/// How long a removal waits for saves and promotions that are in progress.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);
/// Marks at a time, removals that share one, and bytes of their keys; further removals fail.
const MOST_MARKS: usize = 1024;
const MOST_SHARING: usize = 1024;
const MOST_KEY_BYTES: usize = 128 << 20;
/// Patterns among them: each key that is looked for is compared with all.
const MOST_PATTERNS: usize = 64;
/// What a key takes besides its own bytes.
const BYTES_OF_KEY: usize = 64;
/// Keys read from disk at a time when a pattern is looked for.
const KEYS_AT_ONCE: usize = 1024;

/// What a removal covers.
enum Matcher {
    All,
    Keys(HashSet<Key>),
    Pattern(Regex),
}

impl Matcher {
    fn of(which: &DiskSelection) -> Result<Self> {
        Ok(match which {
            DiskSelection::All => Self::All,
            DiskSelection::Matching(text) => Self::Pattern(pattern::compile(text)?),
            DiskSelection::Keys(keys) => {
                let keys = keys.iter().map(|key| Key::new(key));
                Self::Keys(keys.collect::<std::result::Result<_, _>>()?)
            }
        })
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) => true,
            (Self::Keys(keys), Self::Keys(others)) => keys == others,
            (Self::Pattern(regex), Self::Pattern(other)) => regex.as_str() == other.as_str(),
            _ => false,
        }
    }

    fn kind(&self) -> Kind {
        if matches!(self, Self::Keys(_)) { Kind::Keys } else { Kind::Search }
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        let keys = if let Self::Keys(keys) = self { Some(keys) } else { None };
        keys.into_iter().flatten()
    }

    fn key_bytes(&self) -> usize {
        self.keys().map(|key| key.as_bytes().len() + BYTES_OF_KEY).sum()
    }

    fn covers(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.contains(key),
            // As in memory.
            Self::Pattern(regex) => !is_stripe(key.as_bytes()) && regex.is_match(key.as_bytes()),
        }
    }
}

/// Which of its threads carries a removal out: one that reads all keys takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Keys that are known.
    Keys,
    /// All keys are looked at.
    Search,
}

/// How far a removal is.
enum State {
    /// To be carried out, or being carried out: which removals wait for it.
    Asked(Vec<(u64, Removed)>),
    /// Nothing that it covers is on disk.
    Done,
    /// The disk did not do it. Nothing that it covers is saved or brought back all the same, until
    /// it is asked for again or its time is over.
    Failed,
}

struct Mark {
    matcher: Arc<Matcher>,
    state: State,
    /// What was on disk, until one of the removals is over: a repeated one tells of it as well.
    taken: Taken,
    /// The removals of these keys that are not over.
    open: HashSet<u64>,
    until_ns: u64,
    /// Another round is expected until then.
    again_ns: u64,
}

impl Mark {
    fn expect_again(&mut self, now_ns: u64) {
        self.again_ns = self.again_ns.max(now_ns + AGAIN_NS);
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let again = self.open.is_empty() && self.again_ns <= now_ns;
        match self.state {
            State::Asked(_) => false,
            State::Done => again || self.until_ns <= now_ns,
            State::Failed => self.until_ns <= now_ns,
        }
    }
}

#[derive(Default)]
struct Marks {
    all: Vec<Mark>,
    /// The keys of all marks, with the number of marks that cover them.
    by_key: HashMap<Key, u32>,
    key_bytes: usize,
    searches: usize,
    closing: bool,
}

impl Marks {
    fn refusal(&self, matcher: &Matcher) -> Option<String> {
        let bytes = self.key_bytes + matcher.key_bytes();
        if self.all.len() >= MOST_MARKS {
            return Some(format!("{MOST_MARKS} removals"));
        }
        if !self.all.is_empty() && bytes > MOST_KEY_BYTES {
            return Some(format!("removals of {} MiB of keys", self.key_bytes >> 20));
        }
        let searches = matcher.kind() == Kind::Search && self.searches >= MOST_PATTERNS;
        searches.then(|| format!("{MOST_PATTERNS} removals by pattern"))
    }

    fn push(&mut self, matcher: Arc<Matcher>) {
        self.key_bytes += matcher.key_bytes();
        self.searches += usize::from(matcher.kind() == Kind::Search);
        for key in matcher.keys() {
            *self.by_key.entry(key.clone()).or_default() += 1;
        }
        let (state, taken, open) = (State::Failed, Taken::default(), HashSet::new());
        self.all.push(Mark { matcher, state, taken, open, until_ns: 0, again_ns: 0 });
    }

    fn let_go(&mut self, now_ns: u64) {
        let (over, kept) =
            std::mem::take(&mut self.all).into_iter().partition(|mark| mark.is_over(now_ns));
        self.all = kept;
        let over: Vec<Mark> = over;
        for mark in over {
            self.key_bytes -= mark.matcher.key_bytes();
            self.searches -= usize::from(mark.matcher.kind() == Kind::Search);
            for key in mark.matcher.keys() {
                match self.by_key.get_mut(key) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.by_key.remove(key)),
                }
            }
        }
    }

    fn covers(&self, key: &Key) -> bool {
        let of_search = |mark: &Mark| mark.matcher.kind() == Kind::Search;
        let mut searches = self.all.iter().filter(|mark| of_search(mark));
        self.by_key.contains_key(key)
            || self.searches > 0 && searches.any(|mark| mark.matcher.covers(key))
    }
}

/// The removals of a node.
#[derive(Default)]
pub(super) struct Removals {
    marks: Mutex<Marks>,
    asked: Condvar,
    /// How many marks there are: most of the time none, and then nobody takes the lock.
    count: AtomicUsize,
    /// How many removals there were.
    begun: AtomicU64,
}

impl Removals {
    /// `removal`: its number. Calls `done` with what was there.
    pub fn add(&self, removal: u64, which: &DiskSelection, now_ns: u64, done: Removed) {
        let matcher = match Matcher::of(which) {
            Ok(matcher) => Arc::new(matcher),
            Err(error) => return done(Err(error)),
        };
        let mut marks = lock(&self.marks);
        if marks.closing {
            drop(marks);
            return done(Err(Error::disconnected("this node is shutting down")));
        }
        let known = marks.all.iter().position(|mark| mark.matcher.same(&matcher));
        let refusal = match known {
            Some(at) if marks.all[at].open.len() < MOST_SHARING => None,
            Some(_) => Some(format!("{MOST_SHARING} removals of the same keys")),
            None => marks.refusal(&matcher),
        };
        if let Some(text) = refusal {
            drop(marks);
            let text = format!("{text} are in progress at this disk: remove again");
            return done(Err(Error::not_ready(text)));
        }
        let at = known.unwrap_or_else(|| {
            marks.push(matcher);
            marks.all.len() - 1
        });
        self.count.store(marks.all.len(), Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mark = &mut marks.all[at];
        mark.until_ns = now_ns + MARK_LIMIT_NS;
        mark.open.insert(removal);
        match &mut mark.state {
            State::Asked(waiting) => waiting.push((removal, done)),
            // Nothing of it was saved since.
            State::Done => {
                let taken = mark.taken.clone();
                drop(marks);
                return done(Ok(taken));
            }
            failed @ State::Failed => *failed = State::Asked(vec![(removal, done)]),
        }
        drop(marks);
        self.asked.notify_all();
    }

    /// How many removals have begun. What has no name is not saved after the next one: nobody can
    /// tell whether it was removed.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Whether any key is being removed.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Whether this key is being removed.
    pub fn covers(&self, key: &Key) -> bool {
        self.any() && lock(&self.marks).covers(key)
    }

    /// A removal is over; `again`: it is likely to be asked for again.
    pub fn over(&self, removal: u64, again: bool, now_ns: u64) {
        for mark in &mut lock(&self.marks).all {
            match (mark.open.remove(&removal), again) {
                (true, true) => mark.expect_again(now_ns),
                (true, false) => mark.taken = Taken::default(),
                _ => {}
            }
        }
        self.expire(now_ns);
    }

    /// Lifts the marks that are not needed any more, and those whose time is over.
    pub fn expire(&self, now_ns: u64) {
        if !self.any() {
            return;
        }
        let mut marks = lock(&self.marks);
        marks.let_go(now_ns);
        self.count.store(marks.all.len(), Ordering::SeqCst);
    }

    pub fn close(&self) {
        lock(&self.marks).closing = true;
        self.asked.notify_all();
    }

    /// The next one that is to be carried out; None at the end.
    fn next(&self, kind: Kind) -> Option<Arc<Matcher>> {
        let mut marks = lock(&self.marks);
        loop {
            let is_next =
                |mark: &&Mark| matches!(mark.state, State::Asked(_)) && mark.matcher.kind() == kind;
            if let Some(mark) = marks.all.iter().find(is_next) {
                return Some(mark.matcher.clone());
            }
            if marks.closing {
                return None;
            }
            marks = self.asked.wait(marks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carried_out(
        &self,
        matcher: &Arc<Matcher>,
        (taken, result): (Taken, &Result<()>),
        now_ns: u64,
    ) {
        let mut marks = lock(&self.marks);
        let same = |mark: &&mut Mark| Arc::ptr_eq(&mark.matcher, matcher);
        let Some(mark) = marks.all.iter_mut().find(same) else { return };
        let now = if result.is_ok() { State::Done } else { State::Failed };
        mark.taken.keys.extend(taken.keys);
        mark.taken.count += taken.count;
        let State::Asked(waiting) = std::mem::replace(&mut mark.state, now) else { return };
        if result.is_err() {
            // They end with the error, and are never over.
            mark.open.retain(|open| !waiting.iter().any(|(removal, _)| removal == open));
        } else if mark.open.is_empty() {
            // It took longer than the master waits.
            mark.expect_again(now_ns);
        }
        let taken = mark.taken.clone();
        drop(marks);
        waiting.into_iter().for_each(|(_, done)| done(result.clone().map(|()| taken.clone())));
    }
}

impl DiskTier {
    /// One of the two threads.
    pub(super) fn carry_out_removals(&self, kind: Kind) {
        let mut limit = LogLimit::default();
        while let Some(matcher) = self.removals.next(kind) {
            let mut taken = Taken::default();
            let result = caught(|| self.remove_from_disk(&matcher, &mut taken)).flatten();
            if let Err(error) = &result
                && limit.is_due((), self.clock.now_ms())
            {
                tracing::error!(%error, "a removal from disk failed; logged once a minute");
            }
            self.removals.carried_out(&matcher, (taken, &result), self.clock.now_ns());
        }
    }

    /// `taken`: what was there, also of what is removed before an error.
    fn remove_from_disk(&self, matcher: &Matcher, taken: &mut Taken) -> Result<()> {
        let covers = |key: &Key| matcher.covers(key);
        let pending = self.feed.pending_keys(covers);
        self.feed.forget(covers);
        self.saves.give_up(covers, &Error::not_ready("the key was removed"));
        let settled = self.writer.forget(covers, SETTLE_LIMIT)
            && self.feed.wait_for(covers, SETTLE_LIMIT)
            && self.promotions.wait_for(covers, SETTLE_LIMIT)
            && self.saves.wait_for(covers, SETTLE_LIMIT);
        if !settled {
            let text = "the disk is busy with keys that were to be removed: remove them again";
            return Err(Error::not_ready(text));
        }
        let failed = |e: nkv_ssd::SsdError| {
            Error::not_ready(format!("the removal cannot be written to disk: {e}: remove again"))
        };
        // Those on their way to disk counted as being there; some have arrived meanwhile.
        let mut there = pending;
        there.retain(|key| self.engine.find(key).is_none());
        match matcher {
            Matcher::All => {
                let before = self.engine.stats().objects;
                let removed = self.engine.remove_all();
                let left = self.engine.stats().objects;
                taken.count += before.saturating_sub(left) + there.len() as u64;
                removed.map(drop).map_err(failed)
            }
            Matcher::Keys(keys) => {
                let found = keys.iter().filter(|key| self.engine.find(key).is_some());
                taken.keys.extend(found.cloned().chain(there));
                self.engine.remove(&keys.iter().collect::<Vec<_>>()).map(drop).map_err(failed)
            }
            Matcher::Pattern(_) => {
                taken.count += there.len() as u64;
                self.remove_matching(matcher, taken).map_err(failed)
            }
        }
    }

    fn remove_matching(
        &self,
        matcher: &Matcher,
        taken: &mut Taken,
    ) -> std::result::Result<(), nkv_ssd::SsdError> {
        let mut from = Some(0);
        while let Some(at) = from {
            let (keys, next) = self.engine.keys(at, KEYS_AT_ONCE)?;
            let matching: Vec<_> = keys.iter().filter(|key| matcher.covers(key)).collect();
            if !matching.is_empty() {
                taken.count += matching.len() as u64;
                self.engine.remove(&matching)?;
            }
            from = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
