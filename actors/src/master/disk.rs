//! Objects on the disks of nodes. The master lists none of them: a disk may have many more
//! than memory, and keeps them over restarts. It asks the nodes that have one: about keys that are
//! not in memory, to bring objects back, and before anything is removed [I6].

use super::known::{Known, OnDisk, gone_slots, looked_up, removes};
use super::{Ask, Master};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskAnswer, DiskQuestion, DiskSelection, KeyBytes, Location, MAX_BATCH, MasterToOwner, Promote,
    Request, Response, SegmentId,
};
use hashbrown::HashSet;
use nkv_store::Key;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// How long nodes have to say what their disks have; they need not read there.
const FIND_LIMIT_MS: u64 = 1_000;
/// How long nodes have to bring objects back, or to write a removal down: less than a call takes by
/// default.
const WORK_LIMIT_MS: u64 = 1_600;
/// Objects, and bytes of them, that one lookup brings back.
const MOST_PROMOTED: usize = 64;
const MOST_PROMOTED_BYTES: u64 = 64 << 20;
/// Requests that may wait for disks at a time; further ones fail with `NotReady`.
const MAX_ASKED: usize = 4096;
/// Keys whose removal is remembered for the disks of ranks that are not members now. Beyond that,
/// such a disk begins empty.
const MOST_REMEMBERED: usize = MAX_BATCH;

/// A request that waits for nodes with disks.
pub(super) struct Asked {
    ask: Ask,
    reply: Reply<Response>,
    // Segments that have not answered, with their incarnations and what each was asked.
    left: BTreeMap<SegmentId, (u64, DiskQuestion)>,
    until_ms: u64,
    known: Known,
    failed: Option<Error>,
}

/// What was removed while ranks were missing: their disks do not know.
#[derive(Debug, Default)]
pub(super) struct Unheard(Vec<DiskSelection>);

impl Unheard {
    fn note(&mut self, which: &DiskSelection) {
        let keys = |which: &DiskSelection| match which {
            DiskSelection::Keys(keys) => keys.len(),
            DiskSelection::Matching(_) | DiskSelection::All => 1,
        };
        let all = self.0.iter().map(keys).sum::<usize>() + keys(which);
        if all > MOST_REMEMBERED || *which == DiskSelection::All {
            self.0 = vec![DiskSelection::All];
        } else if self.0 != [DiskSelection::All] {
            self.0.push(which.clone());
        }
    }
}

/// What a removal covers.
fn selection_of(request: &Request) -> Option<DiskSelection> {
    match request {
        Request::Remove(keys) => Some(DiskSelection::Keys(keys.clone())),
        Request::RemoveMatching(of) => Some(match &of.pattern {
            Some(pattern) => DiskSelection::Matching(pattern.clone()),
            None => DiskSelection::All,
        }),
        _ => None,
    }
}

/// Whether an answer ends a removal that may take several rounds.
fn ends_removal(answer: &Response) -> bool {
    match answer {
        Response::Swept(swept) => swept.next.is_none() && swept.why.is_none(),
        Response::Done(list) => list.iter().all(|done| match done {
            Ok(()) => true,
            Err(e) => e.kind() == ErrorKind::NotFound,
        }),
        _ => false,
    }
}

fn promotion_of(request: &Request) -> Promote {
    match request {
        Request::GetLocation { promote, .. } | Request::Exists { promote, .. } => *promote,
        _ => Promote::No,
    }
}

impl Master {
    /// The segments whose owners answer for a disk, with their incarnations.
    fn disks(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        let with = self.allocators.iter().filter(|(_, a)| a.info.disk);
        with.map(|(id, a)| (*id, a.info.incarnation))
    }

    /// Asks; gives the request back if there is nobody to ask.
    fn ask_disks(
        &mut self,
        questions: Vec<(SegmentId, u64, DiskQuestion)>,
        limit_ms: u64,
        (ask, reply, known): (Ask, Reply<Response>, Known),
    ) -> Option<(Ask, Reply<Response>, Known)> {
        if questions.is_empty() {
            return Some((ask, reply, known));
        }
        if self.disk_questions.len() >= MAX_ASKED {
            let text = format!("{MAX_ASKED} calls already wait for the disks of nodes");
            reply.send(Response::Failed(Error::not_ready(text)));
            return None;
        }
        let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
        let mut left = BTreeMap::new();
        for (segment_id, incarnation, question) in questions {
            let frame = MasterToOwner::AskDisk { number, question: question.clone() };
            self.durable.members.send(segment_id, frame);
            left.insert(segment_id, (incarnation, question));
        }
        let until_ms = self.now_ms() + limit_ms;
        let asked = Asked { ask, reply, left, until_ms, known, failed: None };
        self.disk_questions.insert(number, asked);
        None
    }

    /// Removes from disks first what a request removes: what is on no disk, and is not saved or
    /// promoted meanwhile, cannot come back into memory from there [I6]. Gives the request back if
    /// there is nothing to do.
    pub(super) fn remove_from_disks_first(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
    ) -> Option<(Ask, Reply<Response>)> {
        let Some(which) = selection_of(&ask.request).filter(|_| removes(&ask.request)) else {
            return Some((ask, reply));
        };
        if self.is_rank_missing() {
            self.durable.members.lock().unheard.note(&which);
        }
        let disks: Vec<_> = self.disks().collect();
        if disks.is_empty() {
            return Some((ask, reply));
        }
        let (members, owners) = (self.durable.members.clone(), disks.clone());
        let over = which.clone();
        let reply = reply.observed(move |answer| {
            if ends_removal(answer) {
                for (segment_id, _) in owners {
                    members.send(segment_id, MasterToOwner::RemovalOver(over.clone()));
                }
            }
        });
        // Later rounds of a removal go on with memory alone.
        if matches!(&ask.request, Request::RemoveMatching(of) if of.from.is_some()) {
            return Some((ask, reply));
        }
        if let Some((segment_id, _)) = disks.iter().find(|(id, _)| !self.reachable(*id)) {
            let text = format!(
                "the link of {segment_id} is down, and the disk of that rank may hold what is to \
                 be removed: nothing was removed; remove again once that rank is back, or gone \
                 after its TTL"
            );
            reply.send(Response::Failed(Error::disconnected(text)));
            return None;
        }
        let question = DiskQuestion::Remove(which);
        let questions = disks.into_iter().map(|(id, of)| (id, of, question.clone())).collect();
        let known = Known::default();
        self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known)).map(|(a, r, _)| (a, r))
    }

    fn is_rank_missing(&self) -> bool {
        let missing = |r: u32| !self.allocators.contains_key(&SegmentId::first(r));
        (0..self.durable.world_size).any(missing)
    }

    /// A rank has joined: its disk learns what was removed while it was away.
    pub(super) fn send_missed_removals(&mut self, segment_id: SegmentId) {
        let unheard = std::mem::take(&mut self.durable.members.lock().unheard);
        if self.allocators.get(&segment_id).is_some_and(|a| a.info.disk) {
            for which in &unheard.0 {
                let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
                let question = DiskQuestion::Remove(which.clone());
                self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
                // Handled after it is written down.
                let over = MasterToOwner::RemovalOver(which.clone());
                self.durable.members.send(segment_id, over);
            }
        }
        if self.is_rank_missing() {
            self.durable.members.lock().unheard = unheard;
        }
    }

    /// Keys of a lookup that are not in memory; with `written`, also those of open plans.
    fn missing(&self, request: &Request, known: &Known, written: bool) -> Vec<KeyBytes> {
        let gone = gone_slots(request);
        let is_missing = |key: &&KeyBytes| {
            if Key::check(key).is_err() || known.besides.contains_key(&self.id_of(key)) {
                return false;
            }
            match self.entry(key) {
                Ok(None) => true,
                Ok(Some(e)) if e.is_live() => {
                    !self.is_readable(e) || e.replicas().all(|replica| gone.contains(&replica.at))
                }
                Ok(Some(e)) => written && e.plan().is_some(),
                Err(_) => false,
            }
        };
        let keys = looked_up(request).unwrap_or_default();
        keys.iter().filter(is_missing).cloned().collect()
    }

    /// Answers a lookup once logs were asked: with what is in memory, and on disk, and with what is
    /// brought back from there if the request wants that.
    pub(super) fn answer_lookup(&mut self, ask: Ask, reply: Reply<Response>, known: Known) {
        let Some((ask, reply, mut known)) = self.find_on_disks(ask, reply, known) else { return };
        let promote = promotion_of(&ask.request);
        let (Promote::Begin { rank } | Promote::Wait { rank }) = promote else {
            return reply.send(self.found(&ask.request, &known));
        };
        let questions = self.promotions(&ask.request, &mut known, rank);
        if let Promote::Begin { .. } = promote {
            for (segment_id, _, question) in questions {
                let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
                self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
            }
            return reply.send(self.found(&ask.request, &known));
        }
        let asked = self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known));
        if let Some((ask, reply, known)) = asked {
            reply.send(self.found(&ask.request, &known));
        }
    }

    fn find_on_disks(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
        mut known: Known,
    ) -> Option<(Ask, Reply<Response>, Known)> {
        if known.on_disk.is_some() {
            return Some((ask, reply, known));
        }
        known.on_disk = Some(OnDisk::default());
        let up: Vec<_> = self.disks().filter(|(id, _)| self.reachable(*id)).collect();
        let keys = match up.is_empty() {
            true => Vec::new(),
            false => self.missing(&ask.request, &known, true),
        };
        if keys.is_empty() {
            return Some((ask, reply, known));
        }
        let question = DiskQuestion::Find(keys);
        let questions = up.into_iter().map(|(id, of)| (id, of, question.clone())).collect();
        self.ask_disks(questions, FIND_LIMIT_MS, (ask, reply, known))
    }

    /// What to ask for, so that what only disks have comes back; nothing at the second call. An
    /// object that is being put is not brought back beside it. Of a long list only the first come
    /// back, so that they are still in memory when the caller reads them.
    fn promotions(
        &self,
        request: &Request,
        known: &mut Known,
        rank: Option<u32>,
    ) -> Vec<(SegmentId, u64, DiskQuestion)> {
        let missing = self.missing(request, known, false);
        let Some(on_disk) = known.on_disk.as_mut().filter(|on_disk| on_disk.asked.is_none()) else {
            return Vec::new();
        };
        let mut by_disk: BTreeMap<SegmentId, Vec<KeyBytes>> = BTreeMap::new();
        let (mut asked, mut bytes) = (HashSet::new(), 0);
        for key in missing {
            let id = self.id_of(&key);
            let Some((segment_id, of_this)) = on_disk.found.get(&id) else { continue };
            bytes = u64::saturating_add(bytes, *of_this);
            if !asked.is_empty() && (asked.len() >= MOST_PROMOTED || bytes > MOST_PROMOTED_BYTES) {
                break;
            }
            asked.insert(id);
            by_disk.entry(*segment_id).or_default().push(key);
        }
        on_disk.asked = Some(asked);
        let of = |id: &SegmentId| self.allocators.get(id).map(|a| a.info.incarnation);
        let questions = by_disk.into_iter();
        let questions = questions
            .filter_map(|(id, keys)| Some((id, of(&id)?, DiskQuestion::Promote { keys, rank })));
        questions.collect()
    }

    /// Callers wait for these keys: disks that have some bring them back.
    pub(super) fn promote_awaited(&self, keys: &[KeyBytes]) {
        for (segment_id, _) in self.disks().filter(|(id, _)| self.reachable(*id)) {
            let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
            let question = DiskQuestion::Promote { keys: keys.to_vec(), rank: None };
            self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
        }
    }

    /// Adds to locations in memory those on disk, or why an object did not come back from there.
    pub(super) fn with_disks(
        &self,
        answer: Response,
        keys: &[KeyBytes],
        known: &Known,
    ) -> Response {
        let Response::Locations(mut list) = answer else { return answer };
        for (found, key) in list.iter_mut().zip(keys) {
            let id = self.id_of(key);
            let lost =
                |e: &Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Disconnected);
            let on_disk = known.disk_meta(&id).filter(|_| found.as_ref().is_err_and(lost));
            let Some(disk) = on_disk else { continue };
            // What came back, and was evicted again before this answer, is on disk.
            let failed = known.on_disk.as_ref().and_then(|on_disk| on_disk.failed.get(&id));
            *found = match failed {
                None => Ok(vec![Location::Disk(disk)]),
                Some(error) => Err(error.clone()),
            };
        }
        Response::Locations(list)
    }

    /// A node answered for its disk.
    pub(super) fn disk_answer(&mut self, segment_id: SegmentId, number: u64, answer: DiskAnswer) {
        let Some(mut asked) = self.disk_questions.remove(&number) else { return };
        let Some((_, question)) = asked.left.remove(&segment_id) else {
            self.disk_questions.insert(number, asked);
            return;
        };
        asked.failed = asked.failed.or(answer.failed);
        if let (DiskQuestion::Find(keys) | DiskQuestion::Promote { keys, .. }, Some(on_disk)) =
            (&question, &mut asked.known.on_disk)
        {
            let id = |at: u32| keys.get(at as usize).map(|key| self.id_of(key));
            for (at, bytes) in answer.found {
                on_disk.found.extend(id(at).map(|id| (id, (segment_id, bytes))));
            }
            for (at, error) in answer.not_promoted {
                // It is not there after all.
                if let (Some(id), ErrorKind::NotFound) = (id(at), error.kind()) {
                    on_disk.found.remove(&id);
                }
                on_disk.failed.extend(id(at).map(|id| (id, error)));
            }
        }
        if asked.left.is_empty() {
            self.disks_answered(asked);
            self.flush_commits();
        } else {
            self.disk_questions.insert(number, asked);
        }
    }

    fn disks_answered(&mut self, asked: Asked) {
        let Asked { ask, reply, known, failed, .. } = asked;
        if removes(&ask.request) {
            return match failed {
                Some(error) => reply.send(Response::Failed(error)),
                None => self.answer_from_memory(ask, reply),
            };
        }
        match &known.on_disk {
            Some(on_disk) if on_disk.asked.is_some() => self.look_up_again(ask, reply, known),
            _ => self.answer_lookup(ask, reply, known),
        }
    }

    /// A segment has a new link: the question or the answer may have been lost with the old one.
    pub(super) fn ask_disk_again(&self, segment_id: SegmentId) {
        for (number, asked) in &self.disk_questions {
            if let Some((_, question)) = asked.left.get(&segment_id) {
                let (number, question) = (*number, question.clone());
                self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
            }
        }
    }

    /// Completes requests whose remaining nodes are gone, and those whose time is over.
    pub(super) fn expire_disk_questions(&mut self) {
        let now = self.now_ms();
        for asked in self.disk_questions.values_mut() {
            let is_member = |segment_id: &SegmentId, (incarnation, _): &mut (u64, DiskQuestion)| {
                self.allocators.get(segment_id).is_some_and(|b| b.info.incarnation == *incarnation)
            };
            asked.left.retain(is_member);
        }
        let over = |a: &Asked| a.left.is_empty() || now >= a.until_ms;
        let done: Vec<_> = self.disk_questions.extract_if(.., |_, a| over(a)).collect();
        for (_, mut asked) in done {
            let Some((segment_id, (_, question))) = asked.left.pop_first() else {
                self.disks_answered(asked);
                continue;
            };
            match question {
                DiskQuestion::Find(_) => {
                    let text =
                        format!("{segment_id} did not answer in {FIND_LIMIT_MS} ms for its disk");
                    self.unsure(asked.ask, asked.reply, &text);
                }
                // What has come back is there; the rest goes on.
                DiskQuestion::Promote { .. } => self.disks_answered(asked),
                DiskQuestion::Remove(_) => {
                    let text = format!(
                        "the disk of {segment_id} did not confirm the removal in {WORK_LIMIT_MS} \
                         ms: it goes on there; remove again"
                    );
                    asked.reply.send(Response::Failed(Error::not_ready(text)));
                }
            }
        }
    }
}
