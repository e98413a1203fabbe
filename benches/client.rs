//! Calls of the public API over an embedded cluster: `cargo bench --bench client`. Each next to a
//! plain copy of the same bytes, which is the least that a call that moves them can take.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nkv::{Blocking, Cluster, NodeConfig, PutOptions};
use std::hint::black_box;
use tokio::runtime::Runtime;

const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// A cluster of one rank, and a handle that this thread drives.
struct Bench {
    runtime: Runtime,
    cluster: Option<Cluster>,
    handle: Blocking,
    /// Keys are never used twice: values are immutable.
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let job = format!("bench-{}", std::process::id());
        let log_bytes = 256 << 20;
        let heap_bytes = 2 * log_bytes;
        let log_bytes = Some(log_bytes);
        let config = NodeConfig { job, heap_bytes, log_bytes, ..NodeConfig::default() };
        let cluster = runtime.block_on(async {
            let cluster = Cluster::start(1, config).await.unwrap();
            cluster.node(0).ready().await;
            cluster
        });
        let handle = cluster.client().blocking().unwrap();
        Self { runtime, cluster: Some(cluster), handle, next: 0 }
    }

    fn put(&mut self, value: &[u8], opts: &PutOptions) -> [u8; 8] {
        self.next += 1;
        let key = self.next.to_le_bytes();
        self.handle.put(&key, value, opts).unwrap();
        key
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.handle.close();
        self.cluster.take().into_iter().for_each(|cluster| self.runtime.block_on(cluster.stop()));
    }
}

fn calls(c: &mut Criterion) {
    let mut bench = Bench::new();
    for bytes in SIZES {
        let value = vec![7u8; bytes];
        let mut buffer = vec![0u8; bytes];
        let mut group = c.benchmark_group(format!("{} KiB", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("copy", |b| {
            b.iter(|| black_box(&mut buffer).copy_from_slice(black_box(&value)));
        });
        for (name, by_log) in [("by log", true), ("by plan", false)] {
            let opts = PutOptions::default().device_alloc(by_log);
            group.bench_function(BenchmarkId::new("put", name), |b| {
                b.iter(|| bench.put(&value, &opts));
            });
        }
        let key = bench.put(&value, &PutOptions::default());
        group.bench_function("get_into", |b| {
            b.iter(|| bench.handle.get_into(&key, &mut buffer).unwrap());
        });
        group.bench_function("get_view", |b| {
            b.iter(|| bench.handle.get_view(&key).unwrap().len());
        });
        group.bench_function("exists", |b| {
            b.iter(|| bench.handle.exists(&[&key]).unwrap());
        });
        group.finish();
        bench.handle.remove_all().unwrap();
    }
}

criterion_group!(benches, calls);
criterion_main!(benches);
