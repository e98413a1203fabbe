//! Handles whose job now hashes keys under another key.

use crate::client::PutOptions;
use crate::{ErrorKind, Node, NodeConfig};
use nkv_store::KeyHasher;

fn config(job: &str) -> NodeConfig {
    let job = format!("{job}-{}", std::process::id());
    NodeConfig { job, heap_bytes: 1 << 20, ..NodeConfig::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn i16_a_handle_attaches_to_no_owner_that_hashes_keys_otherwise() {
    let node = Node::start(config("otherwise")).await.unwrap();
    let client = node.client();
    client.shared.keys.keep(KeyHasher::new([1; 16]));
    let refused = client.put(b"k", b"value", &PutOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.message().contains("hashes keys under another key"), "{refused}");
    client.shared.keys.keep(node.hasher());
    client.put(b"another", b"value", &PutOptions::default()).await.unwrap();
    node.stop().await;
}
