//! Replicas that a put wrote into several logs: owners announce them one after the other.

use super::bench::*;
use super::extras::{asked_to_make, missing, passes};
use super::log::{in_log, with_log_slots};
use crate::message::{LogObjectEntry, MasterToOwner, OwnerToMaster, ReplicaSet, SeenView, Term};
use nkv_store::object::SetMark;

/// Three ranks with logs.
async fn three() -> (Bench, Vec<Rank>) {
    let bench = Bench::new(3).await;
    let mut ranks = Vec::new();
    for rank in 0..3 {
        let info = with_log_slots(info(rank, 100 + u64::from(rank), 3));
        ranks.push(bench.joins(info, Term::default(), false, SeenView::default()).await.unwrap());
    }
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    (bench, ranks)
}

/// The object of a put, at any of these ranks; puts differ by their numbers.
fn replica(k: &str, put: u64, wanted: u8) -> LogObjectEntry {
    let set = ReplicaSet::of_mark(SetMark::new(put, wanted));
    LogObjectEntry { set, ..in_log(k) }
}

/// Some milliseconds, in which all ranks send frames.
async fn pass(bench: &Bench, ms: u64, ranks: &[Rank]) {
    passes(bench, ms, &ranks.iter().collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn i15_replicas_announced_by_several_logs_are_one_object_and_another_put_is_a_duplicate() {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    ranks[2].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    let both = [ranks[1].at(3, 1), ranks[2].at(3, 1)];
    eventually("both are listed", async || located(&bench).await, |at| *at == both).await;
    ranks[0].sends(OwnerToMaster::Announced(vec![replica("k", 6, 2)])).await;
    let other = ranks[0].at(3, 1);
    let retired = |down: &MasterToOwner| match down {
        MasterToOwner::Retire(list) => Some(list.clone()),
        _ => None,
    };
    assert_eq!(ranks[0].receives(retired).await, [other]);
    assert_eq!(located(&bench).await, both);
}

#[tokio::test]
async fn a_replica_that_no_log_announces_in_time_is_made_by_the_one_that_did() {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    let first = [ranks[1].at(3, 1)];
    eventually("it is listed", async || located(&bench).await, |at| *at == first).await;
    pass(&bench, 2_500, &ranks).await;
    assert_eq!(missing(&bench).await, 0, "the others may be on their way");
    pass(&bench, 1_000, &ranks).await;
    assert_eq!(ranks[1].receives(asked_to_make).await, [key("k")]);
}

#[tokio::test]
async fn a_replica_that_is_announced_in_time_is_not_made_again() {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    pass(&bench, 2_000, &ranks).await;
    ranks[2].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    let both = [ranks[1].at(3, 1), ranks[2].at(3, 1)];
    eventually("both are listed", async || located(&bench).await, |at| *at == both).await;
    pass(&bench, 4_000, &ranks).await;
    assert_eq!(missing(&bench).await, 0);
    let asked = ranks[1].drain().await;
    assert!(asked.iter().all(|down| asked_to_make(down).is_none()), "{asked:?}");
}
