//! The cheapest window against an exhaustive search.

use super::*;
use proptest::prelude::*;

const UNIT: u64 = 4096;

fn extent(unit: u64, units: u64) -> Extent {
    Extent { offset: UNIT * (10 + unit), len: UNIT * units }
}

fn region(units: u64) -> Region {
    Region { offset: UNIT * 10, len: UNIT * units }
}

#[test]
fn a_hole_that_exists_costs_nothing() {
    let extents = [(0, 1, extent(0, 4), true), (1, 1, extent(8, 4), true)];
    let window = cheapest_window(&extents, region(12), 4 * UNIT);
    assert_eq!(window, Some(vec![]));
}

#[test]
fn neighbours_go_together_and_the_cheapest_stretch_is_taken() {
    // 4 units each; slots 0..6 in address order, slot 3 may not go.
    let extents: Vec<_> =
        (0..6).rev().map(|s| (s, 7, extent(u64::from(s) * 4, 4), s != 3)).collect();
    let find = |units: u64| cheapest_window(&extents, region(24), units * UNIT);
    assert_eq!(find(4), Some(vec![(0, 7)]));
    assert_eq!(find(8), Some(vec![(0, 7), (1, 7)]));
    assert_eq!(find(12), Some(vec![(0, 7), (1, 7), (2, 7)]));
    assert_eq!(find(13), None, "slot 3 is in the way");
}

/// Number of victims of the best window that starts and ends at some unit.
fn by_trying_all(extents: &[(u32, u32, Extent, bool)], arena: Region, need: u64) -> Option<usize> {
    let units = arena.len / UNIT;
    let need = need.div_ceil(UNIT);
    (0..=units.checked_sub(need)?)
        .filter_map(|first| {
            let (from, to) = (arena.offset + first * UNIT, arena.offset + (first + need) * UNIT);
            let hit = |e: &&(u32, u32, Extent, bool)| e.2.offset < to && from < e.2.end();
            let hits: Vec<_> = extents.iter().filter(hit).collect();
            hits.iter().all(|e| e.3).then_some(hits.len())
        })
        .min()
}

proptest! {
    #[test]
    fn the_window_is_the_cheapest_there_is(
        pieces in prop::collection::vec((1u64..6, 0u8..8), 1..14),
        need in 1u64..20,
    ) {
        let (mut extents, mut at) = (Vec::new(), 0);
        for (units, kind) in pieces {
            // Kinds 0 and 1 are free ranges, 2 may not be evicted.
            if kind >= 2 {
                extents.push((extents.len() as u32, 1, extent(at, units), kind > 2));
            }
            at += units;
        }
        let found = cheapest_window(&extents, region(at), need * UNIT).map(|v| v.len());
        prop_assert_eq!(found, by_trying_all(&extents, region(at), need * UNIT));
    }
}
