//! The arena against a plain set of intervals.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BASE: u64 = 1 << 20;

fn region(units: u64) -> Region {
    Region { offset: BASE, len: units * PAYLOAD_ALIGN }
}

fn arena(units: u64) -> Arena {
    Arena::new(region(units), ArenaUnit::default(), units as u32)
}

#[test]
fn sizes_are_rounded_up_to_eight_bins_per_power_of_two() {
    let rounded = |bytes| ArenaUnit::default().placed_bytes(bytes, u64::MAX);
    let units = |n: u64| rounded(n * PAYLOAD_ALIGN) / PAYLOAD_ALIGN;
    assert_eq!(rounded(0), PAYLOAD_ALIGN);
    assert_eq!(rounded(1), PAYLOAD_ALIGN);
    assert_eq!(rounded(PAYLOAD_ALIGN + 1), 2 * PAYLOAD_ALIGN);
    assert_eq!([15, 16, 17, 18, 19, 33, 1025].map(units), [15, 16, 18, 18, 20, 36, 1152]);
    for n in 1..5000 {
        assert_eq!(units(n), u64::from(min_size(n as u32)), "{n}");
        assert!(units(n) * 8 <= n * 9, "{n}: more than 1/8 is lost");
    }
}

#[test]
fn in_larger_units_each_extent_begins_on_one() {
    let unit = ArenaUnit::try_from(2 << 20).unwrap();
    let region = Region { offset: 6 << 20, len: 40 << 20 };
    let mut a = Arena::new(region, unit, 100);
    let extents: Vec<Extent> =
        [1, 4096, 2 << 20, (2 << 20) + 1].map(|n| a.alloc(n).unwrap()).into();
    for e in &extents {
        assert!(
            e.offset.is_multiple_of(unit.bytes()) && e.len.is_multiple_of(unit.bytes()),
            "{e:?}"
        );
    }
    assert_eq!(extents[3].len, 4 << 20);
    assert_eq!((a.used_bytes(), a.capacity()), (10 << 20, 40 << 20));
    let again = Arena::rebuild(region, unit, 100, &extents).unwrap();
    assert_eq!((again.used_bytes(), again.largest_hole()), (a.used_bytes(), a.largest_hole()));
    for off in [
        Extent { offset: extents[0].offset + 4096, len: 2 << 20 },
        Extent { offset: extents[0].offset, len: (2 << 20) + 4096 },
    ] {
        assert!(a.free(off).is_err() && a.take_at(off).is_err(), "{off:?}");
    }
    extents.into_iter().for_each(|e| a.free(e).unwrap());
    assert_eq!(a.largest_hole(), a.capacity());
}

#[test]
fn units_are_powers_of_two_from_4_kib_to_2_mib() {
    for bytes in (12..=21).map(|bits| 1 << bits) {
        assert_eq!(ArenaUnit::try_from(bytes).unwrap().bytes(), u64::from(bytes));
    }
    for bytes in [0, 1, 2048, 4097, 12 << 10, 4 << 20, u32::MAX] {
        let error = ArenaUnit::try_from(bytes).unwrap_err().to_string();
        assert!(error.contains(&bytes.to_string()), "{error}");
    }
}

/// The smallest bin of at least `units`: those below 16, and each multiple of 8 to 15.
fn min_size(units: u32) -> u32 {
    let bins = (0..32).flat_map(|doubled| (1..16).map(move |n: u64| n << doubled));
    bins.filter(|bin| *bin >= u64::from(units)).min().unwrap() as u32
}

#[test]
fn an_object_of_exactly_the_capacity_fits_an_empty_arena() {
    for units in [1, 2, 15, 16, 17, 19, 100, 1000, 1023, 4097] {
        let mut a = arena(units);
        let all = a.alloc(units * PAYLOAD_ALIGN).unwrap();
        assert_eq!(all, Extent { offset: BASE, len: a.capacity() });
        assert_eq!((a.free_bytes(), a.largest_hole()), (0, 0));
        assert!(matches!(a.alloc(1), Err(StoreError::ArenaFull { free: 0, .. })));
        let again =
            Arena::rebuild(region(units), ArenaUnit::default(), units as u32, &[all]).unwrap();
        assert_eq!(again.used_bytes(), a.used_bytes());
        a.free(all).unwrap();
        assert!(a.free(all).is_err());
        assert_eq!(a.largest_hole(), a.capacity());
        assert!(a.alloc(units * PAYLOAD_ALIGN + 1).is_err());
    }
}

#[test]
fn a_full_arena_says_how_large_its_holes_are() {
    let mut a = arena(64);
    let extents: Vec<Extent> = (0..64).map(|_| a.alloc(PAYLOAD_ALIGN).unwrap()).collect();
    for i in [3, 10, 11, 40] {
        a.free(extents[i]).unwrap();
    }
    let full = a.alloc(3 * PAYLOAD_ALIGN).unwrap_err();
    let (asked, free, largest_hole) = (3 * PAYLOAD_ALIGN, 4 * PAYLOAD_ALIGN, 2 * PAYLOAD_ALIGN);
    assert!(
        matches!(full, StoreError::ArenaFull { asked: a, free: f, largest_hole: l }
            if (a, f, l) == (asked, free, largest_hole)),
        "{full}"
    );
}

#[test]
fn the_bound_on_extents_holds() {
    let mut a = Arena::new(region(1000), ArenaUnit::default(), 3);
    let first = a.alloc(1).unwrap();
    a.alloc(1).unwrap();
    a.alloc(1).unwrap();
    assert!(matches!(a.alloc(1), Err(StoreError::ArenaFull { largest_hole: 0, .. })));
    a.free(first).unwrap();
    a.alloc(1).unwrap();
}

#[test]
fn every_unit_can_be_an_extent_of_its_own() {
    let mut a = arena(5000);
    let all: Vec<Extent> = (0..5000).map(|_| a.alloc(1).unwrap()).collect();
    for extent in all.iter().step_by(2) {
        a.free(*extent).unwrap();
    }
    for _ in 0..2500 {
        a.alloc(1).unwrap();
    }
    assert_eq!(a.free_bytes(), 0);
}

#[test]
fn a_rebuild_refuses_what_cannot_have_been_placed() {
    let e = |unit: u64, units: u64| Extent {
        offset: BASE + unit * PAYLOAD_ALIGN,
        len: units * PAYLOAD_ALIGN,
    };
    let refused: [&[Extent]; 7] = [
        &[e(0, 4), e(3, 2)],
        &[e(5, 2), e(5, 2)],
        &[e(98, 4)],
        &[e(0, 17)],
        &[Extent { offset: BASE + 1, len: 4096 }],
        &[Extent { offset: 0, len: 4096 }],
        &[Extent { offset: u64::MAX - 4095, len: 4096 }],
    ];
    for extents in refused {
        let rebuilt = Arena::rebuild(region(100), ArenaUnit::default(), 100, extents);
        assert!(matches!(rebuilt, Err(StoreError::BadSegment(_))), "{extents:?}");
    }
    Arena::rebuild(region(100), ArenaUnit::default(), 100, &[e(84, 16), e(0, 1)]).unwrap();
    assert!(Arena::rebuild(region(100), ArenaUnit::default(), 1, &[e(84, 16), e(0, 1)]).is_err());
}

/// Taken ranges, by offset.
#[derive(Default, Clone)]
struct Model(BTreeMap<u64, u64>);

impl Model {
    fn used(&self) -> u64 {
        self.0.values().sum()
    }

    fn overlaps(&self, e: &Extent) -> bool {
        self.0.iter().any(|(&at, &len)| at < e.end() && e.offset < at + len)
    }

    /// The largest object that some free range can take.
    fn largest_hole(&self, region: &Region) -> u64 {
        if self.0.is_empty() {
            return region.len;
        }
        let mut next = region.offset;
        let mut largest = 0;
        let end = region.offset + region.len;
        for (&at, &len) in self.0.iter().chain([(&end, &0)]) {
            largest = largest.max(bin_down(((at - next) / PAYLOAD_ALIGN) as u32));
            next = at + len;
        }
        u64::from(largest) * PAYLOAD_ALIGN
    }
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(u64),
    Free(usize),
    FreeWrong(u64, u64),
    Rebuild,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..40 * PAYLOAD_ALIGN).prop_map(Op::Alloc),
        2 => (0u64..600 * PAYLOAD_ALIGN).prop_map(Op::Alloc),
        4 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..700, 0u64..40).prop_map(|(at, len)| Op::FreeWrong(at, len)),
        1 => Just(Op::Rebuild),
    ]
}

fn apply(a: &mut Arena, model: &mut Model, region: Region, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Alloc(bytes) => {
            let fits = a.placed_bytes(bytes) <= model.largest_hole(&region);
            match a.alloc(bytes) {
                Ok(e) => {
                    prop_assert!(fits && e.within(&region) && !model.overlaps(&e));
                    prop_assert!(e.len == a.placed_bytes(bytes) && e.len >= bytes);
                    model.0.insert(e.offset, e.len);
                }
                Err(error) => prop_assert!(!fits, "{bytes}: {error}"),
            }
        }
        Op::Free(n) if !model.0.is_empty() => {
            let n = n % model.0.len();
            let (&offset, &len) = model.0.iter().nth(n).unwrap();
            a.free(Extent { offset, len }).unwrap();
            model.0.remove(&offset);
            prop_assert!(a.free(Extent { offset, len }).is_err(), "freed twice");
        }
        Op::Free(_) => {}
        Op::FreeWrong(at, len) => {
            let e = Extent { offset: BASE + at * PAYLOAD_ALIGN, len: len * PAYLOAD_ALIGN };
            if model.0.get(&e.offset) != Some(&e.len) {
                prop_assert!(a.free(e).is_err(), "{e:?} was never placed");
            }
        }
        Op::Rebuild => {
            let extents: Vec<Extent> =
                model.0.iter().rev().map(|(&offset, &len)| Extent { offset, len }).collect();
            *a = Arena::rebuild(region, ArenaUnit::default(), a.max_extents, &extents).unwrap();
        }
    }
    prop_assert_eq!(a.used_bytes(), model.used());
    prop_assert_eq!(a.free_bytes(), region.len - model.used());
    prop_assert_eq!(a.extents() as usize, model.0.len());
    prop_assert_eq!(a.largest_hole(), model.largest_hole(&region));
    Ok(())
}

proptest! {
    #[test]
    fn the_arena_is_a_set_of_disjoint_intervals(
        units in 1u64..700, ops in prop::collection::vec(op(), 1..120)
    ) {
        let region = region(units);
        let mut a = arena(units);
        let mut model = Model::default();
        for op in ops {
            apply(&mut a, &mut model, region, op)?;
        }
        for (&offset, &len) in &model.0 {
            a.free(Extent { offset, len }).unwrap();
        }
        prop_assert_eq!(a.alloc(a.capacity()).unwrap().len, region.len, "holes did not merge");
    }
}

#[test]
fn random_eviction_keeps_nine_tenths_of_the_arena_in_use() {
    let mut a = arena(64 * 1024);
    let mut live: Vec<Extent> = Vec::new();
    let mut seed = 0x5eed_u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let (mut sum, mut samples) = (0.0, 0u32);
    for round in 0..60_000 {
        // 4 KiB to 1 MiB, every power of two equally often.
        let bytes = (PAYLOAD_ALIGN << random(8)) + random(PAYLOAD_ALIGN << 3);
        let extent = loop {
            if let Ok(extent) = a.alloc(bytes) {
                break extent;
            }
            let victim = random(live.len() as u64) as usize;
            a.free(live.swap_remove(victim)).unwrap();
        };
        live.push(extent);
        if round >= 20_000 {
            sum += a.used_bytes() as f64 / a.capacity() as f64;
            samples += 1;
        }
    }
    let mean = sum / f64::from(samples);
    assert!(mean > 0.9, "mean utilisation {mean:.3}");
}

#[test]
fn what_an_arena_claims_to_hold_costs_nothing_before_it_is_used() {
    // 8 TiB, an extent for each of its units.
    let units = 1 << 31;
    let mut a = Arena::new(region(units), ArenaUnit::default(), units as u32);
    let one = a.alloc(1).unwrap();
    assert!(a.free.bytes_of_bits() < 1024);
    let last = Extent { offset: BASE + (units - 1) * PAYLOAD_ALIGN, len: PAYLOAD_ALIGN };
    let mut again =
        Arena::rebuild(region(units), ArenaUnit::default(), units as u32, &[last, one]).unwrap();
    assert_eq!(again.used_bytes(), 2 * PAYLOAD_ALIGN);
    assert!(again.free.bytes_of_bits() < 8 << 20);
    again.free(last).unwrap();
}

#[test]
fn what_spans_two_extents_or_a_part_of_one_is_not_freed() {
    let mut a = arena(16);
    let all: Vec<Extent> = (0..4).map(|_| a.alloc(2 * PAYLOAD_ALIGN).unwrap()).collect();
    a.free(all[1]).unwrap();
    let joined = |from: usize, to: usize| Extent {
        offset: all[from].offset,
        len: all[to].end() - all[from].offset,
    };
    let part = |first: u64| Extent { offset: all[2].offset + first, len: PAYLOAD_ALIGN };
    for wrong in [joined(2, 3), joined(0, 1), joined(0, 2), part(0), part(PAYLOAD_ALIGN)] {
        assert!(a.free(wrong).is_err(), "{wrong:?}");
    }
    for right in [0, 2, 3] {
        a.free(all[right]).unwrap();
    }
    assert_eq!((a.used_bytes(), a.largest_hole()), (0, a.capacity()));
}

#[test]
fn extents_take_a_bit_each() {
    let n = 100_000;
    let mut a = arena(n);
    (0..n).for_each(|_| assert!(a.alloc(1).is_ok()));
    assert_eq!((u64::from(a.extents()), a.free_bytes()), (n, 0));
    assert!(a.free.bytes_of_bits() < n as usize / 4);
}

#[test]
fn an_object_takes_the_shortest_range_in_which_it_fits() {
    let mut a = arena(100);
    let all: Vec<Extent> = [8, 1, 4, 1, 2, 1].map(|n| a.alloc(n * PAYLOAD_ALIGN).unwrap()).into();
    let holes = [all[0], all[2], all[4]];
    holes.iter().for_each(|hole| a.free(*hole).unwrap());
    for (n, hole) in [(2, 2), (3, 1), (5, 0)] {
        assert_eq!(a.alloc(n * PAYLOAD_ALIGN).unwrap().offset, holes[hole].offset);
    }
}
