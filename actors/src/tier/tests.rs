//! The tier of a node without a node: removals beside what is on its way to disk [I6], and panics.

use super::jobs::KeyJobs;
use super::*;
use nkv_store::AnonMemory;
use nkv_store::clock::ManualClock;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::object::ObjectDesc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

struct Bench {
    _dir: tempfile::TempDir,
    clock: ManualClock,
    tier: Arc<DiskTier>,
    demotion: Demotion,
    extent: u64,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tier.close();
    }
}

const AT: (u32, u32) = (0, 1);

fn keys_of(key: &str) -> DiskSelection {
    DiskSelection::Keys(vec![key.as_bytes().to_vec().into()])
}

impl Bench {
    fn new() -> Self {
        let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
        let config = SsdConfig::new(dir.path(), MIN_BYTES);
        let tier = DiskTier::open(&config, Arc::new(clock.clone())).unwrap();
        let config = HeapConfig { arena_bytes: 8 * 4096, ..HeapConfig::default() };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory, &config).unwrap();
        let extent = heap.layout().payloads().offset;
        let demotion = Demotion::new(tier.clone(), heap);
        Self { _dir: dir, clock, tier, demotion, extent }
    }

    fn object(&self, key: &str) -> Candidate {
        let object = ObjectDesc::at(self.extent, 4096, 4096);
        Candidate { slot: AT.0, epoch: AT.1, key: Key::new(key.as_bytes()).unwrap(), object }
    }

    /// Removes a key, and returns the number of the removal once that is on disk.
    fn removes(&self, key: &str) -> u64 {
        self.removal(keys_of(key)).0
    }

    /// The same, with what was there.
    fn removal(&self, which: DiskSelection) -> (u64, Taken) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (sender, done) = mpsc::channel();
        self.tier.remove(number, &which, Box::new(move |result| sender.send(result).unwrap()));
        (number, done.recv().unwrap().unwrap())
    }

    fn save(&self, key: &str) -> mpsc::Receiver<Vec<Result<u64>>> {
        let (sender, saved) = mpsc::channel();
        let done = Box::new(move |all| sender.send(all).unwrap());
        self.tier.save(&[key.as_bytes().to_vec().into()], done);
        saved
    }

    fn over(&self, removal: u64) {
        self.tier.removal_over(removal, false);
    }

    fn settles(&self) {
        assert!(self.tier.feed.wait_for(|_| true, Duration::from_secs(60)));
    }
}

#[test]
fn an_object_whose_name_comes_late_is_saved() {
    let b = Bench::new();
    b.demotion.await_names(vec![AT]);
    b.demotion.take_named([b.object("k")]);
    b.settles();
    assert_eq!(b.tier.find(b"k"), Some(4096));
}

/// Its key may be the one that was removed. Also once the removal is over.
#[test]
fn i6_an_object_without_a_name_is_not_saved_after_a_removal() {
    for over in [false, true] {
        let b = Bench::new();
        b.demotion.await_names(vec![AT]);
        let which = b.removes("k");
        if over {
            b.over(which);
        }
        assert!(!b.demotion.awaits(AT), "its extent is not kept for nothing");
        b.demotion.take_named([b.object("k")]);
        b.over(which);
        b.settles();
        assert_eq!(b.tier.find(b"k"), None);
    }
}

/// It was evicted after its disk was asked, and before its owner was.
#[test]
fn i6_an_object_evicted_without_a_name_during_a_removal_is_not_saved() {
    let b = Bench::new();
    let which = b.removes("k");
    b.demotion.await_names(vec![AT]);
    b.over(which);
    b.demotion.take_named([b.object("k")]);
    b.settles();
    assert_eq!(b.tier.find(b"k"), None);
    assert_eq!(b.tier.figures().kv_demote_unnamed, 1);
}

#[test]
fn i6_a_removal_marks_its_keys_until_it_is_over_or_for_a_minute() {
    let b = Bench::new();
    for how in ["over", "late"] {
        let which = b.removes("k");
        b.demotion.take([b.object("k")]);
        b.settles();
        assert_eq!(b.tier.find(b"k"), None, "nothing is saved meanwhile");
        // Each round of a removal that takes long asks again.
        b.clock.advance_ms(40_000);
        b.tier.removal_over(which, true);
        let which = b.removes("k");
        b.clock.advance_ms(40_000);
        b.tier.removals.expire(b.clock.now_ns());
        assert!(b.tier.removals.any(), "it goes on");
        match how {
            "over" => b.over(which),
            _ => {
                b.clock.advance_ms(60_000);
                b.tier.removals.expire(b.clock.now_ns());
            }
        }
        assert!(!b.tier.removals.any());
    }
    b.demotion.take([b.object("k")]);
    b.settles();
    assert_eq!(b.tier.find(b"k"), Some(4096));
}

/// A disk that did not remove may still have the objects: they are not found there meanwhile.
#[test]
fn i6_what_a_disk_could_not_remove_stays_marked_and_is_removed_at_the_next_try() {
    let b = Bench::new();
    b.demotion.take([b.object("k")]);
    b.settles();
    // A promotion that does not end.
    let (keys, nobody) = ([b"k".to_vec().into()], Box::new(|_| {}));
    b.tier.promotions.add(&keys, (None, 0), |_| None, nobody);
    let removals = &b.tier.removals;
    let which = DiskSelection::Keys(keys.to_vec());
    let (sender, done) = mpsc::channel();
    let first = sender.clone();
    removals.add(1, &which, 0, Box::new(move |result| first.send(result).unwrap()));
    assert_eq!(done.recv().unwrap().unwrap_err().kind(), crate::ErrorKind::NotReady);
    assert!(removals.any());
    assert_eq!(b.tier.find(b"k"), None);
    b.tier.promotions.over(&Key::new(b"k").unwrap(), &Ok(4096));
    removals.add(2, &which, 0, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(done.recv().unwrap().unwrap().keys, [Key::new(b"k").unwrap()]);
    assert!(b.tier.engine.find(&Key::new(b"k").unwrap()).is_none());
}

/// The master did not wait for the first one, or it has further rounds.
#[test]
fn a_removal_that_is_asked_for_again_counts_what_was_there_and_the_next_one_does_not() {
    let b = Bench::new();
    let pattern = || DiskSelection::Matching("^k".into());
    for which in [&pattern as &dyn Fn() -> DiskSelection, &|| DiskSelection::All, &|| keys_of("k")]
    {
        let found = |taken: Taken| taken.count + taken.keys.len() as u64;
        b.demotion.take([b.object("k")]);
        b.settles();
        let (first, taken) = b.removal(which());
        assert_eq!(found(taken), 1);
        b.tier.removal_over(first, true);
        let (second, taken) = b.removal(which());
        assert_eq!(found(taken), 1);
        b.over(second);
        let (third, taken) = b.removal(which());
        assert_eq!(found(taken), 0);
        b.over(third);
        b.clock.advance_ms(6_000);
        b.tier.removals.expire(b.clock.now_ns());
        assert!(!b.tier.removals.any());
    }
}

/// Another caller may have put the key again since, and removes it now.
#[test]
fn i6_a_removal_that_ends_leaves_the_marks_of_the_others() {
    let every = || DiskSelection::Matching("^k".into());
    let one = || keys_of("k");
    for which in [&one as &dyn Fn() -> DiskSelection, &every] {
        let b = Bench::new();
        let (first, _) = b.removal(which());
        let (second, there) = b.removal(which());
        assert!(there.keys.is_empty());
        b.over(first);
        b.demotion.take([b.object("k")]);
        b.settles();
        assert_eq!(b.tier.find(b"k"), None, "the second one is still removing it from memory");
        b.over(first);
        b.over(second);
        assert!(!b.tier.removals.any());
    }
}

#[test]
fn i6_between_two_rounds_of_a_removal_its_keys_stay_marked() {
    let b = Bench::new();
    let (round, _) = b.removal(DiskSelection::All);
    b.tier.removal_over(round, true);
    b.clock.advance_ms(4_000);
    b.demotion.take([b.object("k")]);
    b.settles();
    assert_eq!(b.tier.find(b"k"), None);
    b.clock.advance_ms(2_000);
    b.tier.removals.expire(b.clock.now_ns());
    assert!(!b.tier.removals.any(), "no further round came");
}

/// One that looks at all keys takes long; here it waits for a promotion that does not end.
#[test]
fn a_removal_of_known_keys_waits_for_no_search() {
    let b = Bench::new();
    b.tier.promotions.add(&[b"a".to_vec().into()], (None, 0), |_| None, Box::new(|_| {}));
    let (sender, done) = mpsc::channel();
    let search = DiskSelection::Matching("^a".into());
    b.tier.remove(9, &search, Box::new(move |result| sender.send(result).unwrap()));
    b.removes("k");
    assert!(done.try_recv().is_err(), "the search is still waiting");
}

#[test]
fn removals_that_never_end_take_bounded_memory() {
    let removals = Removals::default();
    let (sender, done) = mpsc::channel();
    let mut number = 0;
    let mut refused = |selections: &mut dyn Iterator<Item = DiskSelection>| {
        for which in selections {
            let sender = sender.clone();
            number += 1;
            removals.add(number, &which, 0, Box::new(move |r| sender.send(r).unwrap()));
        }
        let refused = done.try_iter().map(|done| done.unwrap_err().message().to_string());
        refused.collect::<Vec<_>>()
    };
    // Bytes of keys: 1,088 each with what a key takes besides.
    let long = |n: u32| -> crate::message::KeyBytes {
        let mut key = vec![7; 1024];
        key[..4].copy_from_slice(&n.to_le_bytes());
        key.into()
    };
    let batch = |b: u32| DiskSelection::Keys((0..40_000).map(|n| long(b * 40_000 + n)).collect());
    let many = refused(&mut (0..5).map(batch));
    assert_eq!(many.len(), 2, "{many:?}");
    // Patterns.
    let many = refused(&mut (0..100).map(|n| DiskSelection::Matching(format!("^{n}"))));
    assert_eq!(many.len(), 100 - 64);
    // Callers that remove the same.
    let many = refused(&mut std::iter::repeat_n(DiskSelection::Matching("^0".into()), 1500));
    assert_eq!(many.len(), 1500 - 1023);
    // Marks.
    let key = |n: u32| DiskSelection::Keys(vec![n.to_le_bytes().to_vec().into()]);
    let many = refused(&mut (0..2000).map(key));
    assert!(many.len() >= 2000 - 1024 && many[0].contains("in progress"), "{}", many.len());
}

#[test]
fn a_panic_is_an_error_of_that_piece_of_work() {
    let error: Error = caught(|| panic!("on purpose")).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Internal);
    assert_eq!(caught(|| 1).unwrap(), 1);
}

/// Promotions end with the node: whoever waits gets an error.
#[test]
fn promotions_of_a_node_that_ends_are_refused() {
    let promotions = KeyJobs::default();
    promotions.close();
    let (sender, done) = mpsc::channel();
    promotions.add(
        &[b"k".to_vec().into()],
        (None, 0),
        |_| None,
        Box::new(move |all| sender.send(all).unwrap()),
    );
    assert!(done.recv().unwrap()[0].is_err());
}

/// It may have been read before the removal, and be written after it.
#[test]
fn i6_a_removal_waits_for_a_save_that_somebody_asked_for() {
    let b = Bench::new();
    let saved = b.save("k");
    b.tier.saves.next().unwrap();
    let (sender, removed) = mpsc::channel();
    b.tier.remove(1, &keys_of("k"), Box::new(move |result| sender.send(result).unwrap()));
    let key = Key::new(b"k").unwrap();
    let first = removed.recv().unwrap();
    assert_eq!(first.unwrap_err().kind(), crate::ErrorKind::NotReady, "it is in progress");
    b.tier.saves.over(&key, &Ok(4096));
    assert_eq!(saved.recv().unwrap(), [Ok(4096)]);
    let removal = b.removes("k");
    // Nothing of it is taken in while it is marked.
    b.save("k").recv().unwrap().pop().unwrap().unwrap_err();
    b.over(removal);
}

/// Nobody works on it yet: the removal does not wait.
#[test]
fn i6_a_save_that_waits_behind_others_ends_with_the_removal() {
    let b = Bench::new();
    let saved = b.save("k");
    b.removes("k");
    let error = saved.recv().unwrap().pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NotReady);
}
