//! Callers that wait for keys: they are answered once a key is readable, or its plan has ended
//! without. What changes an entry only notes its key; the answers are sent at the end of the
//! message that changed it, or with the next tick.

use super::Master;
use super::entry::{Entry, State};
use crate::actor::Reply;
use crate::error::Error;
use crate::message::{
    AwaitReady, EndCause, KeyBytes, LogObjectEntry, LogQuestion, MAX_BATCH, MasterToOwner,
    Readiness, Response, SegmentId, SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::{Key, KeyId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Requests that wait for keys at a time, and what all of them together list. Further requests
/// fail with `NotReady`.
const MAX_CALLS: usize = 4_096;
const MAX_LISTED: usize = 1 << 20;
/// The number of questions to owners of logs about what callers wait for. Nobody waits for the
/// answers: they come to those who wait for the keys by then.
pub(super) const AWAITED: u64 = u64::MAX;

/// A request that waits.
struct Call {
    keys: Vec<KeyBytes>,
    ids: Vec<KeyId>,
    mapped: HashSet<u64>,
    watched: HashSet<SlotRef>,
    gone: HashSet<SlotRef>,
    listed: usize,
    until_ms: u64,
    reply: Reply<Response>,
}

/// Requests that wait for keys.
#[derive(Default)]
pub(super) struct Awaiting {
    calls: BTreeMap<u64, Call>,
    // Who waits for a key: the number of the call, and which of its keys it is.
    by_key: HashMap<KeyId, SmallVec<[(u64, u32); 1]>>,
    // The length of all lists of the calls.
    listed: usize,
    next: u64,
    // Keys whose entries changed, with what is known beyond the entry.
    changed: Vec<(KeyId, Option<Readiness>)>,
}

impl Awaiting {
    /// The key string of an awaited key, if all who wait for it agree on it [I16].
    fn key(&self, id: KeyId) -> Option<&KeyBytes> {
        let of = |(call, index): &(u64, u32)| self.calls.get(call)?.keys.get(*index as usize);
        let mut all = self.by_key.get(&id)?.iter().filter_map(of);
        let first = all.next()?;
        all.all(|key| **key == **first).then_some(first)
    }

    fn insert(&mut self, call: Call) {
        let number = self.next;
        self.next += 1;
        self.listed += call.listed;
        for (index, id) in (0..).zip(&call.ids) {
            self.by_key.entry(*id).or_default().push((number, index));
        }
        self.calls.insert(number, call);
    }

    fn remove(&mut self, number: u64) -> Option<Call> {
        let call = self.calls.remove(&number)?;
        self.listed -= call.listed;
        for id in &call.ids {
            if let Some(waiting) = self.by_key.get_mut(id) {
                waiting.retain(|(waits, _)| *waits != number);
                if waiting.is_empty() {
                    self.by_key.remove(id);
                }
            }
        }
        Some(call)
    }

    /// The entry of a key changed.
    pub(super) fn note(&mut self, id: KeyId) {
        self.note_as(id, None);
    }

    /// A segment is back: what lies there can be read again.
    fn note_all(&mut self) {
        let all = self.keys().into_iter().map(|id| (id, None));
        self.changed.extend(all);
    }

    /// What is awaited, in an order that a simulation can repeat.
    fn keys(&self) -> Vec<KeyId> {
        let mut keys: Vec<KeyId> = self.by_key.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    fn note_as(&mut self, id: KeyId, what: Option<Readiness>) {
        if self.by_key.contains_key(&id) {
            self.changed.push((id, what));
        }
    }

    /// A plan ended without its object. `lost`: its segment is no member any more.
    pub(super) fn note_end(
        &mut self,
        id: KeyId,
        e: &Entry,
        (cause, lost): (Option<EndCause>, bool),
    ) {
        let whose = e.segment_id();
        let why = match cause {
            _ if lost => format!("{whose}, to which it was being written, is gone"),
            Some(EndCause::ProducerGone) => "its producer is gone".to_string(),
            Some(EndCause::Aborted) => "its producer gave it up".to_string(),
            // It may be put again.
            Some(EndCause::Removed) => return,
            // The owner counts the time of a plan, and the master does not learn the cause.
            _ => "its producer did not finish in time, or was cut off".to_string(),
        };
        let text = format!("key {} will not be READY: {why}; put it again", e.key);
        self.note_as(id, Some(Readiness::Ended(Error::reclaimed(text))));
    }
}

impl Master {
    /// Answers a request that waits for keys now, if it can be answered. Else keeps it, and asks
    /// the owners of logs: so what a log accepts meanwhile finds it here.
    pub(super) fn await_ready(&mut self, asked: AwaitReady, reply: Reply<Response>) {
        if let Some(e) = asked.keys.iter().find_map(|key| Key::check(key).err()) {
            return reply.send(Response::Failed(e.into()));
        }
        let AwaitReady { keys, wait_ms, mapped, watched, gone } = asked;
        let call = Call {
            ids: keys.iter().map(|key| self.id_of(key)).collect(),
            listed: keys.len() + mapped.len() + watched.len() + gone.len(),
            mapped: mapped.into_iter().collect(),
            watched: watched.into_iter().collect(),
            gone: gone.into_iter().collect(),
            until_ms: self.now_ms() + wait_ms,
            keys,
            reply,
        };
        let one = |i: usize| Some((i as u32, self.readiness(&call, i)?));
        let now: Vec<_> = (0..call.keys.len()).filter_map(one).collect();
        if !now.is_empty() || wait_ms == 0 {
            return call.reply.send(Response::Readiness(now));
        }
        let a = &self.awaiting;
        if a.calls.len() >= MAX_CALLS || a.listed + call.listed > MAX_LISTED {
            let text = format!(
                "{} calls wait for keys already, with lists of {} items; at most {MAX_CALLS} and \
                 {MAX_LISTED} may",
                a.calls.len(),
                a.listed
            );
            return call.reply.send(Response::Failed(Error::not_ready(text)));
        }
        self.ask_logs_about(&call, wait_ms);
        self.promote_awaited(&call.keys);
        self.awaiting.insert(call);
    }

    /// Asks the owners of logs, and those where the caller found a listed object gone.
    fn ask_logs_about(&self, call: &Call, wait_ms: u64) {
        let entries = call.ids.iter().filter_map(|id| self.objects.get(id));
        let doubted = entries.flat_map(Entry::replicas).filter(|r| call.gone.contains(&r.at));
        let doubted: HashSet<SegmentId> = doubted.map(|r| r.segment_id).collect();
        for (segment_id, allocator) in &self.allocators {
            let has_log = allocator.info.layout.log_slots > 0;
            if (has_log || doubted.contains(segment_id)) && self.reachable(*segment_id) {
                self.ask_log_about(*segment_id, &call.ids, wait_ms);
            }
        }
    }

    fn ask_log_about(&self, segment_id: SegmentId, keys: &[KeyId], wait_ms: u64) {
        for keys in keys.chunks(MAX_BATCH) {
            let question = LogQuestion::Await { keys: keys.to_vec(), wait_ms };
            let ask = MasterToOwner::AskLog { number: AWAITED, question };
            self.durable.members.send(segment_id, ask);
        }
    }

    /// A segment has reported, over a new link: what callers wait for may be there, and the
    /// question about it may have been lost with the old link.
    pub(super) fn await_again(&mut self, segment_id: SegmentId) {
        self.awaiting.note_all();
        let until = self.awaiting.calls.values().map(|call| call.until_ms).max();
        let wait_ms = until.unwrap_or(0).saturating_sub(self.now_ms());
        self.ask_log_about(segment_id, &self.awaiting.keys(), wait_ms);
    }

    /// What the entry of a key means to a caller that waits for it; none: it waits on.
    fn readiness(&self, call: &Call, index: usize) -> Option<Readiness> {
        let e = match self.entry(&call.keys[index]) {
            Ok(e) => e?,
            Err(other_key) => return Some(Readiness::Ended(other_key)),
        };
        let at = e.at();
        match e.state() {
            State::Live if self.is_readable(e) => {
                let there: Vec<_> = self.metas(e).filter(|m| !call.gone.contains(&m.at)).collect();
                (!there.is_empty()).then_some(Readiness::Ready(there))
            }
            State::Writing(_)
                if call.mapped.contains(&at.incarnation) && !call.watched.contains(&at) =>
            {
                Some(Readiness::Writing(self.meta(&e.key, &e.replica())))
            }
            _ => None,
        }
    }

    /// Objects that a log accepted under keys that callers wait for, who know the key strings.
    pub(super) fn accepted(&mut self, segment_id: SegmentId, list: Vec<LogObjectEntry>) {
        let named = list.into_iter().filter_map(|o| {
            let key = self.awaiting.key(o.id)?.clone();
            Some(LogObjectEntry { key, ..o })
        });
        let named: Vec<_> = named.collect();
        let Some(allocator) = self.allocators.get(&segment_id).filter(|b| b.reported) else {
            return;
        };
        let incarnation = allocator.info.incarnation;
        for o in &named {
            let at = SlotRef { incarnation, slot: o.slot, epoch: o.epoch };
            // An entry that is being written or removed must not hide it.
            if self.objects.get(&o.id).is_some_and(|e| !self.is_readable(e))
                && let Some(entry) = self.logged_entry(segment_id, at, o)
            {
                let meta = self.meta(&entry.key, &entry.replica());
                self.awaiting.note_as(o.id, Some(Readiness::Ready(vec![meta])));
            }
        }
        self.announced(segment_id, named);
    }

    /// Answers the callers that wait for what has changed.
    pub(super) fn answer_awaiting(&mut self) {
        if self.awaiting.changed.is_empty() || self.check_lease().is_err() {
            return;
        }
        let mut answers: BTreeMap<u64, BTreeMap<u32, Readiness>> = BTreeMap::new();
        for (id, what) in std::mem::take(&mut self.awaiting.changed) {
            let Some(waiting) = self.awaiting.by_key.get(&id) else { continue };
            for (number, index) in waiting {
                let Some(call) = self.awaiting.calls.get(number) else { continue };
                let found = self.readiness(call, *index as usize).or_else(|| what.clone());
                if let Some(found) = found {
                    answers.entry(*number).or_default().insert(*index, found);
                }
            }
        }
        for (number, found) in answers {
            if let Some(call) = self.awaiting.remove(number) {
                call.reply.send(Response::Readiness(found.into_iter().collect()));
            }
        }
    }

    /// Answers those whose time is over, and forgets those who wait no longer.
    pub(super) fn expire_awaiting(&mut self) {
        let now = self.now_ms();
        let over = |call: &Call| call.until_ms <= now || !call.reply.is_awaited();
        let late = self.awaiting.calls.iter().filter(|(_, call)| over(call));
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            if let Some(call) = self.awaiting.remove(number) {
                call.reply.send(Response::Readiness(Vec::new()));
            }
        }
    }
}
