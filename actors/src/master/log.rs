//! Questions to the owners of device logs. They announce an object once its key string is known, in
//! batches (`logged.rs`). Until then the master asks where its answer must be right: before it
//! answers that a key does not exist, before a removal counts as done [I6] [I15], and when a reader
//! found no object at the listed location [I7]. An owner reports what it retired before it answers.
//! No put waits for any of this.

use super::allocator::SegmentAllocator;
use super::awaiting::AWAITED;
use super::entry::Entry;
use super::known::{Known, gone_slots, looked_up, removes};
use super::matching::{Ended, RemovedBefore, Round};
use super::{Ask, Master};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    KeyBytes, Location, LogObjectEntry, LogQuestion, MAX_ENDED_SETS, MasterToOwner, ObjMeta,
    Promote, Request, Response, SegmentId, SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::KeyId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// How long owners have to answer about their logs; shorter than the limit of a call.
const ANSWER_LIMIT_MS: u64 = 1_000;
/// Requests that may wait for owners of logs at a time; further ones fail with `NotReady`.
const MAX_ASKED: usize = 4096;
/// Of those, listings and removals by pattern: each asks every producer, and lookups must not wait
/// for them.
const MAX_ANNOUNCING: usize = 64;

/// A request that waits for answers of the owners of logs.
pub(super) struct Asked {
    ask: Ask,
    reply: Reply<Response>,
    question: LogQuestion,
    // Segments that have not answered yet, with their incarnations.
    left: BTreeMap<SegmentId, u64>,
    known: Known,
    // Keys that logs retired for this request.
    removed: HashSet<KeyId>,
    // Number of objects that logs retired for a removal of all keys.
    taken: u64,
    // Sets of replicas of which logs retired some.
    sets: Vec<(KeyId, u32)>,
}

/// Locations in memory, as an answer.
fn in_memory(list: Vec<crate::error::Result<Vec<ObjMeta>>>) -> Response {
    let all = |metas: Vec<ObjMeta>| metas.into_iter().map(Location::Memory).collect();
    Response::Locations(list.into_iter().map(|found| found.map(all)).collect())
}

/// The keys of a question, for an error.
fn any_of(question: &LogQuestion) -> String {
    match question {
        LogQuestion::Find(keys) | LogQuestion::Remove(keys) if keys.len() == 1 => {
            "this key".to_string()
        }
        LogQuestion::Find(keys) | LogQuestion::Remove(keys) | LogQuestion::Await { keys, .. } => {
            format!("any of these {} keys", keys.len())
        }
        LogQuestion::RemoveAll | LogQuestion::AnnounceAll | LogQuestion::EndSets(_) => {
            "keys that are not listed yet".to_string()
        }
    }
}

impl Master {
    /// Asks the owners of logs if the request needs it. Gives the request back if there is nothing
    /// to ask or no owner to ask.
    pub(super) fn ask_logs_first(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
        known: Known,
    ) -> Option<(Ask, Reply<Response>)> {
        let Some(question) = self.question_of(&ask.request, &[]) else {
            return Some((ask, reply));
        };
        self.ask_logs(question, ask, reply, known)
    }

    /// Has logs say which of these keys they serve, although they are listed: an owner may have an
    /// object whose key string is on its way.
    pub(super) fn ask_logs_for(&mut self, keys: Vec<KeyBytes>) {
        let question = LogQuestion::Find(keys.iter().map(|key| self.id_of(key)).collect());
        let request = Request::GetLocation { keys, gone: Vec::new(), promote: Promote::No };
        let ask = Ask { producer: 0, request };
        let _ = self.ask_logs(question, ask, Reply::nobody(), Known::default());
    }

    /// As [`Self::ask_logs_first`] about a lookup, after objects were brought back from disk.
    pub(super) fn look_up_again(&mut self, ask: Ask, reply: Reply<Response>, known: Known) {
        let known = Known { until_ms: 0, about: Vec::new(), ..known };
        match self.question_of(&ask.request, &[]) {
            // Without an owner to ask, `ask_logs` answers.
            Some(question) => drop(self.ask_logs(question, ask, reply, known)),
            None => self.answer_lookup(ask, reply, known),
        }
    }

    /// `known`: what owners answered before. Answers lookups if there is no owner to ask.
    fn ask_logs(
        &mut self,
        question: LogQuestion,
        ask: Ask,
        reply: Reply<Response>,
        mut known: Known,
    ) -> Option<(Ask, Reply<Response>)> {
        if known.until_ms == 0 {
            known.until_ms = self.now_ms() + ANSWER_LIMIT_MS;
        }
        let doubted = self.doubted(&ask.request);
        let is_asked = |(segment_id, b): &(&SegmentId, &SegmentAllocator)| {
            b.info.layout.log_slots > 0 || doubted.contains(*segment_id)
        };
        let asked = self.allocators.iter().filter(is_asked);
        let (left, unreported): (BTreeMap<SegmentId, u64>, BTreeMap<SegmentId, u64>) = asked
            .map(|(segment_id, allocator)| (*segment_id, allocator.info.incarnation))
            .partition(|(segment_id, _)| self.reachable(*segment_id));
        // Checked before disks were asked, and its link broke since.
        if let (Some((segment_id, _)), true) = (unreported.first_key_value(), removes(&ask.request))
        {
            let error = self.cannot_be_asked(*segment_id, &question, "the removal is not complete");
            reply.send(Response::Failed(error));
            return None;
        }
        if left.is_empty() {
            if looked_up(&ask.request).is_none() {
                return Some((ask, reply));
            }
            self.answer_lookup(ask, reply, known);
            return None;
        }
        if question == LogQuestion::AnnounceAll && self.announcing() >= MAX_ANNOUNCING {
            let text = format!("{MAX_ANNOUNCING} listings and removals by pattern wait already");
            reply.send(Response::Failed(Error::not_ready(text)));
            return None;
        }
        if self.log_questions.len() >= MAX_ASKED {
            let text = format!("{MAX_ASKED} calls already wait for the owners of device logs");
            reply.send(Response::Failed(Error::not_ready(text)));
            return None;
        }
        let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
        for segment_id in left.keys() {
            let question = question.clone();
            self.durable.members.send(*segment_id, MasterToOwner::AskLog { number, question });
        }
        if let LogQuestion::Find(keys) = &question {
            known.about.extend(keys.iter().copied());
        }
        let (removed, taken) = (std::mem::take(&mut known.removed), 0);
        let asked = Asked { ask, reply, question, left, known, removed, taken, sets: Vec::new() };
        self.log_questions.insert(number, asked);
        None
    }

    /// An owner whose link is down cannot be asked until it is back or gone. Meanwhile a key that
    /// only its log holds is not found, but a removal of it must not be confirmed [I6].
    pub(super) fn check_logs_of(&self, removal: &Request) -> crate::error::Result<()> {
        let with_log = self.allocators.iter().filter(|(_, b)| b.info.layout.log_slots > 0);
        let down = with_log.map(|(id, _)| *id).find(|id| !self.reachable(*id));
        match (down, self.question_of(removal, &[])) {
            (Some(down), Some(question)) => {
                Err(self.cannot_be_asked(down, &question, "nothing was removed"))
            }
            _ => Ok(()),
        }
    }

    fn cannot_be_asked(&self, segment_id: SegmentId, about: &LogQuestion, so: &str) -> Error {
        let at = self.allocators.get(&segment_id);
        let at = at.map_or_else(String::new, |b| format!(" ({})", b.info.control));
        Error::disconnected(format!(
            "the link of {segment_id} is down{at}, and its device log may hold {}: {so}; remove \
             again once that rank is back, or gone after its TTL",
            any_of(about)
        ))
    }

    fn announcing(&self) -> usize {
        let announces = |asked: &&Asked| asked.question == LogQuestion::AnnounceAll;
        self.log_questions.values().filter(announces).count()
    }

    /// Segments where a reader found the listed object gone: their owners may have retired it.
    fn doubted(&self, request: &Request) -> BTreeSet<SegmentId> {
        let Request::GetLocation { keys, .. } = request else { return BTreeSet::new() };
        let gone = gone_slots(request);
        let listed = keys.iter().filter_map(|k| self.entry(k).ok().flatten());
        let replicas = listed.flat_map(Entry::replicas);
        replicas.filter(|r| gone.contains(&r.at)).map(|r| r.segment_id).collect()
    }

    /// `but`: keys that owners were asked about already.
    fn question_of(&self, request: &Request, but: &[KeyId]) -> Option<LogQuestion> {
        let id = |k: &KeyBytes| self.id_of(k);
        let but: HashSet<&KeyId> = but.iter().collect();
        if let Some(keys) = looked_up(request) {
            // An entry that is being written or removed, that is unreachable or that is gone must
            // not hide an object that a log serves under the same key.
            let gone = gone_slots(request);
            let hidden = |e: Option<&Entry>| e.is_none_or(|e| self.is_hidden(e, &gone));
            let unknown = keys.iter().filter(|k| self.entry(k).is_ok_and(hidden));
            let unknown: Vec<_> = unknown.map(id).filter(|id| !but.contains(id)).collect();
            return (!unknown.is_empty()).then_some(LogQuestion::Find(unknown));
        }
        match request {
            Request::Remove(keys) => Some(LogQuestion::Remove(keys.iter().map(id).collect())),
            // The first of several rounds asks for all.
            Request::RemoveMatching(of) if of.from.is_none() => Some(match of.pattern {
                Some(_) => LogQuestion::AnnounceAll,
                None => LogQuestion::RemoveAll,
            }),
            Request::List { of, .. } if of.from.is_none() => Some(LogQuestion::AnnounceAll),
            _ => None,
        }
    }

    /// An owner answered.
    pub(super) fn log_answer(
        &mut self,
        segment_id: SegmentId,
        number: u64,
        served: Vec<LogObjectEntry>,
        (removed, taken): (Vec<KeyId>, u64),
    ) {
        if number == AWAITED {
            return self.accepted(segment_id, served);
        }
        let Some(mut asked) = self.log_questions.remove(&number) else { return };
        if asked.left.remove(&segment_id).is_none() {
            self.log_questions.insert(number, asked);
            return;
        }
        if let Some(keys) = looked_up(&asked.ask.request) {
            let gone = gone_slots(&asked.ask.request);
            let by_id: HashMap<KeyId, &KeyBytes> =
                keys.iter().map(|k| (self.id_of(k), k)).collect();
            // The request has the key string, also if the producer has not reported it yet.
            let named = served.into_iter().filter_map(|o| {
                let key = (*by_id.get(&o.id)?).clone();
                Some(LogObjectEntry { key, ..o })
            });
            let named: Vec<_> = named.collect();
            let incarnation = self.allocators.get(&segment_id).map_or(0, |b| b.info.incarnation);
            for o in &named {
                let at = SlotRef { incarnation, slot: o.slot, epoch: o.epoch };
                let id = o.id;
                let Some(listed) = self.objects.get(&id).filter(|e| !e.is_at(at)) else { continue };
                let is_gone = listed.replicas().all(|replica| gone.contains(&replica.at));
                // Also if the listed one can be read now: it may be retired before the last owner
                // has answered.
                let Some(entry) = self.logged_entry(segment_id, at, o) else { continue };
                asked.known.besides.insert(id, self.meta(&entry.key, &entry.replica()));
                // It is listed once the owner of the other object has reported that one as retired.
                // Until then it does not count as a duplicate.
                if is_gone && !self.is_replica_of(listed, &entry.replica(), o.set) {
                    self.put_aside(id, entry.replica());
                    self.found_gone.insert(id);
                }
            }
            self.announced(segment_id, named);
        } else {
            // If the removal fails, the next one of the key ends them.
            let sets: Vec<_> = served.iter().filter_map(|o| Some((o.id, o.set.mark()?))).collect();
            self.unended.extend(&sets);
            asked.sets.extend(sets);
            while self.unended.len() > MAX_ENDED_SETS {
                self.unended.pop_first();
            }
        }
        asked.removed.extend(removed);
        asked.taken = asked.taken.saturating_add(taken);
        if asked.left.is_empty() {
            self.all_answered(asked);
        } else {
            self.log_questions.insert(number, asked);
        }
    }

    /// A segment has a new link: the question or the answer may have been lost with the old one.
    pub(super) fn ask_log_again(&self, segment_id: SegmentId) {
        for (number, asked) in &self.log_questions {
            if asked.left.contains_key(&segment_id) {
                let (number, question) = (*number, asked.question.clone());
                self.durable.members.send(segment_id, MasterToOwner::AskLog { number, question });
            }
        }
    }

    /// Completes requests whose remaining owners are gone, and those whose time is over.
    pub(super) fn expire_log_questions(&mut self) {
        let now = self.now_ms();
        for asked in self.log_questions.values_mut() {
            // A segment that is gone or replaced serves nothing; one that may come back has to
            // answer.
            let is_member = |segment_id: &SegmentId, incarnation: &mut u64| {
                self.allocators.get(segment_id).is_some_and(|b| b.info.incarnation == *incarnation)
            };
            asked.left.retain(is_member);
        }
        let over = |a: &Asked| a.left.is_empty() || now >= a.known.until_ms;
        let done: Vec<_> = self.log_questions.extract_if(.., |_, a| over(a)).collect();
        for (_, asked) in done {
            match asked.left.first_key_value() {
                None => self.all_answered(asked),
                Some((segment_id, _)) => {
                    let text = format!(
                        "{segment_id} did not answer within {ANSWER_LIMIT_MS} ms what its \
                         device log holds"
                    );
                    self.unsure(asked.ask, asked.reply, &text);
                }
            }
        }
    }

    /// An owner of a log did not answer: answers what is known, and an error for all else.
    pub(super) fn unsure(&mut self, ask: Ask, reply: Reply<Response>, why: &str) {
        let unknown = || Error::disconnected(format!("this key is not known here, and {why}"));
        let failed = |text: String| Response::Failed(Error::disconnected(text));
        let (keys, gone) = match &ask.request {
            Request::GetLocation { keys, gone, .. } => (keys, gone),
            // A shorter run is a correct answer, too.
            Request::MatchPrefix(keys) => {
                let answer = self.match_prefix(keys, &Known::default());
                return reply.send(answer);
            }
            Request::Exists { .. } | Request::SaveToDisk { .. } => {
                let text = format!("not all of these keys are known here, and {why}");
                return reply.send(failed(text));
            }
            Request::List { .. } => {
                return reply.send(failed(format!("not all keys can be listed now: {why}")));
            }
            _ => return reply.send(failed(format!("not all of it can be removed now: {why}"))),
        };
        let mut list = self.locations(keys, gone);
        for found in &mut list {
            if found.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
                *found = Err(unknown());
            }
        }
        reply.send(in_memory(list));
    }

    fn all_answered(&mut self, asked: Asked) {
        let Asked { ask, reply, question, removed, mut known, taken, mut sets, .. } = asked;
        if looked_up(&ask.request).is_some() {
            match self.question_of(&ask.request, &known.about) {
                // A key that was listed at the first question may be gone since, and a log may hold
                // it. Each key is asked about once, and all questions share one limit. Without an
                // owner to ask, `ask_logs` answers.
                Some(question) => drop(self.ask_logs(question, ask, reply, known)),
                None => self.answer_lookup(ask, reply, known),
            }
            return self.flush_commits();
        }
        match question {
            LogQuestion::EndSets(sets) => {
                for set in &sets {
                    self.unended.remove(set);
                }
                known.ended.extend(sets);
            }
            _ => known.from_logs = taken,
        }
        if let Request::Remove(keys) = &ask.request {
            let ids: Vec<KeyId> = keys.iter().map(|key| self.id_of(key)).collect();
            let of = |id: &KeyId| self.unended.range((*id, 0)..=(*id, u32::MAX)).copied();
            sets.extend(ids.iter().flat_map(of));
            sets.extend(self.sets_of(ids.into_iter()));
        }
        sets.retain(|set| !known.ended.contains(set));
        let taken = RemovedBefore { from_logs: known.from_logs, from_disks: known.removed_count };
        let (ended, swept, gone) = (known.ended.clone(), known.swept, removed.clone());
        known.removed = removed;
        if let Some((ask, reply)) = self.end_sets(sets, ask, reply, known) {
            match ask.request {
                Request::Remove(keys) => self.remove(&keys, &gone, reply),
                request => {
                    let ask = Ask { request, ..ask };
                    let round = Round::new(ask, reply, taken);
                    match swept {
                        Some(next) => {
                            let ended = Some(Ended { sets: ended, next });
                            self.resume_round(Round { ended, ..round });
                        }
                        None => self.enter_round(round),
                    }
                }
            }
        }
        // Send what this put into the queues to owners before anything else is sent to them.
        self.flush_commits();
    }

    /// The sets of replicas that were put into logs, of these keys.
    pub(super) fn sets_of(&self, ids: impl Iterator<Item = KeyId>) -> Vec<(KeyId, u32)> {
        ids.filter_map(|id| Some((id, self.objects.get(&id)?.set().mark()?))).collect()
    }

    /// Before objects of these sets are removed: owners of logs serve no replica of them that comes
    /// later [I6]. Gives the request back if there is nothing to ask.
    pub(super) fn end_sets(
        &mut self,
        mut sets: Vec<(KeyId, u32)>,
        ask: Ask,
        reply: Reply<Response>,
        known: Known,
    ) -> Option<(Ask, Reply<Response>)> {
        if sets.is_empty() || !removes(&ask.request) {
            return Some((ask, reply));
        }
        sets.sort_unstable();
        sets.dedup();
        sets.truncate(MAX_ENDED_SETS);
        self.ask_logs(LogQuestion::EndSets(sets), ask, reply, known)
    }

    /// The answer to a lookup, after all that were to be asked have answered.
    pub(super) fn found(&mut self, request: &Request, known: &Known) -> Response {
        match request {
            Request::GetLocation { keys, gone, .. } => {
                let mut list = self.locations(keys, gone);
                // For keys without a listed location the object that a log serves.
                for (found, key) in list.iter_mut().zip(keys).filter(|(found, _)| found.is_err()) {
                    if let Some(meta) = known.besides.get(&self.id_of(key)) {
                        *found = Ok(vec![meta.clone()]);
                    }
                }
                self.with_disks(in_memory(list), keys, known)
            }
            Request::Exists { keys, .. } => self.exists(keys, known),
            Request::MatchPrefix(keys) => self.match_prefix(keys, known),
            _ => Response::Failed(Error::internal("not a lookup")),
        }
    }

    /// Whether a reader that is sent to this entry can read it.
    pub(super) fn is_readable(&self, e: &Entry) -> bool {
        e.is_live() && e.replicas().any(|replica| self.reachable(replica.segment_id))
    }

    /// Whether the master must ask logs for another object under the key of this entry.
    fn is_hidden(&self, e: &Entry, gone: &HashSet<SlotRef>) -> bool {
        !self.is_readable(e) || e.replicas().all(|replica| gone.contains(&replica.at))
    }
}
