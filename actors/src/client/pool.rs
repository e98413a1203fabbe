//! The memory of a rank as a pool of worker processes on its host: a worker is given places in it,
//! copies its bytes there and commits them, or reads them where they are. No byte goes through the
//! rank's process.
//!
//! What a worker was given is its own until it commits, finishes or dies: a plan that is held, or a
//! pin [I9] [I10]. The times to live end what it forgot; a slot that it still keeps is not reused
//! before the slot is dropped.

use super::addresses::MappedSegment;
use super::peer::Peer;
use super::view::ObjectView;
use super::write::InPlace;
use super::{Client, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Existence, RankInfo};
use hashbrown::HashMap;
use nkv_store::Key;
use nkv_store::clock::Clock;
use nkv_store::key::{HASHER_KEY_BYTES, KeyHasher};
use nkv_store::threads::spawn_named;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Hashes layouts: the same in every process, and no secret.
const LAYOUTS: KeyHasher = KeyHasher::new([0; HASHER_KEY_BYTES]);

const EXPIRE_EVERY: Duration = Duration::from_secs(1);

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
    /// Another one after each start of the rank.
    pub incarnation: u64,
}

/// What a pool did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// Slots to write that were given.
    pub prepared: u64,
    /// Keys that were not stored: they are stored or being written already.
    pub skipped_exists: u64,
    /// Keys that were not stored: the memory is full.
    pub skipped_full: u64,
    /// Slots committed.
    pub committed: u64,
    /// Slots to read that were given.
    pub retrieved: u64,
    /// Keys that a retrieve did not find.
    pub missed: u64,
    /// Slots that were neither committed nor finished within their time to live.
    pub expired: u64,
    /// How often the rank was found started again.
    pub restarts: u64,
}

/// A place to write one object.
#[derive(Debug, Clone)]
pub struct StoreSlot {
    /// Its key, without the layout.
    pub key: Vec<u8>,
    /// File in /dev/shm.
    pub shm_name: Arc<str>,
    /// Offset of its first byte in that file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    place: Arc<InPlace>,
}

impl StoreSlot {
    /// Where it begins in this process. It may be written until the commit, as long as this slot or
    /// a clone of it lives.
    pub fn address(&self) -> u64 {
        self.place.address()
    }

    /// Copies bytes to an offset of the object; `InvalidArgument` once it is committed.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.place.write(offset, bytes)
    }

    /// Copies out what was written so far.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.place.read(offset, bytes)
    }
}

/// An object to read in place. Its bytes do not change as long as this slot or a clone of it lives.
#[derive(Debug, Clone)]
pub struct ReadSlot {
    /// Its key, without the layout.
    pub key: Vec<u8>,
    /// File in /dev/shm.
    pub shm_name: Arc<str>,
    /// Offset of its first byte in that file.
    pub offset: u64,
    view: Arc<ObjectView>,
}

impl ReadSlot {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.view
    }
}

/// Slots that a worker was given, by key, with the time at which they expire; the oldest first.
#[derive(Debug)]
struct Given<T>(HashMap<Key, VecDeque<(u64, T)>>);

impl<T> Default for Given<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Given<T> {
    fn add(&mut self, key: Key, until_ns: u64, slot: T) {
        self.0.entry(key).or_default().push_back((until_ns, slot));
    }

    fn take(&mut self, key: &Key) -> Option<T> {
        let slots = self.0.get_mut(key)?;
        let (_, slot) = slots.pop_front()?;
        if slots.is_empty() {
            self.0.remove(key);
        }
        Some(slot)
    }

    /// Takes out those whose time is over.
    fn expired(&mut self, now_ns: u64) -> Vec<T> {
        let mut out = Vec::new();
        self.0.retain(|_, slots| {
            while slots.front().is_some_and(|(until_ns, _)| *until_ns <= now_ns) {
                out.extend(slots.pop_front().map(|(_, slot)| slot));
            }
            !slots.is_empty()
        });
        out
    }

    fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }
}

#[derive(Debug, Default)]
struct Slots {
    stores: Given<Arc<InPlace>>,
    reads: Given<Arc<ObjectView>>,
    info: Option<PoolInfo>,
}

#[derive(Debug, Default)]
struct Counts {
    prepared: AtomicU64,
    skipped_exists: AtomicU64,
    skipped_full: AtomicU64,
    committed: AtomicU64,
    retrieved: AtomicU64,
    missed: AtomicU64,
    expired: AtomicU64,
    restarts: AtomicU64,
}

fn add(count: &AtomicU64, n: usize) {
    count.fetch_add(n as u64, Ordering::Relaxed);
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

/// What the worker was given, shared with the thread that ends what it forgot.
#[derive(Debug)]
struct GivenOut {
    rank: u32,
    slots: Mutex<Slots>,
    counts: Counts,
    clock: Arc<dyn Clock>,
}

impl GivenOut {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expire(&self) {
        let now_ns = self.clock.now_ns();
        let (stores, reads) = {
            let mut slots = self.lock();
            (slots.stores.expired(now_ns), slots.reads.expired(now_ns))
        };
        let expired = stores.len() + reads.len();
        if expired > 0 {
            add(&self.counts.expired, expired);
            let (writes, rank) = (stores.len(), self.rank);
            tracing::warn!(rank, writes, reads = reads.len(), "slots of a pool expired");
        }
    }
}

fn expire_until_dropped(given: &Weak<GivenOut>) {
    while let Some(given) = given.upgrade() {
        given.expire();
        drop(given);
        std::thread::sleep(EXPIRE_EVERY);
    }
}

impl Client {
    /// Attaches to the memory of a rank on this host, for the life of the pool.
    ///
    /// # Errors
    /// `Unsupported` if there is no such rank, or this process does not map its memory;
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
        let id = LAYOUTS.id(options.layout.as_bytes());
        let prefix = match options.layout.is_empty() {
            true => Vec::new(),
            false => format!("{id:?}:").into_bytes(),
        };
        let (slots, counts) = (Mutex::default(), Counts::default());
        let clock = self.shared.env.clock.clone();
        let given = Arc::new(GivenOut { rank, slots, counts, clock });
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
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let c = &self.given.counts;
        PoolFigures {
            prepared: of(&c.prepared),
            skipped_exists: of(&c.skipped_exists),
            skipped_full: of(&c.skipped_full),
            committed: of(&c.committed),
            retrieved: of(&c.retrieved),
            missed: of(&c.missed),
            expired: of(&c.expired),
            restarts: of(&c.restarts),
        }
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
        self.take_on(&info, &peer)?;
        Ok(peer)
    }

    fn take_on(&self, info: &RankInfo, peer: &Peer) -> Result<()> {
        let (rank, bytes) = (self.rank, info.layout.segment_bytes);
        let mapped = MappedSegment::of(peer).filter(|segment| segment.control == segment.payload);
        let (Some(name), Some(_)) = (info.memory.name(), mapped) else {
            return Err(Error::unsupported(format!(
                "this process does not map the memory of rank {rank} ({}): run it on that rank's \
                 host, see the same /dev/shm, and do not force --transport tcp",
                peer.kind()
            )));
        };
        if let Some(expected) = self.options.expected_bytes.filter(|expected| *expected != bytes) {
            return Err(Error::invalid(format!(
                "the memory of rank {rank} has {bytes} bytes, not {expected} as this worker was \
                 told: give both the same settings"
            )));
        }
        let (shm_name, incarnation) = (name.to_string(), info.incarnation);
        let now = PoolInfo { rank, shm_name, bytes, incarnation };
        let mut slots = self.lock();
        if slots.info.as_ref().is_some_and(|before| before.incarnation != incarnation) {
            add(&self.given.counts.restarts, 1);
            tracing::warn!(rank, "the rank of a pool was started again: slots to write are gone");
        }
        slots.info = Some(now);
        Ok(())
    }

    /// Places for objects of `bytes` each: of those keys that are neither stored nor being written,
    /// as far as there is room. The others are counted.
    ///
    /// # Errors
    /// If the rank or the master cannot be reached, or a key or the length cannot be.
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
        let mut slots = Vec::new();
        // Dropped, and so given up, after an error.
        for ((key, named), opened) in keys.iter().zip(named).zip(opened) {
            let place = match opened.map(Arc::new) {
                Ok(place) => place,
                Err(e) if is_there(e.kind()) => {
                    add(&self.given.counts.skipped_exists, 1);
                    continue;
                }
                // Full, or there was room on another host alone.
                Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory | ErrorKind::Unsupported) => {
                    add(&self.given.counts.skipped_full, 1);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let shm_name = self.name_of(client, place.meta().at.incarnation).await?;
            let (offset, key) = (place.meta().object.payload_off(), key.to_vec());
            slots.push((named, StoreSlot { key, shm_name, offset, len: bytes, place }));
        }
        add(&self.given.counts.prepared, slots.len());
        let until_ns = self.until(self.options.write_ttl);
        let mut given = self.lock();
        let each = slots.into_iter().map(|(named, slot)| {
            given.stores.add(named, until_ns, slot.place.clone());
            slot
        });
        Ok(each.collect())
    }

    async fn name_of(&self, client: &Client, incarnation: u64) -> Result<Arc<str>> {
        let info = client.rank_info(incarnation).await?;
        let lacks = || Error::internal("memory that is mapped has no name");
        info.memory.name().map(Arc::from).ok_or_else(lacks)
    }

    /// Makes objects readable. The worker has written them, and writes there no more. `NotFound`
    /// for a key for which it was given no place, or whose place has expired.
    pub async fn commit_store(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.commit_store_by(&self.client, keys).await
    }

    pub(super) async fn commit_store_by(&self, client: &Client, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.expire();
        let place = |key: &&[u8]| {
            let place = self.lock().stores.take(&self.key(key)?);
            place.ok_or_else(|| {
                let text = "no place was prepared for this key, or it has expired";
                Error::not_found(text).about(key)
            })
        };
        let places: Vec<Result<Arc<InPlace>>> = keys.iter().map(place).collect();
        let open: Vec<_> = places.iter().flatten().cloned().collect();
        let mut done = client.commit_in_place(&open).await.into_iter();
        let lost = || Err(Error::internal("a commit without a result"));
        let each = |place: Result<_>| place.and_then(|_| done.next().unwrap_or_else(lost));
        let done: Vec<Result<()>> = places.into_iter().map(each).collect();
        add(&self.given.counts.committed, done.iter().filter(|done| done.is_ok()).count());
        done
    }

    /// Gives up places that the worker does not write after all; they are free once it keeps their
    /// slots no more.
    pub fn abort_store(&self, keys: &[&[u8]]) {
        self.expire();
        for key in keys {
            let given_up = self.key(key).ok().and_then(|key| self.lock().stores.take(&key));
            drop(given_up);
        }
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
        add(&self.given.counts.retrieved, slots.len());
        let mut given = self.lock();
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
        let viewed = keys.iter().map(|key| client.view_now(key.as_bytes()).transpose());
        let mut views = viewed.collect::<Result<Vec<Option<ObjectView>>>>()?;
        let left: Vec<usize> = (0..keys.len()).filter(|at| views[*at].is_none()).collect();
        let asked: Vec<&[u8]> = left.iter().map(|at| keys[*at].as_bytes()).collect();
        if !asked.is_empty() {
            let found = client.prefetch(&asked, true).await?;
            let is_there =
                |found: &&Existence| matches!(found, Existence::Ready | Existence::OnDisk);
            let missed = asked.len() - found.iter().filter(is_there).count();
            add(&self.given.counts.missed, missed);
            if missed > 0 {
                return Ok(None);
            }
        }
        for at in left {
            match client.get_view(keys[at].as_bytes()).await {
                Ok(view) => views[at] = Some(view),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    add(&self.given.counts.missed, 1);
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

    /// The worker has read these objects, once for each time that it was given them.
    pub fn finish_read(&self, keys: &[&[u8]]) {
        self.expire();
        for key in keys {
            let finished = self.key(key).ok().and_then(|key| self.lock().reads.take(&key));
            drop(finished);
        }
    }
}

/// Stored, or being written.
fn is_there(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::AlreadyExists | ErrorKind::NotReady)
}
