//! The state of an actor that other threads can observe: queue, panics, and whether it is frozen.

use crate::durations::{Durations, Histogram};
use crate::executor::Executor;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An actor that handled no message for this time is frozen. It gets a heartbeat every [`BEAT_MS`].
pub const FROZEN_MS: u64 = 1_500;
/// Interval between two heartbeats of an actor, through its own mailbox.
pub const BEAT_MS: u64 = 250;
/// If the watchdog's last check is longer ago, it did not run: the whole process was stopped.
pub(crate) const STOOD_STILL_MS: u64 = BEAT_MS + 1_000;

/// The counters behind [`ActorStatus`].
#[derive(Debug)]
pub(super) struct ActorCounters {
    name: &'static str,
    executor: Executor,
    sent: AtomicU64,
    handled: AtomicU64,
    panics: AtomicU32,
    pub(super) restarts: AtomicU32,
    busy_since_ns: AtomicU64,
    last_beat_ns: AtomicU64,
    // When the watchdog checked last, in ns; unset while there is no watchdog.
    watchdog_ns: OnceLock<Arc<AtomicU64>>,
    handling: Histogram,
    doing: Mutex<&'static str>,
    last_error: Mutex<Option<String>>,
}

/// A snapshot of a cell, as `/status` shows it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ActorStatus {
    /// Role name.
    pub name: &'static str,
    /// `running` or `frozen`.
    pub state: &'static str,
    /// Messages waiting.
    pub queue: u64,
    /// Messages handled.
    pub handled: u64,
    /// Panics caught.
    pub panics: u32,
    /// Times rebuilt.
    pub restarts: u32,
    /// Milliseconds that the current message has been in its handler; 0 when idle.
    pub busy_ms: u64,
    /// Milliseconds since the last message or heartbeat was handled.
    pub idle_ms: u64,
    /// If frozen: the message in its handler and for how long, or that another actor blocks the
    /// thread.
    pub frozen_in: Option<String>,
    /// Last panic's text.
    pub last_error: Option<String>,
    /// Time that messages spent in their handlers; not part of `/status`.
    #[serde(skip)]
    pub handling: Durations,
}

/// Observes an actor without keeping it alive.
#[derive(Debug, Clone)]
pub struct ActorWatch(pub(super) Arc<ActorCounters>);

impl ActorWatch {
    /// An actor that does not run.
    #[cfg(test)]
    pub(crate) fn of_nobody(name: &'static str, executor: Executor) -> Self {
        Self(Arc::new(ActorCounters::new(name, executor)))
    }

    /// The current state.
    pub fn status(&self) -> ActorStatus {
        self.0.snapshot()
    }

    /// Sets the watchdog, which stores here the time of its last check, in nanoseconds.
    pub(crate) fn watched_by(&self, checked_ns: Arc<AtomicU64>) {
        // A second watchdog is ignored.
        let _ = self.0.watchdog_ns.set(checked_ns);
    }

    /// The process did not run until now: counts as a heartbeat.
    pub(crate) fn forgive(&self, now_ns: u64) {
        self.0.last_beat_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Type of the message that it handled last, or that is in its handler.
    pub fn doing(&self) -> &'static str {
        self.0.doing()
    }
}

impl ActorCounters {
    pub(super) fn new(name: &'static str, executor: Executor) -> Self {
        let now = executor.clock().now_ns();
        Self {
            name,
            executor,
            sent: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            panics: AtomicU32::new(0),
            restarts: AtomicU32::new(0),
            busy_since_ns: AtomicU64::new(0),
            last_beat_ns: AtomicU64::new(now),
            watchdog_ns: OnceLock::new(),
            handling: Histogram::default(),
            doing: Mutex::new(""),
            last_error: Mutex::new(None),
        }
    }

    /// The executor that it runs on.
    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The time of its executor's clock.
    pub(super) fn now_ns(&self) -> u64 {
        self.executor.clock().now_ns()
    }

    pub(super) fn snapshot(&self) -> ActorStatus {
        let now = self.now_ns();
        let busy = self.busy_since_ns.load(Ordering::Relaxed);
        let handled = self.handled.load(Ordering::Relaxed);
        let age = |t: u64| now.saturating_sub(t) / 1_000_000;
        let busy_ms = if busy == 0 { 0 } else { age(busy) };
        let idle_ms = age(self.last_beat_ns.load(Ordering::Relaxed));
        let checked_ms = self.watchdog_ns.get().map_or(0, |at| age(at.load(Ordering::Relaxed)));
        // If the watchdog has not run either, the whole process was stopped, and no actor blocks
        // the thread.
        let frozen = idle_ms >= FROZEN_MS && checked_ms <= STOOD_STILL_MS;
        let frozen_in = || match busy {
            0 => "another actor holds its thread".to_string(),
            _ => format!("{} for {busy_ms} ms", self.doing()),
        };
        ActorStatus {
            name: self.name,
            state: if frozen { "frozen" } else { "running" },
            queue: self.sent.load(Ordering::Relaxed).saturating_sub(handled),
            handled,
            panics: self.panics.load(Ordering::Relaxed),
            restarts: self.restarts.load(Ordering::Relaxed),
            busy_ms,
            idle_ms,
            frozen_in: frozen.then(frozen_in),
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            handling: self.handling.snapshot(),
        }
    }

    fn doing(&self) -> &'static str {
        let doing = *self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        doing.rsplit("::").next().unwrap_or(doing)
    }

    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn begin(&self, message: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = message;
        self.busy_since_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        let (now, since) = (self.now_ns(), self.busy_since_ns.swap(0, Ordering::Relaxed));
        self.handling.record(now.saturating_sub(since));
        self.last_beat_ns.store(now, Ordering::Relaxed);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a heartbeat.
    pub(super) fn beat(&self) {
        self.last_beat_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    pub(super) fn panicked(&self, text: String) {
        tracing::error!(actor = self.name, panic = %text, "an actor panicked; rebuilding it");
        self.panics.fetch_add(1, Ordering::Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}
