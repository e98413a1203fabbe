//! Small payloads, such as headers and index entries, arrive as the other end sent them [I20]. A
//! relay can change large ones.

use super::{GuardedAgent, Relay, TAG, guarded, guarded_with_access, knows};
use crate::{GRANT, SEGMENT_BYTES, TOKEN, eventually};
use nkv_transport::grants::Grants;
use nkv_transport::{AgentLimits, Op, TransportError, Verbs};
use std::io::Read;
use std::sync::Arc;

/// Bytes of a request with so many verbs, and of the head of its answer, each with a tag.
const fn request(verbs: usize) -> usize {
    40 + 32 * verbs + TAG
}
const ANSWER: usize = 40 + TAG;
/// A header and a pair of index buckets.
const SMALL: [usize; 3] = [1, 64, 128];
const LARGE: usize = 129;

fn bytes_at<const N: usize>(agent: &GuardedAgent, offset: u64) -> [u8; N] {
    let mut now = [0; N];
    agent.connect(knows("the right secret")).unwrap().read(offset, &mut now).unwrap();
    now
}

#[test]
fn i20_a_client_believes_no_header_or_index_entry_that_its_agent_did_not_send() {
    let agent = guarded();
    for len in SMALL {
        // First and last byte of the payload, and of its tag.
        for byte in [0, len - 1, len, len + TAG - 1] {
            let (mut relay, client) = Relay::between(&agent, move |verbs| {
                let read = verbs.read(4096, &mut vec![0; len]);
                // That connection is unusable: a new one is made, and here no agent answers it.
                (read, verbs.read(4096, &mut vec![0; len]))
            });
            relay.pass_on(request(1), |_| ());
            relay.pass_back(ANSWER + len + TAG, |bytes| bytes[ANSWER + byte] ^= 1);
            let at_its_end = relay.from_client.read(&mut [0; 1]).unwrap();
            assert_eq!(at_its_end, 0, "byte {byte} of {len}: the connection goes on");
            drop(relay);
            let (read, next) = client.join().unwrap();
            let refused = matches!(read, Err(TransportError::Unauthenticated(_)));
            assert!(refused, "byte {byte} of {len}: {read:?}");
            assert!(next.is_err(), "byte {byte} of {len}");
        }
    }
}

#[test]
fn i20_a_header_that_was_sent_before_is_not_believed_in_place_of_the_next() {
    const CHAIN: usize = ANSWER + 64 + TAG + LARGE + 64 + TAG;
    let agent = guarded();
    let healthy = agent.connect(knows("the right secret")).unwrap();
    healthy.write(TOKEN, 0, &[1; 64]).unwrap();
    healthy.write(TOKEN, 64, &[2; 64]).unwrap();
    let read = |change: fn(&mut [u8])| {
        let (mut relay, client) = Relay::between(&agent, |verbs| {
            let (mut before, mut payload, mut after) = ([0; 64], [0; LARGE], [0; 64]);
            let mut ops = [
                Op::Read { offset: 0, dst: &mut before },
                Op::Read { offset: 4096, dst: &mut payload },
                Op::Read { offset: 64, dst: &mut after },
            ];
            verbs.post(0, &mut ops).map(|()| (before[0], payload[0], after[0]))
        });
        relay.pass_on(request(3), |_| ());
        relay.pass_back(CHAIN, change);
        drop(relay);
        client.join().unwrap()
    };
    assert_eq!(read(|_| ()).unwrap(), (1, 0, 2));
    // Large payload has no tag.
    assert_eq!(read(|bytes| bytes[ANSWER + 64 + TAG] ^= 1).unwrap(), (1, 1, 2));
    let repeated = read(|bytes| {
        let header = bytes[ANSWER..ANSWER + 64 + TAG].to_vec();
        bytes[CHAIN - 64 - TAG..].copy_from_slice(&header);
    });
    assert!(matches!(repeated, Err(TransportError::Unauthenticated(_))), "{repeated:?}");
}

#[test]
fn i20_an_agent_places_no_small_write_that_its_client_did_not_send() {
    let agent = guarded();
    for len in SMALL {
        for byte in [0, len - 1, len, len + TAG - 1] {
            let before = agent.refused();
            let (mut relay, client) = Relay::between(&agent, move |verbs| {
                let (header, ready) = (vec![7; len], Op::Store { offset: 8192, value: 1 });
                verbs.post(TOKEN, &mut [Op::Write { offset: 4096, src: &header }, ready])
            });
            let payload = request(2);
            relay.pass_on(payload + len + TAG, |bytes| bytes[payload + byte] ^= 1);
            let answer = relay.to_node.read(&mut [0; 1]);
            assert!(matches!(answer, Ok(0)) || answer.is_err(), "byte {byte} of {len}: {answer:?}");
            drop(relay);
            assert!(client.join().unwrap().is_err(), "byte {byte} of {len}");
            eventually("it was counted", || agent.refused() == before + 1);
        }
    }
    assert_eq!(bytes_at(&agent, 4096), [0; 128], "nothing was placed");
    assert_eq!(bytes_at(&agent, 8192), [0; 8], "nor what stood behind it");
}

#[test]
fn small_payloads_that_are_refused_or_read_before_a_change_leave_the_connection_in_step() {
    let grants = Arc::new(Grants::new());
    grants.open(TOKEN, GRANT);
    let agent = guarded_with_access(AgentLimits::default(), grants);
    let client = agent.connect(knows("the right secret")).unwrap();
    let inside = GRANT.extent.offset;
    for round in 1..=3u8 {
        let outside = SEGMENT_BYTES - 256;
        let mut refused = [
            Op::Write { offset: inside, src: &[9; 64] },
            Op::Write { offset: outside, src: &[9; LARGE] },
            Op::Write { offset: outside, src: &[9; 128] },
        ];
        let refused = client.post(TOKEN, &mut refused);
        assert!(matches!(refused, Err(TransportError::Refused(_))), "{refused:?}");
        let (mut before, mut large, mut after) = ([0; 64], [0; LARGE], [0; 128]);
        let mut ops = [
            Op::Read { offset: inside, dst: &mut before },
            Op::Read { offset: inside, dst: &mut large },
            Op::Write { offset: inside, src: &[round; 128] },
            Op::Read { offset: inside, dst: &mut after },
        ];
        client.post(TOKEN, &mut ops).unwrap();
        assert_eq!((before, large[..128].to_vec()), ([round - 1; 64], vec![round - 1; 128]));
        assert_eq!(after, [round; 128]);
    }
    assert_eq!(agent.agent.counters().dropped.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(agent.refused(), 0);
}
