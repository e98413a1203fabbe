//! The SSD tier of a node: objects that leave memory, or all of them, are saved in a directory, and
//! come back when somebody wants them. The threads here do the work; owners hand objects over and
//! ask, and never wait for the disk. What a disk has is known to its node alone: the master asks.

mod config;
mod demotion;
mod figures;
mod jobs;
mod promotion;
mod removal;
mod saving;

pub use config::{
    DAY_S, DEFAULT_TTL_DAYS, MAX_BYTES, MAX_TTL_DAYS, MIN_BYTES, SsdConfig, SsdEngine, SsdPolicy,
};
pub(crate) use demotion::{Candidate, Demotion};
pub use figures::TierFigures;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::{DiskSelection, KeyBytes};
use crate::owner::tables::OwnerTables;
use config::open_engine;
use demotion::Feed;
use figures::Counters;
pub(crate) use jobs::EachDone;
use jobs::KeyJobs;
pub use nkv_ssd::Durability;
use nkv_ssd::writer::{Writer, WriterOptions};
use nkv_ssd::{Engine, SsdError};
use nkv_store::Key;
use nkv_store::clock::Clock;
use nkv_store::log_limit::LogLimit;
use nkv_store::threads::spawn_named;
use removal::{Kind, Removals};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the engine writes down what a save left for later.
const MAINTAIN_EVERY: Duration = Duration::from_millis(100);
/// How long a stop waits for what was handed over.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a start waits for a directory that another process is about to leave.
const FREE_LIMIT_MS: u64 = 3_000;

/// What a removal found on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken {
    /// Of a removal by keys: those that were there.
    pub keys: Vec<Key>,
    /// Of any other: how many objects were there.
    pub count: u64,
}

/// What is called once a removal is on disk.
pub(crate) type Removed = Box<dyn FnOnce(Result<Taken>) + Send>;

/// See the file's first paragraph.
pub struct DiskTier {
    config: SsdConfig,
    engine: Arc<dyn Engine>,
    writer: Writer,
    feed: Feed,
    promotions: KeyJobs,
    saves: KeyJobs,
    removals: Removals,
    counters: Counters,
    closing: AtomicBool,
    /// How the process before this one ended.
    before: Shutdown,
    shutdown: Mutex<Option<Shutdown>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the node's first segment, which say how full the disk is.
    gauges: OnceLock<Arc<OwnerTables>>,
    clock: Arc<dyn Clock>,
}

/// How the tier was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// All that was handed over is on disk.
    pub clean: bool,
    /// Something may be missing: what is on disk is whole all the same.
    pub partial_flush: bool,
}

/// The file in which a stop notes how it went; a process that was killed leaves none.
const ENDED: &str = "ended";

impl Shutdown {
    /// Reads and removes the note of the process before.
    fn of_the_last(dir: &Path, stats: &nkv_ssd::Stats) -> Self {
        let path = dir.join(ENDED);
        let note = std::fs::read_to_string(&path).ok();
        if let Err(error) = std::fs::remove_file(&path)
            && note.is_some()
        {
            tracing::warn!(%error, path = %path.display(), "cannot be removed");
        }
        let note = note.as_deref().map(str::trim);
        // A directory without objects, as a new one, lost nothing.
        let empty = stats.objects == 0 && stats.journal_pages_damaged == 0;
        let clean = note == Some("clean") || (note.is_none() && empty);
        Self { clean, partial_flush: note == Some("partial") }
    }

    fn note(self, dir: &Path) {
        let text = if self.clean { "clean" } else { "partial" };
        if let Err(error) = std::fs::write(dir.join(ENDED), text) {
            tracing::warn!(%error, "how the SSD tier ended cannot be noted");
        }
    }
}

impl std::fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskTier({})", self.config.dir.display())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A panic in the work of a thread is an error of that piece of work: the thread goes on.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|_| Error::internal("a panic in the SSD tier: its text is in the log"))
}

/// Opens the directory; waits a little for a process that is about to end to let go of it.
fn open_when_free(
    config: &SsdConfig,
    clock: &dyn Clock,
) -> std::result::Result<Arc<dyn Engine>, SsdError> {
    let until_ms = clock.now_ms() + FREE_LIMIT_MS;
    loop {
        match open_engine(config) {
            Err(SsdError::Io(e))
                if e.kind() == ErrorKind::ResourceBusy && clock.now_ms() < until_ms =>
            {
                std::thread::sleep(MAINTAIN_EVERY);
            }
            opened => return opened,
        }
    }
}

impl DiskTier {
    /// Opens the directory and starts the threads. Waits for the disk.
    pub(crate) fn open(
        config: &SsdConfig,
        clock: Arc<dyn Clock>,
    ) -> std::result::Result<Arc<Self>, String> {
        let began_ms = clock.now_ms();
        let shown = |e: &dyn std::fmt::Display| format!("--ssd-dir {}: {e}", config.dir.display());
        let engine = open_when_free(config, &*clock).map_err(|e| shown(&e))?;
        let before = Shutdown::of_the_last(&config.dir, &engine.stats());
        let options = WriterOptions { durability: config.durability, ..WriterOptions::default() };
        let writer =
            Writer::start(engine.clone(), options, clock.clone()).map_err(|e| shown(&e))?;
        let stats = engine.stats();
        tracing::info!(
            dir = %config.dir.display(), objects = stats.objects, bytes = stats.used_bytes,
            capacity = stats.capacity_bytes, took_ms = clock.now_ms() - began_ms,
            "the SSD tier is open"
        );
        let tier = Arc::new(Self {
            config: config.clone(),
            engine,
            writer,
            feed: Feed::default(),
            promotions: KeyJobs::default(),
            saves: KeyJobs::default(),
            removals: Removals::default(),
            counters: Counters::default(),
            closing: AtomicBool::new(false),
            before,
            shutdown: Mutex::new(None),
            threads: Mutex::default(),
            gauges: OnceLock::new(),
            clock,
        });
        tier.run("nkv-ssd-feed", Self::feed_writer).map_err(|e| shown(&e))?;
        tier.run("nkv-ssd-clock", Self::maintain).map_err(|e| shown(&e))?;
        for (name, kind) in [("nkv-ssd-remove", Kind::Keys), ("nkv-ssd-search", Kind::Search)] {
            tier.run(name, move |tier| tier.carry_out_removals(kind)).map_err(|e| shown(&e))?;
        }
        Ok(tier)
    }

    fn run(self: &Arc<Self>, name: &str, work: impl FnOnce(&Self) + Send + 'static) -> Result<()> {
        let tier = self.clone();
        let thread = spawn_named(name, move || work(&tier)).map_err(Error::from)?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Promotions and saves on request need a handle of the node, which there is only later.
    pub(crate) fn start_jobs(self: &Arc<Self>, client: &Client) -> Result<()> {
        for number in 0..promotion::THREADS {
            let client = client.blocking()?;
            self.run(&format!("nkv-promote-{number}"), move |tier| tier.promote_all(&client))?;
        }
        for number in 0..saving::THREADS {
            let client = client.blocking()?;
            self.run(&format!("nkv-save-{number}"), move |tier| tier.save_all(&client))?;
        }
        Ok(())
    }

    /// The settings.
    pub fn config(&self) -> &SsdConfig {
        &self.config
    }

    /// Length of what is on disk under a key, or on its way there. Asks no disk.
    pub(crate) fn find(&self, key: &[u8]) -> Option<u64> {
        let key = Key::new(key).ok().filter(|key| !self.removals.covers(key))?;
        let found = self.engine.find(&key).map(|found| found.len);
        let found = found.or_else(|| self.feed.pending_bytes(&key));
        match found {
            Some(_) => self.counters.lookup_hits.one(),
            None => self.counters.lookup_misses.one(),
        }
        found
    }

    /// Brings objects back into memory, of this rank if it is given; calls `done` with the result
    /// of each.
    pub(crate) fn promote(&self, keys: &[KeyBytes], rank: Option<u32>, done: EachDone) {
        self.counters.promote_requested.add(keys.len());
        let at = (rank, self.clock.now_ns());
        let coalesced = self.promotions.add(keys, at, |_| None, done);
        self.counters.promote_coalesced.add(coalesced);
    }

    /// Saves objects that are in memory somewhere; calls `done` with the result of each.
    pub(crate) fn save(&self, keys: &[KeyBytes], done: EachDone) {
        let refused = |key: &Key| self.removals.covers(key).then(|| saving::is_removed(key));
        self.saves.add(keys, (None, self.clock.now_ns()), refused, done);
    }

    /// Removes from disk, and saves and promotes nothing of it until [`Self::removal_over`]. Calls
    /// `done` once that is on disk.
    pub(crate) fn remove(&self, removal: u64, which: &DiskSelection, done: Removed) {
        self.removals.add(removal, which, self.clock.now_ns(), done);
    }

    /// A removal has ended everywhere, or this round of it.
    pub(crate) fn removal_over(&self, removal: u64, again: bool) {
        self.removals.over(removal, again, self.clock.now_ns());
    }

    fn maintain(&self) {
        let mut limit = LogLimit::default();
        while !self.closing.load(Ordering::Acquire) {
            std::thread::sleep(MAINTAIN_EVERY);
            let maintained = caught(|| self.engine.maintain().map_err(|e| e.to_string()));
            if let Err(error) = maintained.map_err(|e| e.to_string()).flatten()
                && limit.is_due((), self.clock.now_ms())
            {
                tracing::error!(%error, "the SSD tier cannot write its journal");
            }
            self.removals.expire(self.clock.now_ns());
            self.publish_gauges();
        }
    }

    /// From now on these show how full the disk is.
    pub(crate) fn publish_in(&self, tables: &Arc<OwnerTables>) {
        let _ = self.gauges.set(tables.clone());
        self.publish_gauges();
    }

    fn publish_gauges(&self) {
        let Some(tables) = self.gauges.get() else { return };
        let stats = self.engine.stats();
        for (gauge, now) in [
            (&tables.gauges.disk_total, stats.capacity_bytes),
            (&tables.gauges.disk_used, stats.used_bytes),
            (&tables.gauges.disk_objects, stats.objects),
        ] {
            gauge.store(now, Ordering::Relaxed);
        }
    }

    /// Ends the threads; what was handed over is still saved, if this process lives so long.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.promotions.close();
        self.saves.close();
        self.removals.close();
        self.feed.close(Duration::ZERO);
    }

    /// Takes no more objects, and saves what was handed over, within five seconds.
    pub(crate) fn stop(&self) -> Shutdown {
        let mut done = lock(&self.shutdown);
        if let Some(done) = *done {
            return done;
        }
        self.closing.store(true, Ordering::Release);
        self.promotions.close();
        self.saves.close();
        self.removals.close();
        let since_ms = self.clock.now_ms();
        let fed = self.feed.close(DRAIN_LIMIT);
        let took = Duration::from_millis(self.clock.now_ms() - since_ms);
        let saved = self.writer.stop(DRAIN_LIMIT.saturating_sub(took));
        let flushed = self.engine.maintain().and_then(|()| self.engine.sync());
        if let Err(error) = &flushed {
            tracing::error!(%error, "the SSD tier could not write its journal at the end");
        }
        let clean = fed && saved && flushed.is_ok();
        if !clean {
            tracing::warn!("the SSD tier was not flushed completely: some objects are not on disk");
        }
        let how = Shutdown { clean, partial_flush: !clean };
        how.note(&self.config.dir);
        *done.insert(how)
    }
}

#[cfg(test)]
mod tests;
