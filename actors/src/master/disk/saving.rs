//! Saving on request: objects are put on as many disks as somebody asks for, whatever the policy of
//! those disks is. The node of a disk reads the object like any client, and saves it.

use super::super::known::{Known, OnDisk};
use super::super::{Ask, Master};
use super::{Questions, WORK_LIMIT_MS};
use crate::actor::Reply;
use crate::error::{Error, Result};
use crate::message::{DiskQuestion, KeyBytes, MAX_PLACES, Request, Response, SegmentId};
use nkv_store::{Key, KeyId};
use std::collections::BTreeMap;

/// What is asked for: the keys, and the rank of each disk, if it matters.
type Wanted<'a> = (&'a [KeyBytes], &'a [Option<u32>]);

fn wanted(request: &Request) -> Option<Wanted<'_>> {
    match request {
        Request::SaveToDisk { keys, disks } => Some((keys, disks)),
        _ => None,
    }
}

impl Master {
    /// Answers once the disks have what is asked for; it is known by now what is in memory, and of
    /// the rest what is on disk.
    pub(super) fn save_to_disks(&mut self, ask: Ask, reply: Reply<Response>, mut known: Known) {
        let Some(wanted) = wanted(&ask.request) else { return };
        let questions = match known.on_disk.as_mut() {
            Some(on_disk) if on_disk.asked.is_none() => {
                on_disk.asked = Some(wanted.0.iter().map(|key| self.id_of(key)).collect());
                self.saves(wanted, &known)
            }
            _ => Ok(Vec::new()),
        };
        let questions = match questions {
            Ok(questions) => questions,
            Err(error) => return reply.send(Response::Failed(error)),
        };
        if let Some((ask, reply, known)) =
            self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known))
        {
            self.saved(&ask.request, reply, &known);
        }
    }

    /// Whether the answer is what disks have saved.
    pub(super) fn was_saved(request: &Request, known: &Known) -> bool {
        let asked = known.on_disk.as_ref().is_some_and(|on_disk| on_disk.asked.is_some());
        wanted(request).is_some() && asked
    }

    /// The answer, of what is on disks by now.
    pub(super) fn saved(&self, request: &Request, reply: Reply<Response>, known: &Known) {
        let Some((keys, _)) = wanted(request) else { return };
        let none = OnDisk::default();
        let on_disk = known.on_disk.as_ref().unwrap_or(&none);
        let one = |key: &KeyBytes| {
            Key::check(key)?;
            let id = self.id_of(key);
            let found = on_disk.found.get(&id).into_iter().flatten();
            let mut ranks: Vec<u32> = found.map(|(at, _)| at.rank).collect();
            if !ranks.is_empty() {
                ranks.sort_unstable();
                ranks.dedup();
                ranks.truncate(MAX_PLACES);
                return Ok(ranks);
            }
            let failed = on_disk.failed.get(&id).cloned();
            Err(failed.unwrap_or_else(|| self.not_saved(key, known)))
        };
        reply.send(Response::OnDisks(keys.iter().map(one).collect()));
    }

    fn not_saved(&self, key: &[u8], known: &Known) -> Error {
        match self.locate(key, &[].into()) {
            Err(error) if !known.besides.contains_key(&self.id_of(key)) => error,
            _ => Error::timeout(format!(
                "no disk has written it in {WORK_LIMIT_MS} ms: it goes on there; save it again"
            )),
        }
    }

    /// What to ask which disks. Nothing for keys that are neither in memory nor on a disk.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no disk, or none at a rank that was named.
    fn saves(&self, (keys, disks): Wanted<'_>, known: &Known) -> Result<Questions> {
        let has_disk = |rank: u32| {
            let first = self.allocators.get(&SegmentId::first(rank));
            first.is_none_or(|a| a.info.disk)
        };
        let outside = disks.iter().flatten().find(|rank| {
            **rank >= self.durable.world_size || !has_disk(**rank) || !self.has_disks()
        });
        if let Some(rank) = outside {
            let text = format!("rank {rank} has no disk: start it with --ssd-dir");
            return Err(Error::invalid(text).at_rank(*rank));
        }
        if !self.has_disks() {
            let text = "no rank has a disk: start one with --ssd-dir";
            return Err(Error::invalid(text));
        }
        let mut by_disk: BTreeMap<SegmentId, Vec<KeyBytes>> = BTreeMap::new();
        for key in keys.iter().filter(|key| Key::check(key).is_ok()) {
            for segment_id in self.choose_disks(key, disks, known) {
                by_disk.entry(segment_id).or_default().push(key.clone());
            }
        }
        let of = |id: &SegmentId| self.allocators.get(id).map(|a| a.info.incarnation);
        let questions = by_disk.into_iter();
        let questions =
            questions.filter_map(|(id, keys)| Some((id, of(&id)?, DiskQuestion::Save(keys))));
        Ok(questions.collect())
    }

    /// The disks that are to save a key and are not known to have it: those of the ranks that were
    /// named, then those of ranks that have it in memory, then others by its hash.
    fn choose_disks(&self, key: &[u8], disks: &[Option<u32>], known: &Known) -> Vec<SegmentId> {
        let id = self.id_of(key);
        let on_disk = known.on_disk.as_ref().and_then(|on_disk| on_disk.found.get(&id));
        let has = |at: &SegmentId| on_disk.is_some_and(|list| list.iter().any(|(d, _)| d == at));
        let holders = self.holders(key, &id, known);
        if holders.is_empty() && on_disk.is_none() {
            return Vec::new();
        }
        let mut all: Vec<SegmentId> = self.disks_to_ask().map(|(at, _)| at).collect();
        let turn = id.hash as usize % all.len().max(1);
        all.rotate_left(turn);
        let named = |at: &SegmentId| disks.contains(&Some(at.rank));
        all.sort_by_key(|at| (!named(at), !has(at), !holders.contains(&at.rank)));
        all.truncate(disks.len());
        all.retain(|at| !has(at));
        all
    }

    /// The ranks that have a key in memory.
    fn holders(&self, key: &[u8], id: &KeyId, known: &Known) -> Vec<u32> {
        let listed = self.entry(key).ok().flatten().filter(|e| self.is_readable(e));
        let listed = listed.into_iter().flat_map(|e| e.replicas().map(|r| r.segment_id.rank));
        listed.chain(known.besides.get(id).map(|meta| meta.rank)).collect()
    }
}
