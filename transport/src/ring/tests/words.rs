//! The words of a ring under a model checker: lanes and sleep run the production code, over words
//! for which every interleaving and every permitted reordering is tried within a bound on
//! preemptions. A sleeper that is never woken is a deadlock, which the checker reports.

use crate::ring::lane::{LaneReader, LaneWriter};
use crate::ring::layout::EndAt;
use crate::ring::sleep::{Sleep, WakeBy, Wanted};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU64, fence};
use nkv_store::memory::Memory;
use nkv_store::words::{self, Words};
use nkv_store::{Export, StoreError};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a lane: one word, so that a second one must wait for room.
const LANE_BYTES: u64 = 8;

/// The words of one ring, all of them under the checker.
#[derive(Debug)]
struct Modelled(BTreeMap<u64, AtomicU64>);

impl Modelled {
    fn new() -> Self {
        let ends = [EndAt::node(LANE_BYTES), EndAt::client(LANE_BYTES)];
        let words = ends.iter().flat_map(|at| {
            let lane = at.outgoing;
            [at.sleep.own, lane.head, lane.tail, lane.bytes]
        });
        Self(words.map(|at| (at, AtomicU64::new(0))).collect())
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        self.0.get(&offset).expect("a word of the ring")
    }
}

impl Words for Modelled {
    fn check(&self, _: &'static str, _: u64, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn load_word(&self, offset: u64, order: Ordering) -> Result<u64, StoreError> {
        Ok(self.word(offset).load(order))
    }

    fn store_word(&self, offset: u64, value: u64, order: Ordering) -> Result<(), StoreError> {
        self.word(offset).store(value, order);
        Ok(())
    }

    fn swap_word(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, StoreError> {
        let found = self.word(offset).compare_exchange(expect, new, done, failed);
        Ok(found.unwrap_or_else(|found| found))
    }

    fn add_word(&self, offset: u64, add: u64, order: Ordering) -> Result<u64, StoreError> {
        Ok(self.word(offset).fetch_add(add, order))
    }

    fn copy_out(&self, _: u64, _: &mut [u8]) -> Result<(), StoreError> {
        unreachable!("whole words only")
    }

    fn copy_in(&self, _: u64, _: &[u8]) -> Result<(), StoreError> {
        unreachable!("whole words only")
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Memory for Modelled {
    fn len(&self) -> u64 {
        1 << 20
    }
    fn export(&self) -> Export {
        Export::Private
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        words::read(self, offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        words::write(self, offset, src)
    }
    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        words::load(self, offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        words::store(self, offset, value)
    }
    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        words::compare_swap(self, offset, expect, new)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        words::fetch_add(self, offset, add)
    }
    fn flush(&self) {
        words::flush(self);
    }
}

/// One end of a stream, except for how it sleeps: a `Notify` replaces futex and socket, both of
/// which remember a wake that comes just before the sleep.
struct Party {
    memory: Arc<Modelled>,
    incoming: LaneReader,
    outgoing: LaneWriter,
    sleep: Sleep,
    mine: Arc<Notify>,
    theirs: Arc<Notify>,
}

impl Party {
    fn both() -> (Party, Party) {
        let memory = Arc::new(Modelled::new());
        let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let party = |at: EndAt, mine: usize| Party {
            memory: memory.clone(),
            incoming: LaneReader::new(at.incoming),
            outgoing: LaneWriter::new(at.outgoing),
            sleep: at.sleep,
            mine: bells[mine].clone(),
            theirs: bells[1 - mine].clone(),
        };
        (party(EndAt::client(LANE_BYTES), 0), party(EndAt::node(LANE_BYTES), 1))
    }

    fn call(&self, what: Wanted) {
        if self.sleep.call(&*self.memory, what).unwrap().is_some() {
            self.theirs.notify();
        }
    }

    fn come(&mut self, want: Wanted) -> bool {
        let there = match want {
            Wanted::Bytes => self.incoming.ready(&*self.memory),
            Wanted::Space => self.outgoing.room(&*self.memory),
        };
        there.unwrap() > 0
    }

    /// Returns once it is there; the end may sleep.
    fn wait(&mut self, want: Wanted) {
        loop {
            self.sleep.announce(&*self.memory, want, WakeBy::Doorbell).unwrap();
            if self.come(want) {
                return;
            }
            self.mine.wait();
        }
    }

    fn write(&mut self, word: u64) {
        while self.outgoing.write(&*self.memory, &word.to_ne_bytes()).unwrap() == 0 {
            self.wait(Wanted::Space);
        }
        self.sleep.up(&*self.memory).unwrap();
        self.call(Wanted::Bytes);
    }

    fn read(&mut self) -> u64 {
        let mut word = [0; 8];
        while self.incoming.read(&*self.memory, &mut word).unwrap() == 0 {
            self.wait(Wanted::Bytes);
        }
        self.sleep.up(&*self.memory).unwrap();
        if self.incoming.release(&*self.memory).unwrap() {
            self.call(Wanted::Space);
        }
        u64::from_ne_bytes(word)
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(preemptions);
    checker.check(model);
}

#[test]
fn model_ring_a_request_and_its_answer_wake_whoever_sleeps_for_them() {
    check(3, || {
        let (mut client, mut node) = Party::both();
        let served = loom::thread::spawn(move || {
            let request = node.read();
            node.write(request + 1);
        });
        client.write(41);
        assert_eq!(client.read(), 42, "half an answer, or another's");
        served.join().unwrap();
    });
}

#[test]
fn model_ring_a_frame_larger_than_its_lane_goes_through_in_parts() {
    check(3, || {
        let (mut client, mut node) = Party::both();
        let read = loom::thread::spawn(move || [node.read(), node.read()]);
        client.write(1);
        client.write(2);
        assert_eq!(read.join().unwrap(), [1, 2]);
    });
}
