//! The content of a formatted segment, and what opening refuses.

use super::*;
use crate::layout::{HeapExt, ObjHeader, flag, word};
use crate::memory::AnonMemory;
use crate::object;
use proptest::prelude::*;
use zerocopy::FromBytes;

fn small() -> HeapConfig {
    HeapConfig { arena_bytes: 40_000, rank: 3, ..HeapConfig::default() }
}

/// Offset of the arena of `small`.
const ARENA: u64 = 12_288 + pins::REGION_BYTES.next_multiple_of(4096);

fn memory(bytes: u64) -> Arc<dyn Memory> {
    Arc::new(AnonMemory::new(bytes).unwrap())
}

fn formatted(config: &HeapConfig) -> Heap {
    Heap::format(memory(config.segment_bytes()), config).unwrap()
}

fn ext_of(heap: &Heap) -> HeapExt {
    let mut bytes = [0u8; size_of::<HeapExt>()];
    heap.memory().read(EXT_OFF, &mut bytes).unwrap();
    HeapExt::read_from_bytes(&bytes).unwrap()
}

fn with_ext(change: impl FnOnce(&mut HeapExt)) -> Result<Heap, StoreError> {
    let heap = formatted(&small());
    let mut ext = ext_of(&heap);
    change(&mut ext);
    heap.memory().write(EXT_OFF, ext.as_bytes()).unwrap();
    Heap::open(heap.memory().clone())
}

#[test]
fn a_formatted_segment_opens_with_the_same_geometry() {
    let config = small();
    let heap = formatted(&config);
    let g = *heap.layout();
    assert_eq!(*Heap::open(heap.memory().clone()).unwrap().layout(), g);
    assert_eq!((g.slots, heap.identity().rank, g.header_base), (10, 3, 4096));
    assert_eq!((g.log_slots, g.log.len, g.payloads()), (0, 0, g.arena));
    assert_eq!(g.index, Region { offset: 8192, len: index::region_bytes(10) });
    assert_eq!(g.pins, Region { offset: 12_288, len: pins::REGION_BYTES });
    assert_eq!(g.arena, Region { offset: ARENA, len: 40_960 });
    assert_eq!(g.segment_bytes, config.segment_bytes());
    assert_eq!(heap.identity().incarnation, config.incarnation);
}

#[test]
fn every_slot_is_armed_at_epoch_one() {
    let heap = formatted(&small());
    let g = heap.layout();
    for slot in 0..g.slots {
        let mut bytes = [0u8; 64];
        heap.memory().read(g.header_off(slot), &mut bytes).unwrap();
        let header = ObjHeader::read_from_bytes(&bytes).unwrap();
        assert_eq!(header.publish, object::reserved(1));
        assert_eq!(header.owner, word(flag::LIVE, 1));
    }
    assert!(heap.memory().load(g.header_off(g.slots) + 56).is_err());
}

#[test]
fn a_log_has_the_first_slots_and_lies_before_the_arena() {
    let config = HeapConfig { log_bytes: 20_000, ..small() };
    let heap = formatted(&config);
    let g = *heap.layout();
    assert_eq!((g.slots, g.log_slots, g.managed_slots()), (15, 5, 5..15));
    assert_eq!((g.log.len, g.log.offset + g.log.len), (20_480, g.arena.offset));
    assert_eq!(g.payloads(), Region { offset: g.log.offset, len: 20_480 + 40_960 });
    // Nothing is claimed, everything may be; no claim has epoch 0.
    assert_eq!((heap.memory().load(8).unwrap(), heap.memory().load(16).unwrap()), (20_480, 0));
    let words = |slot| object::read_header(&heap, slot).map(|h| (h.publish, h.owner)).unwrap();
    assert_eq!((words(0), words(4)), ((0, 0), (0, 0)));
    assert_eq!(words(5), (object::reserved(1), word(flag::LIVE, 1)));
    let shifted = |e: &mut HeapExt| e.regions[RegionKind::Log as usize].offset -= 4096;
    for change in [shifted as fn(&mut HeapExt), |e| e.log_slots = 4, |e| e.log_unit = 8192] {
        let heap = formatted(&config);
        let mut ext = ext_of(&heap);
        change(&mut ext);
        heap.memory().write(EXT_OFF, ext.as_bytes()).unwrap();
        let opened = Heap::open(heap.memory().clone());
        assert!(matches!(opened, Err(StoreError::BadSegment(_))), "{opened:?}");
    }
}

#[test]
fn an_arena_of_larger_units_begins_on_one_and_has_a_slot_for_each() {
    let arena_unit = ArenaUnit::try_from(2 << 20).unwrap();
    for (log_bytes, atomic_domain) in
        [(0, AtomicDomain::Cpu), (20_000, AtomicDomain::Cpu), (20_000, AtomicDomain::Gpu)]
    {
        let arena_bytes = (6 << 20) + 1;
        let config = HeapConfig { log_bytes, arena_bytes, arena_unit, atomic_domain, ..small() };
        let heap = formatted(&config);
        let g = *heap.layout();
        assert_eq!((g.arena_unit, g.arena.len, g.managed_slots().len()), (arena_unit, 8 << 20, 4));
        assert_eq!((g.arena.offset % (2 << 20), g.payloads().len), (0, g.arena.len + g.log.len));
        assert_eq!((g.placed_bytes(1), g.placed_bytes(3 << 20)), (2 << 20, 4 << 20));
        for wrong in [0, 4095, 4 << 20, 1 << 31] {
            let mut ext = ext_of(&heap);
            ext.arena_unit = wrong;
            heap.memory().write(EXT_OFF, ext.as_bytes()).unwrap();
            let opened = Heap::open(heap.memory().clone());
            assert!(matches!(opened, Err(StoreError::BadSegment(_))), "{opened:?}");
        }
        let mut off = g;
        (off.log, off.log_slots, off.slots) = (Region::default(), 0, 4);
        (off.arena.offset, off.segment_bytes) = (g.arena.offset + 4096, g.segment_bytes + 4096);
        let refused = off.check().unwrap_err().to_string();
        assert!(refused.contains("whole units"), "{refused}");
    }
}

#[test]
fn i1_the_claim_word_of_kernels_has_the_page_before_the_log() {
    let atomic_domain = AtomicDomain::Gpu;
    let config = HeapConfig { log_bytes: 20_000, atomic_domain, ..small() };
    let memory = memory(config.segment_bytes());
    // As memory of a GPU may be when it is allocated.
    memory.write(0, &vec![7; config.segment_bytes() as usize]).unwrap();
    let heap = Heap::format(memory.clone(), &config).unwrap();
    let g = *heap.layout();
    let word = g.log.offset - 4096;
    let log = g.device_log().unwrap();
    assert_eq!((log.claim_word(), log.claims_by_hosts(), g.claims_by_gpu()), (word, false, true));
    assert_eq!((memory.load(word).unwrap(), config.control_bytes()), (0, word));
    assert_eq!(g.payloads().offset, g.log.offset, "objects never lie in that page");
    assert_eq!(g.device_part(), Region { offset: word, len: g.segment_bytes - word });
    // The pin tables may not reach into it, nor may it begin before the segment.
    let pins = Region { offset: g.pins.offset + 4096, ..g.pins };
    for wrong in
        [SegmentLayout { pins, ..g }, SegmentLayout { log: Region { offset: 0, ..g.log }, ..g }]
    {
        assert!(matches!(wrong.check(), Err(StoreError::BadSegment(_))), "{wrong:?}");
    }
    // Without a log there is no such word.
    let none = formatted(&HeapConfig { log_bytes: 0, ..config });
    assert_eq!(none.layout().device_part(), none.layout().payloads());
}

#[test]
fn memory_that_was_never_formatted_is_refused() {
    let open = Heap::open(memory(1 << 20));
    assert!(matches!(open, Err(StoreError::BadSegment(_))));
    assert!(matches!(Heap::open(memory(100)), Err(StoreError::BadSegment(_))));
}

#[test]
fn another_layout_version_is_refused() {
    let text = with_ext(|e| e.layout_version = 2).unwrap_err().to_string();
    assert!(text.contains("version 2"), "{text}");
}

#[test]
fn regions_outside_misaligned_or_overlapping_are_refused() {
    let arena = RegionKind::Arena as usize;
    let headers = RegionKind::Headers as usize;
    with_ext(|_| ()).unwrap();
    for change in [
        (|e| e.segment_bytes += 4096) as fn(&mut HeapExt),
        |e| e.segment_bytes -= 4096,
        |e| e.incarnation = 0,
        |e| e.atomic_domain = 3,
        |e| e.quarantine_ms = 0,
        |e| e.log_slots = 11,
    ] {
        assert!(matches!(with_ext(change), Err(StoreError::BadSegment(_))));
    }
    let twisted = [
        (arena, Region { offset: ARENA, len: 45_056 }),
        (arena, Region { offset: ARENA, len: 0 }),
        (arena, Region { offset: u64::MAX - 4095, len: 8192 }),
        (arena, Region { offset: 4096, len: 40_960 }),
        (headers, Region { offset: 4096, len: 704 }),
        (headers, Region { offset: 0, len: 640 }),
        (RegionKind::Log as usize, Region { offset: ARENA, len: 4096 }),
        (RegionKind::Pins as usize, Region { offset: 12_288, len: 64 }),
        (RegionKind::Index as usize, Region { offset: 8193, len: 128 }),
        (RegionKind::Index as usize, Region { offset: 8192, len: 192 }),
    ];
    for (kind, region) in twisted {
        let opened = with_ext(|e| e.regions[kind] = region);
        assert!(matches!(opened, Err(StoreError::BadSegment(_))), "{kind} {region:?}");
    }
}

#[test]
fn a_region_off_its_alignment_is_refused_even_where_there_is_room() {
    let beside_a_shorter_arena = |shift: u64| {
        with_ext(|e| {
            let arena = &mut e.regions[RegionKind::Arena as usize];
            arena.len -= 4096;
            let offset = arena.offset + arena.len + shift;
            e.regions[RegionKind::Index as usize] = Region { offset, len: 128 };
        })
    };
    beside_a_shorter_arena(64).unwrap();
    assert!(matches!(beside_a_shorter_arena(8), Err(StoreError::BadSegment(_))));
}

#[test]
fn settings_that_cannot_work_are_refused_with_their_numbers() {
    let cases = [
        HeapConfig { arena_bytes: 0, ..small() },
        HeapConfig { arena_bytes: MAX_ARENA_BYTES + 1, ..small() },
        HeapConfig { log_bytes: 3 * 4096, ..small() },
        HeapConfig { log_bytes: MAX_ARENA_BYTES, ..small() },
        HeapConfig { incarnation: 0, ..small() },
        HeapConfig { quarantine_ms: 0, ..small() },
        HeapConfig { watermarks: Watermarks::Percent { hi: 101, lo: 85 }, ..small() },
        HeapConfig { quarantine_ms: MAX_QUARANTINE_MS + 1, ..small() },
        HeapConfig { arena_bytes: MAX_ARENA_BYTES, log_bytes: 4 * 4096, ..small() },
        HeapConfig { watermarks: Watermarks::Percent { hi: 50, lo: 60 }, ..small() },
    ];
    for config in cases {
        assert!(matches!(config.validate(), Err(StoreError::InvalidConfig(_))), "{config:?}");
    }
    let at_the_limits = [
        HeapConfig::default(),
        HeapConfig { arena_bytes: 1, ..small() },
        HeapConfig { arena_bytes: MAX_ARENA_BYTES, log_bytes: 0, ..small() },
        HeapConfig { log_bytes: MIN_LOG_UNITS * 4096, ..small() },
        HeapConfig { arena_bytes: 1, log_bytes: MAX_ARENA_BYTES - 1, ..small() },
        HeapConfig { quarantine_ms: 1, ..small() },
        HeapConfig { quarantine_ms: MAX_QUARANTINE_MS, ..small() },
    ];
    for config in at_the_limits {
        config.validate().unwrap_or_else(|e| panic!("{e}: {config:?}"));
    }
}

#[test]
fn a_segment_does_not_fit_into_less_memory() {
    let config = small();
    let formatted = Heap::format(memory(config.segment_bytes() - 1), &config);
    assert!(matches!(formatted, Err(StoreError::OutOfBounds { .. })));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_or_describe_regions_that_exist(
        at in 0usize..392, garbage in prop::collection::vec(any::<u8>(), 1..200)
    ) {
        let heap = formatted(&small());
        let end = (at + garbage.len()).min(CTL_BYTES as usize);
        heap.memory().write(at as u64, &garbage[..end - at]).unwrap();
        heap.memory().store(EXT_OFF, MAGIC).unwrap();
        match Heap::open(heap.memory().clone()) {
            Err(StoreError::BadSegment(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
            Ok(opened) => {
                let g = opened.layout();
                prop_assert!(g.arena.offset + g.arena.len <= heap.memory().len());
                let headers = g.header_base + u64::from(g.slots) * 64;
                prop_assert!(headers <= heap.memory().len());
            }
        }
    }

    #[test]
    fn wholly_random_control_blocks_never_panic(
        garbage in prop::collection::vec(any::<u8>(), 4096)
    ) {
        let m = memory(8192);
        m.write(0, &garbage).unwrap();
        m.store(EXT_OFF, MAGIC).unwrap();
        m.write(EXT_OFF + 8, &LAYOUT_VERSION.to_le_bytes()).unwrap();
        prop_assert!(matches!(Heap::open(m), Err(StoreError::BadSegment(_))));
    }
}
