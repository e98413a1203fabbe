//! Several pairs, and several devices if there are some.

use super::*;
use crate::verbs::{NoObserver, Post};
use nkv_store::threads::spawn_named;
use std::process::Command;

const READY: u64 = 5;
const WRITING: u64 = 4;
const PAGE: usize = 512 << 10;

fn pages(seed: usize) -> Vec<u8> {
    (0..6 * PAGE).map(|i| (i / 64 + i + seed) as u8).collect()
}

/// A put of six large pages, as a plan's producer posts it.
fn put(verbs: &dyn Verbs, value: &[u8]) -> Result<u64, TransportError> {
    let fields = [1; 40];
    let mut ops = vec![
        Op::Write { offset: 4096, src: &fields },
        Op::Store { offset: 4096 + 40, value: WRITING },
    ];
    let at = |i: usize| SEGMENT / 2 + (i * PAGE) as u64;
    ops.extend(value.chunks(PAGE).enumerate().map(|(i, src)| Op::Write { offset: at(i), src }));
    ops.push(Op::CompareSwap { offset: 4096 + 40, expect: WRITING, new: READY, old: 0 });
    verbs.post(TOKEN, &mut ops)?;
    match ops.last() {
        Some(Op::CompareSwap { old, .. }) => Ok(*old),
        _ => unreachable!("the last one is READY"),
    }
}

#[test]
fn i4_pages_over_several_pairs_are_in_memory_before_ready_is() {
    let path = counted_path(3, false, |_| {}).unwrap();
    let (memory, verbs) = (path.memory.clone(), path.verbs);
    for round in 0..6 {
        memory.store(4096 + 40, 0).unwrap();
        let (value, watched) = (pages(round), memory.clone());
        let watching = spawn_named("watcher", move || {
            let until_ms = BootClock.now_ms() + nkv_pace::HANGS_MS;
            while watched.load(4096 + 40).unwrap() != READY {
                assert!(BootClock.now_ms() < until_ms, "READY never came");
                std::hint::spin_loop();
            }
            let mut seen = vec![0; 6 * PAGE];
            watched.read(SEGMENT / 2, &mut seen).unwrap();
            seen
        });
        let before = count(&verbs.counters().spread);
        assert_eq!(put(&verbs, &value).unwrap(), WRITING);
        assert!(watching.unwrap().join().unwrap() == value, "READY came before its pages");
        assert!(count(&verbs.counters().spread) >= before + 4, "twelve shares over three pairs");
        let mut back = vec![0; 6 * PAGE];
        verbs.read(SEGMENT / 2, &mut back).unwrap();
        assert!(back == value, "read by several pairs, too");
    }
}

#[test]
fn i4_what_went_by_another_pair_than_the_first_is_flushed_by_its_own() {
    let path = counted_path(2, false, |_| {}).unwrap();
    let c = path.verbs.counters();
    let counts = || (count(&c.chains), count(&c.requests), count(&c.spread));
    let before = counts();
    put(&path.verbs, &pages(1)).unwrap();
    let after = counts();
    let (chains, requests, spread) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    // Header and the flush behind it; twelve shares; READY. No more requests than flushes.
    assert_eq!((chains, requests - spread), (1 + 12 + 1, 2 + 12 + 1));
    assert!((4..=8).contains(&spread), "{spread} of twelve by the other");
    let before = counts();
    let mut back = vec![0; 6 * PAGE];
    path.verbs.read(SEGMENT / 2, &mut back).unwrap();
    assert_eq!(counts().1 - before.1, 1 + 12, "one before them, and none behind");
    // WRITING may have been posted by itself: whether it is in memory is not recorded.
    let before = counts();
    path.verbs.write(TOKEN, SEGMENT / 2, &pages(1)).unwrap();
    let after = counts();
    assert_eq!(after.1 - before.1 - (after.2 - before.2), 1 + 12);
}

#[test]
fn i4_a_share_whose_pair_fails_fails_the_put_and_ready_is_not_sent() {
    let path = counted_path(3, false, |_| {}).unwrap();
    put(&path.verbs, &pages(2)).unwrap();
    path.memory.store(4096 + 40, 0).unwrap();
    path.served[2].sever();
    let watch = nkv_pace::Stopwatch::start();
    let e = put(&path.verbs, &pages(3)).unwrap_err();
    assert!(matches!(e, TransportError::Disconnected(_)), "{e}");
    assert!(watch.took().within(2_000), "it waited too long: {}", watch.took());
    assert_eq!(path.memory.load(4096 + 40).unwrap(), WRITING);
    assert!(!path.verbs.is_alive(), "no pair of it is used any more");
}

#[test]
fn i4_batches_of_one_call_go_by_every_pair_and_counts_by_the_first_alone() {
    let path = counted_path(3, false, |_| {}).unwrap();
    let verbs = &path.verbs;
    let values: Vec<Vec<u8>> = (0..60u8).map(|n| vec![n; 20_000]).collect();
    let at = |n: usize| SEGMENT / 2 + n as u64 * 20_480;
    let posted = |count_too: bool| {
        let before = count(&verbs.counters().spread);
        let mut ops: Vec<Vec<Op<'_>>> = values
            .iter()
            .enumerate()
            .map(|(n, src)| {
                let mut ops = vec![Op::Write { offset: at(n), src }];
                if count_too {
                    ops.push(Op::FetchAdd { offset: 64, add: 1, old: 0 });
                }
                ops
            })
            .collect();
        let mut posts: Vec<_> = ops.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
        assert!(verbs.post_many(&mut posts, &mut NoObserver).iter().all(Result::is_ok));
        for (n, value) in values.iter().enumerate() {
            let mut back = vec![0; value.len()];
            verbs.read(at(n), &mut back).unwrap();
            assert!(back == *value, "batch {n}");
        }
        count(&verbs.counters().spread) - before
    };
    assert!(posted(false) >= 20, "of sixty over three pairs");
    assert_eq!(posted(true), 0, "[I1]");
    assert_eq!(path.memory.load(64).unwrap(), 60);
}

/// The owner's pair to which a client's is to be connected does not exist.
fn astray(answer: &mut Answer, n: usize) {
    answer.paths[n].as_mut().unwrap().pair.number ^= 0x0f_f000;
}

#[test]
fn a_pair_through_which_nothing_comes_is_left_out() {
    for lost in 0..3 {
        let path = counted_path(3, false, |answer| astray(answer, lost)).unwrap();
        assert_eq!(put(&path.verbs, &pages(lost)).unwrap(), WRITING);
        assert!(count(&path.verbs.counters().spread) > 0, "two are left");
    }
    let all = |answer: &mut Answer| (0..3).for_each(|n| astray(answer, n));
    let e = counted_path(3, false, all).err().unwrap();
    assert!(matches!(e, TransportError::Disconnected(_)), "{e}");
}

#[test]
fn i1_the_first_pair_leads_to_the_device_that_counts_or_there_is_no_way() {
    // The answer of an owner with two devices: its first one counts.
    let second_counts = |answer: &mut Answer| {
        let [first, second] = &mut answer.paths[..] else { panic!("two pairs") };
        let (first, second) = (first.as_mut().unwrap(), second.as_mut().unwrap());
        assert!(first.counts, "told by who exports it so");
        (first.counts, second.counts) = (false, true);
    };
    let path = counted_path(2, true, second_counts).unwrap();
    let before = count(&path.verbs.counters().spread);
    path.served[0].sever();
    assert_eq!(path.verbs.fetch_add(TOKEN, 64, 3).unwrap(), 0, "by the pair that is left");
    assert_eq!(count(&path.verbs.counters().spread), before);
    let lost = |answer: &mut Answer| {
        second_counts(answer);
        astray(answer, 1);
    };
    assert!(counted_path(2, true, lost).is_err(), "the other one must not count");
    let refused = |answer: &mut Answer| answer.paths[0] = Err("no way".to_string());
    assert!(counted_path(1, true, refused).is_err(), "nor where the owner could not be met");
    let none_counts = |answer: &mut Answer| {
        for path in &mut answer.paths {
            path.as_mut().unwrap().counts = false;
        }
    };
    assert!(counted_path(2, true, none_counts).is_err(), "nor where no way leads to it");
}

/// A data path of these devices to an owner with those.
fn between(client: &[&str], owner: &[&str], counts: bool) -> Result<Vec<String>, TransportError> {
    let config = |names: &[&str]| FabricConfig {
        devices: names.iter().map(|name| (*name).to_string()).collect(),
        ..FabricConfig::default()
    };
    let owner = open(&config(owner)).unwrap();
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT).unwrap());
    let exported = owner.export(memory, &Part::halves(SEGMENT), counts).unwrap();
    let offering = open(&config(client)).unwrap().offer().unwrap();
    let (_served, answer) = exported.accept(&offering.offer())?;
    let verbs = offering.connect(&answer, SegmentBounds::halves(SEGMENT), Alive::new())?;
    assert_eq!(put(&*verbs, &pages(4))?, WRITING);
    Ok(verbs.devices())
}

/// Two devices that do not reach each other: `scripts/rdma-guest --network rails`, as all below.
#[test]
fn rails_meet_their_own_whatever_their_order_and_who_meets_none_is_left_out() {
    let (one, both) = (["rxe1"], ["rxe0", "rxe1"]);
    assert_eq!(between(&both, &both, false).unwrap(), ["rxe0", "rxe1"]);
    assert_eq!(between(&["rxe1", "rxe0"], &both, false).unwrap(), ["rxe1", "rxe0"], "turned");
    assert_eq!(between(&one, &both, false).unwrap(), ["rxe1"]);
    assert_eq!(between(&both, &one, false).unwrap(), ["rxe1"], "the other one meets nobody");
    assert!(between(&["rxe0"], &one, false).is_err());
    assert_eq!(between(&both, &both, true).unwrap(), ["rxe0", "rxe1"]);
    let e = between(&one, &both, true).unwrap_err();
    assert!(!e.to_string().is_empty(), "[I1]: the owner's rxe0 counts, and rxe1 is not it");
}

/// A link that is up again when the test is over.
struct Link;

impl Link {
    fn set(name: &str, state: &str) {
        let done = Command::new("ip").args(["link", "set", name, state]).status().unwrap();
        assert!(done.success(), "ip link set {name} {state}");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        ["rdma0", "rdma1"].into_iter().for_each(|name| Self::set(name, "up"));
    }
}

#[test]
fn rails_a_device_whose_link_goes_down_costs_its_share_and_not_the_way() {
    let _up_again = Link;
    for (lost, left) in [("rdma1", "rxe0"), ("rdma0", "rxe1")] {
        let fabric = open(&FabricConfig::default()).unwrap();
        let (_memory, exported) = segment(&*fabric);
        let (verbs, _served) = path(&*fabric, &*exported);
        assert_eq!(verbs.devices(), ["rxe0", "rxe1"]);
        put(&*verbs, &pages(1)).unwrap();
        Link::set(lost, "down");
        let watch = nkv_pace::Stopwatch::start();
        let e = put(&*verbs, &pages(2)).unwrap_err();
        assert!(watch.took().within(2_000), "{} to say: {e}", watch.took());
        let (again, _served) = path(&*fabric, &*exported);
        put(&*again, &pages(3)).unwrap();
        assert_eq!(again.devices(), [left], "what is down is not offered");
        // Missing when the fabric was opened, and present when it is needed.
        let late = open(&FabricConfig::default()).unwrap();
        assert!(!late.describe().contains(if left == "rxe0" { "rxe1" } else { "rxe0" }));
        Link::set(lost, "up");
        let until_ms = BootClock.now_ms() + nkv_pace::HANGS_MS;
        while late.offer().unwrap().offer().pairs.len() < 2 {
            assert!(BootClock.now_ms() < until_ms, "it is up and not used");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let (both, _served) = path(&*late, &*exported);
        put(&*both, &pages(4)).unwrap();
        assert_eq!(both.devices(), ["rxe0", "rxe1"]);
    }
}
