//! Contiguous eviction, for when single victims leave only small gaps: picks the cheapest
//! sufficiently long range of neighbouring addresses. It reads every extent, so it runs only after
//! several failed evictions, not for each put.

use crate::arena::Extent;
use crate::layout::Region;

/// A range of the arena: free (no occupant), or one extent.
struct Piece {
    len: u64,
    occupant: Option<(u32, u32)>,
    cost: u64,
}

/// The cheapest set of neighbours whose removal frees a range of `need` bytes: slots and epochs, in
/// address order; empty if such a range is free already. `None` if extents that may not be evicted
/// (flag false) interrupt every range. `extents` is (slot, epoch, extent, evictable) in any order.
/// Free space costs nothing; `cost` returns the price of evicting a slot. Among equally cheap
/// windows the one with the fewest victims wins. O(n log n).
pub fn cheapest_window(
    extents: &[(u32, u32, Extent, bool)],
    arena: Region,
    need: u64,
    cost: impl Fn(u32) -> u64,
) -> Option<Vec<(u32, u32)>> {
    let mut sorted = extents.to_vec();
    sorted.sort_unstable_by_key(|(_, _, e, _)| e.offset);
    let mut best: Option<Best> = None;
    let mut run: Vec<Piece> = Vec::new();
    let mut next = arena.offset;
    let free = |from: u64, to: u64| Piece { len: to - from, occupant: None, cost: 0 };
    for &(slot, epoch, extent, evictable) in &sorted {
        if extent.offset > next {
            run.push(free(next, extent.offset));
        }
        if evictable {
            run.push(Piece { len: extent.len, occupant: Some((slot, epoch)), cost: cost(slot) });
        } else {
            best = Best::of(best, &run, need);
            run.clear();
        }
        next = next.max(extent.end());
    }
    let end = arena.offset.saturating_add(arena.len);
    if end > next {
        run.push(free(next, end));
    }
    Best::of(best, &run, need).map(|b| b.victims)
}

struct Best {
    cost: u128,
    victims: Vec<(u32, u32)>,
}

impl Best {
    /// The better of `best` and the cheapest window of this run. Costs are not negative, so for
    /// each right end the shortest window that is long enough is the cheapest.
    fn of(best: Option<Best>, run: &[Piece], need: u64) -> Option<Best> {
        let victims_of = |p: &Piece| usize::from(p.occupant.is_some());
        let mut price = best.as_ref().map(|b| (b.cost, b.victims.len()));
        let mut window = None;
        let (mut first, mut len, mut cost, mut count) = (0, 0u64, 0u128, 0usize);
        for (last, piece) in run.iter().enumerate() {
            len += piece.len;
            cost += u128::from(piece.cost);
            count += victims_of(piece);
            while first < last && len - run[first].len >= need {
                len -= run[first].len;
                cost -= u128::from(run[first].cost);
                count -= victims_of(&run[first]);
                first += 1;
            }
            if len >= need && price.is_none_or(|p| (cost, count) < p) {
                price = Some((cost, count));
                window = Some((first, last));
            }
        }
        match (window, price) {
            (Some((first, last)), Some((cost, _))) => {
                let victims = run[first..=last].iter().filter_map(|p| p.occupant).collect();
                Some(Best { cost, victims })
            }
            _ => best,
        }
    }
}

#[cfg(test)]
mod tests;
