//! Shared by tests of the device log.

use super::{client_by, config, eventually};
use nkv_actors::message::OwnerGauges;
use nkv_actors::{Client, Cluster, NodeConfig, PutOptions, TransportChoice};

pub const LOG: u64 = 4 << 20;

pub fn with_log(job: &str) -> NodeConfig {
    let heap = config(job);
    NodeConfig { heap_bytes: heap.heap_bytes + LOG, log_bytes: Some(LOG), ..heap }
}

pub fn logged(rank: u32) -> PutOptions {
    PutOptions::default().preferred_rank(rank).device_alloc(true)
}

pub fn gauges(cluster: &Cluster, rank: usize) -> OwnerGauges {
    cluster.node(rank as u32).status().owner
}

/// True if every claim is settled, each exactly once [I13].
pub fn accounted(g: &OwnerGauges) -> bool {
    let settled =
        g.log_accepted_bytes + g.log_skipped_bytes + g.log_abandoned_bytes + g.log_voided_bytes;
    settled == g.log_claimed_bytes
}

pub async fn at_rest(cluster: &Cluster, rank: usize) {
    eventually("every claim is settled", async || accounted(&gauges(cluster, rank))).await;
}

/// A client that has attached by a first put.
pub async fn attached(cluster: &Cluster, transport: TransportChoice) -> Client {
    let client = client_by(cluster, transport).await;
    client.put(b"first", b"put", &logged(0)).await.unwrap();
    client
}
