//! Producers that are lost at any point: after the fence nothing more is written, and their claims
//! are settled, so that no hole is left [I10] [I14].

use super::*;
use crate::raw::{FETCH_ADD, WRITE, request};
use nkv_store::layout::{state, word};
use nkv_store::threads::spawn_named;
use std::io::Write;
use std::sync::atomic::Ordering;

#[test]
fn i14_a_claim_whose_answer_was_never_heard_is_settled_all_the_same() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let mine = place(&*client, ONE, &rig, 1, 4096);
    // It claims again and, in the same request, begins to write: then its host fails.
    let mut peer = rig.raw();
    let page = (WRITE, mine.object.payload_off(), 4096, 0);
    peer.send(&request(1, ONE, &[(FETCH_ADD, 16, 8192, 0), page]));
    peer.send(&[1; 100]);
    eventually("it has claimed", || rig.memory.load(BUMP_PTR_OFF).unwrap() == 3 * 4096);
    assert!(!rig.one.clear_below(2 * 4096) && rig.one.open() == (2, 0));
    drop(peer);
    eventually("the agent has seen its end", || {
        rig.agent.counters().dropped.load(Ordering::Relaxed) == 1
    });
    assert!(!rig.one.clear_below(2 * 4096) && rig.one.open() == (2, 0));
    rig.end(ONE);
    assert_eq!(rig.log.counts().skipped.bytes, 3 * 4096);
    assert_eq!(rig.log.unsettled_bytes().unwrap(), 0);
}

#[test]
fn i10_i14_a_producer_that_stalls_is_cut_and_everything_it_left_is_skipped() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let [stalled, announced, claimed] =
        [1, 2, 3].map(|name| place(&*client, ONE, &rig, name, 4 * 4096));
    let published = place(&*client, ONE, &rig, 4, 4096);
    client.post(ONE, &mut published.publication().whole(&fill(4, 4096))).unwrap();
    client.post(ONE, &mut announced.publication().announce()).unwrap();
    let _others = [10, 11, 12].map(|name| place(&*client, TWO, &rig, name, 16 * 4096));
    let waits = claim(&*client, ONE, rig.layout, (5, 4 * 4096)).unwrap();
    assert!(matches!(waits, ClaimStep::Wait(_)));
    let mut peer = rig.raw();
    let (x, half) = (stalled.object.payload_off(), vec![0xaa; 2 * 4096]);
    peer.send(&request(3, ONE, &[(WRITE, x, 4 * 4096, 0)]));
    peer.send(&half);
    eventually("the first half has landed", || {
        rig.memory.load(x + 2 * 4096 - 8).unwrap() == u64::from_ne_bytes([0xaa; 8])
    });
    let early = rig.one.finish().unwrap();
    assert_eq!(early.in_flight, 1, "no fence yet");
    assert_eq!(rig.publish_word(stalled.position), 0);
    let ((), took) = nkv_pace::timed(|| rig.end(ONE));
    assert!(took.within(2_000), "{took}");
    let before = rig.bytes();
    let _ = peer.0.write_all(&half);
    assert!(peer.answer().unwrap().closing && peer.is_closed());
    refused(client.post(ONE, &mut claimed.publication().announce()));
    assert!(before == rig.bytes(), "a byte arrived after the fence");
    rig.end(TWO);
    let counts = rig.log.counts();
    assert_eq!((counts.accepted.claims, counts.voided.claims), (1, 0));
    assert_eq!((counts.skipped.claims, counts.abandoned.claims), (6, 1));
    assert_eq!(rig.log.unsettled_bytes().unwrap(), 0);
}

#[test]
fn i10_an_abort_cuts_a_page_of_its_own_that_hangs() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let mine = place(&*client, ONE, &rig, 1, 4096);
    client.post(ONE, &mut mine.publication().announce()).unwrap();
    let connections = || rig.agent.counters().connections.load(Ordering::Relaxed);
    let others = connections();
    let mut peer = rig.raw();
    peer.send(&request(1, ONE, &[(WRITE, mine.object.payload_off(), 4096, 0)]));
    peer.send(&[1; 2048]);
    eventually("half of it landed", || {
        rig.memory.load(mine.object.payload_off() + 2040).unwrap() != 0
    });
    let why = refused(client.post(ONE, &mut mine.publication().publish()));
    assert!(why.contains("1 other requests"), "{why}");
    let ((), took) = nkv_pace::timed(|| {
        eventually("the abort is done", || client.post(ONE, &mut mine.abort().ops()).is_ok());
    });
    assert!(took.within(2_000), "{took}");
    assert!(peer.answer().is_err(), "its connection is gone");
    assert_eq!(rig.publish_word(0), word(state::DEAD, 1));
    let before = rig.bytes();
    let _ = peer.0.write_all(&[2; 2048]);
    eventually("nobody is left who could place them", || connections() == others);
    assert!(before == rig.bytes());
    rig.log.accept(0, &mut rig.index).unwrap();
    assert_eq!(rig.log.counts().skipped.claims, 1);
}

#[test]
fn i10_i14_a_producer_ended_at_any_moment_writes_nothing_after_it_and_leaves_no_hole() {
    for round in 0..40u64 {
        let mut rig = rig(4096, 256, AgentLimits::default());
        let client = rig.client();
        let writers: Vec<_> = (0..2u64)
            .map(|t| {
                let (client, layout) = (client.clone(), rig.layout);
                spawn_named("writer", move || {
                    for name in 0..2_000 {
                        let object = (t << 32 | name, 1 + name * 37 % 1000);
                        let write = match claim(&*client, ONE, layout, object) {
                            Ok(ClaimStep::Write(write)) => write,
                            Ok(_) => return None,
                            Err(e) => return Some(e),
                        };
                        let payload = fill(object.0, object.1);
                        let publication = write.publication();
                        if let Err(e) = client.post(ONE, &mut publication.whole(&payload)) {
                            return Some(e);
                        }
                    }
                    None
                })
                .unwrap()
            })
            .collect();
        let at_least = 256 * (1 + round * 7 % 50);
        eventually("they work", || rig.memory.load(BUMP_PTR_OFF).unwrap() >= at_least);
        rig.end(ONE);
        let before = rig.bytes();
        for writer in writers {
            let e = writer.join().unwrap();
            assert!(e.is_none_or(|e| matches!(
                e,
                TransportError::Refused(_) | TransportError::Disconnected(_)
            )));
        }
        assert!(before == rig.bytes(), "a byte arrived after the fence");
        rig.log.accept(0, &mut rig.index).unwrap();
        assert_eq!(rig.log.unsettled_bytes().unwrap(), 0, "a hole was left");
        assert_eq!(rig.log.counts().voided.claims, 0);
    }
}
