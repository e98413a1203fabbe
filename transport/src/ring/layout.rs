//! The layout of a ring's memory. Words that different ends write are two cache lines apart, since
//! the hardware fetches lines in pairs. No part of the layout is read from the memory itself.

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

/// The two ends of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Created the ring and answers requests.
    Node,
    /// Sends requests.
    Client,
}

/// Offsets for one end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndAt {
    /// The lane it reads.
    pub incoming: LaneAt,
    /// The lane it writes.
    pub outgoing: LaneAt,
    /// Its own sleep word, and the other end's.
    pub own: u64,
    pub peers: u64,
}

impl EndAt {
    /// Offsets for an end of a ring whose lanes have `lane_bytes` bytes.
    pub(crate) fn new(end: End, lane_bytes: u64) -> EndAt {
        let lane = |words: u64, bytes: u64| LaneAt {
            tail: words * APART,
            head: (words + 1) * APART,
            bytes: BYTES_AT + bytes,
            len: lane_bytes,
        };
        let (to_node, to_client) = (lane(0, 0), lane(2, lane_bytes));
        let (node, client) = (4 * APART, 5 * APART);
        match end {
            End::Node => EndAt { incoming: to_node, outgoing: to_client, own: node, peers: client },
            End::Client => {
                EndAt { incoming: to_client, outgoing: to_node, own: client, peers: node }
            }
        }
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
