//! Opens that may go to several ranks: which one they take, which they wait for, and that none
//! overtakes another.

use super::bench::*;
use crate::error::ErrorKind;
use crate::message::{OpenItem, OwnerToMaster, PlanDesc, RankInfo, Request, SeenView, SlotRef};
use crate::placement::{Nearest, Placement};
use nkv_store::Retention;

/// By a writer on the NUMA node of this rank.
fn opening_near(request: u64, k: &str, rank: u32, units: u64) -> Request {
    let item = OpenItem {
        key: k.as_bytes().to_vec(),
        bytes_total: units * UNIT,
        preferred_rank: None,
        medium: Default::default(),
        further: Vec::new(),
        nearest: Some(Nearest { rank, distance: 0 }),
        page_bytes: 4096,
        replicas: 1,
        replica_of: None,
        retention: Retention::Usual,
    };
    Request::OpenForWrite { request, wait_ms: 100, items: vec![item] }
}

/// Two ranks on two NUMA nodes of one host, both full.
async fn full() -> (Bench, Vec<Rank>, Vec<PlanDesc>) {
    let bench = Bench::placing(2, Placement::Topology).await;
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let info = RankInfo { numa_node: Some(rank), ..info(rank, 100 + u64::from(rank), 2) };
        let joined = bench.joins(info, term(0, 0), false, SeenView::default()).await;
        ranks.push(joined.unwrap());
    }
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    let mut plans = Vec::new();
    for i in 0..2 * u64::from(SLOTS) {
        let writer = (i % 2) as u32;
        let opened = bench.ask(opening_near(i, &format!("k{i}"), writer, 1)).await;
        let plan = granted(opened).unwrap();
        assert_eq!(plan.meta.rank, writer, "the nearest rank has room");
        plans.push(plan);
    }
    for rank in &mut ranks {
        rank.drain().await;
    }
    (bench, ranks, plans)
}

async fn frees(rank: &Rank, plans: &[PlanDesc], slot: u32) {
    let here = |at: &SlotRef| at.incarnation == rank.info.incarnation && at.slot == slot;
    let at = plans.iter().map(|p| p.meta.at).find(here).unwrap();
    rank.sends(OwnerToMaster::Freed(vec![at])).await;
}

#[tokio::test]
async fn a_large_open_that_waits_is_not_overtaken_by_those_that_wait_at_another_rank() {
    let (bench, mut ranks, plans) = full().await;
    let large = bench.asks(opening_near(50, "large", 0, 2));
    ranks[0].receives(wants_room).await;
    let first = bench.asks(opening_near(51, "first", 1, 1));
    ranks[1].receives(wants_room).await;
    let second = bench.asks(opening_near(52, "second", 1, 1));
    bench.goes_on_meanwhile().await;
    // Too little for the large one, and both others would fit there.
    frees(&ranks[0], &plans, 0).await;
    frees(&ranks[1], &plans, 3).await;
    assert_eq!(granted(first.await.unwrap()).unwrap().meta.rank, 1);
    bench.goes_on_meanwhile().await;
    assert!(!second.is_finished(), "its turn at rank 0 comes after the large one's");
    frees(&ranks[0], &plans, 1).await;
    assert_eq!(granted(large.await.unwrap()).unwrap().meta.rank, 0);
    frees(&ranks[0], &plans, 2).await;
    assert!(!second.is_finished(), "it waits at rank 1");
    frees(&ranks[1], &plans, 2).await;
    granted(second.await.unwrap()).unwrap();
}

#[tokio::test]
async fn a_full_rank_is_passed_over_and_the_nearest_is_waited_for() {
    let (bench, mut ranks, plans) = full().await;
    frees(&ranks[1], &plans, 0).await;
    let passed = granted(bench.ask(opening_near(50, "passed", 0, 1)).await).unwrap();
    assert_eq!(passed.meta.rank, 1);
    let waits = bench.asks(opening_near(51, "waits", 0, 1));
    ranks[0].receives(wants_room).await;
    frees(&ranks[0], &plans, 3).await;
    assert_eq!(granted(waits.await.unwrap()).unwrap().meta.rank, 0);
    assert!(!ranks[1].drain().await.iter().any(|d| wants_room(d).is_some()));
}

#[tokio::test]
async fn a_nearest_rank_that_does_not_exist_is_refused() {
    let (bench, ranks, plans) = full().await;
    frees(&ranks[1], &plans, 0).await;
    let odd = granted(bench.ask(opening_near(50, "odd", 2, 1)).await).unwrap_err();
    assert_eq!(odd.kind(), ErrorKind::InvalidArgument, "{odd}");
    granted(bench.ask(opening_near(51, "fine", 1, 1)).await).unwrap();
}
