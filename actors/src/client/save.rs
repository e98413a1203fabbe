//! Copies on the disks of nodes, on request: whatever the policy of those disks is.

use super::{Client, PutOptions, about_keys, check_keys, key_bytes, spread};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{DiskSave, Request, Response, SaveAt, check_disks};
use crate::striping::{MANIFEST_BYTES, Manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Keys in one request: its disks have 1.6 s for them before it is asked again.
const AT_ONCE: usize = 16;
/// How long it is asked again while no further key is saved, and the pause between.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// The least limit of one such request.
const CALL_LIMIT: Duration = Duration::from_secs(4);
/// Disks that could not save a key before no other one is tried.
const MOST_FAILED: usize = 8;

/// How far the saving of one key is.
#[derive(Debug, Clone, Default)]
struct Saving {
    /// Ranks whose disks have it.
    done: BTreeSet<u32>,
    at_work: BTreeSet<u32>,
    failed: BTreeMap<u32, Error>,
    /// Bytes of what is stored under the key.
    bytes: u64,
    /// Why nothing more comes.
    over: Option<Error>,
}

impl Saving {
    /// What is still to be asked for. Nothing: it is over, or every disk that is wanted has it.
    fn wanted(&self, disks: &[Option<u32>]) -> Option<SaveAt> {
        if self.over.is_some() {
            return None;
        }
        let named: BTreeSet<u32> = disks.iter().flatten().copied().collect();
        let open = named
            .iter()
            .filter(|rank| !self.done.contains(rank) && !self.failed.contains_key(rank));
        let mut at: Vec<Option<u32>> = open.map(|rank| Some(*rank)).collect();
        let is_other = |rank: &&u32| !named.contains(rank);
        let others = disks.len() - named.len();
        let missing = others.saturating_sub(self.done.iter().filter(is_other).count());
        let missing = if self.failed.len() < MOST_FAILED { missing } else { 0 };
        // Those at work already, then any.
        let at_work = self.at_work.iter().filter(is_other).map(|rank| Some(*rank));
        at.extend(at_work.chain(std::iter::repeat(None)).take(missing));
        let but = self.done.iter().chain(self.failed.keys()).chain(&self.at_work).chain(&named);
        let but: BTreeSet<u32> = but.copied().collect();
        (!at.is_empty()).then(|| SaveAt { disks: at, but: but.into_iter().collect() })
    }

    /// Whether something was done.
    fn take_in(&mut self, answer: Result<Vec<(u32, DiskSave)>>) -> bool {
        let list = match answer {
            Ok(list) => list,
            // The master did not answer in time: it is asked again.
            Err(e) if e.kind() == ErrorKind::Timeout => return false,
            Err(e) => {
                self.over = Some(e);
                return false;
            }
        };
        if list.is_empty() {
            self.over = Some(self.why());
        }
        let before = self.done.len();
        for (rank, outcome) in list {
            self.at_work.remove(&rank);
            match outcome {
                DiskSave::Done { bytes } => {
                    self.bytes = bytes;
                    self.done.insert(rank);
                }
                DiskSave::AtWork => drop(self.at_work.insert(rank)),
                DiskSave::Failed(e) if e.kind() == ErrorKind::Timeout => {
                    self.at_work.insert(rank);
                }
                DiskSave::Failed(e) => drop(self.failed.insert(rank, e)),
            }
        }
        self.done.len() > before
    }

    /// Why there is no more.
    fn why(&self) -> Error {
        if let Some(error) = &self.over {
            return error.clone();
        }
        if let Some((rank, error)) = self.failed.first_key_value() {
            let text = format!("the disk of rank {rank}: {}", error.message());
            return error.clone().with_message(text).at_rank(*rank);
        }
        match self.at_work.first() {
            Some(rank) => {
                let text = format!("the disk of rank {rank} is still at work: save it again");
                Error::timeout(text).at_rank(*rank)
            }
            None => Error::not_ready("no other disk can take it now: save it again"),
        }
    }

    /// Why it is not on all the disks that are wanted.
    fn missing(&self, disks: &[Option<u32>]) -> Option<Error> {
        let named = disks.iter().flatten().all(|rank| self.done.contains(rank));
        (!named || self.done.len() < disks.len()).then(|| self.why())
    }

    /// It is on all of them.
    fn all_of(&self, disks: &[Option<u32>]) -> Result<()> {
        let Some(why) = self.missing(disks) else { return Ok(()) };
        if self.done.is_empty() {
            return Err(why);
        }
        let on = self.done.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let (n, of) = (self.done.len(), disks.len());
        let text = format!("on {n} of {of} disks, at ranks {on}: {}", why.message());
        Err(why.with_message(text))
    }

    fn saved(&self, disks: &[Option<u32>]) -> Result<SavedOn> {
        match self.done.is_empty() {
            true => Err(self.why()),
            false => {
                let ranks = self.done.iter().copied().collect();
                Ok(SavedOn { ranks, missing: self.missing(disks) })
            }
        }
    }
}

/// On which disks a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedOn {
    /// The ranks whose disks have it, in order; one at least.
    pub ranks: Vec<u32>,
    /// Why it is not on all that were asked for.
    pub missing: Option<Error>,
}

impl Client {
    /// Saves keys on as many disks of ranks as are named, each the one of that rank, or any: first
    /// those that have the object, then those of ranks that have it in memory. What a disk has is
    /// not written again. Returns for each key the ranks whose disks have it: fewer than were asked
    /// for if the others cannot take it, and why. It is there until it is removed, or the disk
    /// needs room; it outlives its process from then on, and a power loss where the rank has
    /// `--ssd-durability persistent`.
    ///
    /// # Errors
    /// For each key that no disk has: `NotFound` if it is not stored; `InvalidArgument` if no rank
    /// has a disk, or not the one that was named; `Timeout` if nothing was saved for half a minute;
    /// else what the disk says. For a striped object also if one of its stripes is on fewer disks.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("save-to-disk", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let saved = cache.save_to_disk(&[b"block/1"], &[None]).await.remove(0);
    /// // This rank was started without --ssd-dir.
    /// assert_eq!(saved.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn save_to_disk(
        &self,
        keys: &[&[u8]],
        disks: &[Option<u32>],
    ) -> Vec<Result<SavedOn>> {
        let saved = self.save_wholes(keys, disks).await.into_iter();
        let saved = saved.map(|saved| saved.and_then(|saved| saved.saved(disks))).collect();
        about_keys(saved, keys.iter().copied())
    }

    /// With the stripes of striped objects.
    async fn save_wholes(&self, keys: &[&[u8]], disks: &[Option<u32>]) -> Vec<Result<Saving>> {
        let checked = self.check_usable().and_then(|()| check_keys(keys));
        if let Err(e) = checked.and_then(|()| check_disks(disks)) {
            return spread(keys.len(), e);
        }
        let mut saved: Vec<_> = self.save_stored(keys, disks).await.into_iter().map(Ok).collect();
        for (saved, key) in saved.iter_mut().zip(keys) {
            let may_be_striped = |s: &Saving| s.bytes == MANIFEST_BYTES as u64;
            if saved.as_ref().is_ok_and(|s| !s.done.is_empty() && may_be_striped(s))
                && let Err(e) = self.save_stripes(key, disks).await
            {
                *saved = Err(e);
            }
        }
        saved
    }

    /// The stripes of an object, if it has stripes.
    async fn save_stripes(&self, key: &[u8], disks: &[Option<u32>]) -> Result<()> {
        let (stored, _) = self.stored_uncounted(key).await?;
        let Some(manifest) = Manifest::decode(&stored, key) else { return Ok(()) };
        let stripes = manifest.keys();
        let stripes: Vec<&[u8]> = stripes.iter().map(|k| &k[..]).collect();
        let of = stripes.len();
        for (n, saved) in self.save_stored(&stripes, disks).await.iter().enumerate() {
            saved.all_of(disks).map_err(|e| {
                let text = format!("stripe {} of {of}: {}", n + 1, e.message());
                e.with_message(text)
            })?;
        }
        Ok(())
    }

    /// What is stored under keys, of striped objects the manifests. Asks again while disks are at
    /// work.
    async fn save_stored(&self, keys: &[&[u8]], disks: &[Option<u32>]) -> Vec<Saving> {
        let clock = &self.shared.env.clock;
        let limit_ns = LIMIT.as_nanos() as u64;
        let mut until_ns = clock.now_ns().saturating_add(limit_ns);
        let mut all = vec![Saving::default(); keys.len()];
        for (some, saving) in keys.chunks(AT_ONCE).zip(all.chunks_mut(AT_ONCE)) {
            // The rest is asked for once more after the limit: the disks may have it by now.
            loop {
                let over = clock.now_ns() >= until_ns;
                let wanted = saving.iter().map(|s| s.wanted(disks)).enumerate();
                let wanted = wanted.filter_map(|(i, at)| Some((i, at?)));
                let (left, at): (Vec<usize>, Vec<SaveAt>) = wanted.unzip();
                if left.is_empty() {
                    break;
                }
                let asked: Vec<&[u8]> = left.iter().map(|i| some[*i]).collect();
                let answers = self.ask_to_save(&asked, at).await;
                for (i, answer) in left.into_iter().zip(answers) {
                    if saving[i].take_in(answer) {
                        until_ns = clock.now_ns().saturating_add(limit_ns);
                    }
                }
                if over {
                    break;
                }
                if saving.iter().any(|s| s.wanted(disks).is_some()) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        all
    }

    async fn ask_to_save(
        &self,
        keys: &[&[u8]],
        at: Vec<SaveAt>,
    ) -> Vec<Result<Vec<(u32, DiskSave)>>> {
        // Disks have 1.6 s, and what a lookup takes.
        let limit = self.limit().max(CALL_LIMIT);
        let request = Request::SaveToDisk { keys: key_bytes(keys), at };
        match self.pool.call(request, limit).await {
            Ok(Response::OnDisks(list)) if list.len() == keys.len() => list,
            Ok(other) => spread(keys.len(), self.pool.unexpected("SaveToDisk", &other)),
            Err(e) => spread(keys.len(), e),
        }
    }

    /// Puts into memory, by `put`, and saves what was put on the disks that the options name.
    pub(super) async fn put_and_save<T>(
        &self,
        keys: Vec<&[u8]>,
        opts: &PutOptions,
        put: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        if let Err(e) = self.check_disks(&opts.disks) {
            return spread(keys.len(), e);
        }
        let put = put.await;
        let stored = keys.iter().zip(&put).filter(|(_, put)| put.is_ok()).map(|(key, _)| *key);
        let saved = self.save_wholes(&stored.collect::<Vec<_>>(), &opts.disks).await;
        let mut saved = saved.into_iter();
        let after = |(put, key): (Result<T>, &[u8])| {
            let put = put?;
            let saved = saved.next().unwrap_or_else(|| Ok(Saving::default()));
            let saved = saved.and_then(|saved| saved.all_of(&opts.disks));
            saved.map(|()| put).map_err(|e| {
                let text = match e.kind() {
                    ErrorKind::NotFound => "stored, and removed or evicted meanwhile".to_string(),
                    _ => format!("stored in memory, but not on disk: {}", e.message()),
                };
                e.with_message(text).about(key)
            })
        };
        put.into_iter().zip(keys).map(after).collect()
    }

    /// Whether so many disks, and those of these ranks, can have something: by what is known of the
    /// ranks. A put does this before it stores anything.
    ///
    /// # Errors
    /// `InvalidArgument` if not.
    pub fn check_disks(&self, disks: &[Option<u32>]) -> Result<()> {
        check_disks(disks)?;
        let view = self.shared.view();
        let of = |rank: u32| view.nodes().find(|(info, _)| info.rank == rank);
        let without = disks.iter().flatten().find(|r| of(**r).is_some_and(|(info, _)| !info.disk));
        if let Some(rank) = without {
            let text = format!("rank {rank} has no disk: start it with --ssd-dir");
            return Err(Error::invalid(text).at_rank(*rank));
        }
        let with_disk = view.nodes().filter(|(info, _)| info.disk).count();
        // Without ranks nothing is known of them.
        match (view.nodes().count(), with_disk) {
            (0, _) => Ok(()),
            (_, 0) => Err(Error::invalid("no rank has a disk: start one with --ssd-dir")),
            (_, n) if n < disks.len() => {
                let text = format!("{} disks: {n} ranks have one now", disks.len());
                Err(Error::invalid(text))
            }
            _ => Ok(()),
        }
    }
}
