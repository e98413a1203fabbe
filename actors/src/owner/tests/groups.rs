//! Groups of objects of plans: a producer may name them before the owner has recorded the plan.

use super::{Bench, OLD};
use crate::message::{
    ClientToOwner, KeyBytes, KeyReport, MasterToOwner, ReadCounts, Touch, TouchBatch,
};
use nkv_store::KeyId;
use nkv_store::object::ready;
use std::sync::atomic::Ordering;

fn named(slot: u32, key: &str) -> ClientToOwner {
    let (key, group) = (KeyBytes::from(key.as_bytes()), Some(KeyId { hash: 1, check: 2 }));
    ClientToOwner::KeysReported(vec![KeyReport { slot, epoch: 1, key, group }])
}

async fn read(b: &Bench, slot: u32) -> u64 {
    let list = vec![Touch { slot, epoch: 1, bytes: 4096, read: true }];
    b.hears(ClientToOwner::Touched(TouchBatch { list, counts: ReadCounts::default() })).await;
    b.tables.gauges.group_reads.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_group_that_is_named_before_or_after_its_plan_counts_and_that_of_another_key_does_not() {
    let b = Bench::new().await;
    // Before; for another key than that of the plan; and after.
    b.hears(named(0, "k1")).await;
    b.hears(named(1, "other")).await;
    for slot in 0..4 {
        let plan = b.opens(OLD, u64::from(slot) + 1, slot, 1).await;
        b.writes(slot, &format!("k{}", slot + 1), ready(1));
        b.receives(MasterToOwner::Committed(vec![plan])).await;
    }
    b.hears(named(2, "k3")).await;
    b.hears(named(3, "other")).await;
    assert_eq!(read(&b, 1).await, 0);
    assert_eq!(read(&b, 3).await, 0);
    assert_eq!(read(&b, 0).await, 1);
}
