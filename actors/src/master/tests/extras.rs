//! Replicas besides those that were asked for, replicas that a put did not make, and objects whose
//! time after their first read is over: three ranks on three hosts.

use super::bench::*;
use crate::ErrorKind;
use crate::message::{
    KeyBytes, MasterToOwner, OwnerToMaster, PlanDesc, PlanRef, RankInfo, Request, Response,
    SeenView, SlotRef,
};
use nkv_store::Retention;

async fn three_hosts() -> (Bench, Vec<Rank>) {
    let bench = Bench::new(3).await;
    let mut ranks = Vec::new();
    for rank in 0..3 {
        let host =
            RankInfo { boot_id: 5 + u64::from(rank), ..info(rank, 100 + u64::from(rank), 3) };
        ranks.push(bench.joins(host, term(0, 0), false, SeenView::default()).await.unwrap());
    }
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    (bench, ranks)
}

/// An open of key k, changed.
async fn open(
    bench: &Bench,
    request: u64,
    change: impl FnOnce(&mut crate::message::OpenItem),
) -> crate::Result<PlanDesc> {
    let Request::OpenForWrite { mut items, wait_ms, .. } = opening(request, "k", 1) else {
        unreachable!()
    };
    change(&mut items[0]);
    granted(bench.ask(Request::OpenForWrite { request, wait_ms, items }).await)
}

/// A put of two replicas, of which the first is committed; the plan of the other one, and its rank.
async fn first_of_two(bench: &Bench) -> (PlanDesc, PlanRef, usize) {
    let plan = open(bench, 1, |item| item.replicas = 2).await.unwrap();
    bench.commit(&plan).await.unwrap();
    let copy = &plan.copies[0];
    let (copied, other) = (copy_ref(copy), copy.meta.rank as usize);
    (plan, copied, other)
}

async fn extra(
    bench: &Bench,
    request: u64,
    (rank, of): (Option<u32>, Option<SlotRef>),
) -> crate::Result<PlanDesc> {
    let change = |item: &mut crate::message::OpenItem| {
        (item.preferred_rank, item.replica_of) = (rank, of);
        item.retention = Retention::Extra;
    };
    open(bench, request, change).await
}

pub(super) async fn missing(bench: &Bench) -> u64 {
    let Response::Stats(stats) = bench.ask(Request::Stats).await else { panic!("no stats") };
    stats.master.repairs_waiting
}

pub(super) fn asked_to_make(down: &MasterToOwner) -> Option<Vec<KeyBytes>> {
    match down {
        MasterToOwner::MakeReplicas(list) => Some(list.clone()),
        _ => None,
    }
}

/// Some seconds, in which these ranks send frames.
pub(super) async fn passes(bench: &Bench, ms: u64, ranks: &[&Rank]) {
    for _ in 0..ms / 125 {
        bench.clock.advance_ms(125);
        for rank in ranks {
            rank.sends(OwnerToMaster::Retired(Vec::new())).await;
        }
        bench.ticks().await;
    }
}

#[tokio::test]
async fn an_extra_replica_is_at_another_host_alone_and_counts_for_nothing() {
    let (bench, mut ranks) = three_hosts().await;
    let first = bench.put(1, "k", &mut ranks[1]).await.meta.at;
    for (n, wrong, kind) in [
        (10, (Some(2), None), ErrorKind::InvalidArgument),
        (11, (None, Some(first)), ErrorKind::InvalidArgument),
        (12, (Some(9), Some(first)), ErrorKind::InvalidArgument),
        (13, (Some(1), Some(first)), ErrorKind::AlreadyExists),
        (14, (Some(2), Some(SlotRef { epoch: 7, ..first })), ErrorKind::NotReady),
    ] {
        assert_eq!(extra(&bench, n, wrong).await.unwrap_err().kind(), kind, "{wrong:?}");
    }
    let plan = extra(&bench, 20, (Some(2), Some(first))).await.unwrap();
    assert_eq!((plan.meta.rank, plan.copies.len()), (2, 0));
    let again = extra(&bench, 20, (Some(2), Some(first))).await.unwrap();
    assert_eq!(plan_ref(&again), plan_ref(&plan));
    let opened = |d: &MasterToOwner| match d {
        MasterToOwner::PlanOpened(p) => Some((p.retention, p.set)),
        _ => None,
    };
    let (retention, set) = ranks[2].receives(opened).await;
    assert_eq!((retention, set.wanted), (Retention::Extra, 1));
    let in_set = |d: &MasterToOwner| match d {
        MasterToOwner::InSet(list) => Some(list.clone()),
        _ => None,
    };
    assert_eq!(ranks[1].receives(in_set).await, [(first, set)]);
    bench.commit(&plan).await.unwrap();
    assert_eq!(located(&bench).await, [first, plan.meta.at]);
    assert_eq!(
        extra(&bench, 21, (Some(2), Some(first))).await.unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    // Its owner evicts the object, and nobody makes it again, whatever ends beside it.
    ranks[1].sends(OwnerToMaster::Retired(vec![first])).await;
    assert_eq!((located(&bench).await, missing(&bench).await), (vec![plan.meta.at], 0));
    let known = ranks[0].info.id();
    assert!(bench.members.state(known).is_some());
}

#[tokio::test]
async fn what_goes_after_its_first_read_gets_no_extra_replica() {
    let (bench, ranks) = three_hosts().await;
    let ttl = Retention::UntilRead(std::time::Duration::from_secs(1));
    let plan = open(&bench, 1, |item| item.retention = ttl).await.unwrap();
    bench.commit(&plan).await.unwrap();
    let refused = extra(&bench, 2, (Some(2), Some(plan.meta.at))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    drop(ranks);
}

#[tokio::test]
async fn an_extra_replica_makes_way_for_one_that_is_lost() {
    let (bench, mut ranks) = three_hosts().await;
    let (plan, copied, other) = first_of_two(&bench).await;
    let third = 3 - 1 - other as u32;
    bench.done(Request::Commit(vec![copied])).await.unwrap();
    let extra = extra(&bench, 2, (Some(third), Some(plan.meta.at))).await.unwrap();
    bench.commit(&extra).await.unwrap();
    assert_eq!(located(&bench).await.len(), 3);
    ranks[other].sends(OwnerToMaster::Leave).await;
    let retire = |d: &MasterToOwner| match d {
        MasterToOwner::Retire(list) => Some(list.clone()),
        _ => None,
    };
    assert_eq!(ranks[third as usize].receives(retire).await, [extra.meta.at]);
    ranks[third as usize].sends(OwnerToMaster::Retired(vec![extra.meta.at])).await;
    ranks[third as usize].sends(OwnerToMaster::Freed(vec![extra.meta.at])).await;
    let left: Vec<&Rank> = ranks.iter().filter(|rank| rank.info.rank as usize != other).collect();
    passes(&bench, 500, &left).await;
    assert_eq!(ranks[1].receives(asked_to_make).await, [key("k")]);
}

#[tokio::test]
async fn a_replica_that_a_put_did_not_make_is_made_later() {
    let (bench, mut ranks) = three_hosts().await;
    let (_plan, copied, other) = first_of_two(&bench).await;
    assert_eq!(missing(&bench).await, 0, "it is being written");
    bench.done(Request::Abort(vec![copied])).await.unwrap();
    ranks[other].sends(OwnerToMaster::Retired(vec![copied.at])).await;
    assert_eq!(missing(&bench).await, 1);
    passes(&bench, 3_500, &ranks.iter().collect::<Vec<_>>()).await;
    assert_eq!(ranks[1].receives(asked_to_make).await, [key("k")]);
}

#[tokio::test]
async fn i6_a_key_is_removed_when_an_owner_says_that_its_time_is_over() {
    let (bench, mut ranks) = three_hosts().await;
    let (plan, copied, other) = first_of_two(&bench).await;
    bench.done(Request::Commit(vec![copied])).await.unwrap();
    // Of another object: it changes nothing.
    let older = SlotRef { epoch: plan.meta.at.epoch + 1, ..plan.meta.at };
    ranks[1].sends(OwnerToMaster::Expired(vec![older])).await;
    assert_eq!(located(&bench).await.len(), 2);
    ranks[other].sends(OwnerToMaster::Expired(vec![copied.at])).await;
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
    assert_eq!(ranks[1].retires().await, plan.meta.at);
    assert_eq!(ranks[other].retires().await, copied.at);
    assert_eq!(missing(&bench).await, 0);
}
