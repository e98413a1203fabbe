//! The memory of a rank as a pool of worker processes on its host: a worker is given places in it,
//! copies its bytes there and commits them, or reads them where they are. No byte goes through the
//! rank's process.
//!
//! What a worker was given is its own until it commits, finishes or dies: a plan that is held, or a
//! pin [I9] [I10]. The times to live end what it forgot; a slot that it still keeps is not reused
//! before the slot is dropped.

mod given;
mod slots;

pub use given::PoolFigures;
pub use slots::{ReadSlot, StoreSlot};

use super::addresses::MappedSegment;
use super::peer::Peer;
use super::view::{ObjectView, no_pins};
use super::write::InPlace;
use super::{Client, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Existence, MAX_BATCH, RankInfo};
use given::{Counts, GivenOut, Slots, expire_until_dropped};
use nkv_store::Key;
use nkv_store::key::MAX_KEY_BYTES;
use nkv_store::threads::spawn_named;
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Of the SHA-256 of a layout, before each of its keys.
const LAYOUT_BYTES: usize = 16;

/// How a worker uses a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The rank whose memory it is; the first on this host if absent.
    pub rank: Option<u32>,
    /// Bytes that its segment must have, if the worker was told.
    pub expected_bytes: Option<u64>,
    /// What the bytes mean: type, shape, model, parallelism. Part of every key's identity: a worker
    /// with another layout finds nothing of this one.
    pub layout: String,
    /// A slot that was not committed for so long is given up, once the worker keeps it no more.
    pub write_ttl: Duration,
    /// A slot that was not finished for so long is finished, once the worker keeps it no more.
    pub read_ttl: Duration,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            rank: None,
            expected_bytes: None,
            layout: String::new(),
            write_ttl: Duration::from_secs(600),
            read_ttl: Duration::from_secs(300),
        }
    }
}

/// The memory that a pool is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInfo {
    /// Its rank.
    pub rank: u32,
    /// Its file in /dev/shm.
    pub shm_name: String,
    /// Length of the file.
    pub bytes: u64,
    /// Bytes of it for objects.
    pub payload_bytes: u64,
    /// Bytes for slots to write: what the rank has beside its log. All of its memory with
    /// `log_bytes` 0.
    pub store_bytes: u64,
    /// Another one after each start of the rank.
    pub incarnation: u64,
}

impl PoolInfo {
    /// Whether less than half of the bytes for objects are for slots to write, because the rank has
    /// a log.
    pub fn has_little_room(&self) -> bool {
        self.store_bytes < self.payload_bytes / 2
    }
}

/// See the file's first paragraph. Calls may come from several threads.
#[derive(Debug)]
pub struct ShmPool {
    client: Client,
    rank: u32,
    options: PoolOptions,
    prefix: Vec<u8>,
    given: Arc<GivenOut>,
}

impl Client {
    /// Attaches to the memory of a rank on this host, for the life of the pool.
    ///
    /// # Errors
    /// `Unsupported` if there is no such rank, this process does not map its memory, or 128 handles
    /// read there in place already;
    /// `InvalidArgument` if the memory has another size than was expected.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("pool", async |cache| {
    /// let pool = cache.attach_pool(PoolOptions { rank: Some(0), ..Default::default() }).await?;
    /// for slot in pool.prepare_store(&[b"chunk/1", b"chunk/2"], 4096).await? {
    ///     slot.write(0, &[1; 4096])?;
    ///     pool.commit_store(&[&slot.key]).await;
    /// }
    /// let found = pool.prepare_retrieve(&[b"chunk/1", b"chunk/2"]).await?;
    /// let slots = found.expect("both are there");
    /// assert_eq!(slots[0].bytes().len(), 4096);
    /// pool.finish_read(&[b"chunk/1", b"chunk/2"]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn attach_pool(&self, options: PoolOptions) -> Result<ShmPool> {
        self.check_usable()?;
        let rank = options.rank.or_else(|| self.home()).ok_or_else(|| {
            Error::unsupported("no rank of the job runs on this host: name one, or start one here")
        })?;
        let prefix = prefix_of(&options.layout);
        let (slots, counts) = (Mutex::default(), Counts::default());
        let (client, clock) = (self.clone(), self.shared.env.clock.clone());
        let given = Arc::new(GivenOut { rank, client, slots, counts, clock });
        let pool = ShmPool { client: self.clone(), rank, options, prefix, given };
        pool.attach(self).await?;
        let weak = Arc::downgrade(&pool.given);
        spawn_named("nkv-pool", move || expire_until_dropped(&weak))?;
        Ok(pool)
    }
}

impl ShmPool {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.given.lock()
    }

    fn key(&self, key: &[u8]) -> Result<Key> {
        let most = MAX_KEY_BYTES - self.prefix.len();
        if key.is_empty() || key.len() > most {
            let of = if self.prefix.is_empty() { "" } else { " with a layout" };
            return Err(Error::invalid(format!(
                "a key of {} bytes: in a pool{of} it has 1 to {most}",
                key.len()
            )));
        }
        Ok(Key::new(&[&self.prefix, key].concat())?)
    }

    fn until(&self, ttl: Duration) -> u64 {
        let now_ns = self.given.clock.now_ns();
        now_ns.saturating_add(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The memory as it is now.
    pub fn info(&self) -> Option<PoolInfo> {
        self.lock().info.clone()
    }

    /// What it did so far.
    pub fn figures(&self) -> PoolFigures {
        self.given.counts.snapshot()
    }

    /// Slots that were given and are neither committed nor finished: to write, and to read.
    pub fn outstanding(&self) -> (usize, usize) {
        let slots = self.lock();
        (slots.stores.len(), slots.reads.len())
    }

    /// Ends what the worker forgot, as a thread does every second.
    pub fn expire(&self) {
        self.given.expire();
    }

    /// The rank as it is now, attached; a start of it since is noticed by its incarnation.
    async fn attach(&self, client: &Client) -> Result<Arc<Peer>> {
        self.expire();
        let known = client.shared.peers.first_of(self.rank);
        let known_to_us = self.lock().info.as_ref().map(|info| info.incarnation);
        if let Some(peer) = known.filter(|peer| Some(peer.incarnation) == known_to_us) {
            return Ok(peer);
        }
        let view = client.membership().await?;
        let info = view.node(self.rank).map(|(info, _)| info.clone()).ok_or_else(|| {
            Error::disconnected(format!("rank {} is not a member now: start it", self.rank))
        })?;
        let peer = client.peer(info.incarnation).await?;
        self.take_on(client, &info, &peer)?;
        Ok(peer)
    }

    fn take_on(&self, client: &Client, info: &RankInfo, peer: &Peer) -> Result<()> {
        let (rank, bytes) = (self.rank, info.layout.segment_bytes);
        let mapped = MappedSegment::of(peer).filter(|segment| segment.control == segment.payload);
        let (Some(name), Some(_)) = (info.memory.name(), mapped) else {
            return Err(Error::unsupported(format!(
                "this process does not map the memory of rank {rank} ({}): run it on that rank's \
                 host, see the same /dev/shm, and do not force --transport tcp",
                peer.kind()
            )));
        };
        if peer.pins.is_none() {
            return Err(no_pins(peer));
        }
        if let Some(expected) = self.options.expected_bytes.filter(|expected| *expected != bytes) {
            return Err(Error::invalid(format!(
                "the memory of rank {rank} has {bytes} bytes, not {expected} as this worker was \
                 told: expected_bytes is the length of its file in /dev/shm, with the index, as \
                 the rank's own pool says"
            )));
        }
        let (shm_name, incarnation) = (name.to_string(), info.incarnation);
        let (store_bytes, payload_bytes) = (info.layout.arena.len, info.layout.payloads().len);
        let now = PoolInfo { rank, shm_name, bytes, payload_bytes, store_bytes, incarnation };
        if now.has_little_room() {
            let text = "slots of a pool are not in a rank's log: start the rank with log_bytes 0";
            tracing::warn!(rank, store_bytes, payload_bytes, "{text}");
        }
        let mut slots = self.lock();
        let before = slots.info.replace(now).map(|before| before.incarnation);
        let Some(before) = before.filter(|before| *before != incarnation) else { return Ok(()) };
        let lost = slots.stores.take_any(|_, place| place.meta().at.incarnation == before);
        drop(slots);
        self.given.counts.restarts.one();
        let lost_slots = lost.len();
        tracing::warn!(rank, lost_slots, "the rank of a pool was started again");
        client.give_up_in_place(lost);
        Ok(())
    }

    /// Places for objects of `bytes` each: of those keys that are neither stored nor being written,
    /// as far as there is room. The others are counted, by reason.
    ///
    /// # Errors
    /// If the rank or the master cannot be reached, or a key or the length cannot be. What one key
    /// fails with is an error only if no other one was given a place.
    pub async fn prepare_store(&self, keys: &[&[u8]], bytes: u64) -> Result<Vec<StoreSlot>> {
        self.prepare_store_by(&self.client, keys, bytes).await
    }

    pub(super) async fn prepare_store_by(
        &self,
        client: &Client,
        keys: &[&[u8]],
        bytes: u64,
    ) -> Result<Vec<StoreSlot>> {
        self.attach(client).await?;
        let named: Vec<Key> = keys.iter().map(|key| self.key(key)).collect::<Result<_>>()?;
        let items: Vec<(&[u8], u64)> = named.iter().map(|key| (key.as_bytes(), bytes)).collect();
        let opts = PutOptions::default().preferred_rank(self.rank);
        let opts = opts.if_exists(super::IfExists::Fail);
        let opened = client.open_in_place(&items, &opts).await?;
        let (mut slots, mut failed) = (Vec::new(), None);
        for ((key, named), opened) in keys.iter().zip(named).zip(opened) {
            let slot = match opened {
                Ok(place) => self.slot_of(client, key, place).await,
                Err(e) => Err(e),
            };
            match slot {
                Ok(slot) => slots.push((named, slot)),
                Err(e) => failed = self.not_given(e.about(key)).or(failed),
            }
        }
        if let Some(error) = failed.filter(|_| slots.is_empty()) {
            return Err(error);
        }
        self.given.counts.prepared.add(slots.len());
        let until_ns = self.until(self.options.write_ttl);
        let (mut out, mut replaced) = (Vec::with_capacity(slots.len()), Vec::new());
        let mut given = self.lock();
        given.expires_at(until_ns);
        for (named, slot) in slots {
            // A key has one plan at a time: the one before has ended.
            replaced.append(&mut given.stores.take_all(&named));
            given.stores.add(named, until_ns, slot.place.clone());
            out.push(slot);
        }
        drop(given);
        client.give_up_in_place(replaced);
        Ok(out)
    }

    async fn slot_of(&self, client: &Client, key: &[u8], place: InPlace) -> Result<StoreSlot> {
        let (meta, key) = (place.meta(), key.to_vec());
        let shm_name = self.name_of(client, meta.at.incarnation).await?;
        let (offset, len) = (meta.object.payload_off(), meta.object.bytes_total);
        Ok(StoreSlot { key, shm_name, offset, len, place: Arc::new(place) })
    }

    /// Counts a key without a place; gives its error back if that is no usual reason.
    fn not_given(&self, error: Error) -> Option<Error> {
        let counts = &self.given.counts;
        let (count, error) = match error.kind() {
            ErrorKind::AlreadyExists => (&counts.skipped_exists, None),
            ErrorKind::NotReady => (&counts.skipped_busy, None),
            // Full, or there was room on another host alone.
            ErrorKind::OutOfMemory | ErrorKind::Unsupported => (&counts.skipped_full, None),
            _ => (&counts.failed, Some(error)),
        };
        count.one();
        error
    }

    async fn name_of(&self, client: &Client, incarnation: u64) -> Result<Arc<str>> {
        let info = client.rank_info(incarnation).await?;
        let lacks = || Error::internal("memory that is mapped has no name");
        info.memory.name().map(Arc::from).ok_or_else(lacks)
    }

    /// Makes objects readable. The worker has written them, and writes there no more. `NotFound`
    /// for a key that has no place: none was given, it expired, or its rank was started again. An
    /// error ends the place, too: store that key again.
    pub async fn commit_store(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.commit_store_by(&self.client, keys).await
    }

    pub(super) async fn commit_store_by(&self, client: &Client, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.expire();
        let place = |key: &&[u8]| {
            let place = self.lock().stores.take(&self.key(key)?);
            place.ok_or_else(|| {
                let text = "this key has no place: none was prepared, it expired, its commit \
                            failed before, or its rank was started again; prepare it again";
                Error::not_found(text).about(key)
            })
        };
        let places: Vec<Result<Arc<InPlace>>> = keys.iter().map(place).collect();
        let open: Vec<_> = places.iter().flatten().cloned().collect();
        let mut done = Vec::with_capacity(open.len());
        for part in open.chunks(MAX_BATCH) {
            done.extend(client.commit_in_place(part).await);
        }
        drop(open);
        let mut done = done.into_iter();
        let lost = || Err(Error::internal("a commit without a result"));
        let each = |place: Result<_>| place.and_then(|_| done.next().unwrap_or_else(lost));
        let done: Vec<Result<()>> = places.into_iter().map(each).collect();
        self.given.counts.committed.add(done.iter().filter(|done| done.is_ok()).count());
        done
    }

    /// Gives up places that the worker does not write after all; they are free once it keeps their
    /// slots no more.
    pub fn abort_store(&self, keys: &[&[u8]]) {
        let named = keys.iter().filter_map(|key| self.key(key).ok());
        let given_up = named.filter_map(|key| self.lock().stores.take(&key));
        self.client.give_up_in_place(given_up.collect());
    }

    /// All objects, to be read in place; None if one of them is not there. What only disks have is
    /// brought back first.
    ///
    /// # Errors
    /// `Unsupported` if one lies in memory that this process does not map: read it with `get_into`;
    /// `OutOfMemory` past 4,096 objects of an owner at a time; what a get fails with.
    pub async fn prepare_retrieve(&self, keys: &[&[u8]]) -> Result<Option<Vec<ReadSlot>>> {
        self.prepare_retrieve_by(&self.client, keys).await
    }

    pub(super) async fn prepare_retrieve_by(
        &self,
        client: &Client,
        keys: &[&[u8]],
    ) -> Result<Option<Vec<ReadSlot>>> {
        self.attach(client).await?;
        let named: Vec<Key> = keys.iter().map(|key| self.key(key)).collect::<Result<_>>()?;
        let Some(views) = self.view_all(client, &named).await? else { return Ok(None) };
        let until_ns = self.until(self.options.read_ttl);
        let mut slots = Vec::with_capacity(keys.len());
        for ((key, named), view) in keys.iter().zip(&named).zip(views) {
            let (shm_name, offset) = self.place_of(client, &view).await?;
            slots.push((named.clone(), ReadSlot { key: key.to_vec(), shm_name, offset, view }));
        }
        self.given.counts.retrieved.add(slots.len());
        let mut given = self.lock();
        given.expires_at(until_ns);
        let each = slots.into_iter().map(|(named, slot)| {
            given.reads.add(named, until_ns, slot.view.clone());
            slot
        });
        Ok(Some(each.collect()))
    }

    /// In memory first, so that what is brought back evicts none of it.
    async fn view_all(
        &self,
        client: &Client,
        keys: &[Key],
    ) -> Result<Option<Vec<Arc<ObjectView>>>> {
        let view = |key: &Key| {
            let view = client.view_now(key.as_bytes())?;
            Some(view.and_then(|view| client.whole_view(key.as_bytes(), view)))
        };
        let viewed = keys.iter().map(|key| view(key).transpose());
        let mut views = viewed.collect::<Result<Vec<Option<ObjectView>>>>()?;
        let left: Vec<usize> = (0..keys.len()).filter(|at| views[*at].is_none()).collect();
        let asked: Vec<&[u8]> = left.iter().map(|at| keys[*at].as_bytes()).collect();
        if !asked.is_empty() {
            let found = client.prefetch(&asked, true).await?;
            let is_there =
                |found: &&Existence| matches!(found, Existence::Ready | Existence::OnDisk);
            let missed = asked.len() - found.iter().filter(is_there).count();
            self.given.counts.missed.add(missed);
            if missed > 0 {
                return Ok(None);
            }
        }
        for at in left {
            match client.get_view(keys[at].as_bytes()).await {
                Ok(view) => views[at] = Some(view),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    self.given.counts.missed.one();
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(views.into_iter().map(|view| view.map(Arc::new)).collect())
    }

    async fn place_of(&self, client: &Client, view: &ObjectView) -> Result<(Arc<str>, u64)> {
        let (incarnation, offset) = view.place();
        Ok((self.name_of(client, incarnation).await?, offset))
    }

    /// The worker has read these objects, once for each time that it was given them: the oldest of
    /// a key first. Returns how many it had been given and not finished.
    pub fn finish_read(&self, keys: &[&[u8]]) -> usize {
        let finish = |key: &&[u8]| self.lock().reads.take(&self.key(key).ok()?);
        keys.iter().filter_map(finish).count()
    }

    /// As [`Self::finish_read`] of these slots, and of no other ones of their keys.
    pub fn finish_slots(&self, slots: &[ReadSlot]) -> usize {
        let finish = |slot: &ReadSlot| {
            let key = self.key(&slot.key).ok()?;
            self.lock().reads.take_same(&key, &slot.view)
        };
        slots.iter().filter_map(finish).count()
    }
}

/// What stands before the keys of a layout: the same in every process.
fn prefix_of(layout: &str) -> Vec<u8> {
    if layout.is_empty() {
        return Vec::new();
    }
    let mut id = [0; LAYOUT_BYTES];
    id.copy_from_slice(&Sha256::digest(layout)[..LAYOUT_BYTES]);
    format!("{:032x}:", u128::from_be_bytes(id)).into_bytes()
}
