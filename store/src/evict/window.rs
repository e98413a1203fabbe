//! Contiguous eviction, for when single victims leave only small gaps: picks the sufficiently long
//! range of neighbouring addresses with the fewest objects. It reads every extent, so it runs only
//! after several failed evictions, not for each put.

use crate::arena::Extent;
use crate::layout::Region;

/// A range of the arena: free (no occupant), or one extent.
struct Piece {
    len: u64,
    occupant: Option<(u32, u32)>,
}

/// The fewest neighbours whose removal frees a range of `need` bytes: slots and epochs, in address
/// order; empty if such a range is free already. `None` if extents that may not be evicted (flag
/// false) interrupt every range. `extents` is (slot, epoch, extent, evictable) in any order.
/// O(n log n).
pub fn cheapest_window(
    extents: &[(u32, u32, Extent, bool)],
    arena: Region,
    need: u64,
) -> Option<Vec<(u32, u32)>> {
    let mut sorted = extents.to_vec();
    sorted.sort_unstable_by_key(|(_, _, e, _)| e.offset);
    let mut best = None;
    let mut run: Vec<Piece> = Vec::new();
    let mut next = arena.offset;
    for &(slot, epoch, extent, evictable) in &sorted {
        if extent.offset > next {
            run.push(Piece { len: extent.offset - next, occupant: None });
        }
        if evictable {
            run.push(Piece { len: extent.len, occupant: Some((slot, epoch)) });
        } else {
            best = best_of(best, &run, need);
            run.clear();
        }
        next = next.max(extent.end());
    }
    let end = arena.offset.saturating_add(arena.len);
    if end > next {
        run.push(Piece { len: end - next, occupant: None });
    }
    best_of(best, &run, need)
}

/// The better of `best` and the window of this run with the fewest victims. For each right end the
/// shortest window that is long enough has the fewest.
fn best_of(best: Option<Vec<(u32, u32)>>, run: &[Piece], need: u64) -> Option<Vec<(u32, u32)>> {
    let victims_of = |p: &Piece| usize::from(p.occupant.is_some());
    let mut fewest = best.as_ref().map(Vec::len);
    let mut window = None;
    let (mut first, mut len, mut count) = (0, 0u64, 0usize);
    for (last, piece) in run.iter().enumerate() {
        len += piece.len;
        count += victims_of(piece);
        while first < last && len - run[first].len >= need {
            len -= run[first].len;
            count -= victims_of(&run[first]);
            first += 1;
        }
        if len >= need && fewest.is_none_or(|n| count < n) {
            fewest = Some(count);
            window = Some(first..=last);
        }
    }
    match window {
        Some(range) => Some(run[range].iter().filter_map(|p| p.occupant).collect()),
        None => best,
    }
}

#[cfg(test)]
mod tests;
