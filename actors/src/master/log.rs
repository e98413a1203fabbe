//! Objects of device logs at the master. Owners announce an object once its key string is known, in
//! batches. Until then the master asks the owners of logs where its answer must be right: before it
//! answers that a key does not exist, before a removal counts as done [I6] [I15], and when a reader
//! found no object at the listed location [I7]. An owner reports what it retired before it answers.
//! No put waits for any of this.

use super::allocator::SegmentAllocator;
use super::awaiting::AWAITED;
use super::entry::{Entry, Replica, State};
use super::known::{Known, gone_slots, looked_up, removes};
use super::matching::{Ended, RemovedBefore, Round};
use super::{Ask, Master};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    KeyBytes, Location, LogObjectEntry, LogQuestion, MAX_ENDED_SETS, MasterToOwner, MovedObject,
    ObjMeta, Promote, Request, Response, SegmentId, SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::{Key, KeyId};
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
            Request::Exists { .. } => {
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

    /// Remembers an object that a log serves under a key whose entry is another one.
    fn put_aside(&mut self, id: KeyId, served: Replica) {
        self.aside.entry(id).or_default().insert(served.segment_id, served);
        // So that its end is noticed.
        self.list_at(id, served.segment_id, served.at);
    }

    /// An object that is not listed under this key has ended.
    pub(super) fn forget_aside(&mut self, id: KeyId, at: SlotRef) {
        let Some(aside) = self.aside.get_mut(&id) else { return };
        aside.retain(|_, served| served.at != at);
        if aside.is_empty() {
            self.aside.remove(&id);
        }
    }

    /// A removal of this key begins: what logs serve under it goes with its entry, and is waited
    /// for [I6].
    pub(super) fn remove_aside(&mut self, id: KeyId) {
        let Some(mut aside) = self.aside.remove(&id) else { return };
        // What ended while its rank's link was down is listed no more.
        let there = |served: &Replica| {
            self.listed_at(served.segment_id, &served.at) == Some(id)
                && self.objects.get(&id).is_some_and(|e| !e.is_at(served.at))
        };
        let others: Vec<_> = aside.extract_if(.., |_, served| there(served)).collect();
        for (_, served) in others {
            if let Some(e) = self.objects.get_mut(&id) {
                e.add_live(served);
            }
        }
        if !aside.is_empty() {
            self.aside.insert(id, aside);
        }
    }

    /// A plan's object is live now: objects that logs of other segments serve under its key are
    /// duplicates and are retired. Within its own segment the owner decides [I15].
    pub(super) fn became_live(&mut self, id: KeyId, but: SegmentId) {
        self.awaiting.note(id);
        self.remove_other_stripes(id);
        if self.found_gone.contains(&id) {
            return;
        }
        let Some(places) = self.aside.get_mut(&id) else { return };
        for (segment_id, served) in places.extract_if(.., |segment_id, _| *segment_id != but) {
            self.durable.members.send(segment_id, MasterToOwner::Retire(vec![served.at]));
        }
        if places.is_empty() {
            self.aside.remove(&id);
        }
    }

    /// The entry of this key is removed: if a log served another object under it, asks the logs for
    /// it again.
    pub(super) fn list_aside(&mut self, id: KeyId, key: &Key) {
        self.found_gone.remove(&id);
        if self.aside.remove(&id).is_some() {
            let (keys, gone) = (vec![KeyBytes::shared(key.clone())], Vec::new());
            let request = Request::GetLocation { keys, gone, promote: Promote::No };
            // Without an owner to ask there is nothing to list.
            let _ = self.ask_logs_first(
                Ask { producer: 0, request },
                Reply::nobody(),
                Known::default(),
            );
        }
    }

    /// A replica is gone, and others are served: what a log of its segment served under the same
    /// key meanwhile is a duplicate of those.
    pub(super) fn drop_aside(&mut self, id: KeyId, segment_id: Option<SegmentId>) {
        let Some((segment_id, served)) = segment_id.zip(self.aside.get_mut(&id)) else { return };
        let at = served.remove(&segment_id).map(|served| served.at);
        if served.is_empty() {
            self.aside.remove(&id);
        }
        if let Some(at) = at {
            self.durable.members.send(segment_id, MasterToOwner::Retire(vec![at]));
            // It went because of that object, and not since its rank needed room.
            self.note_unmade(id);
        }
    }

    pub(super) fn logged_entry(
        &self,
        segment_id: SegmentId,
        at: SlotRef,
        o: &LogObjectEntry,
    ) -> Option<Entry> {
        let replica = Replica { segment_id, at, object: o.object };
        Some(Entry::live(self.durable.key_pool.key(&o.key).ok()?, replica).in_set(o.set))
    }

    /// Lists objects of a log, with their key strings. The object listed first keeps its key [I15].
    pub(super) fn announced(&mut self, segment_id: SegmentId, list: Vec<LogObjectEntry>) {
        // Ignored before the segment's report, which contains these objects as well.
        let Some(allocator) = self.allocators.get(&segment_id).filter(|b| b.reported) else {
            return;
        };
        let incarnation = allocator.info.incarnation;
        let mut duplicates = Vec::new();
        for o in list {
            let at = SlotRef { incarnation, slot: o.slot, epoch: o.epoch };
            if !self.logged(segment_id, at, &o, false) {
                duplicates.push(at);
            }
        }
        if !duplicates.is_empty() {
            self.durable.members.send(segment_id, MasterToOwner::Retire(duplicates));
        }
    }

    /// Objects of a log lie elsewhere in it now. What is listed, or put aside, is listed there.
    pub(super) fn moved(&mut self, segment_id: SegmentId, list: Vec<MovedObject>) {
        let Some(allocator) = self.allocators.get(&segment_id).filter(|b| b.reported) else {
            return;
        };
        let incarnation = allocator.info.incarnation;
        for MovedObject { slot, epoch, to } in list {
            let at = SlotRef { incarnation, slot: to.slot, epoch: to.epoch };
            let from = SlotRef { incarnation, slot, epoch };
            if let Some(aside) = self.aside.get(&to.id).and_then(|a| a.get(&segment_id))
                && aside.at == from
            {
                self.put_aside(to.id, Replica { segment_id, at, object: to.object });
            }
            let Some(entry) = self.objects.get_mut(&to.id).filter(|e| e.is_at(from)) else {
                // Announced, and then listed elsewhere or not any more.
                if !to.key.is_empty() {
                    self.announced(segment_id, vec![to]);
                }
                continue;
            };
            let removing = entry.state() == State::Removing;
            entry.relocate(from, Replica { segment_id, at, object: to.object });
            self.mend_set(to.id, segment_id, at, to.set);
            if let Some(b) = self.allocators.get_mut(&segment_id) {
                b.forget_listed(slot, epoch);
            }
            self.list_at(to.id, segment_id, at);
            self.awaiting.note(to.id);
            if removing {
                // The owner was asked to retire the original, which had ended by then.
                self.durable.members.send(segment_id, MasterToOwner::Retire(vec![at]));
            }
        }
    }

    /// Lists one object of a log; false if it must be retired. `reported`: it comes from the report
    /// after a join.
    pub(super) fn logged(
        &mut self,
        segment_id: SegmentId,
        at: SlotRef,
        o: &LogObjectEntry,
        reported: bool,
    ) -> bool {
        let Some(entry) = self.logged_entry(segment_id, at, o) else { return true };
        let id = self.id_of(entry.key.as_bytes());
        let replica = entry.replica();
        let further = |e: &&Entry| !e.is_at(at) && self.is_replica_of(e, &replica, o.set);
        if let Some(e) = self.objects.get(&id).filter(further) {
            // Fewer may be wanted since, or another one was made instead.
            let asked_for = |r: &Replica| !e.is_extra(r.at) && self.reachable(r.segment_id);
            if e.replicas().filter(asked_for).count() >= usize::from(e.set().wanted) {
                return false;
            }
            if let Some(e) = self.objects.get_mut(&id) {
                e.add_live(replica);
            }
            self.list_at(id, segment_id, at);
            self.mend_set(id, segment_id, at, o.set);
            self.has_others(id);
            self.became_live(id, segment_id);
            return true;
        }
        match self.objects.get(&id).map(|e| {
            let mine = e.replicas().find(|replica| replica.at == at);
            let here = || e.replicas().find(|replica| replica.segment_id == segment_id);
            let replica = mine.or_else(here).unwrap_or_else(|| e.replica());
            (replica.at, e.state(), replica.segment_id)
        }) {
            // Within a segment the owner has decided already: it serves this object, and its report
            // that the other one is retired follows. The same where a reader found the other one
            // gone.
            Some((other, State::Live, there))
                if other != at && (there == segment_id || self.found_gone.contains(&id)) =>
            {
                self.put_aside(id, replica);
                return true;
            }
            Some((other, State::Live, _)) if other != at => {
                // The object listed first is the one that is served, as long as its rank, or that
                // of another replica, can be reached.
                let stays = self.objects.get(&id).is_none_or(|e| !self.is_readable(e));
                if !stays {
                    // A replica of the other one may have gone because this one was served there.
                    self.note_unmade(id);
                }
                return stays;
            }
            // The listed one is being written or removed. This one stays, and is listed once the
            // other has ended. A remove asks the logs in any case.
            Some((other, ..)) if other != at => {
                self.put_aside(id, replica);
                return true;
            }
            Some((_, state, _)) => {
                self.mend_set(id, segment_id, at, o.set);
                return state != State::Removing;
            }
            // The key was put again before that rank had reported, and may be removed since [I6].
            None if reported && self.durable.members.is_older(&id, at.incarnation) => return false,
            None => {}
        }
        if self.allocators.contains_key(&segment_id) {
            self.enter(id, entry);
            self.expect_others(id);
        }
        true
    }
}
