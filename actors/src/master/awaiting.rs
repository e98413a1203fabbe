//! Callers that wait for keys: they are answered once a key is readable, or its plan has ended
//! without. What changes an entry only notes its key; the answers are sent at the end of the
//! message that changed it.

use super::Master;
use super::entry::{Entry, State};
use crate::actor::Reply;
use crate::error::Error;
use crate::message::{
    AwaitReady, EndCause, KeyBytes, LogObjectEntry, ObjMeta, Readiness, Response, SegmentId,
    SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::{Key, KeyId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Requests that wait for keys at a time, and keys of all of them together. Further requests fail
/// with `NotReady`.
const MAX_CALLS: usize = 4_096;
const MAX_KEYS: usize = 1 << 20;

/// A request that waits.
struct Call {
    asked: AwaitReady,
    ids: Vec<KeyId>,
    until_ms: u64,
    reply: Reply<Response>,
}

/// Requests that wait for keys.
#[derive(Default)]
pub(super) struct Awaiting {
    calls: BTreeMap<u64, Call>,
    // Who waits for a key: the number of the call, and which of its keys it is.
    by_key: HashMap<KeyId, SmallVec<[(u64, u32); 1]>>,
    next: u64,
    // Keys whose entries changed, with what is known beyond the entry.
    changed: Vec<(KeyId, Option<Readiness>)>,
}

impl Awaiting {
    /// The key string of an awaited key.
    fn key(&self, id: KeyId) -> Option<&KeyBytes> {
        let (call, index) = self.by_key.get(&id)?.first()?;
        self.calls.get(call)?.asked.keys.get(*index as usize)
    }

    fn insert(&mut self, call: Call) {
        let number = self.next;
        self.next += 1;
        for (index, id) in (0..).zip(&call.ids) {
            self.by_key.entry(*id).or_default().push((number, index));
        }
        self.calls.insert(number, call);
    }

    fn remove(&mut self, number: u64) -> Option<Call> {
        let call = self.calls.remove(&number)?;
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
            // The owner counts the time of a plan itself.
            Some(EndCause::Expired) | None => "its producer did not finish in time".to_string(),
            Some(EndCause::Aborted) => "its producer gave it up".to_string(),
            // It may be put again.
            Some(EndCause::Removed) => return,
            Some(EndCause::Unknown | EndCause::TermOver) => {
                format!("{whose} was started again, or the master was")
            }
        };
        let text = format!("key {} will not be READY: {why}; put it again", e.key);
        self.note_as(id, Some(Readiness::Ended(Error::reclaimed(text))));
    }
}

impl Master {
    /// Answers a request that waits for keys now, if it can be answered, or keeps it. `besides`:
    /// objects that logs hold under keys whose listed entry cannot be read.
    pub(super) fn await_ready(
        &mut self,
        asked: AwaitReady,
        besides: &HashMap<KeyId, ObjMeta>,
        reply: Reply<Response>,
    ) {
        if let Some(e) = asked.keys.iter().find_map(|key| Key::check(key).err()) {
            return reply.send(Response::Failed(e.into()));
        }
        let ids: Vec<KeyId> = asked.keys.iter().map(|key| self.id_of(key)).collect();
        let gone: HashSet<SlotRef> = asked.gone.iter().copied().collect();
        let one = |(i, id): (u32, &KeyId)| {
            let beside = || besides.get(id).map(|meta| Readiness::Ready(vec![meta.clone()]));
            let found = self.readiness(&asked, *id, &gone).or_else(beside)?;
            Some((i, found))
        };
        let now: Vec<_> = (0..).zip(&ids).filter_map(one).collect();
        if !now.is_empty() || asked.wait_ms == 0 {
            return reply.send(Response::Readiness(now));
        }
        let a = &self.awaiting;
        if a.calls.len() >= MAX_CALLS || a.by_key.len() + ids.len() > MAX_KEYS {
            let text = format!(
                "{} calls wait for {} keys already, of {MAX_CALLS} and {MAX_KEYS} at most",
                a.calls.len(),
                a.by_key.len()
            );
            return reply.send(Response::Failed(Error::not_ready(text)));
        }
        let until_ms = self.now_ms() + asked.wait_ms;
        self.awaiting.insert(Call { asked, ids, until_ms, reply });
    }

    /// What the entry of a key means to a caller that waits for it; none: it waits on.
    fn readiness(
        &self,
        asked: &AwaitReady,
        id: KeyId,
        gone: &HashSet<SlotRef>,
    ) -> Option<Readiness> {
        let e = self.objects.get(&id)?;
        let at = &e.at();
        match e.state() {
            State::Live if self.is_readable(e) => {
                let there: Vec<_> = self.metas(e).filter(|m| !gone.contains(&m.at)).collect();
                (!there.is_empty()).then_some(Readiness::Ready(there))
            }
            State::Writing(_)
                if asked.mapped.contains(&at.incarnation) && !asked.watched.contains(at) =>
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
        if self.awaiting.changed.is_empty() {
            return;
        }
        let mut answers: BTreeMap<u64, BTreeMap<u32, Readiness>> = BTreeMap::new();
        for (id, what) in std::mem::take(&mut self.awaiting.changed) {
            let Some(waiting) = self.awaiting.by_key.get(&id) else { continue };
            for (number, index) in waiting {
                let Some(Call { asked, .. }) = self.awaiting.calls.get(number) else { continue };
                // Few: locations that one caller tried in vain.
                let gone = asked.gone.iter().copied().collect();
                if let Some(found) = self.readiness(asked, id, &gone).or_else(|| what.clone()) {
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

    /// The keys that callers wait for, with the longest time that one of them still waits, in ms.
    pub(super) fn awaited_keys(&self) -> (Vec<KeyId>, u64) {
        let until = self.awaiting.calls.values().map(|call| call.until_ms).max();
        let wait_ms = until.unwrap_or(0).saturating_sub(self.now_ms());
        (self.awaiting.by_key.keys().copied().collect(), wait_ms)
    }
}
