//! `cache_on_read`: a handle keeps what it reads from another host as an extra replica at its own
//! rank, so that later reads on this host need no network. A thread of the handle (in a simulation
//! a task) puts it there after the read, which does not wait. Whatever fails is left out: the
//! object is read from afar once more.

use super::peer::TransportChoice;
use super::when_ready::Waits;
use super::{Client, Shared, runtime_of_thread};
use crate::actor::ActorAddr;
use crate::client::control::ControlPool;
use crate::client::producer::Producer;
use crate::environment::Platform;
use crate::error::ErrorKind;
use crate::message::SlotRef;
use crate::work_queue::WorkQueue;
use bytes::Bytes;
use hashbrown::HashSet;
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Objects that wait at most, their bytes, and the bytes of one. Others are not kept.
const MOST_WAITING: usize = 1024;
const MOST_BYTES: u64 = 64 << 20;
const LARGEST: u64 = 16 << 20;
/// After the rank had no room, nothing is kept for so long.
const NO_ROOM_PAUSE_NS: u64 = 1_000_000_000;
/// Keys that are not tried again: their host has a replica that this process cannot map.
const MOST_REFUSED: usize = 4096;

/// An object that was read.
#[derive(Debug)]
struct ReadObject {
    key: Box<[u8]>,
    at: SlotRef,
    bytes: Bytes,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct ReadCache {
    queue: WorkQueue<ReadObject>,
    waiting_bytes: AtomicU64,
    paused_until_ns: AtomicU64,
    started: AtomicBool,
    refused: Mutex<HashSet<Box<[u8]>>>,
}

impl ReadCache {
    /// What a handle of this configuration has.
    pub(super) fn wanted(wanted: bool, transport: TransportChoice) -> Option<Arc<Self>> {
        // A handle that does not map its own rank's memory would read a replica there by the
        // network as well.
        (wanted && transport == TransportChoice::Auto).then(|| {
            Arc::new(Self {
                queue: WorkQueue::new(MOST_WAITING),
                waiting_bytes: AtomicU64::new(0),
                paused_until_ns: AtomicU64::new(0),
                started: AtomicBool::new(false),
                refused: Mutex::default(),
            })
        })
    }

    /// Its thread ends after the object that it puts now.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Room for an object of so many bytes.
    fn reserve(&self, bytes: u64) -> bool {
        let waiting = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = bytes <= LARGEST && waiting.saturating_add(bytes) <= MOST_BYTES;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_refused(&self, key: &[u8]) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn refuse(&self, key: Box<[u8]>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(key);
    }
}

/// A handle's parts without what its drop waits for: the worker does not keep the handle alive.
struct Worker {
    cache: Arc<ReadCache>,
    shared: Weak<Shared>,
    pool: Arc<ControlPool>,
    waits: Arc<Waits>,
    actor: Arc<OnceLock<ActorAddr<Producer>>>,
}

impl Worker {
    /// False once the handle is gone.
    async fn keep(&self, read: ReadObject) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let (pool, waits, actor) = (self.pool.clone(), self.waits.clone(), self.actor.clone());
        let client = Client { shared, pool, waits, actor };
        let bytes = read.bytes.len() as u64;
        match client.put_extra(&read.key, &read.bytes, read.at).await {
            Ok(true) => client.shared.reads.cached.one(),
            Ok(false) => self.cache.refuse(read.key),
            Err(e) => {
                tracing::debug!(error = %e, "an object that was read is not kept");
                if e.kind() == ErrorKind::OutOfMemory {
                    let until_ns = client.shared.env.clock.now_ns() + NO_ROOM_PAUSE_NS;
                    self.cache.paused_until_ns.store(until_ns, Ordering::Relaxed);
                }
            }
        }
        self.cache.release(bytes);
        true
    }

    async fn run_here(self) {
        while let Some(read) = self.cache.queue.next().await {
            if !self.keep(read).await {
                return;
            }
        }
    }

    fn run(self, runtime: &tokio::runtime::Runtime) {
        while let Some(read) = self.cache.queue.next_blocking() {
            if !runtime.block_on(self.keep(read)) {
                return;
            }
        }
    }
}

impl Client {
    /// An object was read, so many bytes of it. Keeps it at this handle's rank, if that is wanted
    /// and the object came from memory that this process does not map.
    pub(super) fn was_read(&self, key: &[u8], bytes: usize, read: impl FnOnce() -> Bytes) {
        if let Some(cache) = &self.shared.read_cache {
            self.may_keep(cache, key, bytes as u64, read);
        }
    }

    #[cold]
    fn may_keep(
        &self,
        cache: &Arc<ReadCache>,
        key: &[u8],
        bytes: u64,
        read: impl FnOnce() -> Bytes,
    ) {
        let now = self.shared.env.clock.now_ns();
        let Some(meta) = self.shared.locations.known(key) else { return };
        let mapped = self.shared.peers.get(meta.at.incarnation);
        let mapped = mapped.is_some_and(|peer| peer.reader.is_some());
        let wanted = bytes > 0 && !mapped && self.home().is_some_and(|home| home != meta.rank);
        if !wanted
            || now < cache.paused_until_ns.load(Ordering::Relaxed)
            || cache.is_refused(key)
            || !self.started(cache)
            || !cache.reserve(bytes)
        {
            return;
        }
        if !cache.queue.push(ReadObject { key: key.into(), at: meta.at, bytes: read() }) {
            cache.release(bytes);
        }
    }

    /// Whether the worker runs; starts it on the first call.
    fn started(&self, cache: &Arc<ReadCache>) -> bool {
        if !self.shared.made.is_here() || cache.started.swap(true, Ordering::Relaxed) {
            return self.shared.made.is_here();
        }
        let here = self.shared.env.platform == Platform::Here;
        let pool = if here { self.pool.another() } else { self.pool.for_a_thread() };
        let worker = Worker {
            cache: cache.clone(),
            shared: Arc::downgrade(&self.shared),
            waits: Arc::new(Waits::beside(&self.pool)),
            pool: Arc::new(pool),
            actor: self.actor.clone(),
        };
        if here {
            self.shared.env.machine.start_task(Box::pin(worker.run_here()));
            return true;
        }
        let started = runtime_of_thread().and_then(|runtime| {
            spawn_named("nkv-cache-read", move || worker.run(&runtime)).map_err(Into::into)
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "nothing that is read is kept");
            cache.close();
        }
        started.is_ok()
    }
}
