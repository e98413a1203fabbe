//! The default payload memory of each rank in an embedded replay: what the trace's unique blocks
//! need, bounded by the memory available now (the lesser of MemAvailable and what the control
//! groups leave).

use super::file::Request;
use anyhow::ensure;
use nkv_programs::sizes::show_bytes;
use std::collections::HashSet;

/// Payloads are placed in units of this many bytes.
const UNIT: u64 = 4096;
/// Percent of all blocks that one of several ranks may have to hold when blocks are spread by hash,
/// including rounding to the allocator's bins and the watermark.
const SHARE_PERCENT: u64 = 55;
/// Least bytes on its disk.
const LEAST_ON_DISK: u64 = 256 << 20;
/// Least payload bytes of a rank.
const LEAST: u64 = 16 << 20;

/// Payload bytes for each of `ranks` ranks. Prints how the number was computed.
///
/// # Errors
/// If the available memory cannot be determined.
pub(super) fn per_rank(requests: &[Request], block_bytes: u64, ranks: u32) -> anyhow::Result<u64> {
    let available = nkv_store::shm::available_bytes();
    ensure!(available > 0, "this machine does not say what memory is available: give --heap-bytes");
    let unique = unique(requests);
    let need = needed(unique, block_bytes, ranks);
    let limit = available / 2 / u64::from(ranks);
    eprintln!(
        "nkv-load: {} unique blocks want {} a rank; {} are available, half of that allows {} a \
         rank",
        unique,
        show_bytes(need),
        show_bytes(available),
        show_bytes(limit)
    );
    Ok(need.min(limit))
}

/// Payload bytes for each of `ranks` ranks if all together have room for that percentage of the
/// unique blocks.
pub(super) fn part(requests: &[Request], block_bytes: u64, ranks: u32, percent: f64) -> u64 {
    let all = unique(requests).saturating_mul(block_bytes.next_multiple_of(UNIT));
    let bytes = (all as f64 * percent / 100.0 / f64::from(ranks)) as u64;
    (bytes - bytes % UNIT).max(UNIT)
}

/// Bytes on the disk of each of `ranks` ranks with room for every block, also where one rank has
/// more than its share.
pub(super) fn on_disk(requests: &[Request], block_bytes: u64, ranks: u32) -> u64 {
    let all = unique(requests).saturating_mul(block_bytes.next_multiple_of(UNIT) + UNIT);
    (all / u64::from(ranks) * 2).max(LEAST_ON_DISK)
}

/// Blocks that differ.
fn unique(requests: &[Request]) -> u64 {
    let unique: HashSet<u64> = requests.iter().flat_map(|r| &r.hash_ids).copied().collect();
    unique.len() as u64
}

fn needed(unique_blocks: u64, block_bytes: u64, ranks: u32) -> u64 {
    let all = unique_blocks.saturating_mul(block_bytes.next_multiple_of(UNIT));
    let share = if ranks == 1 { all / 10 * 11 } else { all / 100 * SHARE_PERCENT };
    share.max(LEAST).max(block_bytes.saturating_mul(4)).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::super::file::Request;
    use super::{LEAST, needed, part};

    #[test]
    fn a_part_counts_blocks_once_in_whole_units() {
        let of = |ids: &[u64]| Request { timestamp_ms: 0.0, hash_ids: ids.to_vec() };
        let requests = [of(&(0..300).collect::<Vec<_>>()), of(&[0, 1, 2])];
        assert_eq!(part(&requests, 4000, 3, 10.0), 10 * 4096);
        assert_eq!(part(&requests, 4096, 3, 0.1), 4096);
    }

    #[test]
    fn small_blocks_are_counted_as_the_units_they_take() {
        assert_eq!(needed(0, 4096, 3), LEAST);
        let all = 100_000 * 4096;
        assert_eq!(needed(100_000, 1, 3), needed(100_000, 4096, 3));
        assert!(needed(100_000, 4096, 3) * 3 > all + all / 2);
    }
}
