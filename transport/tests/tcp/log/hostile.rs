//! A producer that writes outside its claims gets an error, and does not affect others [I19].

use super::*;
use crate::raw::{FETCH_ADD, REFUSED, STORE, WRITE, request};
use nkv_store::layout::{state, word};
use nkv_store::object::{ObjectDesc, producer_fields};

#[test]
fn i13_i19_what_is_outside_its_own_claims_is_refused_and_nothing_changes() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let g = rig.layout;
    let over = place(&*client, ONE, &rig, 1, 4096);
    client.post(ONE, &mut over.publication().whole(&fill(1, 4096))).unwrap();
    let mine = place(&*client, ONE, &rig, 2, 8192);
    let others = place(&*client, TWO, &rig, 3, 4096);
    // Above the limit, and across it.
    let _others = [10, 11, 12].map(|name| place(&*client, TWO, &rig, name, 16 * 4096));
    let waits = match claim(&*client, ONE, g, (4, 16 * 4096)).unwrap() {
        ClaimStep::Wait(claim) => claim.position,
        other => panic!("{other:?}"),
    };
    let (x, at) = (mine.object.payload_off(), g.header_off(mine.slot.0));
    let publish = at + PUBLISH_OFF;
    let writing = |slot, epoch| Op::Store {
        offset: g.header_off(slot) + PUBLISH_OFF,
        value: word(state::WRITING, epoch),
    };
    client.post(ONE, &mut mine.publication().announce()).unwrap();
    let before = rig.bytes();
    let payload = vec![9u8; 200_000];
    for bad in [
        Op::Write { offset: x, src: &payload[..8193] },
        Op::Write { offset: x - 1, src: &payload[..2] },
        Op::Write { offset: others.object.payload_off(), src: &payload[..4096] },
        Op::Write { offset: over.object.payload_off(), src: &payload[..8] },
        Op::Write { offset: g.payload_off(waits), src: &payload[..8] },
        Op::Write { offset: g.header_off(g.slot(waits)), src: &payload[..32] },
        Op::Write { offset: g.header_off(others.slot.0), src: &payload[..32] },
        Op::Write { offset: at + 16, src: &payload[..16] },
        Op::Write { offset: 8, src: &payload[..8] },
        Op::Store { offset: at + 48, value: word(1, 1) },
        Op::Store { offset: 8, value: 1 << 40 },
        Op::Store { offset: 16, value: 0 },
        writing(others.slot.0, 1),
        writing(over.slot.0, 1),
        writing(mine.slot.0, 2),
        writing(mine.slot.0, 0),
        writing(g.slot(waits), 1),
        Op::Store { offset: publish, value: word(state::READY, 1) },
        Op::CompareSwap {
            offset: publish,
            expect: word(state::WRITING, 1),
            new: word(state::READY, 2),
            old: 0,
        },
        Op::FetchAdd { offset: 16, add: 4095, old: 0 },
        Op::FetchAdd { offset: 16, add: 17 * 4096, old: 0 },
        Op::FetchAdd { offset: 8, add: 4096, old: 0 },
    ] {
        // With a permitted change before it: everything is checked before a byte is written.
        let shown = format!("{bad:?}").chars().take(80).collect::<String>();
        let allowed = Op::Write { offset: x, src: &payload[..4096] };
        refused(client.post(ONE, &mut [allowed, bad]));
        assert!(before == rig.bytes(), "{shown} changed something");
    }
    assert_eq!(rig.one.open(), (2, 0));
    // The connection stayed in step, and the claim is still valid.
    client.post(ONE, &mut mine.publication().whole(&fill(2, 8192))).unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    assert!(rig.payload_of(2) == fill(2, 8192));
}

#[test]
fn i13_i19_a_header_that_lies_ends_its_connection_and_settles_nobody_elses_claim() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    let g = rig.layout;
    let mine = place(&*client, ONE, &rig, 1, 4096);
    let others = place(&*client, TWO, &rig, 2, 4096);
    let at = g.header_off(mine.slot.0);
    let lie = producer_fields(key(1), &ObjectDesc::at(mine.object.payload_off(), 3 * 4096, 1));
    let mut peer = rig.raw();
    let dead = (STORE, at + PUBLISH_OFF, word(state::DEAD, 1), 0);
    let mut bytes = request(1, ONE, &[(WRITE, at, lie.len() as u64, 0), dead]);
    bytes.extend(lie);
    let before = rig.bytes();
    peer.send(&bytes);
    let answer = peer.answer().unwrap();
    assert_eq!((answer.status, answer.closing), (REFUSED, true));
    assert!(answer.text.contains("Some(12288) bytes"), "{}", answer.text);
    assert!(peer.is_closed() && before == rig.bytes());
    client.post(TWO, &mut others.publication().whole(&fill(2, 4096))).unwrap();
    rig.end(ONE);
    let counts = rig.log.counts();
    assert_eq!((counts.accepted.claims, counts.skipped.bytes), (1, 4096));
    assert!(rig.payload_of(2) == fill(2, 4096));
}

#[test]
fn i1_i14_a_producer_that_claims_without_end_is_stopped_and_others_are_not() {
    let rig = rig(1024, 4096, AgentLimits::default());
    let mut peer = rig.raw();
    peer.send(&request(1, ONE, &[(FETCH_ADD, 16, 4096, 0); 64]));
    assert_eq!(peer.answer().unwrap().results.len(), 64);
    for _ in 0..3 {
        peer.send(&request(2, ONE, &[(FETCH_ADD, 16, 4096, 0)]));
        let answer = peer.answer().unwrap();
        assert!(answer.status == REFUSED && answer.text.contains("64 claims"), "{}", answer.text);
    }
    assert_eq!(rig.memory.load(BUMP_PTR_OFF).unwrap(), 64 * 4096);
    let client = rig.client();
    client.post(TWO, &mut place(&*client, TWO, &rig, 1, 100).publication().announce()).unwrap();
}
