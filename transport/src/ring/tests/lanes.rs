//! A lane against a queue: for any sizes of writes and reads the bytes and the room are the same.

use crate::ring::lane::{LaneReader, LaneWriter};
use crate::ring::layout::EndAt;
use nkv_store::AnonMemory;
use proptest::prelude::*;
use std::collections::VecDeque;

const LANE_BYTES: u64 = 64;
const MEMORY_BYTES: u64 = 4096 + 2 * LANE_BYTES;

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<u8>),
    Read(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = proptest::collection::vec(any::<u8>(), 0..100).prop_map(Step::Write);
    let read = (0..100_usize).prop_map(Step::Read);
    proptest::collection::vec(prop_oneof![write, read], 1..200)
}

proptest! {
    #[test]
    fn a_lane_is_a_bounded_queue_of_bytes(steps in steps()) {
        let memory = AnonMemory::new(MEMORY_BYTES).unwrap();
        let at = EndAt::client(LANE_BYTES).outgoing;
        let (mut writer, mut reader) = (LaneWriter::new(at), LaneReader::new(at));
        let mut queue = VecDeque::new();
        // Read, but not released yet.
        let mut kept = 0;
        for step in steps {
            match step {
                Step::Write(bytes) => {
                    let room = LANE_BYTES as usize - queue.len() - kept;
                    let n = writer.write(&memory, &bytes).unwrap();
                    prop_assert_eq!(n, room.min(bytes.len()));
                    queue.extend(&bytes[..n]);
                }
                Step::Read(most) => {
                    let mut dst = vec![0; most];
                    let n = reader.read(&memory, &mut dst).unwrap();
                    prop_assert!(n <= queue.len());
                    prop_assert!(n > 0 || most == 0 || queue.is_empty());
                    let expected: Vec<u8> = queue.drain(..n).collect();
                    prop_assert_eq!(&dst[..n], &expected[..]);
                    kept += n;
                    if reader.release(&memory).unwrap() {
                        kept = 0;
                    }
                }
            }
        }
        while reader.read(&memory, &mut [0; 7]).unwrap() > 0 {}
        prop_assert!(reader.release(&memory).unwrap());
        prop_assert_eq!(writer.room(&memory).unwrap(), LANE_BYTES, "room was lost");
    }
}

#[test]
fn the_words_of_the_two_ends_lie_apart_and_before_the_bytes() {
    let (node, client) = (EndAt::node(LANE_BYTES), EndAt::client(LANE_BYTES));
    for (a, b) in [(node, client), (client, node)] {
        assert_eq!((a.sleep.own, a.sleep.peers), (b.sleep.peers, b.sleep.own));
        assert_eq!(a.outgoing.tail, b.incoming.tail);
        // What each end writes.
        let mine = [a.sleep.own, a.outgoing.tail, a.incoming.head];
        let theirs = [b.sleep.own, b.outgoing.tail, b.incoming.head];
        for (m, t) in mine.iter().flat_map(|m| theirs.map(|t| (*m, t))) {
            assert!(m.abs_diff(t) >= 128 && m < 4096 && t < 4096);
        }
        let lanes = [a.outgoing.bytes, b.outgoing.bytes];
        assert!(lanes[0].abs_diff(lanes[1]) >= LANE_BYTES && lanes.iter().all(|b| *b >= 4096));
    }
}
