//! Objects on the disks of nodes. The master lists none of them: a disk may have many more
//! than memory, and keeps them over restarts. It asks the nodes that have one: about keys that are
//! not in memory, to bring objects back, and before anything is removed [I6].

mod lookup;
mod missed;
mod removal;
mod saving;

pub(super) use missed::{Missed, Resending};

use super::known::{Known, removes};
use super::{Ask, Master};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskAnswer, DiskQuestion, KeyBytes, MasterToOwner, Request, Response, SegmentId,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// How long nodes have to say what their disks have; they need not read there.
const FIND_LIMIT_MS: u64 = 1_000;
/// How long nodes have to bring objects back, or to write a removal down: less than a call takes by
/// default.
const WORK_LIMIT_MS: u64 = 1_600;
/// Requests that may wait for disks at a time; further ones fail with `NotReady`.
const MAX_ASKED: usize = 4096;

/// What to ask which owners, with their incarnations.
type Questions = Vec<(SegmentId, u64, DiskQuestion)>;

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

impl Master {
    /// The segments whose owners answer for a disk, with their incarnations.
    fn disks(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        let with = self.allocators.iter().filter(|(_, a)| a.info.disk);
        with.map(|(id, a)| (*id, a.info.incarnation))
    }

    /// Whether what leaves memory may be on a disk.
    pub(super) fn has_disks(&self) -> bool {
        self.disks().next().is_some()
    }

    /// Those that are asked for objects.
    fn disks_to_ask(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        self.disks().filter(|(id, _)| self.may_be_asked(*id))
    }

    /// Whether the disk of this segment can be asked for objects: nothing comes back from it that
    /// was removed, or is being removed without it.
    fn may_be_asked(&self, segment_id: SegmentId) -> bool {
        let of = self.allocators.get(&segment_id).map(|a| a.info.incarnation);
        self.reachable(segment_id) && of.is_some_and(|of| self.knows_removals(segment_id, of))
    }

    /// A question about its keys for each disk.
    fn questions(
        &self,
        by_disk: BTreeMap<SegmentId, Vec<KeyBytes>>,
        question: impl Fn(Vec<KeyBytes>) -> DiskQuestion,
    ) -> Questions {
        let of = |id: &SegmentId| self.allocators.get(id).map(|a| a.info.incarnation);
        let asked = by_disk.into_iter();
        asked.filter_map(|(id, keys)| Some((id, of(&id)?, question(keys)))).collect()
    }

    /// Asks; gives the request back if there is nobody to ask.
    fn ask_disks(
        &mut self,
        questions: Questions,
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

    /// A node answered for its disk.
    pub(super) fn disk_answer(&mut self, segment_id: SegmentId, number: u64, answer: DiskAnswer) {
        if self.missed_answer(segment_id, number, &answer) {
            return;
        }
        let Some(mut asked) = self.disk_questions.remove(&number) else { return };
        let Some((_, question)) = asked.left.remove(&segment_id) else {
            self.disk_questions.insert(number, asked);
            return;
        };
        self.take_in_answer(&mut asked, segment_id, &question, answer);
        if asked.left.is_empty() {
            self.disks_answered(asked);
            self.flush_commits();
        } else {
            self.disk_questions.insert(number, asked);
        }
    }

    fn take_in_answer(
        &self,
        asked: &mut Asked,
        segment_id: SegmentId,
        question: &DiskQuestion,
        answer: DiskAnswer,
    ) {
        if let DiskQuestion::Save(keys) = question {
            return self.save_answered(&mut asked.known, (segment_id.rank, keys), answer);
        }
        asked.failed = asked.failed.take().or(answer.failed);
        asked.known.removed.extend(answer.removed);
        asked.known.removed_count = asked.known.removed_count.saturating_add(answer.count);
        if let (DiskQuestion::Find(keys) | DiskQuestion::Promote { keys, .. }, Some(on_disk)) =
            (question, &mut asked.known.on_disk)
        {
            let id = |at: u32| keys.get(at as usize).map(|key| self.id_of(key));
            for (at, bytes) in answer.found {
                let Some(id) = id(at) else { continue };
                on_disk.found.entry(id).or_default().push((segment_id, bytes));
            }
            for (at, error) in answer.not_done {
                let Some(id) = id(at) else { continue };
                // It is not there after all.
                if error.kind() == ErrorKind::NotFound {
                    on_disk.is_not_at(&id, segment_id);
                }
                on_disk.failed.insert(id, error);
            }
        }
    }

    fn disks_answered(&mut self, asked: Asked) {
        let Asked { ask, reply, mut known, failed, until_ms, .. } = asked;
        if removes(&ask.request) {
            return match failed {
                Some(error) => reply.send(Response::Failed(error)),
                None => self.removed_from_disks(ask, reply, known),
            };
        }
        // A save names the disk that has another object.
        let saves = matches!(ask.request, Request::SaveToDisk { .. });
        if let Some(on_disk) = known.on_disk.as_mut().filter(|_| !saves) {
            on_disk.drop_differing();
        }
        let Some((ask, reply, known)) = self.ask_other_disks(ask, reply, known, until_ms) else {
            return;
        };
        match &known.on_disk {
            Some(on_disk) if on_disk.asked.is_some() && !on_disk.found.is_empty() => {
                self.look_up_again(ask, reply, known)
            }
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
                DiskQuestion::Find(_) | DiskQuestion::Promote { find: true, .. } => {
                    let text = format!(
                        "{segment_id} did not answer in time for its disk, or is still bringing it \
                         back: memory may be full of what is being written and read"
                    );
                    self.unsure(asked.ask, asked.reply, &text);
                }
                // What has come back, or was saved, is there; the rest goes on.
                DiskQuestion::Promote { .. } | DiskQuestion::Save(_) => self.disks_answered(asked),
                DiskQuestion::Remove { .. } => {
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
