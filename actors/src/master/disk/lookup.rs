//! Lookups of what only disks have, and its way back into memory.

use super::super::known::{Known, OnDisk, gone_slots, looked_up};
use super::super::{Ask, Master};
use super::{FIND_LIMIT_MS, Questions, WORK_LIMIT_MS};
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskQuestion, KeyBytes, Location, MasterToOwner, Promote, Request, Response, SegmentId,
};
use hashbrown::HashSet;
use nkv_store::Key;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Objects, and bytes of them, that one lookup brings back.
const MOST_PROMOTED: usize = 64;
const MOST_PROMOTED_BYTES: u64 = 64 << 20;

fn promotion_of(request: &Request) -> Promote {
    match request {
        Request::GetLocation { promote, .. } | Request::Exists { promote, .. } => *promote,
        _ => Promote::No,
    }
}

impl Master {
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
                Ok(Some(e)) => written && e.plans().next().is_some(),
                Err(_) => false,
            }
        };
        let keys = looked_up(request).unwrap_or_default();
        keys.iter().filter(is_missing).cloned().collect()
    }

    /// Answers a lookup once logs were asked: with what is in memory, and on disk, and with what is
    /// brought back from there if the request wants that.
    pub(in crate::master) fn answer_lookup(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
        known: Known,
    ) {
        let Some((ask, reply, mut known)) = self.find_on_disks(ask, reply, known) else { return };
        if let Err(e) = self.check_lease() {
            return reply.send(Response::Failed(e));
        }
        if let Request::SaveToDisk { .. } = &ask.request {
            return self.save_to_disks(ask, reply, known);
        }
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
        let up: Vec<_> = self.disks_to_ask().collect();
        let keys = match &ask.request {
            _ if up.is_empty() => Vec::new(),
            // A disk may have what is in memory, too, or another object of its key.
            Request::SaveToDisk { keys, .. } => {
                keys.iter().filter(|key| Key::check(key).is_ok()).cloned().collect()
            }
            request => self.missing(request, &known, true),
        };
        if keys.is_empty() {
            return Some((ask, reply, known));
        }
        // One key and one disk that may have it: it is asked to bring it back at once.
        if let (Promote::Wait { rank }, [only], [_]) =
            (promotion_of(&ask.request), &up[..], &keys[..])
            && self.missing(&ask.request, &known, false) == keys
        {
            let asked = keys.iter().map(|key| self.id_of(key)).collect();
            known.on_disk = Some(OnDisk { asked: Some(asked), ..OnDisk::default() });
            let question = DiskQuestion::Promote { keys, rank, find: true };
            let questions = vec![(only.0, only.1, question)];
            return self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known));
        }
        let question = DiskQuestion::Find(keys);
        let questions = up.into_iter().map(|(id, of)| (id, of, question.clone())).collect();
        self.ask_disks(questions, FIND_LIMIT_MS, (ask, reply, known))
    }

    /// What to ask for, so that what only disks have comes back; nothing at the second call. An
    /// object that is being put is not brought back beside it. Of a long list only the first come
    /// back, so that they are still in memory when the caller reads them.
    fn promotions(&self, request: &Request, known: &mut Known, rank: Option<u32>) -> Questions {
        let missing = self.missing(request, known, false);
        let Some(on_disk) = known.on_disk.as_mut().filter(|on_disk| on_disk.asked.is_none()) else {
            return Vec::new();
        };
        self.forget_others(on_disk);
        let mut by_disk: BTreeMap<SegmentId, Vec<KeyBytes>> = BTreeMap::new();
        let (mut asked, mut bytes) = (HashSet::new(), 0);
        for key in missing {
            let id = self.id_of(&key);
            let disks = on_disk.found.get(&id).and_then(|disks| disks.first());
            let Some((segment_id, of_this)) = disks else { continue };
            bytes = u64::saturating_add(bytes, *of_this);
            if !asked.is_empty() && (asked.len() >= MOST_PROMOTED || bytes > MOST_PROMOTED_BYTES) {
                break;
            }
            asked.insert(id);
            by_disk.entry(*segment_id).or_default().push(key);
        }
        on_disk.asked = Some(asked);
        self.to_promote(by_disk, rank)
    }

    /// A removal may have begun, or a disk may have left, since the disks were asked.
    fn forget_others(&self, on_disk: &mut OnDisk) {
        on_disk.found.values_mut().for_each(|disks| disks.retain(|(at, _)| self.may_be_asked(*at)));
        on_disk.found.retain(|_, disks| !disks.is_empty());
    }

    fn to_promote(
        &self,
        by_disk: BTreeMap<SegmentId, Vec<KeyBytes>>,
        rank: Option<u32>,
    ) -> Questions {
        self.questions(by_disk, |keys| DiskQuestion::Promote { keys, rank, find: false })
    }

    /// What one disk was to bring back and does not have, another one may have. Gives the request
    /// back if there is none to ask.
    pub(super) fn ask_other_disks(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
        mut known: Known,
        until_ms: u64,
    ) -> Option<(Ask, Reply<Response>, Known)> {
        let left_ms = until_ms.saturating_sub(self.now_ms());
        let on_disk = known.on_disk.as_mut().filter(|_| left_ms > 0);
        let (Some(on_disk), Promote::Wait { rank }) = (on_disk, promotion_of(&ask.request)) else {
            return Some((ask, reply, known));
        };
        self.forget_others(on_disk);
        let mut by_disk: BTreeMap<SegmentId, Vec<KeyBytes>> = BTreeMap::new();
        for key in looked_up(&ask.request).unwrap_or_default() {
            let id = self.id_of(key);
            let next = on_disk.found.get(&id).and_then(|disks| disks.first()).map(|(at, _)| *at);
            let failed = on_disk.failed.get(&id).map(Error::kind);
            if let (Some(next), Some(ErrorKind::NotFound)) = (next, failed) {
                on_disk.failed.remove(&id);
                by_disk.entry(next).or_default().push(key.clone());
            }
        }
        self.ask_disks(self.to_promote(by_disk, rank), left_ms, (ask, reply, known))
    }

    /// Callers wait for these keys: disks that have some bring them back.
    pub(in crate::master) fn promote_awaited(&self, keys: &[KeyBytes]) {
        for (segment_id, _) in self.disks_to_ask() {
            let number = self.durable.next_plan.fetch_add(1, Ordering::Relaxed);
            let question = DiskQuestion::Promote { keys: keys.to_vec(), rank: None, find: false };
            self.durable.members.send(segment_id, MasterToOwner::AskDisk { number, question });
        }
    }

    /// Adds to locations in memory those on disk, or why an object did not come back from there.
    pub(in crate::master) fn with_disks(
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
}
