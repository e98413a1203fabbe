//! Where ranks elect the master: for how long it may count on a rank, and what it may say before a
//! quorum obeys it.

use super::bench::*;
use crate::error::ErrorKind;
use crate::message::{MasterToOwner, OwnerToMaster, SeenView};
use nkv_store::clock::Clock;

const LEASE_MS: u64 = 1_000;

async fn returns(rank: &Rank, stamp_ms: u64) {
    rank.sends(OwnerToMaster::Heartbeat { gauges: Box::default(), stamp_ms }).await;
}

/// Two ranks of three joined and reported.
async fn two_of_three() -> (Bench, [Rank; 2]) {
    let bench = Bench::with_lease(3, LEASE_MS).await;
    let mut ranks = [bench.join(0, 100).await.unwrap(), bench.join(1, 101).await.unwrap()];
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    (bench, ranks)
}

#[tokio::test]
async fn i24_a_rank_counts_for_one_lease_after_the_stamp_that_it_returned() {
    let (bench, ranks) = two_of_three().await;
    let serves = || bench.members.has_quorum(bench.clock.now_ms());
    assert!(!serves(), "linked, and no stamp came back");
    let stamp_ms = bench.clock.now_ms();
    bench.clock.advance_ms(300);
    returns(&ranks[0], stamp_ms).await;
    assert!(!serves(), "one of three");
    returns(&ranks[1], stamp_ms).await;
    assert!(serves());
    // Counted from the stamp, not from its return.
    bench.clock.advance_ms(LEASE_MS - 300);
    assert!(serves());
    bench.clock.advance_ms(1);
    assert!(!serves());
    // An older stamp changes nothing, and one of the future counts as one of now.
    returns(&ranks[0], stamp_ms - 5).await;
    assert!(!serves());
    for rank in &ranks {
        returns(rank, u64::MAX).await;
    }
    assert!(serves());
    bench.clock.advance_ms(LEASE_MS + 1);
    assert!(!serves());
}

#[tokio::test]
async fn i24_without_a_quorum_nothing_is_answered_placed_or_committed() {
    let (bench, mut ranks) = two_of_three().await;
    let both = async |ranks: &[Rank; 2]| {
        let stamp_ms = bench.clock.now_ms();
        for rank in ranks {
            returns(rank, stamp_ms).await;
        }
    };
    for _ in 0..10 {
        bench.clock.advance_ms(200);
        both(&ranks).await;
        bench.ticks().await;
    }
    assert_eq!(bench.found("k").await, Err(ErrorKind::NotFound), "it serves");
    let plan = bench.open(1, "k", 0).await.unwrap();
    let plans = |down: &MasterToOwner| matches!(down, MasterToOwner::PlanOpened(_)).then_some(());
    ranks[0].receives(plans).await;
    bench.clock.advance_ms(LEASE_MS + 1);
    assert_eq!(bench.commit(&plan).await.unwrap_err().kind(), ErrorKind::NotReady);
    assert_eq!(bench.found("k").await, Err(ErrorKind::Disconnected));
    assert!(bench.open(2, "other", 0).await.is_err());
    both(&ranks).await;
    bench.commit(&plan).await.unwrap();
    assert!(bench.found("k").await.is_ok());
}

#[tokio::test]
async fn i6_a_master_without_a_quorum_sends_no_view_that_could_say_who_is_lost() {
    let (bench, mut ranks) = two_of_three().await;
    let view = |down: &MasterToOwner| match down {
        MasterToOwner::View(view) => Some(view.clone()),
        _ => None,
    };
    // In steps that do not count as pauses of the master.
    for _ in 0..10 {
        bench.clock.advance_ms(200);
        for rank in &ranks {
            // They live, and never heard of this master's clock.
            returns(rank, 0).await;
        }
        bench.ticks().await;
    }
    assert!(!bench.members.view().settled);
    let stamp_ms = bench.clock.now_ms();
    for rank in &ranks {
        returns(rank, stamp_ms).await;
    }
    bench.ticks().await;
    assert!(bench.members.view().settled);
    let seen: SeenView = ranks[0].receives(view).await;
    assert_eq!(seen.incarnations, [100, 101]);
}
