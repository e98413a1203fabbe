//! Questions to the owners of device logs whose links fail [I6] [I15].

use super::bench::{Bench, HASHER, LIMIT, Rank, UNIT, at, extent_of, info, key, plan_ref};
use crate::ErrorKind;
use crate::message::{
    LogObjectEntry, LogQuestion, MasterToOwner, ObjectDesc, OwnerToMaster, PlanRef, RankInfo,
    Request, Response, SeenView, Selection, SlotRef, Term,
};
use nkv_store::SegmentLayout;
use nkv_store::layout::Region;

/// A log of eight units before its arena.
pub(super) fn with_log_slots(info: RankInfo) -> RankInfo {
    let (len, arena) = (8 * UNIT, info.layout.arena);
    let log = Region { offset: arena.offset - len, len };
    let slots = info.layout.slots + 8;
    RankInfo { layout: SegmentLayout { log_slots: 8, slots, log, ..info.layout }, ..info }
}

pub(super) async fn joins(bench: &Bench, incarnation: u64, obeyed: Term) -> Rank {
    let info = with_log_slots(info(1, incarnation, 2));
    bench.joins(info, obeyed, false, SeenView::default()).await.unwrap()
}

/// Two ranks, the second with a log.
pub(super) async fn with_log() -> (Bench, Rank, Rank) {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    let mut logs = joins(&bench, 101, Term::default()).await;
    first.reports(Vec::new()).await;
    logs.reports(Vec::new()).await;
    (bench, first, logs)
}

pub(super) async fn is_asked(rank: &mut Rank) -> (u64, LogQuestion) {
    let asked = |d: &MasterToOwner| match d {
        MasterToOwner::AskLog { number, question } => Some((*number, question.clone())),
        _ => None,
    };
    rank.receives(asked).await
}

async fn outcome(asked: tokio::task::JoinHandle<Response>) -> Result<(), ErrorKind> {
    match tokio::time::timeout(LIMIT, asked).await.expect("no answer").unwrap() {
        Response::Locations(mut list) => list.remove(0).map(drop).map_err(|e| e.kind()),
        Response::Done(mut list) => list.remove(0).map_err(|e| e.kind()),
        other => panic!("{other:?}"),
    }
}

/// The manual clock advances only here, so that no wait reaches its limit.
fn a_moment_passes(bench: &Bench) {
    bench.clock.advance_ms(50);
}

#[tokio::test]
async fn i15_a_log_whose_owner_was_replaced_is_not_waited_for() {
    for request in [
        Request::GetLocation {
            keys: vec![key("k")],
            gone: Vec::new(),
            promote: Default::default(),
        },
        Request::Remove(vec![key("k")]),
    ] {
        let (bench, mut first, mut logs) = with_log().await;
        let asked = bench.asks(request);
        is_asked(&mut logs).await;
        logs.hangs_up().await;
        let mut next = joins(&bench, 102, Term::default()).await;
        next.reports(Vec::new()).await;
        a_moment_passes(&bench);
        // A removal also waits until the ranks keep a view of the loss.
        first.drain().await;
        next.drain().await;
        assert_eq!(outcome(asked).await, Err(ErrorKind::NotFound));
    }
}

#[tokio::test]
async fn i15_a_question_that_was_lost_with_its_link_is_asked_on_the_next_one() {
    let (bench, _first, mut logs) = with_log().await;
    let asked = bench.asks(Request::GetLocation {
        keys: vec![key("k")],
        gone: Vec::new(),
        promote: Default::default(),
    });
    let (number, _) = is_asked(&mut logs).await;
    logs.hangs_up().await;
    let mut again = joins(&bench, 101, bench.members.term()).await;
    again.reports(Vec::new()).await;
    let (same, question) = is_asked(&mut again).await;
    assert_eq!(same, number);
    assert!(matches!(question, LogQuestion::Find(keys) if keys.len() == 1));
    answers(&again, number, Vec::new()).await;
    a_moment_passes(&bench);
    assert_eq!(outcome(asked).await, Err(ErrorKind::NotFound));
}

pub(super) fn in_log(k: &str) -> LogObjectEntry {
    LogObjectEntry {
        object: ObjectDesc::at(extent_of(0) - 8 * UNIT, 100, 4096),
        key: key(k),
        id: HASHER.id(k.as_bytes()),
        slot: 3,
        epoch: 1,
        set: crate::message::ReplicaSet::NONE,
    }
}

pub(super) async fn answers(logs: &Rank, number: u64, served: Vec<LogObjectEntry>) {
    logs.sends(OwnerToMaster::LogAnswer { number, served, removed: Vec::new(), taken: 0 }).await;
}

async fn ends(first: &mut Rank, bench: &Bench, plan: PlanRef) {
    bench.done(Request::Abort(vec![plan])).await.unwrap();
    first.sends(OwnerToMaster::Retired(vec![plan.at])).await;
}

#[tokio::test]
async fn i15_what_a_plan_hid_in_a_log_is_listed_once_the_plan_has_ended() {
    let (bench, mut first, mut logs) = with_log().await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
    ends(&mut first, &bench, plan_ref(&plan)).await;
    let (number, _) = is_asked(&mut logs).await;
    answers(&logs, number, vec![in_log("k")]).await;
    let Response::Prefix(run) = bench.ask(Request::MatchPrefix(vec![key("k")])).await else {
        panic!("no prefix");
    };
    assert_eq!(run.iter().map(at).collect::<Vec<SlotRef>>(), [logs.at(3, 1)]);
}

#[tokio::test]
async fn i15_what_a_log_serves_is_not_forgotten_when_the_logs_are_asked_once_more() {
    let (bench, mut first, mut logs) = with_log().await;
    bench.open(1, "hidden", 0).await.unwrap();
    let listed = bench.put(2, "listed", &mut first).await;
    let asked = bench.asks(Request::GetLocation {
        keys: vec![key("hidden"), key("listed")],
        gone: Vec::new(),
        promote: Default::default(),
    });
    let (number, _) = is_asked(&mut logs).await;
    // Evicted while the log is asked about the other one.
    first.sends(OwnerToMaster::Retired(vec![listed.meta.at])).await;
    answers(&logs, number, vec![in_log("hidden")]).await;
    let (again, question) = is_asked(&mut logs).await;
    let listed = HASHER.id(b"listed");
    assert!(matches!(question, LogQuestion::Find(keys) if keys == [listed]));
    answers(&logs, again, Vec::new()).await;
    let Response::Locations(found) = asked.await.unwrap() else { panic!("no locations") };
    let found: Vec<_> =
        found.into_iter().map(|r| r.map(|m| at(&m[0])).map_err(|e| e.kind())).collect();
    assert_eq!(found, [Ok(logs.at(3, 1)), Err(ErrorKind::NotFound)]);
}

/// A plan's object goes live while the owners of two logs are asked, and loses to what one of them
/// serves before the other has answered.
#[tokio::test]
async fn i15_what_a_log_serves_is_the_answer_once_the_listed_object_is_retired() {
    let bench = Bench::new(2).await;
    let info_of = |rank, incarnation| with_log_slots(info(rank, incarnation, 2));
    let joins =
        async |info| bench.joins(info, Term::default(), false, SeenView::default()).await.unwrap();
    let (mut first, mut logs) = (joins(info_of(0, 100)).await, joins(info_of(1, 101)).await);
    first.reports(Vec::new()).await;
    logs.reports(Vec::new()).await;
    let plan = bench.open(1, "k", 1).await.unwrap();
    let asked = bench.asks(Request::GetLocation {
        keys: vec![key("k")],
        gone: Vec::new(),
        promote: Default::default(),
    });
    let (number, _) = is_asked(&mut logs).await;
    bench.commit(&plan).await.unwrap();
    answers(&logs, number, vec![in_log("k")]).await;
    logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
    logs.sends(OwnerToMaster::Retired(vec![plan.meta.at])).await;
    assert!(!asked.is_finished(), "the other log's owner has not answered");
    answers(&first, number, Vec::new()).await;
    assert_eq!(led_to(asked).await, Ok(logs.at(3, 1)));
}

/// Asks for the location of a key that the reader found gone at `gone`.
fn asks_past(bench: &Bench, k: &str, gone: SlotRef) -> tokio::task::JoinHandle<Response> {
    bench.asks(Request::GetLocation {
        keys: vec![key(k)],
        gone: vec![gone],
        promote: Default::default(),
    })
}

async fn led_to(asked: tokio::task::JoinHandle<Response>) -> Result<SlotRef, ErrorKind> {
    match tokio::time::timeout(LIMIT, asked).await.expect("no answer").unwrap() {
        Response::Locations(mut list) => list.remove(0).map(|m| at(&m[0])).map_err(|e| e.kind()),
        other => panic!("{other:?}"),
    }
}

fn retires_any(received: &[MasterToOwner]) -> bool {
    received.iter().any(|d| matches!(d, MasterToOwner::Retire(_)))
}

/// The owner reports the retired object before the log answers, or after.
#[tokio::test]
async fn i7_a_reader_that_found_a_listed_object_gone_gets_the_one_that_a_log_serves() {
    for word_first in [true, false] {
        let (bench, mut first, mut logs) = with_log().await;
        let gone = bench.put(1, "k", &mut first).await.meta.at;
        let asked = asks_past(&bench, "k", gone);
        let (number, question) = is_asked(&mut logs).await;
        let here = HASHER.id(b"k");
        assert!(matches!(question, LogQuestion::Find(keys) if keys == [here]));
        let (same, _) = is_asked(&mut first).await;
        assert_eq!(same, number, "the owner of what is listed is asked, too");
        if word_first {
            first.sends(OwnerToMaster::Retired(vec![gone])).await;
        }
        answers(&first, number, Vec::new()).await;
        answers(&logs, number, vec![in_log("k")]).await;
        assert_eq!(led_to(asked).await, Ok(logs.at(3, 1)));
        // Announced meanwhile, it does not count as a duplicate.
        logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
        assert!(!retires_any(&logs.drain().await), "word first: {word_first}");
        if !word_first {
            first.sends(OwnerToMaster::Retired(vec![gone])).await;
            let (number, _) = is_asked(&mut logs).await;
            answers(&logs, number, vec![in_log("k")]).await;
        }
        assert_eq!(bench.found("k").await, Ok(logs.at(3, 1)));
    }
}

#[tokio::test]
async fn i7_not_found_is_answered_once_the_owner_has_reported_the_object_retired() {
    for says_so in [true, false] {
        let (bench, mut first, mut logs) = with_log().await;
        let gone = bench.put(1, "k", &mut first).await.meta.at;
        let asked = asks_past(&bench, "k", gone);
        let (number, _) = is_asked(&mut logs).await;
        answers(&logs, number, Vec::new()).await;
        if says_so {
            first.sends(OwnerToMaster::Retired(vec![gone])).await;
        }
        assert!(!asked.is_finished(), "its owner has not answered");
        answers(&first, number, Vec::new()).await;
        let expected = if says_so { ErrorKind::NotFound } else { ErrorKind::NotReady };
        assert_eq!(led_to(asked).await, Err(expected));
    }
}

/// Its owner retires the second object: if the master retired the first, both would be gone.
#[tokio::test]
async fn i15_of_two_objects_of_one_key_in_a_segment_the_master_retires_none() {
    let (bench, mut first, mut logs) = with_log().await;
    let planned = bench.put(1, "k", &mut logs).await.meta.at;
    assert_eq!(planned.incarnation, logs.info.incarnation);
    logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
    first.drain().await;
    assert!(
        !retires_any(&logs.drain().await),
        "it accepted the log's before it heard of the plan's"
    );
    logs.sends(OwnerToMaster::Retired(vec![planned])).await;
    let (number, _) = is_asked(&mut logs).await;
    answers(&logs, number, vec![in_log("k")]).await;
    assert_eq!(bench.found("k").await, Ok(logs.at(3, 1)));
}

/// The log's object was announced while the plan was open, and is not announced again.
#[tokio::test]
async fn i15_what_a_log_serves_elsewhere_is_retired_when_a_plan_goes_live_over_it() {
    for is_adopted in [false, true] {
        let (bench, mut first, mut logs) = with_log().await;
        let plan = bench.open(1, "k", 0).await.unwrap();
        logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
        first.drain().await;
        assert!(!retires_any(&logs.drain().await), "the plan may come to nothing");
        if is_adopted {
            first.sends(OwnerToMaster::Adopted(plan_ref(&plan))).await;
        } else {
            bench.commit(&plan).await.unwrap();
        }
        assert_eq!(logs.retires().await, logs.at(3, 1));
        assert_eq!(bench.found("k").await, Ok(plan.meta.at));
        assert!(!retires_any(&first.drain().await), "adopted: {is_adopted}");
    }
}

/// A log removes its object of a key as soon as it is asked to: a remove that is refused must not
/// ask.
#[tokio::test]
async fn i6_a_remove_that_is_refused_takes_nothing_out_of_any_log() {
    let removes = [
        Request::Remove(vec![key("k")]),
        Request::RemoveMatching(Selection { pattern: Some("k".to_string()), from: None }),
        Request::RemoveMatching(Selection { pattern: None, from: None }),
    ];
    let bench = Bench::new(2).await;
    let old = Term { number: 3, master: 9 };
    let seen = SeenView { term: old, number: 2, incarnations: vec![100, 101] };
    let silent = bench.join_from(0, 100, old, seen.clone()).await.unwrap();
    let with_log = with_log_slots(info(1, 101, 2));
    let mut logs = bench.joins(with_log, old, true, seen).await.unwrap();
    logs.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&silent, &logs]).await;
    for remove in removes {
        // The log does not answer: a remove that asked it would wait.
        let refused = tokio::time::timeout(LIMIT, bench.asks(remove)).await.expect("it waits");
        let Response::Failed(e) = refused.unwrap() else { panic!("not refused") };
        assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    }
}

/// Its put had returned before the removal began.
#[tokio::test]
async fn i6_a_removal_by_pattern_takes_what_a_log_serves_beside_a_plan_and_waits_for_it() {
    let (bench, mut first, mut logs) = with_log().await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
    first.drain().await;
    logs.drain().await;
    let of = Selection { pattern: Some("k".to_string()), from: None };
    let removed = bench.asks(Request::RemoveMatching(of));
    let (number, _) = is_asked(&mut logs).await;
    answers(&logs, number, Vec::new()).await;
    let retire = |d: &MasterToOwner| match d {
        MasterToOwner::Retire(list) => list.first().copied(),
        _ => None,
    };
    let at = logs.receives(retire).await;
    assert_eq!(at, logs.at(3, 1));
    let ends = |d: &MasterToOwner| matches!(d, MasterToOwner::EndPlan { .. }).then_some(());
    first.receives(ends).await;
    first.sends(OwnerToMaster::Retired(vec![plan.meta.at])).await;
    bench.goes_on_meanwhile().await;
    assert!(!removed.is_finished(), "the log has not said so");
    logs.sends(OwnerToMaster::Retired(vec![at])).await;
    let answer = tokio::time::timeout(LIMIT, removed).await.expect("no answer").unwrap();
    let Response::Swept(swept) = answer else { panic!("{answer:?}") };
    assert_eq!((swept.removed, swept.unconfirmed), (1, 0));
}

/// The log had evicted it meanwhile: nobody would report its end once more.
#[tokio::test]
async fn i6_what_a_log_served_beside_a_plan_and_has_evicted_is_not_waited_for() {
    let (bench, mut first, mut logs) = with_log().await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    logs.sends(OwnerToMaster::Announced(vec![in_log("k")])).await;
    logs.sends(OwnerToMaster::Retired(vec![logs.at(3, 1)])).await;
    let of = Selection { pattern: Some("k".to_string()), from: None };
    let removed = bench.asks(Request::RemoveMatching(of));
    let (number, _) = is_asked(&mut logs).await;
    answers(&logs, number, Vec::new()).await;
    let ends = |d: &MasterToOwner| matches!(d, MasterToOwner::EndPlan { .. }).then_some(());
    first.receives(ends).await;
    first.sends(OwnerToMaster::Retired(vec![plan.meta.at])).await;
    let answer = tokio::time::timeout(LIMIT, removed).await.expect("no answer").unwrap();
    let Response::Swept(swept) = answer else { panic!("{answer:?}") };
    assert_eq!((swept.removed, swept.unconfirmed), (1, 0));
}
