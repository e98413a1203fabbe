//! What happened in a run, as one number: every delivered byte, every result, every fault, each
//! with its virtual time. Two runs of one seed must have the same number.

use std::fmt::Display;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use tokio::time::Instant;

#[derive(Debug)]
struct Inner {
    began: Instant,
    hash: u64,
    events: u64,
    verbose: bool,
    // Woken after so many events.
    trip: Option<(u64, Waker)>,
}

/// The trace of one run. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    /// `verbose`: every event is also printed.
    pub fn new(verbose: bool) -> Self {
        let (began, hash) = (Instant::now(), 0xcbf2_9ce4_8422_2325);
        Self(Arc::new(Mutex::new(Inner { began, hash, events: 0, verbose, trip: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event: its kind, and the facts that distinguish it.
    pub fn event(&self, what: &str, facts: impl Hash, verbose: impl FnOnce() -> String) {
        let mut inner = self.lock();
        let at_us = inner.began.elapsed().as_micros() as u64;
        let mut folded = Fold(inner.hash);
        (at_us, what).hash(&mut folded);
        facts.hash(&mut folded);
        inner.hash = folded.finish();
        inner.events += 1;
        if inner.trip.as_ref().is_some_and(|(at, _)| inner.events >= *at)
            && let Some((_, waker)) = inner.trip.take()
        {
            waker.wake();
        }
        if inner.verbose {
            println!("{:>10}.{:03} {what} {}", at_us / 1000, at_us % 1000, verbose());
        }
    }

    /// An event that its text describes.
    pub fn note(&self, what: &str, text: impl Display) {
        let text = text.to_string();
        self.event(what, text.as_str(), || text.clone());
    }

    /// Resolves after `n` more events, in the middle of whatever happens then. Only one task may
    /// wait.
    pub async fn after_events(&self, n: u64) {
        let due = self.lock().events + n;
        poll_fn(|cx| {
            let mut inner = self.lock();
            if inner.events >= due {
                return Poll::Ready(());
            }
            inner.trip = Some((due, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// The number so far, and of how many events.
    pub fn sum(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.hash, inner.events)
    }

    /// Virtual milliseconds since the run began.
    pub fn now_ms(&self) -> u64 {
        self.lock().began.elapsed().as_millis() as u64
    }
}

/// A hasher whose result depends only on its input: std's has a random seed in every process.
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 29;
        }
    }
}
