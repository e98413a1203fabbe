//! An owner's figures, from itself, and whether they add up. It waits for nothing.

use crate::cluster_process::ProcessCluster;
use nkv::message::OwnerGauges;

/// An owner's figures: the master need not be there.
pub fn gauges(cluster: &ProcessCluster, rank: u32) -> OwnerGauges {
    let (code, body) = cluster.get(rank, "/status");
    assert_eq!(code, 200, "{body}");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    serde_json::from_value(status["owner"].clone()).unwrap()
}

/// Every claim of an owner's log is settled, and each in one way [I13].
pub fn accounted(o: &OwnerGauges) -> bool {
    let settled =
        o.log_accepted_bytes + o.log_skipped_bytes + o.log_abandoned_bytes + o.log_voided_bytes;
    settled == o.log_claimed_bytes
}
