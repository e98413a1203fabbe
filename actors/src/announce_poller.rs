//! AnnouncePoller: watches the device log of one segment for claims that were settled, and tells the
//! Owner to look. The thread polls one header word, the next claim's, and nothing that producers
//! modify; the actor owns no more than the thread's life. It decides nothing.

use crate::cell::{CellAddr, Message, On, Reply, Role, Turn};
use crate::owner::Owner;
use crate::owner::log::Drain;
use crate::owner::tables::OwnerTables;
use nkv_store::device_log::{BUMP_PTR_OFF, LogGeometry};
use nkv_store::heap::Heap;
use nkv_store::layout::{PUBLISH_OFF, epoch_of, low, state};
use nkv_store::memory::HostMemory;
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two looks while there is news, and the longest, to which it grows when there is none.
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(1);
/// Looks without news after which claims beyond an unsettled one are looked for as well.
const LOOKS_BEYOND: u32 = 8;
/// How often the actor sees after its thread.
const CARE: Duration = Duration::from_millis(500);

/// What outlives the AnnouncePoller actor.
#[derive(Clone)]
pub struct PollerTruth {
    /// The segment; one without a log is not polled.
    pub heap: Heap,
    /// Where the owner says how far it has looked.
    pub tables: Arc<OwnerTables>,
    /// Who is told.
    pub owner: Arc<OnceLock<CellAddr<Owner>>>,
}

/// See the file's first paragraph.
pub struct AnnouncePoller {
    truth: PollerTruth,
    thread: Option<(JoinHandle<()>, Arc<AtomicBool>)>,
}

/// A timer.
#[derive(Debug)]
pub struct Care;

impl Message for Care {
    type Reply = ();
}

impl Role for AnnouncePoller {
    type Truth = PollerTruth;
    const NAME: &'static str = "announce_poller";

    fn boot(truth: &PollerTruth, turn: &mut Turn<'_, Self>) -> Self {
        let mut poller = Self { truth: truth.clone(), thread: None };
        poller.start();
        turn.after(CARE, Care);
        poller
    }
}

impl AnnouncePoller {
    fn start(&mut self) {
        let heap = &self.truth.heap;
        let host = HostMemory::of(heap.memory().clone());
        let Some((log, memory)) = heap.geometry().device_log().zip(host) else { return };
        let stop = Arc::new(AtomicBool::new(false));
        let poll = Poll {
            log,
            memory,
            tables: self.truth.tables.clone(),
            owner: self.truth.owner.clone(),
            stop: stop.clone(),
        };
        match spawn_named("nkv-announce", move || poll.run()) {
            Ok(thread) => self.thread = Some((thread, stop)),
            Err(error) => tracing::error!(%error, "no thread to poll the device log: tried again"),
        }
    }
}

impl Drop for AnnouncePoller {
    fn drop(&mut self) {
        if let Some((_, stop)) = self.thread.take() {
            stop.store(true, Ordering::Release);
        }
    }
}

impl On<Care> for AnnouncePoller {
    fn on(&mut self, _: Care, reply: Reply<()>, turn: &mut Turn<'_, Self>) {
        if self.thread.as_ref().is_none_or(|(thread, _)| thread.is_finished()) {
            self.start();
        }
        turn.after(CARE, Care);
        reply.send(());
    }
}

/// What the thread looks at.
struct Poll {
    log: LogGeometry,
    memory: HostMemory,
    tables: Arc<OwnerTables>,
    owner: Arc<OnceLock<CellAddr<Owner>>>,
    stop: Arc<AtomicBool>,
}

impl Poll {
    fn run(&self) {
        let (mut pause, mut quiet) = (LONGEST, 0);
        while !self.stop.load(Ordering::Acquire) {
            let beyond = quiet >= LOOKS_BEYOND && quiet.is_multiple_of(LOOKS_BEYOND);
            if self.is_news() || beyond && self.is_claimed_beyond() {
                self.tell();
                (pause, quiet) = (SHORTEST, 0);
            } else {
                pause = (pause * 2).min(LONGEST);
                quiet += 1;
            }
            std::thread::sleep(pause);
        }
    }

    fn frontier(&self) -> u64 {
        self.tables.log_signals.frontier.load(Ordering::Acquire)
    }

    /// Whether the next claim is settled.
    fn is_news(&self) -> bool {
        let next = self.frontier();
        let at = self.log.header_off(self.log.slot(next)) + PUBLISH_OFF;
        let word = self.memory.words().load(at).unwrap_or(0);
        let settled = matches!(low(word), state::READY | state::DEAD);
        settled && self.log.epoch(next) == Some(epoch_of(word))
    }

    /// Whether anything is claimed at or beyond what the owner knows, or left open before it.
    fn is_claimed_beyond(&self) -> bool {
        let g = &self.tables.gauges;
        let load = |gauge: &std::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        let known = load(&g.log_accepted_bytes)
            + load(&g.log_skipped_bytes)
            + load(&g.log_abandoned_bytes)
            + load(&g.log_voided_bytes);
        self.memory.words().load(BUMP_PTR_OFF).is_ok_and(|bump| bump > known)
    }

    /// One word to the owner at a time.
    fn tell(&self) {
        if let Some(owner) = self.owner.get()
            && !self.tables.log_signals.told.swap(true, Ordering::AcqRel)
            && let Err(error) = owner.tell(Drain)
        {
            self.tables.log_signals.told.store(false, Ordering::Release);
            tracing::debug!(%error, "the owner is busy: told again");
        }
    }
}
