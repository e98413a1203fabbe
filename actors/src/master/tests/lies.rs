//! Members that send impossible values: they are refused with a reason and cut, and others are not
//! affected [I19].

use super::bench::{
    Bench, Rank, SLOTS, UNIT, done, extent_of, held, info, key, live, opening, term,
};
use crate::ErrorKind;
use crate::message::{
    KeyBytes, LogObjectEntry, MAX_SEGMENTS, MAX_TEXT_BYTES, MasterToOwner, ObjectDesc,
    OwnerToMaster, PlanId, PlanOpened, PlanRef, RankInfo, Refusal, ReplicaSet, Request, Response,
    SeenView, SlotContent, SlotEntry, SlotRef, Term,
};
use nkv_store::KeyId;
use nkv_store::Retention;
use nkv_store::arena::Extent;
use nkv_store::key::MAX_KEY_BYTES;
use nkv_store::layout::Region;

type Forgery = fn(&mut RankInfo);

/// A plan of key "k" in a slot of incarnation 101.
pub(super) fn opened(plan: PlanId, slot: u32) -> PlanOpened {
    PlanOpened {
        object: ObjectDesc {
            extent: Extent { offset: extent_of(slot), len: UNIT },
            bytes_total: UNIT,
            page_bytes: 4096,
        },
        plan,
        token: 1,
        at: SlotRef { incarnation: 101, slot, epoch: 1 },
        key: key("k"),
        producer: 7,
        request: 1,
        item: 0,
        deadline_ms: 100,
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    }
}

fn entry(slot: u32, what: SlotContent) -> SlotEntry {
    SlotEntry { slot, epoch: 1, what }
}

#[tokio::test]
async fn i19_a_member_with_an_impossible_description_is_refused_before_anything_is_made_for_it() {
    let (bench, _ranks) = Bench::whole(1).await;
    let lies: Vec<(&str, Forgery)> = vec![
        ("u32::MAX slots", |i| i.layout.slots = u32::MAX),
        ("no slots", |i| i.layout.slots = 0),
        ("more slots than units", |i| i.layout.slots = SLOTS + 1),
        ("headers past the end", |i| i.layout.header_base = u64::MAX - 63),
        ("headers in the arena", |i| i.layout.header_base = i.layout.arena.offset),
        ("an arena without end", |i| i.layout.arena.len = !4095),
        ("an arena past the segment", |i| i.layout.arena.len += UNIT),
        ("an arena off its units", |i| i.layout.arena.offset += 1),
        ("an arena at the end of numbers", |i| i.layout.arena.offset = u64::MAX - 4095),
        ("16 TiB", |i| (i.layout.segment_bytes, i.layout.arena.len) = (1 << 45, 1 << 44)),
        ("a log of more slots than there are", |i| i.layout.log_slots = u32::MAX),
        ("a log behind the arena", |i| {
            i.layout.log = Region { offset: i.layout.arena.offset + i.layout.arena.len, len: UNIT };
        }),
        ("a log apart from the arena", |i| {
            let offset = i.layout.arena.offset - 2 * UNIT;
            i.layout.log = Region { offset, len: UNIT };
        }),
        ("pins of any length", |i| i.layout.pins.len = 64),
        ("an index of any length", |i| i.layout.index.len = 192),
        ("an index outside", |i| {
            (i.layout.index.offset, i.layout.index.len) = (u64::MAX - 127, 128)
        }),
        ("no incarnation", |i| i.incarnation = 0),
        ("a quarantine of weeks", |i| i.layout.quarantine_ms = u32::MAX),
        ("an address without end", |i| i.http = Some("x".repeat(MAX_TEXT_BYTES + 1))),
        ("a name without end", |i| i.memory = Some("x".repeat(MAX_TEXT_BYTES + 1)).into()),
    ];
    for (what, lie) in lies {
        let mut info = info(0, 200, 1);
        lie(&mut info);
        let met = bench.joins(info, Term::default(), false, SeenView::default()).await;
        assert!(matches!(met, Err(Refusal::Invalid(_))), "{what}: {:?}", met.map(|_| ()));
    }
    let seen =
        SeenView { term: term(1, 3), number: 1, incarnations: vec![1; MAX_SEGMENTS as usize + 1] };
    let met = bench.joins(info(0, 200, 1), Term::default(), true, seen).await;
    assert!(matches!(met, Err(Refusal::Invalid(_))), "a view of more than can be");
    for siblings in [vec![(1, 5); MAX_SEGMENTS as usize], vec![(0, 5)], vec![(MAX_SEGMENTS, 5)]] {
        let brought = (Term::default(), false, SeenView::default());
        let met = bench.joins_with(info(0, 200, 1), brought, siblings).await;
        assert!(matches!(met, Err(Refusal::Invalid(_))), "siblings that cannot be");
    }
    assert_eq!(bench.master.status().panics, 0);
    assert!(bench.open(1, "k", 0).await.is_ok(), "the one that is there is served");
}

/// It gets the reason and is cut; the master has not panicked, and rank 0 is served.
async fn is_refused(bench: &Bench, mut rank: Rank, what: &str) {
    let info = rank
        .receives(|d| match d {
            MasterToOwner::Refused(why) => Some(why.clone()),
            _ => None,
        })
        .await;
    assert!(!info.is_empty() && rank.is_cut().await, "{what}");
    assert_eq!(bench.master.status().panics, 0, "{what}");
    let request = Request::GetLocation {
        keys: vec![key("of rank 0")],
        gone: Vec::new(),
        promote: Default::default(),
    };
    match bench.ask(request).await {
        Response::Locations(found) => assert!(found[0].is_ok(), "{what}: {found:?}"),
        other => panic!("{what}: {other:?}"),
    }
}

/// Rank 0 with an object, and rank 1 that is asked for its report.
async fn scene() -> (Bench, Vec<Rank>, u64) {
    let (bench, mut ranks) = Bench::whole(2).await;
    bench.put(1, "of rank 0", &mut ranks[0]).await;
    let liar = bench.rejoin(1, 101).await;
    ranks[1] = liar;
    let number = ranks[1]
        .receives(|d| match d {
            MasterToOwner::RequestReport { number } => Some(*number),
            _ => None,
        })
        .await;
    (bench, ranks, number)
}

#[tokio::test]
async fn i19_a_report_that_cannot_be_changes_nothing_and_ends_its_link() {
    let now = Term { number: 1, master: 50 };
    let to_come = PlanId { term: now, seq: u64::MAX };
    let far = |offset, len| SlotContent::Held(Extent { offset, len });
    let long = KeyBytes::from(vec![7; MAX_KEY_BYTES + 1]);
    let named = SlotContent::Live {
        object: ObjectDesc {
            extent: Extent { offset: extent_of(0), len: UNIT },
            bytes_total: 1,
            page_bytes: 1,
        },
        key: long,
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    };
    let logged = LogObjectEntry {
        object: ObjectDesc::at(0, u64::MAX, 0),
        key: key("l"),
        id: KeyId { hash: 1, check: 2 },
        slot: 0,
        epoch: 1,
        set: crate::message::ReplicaSet::NONE,
    };
    let lies: Vec<(&str, Vec<SlotEntry>)> = vec![
        ("a slot at the end of numbers", vec![entry(u32::MAX, SlotContent::Free)]),
        ("the slot behind the last", vec![entry(SLOTS, SlotContent::Free)]),
        ("an epoch before the first", vec![SlotEntry { epoch: 0, ..entry(0, far(0, 0)) }]),
        ("more slots than there are", (0..=SLOTS).map(|_| held(0, 1)).collect()),
        ("one slot twice", vec![held(0, 1), entry(0, SlotContent::Free)]),
        ("one extent twice", vec![held(0, 1), entry(1, far(extent_of(0), UNIT))]),
        ("an extent that overflows", vec![entry(0, far(u64::MAX - 4095, 8192))]),
        ("an extent outside", vec![entry(0, far(extent_of(SLOTS), UNIT))]),
        ("half a unit", vec![entry(0, far(extent_of(0), UNIT / 2))]),
        ("a key that is none", vec![entry(0, named)]),
        ("a plan of the future", vec![entry(0, SlotContent::Open(Box::new(opened(to_come, 0))))]),
        ("a plan of another slot", {
            let plan = PlanId { term: now, seq: 1 };
            vec![entry(0, SlotContent::Open(Box::new(opened(plan, 1))))]
        }),
        ("a log that is not there", vec![entry(0, SlotContent::Logged(Box::new(logged)))]),
    ];
    for (what, slots) in lies {
        let (bench, mut ranks, number) = scene().await;
        ranks[1].sends(OwnerToMaster::Report { number, slots, last: true }).await;
        is_refused(&bench, ranks.remove(1), what).await;
        // With valid frames it is a member again.
        let mut back = bench.rejoin(1, 101).await;
        back.reports(vec![live(0, 3, "of rank 1")]).await;
        assert!(bench.found("of rank 1").await.is_ok(), "{what}");
    }
}

#[tokio::test]
async fn i19_a_report_that_never_ends_is_ended() {
    let (bench, mut ranks, number) = scene().await;
    ranks[1].sends(OwnerToMaster::Report { number, slots: Vec::new(), last: false }).await;
    is_refused(&bench, ranks.remove(1), "a part with nothing in it, and more to come").await;
    let (bench, mut ranks, number) = scene().await;
    for slot in 0..SLOTS {
        ranks[1]
            .sends(OwnerToMaster::Report { number, slots: vec![held(slot, 1)], last: false })
            .await;
    }
    ranks[1].sends(OwnerToMaster::Report { number, slots: vec![held(0, 2)], last: false }).await;
    is_refused(&bench, ranks.remove(1), "part after part").await;
}

#[tokio::test]
async fn i19_a_frame_with_impossible_slots_ends_its_link() {
    let at = |slot, epoch| SlotRef { incarnation: 101, slot, epoch };
    let elsewhere = SlotRef { incarnation: 100, slot: 0, epoch: 1 };
    let plan = PlanId { term: Term { number: 1, master: 50 }, seq: 1 };
    let adopted = PlanRef { plan, at: elsewhere, key: KeyId { hash: 0, check: 0 } };
    let lies = [
        OwnerToMaster::Retired(vec![at(u32::MAX, 1)]),
        OwnerToMaster::Retired(vec![elsewhere]),
        OwnerToMaster::Freed(vec![at(SLOTS, 1)]),
        OwnerToMaster::Freed(vec![at(0, 0)]),
        OwnerToMaster::Adopted(adopted),
    ];
    for up in lies {
        let (bench, mut ranks, _) = scene().await;
        let what = format!("{up:?}");
        ranks[1].sends(up).await;
        is_refused(&bench, ranks.remove(1), &what).await;
    }
}

#[tokio::test]
async fn a_slot_that_had_its_last_epoch_is_placed_no_more() {
    let (bench, mut ranks) = Bench::whole(1).await;
    ranks.clear();
    let mut rank = bench.rejoin(0, 100).await;
    let last = SlotEntry { epoch: u32::MAX, ..held(0, 1) };
    rank.reports(vec![last, held(1, 1), held(2, 1)]).await;
    rank.sends(OwnerToMaster::Freed(vec![rank.at(0, u32::MAX)])).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    assert_eq!((plan.meta.at.slot, plan.meta.at.epoch), (3, 1));
    let full = bench.asks(opening(2, "l", 0));
    while !full.is_finished() {
        bench.clock.advance_ms(20);
        bench.ticks().await;
    }
    match full.await.unwrap() {
        Response::Plans(list) => {
            assert_eq!(list[0].as_ref().unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn i6_a_view_that_was_not_sent_yet_cannot_be_acknowledged() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[1]).await;
    ranks[2].drain().await;
    ranks[2].keeps_views = false;
    ranks[2].sends(OwnerToMaster::ViewSeen { number: u64::MAX }).await;
    ranks.remove(1).sends(OwnerToMaster::Leave).await;
    ranks[0].drain().await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    bench.ticks().await;
    let number = ranks[1]
        .receives(|d| match d {
            MasterToOwner::View(v) if !v.incarnations.contains(&101) => Some(v.number),
            _ => None,
        })
        .await;
    assert!(!removal.is_finished(), "rank 2 does not keep the view that lacks rank 1 yet");
    ranks[1].sends(OwnerToMaster::ViewSeen { number }).await;
    assert_eq!(done(removal.await.unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
}
