//! The oracle. It records every put and every remove that clients began and how they ended, and,
//! from the memories themselves, which put's bytes became readable where and what ended that. With
//! that it checks every answer: no read returns bytes that were not put under that key, what was
//! removed stays removed, and nothing acknowledged is lost while its owner lives.
//!
//! Only the residuals that docs/reference/limits.md states are allowed; each has its own name in
//! `excuse.rs`.

mod answers;
mod excuse;
mod logs;

pub use excuse::Roster;

use crate::content::{PutId, value};
use crate::oracle::Cause;
use crate::plan::{JOB, secret};
use crate::process::Pid;
use crate::trace::Trace;
use nkv::ErrorKind;
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Values of fewer bytes may be equal for two puts.
const TELLING_BYTES: usize = 8;
/// Violations kept; the first says most.
const MAX_WRONG: usize = 8;

/// One life of one slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotEpoch {
    pub incarnation: u64,
    pub slot: u32,
    pub epoch: u32,
}

impl std::fmt::Debug for SlotEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x} slot {} epoch {}", self.incarnation, self.slot, self.epoch)
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Done,
    Failed(ErrorKind),
    /// Its caller dropped it, or died.
    Dropped,
}

impl Outcome {
    pub fn of<T>(result: &nkv::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(e) => Self::Failed(e.kind()),
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed(kind) => write!(f, "{kind}"),
            Self::Dropped => f.write_str("dropped"),
        }
    }
}

/// A read of a key that may be under way.
pub struct Reading {
    ledger: Arc<Ledger>,
    key: usize,
    n: usize,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let now_ms = self.ledger.trace.now_ms();
        self.ledger.lock().keys[self.key].reads[self.n].1 = Some(now_ms);
    }
}

/// A logical time: all events of one run have one order.
pub type LogicalTime = u64;

#[derive(Debug, Clone)]
struct Put {
    // Itself, or the put of which this is a further replica.
    content: PutId,
    key: usize,
    len: usize,
    began: LogicalTime,
    began_ms: u64,
    ended: Option<(LogicalTime, Outcome)>,
    // When it was acknowledged, in virtual milliseconds.
    acked: Option<u64>,
    // It asked for the log: it is done if any object of its key is readable.
    any: bool,
    // Several replicas were asked for, by the put or later for its key.
    several: bool,
    // It may end so many milliseconds after a read.
    until_read_ms: Option<u64>,
    // Of the rank where its bytes are.
    rank: u32,
    // Where READY was set in a log, and when.
    logged: Option<SlotEpoch>,
    // Of a replica that was made later: the place in a log of what it was made of.
    made_of: Option<SlotEpoch>,
    settled: Option<LogicalTime>,
    // Where its bytes became readable.
    spot: Option<SlotEpoch>,
    // When and why they ceased to be readable; and that time in virtual milliseconds.
    gone: Option<(LogicalTime, Cause)>,
    gone_ms: u64,
}

impl Put {
    fn is_live(&self) -> bool {
        self.spot.is_some() && self.gone.is_none()
    }

    fn is_acked(&self) -> bool {
        self.acked.is_some()
    }

    // READY of a failed put to a log may arrive late: over tcp its last verbs may be in flight.
    fn was_over_at(&self, moment: LogicalTime) -> bool {
        let over = |ended: LogicalTime| self.settled.unwrap_or(ended).max(ended) < moment;
        self.ended.is_some_and(|(ended, _)| over(ended))
    }
}

struct Removal {
    began: LogicalTime,
    ended: Option<(LogicalTime, Outcome)>,
    // The members of the cluster when it was acknowledged, and those of them that knew this view.
    members: BTreeSet<u64>,
    knew: BTreeSet<u64>,
    // Incarnations that were no members, and rejoined under a master that started without a report
    // of any rank that knew.
    came_back: BTreeSet<u64>,
    // If it asked logs: the incarnations whose logs could be asked during the whole call.
    asked: BTreeSet<u64>,
    // Number of masters so far when it began; and true if there was one more when its caller, which
    // may have been stopped, took the answer: then the members at the time of the answer are
    // unknown.
    masters: usize,
    late: bool,
    known_by: KnownBy,
}

/// Which actors must know an object for an answer to be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownBy {
    /// The master, to which an object in a log is announced some time after its put.
    ByTheMaster,
    /// The owners of logs as well, which were asked.
    ByAll,
}

impl std::fmt::Debug for Removal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {:?} among {:016x?}", self.began, self.ended, self.members)
    }
}

impl Removal {
    /// True if it may remove an object whose put began then. A removal without an answer may still
    /// be in flight.
    fn may_take(&self, put_began: LogicalTime) -> bool {
        match self.ended {
            None | Some((_, Outcome::Dropped)) => true,
            Some((ended, Outcome::Done)) => ended > put_began,
            Some((_, Outcome::Failed(kind))) => !matches!(
                kind,
                ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::NotReady
            ),
        }
    }

    /// True if it found this put's object, if that was there.
    fn met(&self, put: &Put) -> bool {
        let asked =
            |at: SlotEpoch| self.known_by == KnownBy::ByAll && self.asked.contains(&at.incarnation);
        put.logged.or(put.made_of).is_none_or(asked)
    }

    /// Acknowledged before that moment.
    fn was_done_at(&self, moment: LogicalTime) -> bool {
        self.ended.is_some_and(|(ended, o)| o == Outcome::Done && ended < moment)
    }
}

#[derive(Debug, Default)]
struct Key {
    name: Vec<u8>,
    puts: Vec<PutId>,
    // Somebody asked for replicas of what it names.
    replicated: bool,
    // When reads of it began and ended, in virtual milliseconds.
    reads: Vec<(u64, Option<u64>)>,
    removals: BTreeMap<LogicalTime, Removal>,
}

#[derive(Debug, Default)]
struct History {
    now: LogicalTime,
    keys: Vec<Key>,
    by_id: BTreeMap<KeyId, usize>,
    puts: Vec<Put>,
    at: BTreeMap<SlotEpoch, PutId>,
    // READY in a log, and neither accepted nor found to be one too many.
    unaccepted: BTreeMap<SlotEpoch, PutId>,
    // Objects of keys that the ledger does not know, as manifests and stripes are.
    besides: BTreeMap<SlotEpoch, KeyId>,
    // Their copies in logs that are not accepted yet.
    besides_copied: BTreeMap<SlotEpoch, KeyId>,
    // Further replicas of puts.
    replicas: BTreeMap<PutId, Vec<PutId>>,
    // Copies in a log that its owner has not accepted yet, and whose bytes they are.
    copies: BTreeMap<SlotEpoch, PutId>,
    // Where objects lay before they were copied: they end there, and their puts do not.
    moved_from: BTreeSet<SlotEpoch>,
    // The process of each incarnation, and the processes that were masters.
    homes: BTreeMap<u64, Pid>,
    masters: BTreeSet<u64>,
    // Members of the last master that started, and former members.
    members: BTreeSet<u64>,
    left: BTreeSet<u64>,
    wrong: Vec<String>,
    excused: BTreeMap<&'static str, u64>,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Ledger {
    history: Mutex<History>,
    stripes: bool,
    trace: Trace,
}

impl History {
    fn tick(&mut self) -> LogicalTime {
        self.now += 1;
        self.now
    }

    fn put(&self, put: PutId) -> &Put {
        &self.puts[put as usize]
    }

    fn name(&self, key: usize) -> String {
        self.keys[key].name.escape_ascii().to_string()
    }

    fn wrong(&mut self, trace: &Trace, text: String) {
        trace.note("WRONG", &text);
        if self.wrong.len() < MAX_WRONG {
            self.wrong.push(format!("at {} ms: {text}", trace.now_ms()));
        }
    }
}

impl Ledger {
    /// `stripes`: there are striped objects, too.
    pub fn new(keys: &[Vec<u8>], stripes: bool, trace: Trace) -> Self {
        let mut history = History::default();
        let hasher = secret().key_hasher(JOB);
        for (i, name) in keys.iter().enumerate() {
            history.by_id.insert(hasher.id(name), i);
            history.keys.push(Key { name: name.clone(), ..Key::default() });
        }
        Self { history: Mutex::new(history), stripes, trace }
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rule was broken.
    pub fn wrong(&self, text: String) {
        self.lock().wrong(&self.trace, text);
    }

    /// The rules that were broken, the first first.
    pub fn verdict(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    /// How often a residual had to be allowed.
    pub fn excused(&self) -> BTreeMap<&'static str, u64> {
        self.lock().excused.clone()
    }

    /// The moment now.
    pub fn moment(&self) -> LogicalTime {
        self.lock().tick()
    }

    /// Registers a segment of this process; `master`: the process runs the master.
    pub fn home(&self, incarnation: u64, pid: Pid, master: bool) {
        let mut history = self.lock();
        history.homes.insert(incarnation, pid);
        if master {
            history.masters.insert(pid.into());
        }
    }

    /// A master was seen, by the random id of its term.
    pub fn master_began(&self, id: u64) {
        self.lock().masters.insert(id);
    }

    /// A process died.
    pub fn process_died(&self, pid: Pid) {
        let mut history = self.lock();
        let its: BTreeSet<u64> =
            history.homes.iter().filter(|(_, p)| **p == pid).map(|(i, _)| *i).collect();
        let now = history.tick();
        history.unaccepted.retain(|spot, _| !its.contains(&spot.incarnation));
        history.besides.retain(|spot, _| !its.contains(&spot.incarnation));
        for put in &mut history.puts {
            if put.gone.is_none() && put.spot.is_some_and(|s| its.contains(&s.incarnation)) {
                (put.gone, put.gone_ms) = (Some((now, Cause::Died)), self.trace.now_ms());
            }
        }
    }

    /// A put of about `len` bytes begins; returns its number and what it writes. `any`: it is done
    /// also if another put's object is readable.
    pub fn begin_put(&self, key: usize, len: usize, any: bool) -> (PutId, Vec<u8>) {
        let mut history = self.lock();
        // Values too short to identify their put: each length is used once per key.
        let like = |p: &PutId| history.put(*p).len == len;
        let alike = len < TELLING_BYTES && history.keys[key].puts.iter().any(like);
        let len = if alike { len + TELLING_BYTES } else { len };
        let (put, began) = (history.puts.len() as PutId, history.tick());
        history.keys[key].puts.push(put);
        let several = history.keys[key].replicated;
        history.puts.push(Put {
            content: put,
            key,
            len,
            began,
            began_ms: self.trace.now_ms(),
            ended: None,
            acked: None,
            any,
            several,
            until_read_ms: None,
            rank: 0,
            logged: None,
            made_of: None,
            settled: None,
            spot: None,
            gone: None,
            gone_ms: 0,
        });
        (put, value(put, len))
    }

    /// The handle looks its plan up by the key: it may find another worker's plan, opened after
    /// this one's was over.
    pub fn by_key(&self, put: PutId) {
        self.lock().puts[put as usize].any = true;
    }

    /// A read of this key begins; it ends when this is dropped.
    pub fn reading(self: &Arc<Self>, key: usize) -> Reading {
        let (mut history, now_ms) = (self.lock(), self.trace.now_ms());
        history.keys[key].reads.push((now_ms, None));
        Reading { ledger: self.clone(), key, n: history.keys[key].reads.len() - 1 }
    }

    /// This put's object may end so long after its first read.
    pub fn ends_after_read(&self, put: PutId, ttl: Duration) {
        self.lock().puts[put as usize].until_read_ms = Some(ttl.as_millis() as u64);
    }

    /// Several replicas of this put's object may be made.
    pub fn asks_for_replicas(&self, put: PutId) {
        self.lock().puts[put as usize].several = true;
    }

    /// Several replicas of objects of these keys may be made from here on.
    pub fn replicates(&self, keys: &[usize]) {
        let mut history = self.lock();
        for key in keys {
            history.keys[*key].replicated = true;
            for put in history.keys[*key].puts.clone() {
                history.puts[put as usize].several = true;
            }
        }
    }

    /// The put ended. An acknowledged put was published before, and is readable unless it was
    /// removed.
    pub fn end_put(&self, put: PutId, outcome: Outcome) {
        let mut history = self.lock();
        let now = history.tick();
        let entry = &mut history.puts[put as usize];
        if entry.ended.is_some() {
            return;
        }
        entry.ended = Some((now, outcome));
        if outcome == Outcome::Done {
            entry.acked = Some(self.trace.now_ms());
        }
        let (ended, acked) = (entry.ended, entry.acked);
        for replica in history.replicas.get(&put).cloned().unwrap_or_default() {
            let replica = &mut history.puts[replica as usize];
            (replica.ended, replica.acked) = (ended, acked);
        }
        if outcome != Outcome::Done {
            return;
        }
        let entry = &history.puts[put as usize];
        if entry.spot.or(entry.logged).is_none() && !history.has_another(put, self.trace.now_ms()) {
            let name = history.name(history.put(put).key);
            let text = format!("put {put} of {name} was acknowledged and never published");
            history.wrong(&self.trace, text);
        }
        history.check_end_of(&self.trace, put);
    }

    /// An object of a striped object, or one that is under such a key.
    fn is_besides(&self, history: &History, id: KeyId) -> bool {
        self.stripes && !history.by_id.contains_key(&id)
    }

    /// READY was set at this spot.
    pub fn published(&self, spot: SlotEpoch, rank: u32, id: KeyId, bytes: &[u8]) {
        let mut history = self.lock();
        if self.is_besides(&history, id) {
            history.besides.insert(spot, id);
            return;
        }
        let fresh = history.fresh(id, bytes);
        let put = fresh.or_else(|| history.replica(id, bytes));
        let Some(put) = put else {
            return history.of_no_put(&self.trace, spot, (rank, id), bytes);
        };
        history.puts[put as usize].rank = rank;
        history.is_served(&self.trace, put, spot);
        history.puts[put as usize].spot = Some(spot);
        history.at.insert(spot, put);
        let describe = || format!("put {put} at {spot:?}");
        self.trace.event("ready", (put, spot), describe);
    }

    /// The object at this spot ceased to be readable.
    pub fn retired(&self, spot: SlotEpoch, cause: Cause) {
        let mut history = self.lock();
        let now = history.tick();
        if history.moved_from.contains(&spot) {
            return;
        }
        history.besides.remove(&spot);
        let Some(&put) = history.at.get(&spot) else { return };
        let entry = &mut history.puts[put as usize];
        if entry.gone.is_none() {
            (entry.gone, entry.gone_ms) = (Some((now, cause)), self.trace.now_ms());
        }
        let describe = || format!("put {put} at {spot:?}: {cause:?}");
        self.trace.event("retired", (put, spot), describe);
        history.check_end_of(&self.trace, put);
    }

    /// A removal of these keys begins; the returned time identifies it.
    pub fn begin_removal(&self, keys: &[usize], known_by: KnownBy) -> LogicalTime {
        let mut history = self.lock();
        let began = history.tick();
        for key in keys {
            let (members, knew, came_back, asked) = Default::default();
            let (masters, late) = (history.masters.len(), false);
            let removal = Removal {
                began,
                ended: None,
                members,
                knew,
                came_back,
                asked,
                masters,
                late,
                known_by,
            };
            history.keys[*key].removals.insert(began, removal);
        }
        began
    }

    /// A master starts with these members: all that reported in time.
    pub fn goes_on_with(&self, members: &BTreeSet<u64>) {
        let mut history = self.lock();
        let before = std::mem::replace(&mut history.members, members.clone());
        history.left.extend(before.difference(members));
        for removal in history.keys.iter_mut().flat_map(|k| k.removals.values_mut()) {
            let done = removal.ended.is_some_and(|(_, o)| o == Outcome::Done);
            if done && removal.knew.is_disjoint(members) {
                removal.came_back.extend(members.difference(&removal.members));
            }
        }
    }

    /// The removal ended for one of its keys. If acknowledged, nothing put before it is readable
    /// any more [I6].
    pub fn end_removal(&self, began: LogicalTime, key: usize, outcome: Outcome, roster: &Roster) {
        let mut history = self.lock();
        let (now, masters) = (history.tick(), history.masters.len());
        let Some(removal) = history.keys[key].removals.get_mut(&began) else { return };
        removal.late = removal.masters < masters;
        removal.ended = Some((now, outcome));
        removal.members = roster.members.clone();
        removal.knew = roster.linked.clone();
        removal.asked = roster.asked.clone();
        if outcome != Outcome::Done {
            return;
        }
        let removal = &history.keys[key].removals[&began];
        let left = history.keys[key].puts.iter().copied().find(|p| {
            let put = history.put(*p);
            let at = put.spot.or(put.logged);
            let seated = at.is_some_and(|s| roster.is_seated(s.incarnation));
            let there = put.is_live() || history.is_unaccepted(put);
            put.was_over_at(began) && there && seated && removal.met(put)
        });
        if let Some(put) = left {
            let text = format!(
                "[I6] a removal of {} was acknowledged, and put {put}, over before it began, is \
                 still readable at {:?}",
                history.name(key),
                history.put(put).spot.or(history.put(put).logged)
            );
            history.wrong(&self.trace, text);
        }
    }
}
