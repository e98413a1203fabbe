//! The writer: its queue, what happens when it is full, retries, and its end.

use crate::scene::key;
use nkv_ssd::Durability::{self, BestEffort, Persistent};
use nkv_ssd::writer::{Enqueued, Held, Writer, WriterOptions};
use nkv_ssd::{Engine, Found, LoadError, Object, Payload, Saved, SsdError, Stats, Validated};
use nkv_store::clock::BootClock;
use nkv_store::{AnonMemory, Key};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Counts what it is given, waits while it is stopped, and fails as often as a test asks.
#[derive(Debug, Default)]
struct Slow {
    stopped: Mutex<bool>,
    goes_on: Condvar,
    fails: AtomicU64,
    panics: AtomicU64,
    saved: Mutex<Vec<Key>>,
}

impl Slow {
    fn stop(&self, stopped: bool) {
        *self.stopped.lock().unwrap() = stopped;
        self.goes_on.notify_all();
    }
}

impl Engine for Slow {
    fn save(&self, objects: &[Object<'_>]) -> Vec<Saved> {
        let stopped = self.stopped.lock().unwrap();
        drop(self.goes_on.wait_while(stopped, |stopped| *stopped).unwrap());
        let fails = |left: u64| left.checked_sub(1);
        assert!(self.panics.fetch_update(Relaxed, Relaxed, fails).is_err(), "told to panic");
        let one = |object: &Object<'_>| {
            if self.fails.fetch_update(Relaxed, Relaxed, fails).is_ok() {
                return Saved::Error(std::io::Error::other("told to fail").into());
            }
            self.saved.lock().unwrap().push(object.key.clone());
            Saved::Saved
        };
        objects.iter().map(one).collect()
    }
    fn find(&self, _: &Key) -> Option<Found> {
        None
    }
    fn load(&self, _: &Key, _: Payload<'_>) -> Result<Found, LoadError> {
        Err(LoadError::NotFound)
    }
    fn verify(&self, _: &Key, _: Payload<'_>) -> Result<Found, LoadError> {
        Err(LoadError::NotFound)
    }
    fn remove(&self, _: &[&Key]) -> Result<u64, SsdError> {
        Ok(0)
    }
    fn remove_all(&self) -> Result<u64, SsdError> {
        Ok(0)
    }
    fn maintain(&self) -> Result<(), SsdError> {
        Ok(())
    }
    fn validate(&self) -> Result<Validated, SsdError> {
        Ok(Validated::default())
    }
    fn sync(&self) -> Result<(), SsdError> {
        Ok(())
    }
    fn keys(&self, _: u64, _: usize) -> Result<(Vec<Key>, Option<u64>), SsdError> {
        Ok((Vec::new(), None))
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

struct Block(Key, Arc<AnonMemory>, u64);

impl Held for Block {
    fn key(&self) -> &Key {
        &self.0
    }
    fn object(&self) -> Option<Object<'_>> {
        let payload = Payload { memory: &*self.1, offset: 0, len: self.2 };
        Some(Object { key: &self.0, layout: 0, payload })
    }
}

struct Bench {
    engine: Arc<Slow>,
    writer: Writer,
    memory: Arc<AnonMemory>,
}

impl Bench {
    fn new(queue_objects: usize, durability: Durability) -> Self {
        let engine = Arc::new(Slow::default());
        let options =
            WriterOptions { queue_objects, threads: 1, durability, ..WriterOptions::default() };
        let writer = Writer::start(engine.clone(), options, Arc::new(BootClock)).unwrap();
        Self { engine, writer, memory: Arc::new(AnonMemory::new(4096).unwrap()) }
    }

    fn enqueue(&self, name: &str) -> Enqueued {
        self.enqueue_of(name, 4096)
    }

    fn enqueue_of(&self, name: &str, bytes: u64) -> Enqueued {
        self.writer.enqueue(Box::new(Block(key(name), self.memory.clone(), bytes)))
    }

    /// The only thread has taken this one, and waits in the engine.
    fn holds_one(&self) {
        self.engine.stop(true);
        assert!(matches!(self.enqueue("first"), Enqueued::Queued));
        while self.writer.waiting() > 0 {
            std::thread::yield_now();
        }
    }

    fn saved(&self) -> usize {
        self.engine.saved.lock().unwrap().len()
    }
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn all_that_was_handed_over_is_saved_before_a_stop_returns() {
    let b = Bench::new(512, BestEffort);
    for number in 0..300 {
        assert!(matches!(b.enqueue(&format!("key/{number}")), Enqueued::Queued));
    }
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 300);
    assert!(matches!(b.enqueue("late"), Enqueued::Closed));
    assert_eq!(b.writer.stats().save_success.load(Relaxed), 300);
}

#[test]
fn a_key_that_waits_or_is_being_saved_is_not_queued_again() {
    let b = Bench::new(512, BestEffort);
    b.holds_one();
    assert!(matches!(b.enqueue("first"), Enqueued::Dedup));
    assert!(matches!(b.enqueue("second"), Enqueued::Queued));
    assert!(matches!(b.enqueue("second"), Enqueued::Dedup));
    b.engine.stop(false);
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 2);
    assert_eq!(b.writer.stats().enqueue_dedup_skip.load(Relaxed), 2);
}

#[test]
fn a_caller_that_finds_the_queue_full_saves_its_object_itself() {
    let b = Bench::new(2, BestEffort);
    b.holds_one();
    assert!(matches!(b.enqueue("a"), Enqueued::Queued));
    assert!(matches!(b.enqueue("b"), Enqueued::Queued));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.enqueue("c"));
        while b.writer.stats().queue_full_sync_fallback.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(b.writer.waiting(), 2, "memory does not grow");
        b.engine.stop(false);
        assert!(matches!(waits.join().unwrap(), Enqueued::Waited(Saved::Saved)));
    });
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 4);
}

#[test]
fn a_stop_that_takes_too_long_is_told_and_what_is_left_goes_on() {
    let b = Bench::new(512, BestEffort);
    b.holds_one();
    assert!(matches!(b.enqueue("second"), Enqueued::Queued));
    assert!(!b.writer.stop(Duration::from_millis(20)));
    b.engine.stop(false);
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 2);
}

#[test]
fn a_save_that_fails_is_tried_again_under_persistent_alone_and_three_times_at_most() {
    for (durability, fails, saved, retries, given_up) in [
        (Persistent, 2, 1, 2, 0),
        (Persistent, 9, 0, 3, 1),
        (BestEffort, 1, 0, 0, 0),
        (BestEffort, 0, 1, 0, 0),
    ] {
        let b = Bench::new(512, durability);
        b.engine.fails.store(fails, Relaxed);
        assert!(matches!(b.enqueue("k"), Enqueued::Queued));
        assert!(b.writer.stop(LONG));
        let stats = b.writer.stats();
        assert_eq!(b.saved(), saved);
        assert_eq!(stats.save_success.load(Relaxed), saved as u64);
        assert_eq!(stats.save_fail.load(Relaxed), 1 - saved as u64);
        assert_eq!(stats.retry_attempts.load(Relaxed), retries);
        assert_eq!(stats.retry_final_fail.load(Relaxed), given_up);
    }
}

#[test]
fn i6_what_is_forgotten_is_not_saved_and_what_is_being_saved_is_waited_for() {
    let b = Bench::new(512, BestEffort);
    b.holds_one();
    for name in ["out/1", "in", "out/2"] {
        assert!(matches!(b.enqueue(name), Enqueued::Queued));
    }
    let out = |key: &Key| key.as_bytes().starts_with(b"out/");
    assert!(b.writer.forget(out, LONG));
    let first = |key: &Key| key.as_bytes() == b"first";
    assert!(!b.writer.forget(first, Duration::from_millis(20)), "it is being saved");
    b.engine.stop(false);
    assert!(b.writer.forget(first, LONG));
    assert!(b.writer.stop(LONG));
    let saved = b.engine.saved.lock().unwrap().clone();
    assert_eq!(saved, [key("first"), key("in")]);
}

/// The engine sees both, and can tell that they collide.
#[test]
fn another_object_of_a_key_that_is_being_saved_is_saved_after_it() {
    let b = Bench::new(512, BestEffort);
    b.holds_one();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.enqueue_of("first", 1000));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        b.engine.stop(false);
        assert!(matches!(waits.join().unwrap(), Enqueued::Queued));
    });
    assert!(b.writer.stop(LONG));
    assert_eq!(b.engine.saved.lock().unwrap()[..], [key("first"), key("first")]);
}

#[test]
fn a_panic_while_saving_fails_the_objects_and_the_next_ones_are_saved() {
    let b = Bench::new(512, BestEffort);
    b.engine.panics.store(1, Relaxed);
    assert!(matches!(b.enqueue("k"), Enqueued::Queued));
    while b.writer.stats().save_fail.load(Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(b.writer.forget(|_| true, LONG));
    assert!(matches!(b.enqueue("k"), Enqueued::Queued));
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 1);
}

#[test]
fn what_waits_for_a_disk_that_hangs_is_dropped_after_a_time() {
    let b = Bench::new(512, BestEffort);
    b.holds_one();
    assert!(matches!(b.enqueue("second"), Enqueued::Queued));
    assert_eq!(b.writer.drop_late(LONG), 0);
    assert_eq!(b.writer.drop_late(Duration::ZERO), 1);
    assert_eq!(b.writer.waiting(), 0);
    b.engine.stop(false);
    assert!(b.writer.stop(LONG));
    assert_eq!(b.saved(), 1);
}
