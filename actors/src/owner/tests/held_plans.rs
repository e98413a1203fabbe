//! Plans that a producer holds for kernels when a new term begins: the owner reports without
//! waiting for them, and fences each when its kernels have ended.

use super::{Bench, NEW, OLD, Q_MS, freed, longer_than_quarantine, reported};
use crate::actor::Crash;
use crate::message::{
    ClientToOwner, MasterToOwner, OwnerToClient, OwnerToMaster, PlanId, PlanRef, SlotContent,
    SlotEntry, Term,
};
use crate::owner::NewTerm;
use crate::owner::tables::TermOrder;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::object::{ready, reserved, writing};
use std::time::Duration;

fn obeyed(held: &[PlanId]) -> ClientToOwner {
    ClientToOwner::TermObeyed { term: NEW, held: held.to_vec() }
}

fn adopted(up: &OwnerToMaster) -> Option<PlanRef> {
    match up {
        OwnerToMaster::Adopted(plan) => Some(*plan),
        _ => None,
    }
}

/// A plan of the old term in slot 0, which its producer still holds under the new one, and the
/// report.
async fn held_over_a_term(b: &mut Bench) -> PlanRef {
    let p = b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", writing(1));
    b.obeys(NEW).await;
    b.receives(MasterToOwner::RequestReport { number: 1 }).await;
    longer_than_quarantine(b).await;
    assert_eq!(b.drain_sent(), vec![], "who writes is not known yet");
    b.hears(obeyed(&[p.plan])).await;
    let slots = b.sent_to_master(reported).await;
    let [SlotEntry { slot: 0, epoch: 1, what: SlotContent::Open(open) }] = &slots[..] else {
        panic!("{slots:?}");
    };
    assert_eq!(open.plan, p.plan);
    p
}

#[tokio::test]
async fn i10_a_plan_held_over_a_new_term_keeps_its_extent_and_is_adopted_once_its_kernel_ended() {
    for panics in [false, true] {
        let mut b = Bench::new().await;
        let _process = b.attaches();
        let p = held_over_a_term(&mut b).await;
        if panics {
            let _ = b.owner.call(Crash, super::LIMIT).await;
        }
        longer_than_quarantine(&b).await;
        let sent = b.drain_sent();
        let ended = |up: &OwnerToMaster| freed(up).is_some() || adopted(up).is_some();
        assert!(!sent.iter().any(ended), "a kernel may write: {sent:?}");
        b.writes(0, "k1", ready(1));
        b.hears(ClientToOwner::Dropped(p.plan)).await;
        assert_eq!(b.sent_to_master(adopted).await.plan, p.plan, "the report had it as open");
        assert_eq!(b.word(0), ready(1));
    }
}

#[tokio::test]
async fn i8_what_a_kernel_did_not_publish_is_reclaimed_after_quarantine() {
    let mut b = Bench::new().await;
    let _process = b.attaches();
    let p = held_over_a_term(&mut b).await;
    longer_than_quarantine(&b).await;
    assert!(!b.drain_sent().iter().any(|up| freed(up).is_some()), "a kernel may write");
    let ended_ns = BootClock.now_ns();
    b.hears(ClientToOwner::Dropped(p.plan)).await;
    assert_eq!(b.sent_to_master(freed).await, b.at(0, 1));
    assert!(BootClock.now_ns() - ended_ns >= Q_MS * 1_000_000, "before quarantine was over");
    assert_eq!(b.word(0), reserved(2));
}

/// The link sets the term before the actor's message: what comes between the two counts for the
/// last term. The producer holds a plan over two terms, and may write for one that this owner never
/// received.
#[tokio::test]
async fn i10_a_term_is_not_complete_before_the_producers_were_told_of_it() {
    let mut b = Bench::new().await;
    let mut process = b.attaches();
    let p = held_over_a_term(&mut b).await;
    while process.try_recv().is_ok() {}
    let newer = Term { number: NEW.number + 1, ..NEW };
    assert_eq!(b.tables.obey(newer), TermOrder::New);
    // A late answer, and ticks.
    b.hears(obeyed(&[p.plan])).await;
    longer_than_quarantine(&b).await;
    b.owner.call(NewTerm, super::LIMIT).await.unwrap();
    assert_eq!(super::next_to_client(&mut process).await, OwnerToClient::Term(newer));
    b.receives(MasterToOwner::RequestReport { number: 2 }).await;
    longer_than_quarantine(&b).await;
    assert_eq!(b.drain_sent().iter().find_map(reported), None, "who writes is not known yet");
    b.hears(ClientToOwner::TermObeyed { term: newer, held: vec![p.plan] }).await;
    assert_eq!(b.sent_to_master(reported).await.len(), 1);
}

#[tokio::test]
async fn i10_an_answer_that_names_a_plan_the_owner_does_not_have_is_none() {
    let mut b = Bench::new().await;
    let _process = b.attaches();
    b.obeys(NEW).await;
    b.receives(MasterToOwner::RequestReport { number: 1 }).await;
    let unknown = PlanId { term: OLD, seq: 9 };
    b.hears(obeyed(&[unknown])).await;
    tokio::time::sleep(Duration::from_millis(5 * Q_MS)).await;
    b.receives(MasterToOwner::Heartbeat { stamp_ms: 0 }).await;
    assert_eq!(b.drain_sent().iter().find_map(reported), None, "its extent is not known here");
    b.hears(obeyed(&[])).await;
    assert_eq!(b.sent_to_master(reported).await, vec![]);
}
