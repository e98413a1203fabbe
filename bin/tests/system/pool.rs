//! The memory of a rank as a pool of a worker, while that rank is killed and started again.

use crate::cluster_process::{ProcessCluster, until};
use nkv::{Blocking, ErrorKind, PoolOptions, ShmPool};
use nkv_pace::HANGS;

const BYTES: u64 = 64 << 10;

fn stores(handle: &Blocking, pool: &ShmPool, key: &[u8], byte: u8) -> bool {
    let Ok(slots) = handle.prepare_store(pool, &[key], BYTES) else { return false };
    let Some(slot) = slots.first() else { return false };
    slot.write(0, &vec![byte; BYTES as usize]).unwrap();
    handle.commit_store(pool, &[key]).remove(0).is_ok()
}

/// The worker notices the start by the incarnation, and never touches memory that is not there.
#[test]
fn i9_a_worker_outlives_the_rank_whose_memory_it_uses() {
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "1500"]);
    });
    let handle = cluster.connect(0);
    let pool = handle.attach_pool(PoolOptions { rank: Some(1), ..PoolOptions::default() }).unwrap();
    let before = pool.info().unwrap();
    assert!(stores(&handle, &pool, b"before", 1));
    let open = handle.prepare_store(&pool, &[b"open"], BYTES).unwrap();
    let read = handle.prepare_retrieve(&pool, &[b"before"]).unwrap().unwrap();
    cluster.kill9(1);
    // The mapping outlives the rank.
    assert!(read[0].bytes().iter().all(|byte| *byte == 1));
    open[0].write(0, &[9; 4096]).unwrap();
    let failed = handle.commit_store(&pool, &[b"open"]).remove(0).unwrap_err();
    assert_ne!(failed.kind(), ErrorKind::Internal, "{failed}");
    cluster.restart(1);
    until(HANGS, "it stores in the memory of the new rank", || stores(&handle, &pool, b"after", 2));
    assert_eq!(pool.outstanding(), (0, 1), "the old place is gone");
    assert!(stores(&handle, &pool, b"open", 3), "the same key has a new place");
    assert_eq!(handle.get(b"open").unwrap()[0], 3);
    handle.remove(b"open").unwrap();
    let now = pool.info().unwrap();
    assert_ne!(now.incarnation, before.incarnation);
    assert_eq!(pool.figures().restarts, 1);
    let found = handle.prepare_retrieve(&pool, &[b"after"]).unwrap().unwrap();
    assert!(found[0].bytes().iter().all(|byte| *byte == 2));
    until(HANGS, "what only the old memory had is not there", || {
        handle.prepare_retrieve(&pool, &[b"before"]).is_ok_and(|found| found.is_none())
    });
    assert!(handle.get(b"open").is_err());
}
