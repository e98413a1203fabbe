//! `cache_on_read`: a handle keeps what it reads from another host as an extra replica at its own
//! rank, so that later reads on this host need no network. A thread of the handle (in a simulation
//! a task) puts it there after the read, which does not wait. Whatever fails is left out: the
//! object is read from afar once more.

use super::read_cache::{ReadCache, ReadObject};
use super::when_ready::Waits;
use super::{Client, Shared, runtime_of_thread};
use crate::actor::ActorAddr;
use crate::client::control::ControlPool;
use crate::client::producer::Producer;
use crate::environment::Platform;
use crate::error::ErrorKind;
use crate::message::SlotRef;
use bytes::Bytes;
use nkv_store::threads::spawn_named;
use std::sync::{Arc, OnceLock, Weak};

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
            Ok(false) => self.cache.refuse(&read.key, client.shared.env.clock.now_ns()),
            Err(e) => {
                tracing::debug!(error = %e, "an object that was read is not kept");
                if e.kind() == ErrorKind::OutOfMemory {
                    self.cache.pause(client.shared.env.clock.now_ns());
                }
            }
        }
        self.cache.release(&read.key, bytes);
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
    /// An object was read, of this key and from this slot, so many bytes. Keeps it at this handle's
    /// rank, if that is wanted and the object came from memory that this process does not map.
    pub(super) fn was_read(
        &self,
        from: (&[u8], SlotRef),
        bytes: usize,
        read: impl FnOnce() -> Bytes,
    ) {
        if let Some(cache) = &self.shared.read_cache {
            self.may_keep(cache, from, bytes as u64, read);
        }
    }

    #[cold]
    fn may_keep(
        &self,
        cache: &Arc<ReadCache>,
        (key, at): (&[u8], SlotRef),
        bytes: u64,
        read: impl FnOnce() -> Bytes,
    ) {
        let now = self.shared.env.clock.now_ns();
        let Some(peer) = self.shared.peers.get(at.incarnation) else { return };
        let elsewhere = peer.reader.is_none() && self.home().is_some_and(|home| home != peer.rank);
        let wanted = bytes > 0 && elsewhere;
        if !wanted
            || cache.is_paused(now)
            || cache.is_refused(key, now)
            || !self.started(cache)
            || !cache.reserve(key, bytes)
        {
            return;
        }
        if !cache.queue.push(ReadObject { key: key.into(), at, bytes: read() }) {
            cache.release(key, bytes);
        }
    }

    /// Whether the worker runs; starts it on the first call.
    fn started(&self, cache: &Arc<ReadCache>) -> bool {
        if !self.shared.made.is_here() || !cache.starts() {
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
