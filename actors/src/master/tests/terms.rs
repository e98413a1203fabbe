//! Several masters, one after the other or at the same time.

use super::bench::{Bench, LIMIT, TTL_MS, held, key, live, opening, term, view};
use crate::ErrorKind;
use crate::actor::Crash;
use crate::message::{MasterToOwner, OwnerToMaster, Refusal, Request, SeenView, Term};

#[tokio::test]
async fn a_new_master_rises_above_every_term_that_a_rank_obeyed_and_all_join_again() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    assert_eq!(first.term, term(1, 50));
    let old = term(7, 9);
    let mut second = bench.join_from(1, 101, old, view(old, 3, &[101])).await.unwrap();
    assert_eq!(second.term, term(8, 50), "one more than the highest any owner reports");
    assert!(first.is_cut().await, "whoever joined under the lower term joins again");
    let mut first = bench.rejoin(0, 100).await;
    assert_eq!(first.term, term(8, 50));
    first.reports(Vec::new()).await;
    second.reports(vec![live(0, 3, "survivor")]).await;
    assert_eq!(bench.found("survivor").await, Ok(second.at(0, 3)));
}

#[tokio::test]
async fn model_tie_a_master_of_equal_number_is_another_master_and_the_term_rises() {
    let bench = Bench::new(1).await;
    for other in [1, 99] {
        let old = term(bench.members.term().number, other);
        let rank = bench.join_from(0, 100 + other, old, SeenView::default()).await.unwrap();
        assert!(rank.term > old, "{:?} must be above {old:?}", rank.term);
        assert!(rank.term.number > old.number, "not merely by its id");
        rank.hangs_up().await;
    }
}

#[tokio::test]
async fn a_master_with_a_quorum_is_not_superseded_by_what_one_rank_obeyed() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[0]).await;
    ranks.pop().unwrap().hangs_up().await;
    let late = bench.join_from(2, 102, term(9, 9), SeenView::default()).await.err();
    assert!(matches!(late, Some(Refusal::Gone { .. })), "{late:?}");
    assert!(bench.found("k").await.is_ok());
    assert_eq!(bench.members.term(), term(1, 50));
}

/// Its keys may have been put again and removed while there was a quorum.
#[tokio::test]
async fn i17_a_rank_not_met_in_time_stays_out_when_its_master_has_lost_the_quorum_since() {
    let (old, bench) = (term(3, 9), Bench::new(3).await);
    let seen = view(old, 5, &[100, 101, 102]);
    let mut knows = bench.join_from(2, 102, old, seen.clone()).await.unwrap();
    knows.reports(Vec::new()).await;
    let mut first = bench.join(0, 200).await.unwrap();
    first.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first, &knows]).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound), "it rules, without rank 1");
    knows.hangs_up().await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "it has no quorum now");
    let late = bench.join_from(1, 101, old, seen).await;
    assert!(matches!(late, Err(Refusal::Gone { rank: 1, incarnation: 101 })));
}

/// Neither of two masters knew of the other, and their terms have one number. Which of the ids is
/// the higher is chance: it must not bring back what was removed while the rank was away.
#[tokio::test]
async fn i6_a_rank_of_another_master_stays_out_whichever_of_two_equal_terms_sorts_higher() {
    for other in [9, 99] {
        let (old, bench) = (term(1, other), Bench::new(3).await);
        let mut first = bench.join(0, 200).await.unwrap();
        let mut second = bench.join(1, 201).await.unwrap();
        first.reports(Vec::new()).await;
        second.reports(Vec::new()).await;
        bench.a_ttl_passes(&[&first, &second]).await;
        assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound), "it rules, without rank 2");
        second.hangs_up().await;
        assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "it has no quorum now");
        let seen = view(old, 5, &[100, 101, 102]);
        let late = bench.join_from(2, 102, old, seen).await.err();
        let refused = matches!(late, Some(Refusal::Gone { rank: 2, incarnation: 102 }));
        assert!(refused, "master {other}: {late:?}");
    }
}

/// The segment is in the master's process and began with it: no earlier master had it as a member,
/// so none declared it gone. Objects put into its log before the others joined would be lost with
/// it.
#[tokio::test]
async fn i17_no_view_of_an_earlier_master_loses_rank_0s_own_segment() {
    let (older, old) = (term(2, 8), term(3, 9));
    let bench = Bench::new(3).await;
    let first = bench.join(0, 200).await.unwrap();
    let kept = view(first.term, 1, &[200]);
    let seen = view(old, 5, &[100, 101, 102]);
    let mut second = bench.join_from(1, 101, old, seen).await.unwrap();
    // The master's term rose above the one that rank 1 obeyed. Meanwhile a put made a claim in the
    // log of rank 0.
    drop(first);
    let again = bench.join_from(0, 200, kept.term, kept).await;
    let mut first = again.expect("a view that came with another rank lacks it");
    // Another view without it arrives while it is a member.
    let seen = view(older, 7, &[100, 101, 102]);
    let mut third = bench.join_from(2, 102, older, seen).await.unwrap();
    first.reports(vec![live(0, 1, "k")]).await;
    second.reports(Vec::new()).await;
    third.reports(Vec::new()).await;
    assert_eq!(bench.found("k").await, Ok(first.at(0, 1)));
}

#[tokio::test]
async fn a_plan_of_an_earlier_term_cannot_be_committed() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    // Another master ran at the same time; the rank obeyed it and comes back.
    ranks.remove(0).hangs_up().await;
    let mut r = bench.join_from(0, 100, term(4, 9), SeenView::default()).await.unwrap();
    r.reports(vec![held(plan.meta.at.slot, plan.meta.at.epoch)]).await;
    let e = bench.commit(&plan).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Reclaimed, "{e}");
    let again = bench.open(2, "k", 0).await.unwrap();
    assert_eq!(again.plan.term, term(5, 50));
    assert_ne!(again.meta.at.slot, plan.meta.at.slot, "[I8] held until Freed says otherwise");
}

#[tokio::test]
async fn a_commit_across_a_restart_is_ok_if_the_owner_kept_the_object() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    ranks.remove(0).hangs_up().await;
    let mut r = bench.join_from(0, 100, term(4, 9), SeenView::default()).await.unwrap();
    let early = bench.commit(&plan).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::NotReady, "not known yet: {early}");
    r.reports(vec![live(plan.meta.at.slot, plan.meta.at.epoch, "k")]).await;
    bench.commit(&plan).await.unwrap();
}

#[tokio::test]
async fn model_joinall_nothing_is_said_not_to_exist_before_every_rank_was_met() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotReady));
    let e = bench.open(1, "k", 0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    let e = bench.done(Request::Remove(vec![key("k")])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    let mut second = bench.join(1, 101).await.unwrap();
    second.reports(vec![live(0, 1, "k")]).await;
    assert_eq!(bench.found("k").await, Ok(second.at(0, 1)));
    let e = bench.open(2, "k", 0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
}

#[tokio::test]
async fn model_joinall_after_a_ttl_the_others_go_on_without_a_rank_that_was_not_met() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    bench.clock.advance_ms(TTL_MS / 8);
    assert!(bench.open(1, "k", 0).await.is_err());
    for _ in 0..8 {
        bench.clock.advance_ms(TTL_MS / 8);
        first.sends(OwnerToMaster::Draining).await;
        bench.ticks().await;
    }
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    bench.open(2, "k", 0).await.unwrap();
}

#[tokio::test]
async fn model_majority_a_master_that_few_ranks_obey_removes_nothing() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[0]).await;
    let third = ranks.pop().unwrap();
    let second = ranks.pop().unwrap();
    second.hangs_up().await;
    assert!(bench.found("k").await.is_ok(), "two of three obey");
    third.hangs_up().await;
    let e = bench.done(Request::Remove(vec![key("k")])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert!(e.message().contains("1 of 3"), "{e}");
    let received = ranks[0].drain().await;
    assert!(!received.iter().any(|d| matches!(d, MasterToOwner::Retire(_))), "{received:?}");
}

#[tokio::test]
async fn model_majall_a_master_that_few_ranks_obey_neither_finds_nor_opens() {
    let (bench, mut ranks) = Bench::whole(2).await;
    bench.put(1, "k", &mut ranks[1]).await;
    let first = ranks.remove(0);
    first.hangs_up().await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "half, without rank 0");
    let e = bench.open(2, "other", 1).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    let mut first = bench.join_from(0, 100, term(1, 50), SeenView::default()).await.unwrap();
    first.reports(Vec::new()).await;
    assert!(bench.found("k").await.is_ok());
}

#[tokio::test]
async fn half_of_the_ranks_are_enough_with_rank_0() {
    let (bench, mut ranks) = Bench::whole(2).await;
    bench.put(1, "k", &mut ranks[0]).await;
    ranks.pop().unwrap().hangs_up().await;
    assert!(bench.found("k").await.is_ok());
}

#[tokio::test]
async fn an_open_in_flight_when_the_term_rises_is_told_to_try_again() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let mut r = ranks.remove(0);
    for i in 0..4 {
        bench.open(i, &format!("k{i}"), 0).await.unwrap();
    }
    r.drain().await;
    let waits = bench.asks(opening(9, "no-room", 0));
    r.receives(|d| matches!(d, MasterToOwner::MakeRoom { .. }).then_some(())).await;
    r.hangs_up().await;
    bench.join_from(0, 100, term(4, 9), SeenView::default()).await.unwrap();
    let crate::message::Response::Plans(list) = waits.await.unwrap() else { panic!() };
    assert_eq!(list[0].as_ref().unwrap_err().kind(), ErrorKind::NotReady);
}

#[tokio::test]
async fn the_last_term_there_can_be_is_refused() {
    let bench = Bench::new(1).await;
    let last = Term { number: u64::MAX, master: 3 };
    let refused = bench.join_from(0, 100, last, SeenView::default()).await.err();
    assert!(matches!(refused, Some(Refusal::NotHere(_))), "{refused:?}");
}

/// Plans were granted on a rank, and their messages were lost with the link. Only the actor knew of
/// them, and it panicked: producers may still write there.
#[tokio::test]
async fn i10_a_rank_whose_link_broke_before_its_report_is_fenced_by_a_new_term() {
    for (panics, breaks) in [(true, true), (true, false), (false, true)] {
        let (bench, mut ranks) = Bench::whole(2).await;
        let before = bench.members.term();
        let plan = bench.put(1, "k", &mut ranks[1]).await;
        let mut lost = ranks.pop().unwrap();
        if breaks {
            lost.hangs_up().await;
            if panics {
                bench.master.call(Crash, LIMIT).await.unwrap_err();
            }
            lost = bench.join_from(1, 101, before, SeenView::default()).await.unwrap();
        } else {
            bench.master.call(Crash, LIMIT).await.unwrap_err();
        }
        let rises = panics && breaks;
        assert_eq!(bench.members.term() > before, rises, "panics {panics}, breaks {breaks}");
        assert_eq!(lost.term > before, rises, "panics {panics}, breaks {breaks}");
        if !rises {
            // The plan reached it over the link that held, or is sent again over the next one.
            let met = if breaks { Vec::new() } else { vec![live(plan.meta.at.slot, 1, "k")] };
            lost.reports(met).await;
            if panics {
                ranks[0].reports(Vec::new()).await;
            }
            assert_eq!(bench.found("k").await, Ok(plan.meta.at));
        }
    }
}
