//! A peer that writes arbitrary values into the shared words [I19]: an end may refuse, read wrong
//! bytes, or wait until its limit, but must not panic, read outside the ring, or hang.

use super::ends::{LANE_BYTES, LIMIT, runtime, sockets};
use crate::ring::lane::{LaneReader, LaneWriter};
use crate::ring::layout::EndAt;
use crate::ring::stream::{RingStream, Waiting};
use nkv_store::shm::MemfdMemory;
use nkv_store::{AnonMemory, Memory};
use proptest::prelude::*;
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const MEMORY_BYTES: u64 = 4096 + 2 * LANE_BYTES;

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..3 * LANE_BYTES,
        0..64_u64,
        (0..64_u64).prop_map(|n| u64::MAX - n),
        (0..64_u64).prop_map(|n| 1 << n),
    ]
}

proptest! {
    #[test]
    fn i19_no_counter_of_the_peer_makes_a_lane_give_more_than_it_has(
        words in proptest::collection::vec((word(), word(), 0..9000_usize), 1..60),
    ) {
        let memory = AnonMemory::new(MEMORY_BYTES).unwrap();
        let at = EndAt::node(LANE_BYTES);
        let mut reader = LaneReader::new(at.incoming);
        let mut writer = LaneWriter::new(at.outgoing);
        let (mut read, mut written, mut tail, mut head) = (0_u64, 0_u64, 0_u64, 0_u64);
        for (new_tail, new_head, len) in words {
            memory.store(at.incoming.tail, new_tail).unwrap();
            let mut dst = vec![0; len];
            if let Ok(n) = reader.read(&memory, &mut dst) {
                read += n as u64;
                tail = tail.max(read);
                prop_assert!(n <= len && n as u64 <= LANE_BYTES);
            }
            let _ = reader.release(&memory);
            memory.store(at.outgoing.head, new_head).unwrap();
            if let Ok(n) = writer.write(&memory, &dst) {
                written += n as u64;
                head = head.max(new_head.min(written));
                prop_assert!(n <= len && written - head <= LANE_BYTES, "{written} {head}");
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Corruption {
    /// Stores a word of the ring.
    Word(u64, u64),
    /// Writes so many bytes to the socket.
    Bells(usize),
    /// Sleeps for so many microseconds.
    Rest(u64),
}

fn deeds() -> impl Strategy<Value = Vec<Corruption>> {
    let deed = prop_oneof![
        4 => (0..6_u64, word()).prop_map(|(i, word)| Corruption::Word(i * 128, word)),
        1 => (1..200_usize).prop_map(Corruption::Bells),
        1 => (0..300_u64).prop_map(Corruption::Rest),
    ];
    proptest::collection::vec(deed, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn i19_garbage_in_the_shared_words_neither_panics_nor_hangs_an_end(
        deeds in deeds(),
        client in any::<bool>(),
        thread in any::<bool>(),
        bytes in 1..20_000_usize,
    ) {
        let ours = MemfdMemory::create(MEMORY_BYTES).unwrap();
        let theirs = MemfdMemory::take(ours.fd().try_clone_to_owned().unwrap(), MEMORY_BYTES);
        let (socket, mut peer) = sockets();
        let hostile = std::thread::scope(|scope| {
            scope.spawn(move || {
                let theirs = theirs.unwrap();
                for deed in deeds {
                    match deed {
                        Corruption::Word(at, word) => theirs.store(at, word).unwrap(),
                        Corruption::Bells(n) => drop(peer.write(&vec![0; n])),
                        Corruption::Rest(us) => std::thread::sleep(Duration::from_micros(us)),
                    }
                }
                // Only the end of the socket is reliable.
                drop(peer);
            });
            runtime().block_on(async {
                let socket = UnixStream::from_std(socket).unwrap();
                let waiting = if thread { Waiting::Thread } else { Waiting::Task };
                let mut ring = match client {
                    true => RingStream::client(ours, socket, LANE_BYTES, waiting).unwrap(),
                    false => RingStream::node(ours, socket, LANE_BYTES),
                };
                let work = async {
                    let _ = ring.write_all(&vec![7; bytes]).await;
                    let mut all = Vec::new();
                    let _ = (&mut ring).take(1 << 20).read_to_end(&mut all).await;
                };
                tokio::time::timeout(LIMIT, work).await
            })
        });
        prop_assert!(hostile.is_ok(), "an end hangs");
    }
}
