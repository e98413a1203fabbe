//! What owners end while it is granted, written or given up.

use super::*;
use crate::message::{ObjMeta, ObjectDesc, SlotRef, Term};

#[test]
fn ranges_merge_in_any_order() {
    let mut r = Ranges::default();
    for (o, l) in [(10, 5), (0, 5), (5, 5), (20, 1), (12, 9), (0, 1)] {
        r.add(o, l);
    }
    assert_eq!(r.0, BTreeMap::from([(0, 21)]));
    assert_eq!(r.total(), 21);
}

const OWNER: u64 = 9;

fn granted(term: Term, peer: &Arc<Peer>) -> PlanState {
    let at = SlotRef { incarnation: OWNER, slot: 0, epoch: 1 };
    let key = Key::new(b"k").unwrap();
    let meta = ObjMeta {
        object: ObjectDesc::at(0, 0, 4096),
        key: nkv_store::KeyHasher::new([7; 16]).id(b"k"),
        rank: 0,
        at,
        header_off: 0,
    };
    let plan = PlanId { term, seq: 7 };
    let desc = PlanDesc { plan, token: 1, meta, write_ttl_ms: 1, copies: Vec::new() };
    PlanState::new(desc, key, peer.clone(), u64::MAX)
}

#[test]
fn model_attachterm_a_plan_below_the_term_of_its_owner_is_refused_before_its_first_byte() {
    let plans = Arc::new(OpenPlans::default());
    let gates = plans.gates(OWNER, None, None);
    let peer = Peer::nowhere(gates.clone());
    let (old, new) = (Term { number: 1, master: 4 }, Term { number: 2, master: 3 });
    gates.obey(new);
    let e = plans.register(granted(old, &peer)).unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::Reclaimed, "{e}");
    plans.register(granted(new, &peer)).unwrap();
}

#[test]
fn i10_a_term_received_over_one_attachment_is_obeyed_by_every_attachment_of_its_handle() {
    let plans = Arc::new(OpenPlans::default());
    let (mapped, devices) = (plans.gates(OWNER, None, None), plans.gates(OWNER, None, None));
    let peer = Peer::nowhere(mapped);
    let (old, new) = (Term { number: 1, master: 4 }, Term { number: 2, master: 3 });
    devices.obey(new);
    assert_eq!(devices.obeys(new), Some(vec![]));
    let e = plans.register(granted(old, &peer)).unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::Reclaimed, "{e}");
    let other = Peer::nowhere(plans.gates(OWNER + 1, None, None));
    plans.register(granted(old, &other)).unwrap();
}

#[test]
fn model_dropmem_i10_a_term_ends_plans_in_flight_and_waits_for_who_is_inside() {
    let plans = Arc::new(OpenPlans::default());
    let gates = plans.gates(OWNER, None, None);
    let peer = Peer::nowhere(gates.clone());
    let (old, new) = (Term { number: 1, master: 4 }, Term { number: 2, master: 3 });
    let plan = plans.register(granted(old, &peer)).unwrap();
    let in_flight = plan.enter(0).unwrap();
    gates.obey(new);
    assert!(plan.enter(0).is_err(), "no further write starts");
    assert_eq!(gates.obeys(new), None, "one is still inside");
    plans.close(&plan);
    assert_eq!(gates.obeys(new), None, "also after its caller gave it up");
    drop(in_flight);
    assert_eq!(gates.obeys(new), Some(vec![]));
}

#[test]
fn model_dropmem_i10_a_plan_dropped_before_its_grant_is_remembered_during_an_open() {
    let plans = Arc::new(OpenPlans::default());
    let id = PlanId { term: Term::default(), seq: 7 };
    let guard = plans.opening().unwrap();
    plans.drop_plan(id);
    assert!(plans.lock().refused.contains(&id));
    drop(guard);
    assert!(plans.lock().refused.is_empty(), "bounded: nothing is kept once no open is out");
}

#[test]
fn who_is_shut_asks_for_no_plan_and_registers_none() {
    let (plans, term) = (Arc::new(OpenPlans::default()), Term { number: 1, master: 4 });
    let peer = Peer::nowhere(plans.gates(OWNER, None, None));
    plans.shut();
    assert!(plans.opening().is_err(), "a plan is asked for by a closed handle");
    assert!(plans.register(granted(term, &peer)).is_err());
    assert!(plans.none_opening());
}

#[test]
fn i10_a_plan_for_kernels_is_not_drained_before_its_caller_has_ended_it() {
    let plans = Arc::new(OpenPlans::default());
    let gates = plans.gates(OWNER, None, None);
    let term = Term { number: 1, master: 4 };
    let plan = plans.register(granted(term, &Peer::nowhere(gates.clone()))).unwrap();
    plan.hold(0).unwrap();
    plan.hold(0).unwrap();
    plan.seal(&crate::machine::OsMachine).unwrap();
    gates.drop_plan(plan.desc.plan);
    assert!(!gates.is_drained(plan.desc.plan), "a kernel may write");
    assert!(plan.hold(0).is_err(), "it was ended");
    plans.close(&plan);
    assert!(gates.is_drained(plan.desc.plan) && plans.all_drained());
}

#[test]
fn a_plan_that_a_kernel_published_is_remembered_until_its_caller_knows() {
    let plans = Arc::new(OpenPlans::default());
    let gates = plans.gates(OWNER, None, None);
    let term = Term { number: 1, master: 4 };
    for (held, known_before) in [(true, false), (true, true), (false, false)] {
        let plan = plans.register(granted(term, &Peer::nowhere(gates.clone()))).unwrap();
        if held {
            plan.hold(0).unwrap();
        }
        if known_before {
            plans.forget(&plan);
        }
        plan.note_committed();
        plans.close(&plan);
        assert_eq!(plans.take_committed(&plan.key), held && !known_before);
        assert!(!plans.take_committed(&plan.key));
    }
}

#[test]
fn i10_a_term_is_obeyed_but_for_plans_that_only_kernels_write() {
    let plans = Arc::new(OpenPlans::default());
    let gates = plans.gates(OWNER, None, None);
    let peer = Peer::nowhere(gates.clone());
    let (old, new) = (Term { number: 1, master: 4 }, Term { number: 2, master: 3 });
    let plan = plans.register(granted(old, &peer)).unwrap();
    plan.hold(0).unwrap();
    let in_flight = plan.enter(0).unwrap();
    gates.obey(new);
    assert_eq!(gates.obeys(new), None, "a processor writes, too");
    drop(in_flight);
    assert_eq!(gates.obeys(new), Some(vec![plan.desc.plan]));
    assert!(plan.hold(0).is_err(), "no further plan is held");
    plan.let_go();
    assert_eq!(gates.obeys(new), Some(vec![]));
}
