//! Commits that come before their owner has recorded the plan, which would be lost with the master.

use super::bench::{Bench, HASHER, LIMIT, Rank, done, eventually, key, plan_ref};
use crate::ErrorKind;
use crate::client::control::ControlPool;
use crate::client::keys::HandleKeys;
use crate::current_master::{CurrentMaster, LocalMaster, MasterPath};
use crate::message::{
    EndCause, MasterToOwner, OwnerToMaster, PlanDesc, PlanId, PlanOpened, Request, Response,
    SeenView, SlotContent, SlotEntry,
};
use nkv_transport::wire::OsNet;
use nkv_transport::wire::auth::Credentials;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Longer than a commit waits.
const LONGER_MS: u64 = 450;

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

fn committed(d: &MasterToOwner) -> Option<usize> {
    match d {
        MasterToOwner::Committed(list) => Some(list.len()),
        _ => None,
    }
}

/// Starts a commit; returns once the commit waits at the master.
async fn commits(bench: &Bench, plans: &[&PlanDesc]) -> JoinHandle<Response> {
    let before = waited(bench);
    let answer = bench.asks(Request::Commit(plans.iter().map(|p| plan_ref(p)).collect()));
    let all = before + plans.len() as u64;
    eventually("the commit waits", async || waited(bench), |n| *n == all).await;
    assert!(!answer.is_finished());
    answer
}

fn waited(bench: &Bench) -> u64 {
    bench.members.slow_path.snapshot().commits_waited
}

async fn records(rank: &Rank, up_to: PlanId) {
    rank.sends(OwnerToMaster::PlansRecorded { up_to }).await;
}

#[tokio::test]
async fn a_commit_is_acknowledged_once_its_owner_has_recorded_the_plan_and_not_before() {
    let (bench, mut ranks) = Bench::whole_apart(1).await;
    let first = bench.open(1, "k1", 0).await.unwrap();
    let second = bench.open(2, "k2", 0).await.unwrap();
    let waits = commits(&bench, &[&first, &second]).await;
    assert_ne!(bench.found("k1").await, Ok(first.meta.at), "nobody reads what may be lost");
    records(&ranks[0], first.plan).await;
    assert_eq!(bench.found("k1").await, Ok(first.meta.at));
    assert!(!waits.is_finished(), "the other one is not recorded");
    // A `PlansRecorded` covers all plans that were sent before it on the link.
    records(&ranks[0], second.plan).await;
    assert_eq!(waits.await.unwrap(), Response::Done(vec![Ok(()), Ok(())]));
    assert_eq!(ranks[0].receives(committed).await, 1);
    assert_eq!(ranks[0].receives(committed).await, 1);
    // If the plan is recorded before the commit comes, the commit does not wait.
    let third = bench.open(3, "k3", 0).await.unwrap();
    records(&ranks[0], third.plan).await;
    bench.commit(&third).await.unwrap();
    assert_eq!(waited(&bench), 2);
}

#[tokio::test]
async fn an_owner_confirms_no_plan_that_it_was_not_told() {
    let (bench, ranks) = Bench::whole_apart(1).await;
    let first = bench.open(1, "k1", 0).await.unwrap();
    records(&ranks[0], PlanId { seq: u64::MAX, ..first.plan }).await;
    let second = bench.open(2, "k2", 0).await.unwrap();
    bench.commit(&first).await.unwrap();
    let waits = commits(&bench, &[&second]).await;
    records(&ranks[0], second.plan).await;
    done(waits.await.unwrap()).unwrap();
}

#[tokio::test]
async fn i12_a_commit_that_no_owner_confirms_is_not_ready_and_given_up_it_leaves_nothing() {
    let (bench, mut ranks) = Bench::whole_apart(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let waits = commits(&bench, &[&plan]).await;
    bench.clock.advance_ms(LONGER_MS);
    let e = done(waits.await.unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    // A repeated commit waits again, since the plan is still not recorded.
    let again = commits(&bench, &[&plan]).await;
    bench.done(Request::Abort(vec![plan_ref(&plan)])).await.unwrap();
    records(&ranks[0], plan.plan).await;
    assert_eq!(done(again.await.unwrap()).unwrap_err().kind(), ErrorKind::Reclaimed);
    assert_eq!(ranks[0].receives(ended).await, EndCause::Aborted);
    // READY was written; the owner saw it before it received the end of the plan.
    ranks[0].sends(OwnerToMaster::Adopted(plan_ref(&plan))).await;
    assert_eq!(ranks[0].retires().await, plan.meta.at);
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn an_embedded_handle_at_the_master_waits_for_owners_of_other_processes_as_well() {
    let (bench, ranks) = Bench::whole_apart(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let (actor, members) = (bench.master.clone(), bench.members.clone());
    let here = LocalMaster { actor, members, addresses: [].into() };
    let path = Arc::new(CurrentMaster::of_node(MasterPath::Local(here)));
    let net = Arc::new(OsNet);
    let means = (Credentials::of_client("j", None), HandleKeys::new(HASHER));
    let pool = Arc::new(ControlPool::new(net, path, means, 7, true));
    let commit = || {
        let (pool, list) = (pool.clone(), vec![plan_ref(&plan)]);
        tokio::spawn(async move { pool.call(Request::Commit(list), LIMIT).await })
    };
    let waits = commit();
    eventually("the commit waits", async || waited(&bench), |n| *n == 1).await;
    bench.clock.advance_ms(LONGER_MS);
    let Ok(Response::Done(list)) = waits.await.unwrap() else { panic!("no answer") };
    assert_eq!(list[0].as_ref().unwrap_err().kind(), ErrorKind::NotReady);
    records(&ranks[0], plan.plan).await;
    assert_eq!(commit().await.unwrap(), Ok(Response::Done(vec![Ok(())])));
}

#[tokio::test]
async fn a_commit_whose_owners_link_breaks_is_disconnected_and_nothing_is_stored() {
    let (bench, mut ranks) = Bench::whole_apart(2).await;
    let plan = bench.open(1, "k", 1).await.unwrap();
    let waits = commits(&bench, &[&plan]).await;
    ranks.pop().unwrap().hangs_up().await;
    assert_eq!(done(waits.await.unwrap()).unwrap_err().kind(), ErrorKind::Disconnected);
    assert!(bench.found("k").await.is_err());
}

/// The new link comes before the end of the old one is known. The report shows which plans were
/// recorded over the old link.
#[tokio::test]
async fn a_commit_that_waits_is_acknowledged_by_the_report_of_an_owner_that_has_the_plan() {
    let (bench, mut ranks) = Bench::whole_apart(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let opened_plan = ranks[0].receives(opened).await;
    let waits = commits(&bench, &[&plan]).await;
    let mut again =
        bench.join_from(0, 100, bench.members.term(), SeenView::default()).await.unwrap();
    // Over the old link, whose frames are ignored now.
    records(&ranks[0], plan.plan).await;
    assert!(!waits.is_finished());
    let what = SlotContent::Open(Box::new(opened_plan));
    let (slot, epoch) = (plan.meta.at.slot, plan.meta.at.epoch);
    again.reports(vec![SlotEntry { slot, epoch, what }]).await;
    done(waits.await.unwrap()).unwrap();
    assert_eq!(bench.found("k").await, Ok(plan.meta.at));
}

#[tokio::test]
async fn a_commit_that_waits_goes_on_waiting_while_an_owner_that_lost_the_plan_is_told_again() {
    let (bench, ranks) = Bench::whole_apart(1).await;
    let plan = bench.open(1, "k", 0).await.unwrap();
    let waits = commits(&bench, &[&plan]).await;
    drop(ranks);
    let mut again =
        bench.join_from(0, 100, bench.members.term(), SeenView::default()).await.unwrap();
    let asked = again.receives(|d| match d {
        MasterToOwner::RequestReport { number } => Some(*number),
        _ => None,
    });
    let number = asked.await;
    again.sends(OwnerToMaster::Report { number, slots: Vec::new(), last: true }).await;
    assert_eq!(again.receives(opened).await.plan, plan.plan);
    again.receives(|d| matches!(d, MasterToOwner::ReportTaken).then_some(())).await;
    assert!(!waits.is_finished(), "the report lacked it");
    records(&again, plan.plan).await;
    done(waits.await.unwrap()).unwrap();
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    assert_eq!(again.retires().await, plan.meta.at);
    done(removal.await.unwrap()).unwrap();
}
