//! How a claim ends, and how the claims of an ended producer are settled.

use super::*;

#[test]
fn i10_a_claim_that_is_over_takes_nothing_more() {
    let w = world(16);
    let (a, b) = (w.start_write(1, U), w.start_write(2, U));
    let payload = [1; U as usize];
    w.post(&mut a.publication().whole(&payload)).unwrap();
    w.post(&mut b.abort().ops()).unwrap();
    assert_eq!(w.rights.open(), (0, 0));
    for write in [&a, &b] {
        w.refused(write.publication().page(0, &payload));
        for op in write.publication().announce() {
            w.refused(op);
        }
        let [_, ready] = write.publication().publish();
        w.refused(ready);
        let [_, _, _, dead] = write.abort().ops().map(|op| intent(&op));
        let (_, cut) = line();
        assert!(w.rights.check(&dead.unwrap(), &cut).is_err());
    }
}

#[test]
fn i10_its_last_verb_is_the_last_of_its_request_too() {
    let w = world(16);
    let a = w.start_write(1, U);
    let publication = a.publication();
    w.post(&mut publication.announce()).unwrap();
    let payload = [1; U as usize];
    let [flush, ready] = publication.publish();
    let before = w.bytes();
    let why = w.post(&mut [flush, ready, publication.page(0, &payload)]).unwrap_err();
    assert!(why.contains("last verb") && before == w.bytes(), "{why}");
    // A refused request ended nothing.
    w.post(&mut publication.whole(&payload)).unwrap();
}

#[test]
fn i10_a_ready_that_did_not_take_leaves_the_claim_open() {
    let w = world(16);
    let a = w.start_write(1, U);
    let publication = a.publication();
    let fields = publication.announce().into_iter().next().unwrap();
    w.post(&mut [fields]).unwrap();
    // WRITING was never stored.
    let mut ops = publication.publish();
    w.post(&mut ops).unwrap();
    assert_eq!(publication.took(&ops), Err(0));
    assert_eq!(w.rights.open(), (1, 0));
    w.post(&mut publication.whole(&[1; U as usize])).unwrap();
    assert_eq!(w.rights.open(), (0, 0));
}

#[test]
fn i10_a_claim_ends_only_when_no_other_request_is_inside_it() {
    let w = world(16);
    let (a, b) = (w.start_write(1, U), w.start_write(2, U));
    let (publication, payload) = (a.publication(), [1; U as usize]);
    w.post(&mut publication.announce()).unwrap();
    let ((hangs, cut), (other, other_cut)) = (line(), line());
    let inside = w.request(&cut);
    inside.check(&[publication.page(0, &payload)]).unwrap();
    let beside = w.request(&other_cut);
    beside.check(&[b.publication().page(0, &payload)]).unwrap();
    let why = w.post(&mut publication.publish()).unwrap_err();
    assert!(why.contains("1 other requests are inside"), "{why}");
    assert_eq!(hangs.0.load(Ordering::SeqCst), 0, "READY waits for the pages");
    // An abort ends it and cuts the requests inside this claim, but not those inside another one.
    assert!(w.post(&mut a.abort().ops()).is_err());
    assert_eq!((hangs.0.load(Ordering::SeqCst), other.0.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(w.memory.load(w.header(&a) + PUBLISH_OFF).unwrap(), writing(1));
    drop(inside);
    // While a request ends the claim, no other one is admitted.
    let ender = w.request(&other_cut);
    ender.check(&publication.publish()).unwrap();
    let late = w.post(&mut [publication.page(0, &payload)]).unwrap_err();
    assert!(late.contains("last verb"), "{late}");
    drop(ender);
    w.post(&mut a.abort().ops()).unwrap();
    drop(beside);
}

#[test]
fn i13_only_an_open_claim_that_was_never_written_is_abandoned() {
    let w = world(16);
    let (a, b, c) = (w.start_write(1, U), w.start_write(2, 2 * U), w.start_write(3, U));
    let claim = |write: &ClaimWrite, n| Abandon { p: write.position, n };
    assert!(!w.rights.abandon(claim(&a, 2 * U)) && !w.rights.abandon(Abandon { p: 64, n: U }));
    w.post(&mut a.publication().announce()).unwrap();
    assert!(!w.rights.abandon(claim(&a, U)), "it was written");
    let (_, cut) = line();
    let inside = w.request(&cut);
    inside.check(&[b.publication().page(0, &[1; 8])]).unwrap();
    assert!(!w.rights.abandon(claim(&b, 2 * U)), "it is about to be written");
    drop(inside);
    assert!(w.rights.abandon(claim(&b, 2 * U)), "what was refused or cut wrote nothing");
    assert!(!w.rights.abandon(claim(&b, 2 * U)), "it is over");
    w.refused(b.publication().page(0, &[1; 8]));
    w.post(&mut c.publication().whole(&[1; U as usize])).unwrap();
    assert!(!w.rights.abandon(claim(&c, U)));
    assert_eq!(w.rights.open(), (1, 0));
}

#[test]
fn i13_i14_what_an_ended_producer_left_is_settled_and_nothing_stays_unknown() {
    let mut w = world(8);
    (0..5).for_each(|name| w.put(name, U));
    let (published, written) = (w.start_write(10, U), w.start_write(11, U));
    let _claimed_only = w.claim(12, U);
    let (waits, above) = (w.claim(13, 2 * U), w.claim(14, U));
    assert!(matches!((&waits, &above), (ClaimStep::Wait(_), ClaimStep::Wait(_))));
    w.post(&mut published.publication().whole(&[10; U as usize])).unwrap();
    w.post(&mut written.publication().announce()).unwrap();
    let settled = w.rights.finish().unwrap();
    let abandoned = vec![Abandon { p: 8 * U, n: 2 * U }, Abandon { p: 10 * U, n: U }];
    let mut given_up = settled.abandoned.clone();
    given_up.sort_by_key(|claim| claim.p);
    assert_eq!((settled.dead, settled.over, settled.in_flight, &given_up), (2, 0, 0, &abandoned));
    assert!(w.rights.clear_below(u64::MAX) && w.rights.open() == (0, 0));
    // Again: nothing is done twice, and the abandoned ones are not forgotten.
    let again = w.rights.finish().unwrap();
    assert_eq!((again.dead, again.abandoned), (0, settled.abandoned));
    for claim in abandoned {
        w.log.abandon(claim).unwrap();
    }
    let counts = w.accept();
    assert_eq!((counts.skipped.claims, counts.abandoned.claims, counts.accepted.claims), (2, 2, 6));
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
    assert_eq!(w.memory.load(w.header(&published) + PUBLISH_OFF).unwrap(), ready(1));
    // Its rights have ended.
    assert!(w.add(U).unwrap_err().contains("attach again"));
    w.refused(written.publication().page(0, &[1; 8]));
}

#[test]
fn i10_nothing_is_settled_under_a_request_that_is_still_inside() {
    let mut w = world(8);
    let a = w.start_write(1, U);
    let payload = [1; U as usize];
    w.post(&mut a.publication().announce()).unwrap();
    let (_, cut) = line();
    let inside = w.request(&cut);
    let mut ops = [a.publication().page(0, &payload)];
    inside.check(&ops).unwrap();
    let early = w.rights.finish().unwrap();
    assert_eq!((early.dead, early.in_flight), (0, 1));
    assert!(!w.rights.clear_below(U));
    assert_eq!(w.memory.load(w.header(&a) + PUBLISH_OFF).unwrap(), writing(1));
    inside.step(&mut ops[0]).unwrap();
    drop(inside);
    assert_eq!(w.rights.finish().unwrap().dead, 1);
    assert_eq!(w.accept().skipped.claims, 1);
}

/// Publishes, but the agent panics between READY and recording it.
fn publish_unnoted(w: &World, write: &ClaimWrite) {
    let publication = write.publication();
    let payload = [1; U as usize];
    let mut ops = publication.whole(&payload);
    let (_, cut) = line();
    let request = w.request(&cut);
    request.check(&ops).unwrap();
    for op in &mut ops[..3] {
        request.step(op).unwrap();
    }
    w.rights.starts(&intent(&ops[3]).unwrap(), &[], &cut).unwrap();
    ops[3].run(w.memory.as_ref()).unwrap();
    drop(request);
    assert_eq!(w.rights.open(), (1, 0));
}

#[test]
fn i6_a_ready_that_was_not_noted_stays_ready() {
    let mut w = world(8);
    let write = w.start_write(0, U);
    publish_unnoted(&w, &write);
    let before = w.bytes();
    let settled = w.rights.finish().unwrap();
    assert_eq!((settled.dead, settled.over), (0, 1));
    assert!(before == w.bytes());
    assert_eq!(w.accept().accepted.claims, 1);
}

/// When it is settled, the slot already belongs to another claim.
#[test]
fn i3_a_claim_that_was_over_unnoticed_is_left_alone_and_so_is_who_came_after_it() {
    let mut w = world(8);
    let lost = w.start_write(0, U);
    publish_unnoted(&w, &lost);
    w.accept();
    let honest = Arc::new(LogRights::new(w.layout, w.memory.clone()));
    let lost_rights = std::mem::replace(&mut w.rights, honest);
    (1..8).for_each(|name| w.put(name, U));
    w.make_room();
    let next = w.start_write(9, U);
    assert_eq!(next.slot, (0, 2));
    w.post(&mut next.publication().announce()).unwrap();
    let before = w.bytes();
    let settled = lost_rights.finish().unwrap();
    assert_eq!((settled.dead, settled.over), (0, 1));
    assert!(before == w.bytes());
}
