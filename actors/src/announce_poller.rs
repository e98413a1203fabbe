//! AnnouncePoller: polls the device log of one segment for settled claims, and notifies the Owner.
//! A thread (in a simulation a task) usually reads one word, the publish word of the next claim.
//! The actor only starts and stops the thread. It decides nothing.

use crate::actor::{ActorAddr, Context, Message, On, Reply, Role};
use crate::environment::Platform;
use crate::owner::Owner;
use crate::owner::log::Drain;
use crate::owner::tables::OwnerTables;
use nkv_store::device_log::{Copier, LogLayout, Step};
use nkv_store::heap::Heap;
use nkv_store::layout::{AtomicDomain, PUBLISH_OFF, epoch_of, low, state};
use nkv_store::threads::{short_sleeps, spawn_named};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pause between two polls while claims settle, and the longest one, to which it grows when none
/// do.
const SHORTEST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(1);
/// Pause between two polls while callers wait for an object that the log may get.
const AWAITED: Duration = Duration::from_micros(20);
/// With at least this many objects accepted between two notifications, the longest pause is used.
/// Waking two threads for every hundred objects costs more processor time than the objects do, and
/// a reader that misses one asks the owner.
const FLOOD: u64 = 64;
/// The longest pause in a simulation, where every poll is an event.
const LONGEST_HERE: Duration = Duration::from_millis(8);
/// Polls without news after which claims beyond an unsettled one are checked as well.
const POLLS_BEFORE_SCAN: u32 = 8;
/// Bytes that the copying thread moves between two checks of whether it must stop.
const COPY_PIECE: usize = 256 << 10;
/// How long the copying thread waits for work; in a simulation, the pause between two pieces.
const COPY_WAIT: Duration = Duration::from_millis(20);
const COPY_PAUSE_HERE: Duration = Duration::from_millis(1);
/// How often the actor checks that its threads run.
const CHECK_THREAD_EVERY: Duration = Duration::from_millis(500);

/// What outlives the AnnouncePoller actor.
#[derive(Clone)]
pub struct PollerDurable {
    /// The segment; one without a log is not polled.
    pub heap: Heap,
    /// Where the owner publishes its frontier.
    pub tables: Arc<OwnerTables>,
    /// The owner to notify.
    pub owner: Arc<OnceLock<ActorAddr<Owner>>>,
    // Whether it polls on a thread or as a task.
    pub(crate) platform: Platform,
}

/// See the file's first paragraph.
pub struct AnnouncePoller {
    durable: PollerDurable,
    // Set to stop the thread that polls, which holds the other reference while it runs.
    stop: Arc<AtomicBool>,
    // The same of the thread that copies survivors.
    stop_copies: Arc<AtomicBool>,
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
        let mut poller =
            Self { durable: durable.clone(), stop: Arc::default(), stop_copies: Arc::default() };
        poller.start();
        poller.start_copies();
        ctx.after(CHECK_THREAD_EVERY, PollerTick);
        poller
    }
}

impl AnnouncePoller {
    fn start(&mut self) {
        let heap = &self.durable.heap;
        let Some(log) = heap.layout().device_log() else { return };
        self.stop = Arc::default();
        let mut poll = Poll {
            log,
            durable: self.durable.clone(),
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
                    short_sleeps();
                    while poll.poll() {
                        std::thread::sleep(poll.pause());
                    }
                });
                if let Err(error) = thread {
                    tracing::error!(%error, "no thread to poll the device log: trying again");
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
        self.stop_copies.store(true, Ordering::Release);
    }
}

impl On<PollerTick> for AnnouncePoller {
    fn on(&mut self, _: PollerTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        // Only this actor holds the flag: the thread has ended, or never started.
        if Arc::strong_count(&self.stop) == 1 {
            self.start();
        }
        if Arc::strong_count(&self.stop_copies) == 1 {
            self.start_copies();
        }
        ctx.after(CHECK_THREAD_EVERY, PollerTick);
        reply.send(());
    }
}

impl AnnouncePoller {
    /// Starts the thread that copies survivors to the log's head.
    fn start_copies(&mut self) {
        let heap = &self.durable.heap;
        let Some(log) = heap.layout().device_log() else { return };
        if heap.layout().atomic_domain != AtomicDomain::Cpu {
            return;
        }
        self.stop_copies = Arc::default();
        let (stop, moves) = (self.stop_copies.clone(), self.durable.tables.moves.clone());
        // The thread of an earlier actor may not have ended yet: then at the next check.
        let copier = Copier::new(heap.memory().clone(), log, moves.clone(), COPY_PIECE);
        let Some(mut copier) = copier else { return };
        let mut step = move || match copier.step() {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "an object is not copied: it goes");
                Step::Idle
            }
        };
        match self.durable.platform {
            Platform::Threads => {
                let thread = spawn_named("nkv-log-copy", move || {
                    while !stop.load(Ordering::Acquire) {
                        match step() {
                            Step::Moved => {}
                            Step::Waiting => std::thread::sleep(SHORTEST),
                            Step::Idle => moves.wait(COPY_WAIT),
                        }
                    }
                });
                if let Err(error) = thread {
                    tracing::error!(%error, "no thread to copy within the log: trying again");
                }
            }
            Platform::Here => drop(tokio::task::spawn_local(async move {
                while !stop.load(Ordering::Acquire) {
                    let idle = step() == Step::Idle;
                    tokio::time::sleep(if idle { COPY_WAIT } else { COPY_PAUSE_HERE }).await;
                }
            })),
        }
    }
}

/// The state of the polling thread.
struct Poll {
    log: LogLayout,
    durable: PollerDurable,
    stop: Arc<AtomicBool>,
    // The longest pause, the current pause, and the number of polls without news.
    longest: Duration,
    pause: Duration,
    quiet: u32,
    // Objects that the owner had accepted at the last notification.
    accepted: u64,
}

impl Poll {
    /// How long to wait for the next poll.
    fn pause(&self) -> Duration {
        let fast = &self.durable.tables.log_signals.fast_polls;
        let left = |n: u64| n.checked_sub(1);
        let awaited = fast.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok();
        if awaited { self.pause.min(AWAITED) } else { self.pause }
    }

    /// One poll; false if it was the last.
    fn poll(&mut self) -> bool {
        let beyond =
            self.quiet >= POLLS_BEFORE_SCAN && self.quiet.is_multiple_of(POLLS_BEFORE_SCAN);
        if self.is_news() || beyond && self.is_claimed_beyond() {
            self.quiet = 0;
            if self.notify_owner() {
                let accepted = self.durable.tables.gauges.log_accepted.load(Ordering::Relaxed);
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

    /// Whether the next claim is settled.
    fn is_news(&self) -> bool {
        let next = self.durable.tables.log_signals.frontier.load(Ordering::Acquire);
        let at = self.log.header_off(self.log.slot(next)) + PUBLISH_OFF;
        let word = self.durable.heap.memory().load(at).unwrap_or(0);
        let settled = matches!(low(word), state::READY | state::DEAD);
        settled && self.log.epoch(next) == Some(epoch_of(word))
    }

    /// Whether the log has claims that the owner has not counted as settled.
    fn is_claimed_beyond(&self) -> bool {
        let g = &self.durable.tables.gauges;
        let load = |gauge: &std::sync::atomic::AtomicU64| gauge.load(Ordering::Relaxed);
        let known = load(&g.log_accepted_bytes)
            + load(&g.log_skipped_bytes)
            + load(&g.log_abandoned_bytes)
            + load(&g.log_voided_bytes);
        let claimed = self.durable.heap.memory().load(self.log.claim_word());
        claimed.is_ok_and(|bump| bump > known)
    }

    /// Notifies the owner; false if it has not handled the last notification yet.
    fn notify_owner(&self) -> bool {
        let Some(owner) = self.durable.owner.get() else { return false };
        let notified = &self.durable.tables.log_signals.notified;
        if notified.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Err(error) = owner.try_send(Drain) {
            notified.store(false, Ordering::Release);
            tracing::debug!(%error, "the owner is busy: it is notified again later");
        }
        true
    }
}
