// What the examples in the documentation run on.
use nkv_actors::{Client, Cluster, NodeConfig, Result};

/// Runs `example` with the handle of a cluster of one rank in this process.
pub fn on_one_rank(name: &str, example: impl AsyncFnOnce(Client) -> Result<()>) {
    let job = format!("doc-{name}-{}", std::process::id());
    let config = NodeConfig { job, heap_bytes: 16 << 20, ..NodeConfig::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start(1, config).await.unwrap();
        cluster.node(0).ready().await;
        example(cluster.client()).await.unwrap();
        cluster.stop().await;
    });
}
