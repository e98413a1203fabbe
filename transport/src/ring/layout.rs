//! Where everything lies in a ring's memory. Words that different ends write are two cache lines
//! apart, since the hardware fetches lines in pairs. Nothing of this is read from the memory
//! itself.

use std::io;

/// Distance between two words that different ends write.
const APART: u64 = 128;
/// Words come first, the lanes' bytes from here on.
const BYTES_AT: u64 = 4096;
/// Sizes of a lane that an end accepts: a power of two between these.
pub(super) const LANE_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 20;

/// Offsets of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneAt {
    /// Bytes ever written: the writer's word.
    pub tail: u64,
    /// Bytes ever read: the reader's word.
    pub head: u64,
    /// First byte.
    pub bytes: u64,
    /// How many, a power of two.
    pub len: u64,
}

/// Which end of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Made it and answers.
    Node,
    /// Asks.
    Client,
}

/// What one end works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndAt {
    /// The lane it reads.
    pub incoming: LaneAt,
    /// The lane it writes.
    pub outgoing: LaneAt,
    /// Its own word about sleep, and the other end's.
    pub own: u64,
    pub peers: u64,
}

impl EndAt {
    /// An end of a ring with lanes of so many bytes.
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

/// Bytes of memory that a ring with such lanes takes; an error for sizes that cannot be.
pub(super) fn memory_bytes(lane_bytes: u64) -> io::Result<u64> {
    if lane_bytes.is_power_of_two() && LANE_BYTES.contains(&lane_bytes) {
        return Ok(BYTES_AT + 2 * lane_bytes);
    }
    let (least, most) = LANE_BYTES.into_inner();
    let why =
        format!("a ring with lanes of {lane_bytes} bytes; a power of two from {least} to {most}");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}
