//! Ranks with more than one segment: how ranks are counted, where objects go, where opens wait, and
//! which segments must report.

use super::bench::{
    Bench, HASHER, LIMIT, Rank, SLOTS, UNIT, granted, info, key, live, opening, plan_ref, term,
    view, wants_room,
};
use crate::ErrorKind;
use crate::message::{
    MAX_SEGMENTS, MasterToOwner, OpenItem, OwnerToMaster, PlanDesc, RankInfo, RankState, Refusal,
    Request, Response, SeenView, SegmentId,
};
use nkv_store::Retention;
use std::collections::BTreeMap;

const SECOND: SegmentId = SegmentId { rank: 0, segment: 1 };

/// A rank of a world, and one more segment of it that has reported.
async fn mounted(bench: &Bench, segment_id: SegmentId, incarnation: u64) -> Rank {
    let mut segment = bench.mount(segment_id, incarnation).await.unwrap();
    segment.reports(Vec::new()).await;
    segment
}

fn opening_of(request: u64, k: &str, bytes_total: u64) -> Request {
    let items = vec![OpenItem {
        key: k.as_bytes().to_vec(),
        bytes_total,
        preferred_rank: Some(0),
        medium: Default::default(),
        further: Vec::new(),
        nearest: None,
        page_bytes: 4096,
        replicas: 1,
        replica_of: None,
        retention: Retention::Usual,
    }];
    Request::OpenForWrite { request, wait_ms: 100, items }
}

async fn open_of(bench: &Bench, request: u64, k: &str, units: u64) -> PlanDesc {
    granted(bench.ask(opening_of(request, k, units * UNIT)).await).unwrap()
}

#[tokio::test]
async fn a_segment_is_a_member_of_its_own_and_its_rank_is_named() {
    let (bench, mut ranks) = Bench::whole(2).await;
    let segment_id = SegmentId { rank: 1, segment: 3 };
    let second = mounted(&bench, segment_id, 200).await;
    let all = bench.members.view();
    let segment_ids: Vec<_> = all.ranks.iter().map(|(i, _)| (i.rank, i.segment_id)).collect();
    assert_eq!(segment_ids, [(0, 0), (1, 0), (1, 3)], "in the order of their segments");
    assert_eq!(all.nodes().count(), 2);
    let Response::Stats(stats) = bench.ask(Request::Stats).await else { panic!() };
    let rows: Vec<_> = stats.ranks.iter().map(|r| (r.rank, r.segment, r.incarnation)).collect();
    assert_eq!(rows, [(0, 0, 100), (1, 0, 101), (1, 3, 200)]);
    assert_eq!(second.info.id().to_string(), "segment 3 of rank 1");
    // Every owner keeps the views, and they contain every incarnation.
    let keeps = |d: &MasterToOwner| match d {
        MasterToOwner::View(v) if v.incarnations == [100, 101, 200] => Some(()),
        _ => None,
    };
    ranks[0].receives(keeps).await;
}

#[tokio::test]
async fn a_segment_past_the_last_number_is_refused() {
    let (bench, _ranks) = Bench::whole(1).await;
    let last = SegmentId { rank: 0, segment: MAX_SEGMENTS - 1 };
    bench.mount(last, 200).await.unwrap();
    let past = SegmentId { rank: 0, segment: MAX_SEGMENTS };
    let refused = bench.mount(past, 201).await.err();
    assert!(matches!(refused, Some(Refusal::Segment { segment: 64, last: 63, .. })), "{refused:?}");
}

#[tokio::test]
async fn mounted_segments_have_no_vote_in_the_quorum() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[0]).await;
    let _more = mounted(&bench, SECOND, 200).await;
    let _most = mounted(&bench, SegmentId { rank: 0, segment: 2 }, 201).await;
    ranks.pop().unwrap().hangs_up().await;
    assert!(bench.found("k").await.is_ok(), "two of three obey");
    ranks.pop().unwrap().hangs_up().await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "three segments, one rank");
}

#[tokio::test]
async fn a_mounted_segment_that_is_lost_takes_no_vote_along() {
    let (bench, mut ranks) = Bench::whole(1).await;
    bench.put(1, "k", &mut ranks[0]).await;
    mounted(&bench, SECOND, 200).await.hangs_up().await;
    assert!(bench.found("k").await.is_ok());
    assert_eq!(bench.members.state(SECOND), Some(RankState::Suspect));
}

#[tokio::test]
async fn a_mounted_segment_does_not_stand_for_a_rank_that_is_missing() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(Vec::new()).await;
    let _second = mounted(&bench, SECOND, 200).await;
    assert_eq!(bench.members.ready_ranks(), 1);
    let e = bench.open(1, "k", 0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    assert!(e.message().contains("ranks [1] of 2"), "{e}");
}

#[tokio::test]
async fn an_object_goes_to_the_segment_of_its_rank_with_most_room() {
    let (bench, _ranks) = Bench::whole(2).await;
    let _second = mounted(&bench, SECOND, 200).await;
    let mut placed = Vec::new();
    for i in 0..2 * u64::from(SLOTS) {
        placed.push(bench.open(i, &format!("k{i}"), 0).await.unwrap().meta);
    }
    let where_: Vec<_> = placed.iter().map(|m| m.at.incarnation).collect();
    assert_eq!(where_, [100, 200, 100, 200, 100, 200, 100, 200], "the first when equal");
    assert!(placed.iter().all(|m| m.rank == 0));
    // By hash, too: a rank's share does not grow with its segments.
    let (mut at, mut request) = (BTreeMap::<u32, u32>::new(), 100);
    for k in 0..4 {
        let id = HASHER.id(format!("h{k}").as_bytes());
        let items = vec![OpenItem {
            key: format!("h{k}").into_bytes(),
            bytes_total: 1,
            preferred_rank: None,
            medium: Default::default(),
            further: Vec::new(),
            nearest: None,
            page_bytes: 0,
            replicas: 1,
            replica_of: None,
            retention: Retention::Usual,
        }];
        request += 1;
        let open = Request::OpenForWrite { request, wait_ms: 0, items };
        if id.hash % 2 == 1 {
            *at.entry(granted(bench.ask(open).await).unwrap().meta.rank).or_default() += 1;
        }
    }
    assert!(at.keys().all(|rank| *rank == 1), "{at:?}");
}

#[tokio::test]
async fn an_object_goes_where_it_fits_and_is_refused_where_it_never_can() {
    let (bench, _ranks) = Bench::whole(1).await;
    let mut large = RankInfo { segment_id: 1, ..info(0, 200, 1) };
    large.layout.slots = 8;
    large.layout.arena.len = 8 * UNIT;
    large.layout.segment_bytes = (1 << 20) + 8 * UNIT;
    let mut second = bench.joins(large, term(0, 0), false, SeenView::default()).await.unwrap();
    second.reports(Vec::new()).await;
    assert_eq!(open_of(&bench, 1, "large", 6).await.meta.at.incarnation, 200);
    // It has less room now, but only it could ever hold this one: it waits there.
    let waits = bench.asks(opening_of(2, "later", 6 * UNIT));
    second.receives(wants_room).await;
    let small = open_of(&bench, 3, "small", 1).await;
    assert_eq!(small.meta.at.incarnation, 100);
    let e = granted(bench.ask(opening_of(4, "huge", 9 * UNIT)).await).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let why = "larger than what segment 1 of rank 0 can store: it has 32768 bytes for plans";
    assert!(e.message().contains(why), "{e}");
    assert_eq!(e.rank(), Some(0));
    waits.abort();
}

#[tokio::test]
async fn an_open_that_waits_is_served_by_whichever_segment_has_room_first() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let second = mounted(&bench, SECOND, 200).await;
    let mut plans = Vec::new();
    for i in 0..8 {
        plans.push(bench.open(i, &format!("k{i}"), 0).await.unwrap());
    }
    ranks[0].drain().await;
    let waits = bench.asks(opening(9, "k9", 0));
    ranks[0].receives(wants_room).await;
    // The master asks the first segment for room, and the second frees some.
    let gone = plans.iter().find(|p| p.meta.at.incarnation == 200).unwrap().meta.at;
    second.sends(OwnerToMaster::Freed(vec![gone])).await;
    let plan = granted(waits.await.unwrap()).unwrap();
    assert_eq!((plan.meta.at.incarnation, plan.meta.at.slot), (200, gone.slot));
}

#[tokio::test]
async fn an_open_that_waits_is_served_by_a_segment_that_joins() {
    let (bench, mut ranks) = Bench::whole(1).await;
    for i in 0..u64::from(SLOTS) {
        bench.open(i, &format!("k{i}"), 0).await.unwrap();
    }
    let waits = bench.asks(opening(9, "k9", 0));
    ranks[0].receives(wants_room).await;
    let mut second = bench.mount(SECOND, 200).await.unwrap();
    assert!(!waits.is_finished(), "not before its report");
    second.reports(Vec::new()).await;
    assert_eq!(granted(waits.await.unwrap()).unwrap().meta.at.incarnation, 200);
}

#[tokio::test]
async fn a_waiting_open_is_not_overtaken_at_its_segment_and_others_are_placed_elsewhere() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let keep = open_of(&bench, 1, "a", 1).await;
    let go = open_of(&bench, 2, "b", 1).await;
    let _second = mounted(&bench, SECOND, 200).await;
    let three = open_of(&bench, 3, "c", 3).await;
    assert_eq!((keep.meta.at.incarnation, three.meta.at.incarnation), (100, 200));
    // Two units are free here, one there.
    let large = bench.asks(opening_of(4, "large", 3 * UNIT));
    ranks[0].receives(wants_room).await;
    let passes = open_of(&bench, 5, "passes", 1).await;
    assert_eq!(passes.meta.at.incarnation, 200, "where nobody waits");
    let behind = bench.asks(opening_of(6, "behind", UNIT));
    // The stats request is handled after that open, so the open waits.
    bench.ask(Request::Stats).await;
    assert!(!large.is_finished() && !behind.is_finished(), "room for it, but not its turn");
    ranks[0].sends(OwnerToMaster::Freed(vec![go.meta.at])).await;
    let large = granted(large.await.unwrap()).unwrap();
    assert_eq!(
        (large.meta.at.incarnation, large.meta.object.payload_off()),
        (100, (1 << 20) + UNIT)
    );
    ranks[0].sends(OwnerToMaster::Freed(vec![keep.meta.at])).await;
    assert_eq!(granted(behind.await.unwrap()).unwrap().meta.at.incarnation, 100);
}

#[tokio::test]
async fn a_draining_segment_takes_no_plan_more_and_finishes_what_it_has() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let mut second = mounted(&bench, SECOND, 200).await;
    let first = bench.open(1, "a", 0).await.unwrap();
    let there = bench.open(2, "b", 0).await.unwrap();
    assert_eq!((first.meta.at.incarnation, there.meta.at.incarnation), (100, 200));
    second.sends(OwnerToMaster::Draining).await;
    let heard = second.drain().await;
    let opened = heard.iter().position(|d| matches!(d, MasterToOwner::PlanOpened(_)));
    let quiet = heard.iter().position(|d| matches!(d, MasterToOwner::NoMorePlans));
    assert!(opened.unwrap() < quiet.unwrap(), "the word comes after every plan: {heard:?}");
    bench.commit(&there).await.unwrap();
    assert!(bench.found("b").await.is_ok(), "readable until it leaves");
    for (i, k) in ["c", "d", "e"].into_iter().enumerate() {
        assert_eq!(bench.open(3 + i as u64, k, 0).await.unwrap().meta.at.incarnation, 100);
    }
    // Full: the next open waits for the first segment, not for the one that leaves.
    ranks[0].drain().await;
    let waits = bench.asks(opening(9, "f", 0));
    ranks[0].receives(wants_room).await;
    waits.abort();
}

#[tokio::test]
async fn an_open_that_waits_at_a_segment_that_leaves_is_routed_elsewhere() {
    for goes in [OwnerToMaster::Draining, OwnerToMaster::Leave] {
        let (bench, mut ranks) = Bench::whole(1).await;
        let mut second = mounted(&bench, SECOND, 200).await;
        let plans = [open_of(&bench, 1, "a", 4).await, open_of(&bench, 2, "b", 2).await];
        let at: Vec<_> = plans.iter().map(|p| p.meta.at.incarnation).collect();
        assert_eq!(at, [100, 200]);
        let waits = bench.asks(opening_of(3, "c", 3 * UNIT));
        second.receives(wants_room).await;
        ranks[0].drain().await;
        second.sends(goes).await;
        ranks[0].receives(wants_room).await;
        assert!(!waits.is_finished());
        ranks[0].sends(OwnerToMaster::Freed(vec![plans[0].meta.at])).await;
        assert_eq!(granted(waits.await.unwrap()).unwrap().meta.at.incarnation, 100);
    }
}

#[tokio::test]
async fn i17_a_segment_that_left_takes_its_objects_along_and_nobody_elses() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let mut second = mounted(&bench, SECOND, 200).await;
    bench.put(1, "first", &mut ranks[0]).await;
    let there = bench.put(2, "second", &mut second).await;
    assert_eq!(there.meta.at.incarnation, 200);
    let open = bench.open(3, "open-first", 0).await.unwrap();
    let lost = bench.open(4, "open-second", 0).await.unwrap();
    assert_eq!((open.meta.at.incarnation, lost.meta.at.incarnation), (100, 200));
    second.sends(OwnerToMaster::Leave).await;
    assert!(second.is_cut().await, "that is the answer to a Leave");
    assert_eq!(bench.found("second").await, Err(ErrorKind::NotFound));
    assert!(bench.found("first").await.is_ok());
    bench.commit(&open).await.unwrap();
    let e = bench.commit(&lost).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Reclaimed, "{e}");
    assert!(matches!(bench.mount(SECOND, 200).await, Err(Refusal::Gone { .. })));
    // The segment is free for another incarnation, and the key for another value.
    let _again = mounted(&bench, SECOND, 201).await;
    assert_eq!(bench.open(5, "second", 0).await.unwrap().meta.at.incarnation, 201);
}

#[tokio::test]
async fn a_message_of_one_segment_changes_no_other_segment_of_its_rank() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let mut second = mounted(&bench, SECOND, 200).await;
    let here = bench.put(1, "here", &mut ranks[0]).await;
    let there = bench.put(2, "there", &mut second).await;
    assert_eq!(here.meta.at.slot, there.meta.at.slot, "numbers are a segment's own");
    second.sends(OwnerToMaster::Retired(vec![there.meta.at])).await;
    second.sends(OwnerToMaster::Freed(vec![there.meta.at])).await;
    assert!(bench.found("here").await.is_ok());
    assert_eq!(bench.found("there").await, Err(ErrorKind::NotFound));
    let next = bench.open(3, "next", 0).await.unwrap();
    assert_eq!((next.meta.at.incarnation, next.meta.at.epoch), (200, there.meta.at.epoch + 1));
}

#[tokio::test]
async fn model_joinall_a_restarted_master_waits_for_the_segments_a_node_announced() {
    let bench = Bench::new(1).await;
    let old = term(3, 9);
    let seen = view(old, 5, &[100, 200]);
    let first = (old, true, seen.clone());
    let mut first = bench.joins_with(info(0, 100, 1), first, vec![(1, 200)]).await.unwrap();
    first.reports(vec![live(0, 1, "first")]).await;
    assert_eq!(bench.found("first").await, Err(ErrorKind::NotReady), "nothing is certain yet");
    assert_eq!(bench.found("second").await, Err(ErrorKind::NotReady), "it may lie there");
    let e = bench.open(1, "second", 0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    assert!(e.message().contains("waits for segment 1 of rank 0 to join"), "{e}");
    let segment = RankInfo { segment_id: 1, ..info(0, 200, 1) };
    let mut second = bench.joins(segment, old, true, seen).await.unwrap();
    second.reports(vec![live(0, 1, "second")]).await;
    assert!(bench.found("first").await.is_ok());
    assert_eq!(bench.found("second").await, Ok(second.at(0, 1)));
    assert_eq!(bench.found("neither").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn model_lateempty_a_segment_not_met_in_time_is_gone_and_is_waited_for_no_longer() {
    let bench = Bench::new(1).await;
    let old = term(3, 9);
    let seen = view(old, 5, &[100, 200]);
    let first = (old, true, seen.clone());
    let mut first = bench.joins_with(info(0, 100, 1), first, vec![(1, 200)]).await.unwrap();
    first.reports(Vec::new()).await;
    assert_eq!(bench.found("second").await, Err(ErrorKind::NotReady));
    bench.a_ttl_passes(&[&first]).await;
    bench.open(1, "second", 0).await.unwrap();
    let segment = RankInfo { segment_id: 1, ..info(0, 200, 1) };
    let late = bench.joins(segment, old, true, seen).await.err();
    assert!(matches!(late, Some(Refusal::Gone { .. })), "{late:?}");
}

#[tokio::test]
async fn a_rank_that_starts_afresh_buries_the_cut_off_segments_of_its_former_node() {
    let (bench, mut ranks) = Bench::whole(2).await;
    let segment_ids = [1, 2].map(|segment| SegmentId { rank: 1, segment });
    let mut dead = mounted(&bench, segment_ids[0], 200).await;
    let _alive = mounted(&bench, segment_ids[1], 201).await;
    ranks.pop().unwrap().hangs_up().await;
    let plan = granted(bench.ask(opening(1, "k", 1)).await).unwrap();
    assert_eq!(plan.meta.at.incarnation, 200);
    dead.receives(|d| matches!(d, MasterToOwner::PlanOpened(_)).then_some(())).await;
    bench.commit(&plan).await.unwrap();
    dead.hangs_up().await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected), "it may come back");
    bench.join(1, 300).await.unwrap();
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound), "nobody is left who could");
    assert!(matches!(bench.mount(segment_ids[0], 200).await, Err(Refusal::Gone { .. })));
    assert_eq!(bench.members.state(segment_ids[1]), Some(RankState::Alive), "its link is up");
}

/// Answers the last request for a report of a rebuilt master.
async fn reports_again(rank: &mut Rank, k: &str) {
    // Handled by the rebuilt master, which has sent its request by then.
    rank.sends(OwnerToMaster::Heartbeat { gauges: Box::default(), stamp_ms: 0 }).await;
    let asked = |d: &MasterToOwner| match d {
        MasterToOwner::RequestReport { number } => Some(*number),
        _ => None,
    };
    let number = rank.drain().await.iter().filter_map(asked).next_back().unwrap();
    rank.sends(OwnerToMaster::Report { number, slots: vec![live(0, 1, k)], last: true }).await;
    rank.receives(|d| matches!(d, MasterToOwner::ReportTaken).then_some(())).await;
}

#[tokio::test]
async fn a_rebuilt_master_asks_every_segment_and_knows_their_objects_again() {
    let (bench, mut ranks) = Bench::whole(1).await;
    let mut second = mounted(&bench, SECOND, 200).await;
    let here = bench.put(1, "here", &mut ranks[0]).await;
    let there = bench.put(2, "there", &mut second).await;
    ranks[0].drain().await;
    second.drain().await;
    assert!(bench.master.call(crate::actor::Crash, LIMIT).await.is_err());
    let found = bench.asks(Request::GetLocation {
        keys: vec![key("here"), key("there")],
        gone: Vec::new(),
        promote: Default::default(),
    });
    reports_again(&mut ranks[0], "here").await;
    assert!(!found.is_finished(), "the second one has not reported");
    reports_again(&mut second, "there").await;
    let Response::Locations(list) = found.await.unwrap() else { panic!() };
    let at: Vec<_> = list.into_iter().map(|m| super::bench::at(&m.unwrap()[0])).collect();
    assert_eq!(at, [plan_ref(&here).at, plan_ref(&there).at]);
}

#[tokio::test]
async fn i16_a_rank_that_hashes_keys_otherwise_is_refused() {
    let bench = Bench::new(2).await;
    let odd = RankInfo { key_fingerprint: 7, ..info(1, 101, 2) };
    let (ours, theirs) = (HASHER.fingerprint(), 7);
    let joins = bench.joins(odd, term(0, 0), false, SeenView::default());
    let refused = joins.await.err().expect("refused");
    assert_eq!(refused, Refusal::Keys { who: "rank 1".to_string(), ours, theirs });
    let text = refused.to_string();
    assert!(text.contains("rank 1 hashes keys under another key"), "{text}");
    assert!(text.contains(&format!("{ours:016x}")) && text.contains("same secret"), "{text}");
    assert!(bench.join(1, 101).await.is_ok());
}
