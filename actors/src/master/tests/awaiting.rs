//! Callers that wait for keys.

use super::bench::{Bench, LIMIT, Rank, key, live, plan_ref};
use super::log::{answers, in_log, is_asked, joins, with_log};
use crate::ErrorKind;
use crate::message::{
    AwaitReady, EndCause, KeyBytes, LogObjectEntry, LogQuestion, MasterToOwner, ObjMeta,
    OwnerToMaster, Readiness, Request, Response, SeenView, SlotRef,
};
use nkv_store::clock::Clock;
use tokio::task::JoinHandle;

fn awaits(keys: &[&str]) -> AwaitReady {
    AwaitReady {
        keys: keys.iter().map(|k| key(k)).collect(),
        wait_ms: 1_000,
        mapped: Vec::new(),
        watched: Vec::new(),
        gone: Vec::new(),
    }
}

async fn outcome(asked: JoinHandle<Response>) -> Vec<(u32, Readiness)> {
    match tokio::time::timeout(LIMIT, asked).await.expect("no answer").unwrap() {
        Response::Readiness(list) => list,
        other => panic!("{other:?}"),
    }
}

/// A request that has reached the master and waits.
async fn begun(bench: &Bench, asked: AwaitReady) -> JoinHandle<Response> {
    let asked = bench.asks(Request::AwaitReady(asked));
    bench.goes_on_meanwhile().await;
    assert!(!asked.is_finished());
    asked
}

fn location(list: &[(u32, Readiness)]) -> (u32, Vec<SlotRef>) {
    match list {
        [(n, Readiness::Ready(places))] => (*n, places.iter().map(|m| m.at).collect()),
        other => panic!("{other:?}"),
    }
}

fn nameless(o: LogObjectEntry) -> LogObjectEntry {
    LogObjectEntry { key: KeyBytes::default(), ..o }
}

async fn is_ended(rank: &mut Rank) -> (EndCause, SlotRef) {
    let ended = |d: &MasterToOwner| match d {
        MasterToOwner::EndPlan { cause, at, .. } => Some((*cause, *at)),
        _ => None,
    };
    rank.receives(ended).await
}

#[tokio::test]
async fn a_caller_is_answered_when_a_plan_for_one_of_its_keys_is_committed() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let asked = begun(&bench, awaits(&["a", "b", "c"])).await;
    let plan = bench.open(1, "b", 0).await.unwrap();
    bench.goes_on_meanwhile().await;
    assert!(!asked.is_finished(), "it does not map that segment");
    bench.commit(&plan).await.unwrap();
    assert_eq!(location(&outcome(asked).await), (1, vec![plan.meta.at]));
    // At once, if it is there already. If this caller did not find it there, its owner is asked.
    let at_once = bench.ask(Request::AwaitReady(awaits(&["b"]))).await;
    assert!(matches!(at_once, Response::Readiness(list) if list.len() == 1));
    let gone = AwaitReady { gone: vec![plan.meta.at], ..awaits(&["b"]) };
    let doubting = begun(&bench, gone).await;
    let (number, question) = is_asked(&mut ranks[0]).await;
    assert!(matches!(question, LogQuestion::Await { keys, .. } if keys.len() == 1));
    answers(&ranks[0], number, Vec::new()).await;
    assert!(!doubting.is_finished());
}

#[tokio::test]
async fn a_caller_that_maps_a_segment_learns_where_to_watch_once() {
    let (bench, ranks) = Bench::whole(1).await;
    let mapped = AwaitReady { mapped: vec![ranks[0].info.incarnation], ..awaits(&["k"]) };
    let asked = begun(&bench, mapped.clone()).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let [(0, Readiness::Writing(ObjMeta { at, .. }))] = outcome(asked).await[..] else {
        panic!("not where it is written");
    };
    assert_eq!(at, plan.meta.at);
    let asked = begun(&bench, AwaitReady { watched: vec![at], ..mapped }).await;
    bench.commit(&plan).await.unwrap();
    assert_eq!(location(&outcome(asked).await), (0, vec![at]));
}

#[tokio::test]
async fn a_wait_ends_with_the_plan_of_a_lost_producer_or_an_aborted_one() {
    for (lost, why) in [(true, "its producer is gone"), (false, "its producer gave it up")] {
        let (bench, mut ranks) = Bench::whole(1).await;
        // The bench's own producer.
        bench.members.producer_up(7, false);
        let plan = bench.open(1, "k", 0).await.unwrap();
        let asked = AwaitReady { wait_ms: 5_000, ..awaits(&["k"]) };
        let asked = begun(&bench, asked).await;
        if lost {
            bench.members.producer_down(7, false, bench.clock.now_ms());
            bench.a_ttl_passes(&[&ranks[0]]).await;
        } else {
            bench.done(Request::Abort(vec![plan_ref(&plan)])).await.unwrap();
        }
        let (_, at) = is_ended(&mut ranks[0]).await;
        ranks[0].sends(OwnerToMaster::Retired(vec![at])).await;
        let list = outcome(asked).await;
        let [(0, Readiness::Ended(e))] = &list[..] else { panic!("{list:?}") };
        assert_eq!(e.kind(), ErrorKind::Reclaimed);
        assert!(e.message().contains(why), "{e}");
    }
}

#[tokio::test]
async fn a_removal_does_not_end_a_wait_and_its_time_does() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let asked = begun(&bench, awaits(&["k"])).await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    let (cause, at) = is_ended(&mut ranks[0]).await;
    assert_eq!((cause, at), (EndCause::Removed, plan.meta.at));
    ranks[0].sends(OwnerToMaster::Retired(vec![at])).await;
    removal.await.unwrap();
    bench.goes_on_meanwhile().await;
    assert!(!asked.is_finished());
    for _ in 0..11 {
        bench.clock.advance_ms(100);
        ranks[0].sends(OwnerToMaster::Retired(Vec::new())).await;
    }
    assert!(outcome(asked).await.is_empty());
}

#[tokio::test]
async fn what_a_log_accepts_is_the_answer_also_beside_a_plan() {
    for beside in [false, true] {
        let (bench, _first, mut logs) = with_log().await;
        let plan = if beside { Some(bench.open(1, "k", 0).await.unwrap()) } else { None };
        let asked = bench.asks(Request::AwaitReady(awaits(&["k"])));
        let (number, question) = is_asked(&mut logs).await;
        assert!(matches!(question, LogQuestion::Await { keys, wait_ms: 1_000 } if keys.len() == 1));
        answers(&logs, number, Vec::new()).await;
        bench.goes_on_meanwhile().await;
        assert!(!asked.is_finished());
        logs.sends(OwnerToMaster::Accepted(vec![nameless(in_log("k"))])).await;
        assert_eq!(location(&outcome(asked).await), (0, vec![logs.at(3, 1)]));
        if let Some(plan) = plan {
            bench.done(Request::Abort(vec![plan_ref(&plan)])).await.unwrap();
        } else {
            assert_eq!(bench.found("k").await, Ok(logs.at(3, 1)), "it is listed");
        }
    }
}

#[tokio::test]
async fn an_owner_with_a_new_link_is_asked_about_what_is_awaited() {
    let (bench, _first, mut logs) = with_log().await;
    let asked = bench.asks(Request::AwaitReady(awaits(&["k"])));
    let (number, _) = is_asked(&mut logs).await;
    answers(&logs, number, Vec::new()).await;
    bench.goes_on_meanwhile().await;
    logs.hangs_up().await;
    let mut again = joins(&bench, 101, bench.members.term()).await;
    again.reports(Vec::new()).await;
    let (number, question) = is_asked(&mut again).await;
    assert!(matches!(question, LogQuestion::Await { keys, .. } if keys.len() == 1));
    answers(&again, number, vec![nameless(in_log("k"))]).await;
    assert_eq!(location(&outcome(asked).await), (0, vec![again.at(3, 1)]));
}

#[tokio::test]
async fn what_a_log_accepts_before_another_owner_has_answered_is_the_answer() {
    let (bench, _first, mut logs) = with_log().await;
    let asked = bench.asks(Request::AwaitReady(awaits(&["k"])));
    is_asked(&mut logs).await;
    // Its answer, that it has nothing, is still on its way.
    logs.sends(OwnerToMaster::Accepted(vec![nameless(in_log("k"))])).await;
    assert_eq!(location(&outcome(asked).await), (0, vec![logs.at(3, 1)]));
}

#[tokio::test]
async fn a_caller_learns_that_a_rank_with_its_object_is_reachable_again() {
    let (bench, mut ranks) = Bench::whole(2).await;
    let plan = bench.put(1, "k", &mut ranks[1]).await;
    let obeyed = bench.members.term();
    let (info, rank) = (ranks[1].info.clone(), ranks.remove(1));
    rank.hangs_up().await;
    let asked = begun(&bench, awaits(&["k"])).await;
    let mut again = bench.joins(info, obeyed, true, SeenView::default()).await.unwrap();
    again.reports(vec![live(plan.meta.at.slot, plan.meta.at.epoch, "k")]).await;
    assert_eq!(location(&outcome(asked).await), (0, vec![plan.meta.at]));
}

#[tokio::test]
async fn i19_lists_of_waiting_callers_are_bounded_together() {
    let (bench, ranks) = Bench::whole(1).await;
    let many = AwaitReady { mapped: vec![1; 65_536], ..awaits(&["k"]) };
    let mut waiting = Vec::new();
    for _ in 0..15 {
        waiting.push(bench.asks(Request::AwaitReady(many.clone())));
    }
    bench.goes_on_meanwhile().await;
    assert!(waiting.iter().all(|asked| !asked.is_finished()));
    let refused = bench.ask(Request::AwaitReady(many)).await;
    assert!(matches!(refused, Response::Failed(e) if e.kind() == ErrorKind::NotReady));
    drop(ranks);
}

#[tokio::test]
async fn a_caller_that_waits_no_longer_is_forgotten() {
    let (bench, ranks) = Bench::whole(1).await;
    let asked = begun(&bench, awaits(&["k"])).await;
    asked.abort();
    bench.ticks().await;
    // Its key is free for the most that may wait.
    let many: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let asked = begun(&bench, awaits(&many)).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    bench.commit(&plan).await.unwrap();
    bench.goes_on_meanwhile().await;
    assert!(!asked.is_finished());
    drop(ranks);
}
