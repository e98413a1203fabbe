//! The layout of a ring's memory. Words that different ends write are two cache lines apart, since
//! the hardware fetches lines in pairs. No part of the layout is read from the memory itself.

use super::sleep::Sleep;
use std::io;

/// Distance between two words that different ends write.
const APART: u64 = 128;
/// The words come first; the lanes' bytes start at this offset.
const BYTES_AT: u64 = 4096;
/// Lane sizes in bytes that an end accepts: a power of two in this range.
pub(super) const LANE_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 20;

/// Offsets of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneAt {
    /// Offset of the count of bytes ever written: the writer's word.
    pub tail: u64,
    /// Offset of the count of bytes ever read: the reader's word.
    pub head: u64,
    /// Offset of the first byte of the lane.
    pub bytes: u64,
    /// Length of the lane in bytes, a power of two.
    pub len: u64,
}

/// Offsets for one end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndAt {
    /// The lane it reads.
    pub incoming: LaneAt,
    /// The lane it writes.
    pub outgoing: LaneAt,
    /// The words by which the two ends wake each other.
    pub sleep: Sleep,
}

impl EndAt {
    /// Offsets for the end that created a ring with lanes of `lane_bytes` bytes and answers
    /// requests.
    pub(crate) fn node(lane_bytes: u64) -> Self {
        let lane = |words: u64, bytes: u64| LaneAt {
            tail: words * APART,
            head: (words + 1) * APART,
            bytes: BYTES_AT + bytes,
            len: lane_bytes,
        };
        let sleep = Sleep { own: 4 * APART, peers: 5 * APART };
        Self { incoming: lane(0, 0), outgoing: lane(2, lane_bytes), sleep }
    }

    /// The same for the end that sends requests.
    pub(crate) fn client(lane_bytes: u64) -> Self {
        let Self { incoming, outgoing, sleep } = Self::node(lane_bytes);
        let sleep = Sleep { own: sleep.peers, peers: sleep.own };
        Self { incoming: outgoing, outgoing: incoming, sleep }
    }
}

/// Bytes of memory for a ring with such lanes; an error for a size that is not accepted.
pub(super) fn memory_bytes(lane_bytes: u64) -> io::Result<u64> {
    if lane_bytes.is_power_of_two() && LANE_BYTES.contains(&lane_bytes) {
        return Ok(BYTES_AT + 2 * lane_bytes);
    }
    let (least, most) = LANE_BYTES.into_inner();
    let why =
        format!("a ring with lanes of {lane_bytes} bytes; a power of two from {least} to {most}");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}
