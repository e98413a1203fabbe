//! Ranks that were declared gone, and views of an earlier master [I17].

use super::bench::{Bench, HASHER, TTL_MS, done, info, key, live, term, view};
use super::lies::opened;
use crate::ErrorKind;
use crate::message::{
    MasterToOwner, OwnerToMaster, PlanId, PlanRef, Refusal, Request, SeenView, SlotContent,
    SlotEntry,
};

fn is_gone<T>(r: Result<T, Refusal>) -> bool {
    matches!(r, Err(Refusal::Gone { .. }))
}

#[tokio::test]
async fn model_goneinc_i17_an_incarnation_declared_gone_is_refused_for_good() {
    let (bench, mut ranks) = Bench::whole(2).await;
    let second = ranks.pop().unwrap();
    second.sends(OwnerToMaster::Leave).await;
    let ours = bench.members.term();
    assert!(is_gone(bench.join_from(1, 101, ours, SeenView::default()).await));
    assert!(is_gone(bench.join(1, 101).await));
    bench.join(1, 102).await.unwrap();
}

#[tokio::test]
async fn model_lateempty_i17_a_rank_not_met_in_time_comes_back_empty_or_not_at_all() {
    let bench = Bench::new(2).await;
    let old = term(3, 9);
    let mut first = bench.join_from(0, 100, old, SeenView::default()).await.unwrap();
    first.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first]).await;
    bench.open(1, "k", 0).await.unwrap();
    let late = bench.join_from(1, 101, old, view(old, 2, &[100, 101])).await;
    assert!(is_gone(late), "it may hold what was removed, or written again, meanwhile");
    bench.join(1, 102).await.unwrap();
}

#[tokio::test]
async fn model_views_i17_a_rank_that_an_earlier_master_lost_is_refused_whoever_comes_first() {
    let old = term(3, 9);
    let (with, without) = (view(old, 5, &[100, 101, 102]), view(old, 6, &[100, 102]));
    // The rank that knows of the loss joins first.
    let bench = Bench::new(3).await;
    bench.join_from(2, 102, old, without.clone()).await.unwrap();
    assert!(is_gone(bench.join_from(1, 101, old, with.clone()).await));
    // It joins second: the lost rank, which was admitted, is removed again with its objects.
    let bench = Bench::new(3).await;
    let mut lost = bench.join_from(1, 101, old, with.clone()).await.unwrap();
    lost.reports(vec![live(0, 1, "removed-meanwhile")]).await;
    let mut knows = bench.join_from(2, 102, old, without).await.unwrap();
    assert!(lost.is_cut().await);
    knows.reports(Vec::new()).await;
    let mut first = bench.join(0, 200).await.unwrap();
    first.reports(Vec::new()).await;
    assert!(is_gone(bench.join_from(1, 101, bench.members.term(), with).await));
    let mut fresh = bench.join(1, 103).await.unwrap();
    fresh.reports(Vec::new()).await;
    assert_eq!(bench.found("removed-meanwhile").await, Err(ErrorKind::NotFound));
}

/// An earlier master confirmed a removal because the object's rank was gone. If that rank joins
/// first, it brings the object back.
#[tokio::test]
async fn i6_a_master_finds_nothing_before_the_ranks_that_may_know_of_a_loss_join() {
    let old = term(3, 9);
    let (with, without) = (view(old, 5, &[100, 101, 102]), view(old, 6, &[100, 102]));
    let bench = Bench::new(3).await;
    let mut lost = bench.join_from(1, 101, old, with).await.unwrap();
    lost.reports(vec![live(0, 1, "removed-meanwhile")]).await;
    let mut first = bench.join(0, 200).await.unwrap();
    first.reports(Vec::new()).await;
    assert_eq!(bench.found("removed-meanwhile").await, Err(ErrorKind::NotReady));
    let mut knows = bench.join_from(2, 102, old, without).await.unwrap();
    knows.reports(vec![live(0, 1, "kept")]).await;
    assert!(lost.is_cut().await);
    let mut fresh = bench.join(1, 103).await.unwrap();
    fresh.reports(Vec::new()).await;
    assert_eq!(bench.found("removed-meanwhile").await, Err(ErrorKind::NotFound));
    assert_eq!(bench.found("kept").await, Ok(knows.at(0, 1)));
}

#[tokio::test]
async fn model_views_a_rank_that_joined_after_the_view_another_keeps_is_no_lost_one() {
    let old = term(3, 9);
    let bench = Bench::new(2).await;
    bench.join_from(0, 100, old, view(old, 5, &[100])).await.unwrap();
    assert!(bench.join_from(1, 101, old, view(old, 6, &[100, 101])).await.is_ok());
}

#[tokio::test]
async fn model_views_a_remove_waits_until_the_others_keep_the_loss_of_a_rank() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[1]).await;
    ranks[2].drain().await;
    ranks[2].keeps_views = false;
    ranks.remove(1).sends(OwnerToMaster::Leave).await;
    ranks[0].drain().await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    bench.goes_on_meanwhile().await;
    assert!(!removal.is_finished(), "rank 2 does not keep the view that lacks rank 1 yet");
    let number = ranks[1]
        .receives(|d| match d {
            MasterToOwner::View(v) if !v.incarnations.contains(&101) => Some(v.number),
            _ => None,
        })
        .await;
    ranks[1].sends(OwnerToMaster::ViewSeen { number }).await;
    let e = done(removal.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "it went with its rank: {e}");
}

/// If only a minority, partitioned together with the master, knows of the loss, the ranks on the
/// other side would bring back what was removed.
#[tokio::test]
async fn i6_a_removal_is_not_acknowledged_by_a_loss_that_only_a_minority_knows_of() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[1]).await;
    ranks[0].drain().await;
    let waits = bench.asks(Request::Remove(vec![key("k")]));
    ranks[1].receives(|d| matches!(d, MasterToOwner::Retire(_)).then_some(())).await;
    // Ranks 1 and 2 send nothing more: after the TTL rank 0 is the only member, and keeps that
    // view.
    for _ in 0..4 {
        bench.clock.advance_ms(TTL_MS / 4);
        ranks[0].sends(OwnerToMaster::Retired(Vec::new())).await;
        bench.ticks().await;
        ranks[0].drain().await;
    }
    let e = done(waits.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert!(e.message().contains("only 1 of 3 ranks"), "{e}");
}

#[tokio::test]
async fn model_views_a_remove_that_nobody_confirms_is_disconnected() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[1]).await;
    ranks[2].drain().await;
    ranks[2].keeps_views = false;
    ranks[0].drain().await;
    let waits = bench.asks(Request::Remove(vec![key("k")]));
    ranks[1].receives(|d| matches!(d, MasterToOwner::Retire(_)).then_some(())).await;
    ranks.remove(1).sends(OwnerToMaster::Leave).await;
    ranks[0].drain().await;
    bench.clock.advance_ms(1_600);
    for r in &ranks {
        r.sends(OwnerToMaster::Retired(Vec::new())).await;
    }
    let e = done(waits.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
}

#[tokio::test]
async fn model_rejoinempty_a_fresh_incarnation_brings_nothing_and_is_welcome() {
    let bench = Bench::new(1).await;
    let old = term(3, 9);
    // A view of an earlier master does not exclude an incarnation that never obeyed a master.
    let mut r = bench.join_from(0, 100, old, view(old, 9, &[100])).await.unwrap();
    r.reports(vec![live(0, 1, "k")]).await;
    r.sends(OwnerToMaster::Leave).await;
    let mut fresh = bench.join(0, 101).await.unwrap();
    fresh.reports(Vec::new()).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn a_rank_still_to_be_met_is_in_no_view_as_lost() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    let heard = first.drain().await;
    assert!(!heard.iter().any(|d| matches!(d, MasterToOwner::View(_))), "{heard:?}");
    let mut second = bench.join(1, 101).await.unwrap();
    second.reports(Vec::new()).await;
    for r in [&mut first, &mut second] {
        let incarnations = r
            .receives(|d| match d {
                MasterToOwner::View(v) => Some(v.incarnations.clone()),
                _ => None,
            })
            .await;
        assert_eq!(incarnations, [100, 101]);
    }
}

#[tokio::test]
async fn i6_a_key_put_anew_while_a_rank_could_not_report_is_removed_once_it_has() {
    let bench = Bench::new(2).await;
    let old = term(3, 9);
    let mut first = bench.join(0, 100).await.unwrap();
    let seen = view(old, 2, &[101]);
    let mut unreported = bench.join_from(1, 101, old, seen).await.unwrap();
    let mut first = match first.is_cut().await {
        true => bench.rejoin(0, 100).await,
        false => first,
    };
    first.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first, &unreported]).await;
    let plan = bench.put(1, "k", &mut first).await;
    first.drain().await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    unreported.drain().await;
    let e = done(removal.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "the unreported rank's object can be read");
    let mut unreported = bench
        .join_from(1, 101, bench.members.term(), view(bench.members.term(), 9, &[100, 101]))
        .await
        .unwrap();
    assert_eq!(
        bench.found("other").await,
        Err(ErrorKind::NotReady),
        "still unreported, link or not"
    );
    unreported.reports(vec![live(0, 1, "k"), live(1, 1, "other")]).await;
    assert_eq!(bench.found("k").await, Ok(plan.meta.at), "the newer one stays");
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    assert_eq!(first.retires().await, plan.meta.at);
    done(removal.await.unwrap()).unwrap();
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
    assert_eq!(bench.found("other").await, Ok(unreported.at(1, 1)));
}

/// The key was put again under an earlier master, to which the rank had not reported either. This
/// master has the key from another rank's report, and does not know of the older object.
#[tokio::test]
async fn i6_a_key_that_another_rank_reported_is_not_removed_while_one_cannot_report() {
    let bench = Bench::new(2).await;
    let old = term(3, 9);
    let mut first = bench.join_from(0, 100, old, view(old, 2, &[100, 101])).await.unwrap();
    let mut unreported = bench.join_from(1, 101, old, view(old, 2, &[100, 101])).await.unwrap();
    first.reports(vec![live(0, 1, "k")]).await;
    bench.a_ttl_passes(&[&first, &unreported]).await;
    assert_eq!(bench.found("k").await, Ok(first.at(0, 1)));
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    // They acknowledge the view.
    first.drain().await;
    unreported.drain().await;
    let e = done(removal.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "the unreported rank's object can be read");
    let now = bench.members.term();
    let mut unreported = bench.join_from(1, 101, now, view(now, 9, &[100, 101])).await.unwrap();
    unreported.reports(vec![live(0, 1, "k")]).await;
    assert_eq!(bench.found("k").await, Ok(first.at(0, 1)), "one of a key is kept");
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    assert_eq!(first.retires().await, first.at(0, 1));
    done(removal.await.unwrap()).unwrap();
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn i17_a_rank_late_for_a_term_that_rose_twice_is_gone_all_the_same() {
    let bench = Bench::new(3).await;
    let late = bench.join_from(2, 102, term(5, 8), SeenView::default()).await.unwrap();
    let obeyed = late.term;
    let mut second =
        bench.join_from(1, 101, term(obeyed.number, 9), SeenView::default()).await.unwrap();
    assert_eq!(second.term.number, obeyed.number + 1);
    second.reports(Vec::new()).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first, &second]).await;
    assert!(is_gone(bench.join_from(2, 102, obeyed, SeenView::default()).await));
}

/// Seed 294679789 of the simulation: the first of two terms of one master process reported an
/// object as removed because its rank was gone, and that rank brought it back in the second term.
#[tokio::test]
async fn i6_a_rank_that_a_ruling_term_never_met_stays_lost_when_its_master_rises() {
    let bench = Bench::new(3).await;
    let old = term(1, 9);
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    let mut second = bench.join(1, 101).await.unwrap();
    second.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first, &second]).await;
    assert_eq!(bench.found("removed-meanwhile").await, Err(ErrorKind::NotFound), "it rules");
    // With one rank left it has no quorum: a rank that obeyed a higher term makes it begin a new
    // one.
    second.hangs_up().await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected));
    let ours = bench.members.term();
    let higher = term(ours.number + 3, 9);
    let fresh = info(1, 111, 3);
    bench.joins(fresh, higher, false, SeenView::default()).await.unwrap();
    assert!(bench.members.term() > ours);
    assert!(is_gone(bench.join_from(2, 102, old, view(old, 2, &[100, 101, 102])).await));
}

/// A member that was lost in a term stays lost, although only the latest view of that term is kept.
#[tokio::test]
async fn i17_of_each_earlier_term_the_latest_view_counts() {
    let old = term(3, 9);
    let bench = Bench::new(4).await;
    bench.join_from(0, 100, old, view(old, 6, &[100, 102, 103])).await.unwrap();
    bench.join_from(2, 102, old, view(old, 7, &[100, 102])).await.unwrap();
    for (rank, incarnation, keeps) in [(1, 101, 5), (3, 103, 6)] {
        let seen = view(old, keeps, &[100, 101, 102, 103]);
        assert!(is_gone(bench.join_from(rank, incarnation, old, seen).await), "rank {rank}");
    }
}

/// A plan of an earlier term that a kernel may still write: its key was put again, and evicted,
/// before its rank could report it.
#[tokio::test]
async fn i6_a_plan_held_for_kernels_over_a_new_term_is_committed_unless_its_key_was_put_again() {
    for put_again in [false, true] {
        let bench = Bench::new(2).await;
        let old = term(3, 9);
        let mut first = bench.join_from(0, 100, old, view(old, 2, &[100, 101])).await.unwrap();
        let mut late = bench.join_from(1, 101, old, view(old, 2, &[100, 101])).await.unwrap();
        first.reports(Vec::new()).await;
        if put_again {
            bench.a_ttl_passes(&[&first, &late]).await;
            let newer = bench.put(1, "k", &mut first).await;
            first.sends(OwnerToMaster::Retired(vec![newer.meta.at])).await;
            first.drain().await;
        }
        let plan = opened(PlanId { term: old, seq: 1 }, 0);
        let what = SlotContent::Open(Box::new(plan.clone()));
        let asked = late.receives(|d| match d {
            MasterToOwner::RequestReport { number } => Some(*number),
            _ => None,
        });
        let (number, slots) = (asked.await, vec![SlotEntry { slot: 0, epoch: 1, what }]);
        late.sends(OwnerToMaster::Report { number, slots, last: true }).await;
        let ended = std::cell::Cell::new(false);
        late.receives(|d| {
            ended.set(ended.get() || matches!(d, MasterToOwner::EndPlan { .. }));
            matches!(d, MasterToOwner::ReportTaken).then_some(())
        })
        .await;
        assert_eq!(ended.get(), put_again);
        let commit = PlanRef { plan: plan.plan, at: plan.at, key: HASHER.id(b"k") };
        let done = bench.done(Request::Commit(vec![commit])).await;
        if put_again {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::Reclaimed);
            assert_ne!(bench.found("k").await, Ok(plan.at));
        } else {
            done.unwrap();
            assert_eq!(bench.found("k").await, Ok(plan.at));
        }
    }
}

/// As above, but the key was put again under a master of which this one knows nothing.
#[tokio::test]
async fn i6_a_plan_held_for_kernels_gives_up_its_key_to_a_live_object_in_any_order_of_reports() {
    for live_first in [false, true] {
        let bench = Bench::new(2).await;
        let old = term(3, 9);
        let mut has = bench.join_from(0, 100, old, view(old, 2, &[100, 101])).await.unwrap();
        let mut holds = bench.join_from(1, 101, old, view(old, 2, &[100, 101])).await.unwrap();
        let plan = opened(PlanId { term: old, seq: 1 }, 0);
        if live_first {
            has.reports(vec![live(0, 1, "k")]).await;
        }
        let what = SlotContent::Open(Box::new(plan.clone()));
        holds.reports(vec![SlotEntry { slot: 0, epoch: 1, what }]).await;
        if !live_first {
            has.reports(vec![live(0, 1, "k")]).await;
        }
        assert_eq!(bench.found("k").await, Ok(has.at(0, 1)), "live first: {live_first}");
        let commit = PlanRef { plan: plan.plan, at: plan.at, key: HASHER.id(b"k") };
        let refused = bench.done(Request::Commit(vec![commit])).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Reclaimed);
        holds.sends(OwnerToMaster::Adopted(commit)).await;
        assert_eq!(holds.retires().await, plan.at);
        assert_eq!(bench.found("k").await, Ok(has.at(0, 1)));
    }
}

#[tokio::test]
async fn i12_an_abort_is_not_acknowledged_before_the_plans_owner_has_reported() {
    let bench = Bench::new(2).await;
    let old = term(3, 9);
    let mut first = bench.join_from(0, 100, old, view(old, 2, &[100, 101])).await.unwrap();
    let mut late = bench.join_from(1, 101, old, view(old, 2, &[100, 101])).await.unwrap();
    first.reports(Vec::new()).await;
    bench.a_ttl_passes(&[&first, &late]).await;
    let plan = opened(PlanId { term: old, seq: 1 }, 0);
    let abort = PlanRef { plan: plan.plan, at: plan.at, key: HASHER.id(b"k") };
    let early = bench.done(Request::Abort(vec![abort])).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::NotReady);
    let what = SlotContent::Open(Box::new(plan.clone()));
    late.reports(vec![SlotEntry { slot: 0, epoch: 1, what }]).await;
    bench.done(Request::Abort(vec![abort])).await.unwrap();
    late.sends(OwnerToMaster::Adopted(abort)).await;
    assert_eq!(late.retires().await, plan.at);
}
