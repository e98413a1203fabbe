//! Removal from disk. A removed object must not come back [I6]: not by a save that is in progress
//! while its key is removed from memory, and not by a promotion. So what is being removed is marked
//! first; nothing of it is saved or promoted until the master says that the removal is over
//! everywhere, or for a minute, if it never says so.

use super::{DiskTier, Removed, caught, lock};
use crate::error::{Error, Result};
use crate::message::DiskSelection;
use crate::pattern;
use hashbrown::HashSet;
use nkv_store::Key;
use regex::bytes::Regex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a mark stays if nobody says that the removal is over.
const MARK_LIMIT_NS: u64 = 60_000_000_000;
/// How long a removal waits for saves and promotions that are in progress.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// Removals that are remembered at a time; further ones fail.
const MOST_MARKS: usize = 1024;
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

    fn covers(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.contains(key),
            Self::Pattern(regex) => regex.is_match(key.as_bytes()),
        }
    }
}

/// How far a removal is.
enum State {
    /// To be carried out, or being carried out: who waits for it.
    Asked(Vec<Removed>),
    /// Nothing that it covers is on disk.
    Done,
    /// The disk did not do it. Nothing that it covers is saved or brought back all the same, until
    /// it is asked for again or its time is over.
    Failed,
}

impl State {
    fn is_over(&self) -> bool {
        !matches!(self, Self::Asked(_))
    }
}

struct Mark {
    which: DiskSelection,
    matcher: Arc<Matcher>,
    state: State,
    until_ns: u64,
    /// Removed everywhere, before it was carried out here.
    over: bool,
}

#[derive(Default)]
struct Marks {
    all: Vec<Mark>,
    closing: bool,
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
    pub fn add(&self, which: DiskSelection, now_ns: u64, done: Removed) {
        let matcher = match Matcher::of(&which) {
            Ok(matcher) => Arc::new(matcher),
            Err(error) => return done(Err(error)),
        };
        let mut marks = lock(&self.marks);
        if marks.closing {
            drop(marks);
            return done(Err(Error::disconnected("this node is shutting down")));
        }
        let known = marks.all.iter().position(|mark| mark.which == which);
        if known.is_none() && marks.all.len() >= MOST_MARKS {
            drop(marks);
            let text = format!("{MOST_MARKS} removals are in progress at this disk: remove again");
            return done(Err(Error::not_ready(text)));
        }
        let at = known.unwrap_or_else(|| {
            let (state, until_ns) = (State::Failed, 0);
            marks.all.push(Mark { which, matcher, state, until_ns, over: false });
            marks.all.len() - 1
        });
        self.count.store(marks.all.len(), Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mark = &mut marks.all[at];
        (mark.until_ns, mark.over) = (now_ns + MARK_LIMIT_NS, false);
        match &mut mark.state {
            State::Asked(waiting) => waiting.push(done),
            // Nothing of it was saved since.
            State::Done => {
                drop(marks);
                return done(Ok(()));
            }
            failed @ State::Failed => *failed = State::Asked(vec![done]),
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
        self.any() && lock(&self.marks).all.iter().any(|mark| mark.matcher.covers(key))
    }

    pub fn over(&self, which: &DiskSelection) {
        let same = |mark: &&mut Mark| mark.which == *which;
        lock(&self.marks).all.iter_mut().filter(same).for_each(|mark| mark.over = true);
        self.let_go(|mark| mark.over && mark.state.is_over());
    }

    pub fn expire(&self, now_ns: u64) {
        self.let_go(|mark| mark.until_ns <= now_ns && mark.state.is_over());
    }

    fn let_go(&self, which: impl Fn(&Mark) -> bool) {
        if !self.any() {
            return;
        }
        let mut marks = lock(&self.marks);
        marks.all.retain(|mark| !which(mark));
        self.count.store(marks.all.len(), Ordering::SeqCst);
    }

    pub fn close(&self) {
        lock(&self.marks).closing = true;
        self.asked.notify_all();
    }

    /// The next one that is to be carried out; None at the end.
    fn next(&self) -> Option<(DiskSelection, Arc<Matcher>)> {
        let mut marks = lock(&self.marks);
        loop {
            let asked = marks.all.iter().find(|mark| matches!(mark.state, State::Asked(_)));
            if let Some(mark) = asked {
                return Some((mark.which.clone(), mark.matcher.clone()));
            }
            if marks.closing {
                return None;
            }
            marks = self.asked.wait(marks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carried_out(&self, which: &DiskSelection, result: &Result<()>) {
        let mut marks = lock(&self.marks);
        let Some(at) = marks.all.iter().position(|mark| mark.which == *which) else { return };
        let (mark, now) = (
            &mut marks.all[at],
            match result {
                Ok(()) => State::Done,
                Err(_) => State::Failed,
            },
        );
        let state = std::mem::replace(&mut mark.state, now);
        if mark.over {
            marks.all.swap_remove(at);
            self.count.store(marks.all.len(), Ordering::SeqCst);
        }
        drop(marks);
        if let State::Asked(waiting) = state {
            waiting.into_iter().for_each(|done| done(result.clone()));
        }
    }
}

impl DiskTier {
    pub(super) fn carry_out_removals(&self) {
        while let Some((which, matcher)) = self.removals.next() {
            let removed = caught(|| self.remove_from_disk(&which, &matcher));
            let result = removed.and_then(|removed| removed);
            if let Err(error) = &result {
                tracing::error!(%error, "a removal from disk failed");
            }
            self.removals.carried_out(&which, &result);
        }
    }

    fn remove_from_disk(&self, which: &DiskSelection, matcher: &Matcher) -> Result<()> {
        let covers = |key: &Key| matcher.covers(key);
        self.feed.forget(covers);
        let settled = self.writer.forget(covers, SETTLE_LIMIT)
            && self.feed.wait_for(covers, SETTLE_LIMIT)
            && self.promotions.wait_for(covers, SETTLE_LIMIT);
        if !settled {
            let text = "the disk is busy with keys that were to be removed: remove them again";
            return Err(Error::not_ready(text));
        }
        let failed = |e: nkv_ssd::SsdError| {
            Error::not_ready(format!("the removal cannot be written to disk: {e}: remove again"))
        };
        match matcher {
            Matcher::All => self.engine.remove_all().map_err(failed)?,
            Matcher::Keys(keys) => {
                self.engine.remove(&keys.iter().collect::<Vec<_>>()).map_err(failed)?
            }
            Matcher::Pattern(_) => self.remove_matching(matcher).map_err(failed)?,
        };
        tracing::debug!(?which, "removed from disk");
        Ok(())
    }

    fn remove_matching(&self, matcher: &Matcher) -> std::result::Result<u64, nkv_ssd::SsdError> {
        let (mut from, mut removed) = (Some(0), 0);
        while let Some(at) = from {
            let (keys, next) = self.engine.keys(at, KEYS_AT_ONCE)?;
            let matching: Vec<_> = keys.iter().filter(|key| matcher.covers(key)).collect();
            if !matching.is_empty() {
                removed += self.engine.remove(&matching)?;
            }
            from = next;
        }
        Ok(removed)
    }
}
