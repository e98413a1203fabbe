//! Saving on request: objects are put on as many disks as somebody asks for, whatever the policy of
//! those disks is. The node of a disk reads the object like any client, and saves it.

use super::super::known::Known;
use super::super::{Ask, Master};
use super::{Questions, WORK_LIMIT_MS};
use crate::actor::Reply;
use crate::error::{Error, Result};
use crate::message::{
    DiskAnswer, DiskQuestion, DiskSave, KeyBytes, Request, Response, SaveAt, SegmentId,
};
use hashbrown::HashMap;
use nkv_store::{Key, KeyId};
use std::collections::BTreeMap;

/// What is asked for: the keys, and where each is to be saved.
fn wanted(request: &Request) -> Option<(&[KeyBytes], &[SaveAt])> {
    match request {
        Request::SaveToDisk { keys, at } => Some((keys, at)),
        _ => None,
    }
}

impl Master {
    /// Asks disks to save, now that it is known what is in memory, and of the rest what is on disk.
    pub(super) fn save_to_disks(&mut self, ask: Ask, reply: Reply<Response>, mut known: Known) {
        let questions = match wanted(&ask.request) {
            Some((keys, at)) if known.saves.is_none() => self.saves(keys, at, &mut known),
            _ => Ok(Vec::new()),
        };
        let questions = match questions {
            Ok(questions) => questions,
            Err(error) => return reply.send(Response::Failed(error)),
        };
        let left = self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known));
        if let Some((ask, reply, known)) = left {
            self.saved(&ask.request, reply, &known);
        }
    }

    /// A disk that was asked has answered.
    pub(super) fn save_answered(
        &self,
        known: &mut Known,
        (rank, keys): (u32, &[KeyBytes]),
        answer: DiskAnswer,
    ) {
        let Some(saves) = &mut known.saves else { return };
        let done = answer.found.into_iter().map(|(at, bytes)| (at, DiskSave::Done { bytes }));
        let failed = answer.not_done.into_iter().map(|(at, error)| (at, DiskSave::Failed(error)));
        for (at, outcome) in done.chain(failed) {
            if let Some(key) = keys.get(at as usize)
                && let Some(Ok(of_key)) = saves.get_mut(&self.id_of(key))
            {
                of_key.insert(rank, outcome);
            }
        }
    }

    /// The answer, of what disks have done by now.
    pub(super) fn saved(&self, request: &Request, reply: Reply<Response>, known: &Known) {
        let Some((keys, _)) = wanted(request) else { return };
        let one = |key: &KeyBytes| {
            Key::check(key)?;
            let id = self.id_of(key);
            let outcomes = known.saves.as_ref().and_then(|saves| saves.get(&id));
            match outcomes {
                Some(Ok(of_key)) => {
                    Ok(of_key.iter().map(|(at, done)| (*at, done.clone())).collect())
                }
                Some(Err(error)) => Err(error.clone()),
                // It is neither in memory nor on a disk.
                None => Err(self
                    .locate(key, &[].into())
                    .err()
                    .unwrap_or_else(|| Error::not_ready("the key came meanwhile: save it again"))),
            }
        };
        reply.send(Response::OnDisks(keys.iter().map(one).collect()));
    }

    /// What to ask which disks. Nothing for keys that are neither in memory nor on a disk.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no disk, or none at a rank that is named.
    fn saves(&self, keys: &[KeyBytes], at: &[SaveAt], known: &mut Known) -> Result<Questions> {
        at.iter().flat_map(|at| &at.disks).flatten().try_for_each(|rank| self.check_disk(*rank))?;
        if !self.has_disks() {
            return Err(Error::invalid("no rank has a disk: start one with --ssd-dir"));
        }
        let (mut by_disk, mut saves) =
            (BTreeMap::<SegmentId, Vec<KeyBytes>>::new(), HashMap::new());
        for (key, at) in keys.iter().zip(at).filter(|(key, _)| Key::check(key).is_ok()) {
            let id = self.id_of(key);
            if !self.is_stored(key, &id, known) {
                continue;
            }
            if let Some(error) = self.another_object(key, &id, known) {
                saves.insert(id, Err(error));
                continue;
            }
            let mut of_key = BTreeMap::new();
            for disk in self.choose_disks(key, at, known) {
                if !self.may_be_asked(disk) {
                    let text = format!("rank {} cannot be reached now, nor its disk", disk.rank);
                    let error = Error::disconnected(text).at_rank(disk.rank);
                    of_key.insert(disk.rank, DiskSave::Failed(error));
                    continue;
                }
                of_key.insert(disk.rank, DiskSave::AtWork);
                by_disk.entry(disk).or_default().push(key.clone());
            }
            saves.insert(id, Ok(of_key));
        }
        known.saves = Some(saves);
        Ok(self.questions(by_disk, DiskQuestion::Save))
    }

    fn check_disk(&self, rank: u32) -> Result<()> {
        let ranks = self.durable.world_size;
        if rank >= ranks {
            let last = ranks.saturating_sub(1);
            let text = format!("there is no rank {rank}; ranks are 0 to {last}");
            return Err(Error::invalid(text));
        }
        // One that is away may have one.
        match self.allocators.get(&SegmentId::first(rank)) {
            Some(a) if !a.info.disk => {
                let text = format!("rank {rank} has no disk: start it with --ssd-dir");
                Err(Error::invalid(text).at_rank(rank))
            }
            _ => Ok(()),
        }
    }

    /// The disks that are to save a key: those that are named, and of the others those that have
    /// it, then those of ranks that have it in memory, then any by its hash.
    fn choose_disks(&self, key: &[u8], at: &SaveAt, known: &Known) -> Vec<SegmentId> {
        let id = self.id_of(key);
        let on_disk = known.on_disk.as_ref().and_then(|on_disk| on_disk.found.get(&id));
        let has = |at: &SegmentId| on_disk.is_some_and(|list| list.iter().any(|(d, _)| d == at));
        let holders = self.holders(key, &id, known);
        let mut named: Vec<SegmentId> =
            at.disks.iter().flatten().map(|rank| SegmentId::first(*rank)).collect();
        let mut others: Vec<SegmentId> = self.disks_to_ask().map(|(at, _)| at).collect();
        let turn = id.hash as usize % others.len().max(1);
        others.rotate_left(turn);
        others.retain(|disk| !at.but.contains(&disk.rank) && !named.contains(disk));
        others.sort_by_key(|disk| (!has(disk), !holders.contains(&disk.rank)));
        others.truncate(at.disks.len() - named.len());
        named.extend(others);
        named
    }

    /// A disk that has an object of another length under this key: which one is right nobody knows,
    /// and after a restart neither would be found.
    fn another_object(&self, key: &[u8], id: &KeyId, known: &Known) -> Option<Error> {
        let listed = self.readable(key).map(|e| e.replica().object.bytes_total);
        let in_memory = listed.or_else(|| Some(known.besides.get(id)?.object.bytes_total));
        let found = known.on_disk.as_ref()?.found.get(id)?;
        let bytes = in_memory.or_else(|| found.first().map(|(_, bytes)| *bytes))?;
        let (at, other) = *found.iter().find(|(_, other)| *other != bytes)?;
        let text = format!(
            "another object of this key, of {other} bytes, is on the disk of rank {}, and this one \
             has {bytes}: remove the key, and put it again",
            at.rank
        );
        Some(Error::invalid(text).at_rank(at.rank))
    }

    fn is_stored(&self, key: &[u8], id: &KeyId, known: &Known) -> bool {
        let on_disk = known.on_disk.as_ref().is_some_and(|on_disk| on_disk.found.contains_key(id));
        on_disk || !self.holders(key, id, known).is_empty()
    }

    /// The ranks that have a key in memory.
    fn holders(&self, key: &[u8], id: &KeyId, known: &Known) -> Vec<u32> {
        let listed =
            self.readable(key).into_iter().flat_map(|e| e.replicas().map(|r| r.segment_id.rank));
        listed.chain(known.besides.get(id).map(|meta| meta.rank)).collect()
    }
}
