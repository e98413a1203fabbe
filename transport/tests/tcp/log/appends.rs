//! Puts that the agent makes: each claims, writes and publishes as a producer's does, or nothing is
//! written; and nothing that a producer leaves midway keeps the log from going on.

use super::*;
use crate::raw::{OK, WRITE, append, request_of};
use nkv_store::StoreError;
use nkv_store::layout::{state, word};
use nkv_store::object::SetMark;
use nkv_store::testkit::MemoryDouble;
use nkv_transport::log_rights::MAX_OPEN_CLAIMS;
use nkv_transport::verbs::{Append, Appended};
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects by name and length, appended in one request.
fn append_all(
    client: &TcpVerbs,
    token: u64,
    objects: &[(u64, u64)],
) -> (Result<(), TransportError>, Vec<Appended>, ControlLine) {
    let payloads: Vec<_> = objects.iter().map(|(name, bytes)| fill(*name, *bytes)).collect();
    let named = objects.iter().zip(&payloads);
    let mut appends: Vec<_> =
        named.map(|((name, _), payload)| Append::new(key(*name), 4096, payload)).collect();
    let mut line = ControlLine::unread();
    let done = client.append(token, &mut appends, &mut line).unwrap();
    (done, appends.iter().map(|append| append.outcome).collect(), line)
}

fn make_room(rig: &mut Fixture) {
    rig.log.retire_ahead(0, &mut rig.index).unwrap();
    rig.log.advance(0, |_, _| true).unwrap();
}

#[test]
fn i13_many_objects_are_put_by_one_request_and_the_owner_accepts_each() {
    let mut rig = rig(256, 4096, AgentLimits::default());
    let client = rig.client();
    let objects = [(1, 4096), (2, 0), (3, 1), (4, 64), (5, 128), (6, 129), (7, 200_000)];
    let (done, outcomes, line) = append_all(&client, ONE, &objects);
    done.unwrap();
    assert_eq!(rig.agent.counters().requests.load(Ordering::Relaxed), 1);
    let mut p = 0;
    for (outcome, (_, bytes)) in outcomes.iter().zip(objects) {
        assert_eq!(*outcome, Appended::Ready(p));
        p += rig.layout.claim_bytes(bytes).unwrap();
    }
    assert_eq!(line.bump_ptr(), p);
    assert_eq!(line.heap_limit(), rig.layout.log_bytes());
    // No claim is open any more.
    assert!(rig.one.open() == (0, 0) && rig.one.clear_below(u64::MAX));
    assert_eq!(rig.log.accept(0, &mut rig.index).unwrap(), objects.len() as u64);
    for (name, bytes) in objects {
        assert!(rig.payload_of(name) == fill(name, bytes), "{name}");
    }
    // The connection is in step.
    assert_eq!(client.load(BUMP_PTR_OFF).unwrap(), p);
}

#[test]
fn the_mark_of_replicas_arrives_in_the_header() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let mark = SetMark::new(77, 3);
    let (marked, alone) = (fill(1, 5000), fill(2, 5000));
    let mut appends =
        [Append::new(key(1), 4096, &marked).in_set(mark), Append::new(key(2), 4096, &alone)];
    client.append(ONE, &mut appends, &mut ControlLine::unread()).unwrap().unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    let mut marks: Vec<_> = rig.log.live().map(|o| (o.key, o.mark)).collect();
    marks.sort_by_key(|(id, _)| *id != key(1));
    assert_eq!(marks, [(key(1), mark), (key(2), SetMark::NONE)]);
    assert!(rig.payload_of(1) == marked && rig.payload_of(2) == alone);
}

#[test]
fn i13_appends_go_round_the_log_and_every_claim_is_accounted_for() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let (mut put, mut name) = (0, 0);
    while put < 6 * rig.layout.log_bytes() {
        let objects: Vec<_> = (0..5).map(|i| (name + i, 1 + (name + i) * 977 % 12_000)).collect();
        let (done, outcomes, _) = append_all(&client, ONE, &objects);
        done.unwrap();
        rig.log.accept(0, &mut rig.index).unwrap();
        for ((name, bytes), outcome) in objects.iter().zip(outcomes) {
            if let Appended::Ready(_) = outcome {
                assert!(rig.payload_of(*name) == fill(*name, *bytes), "{name}");
                put += bytes;
            } else {
                assert_eq!(outcome, Appended::NoRoom);
            }
        }
        name += 5;
        make_room(&mut rig);
    }
    assert!(rig.log.counts().skipped.claims > 0, "a claim crossed the end");
    assert_eq!(rig.log.counts().voided.claims, 0);
    assert_eq!((rig.log.unsettled_bytes().unwrap(), rig.one.open()), (0, (0, 0)));
}

#[test]
fn i13_without_room_or_rights_nothing_is_written_and_the_connection_stays_in_step() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let large = 16 * 4096;
    let (done, outcomes, _) = append_all(&client, ONE, &[1, 2, 3, 4].map(|name| (name, large)));
    done.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Appended::Ready(_))));
    rig.end(TWO);
    let before = rig.bytes();
    let (done, outcomes, _) = append_all(&client, ONE, &[(5, large), (6, 100), (7, 17 * 4096)]);
    done.unwrap();
    assert_eq!(outcomes, [Appended::NoRoom; 3]);
    // An unknown token, and one whose rights have ended.
    refused(append_all(&client, 77, &[(5, 5000)]).0);
    refused(append_all(&client, TWO, &[(5, 5000)]).0);
    assert!(before == rig.bytes());
    assert_eq!(client.load(BUMP_PTR_OFF).unwrap(), 4 * large);
}

#[test]
fn i19_a_producer_with_too_many_open_claims_gets_no_further_one() {
    let rig = rig(1024, 4096, AgentLimits::default());
    let client = rig.client();
    for _ in 0..MAX_OPEN_CLAIMS {
        client.fetch_add(ONE, BUMP_PTR_OFF, 4096).unwrap();
    }
    let (done, outcomes, _) = append_all(&client, ONE, &[(1, 5000), (2, 10)]);
    done.unwrap();
    assert_eq!(outcomes, [Appended::Refused; 2]);
    assert_eq!(client.load(BUMP_PTR_OFF).unwrap(), MAX_OPEN_CLAIMS as u64 * 4096);
    assert_eq!(append_all(&client, TWO, &[(1, 5000)]).1, [Appended::Ready(64 * 4096)]);
}

#[test]
fn i14_a_producer_lost_in_the_middle_of_its_payload_leaves_no_hole() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    for (lost, len) in [8192u64, 100].into_iter().enumerate() {
        let mut peer = rig.raw();
        peer.send(&append(1, ONE, len));
        peer.send(&[1; 50]);
        let claimed = rig.layout.claim_bytes(len).unwrap();
        eventually("it has claimed", || {
            rig.memory.load(BUMP_PTR_OFF).unwrap() >= claimed && rig.one.open() == (1, 0)
        });
        drop(peer);
        eventually("the agent has aborted it", || rig.one.open() == (0, 0));
        rig.log.accept(0, &mut rig.index).unwrap();
        assert_eq!(rig.log.counts().skipped.claims, lost as u64 + 1);
        assert_eq!(rig.log.unsettled_bytes().unwrap(), 0);
    }
    assert_eq!(rig.publish_word(0), word(state::DEAD, 1));
    assert!(rig.index.0.is_empty());
}

#[test]
fn i10_i14_a_fence_in_the_middle_of_an_append_ends_it_and_no_byte_follows() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let mut peer = rig.raw();
    peer.send(&append(1, ONE, 8192));
    peer.send(&[1; 4096]);
    let half = rig.layout.payload_off(0) + 4088;
    eventually("half of it landed", || rig.memory.load(half).unwrap() != 0);
    assert!(!rig.one.clear_below(4096));
    rig.end(ONE);
    let before = rig.bytes();
    let _ = std::io::Write::write_all(&mut peer.0, &[2; 4096]);
    assert!(peer.answer().unwrap().closing && peer.is_closed());
    assert!(before == rig.bytes(), "a byte arrived after the fence");
    assert_eq!((rig.log.counts().skipped.claims, rig.log.unsettled_bytes().unwrap()), (1, 0));
}

/// Another producer claims between the agent's look at the bump and its claim: the word that it
/// reads is as old as `behind` says.
#[derive(Debug)]
struct OldBump {
    inner: Arc<dyn Memory>,
    behind: Arc<AtomicU64>,
}

impl MemoryDouble for OldBump {
    fn inner(&self) -> &dyn Memory {
        &*self.inner
    }

    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        let old = if offset == BUMP_PTR_OFF { self.behind.load(Ordering::Relaxed) } else { 0 };
        Ok(self.inner.load(offset)? - old)
    }
}

#[test]
fn i13_a_claim_that_others_overtook_is_left_open_for_its_producer_to_write_or_give_up() {
    let behind = Arc::new(AtomicU64::new(0));
    let of_agent = behind.clone();
    let mut rig = rig_with(64, 4096, AgentLimits::default(), |inner| {
        Arc::new(OldBump { inner, behind: of_agent })
    });
    let client = rig.client();
    let large = 16 * 4096;
    append_all(&client, ONE, &[1, 2, 3, 4].map(|name| (name, large))).0.unwrap();
    behind.store(large, Ordering::Relaxed);
    let before = rig.bytes();
    let (done, outcomes, line) = append_all(&client, ONE, &[(5, 5000), (6, 5000)]);
    done.unwrap();
    let waits = [4 * large, 4 * large + 8192];
    assert_eq!(outcomes, waits.map(Appended::Waits));
    assert_eq!(line.heap_limit(), 4 * large);
    let header = rig.layout.header_off(0) as usize;
    assert!(before[header..] == rig.bytes()[header..], "nothing is written above the limit");
    assert!(rig.one.open() == (2, 0) && !rig.one.clear_below(4 * large + 1));
    // One is given up; the other is written once there is room.
    let given_up = Abandon { p: waits[1], n: 8192 };
    assert!(rig.one.abandon(given_up));
    rig.log.abandon(given_up).unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    make_room(&mut rig);
    let put = LogPut::new(rig.layout, key(5), 4096, 5000).unwrap();
    let limit = client.load(nkv_store::device_log::HEAP_LIMIT_OFF).unwrap();
    let ClaimStep::Write(write) = put.claimed(waits[0]).next(limit) else { panic!("{limit}") };
    client.post(ONE, &mut write.publication().whole(&fill(5, 5000))).unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    assert!(rig.payload_of(5) == fill(5, 5000));
    assert_eq!((rig.log.unsettled_bytes().unwrap(), rig.one.open()), (0, (0, 0)));
}

#[test]
fn i19_an_append_without_its_own_payload_is_no_request() {
    let rig = rig(64, 4096, AgentLimits::default());
    let itself = (crate::raw::APPEND, 4096, 11, 8, 12);
    let payload = (WRITE, 1, 0, 8, 0);
    for bad in [
        &[itself][..],
        &[payload],
        &[itself, (WRITE, 1, 0, 16, 0)],
        &[itself, (WRITE, 0, 4096, 8, 0)],
        &[itself, itself, payload, payload],
        &[itself, payload, payload],
        &[(7, 0, 1, 0, 0), itself, payload],
    ] {
        let mut peer = rig.raw();
        peer.send(&request_of(1, ONE, bad));
        assert!(peer.is_closed(), "{bad:?}");
    }
    assert_eq!(rig.memory.load(BUMP_PTR_OFF).unwrap(), 0);
    let mut peer = rig.raw();
    peer.send(&append(1, ONE, 8));
    peer.send(&[5; 8]);
    let answer = peer.answer().unwrap();
    assert_eq!((answer.status, answer.results), (OK, vec![0]));
}

#[test]
fn i10_i14_a_producer_ended_at_any_moment_of_its_appends_leaves_no_hole() {
    for round in 0..30u64 {
        let mut rig = rig(4096, 256, AgentLimits::default());
        let client = rig.client();
        let writers: Vec<_> = (0..2u64)
            .map(|t| {
                let client = client.clone();
                nkv_store::threads::spawn_named("writer", move || {
                    for n in 0..500 {
                        let objects = [0, 1, 2].map(|i| (t << 32 | n << 2 | i, 1 + n * 37 % 900));
                        let (done, outcomes, _) = append_all(&client, ONE, &objects);
                        if done.is_err() || outcomes.contains(&Appended::NoRoom) {
                            return;
                        }
                    }
                })
                .unwrap()
            })
            .collect();
        let at_least = 256 * (1 + round * 11 % 60);
        eventually("they work", || rig.memory.load(BUMP_PTR_OFF).unwrap() >= at_least);
        rig.end(ONE);
        let before = rig.bytes();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(before == rig.bytes(), "a byte arrived after the fence");
        rig.log.accept(0, &mut rig.index).unwrap();
        assert_eq!(rig.log.unsettled_bytes().unwrap(), 0, "a hole was left");
        assert_eq!(rig.log.counts().voided.claims, 0);
        let served: Vec<_> = rig.index.0.values().copied().collect();
        for object in served {
            let mut bytes = vec![0; object.object.bytes_total as usize];
            rig.memory.read(object.object.payload_off(), &mut bytes).unwrap();
            let name = u64::from(bytes[0]);
            assert!(bytes == fill(name, bytes.len() as u64), "torn");
        }
    }
}
