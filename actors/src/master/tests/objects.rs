//! Slots, plans and messages that come late, twice or not at all [I10] [I11].

use super::bench::{Bench, SLOTS, done, eventually, held, key, live, opening, plan_ref};
use crate::ErrorKind;
use crate::message::{
    EndCause, Existence, MasterToOwner, OwnerToMaster, PlanOpened, Request, Response, SeenView,
};
use std::time::Duration;

fn opened(d: &MasterToOwner) -> Option<PlanOpened> {
    match d {
        MasterToOwner::PlanOpened(p) => Some(p.clone()),
        _ => None,
    }
}

fn ended(d: &MasterToOwner) -> Option<EndCause> {
    match d {
        MasterToOwner::EndPlan { cause, .. } => Some(*cause),
        _ => None,
    }
}

#[tokio::test]
async fn model_heldrep_i8_a_slot_reported_as_held_is_not_handed_out_before_freed() {
    let bench = Bench::new(1).await;
    let mut r = bench.join(0, 100).await.unwrap();
    r.reports((0..SLOTS - 1).map(|s| held(s, 4)).collect()).await;
    let only = bench.open(1, "a", 0).await.unwrap();
    assert_eq!(only.meta.at.slot, SLOTS - 1);
    let waits = bench.asks(opening(2, "b", 0));
    r.receives(|d| matches!(d, MasterToOwner::MakeRoom { .. }).then_some(())).await;
    r.sends(OwnerToMaster::Freed(vec![r.at(1, 4)])).await;
    let Response::Plans(list) = waits.await.unwrap() else { panic!() };
    assert_eq!(list[0].as_ref().unwrap().meta.at, r.at(1, 5));
}

#[tokio::test]
async fn opens_of_a_batch_that_wait_ask_for_the_room_of_all_of_them_at_once() {
    let bench = Bench::new(1).await;
    let mut r = bench.join(0, 100).await.unwrap();
    r.reports((0..SLOTS).map(|s| held(s, 4)).collect()).await;
    let one = |k: &str| match opening(1, k, 0) {
        Request::OpenForWrite { mut items, .. } => items.remove(0),
        _ => unreachable!(),
    };
    let items: Vec<_> = ["a", "b", "c"].into_iter().map(one).collect();
    let each = items[0].bytes_total;
    let waits = bench.asks(Request::OpenForWrite { request: 1, wait_ms: 100, items });
    let room = |d: &MasterToOwner| match d {
        MasterToOwner::MakeRoom { bytes, all, attempt } => Some((*bytes, *all, *attempt)),
        _ => None,
    };
    assert_eq!(r.receives(room).await, (each, 3 * each, 0));
    r.sends(OwnerToMaster::Freed((0..3).map(|slot| r.at(slot, 4)).collect())).await;
    let Response::Plans(list) = waits.await.unwrap() else { panic!() };
    assert!(list.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_put_that_waits_for_room_is_not_refused_for_time_in_which_the_master_did_not_run() {
    let bench = Bench::new(1).await;
    let mut r = bench.join(0, 100).await.unwrap();
    r.reports((0..SLOTS).map(|s| held(s, 4)).collect()).await;
    let waits = bench.asks(opening(1, "a", 0));
    r.receives(|d| matches!(d, MasterToOwner::MakeRoom { .. }).then_some(())).await;
    // Longer than its wait of 50 ms, in one step.
    bench.clock.advance_ms(90);
    bench.ticks().await;
    r.sends(OwnerToMaster::Freed(vec![r.at(1, 4)])).await;
    let Response::Plans(list) = waits.await.unwrap() else { panic!() };
    assert_eq!(list[0].as_ref().unwrap().meta.at, r.at(1, 5));
}

#[tokio::test]
async fn model_freedck_i11_a_duplicated_and_a_delayed_freed_free_nothing() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let r = &mut ranks[0];
    let first = bench.put(1, "k", r).await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    let at = r.retires().await;
    done(removal.await.unwrap()).unwrap();
    assert_eq!(at, first.meta.at);
    let second = bench.open(2, "k", 0).await.unwrap();
    assert_eq!((second.meta.at.slot, second.meta.at.epoch), (at.slot, at.epoch + 1));
    // Sent again, as it is until acknowledged, and once more much later.
    for _ in 0..2 {
        r.sends(OwnerToMaster::Freed(vec![at])).await;
        let third = bench.open(3, "other", 0).await.unwrap();
        assert_ne!(third.meta.at.slot, second.meta.at.slot);
        assert_ne!(third.meta.object.payload_off(), second.meta.object.payload_off());
    }
}

/// The plan and the commit were lost with a link, and the key was removed before the rank was back.
/// The object is READY in the owner's memory: it is readable by its location, and its slot is not
/// free.
#[tokio::test]
async fn i6_a_removal_retires_an_object_that_its_owner_never_heard_of_before_it_is_done() {
    let (bench, mut ranks) = Bench::whole(2).await;
    let stored = bench.put(1, "k", &mut ranks[1]).await.meta.at;
    ranks.pop().unwrap().hangs_up().await;
    let found = async || bench.found("k").await;
    eventually("its link is down", found, |f| *f == Err(ErrorKind::Disconnected)).await;
    let e = bench.done(Request::Remove(vec![key("k")])).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected, "{e}");
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound), "it is gone all the same");
    let obeyed = bench.members.term();
    let mut r = bench.join_from(1, 101, obeyed, SeenView::default()).await.unwrap();
    let asked = |d: &MasterToOwner| match d {
        MasterToOwner::RequestReport { number } => Some(*number),
        _ => None,
    };
    let number = r.receives(asked).await;
    r.sends(OwnerToMaster::Report { number, slots: Vec::new(), last: true }).await;
    let plan = r.receives(opened).await;
    assert_eq!((plan.at, &plan.key), (stored, &key("k")));
    assert_eq!(r.receives(ended).await, EndCause::Removed);
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    r.receives(|d| matches!(d, MasterToOwner::Retire(list) if list == &[stored]).then_some(()))
        .await;
    assert!(!removal.is_finished(), "its owner has not cleared LIVE yet");
    let other = bench.open(2, "other", 1).await.unwrap().meta;
    assert_ne!(
        (other.at.slot, other.object.payload_off()),
        (stored.slot, plan.object.payload_off())
    );
    r.sends(OwnerToMaster::Retired(vec![stored])).await;
    ranks[0].drain().await;
    done(removal.await.unwrap()).unwrap();
}

/// The manual clock does not advance: a call that waited for the end of a limit would wait forever.
#[tokio::test]
async fn i6_a_removal_where_a_link_is_down_or_breaks_fails_at_once_and_so_does_a_batch() {
    for breaks_first in [true, false] {
        let (bench, mut ranks) = Bench::whole(2).await;
        for (request, k) in ["a", "b", "c"].into_iter().enumerate() {
            bench.put(request as u64, k, &mut ranks[1]).await;
        }
        bench.put(9, "here", &mut ranks[0]).await;
        let mut down = ranks.pop().unwrap();
        let keys = ["a", "b", "here", "c"].map(key).to_vec();
        let removal = if breaks_first {
            down.hangs_up().await;
            bench.asks(Request::Remove(keys))
        } else {
            let removal = bench.asks(Request::Remove(keys));
            down.receives(|d| matches!(d, MasterToOwner::Retire(_)).then_some(())).await;
            down.hangs_up().await;
            removal
        };
        ranks[0].retires().await;
        let Response::Done(list) = removal.await.unwrap() else { panic!("no list") };
        let kinds: Vec<_> = list.into_iter().map(|r| r.map_err(|e| e.kind())).collect();
        let lost = Err(ErrorKind::Disconnected);
        assert_eq!(kinds, [lost, lost, Ok(()), lost], "it breaks first: {breaks_first}");
    }
}

#[tokio::test]
async fn model_freedack_a_freed_before_the_report_is_not_acknowledged() {
    let bench = Bench::new(1).await;
    let mut r = bench.join(0, 100).await.unwrap();
    r.sends(OwnerToMaster::Freed(vec![r.at(0, 1)])).await;
    let heard = r.drain().await;
    assert!(!heard.iter().any(|d| matches!(d, MasterToOwner::FreedAck(_))), "{heard:?}");
    drop(r);
    let mut r = bench.join_from(0, 100, bench.members.term(), SeenView::default()).await.unwrap();
    r.reports(vec![held(0, 1)]).await;
    r.sends(OwnerToMaster::Freed(vec![r.at(0, 1)])).await;
    r.receives(|d| matches!(d, MasterToOwner::FreedAck(_)).then_some(())).await;
}

#[tokio::test]
async fn model_onlyowner_i10_the_masters_clock_ends_no_plan() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let r = &mut ranks[0];
    let plan = bench.open(1, "k", 0).await.unwrap();
    for _ in 0..30 {
        bench.clock.advance_ms(100);
        r.sends(OwnerToMaster::Retired(Vec::new())).await;
        bench.ticks().await;
    }
    let e = bench.open(2, "k", 0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "its owner said nothing yet: {e}");
    bench.commit(&plan).await.unwrap();
}

#[tokio::test]
async fn model_repairplan_i6_a_remove_ends_the_open_plan_of_its_key_and_its_commit_is_reclaimed() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let r = &mut ranks[0];
    let plan = bench.open(1, "k", 0).await.unwrap();
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    assert_eq!(r.receives(ended).await, EndCause::Removed);
    let e = bench.commit(&plan).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Reclaimed, "{e}");
    assert!(!removal.is_finished(), "LIVE is not gone yet");
    r.sends(OwnerToMaster::Retired(vec![plan.meta.at])).await;
    done(removal.await.unwrap()).unwrap();
}

#[tokio::test]
async fn i11_a_replayed_open_gets_the_same_plan_and_another_producers_does_not() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let first = bench.open(1, "k", 0).await.unwrap();
    let again = bench.open(1, "k", 0).await.unwrap();
    assert_eq!(first, again);
    let heard = ranks[0].drain().await;
    assert_eq!(heard.iter().filter_map(opened).count(), 1);
    assert_eq!(bench.open(2, "k", 0).await.unwrap_err().kind(), ErrorKind::NotReady);
}

#[tokio::test]
async fn i11_a_commit_of_an_expired_plan_is_reclaimed() {
    let (bench, ranks) = Bench::whole(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    ranks[0].sends(OwnerToMaster::Retired(vec![plan.meta.at])).await;
    assert_eq!(bench.commit(&plan).await.unwrap_err().kind(), ErrorKind::Reclaimed);
}

#[tokio::test]
async fn i6_remove_racing_a_put_leaves_the_key_removed_or_the_put_refused() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let r = &mut ranks[0];
    let plan = bench.open(1, "k", 0).await.unwrap();
    // Commit first, then the remove: it is retired, not merely ended.
    bench.commit(&plan).await.unwrap();
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    r.retires().await;
    done(removal.await.unwrap()).unwrap();
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
    // An Adopted that was on its way does not bring it back.
    r.sends(OwnerToMaster::Adopted(plan_ref(&plan))).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
    // Nor does a report that was written before the owner received the remove.
    let mut r = bench.join_from(0, 100, bench.members.term(), SeenView::default()).await.unwrap();
    r.reports(vec![live(1, 1, "other")]).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn nothing_is_placed_on_an_owner_that_is_behind_and_its_link_is_not_cut() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let segment_id = ranks[0].info.id();
    (0..5_000)
        .for_each(|_| bench.members.send(segment_id, MasterToOwner::Heartbeat { stamp_ms: 0 }));
    let late = bench.asks(opening(1, "late", 0));
    while !late.is_finished() {
        bench.clock.advance_ms(20);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Response::Plans(mut late) = late.await.unwrap() else { panic!("no plans") };
    assert_eq!(late.remove(0).unwrap_err().kind(), ErrorKind::NotReady);
    // The owner empties its queue while an open waits.
    let waits = bench.asks(opening(2, "waits", 0));
    assert!(ranks[0].drain().await.len() >= 5_000, "the link is up");
    bench.clock.advance_ms(20);
    let Response::Plans(mut granted) = waits.await.unwrap() else { panic!("no plans") };
    granted.remove(0).unwrap();
}

#[tokio::test]
async fn a_key_of_a_rank_whose_link_is_down_is_unreachable_and_not_absent() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[2]).await;
    ranks.pop().unwrap().hangs_up().await;
    match bench
        .ask(Request::Exists { keys: vec![key("k"), key("none")], promote: Default::default() })
        .await
    {
        Response::Existence { list, .. } => {
            assert_eq!(list, [Existence::Unreachable, Existence::Absent]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "a read says the same");
}

#[tokio::test]
async fn what_is_no_key_is_refused_and_not_said_to_be_absent() {
    let (bench, _ranks) = Bench::whole(1).await;
    for bad in ["".to_string(), "k".repeat(1025)] {
        let keys = || vec![key("k"), key(&bad)];
        for asked in [
            Request::Exists { keys: keys(), promote: Default::default() },
            Request::MatchPrefix(keys()),
        ] {
            let Response::Failed(e) = bench.ask(asked).await else { panic!() };
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        }
        let located =
            Request::GetLocation { keys: keys(), gone: Vec::new(), promote: Default::default() };
        let Response::Locations(list) = bench.ask(located).await else { panic!() };
        let kinds: Vec<_> = list.iter().map(|r| r.as_ref().unwrap_err().kind()).collect();
        assert_eq!(kinds, [ErrorKind::NotFound, ErrorKind::InvalidArgument]);
    }
}
