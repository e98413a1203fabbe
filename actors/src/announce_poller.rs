//! AnnouncePoller: watches the device log of one segment for claims that were settled, and tells
//! the Owner to look. A thread (in a simulation a task) polls one header word, the next claim's,
//! and nothing that producers modify; the actor owns no more than the thread's life. It decides
//! nothing.

use crate::actor::{ActorAddr, Context, Message, On, Reply, Role};
use crate::environment::Platform;
use crate::owner::Owner;
use crate::owner::log::Drain;
use crate::owner::tables::OwnerTables;
use nkv_store::device_log::{BUMP_PTR_OFF, LogGeometry};
use nkv_store::heap::Heap;
use nkv_store::layout::{PUBLISH_OFF, epoch_of, low, state};
use nkv_store::memory::Memory;
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pause between two looks while there is news, and the longest, to which it grows when there is
/// none.
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(1);
/// So many objects between two looks are a flood: the longest pause then. Waking two threads for
/// each hundred costs the processors more than the hundred do, and who misses an object asks the
/// owner.
const FLOOD: u64 = 64;
/// The longest in a simulation, where every look is an event of all that happens.
const LONGEST_HERE: Duration = Duration::from_millis(8);
/// Looks without news after which claims beyond an unsettled one are looked for as well.
const POLLS_BEFORE_SCAN: u32 = 8;
/// How often the actor sees after its thread.
const CHECK_THREAD_EVERY: Duration = Duration::from_millis(500);

/// What outlives the AnnouncePoller actor.
#[derive(Clone)]
pub struct PollerDurable {
    /// The segment; one without a log is not polled.
    pub heap: Heap,
    /// Where the owner says how far it has looked.
    pub tables: Arc<OwnerTables>,
    /// Who is notified.
    pub owner: Arc<OnceLock<ActorAddr<Owner>>>,
    // What it polls on.
    pub(crate) platform: Platform,
}

/// See the file's first paragraph.
pub struct AnnouncePoller {
    durable: PollerDurable,
    // Tells the thread to stop; whoever holds the other half runs.
    stop: Arc<AtomicBool>,
}

/// A timer.
#[derive(Debug)]
pub struct PollerTick;

impl Message for PollerTick {
    type Reply = ();
}

impl Role for AnnouncePoller {
    type Durable = PollerDurable;
    const NAME: &'static str = "announce_poller";

    fn boot(durable: &PollerDurable, ctx: &mut Context<'_, Self>) -> Self {
        let mut poller = Self { durable: durable.clone(), stop: Arc::default() };
        poller.start();
        ctx.after(CHECK_THREAD_EVERY, PollerTick);
        poller
    }
}

impl AnnouncePoller {
    fn start(&mut self) {
        let heap = &self.durable.heap;
        let Some(log) = heap.geometry().device_log() else { return };
        self.stop = Arc::default();
        let mut poll = Poll {
            log,
            memory: heap.memory().clone(),
            tables: self.durable.tables.clone(),
            owner: self.durable.owner.clone(),
            stop: self.stop.clone(),
            longest: match self.durable.platform {
                Platform::Threads => LONGEST,
                Platform::Here => LONGEST_HERE,
            },
            pause: LONGEST,
            quiet: 0,
            accepted: 0,
        };
        match self.durable.platform {
            Platform::Threads => {
                let thread = spawn_named("nkv-announce", move || {
                    while poll.poll() {
                        std::thread::sleep(poll.pause);
                    }
                });
                if let Err(error) = thread {
                    tracing::error!(%error, "no thread to poll the device log: tried again");
                }
            }
            Platform::Here => drop(tokio::task::spawn_local(async move {
                while poll.poll() {
                    tokio::time::sleep(poll.pause).await;
                }
            })),
        }
    }
}

impl Drop for AnnouncePoller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl On<PollerTick> for AnnouncePoller {
    fn on(&mut self, _: PollerTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        // Nobody but this actor holds it: the thread is gone, or never was.
        if Arc::strong_count(&self.stop) == 1 {
            self.start();
        }
        ctx.after(CHECK_THREAD_EVERY, PollerTick);
        reply.send(());
    }
}

/// What the thread looks at.
struct Poll {
    log: LogGeometry,
    memory: Arc<dyn Memory>,
    tables: Arc<OwnerTables>,
    owner: Arc<OnceLock<ActorAddr<Owner>>>,
    stop: Arc<AtomicBool>,
    // Until the next look, at most and now; and looks without news.
    longest: Duration,
    pause: Duration,
    quiet: u32,
    // Objects that the owner had accepted at the last news.
    accepted: u64,
}

impl Poll {
    /// One look; false when it was the last.
    fn poll(&mut self) -> bool {
        let beyond =
            self.quiet >= POLLS_BEFORE_SCAN && self.quiet.is_multiple_of(POLLS_BEFORE_SCAN);
        if self.is_news() || beyond && self.is_claimed_beyond() {
            self.quiet = 0;
            if self.notify_owner() {
                let accepted = self.tables.gauges.log_accepted.load(Ordering::Relaxed);
                let flood = accepted.saturating_sub(self.accepted) >= FLOOD;
                self.accepted = accepted;
                self.pause = if flood { self.longest } else { SHORTEST };
            }
        } else {
            self.pause = (self.pause * 2).min(self.longest);
            self.quiet = self.quiet.saturating_add(1);
        }
        !self.stop.load(Ordering::Acquire)
    }

    fn frontier(&self) -> u64 {
        self.tables.log_signals.frontier.load(Ordering::Acquire)
    }

    /// Whether the next claim is settled.
    fn is_news(&self) -> bool {
        let next = self.frontier();
        let at = self.log.header_off(self.log.slot(next)) + PUBLISH_OFF;
        let word = self.memory.load(at).unwrap_or(0);
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
        self.memory.load(BUMP_PTR_OFF).is_ok_and(|bump| bump > known)
    }

    /// One word to the owner at a time: false if it has not come to the last one yet.
    fn notify_owner(&self) -> bool {
        let Some(owner) = self.owner.get() else { return false };
        if self.tables.log_signals.notified.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Err(error) = owner.try_send(Drain) {
            self.tables.log_signals.notified.store(false, Ordering::Release);
            tracing::debug!(%error, "the owner is busy: told again");
        }
        true
    }
}
