//! Tests that need a device. Run in a guest that has one: `scripts/rdma-test`.

mod spread;
mod vram;

use super::*;
use crate::Op;
use crate::fabric::{Access, Answer, Exported, Fabric, Offer, Part, RemoteAccess, SegmentBounds};
use crate::verbs::{Alive, Verbs};
use nkv_store::AnonMemory;
use nkv_store::clock::{BootClock, Clock};

const SEGMENT: u64 = 8 << 20;
const TOKEN: u64 = 7;

fn fabric() -> Arc<dyn Fabric> {
    open(&FabricConfig::default()).expect("a device: run scripts/rdma-test")
}

fn segment(fabric: &dyn Fabric) -> (Arc<dyn Memory>, Arc<dyn Exported>) {
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT).unwrap());
    let exported = fabric.export(memory.clone(), &Part::halves(SEGMENT), false).unwrap();
    (memory, exported)
}

fn path(fabric: &dyn Fabric, to: &dyn Exported) -> (Arc<dyn Verbs>, Arc<dyn RemoteAccess>) {
    let offering = fabric.offer().unwrap();
    let (served, answer) = to.accept(&offering.offer()).unwrap();
    (offering.connect(&answer, SegmentBounds::halves(SEGMENT), Alive::new()).unwrap(), served)
}

#[test]
fn i10_a_late_writer_whose_way_was_severed_gets_an_error_and_changes_nothing() {
    let fabric = fabric();
    let (memory, exported) = segment(&*fabric);
    let (late, severed) = path(&*fabric, &*exported);
    let (other, _served) = path(&*fabric, &*exported);
    late.write(TOKEN, 4096, &[1; 5000]).unwrap();
    severed.sever();
    assert!(severed.is_severed());
    let watch = nkv_pace::Stopwatch::start();
    let e = late.write(TOKEN, 4096, &[2; 5000]).unwrap_err();
    assert!(matches!(e, TransportError::Disconnected(_)), "{e}");
    assert!(watch.took().within(2_000), "it waited too long: {}", watch.took());
    assert!(!late.is_alive() && late.compare_swap(TOKEN, 0, 0, 9).is_err());
    let mut there = [0; 5000];
    other.read(4096, &mut there).unwrap();
    assert!(there == [1; 5000], "another way goes on, and the late writer changed nothing");
    assert_eq!(memory.load(0).unwrap(), 0);
}

#[test]
fn i10_after_a_way_is_severed_in_the_middle_of_a_write_no_byte_changes_any_more() {
    let fabric = fabric();
    let (memory, exported) = segment(&*fabric);
    for round in 0..5u8 {
        let (writer, served) = path(&*fabric, &*exported);
        let writing = nkv_store::threads::spawn_named("writer", move || {
            let value = vec![round + 1; 4 << 20];
            (0..50).find_map(|_| writer.write(TOKEN, 0, &value).err())
        });
        while memory.load(0).unwrap() & 0xff != u64::from(round + 1) {
            std::thread::yield_now();
        }
        served.sever();
        let read = || {
            let mut all = vec![0; SEGMENT as usize];
            memory.read(0, &mut all).unwrap();
            all
        };
        let before = read();
        assert!(writing.unwrap().join().unwrap().is_some(), "it wrote on and on");
        assert!(read() == before, "a byte changed after the way was severed, in round {round}");
    }
}

/// Memory in which each part has one access right, and what each right permits to change.
#[test]
fn i1_i19_what_others_may_only_read_or_count_their_devices_cannot_write() {
    const EACH: u64 = 1 << 20;
    const SEGMENT: u64 = 5 * EACH;
    let uses =
        [Access::Read, Access::Count, Access::Words, Access::Payload, Access::PayloadReadBack];
    let parts = uses.map(|access| Part { len: EACH, access });
    let fabric = fabric();
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT).unwrap());
    let exported = fabric.export(memory.clone(), &parts, false).unwrap();
    for (at, access) in (0..).step_by(EACH as usize).zip(uses) {
        let at = at + 64;
        // Each with its own data path: after a forbidden access a path is broken.
        let tries = |change: &dyn Fn(&dyn Verbs) -> Result<(), TransportError>| {
            let offering = fabric.offer().unwrap();
            let (_served, answer) = exported.accept(&offering.offer()).unwrap();
            let verbs = offering
                .connect(&answer, SegmentBounds { len: SEGMENT, payloads: 3 * EACH }, Alive::new())
                .unwrap();
            assert_eq!(verbs.load(at).unwrap(), memory.load(at).unwrap(), "{access:?} is read");
            change(&*verbs).is_ok()
        };
        let counts = matches!(access, Access::Count | Access::Words);
        assert_eq!(tries(&|v| v.write(TOKEN, at, &[7; 8])), access.writes(), "{access:?}");
        let written = u64::from_ne_bytes([7; 8]) * u64::from(access.writes());
        assert_eq!(memory.load(at).unwrap(), written, "{access:?}");
        assert_eq!(tries(&|v| v.fetch_add(TOKEN, at, 1).map(drop)), counts, "{access:?}");
        let counted = written + u64::from(counts);
        assert_eq!(memory.load(at).unwrap(), counted, "{access:?}");
        let swapped = tries(&|v| v.compare_swap(TOKEN, at, counted, 9).map(drop));
        assert_eq!(swapped, counts, "{access:?}");
        assert_eq!(memory.load(at).unwrap(), if counts { 9 } else { counted }, "{access:?}");
    }
    let short = fabric.export(memory, &parts[..3], false).unwrap_err().to_string();
    assert!(short.contains("5242880 bytes"), "{short}");
}

/// A data path of so many pairs whose requests are counted, and its segment. `turn` may change the
/// owner's answer.
fn counted_path(
    pairs: usize,
    counts: bool,
    turn: impl FnOnce(&mut Answer),
) -> Result<CountedPath, TransportError> {
    counted_path_to(Arc::new(AnonMemory::new(SEGMENT).unwrap()), pairs, counts, turn)
}

/// The same, to this segment.
fn counted_path_to(
    memory: Arc<dyn Memory>,
    pairs: usize,
    counts: bool,
    turn: impl FnOnce(&mut Answer),
) -> Result<CountedPath, TransportError> {
    let devices = Devices::open(&FabricConfig { pairs, ..FabricConfig::default() }).unwrap();
    let exported =
        Fabric::export(&devices, memory.clone(), &Part::halves(SEGMENT), counts).unwrap();
    let offering = devices.unconnected().unwrap();
    // By one call each, so that one can be severed by itself.
    let (mut served, mut paths) = (Vec::new(), Vec::new());
    for pair in fabric::Offering::offer(&offering).pairs {
        let (one, answer) = exported.accept(&Offer { pairs: vec![pair] }).unwrap();
        served.push(one);
        paths.extend(answer.paths);
    }
    let mut answer = Answer { paths, one_counts: counts };
    turn(&mut answer);
    let verbs = offering.join(&answer, SegmentBounds::halves(SEGMENT), Alive::new())?;
    Ok(CountedPath { verbs, served, memory, _exported: exported })
}

struct CountedPath {
    verbs: RdmaVerbs,
    served: Vec<Arc<dyn RemoteAccess>>,
    memory: Arc<dyn Memory>,
    _exported: Arc<dyn Exported>,
}

fn count(n: &std::sync::atomic::AtomicU64) -> u64 {
    n.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn i4_what_changes_memory_after_a_read_or_an_atomic_waits_for_it_and_dead_is_no_part_of_its_fields()
{
    let path = counted_path(1, false, |_| {}).unwrap();
    let verbs = &path.verbs;
    let (mut read, fields) = ([0; 64], [1; 40]);
    let requests = |ops: &mut [Op<'_>]| {
        let before = (count(&verbs.counters().requests), count(&verbs.counters().fenced));
        verbs.post(TOKEN, ops).unwrap();
        let c = verbs.counters();
        (count(&c.requests) - before.0, count(&c.fenced) - before.1)
    };
    let write = |at| Op::Write { offset: at, src: &fields };
    let add = || Op::FetchAdd { offset: 64, add: 1, old: 0 };
    // Soft-RoCE keeps the order without a fence, so its bytes show none: the requested fences are
    // counted.
    assert_eq!(requests(&mut [write(4096), write(8192)]), (2, 0));
    assert_eq!(requests(&mut [write(4096), Op::Read { offset: 0, dst: &mut read }]), (2, 0));
    assert_eq!(requests(&mut [Op::Read { offset: 0, dst: &mut read }, write(4096)]), (2, 1));
    assert_eq!(requests(&mut [add(), write(4096), write(8192)]), (3, 1));
    assert_eq!(requests(&mut [write(4096), add(), add()]), (3, 1));
    let dead = || Op::Store { offset: 4096 + 40, value: 3 };
    assert_eq!(requests(&mut [write(4096), dead()]), (1, 0), "of one line");
    assert_eq!(requests(&mut [write(4096), Op::Flush, dead()]), (3, 1));
    assert_eq!(
        requests(&mut [write(4096 + 30), Op::Store { offset: 4096 + 72, value: 3 }]),
        (2, 0)
    );
}

#[test]
fn i4_an_object_of_sixteen_pages_is_one_chain_with_one_completion() {
    let path = counted_path(1, false, |_| {}).unwrap();
    let verbs = &path.verbs;
    let (fields, page) = ([1; 40], vec![2; 4096]);
    let mut ops = vec![
        Op::Write { offset: 4096, src: &fields },
        // Directly after the fields: one request sends both.
        Op::Store { offset: 4096 + 40, value: 4 },
    ];
    let pages = (0..16).map(|i| Op::Write { offset: SEGMENT / 2 + i * 4096, src: &page });
    ops.extend(pages);
    ops.push(Op::CompareSwap { offset: 4096 + 40, expect: 4, new: 5, old: 0 });
    let c = verbs.counters();
    let before = (count(&c.chains), count(&c.requests));
    verbs.post(TOKEN, &mut ops).unwrap();
    assert!(matches!(ops.last(), Some(Op::CompareSwap { old: 4, .. })));
    let took = (count(&c.chains) - before.0, count(&c.requests) - before.1);
    assert_eq!((took, count(&c.split)), ((1, 18), 0));
}

#[test]
fn an_offer_that_is_none_is_refused_and_harms_nobody() {
    let fabric = fabric();
    let (_memory, exported) = segment(&*fabric);
    let (verbs, _served) = path(&*fabric, &*exported);
    let offer = fabric.offer().unwrap().offer();
    for pairs in [vec![], vec![offer.pairs[0]; MAX_PAIRS + 1]] {
        assert!(exported.accept(&Offer { pairs }).is_err());
    }
    // A pair that does not exist: accepted, since nobody can detect it, and never used.
    let mut nobody = offer.pairs[0];
    nobody.number = 0xff_fff0;
    let _ = exported.accept(&Offer { pairs: vec![nobody] });
    let short = Answer { paths: Vec::new(), one_counts: false };
    assert!(
        fabric
            .offer()
            .unwrap()
            .connect(&short, SegmentBounds::halves(SEGMENT), Alive::new())
            .is_err()
    );
    verbs.write(TOKEN, 0, &[1; 100]).unwrap();
}

#[test]
fn what_cannot_be_opened_is_an_error_that_names_what_there_is() {
    let there = context::names().unwrap();
    let config =
        FabricConfig { devices: vec!["none_such0".to_string()], ..FabricConfig::default() };
    let e = open(&config).unwrap_err().to_string();
    assert!(e.contains("none_such0") && e.contains(&there[0]), "{e}");
    let config = FabricConfig { gid_index: Some(200), ..FabricConfig::default() };
    let e = open(&config).unwrap_err().to_string();
    assert!(e.contains("no GID 200") && e.contains("RoCE v2, IPv4"), "{e}");
    let report = devices().unwrap();
    assert!(report[0].limits.atomics && report[0].ports[0].active, "{report:?}");
    assert_eq!(report[0].ports[0].gids[0].kind, GidKind::RoceV2Ipv4, "the preferred one first");
}

/// Each of these callers wants more buffers than its share: callers that held some and waited for
/// more would wait for each other.
#[test]
fn more_callers_than_there_are_buffers_for_wait_for_no_one_another() {
    const CALLERS: u64 = 12;
    let fabric = fabric();
    let (_memory, exported) = segment(&*fabric);
    let (verbs, _served) = path(&*fabric, &*exported);
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let verbs = verbs.clone();
            let work = move || {
                let (offset, value) = (SEGMENT / 2 + n * 64 * 1024, vec![n as u8; 64 * 1024]);
                let mut whole = vec![0; 3 << 20];
                for _ in 0..2 {
                    let mut ops: Vec<_> = value
                        .chunks(4096)
                        .enumerate()
                        .map(|(i, src)| [Op::Write { offset: offset + i as u64 * 4096, src }])
                        .collect();
                    let mut posts: Vec<_> = ops
                        .iter_mut()
                        .map(|ops| crate::verbs::Post { token: TOKEN, ops })
                        .collect();
                    let done = verbs.post_many(&mut posts, &mut crate::verbs::NoObserver);
                    assert!(done.iter().all(Result::is_ok), "{done:?}");
                    verbs.read(SEGMENT / 2, &mut whole).unwrap();
                    let mine = &whole[(n * 64 * 1024) as usize..][..64 * 1024];
                    assert!(mine == value, "caller {n}");
                }
            };
            nkv_store::threads::spawn_named("caller", work).unwrap()
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert!(verbs.is_alive());
}
