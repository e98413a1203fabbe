//! Puts of several replicas at the master: plans, commits, ends, removals, and what a later master
//! makes of reports.

use super::bench::*;
use crate::message::{
    EndCause, ExportedMemory, MasterToOwner, Medium, OpenItem, OwnerToMaster, PlanDesc, PlanOpened,
    PlanRef, Preferred, RankInfo, ReplicaSet, Request, Response, SeenView, SlotContent, SlotEntry,
    SlotRef,
};
use nkv_store::Retention;

fn twice(request: u64, k: &str) -> Request {
    let item = OpenItem {
        key: k.as_bytes().to_vec(),
        bytes_total: UNIT,
        preferred_rank: Some(1),
        medium: Default::default(),
        further: Vec::new(),
        nearest: None,
        page_bytes: 4096,
        replicas: 2,
        replica_of: None,
        retention: Retention::Usual,
    };
    Request::OpenForWrite { request, wait_ms: 100, items: vec![item] }
}

async fn granted(bench: &Bench, request: u64) -> PlanDesc {
    let Response::Plans(mut list) = bench.ask(twice(request, "k")).await else {
        panic!("no plans");
    };
    list.remove(0).unwrap()
}

/// Two plans for a key: the first on rank 1.
async fn opened_twice() -> (Bench, Vec<Rank>, PlanRef, PlanRef) {
    let (bench, ranks) = Bench::whole(3).await;
    let desc = granted(&bench, 7).await;
    let [copy] = &desc.copies[..] else { panic!("{desc:?}") };
    assert_eq!((desc.meta.rank, copy.meta.rank), (1, 0));
    (bench, ranks, plan_ref(&desc), copy_ref(copy))
}

async fn commit(bench: &Bench, plan: PlanRef) -> crate::Result<()> {
    bench.done(Request::Commit(vec![plan])).await
}

fn ended(down: &MasterToOwner) -> Option<(crate::message::PlanId, EndCause)> {
    match down {
        MasterToOwner::EndPlan { plan, cause, .. } => Some((*plan, *cause)),
        _ => None,
    }
}

#[tokio::test]
async fn i12_the_first_commit_makes_the_object_live_and_the_second_adds_its_replica() {
    for copy_first in [false, true] {
        let (bench, _ranks, first, copy) = opened_twice().await;
        let (one, other) = if copy_first { (copy, first) } else { (first, copy) };
        assert_eq!(located(&bench).await, []);
        commit(&bench, one).await.unwrap();
        assert_eq!(located(&bench).await, [one.at]);
        commit(&bench, other).await.unwrap();
        assert_eq!(located(&bench).await, [one.at, other.at]);
        // As a repeated request does.
        commit(&bench, one).await.unwrap();
        commit(&bench, other).await.unwrap();
    }
}

#[tokio::test]
async fn i11_a_repeated_open_gets_the_same_plans_and_another_one_none() {
    let (bench, _ranks, first, copy) = opened_twice().await;
    let again = granted(&bench, 7).await;
    assert_eq!((plan_ref(&again), copy_ref(&again.copies[0])), (first, copy));
    let Response::Plans(mut list) = bench.ask(twice(8, "k")).await else { panic!("no plans") };
    assert_eq!(list.remove(0).unwrap_err().kind(), crate::ErrorKind::NotReady);
}

#[tokio::test]
async fn i12_of_two_replicas_either_may_end_and_the_other_is_stored() {
    for (copy_ends, how) in [(false, "aborted"), (true, "aborted"), (false, "lost")] {
        let (bench, mut ranks, first, copy) = opened_twice().await;
        let (one, other, rank) = if copy_ends { (copy, first, 0) } else { (first, copy, 1) };
        if how == "lost" {
            ranks[1].sends(OwnerToMaster::Leave).await;
        } else {
            bench.done(Request::Abort(vec![one])).await.unwrap();
            assert_eq!(ranks[rank].receives(ended).await, (one.plan, EndCause::Aborted));
            let refused = commit(&bench, one).await.unwrap_err();
            assert_eq!(refused.kind(), crate::ErrorKind::Reclaimed);
            ranks[rank].sends(OwnerToMaster::Retired(vec![one.at])).await;
        }
        commit(&bench, other).await.unwrap();
        assert_eq!(located(&bench).await, [other.at], "{how}");
        assert!(commit(&bench, one).await.is_err());
    }
}

#[tokio::test]
async fn a_replica_whose_owner_found_it_ready_joins_the_others() {
    let (bench, ranks, first, copy) = opened_twice().await;
    ranks[0].sends(OwnerToMaster::Adopted(copy)).await;
    assert_eq!(located(&bench).await, [copy.at]);
    commit(&bench, first).await.unwrap();
    assert_eq!(located(&bench).await, [copy.at, first.at]);
}

#[tokio::test]
async fn i6_a_removal_ends_what_is_being_written_and_waits_for_each_replica() {
    let (bench, mut ranks, first, copy) = opened_twice().await;
    for rank in &mut ranks {
        rank.drain().await;
    }
    commit(&bench, first).await.unwrap();
    let removed = bench.asks(Request::Remove(vec![key("k")]));
    let retire = |down: &MasterToOwner| match down {
        MasterToOwner::Retire(list) => Some(list.clone()),
        _ => None,
    };
    assert_eq!(ranks[1].receives(retire).await, [first.at]);
    assert_eq!(ranks[0].receives(ended).await, (copy.plan, EndCause::Removed));
    let refused = commit(&bench, copy).await.unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Reclaimed);
    ranks[1].sends(OwnerToMaster::Retired(vec![first.at])).await;
    // The owner had found it READY before it received that.
    ranks[0].sends(OwnerToMaster::Adopted(copy)).await;
    assert_eq!(ranks[0].receives(retire).await, [copy.at]);
    bench.goes_on_meanwhile().await;
    assert!(!removed.is_finished(), "one replica may still be readable");
    ranks[0].sends(OwnerToMaster::Retired(vec![copy.at])).await;
    assert_eq!(done(removed.await.unwrap()), Ok(()));
    assert_eq!(located(&bench).await, []);
}

fn in_set(slot: u32, id: u64) -> SlotEntry {
    let mut entry = live(slot, 1, "k");
    if let SlotContent::Live { set, .. } = &mut entry.what {
        *set = ReplicaSet { id, wanted: 2 };
    }
    entry
}

/// What two ranks report to a master that knows nothing of them, and which places are served.
async fn reported(first: SlotEntry, second: SlotEntry) -> (Vec<SlotRef>, [SlotRef; 2]) {
    let bench = Bench::new(3).await;
    let mut ranks = Vec::new();
    for rank in 0..3u32 {
        ranks.push(bench.join(rank, 100 + u64::from(rank)).await.unwrap());
    }
    let places = [ranks[0].at(first.slot, first.epoch), ranks[1].at(second.slot, second.epoch)];
    for (rank, slots) in ranks.iter_mut().zip([vec![first], vec![second], Vec::new()]) {
        rank.reports(slots).await;
    }
    (located(&bench).await, places)
}

#[tokio::test]
async fn i6_a_later_master_takes_for_replicas_what_one_put_wrote_and_nothing_else() {
    let (found, places) = reported(in_set(1, 9), in_set(2, 9)).await;
    assert_eq!(found, places);
    let (found, [first, _]) = reported(in_set(1, 9), in_set(2, 8)).await;
    assert_eq!(found, [first], "of another put");
    let (found, [first, _]) = reported(live(1, 1, "k"), live(2, 1, "k")).await;
    assert_eq!(found, [first], "of no put with replicas");
    let mut shorter = in_set(2, 9);
    if let SlotContent::Live { object, .. } = &mut shorter.what {
        object.bytes_total -= 1;
    }
    let (found, [first, _]) = reported(in_set(1, 9), shorter).await;
    assert_eq!(found, [first], "of another length");
}

fn open_entry(bench: &Bench, rank: &Rank, slot: u32, set: ReplicaSet) -> SlotEntry {
    let SlotContent::Live { object, key, .. } = live(slot, 1, "k").what else { unreachable!() };
    let term = bench.members.term();
    let plan = crate::message::PlanId { term, seq: 0 };
    let opened = PlanOpened {
        plan,
        token: 1,
        at: rank.at(slot, 1),
        object,
        key,
        producer: 5,
        request: 1,
        item: 0,
        deadline_ms: 1_000,
        set,
        retention: Retention::Usual,
    };
    SlotEntry { slot, epoch: 1, what: SlotContent::Open(Box::new(opened)) }
}

/// The plan of one replica is open at its owner when the master comes to know the other as live.
#[tokio::test]
async fn i6_an_open_plan_of_the_same_put_is_reported_as_a_further_replica() {
    for open_first in [false, true] {
        let bench = Bench::new(2).await;
        let mut ranks = Vec::new();
        for rank in 0..2u32 {
            ranks.push(bench.join(rank, 100 + u64::from(rank)).await.unwrap());
        }
        let set = ReplicaSet { id: 9, wanted: 2 };
        let open = open_entry(&bench, &ranks[0], 1, set);
        let SlotContent::Open(plan) = &open.what else { unreachable!() };
        let plan = PlanRef { plan: plan.plan, at: plan.at, key: HASHER.id(b"k") };
        let live_at = ranks[1].at(2, 1);
        let mut both: Vec<_> =
            ranks.into_iter().zip([vec![open.clone()], vec![in_set(2, 9)]]).collect();
        if !open_first {
            both.reverse();
        }
        for (rank, slots) in &mut both {
            rank.reports(std::mem::take(slots)).await;
        }
        assert_eq!(located(&bench).await, [live_at]);
        commit(&bench, plan).await.unwrap();
        assert_eq!(located(&bench).await, [live_at, plan.at]);
    }
}

/// Of an object that was read, so that nothing else becomes one of its replicas.
#[tokio::test]
async fn i6_plans_for_missing_replicas_are_granted_for_the_object_that_was_read_alone() {
    let (bench, ranks, first, copy) = opened_twice().await;
    commit(&bench, first).await.unwrap();
    bench.done(Request::Abort(vec![copy])).await.unwrap();
    ranks[0].sends(OwnerToMaster::Retired(vec![copy.at])).await;
    let open = async |request: u64, replica_of: Option<SlotRef>| {
        let Request::OpenForWrite { mut items, wait_ms, .. } = twice(request, "k") else {
            unreachable!()
        };
        items[0].replica_of = replica_of;
        items[0].replicas = 8;
        let asked = Request::OpenForWrite { request, wait_ms, items };
        let Response::Plans(mut list) = bench.ask(asked).await else { panic!("no plans") };
        list.remove(0)
    };
    let older = SlotRef { epoch: first.at.epoch + 1, ..first.at };
    for wrong in [copy.at, older] {
        let refused = open(20, Some(wrong)).await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::NotReady);
    }
    // Two were asked for once: no request makes more of them.
    let granted = open(21, Some(first.at)).await.unwrap();
    assert_eq!((granted.copies.len(), granted.meta.key), (0, first.key));
    let again = open(21, Some(first.at)).await.unwrap();
    assert_eq!(plan_ref(&again), plan_ref(&granted));
    commit(&bench, plan_ref(&granted)).await.unwrap();
    assert_eq!(located(&bench).await, [first.at, granted.meta.at]);
    let full = open(22, Some(first.at)).await.unwrap_err();
    assert_eq!(full.kind(), crate::ErrorKind::OutOfMemory);
}

/// The ranks of the plans of a put, the first one first.
async fn ranks_of(bench: &Bench, n: u64, at: &[&str], replicas: u8) -> crate::Result<Vec<u32>> {
    let Request::OpenForWrite { mut items, wait_ms, .. } = twice(n, &format!("k{n}")) else {
        unreachable!()
    };
    let mut at = at.iter().map(|text| text.parse::<Preferred>().unwrap());
    let first = at.next().unwrap_or_default();
    items[0].preferred_rank = first.rank;
    items[0].medium = first.medium;
    items[0].further = at.collect();
    items[0].replicas = replicas;
    let asked = Request::OpenForWrite { request: n, wait_ms, items };
    let Response::Plans(mut list) = bench.ask(asked).await else { panic!("no plans") };
    let plan = list.remove(0)?;
    let copies = plan.copies.iter().map(|c| c.meta.rank);
    Ok(std::iter::once(plan.meta.rank).chain(copies).collect())
}

#[tokio::test]
async fn each_replica_goes_to_the_rank_and_the_memory_that_its_put_names() {
    const DEVICES: std::ops::Range<u32> = 2..4;
    let bench = Bench::new(4).await;
    let mut ranks = Vec::new();
    for rank in 0..4 {
        let device = ExportedMemory::Device { name: "d".into(), uuid: [1; 16] };
        let memory = if DEVICES.contains(&rank) { device } else { ExportedMemory::Private };
        let mut info = RankInfo { memory, ..info(rank, 100 + u64::from(rank), 4) };
        info.layout.slots = 64;
        info.layout.arena.len = 64 * UNIT;
        info.layout.segment_bytes = info.layout.arena.offset + info.layout.arena.len;
        ranks.push(bench.joins(info, term(0, 0), false, SeenView::default()).await.unwrap());
    }
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    let puts: [(&[&str], u8); 6] = [
        (&["1", "3", "0"], 3),
        (&["3", "1"], 3),
        (&["host", "device", "host"], 3),
        (&["2:device", "0:host", "3:device"], 3),
        (&["device", "0:device"], 2),
        (&["3", "host", "host", "device"], 4),
    ];
    for (n, (at, replicas)) in (0..).zip(puts) {
        let made = ranks_of(&bench, n, at, replicas).await.unwrap();
        assert_eq!(made.len(), usize::from(replicas), "{at:?}: {made:?}");
        for (named, rank) in at.iter().zip(&made) {
            let wish: Preferred = named.parse().unwrap();
            let fits = match wish.medium {
                Medium::Any => true,
                medium => (medium == Medium::Device) == DEVICES.contains(rank),
            };
            assert!(fits, "{at:?}: {made:?}");
            // Memory of another kind does not do: then another rank has to.
            if wish.rank != Some(0) || wish.medium == Medium::Host {
                assert!(wish.rank.is_none_or(|wanted| wanted == *rank), "{at:?}: {made:?}");
            }
        }
    }
    // A rank has one replica at most.
    for (n, wrong) in [(8, &["1", "host", "1"][..]), (9, &["any"; 9])] {
        let refused = ranks_of(&bench, n, wrong, 8).await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::InvalidArgument, "{wrong:?}");
    }
    let (hosts, _ranks) = Bench::whole(2).await;
    let none = ranks_of(&hosts, 10, &["device"], 1).await.unwrap_err();
    assert_eq!(none.kind(), crate::ErrorKind::InvalidArgument);
    assert_eq!(ranks_of(&hosts, 11, &["1", "device"], 2).await.unwrap(), [1]);
}
