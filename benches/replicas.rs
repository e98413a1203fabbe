//! Puts of two replicas beside puts of one, by plans and into logs, and reads of one hot object by
//! four clients beside three replicas and beside one.
//!
//!   cargo bench --bench replicas
//!
//! Three ranks, and the clients, in this process. Ratios are of rounds in turn.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails panics")]

use nkv::{Address, Client, ClientConfig, Cluster, NodeConfig, PutOptions, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: usize = 9;
const PUTS: usize = 60;
const READERS: usize = 4;
const READ_FOR: Duration = Duration::from_millis(1500);
const HOT: usize = 1 << 20;

fn main() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let cluster = runtime.block_on(async {
        let job = format!("replicas-bench-{}", std::process::id());
        let (heap_bytes, log_bytes) = (1 << 30, Some(512 << 20));
        let config = NodeConfig { job, heap_bytes, log_bytes, ..NodeConfig::default() };
        Cluster::start(3, config).await.unwrap()
    });
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            puts(&runtime, &cluster, transport, bytes);
        }
    }
    reads(&runtime, &cluster);
    runtime.block_on(cluster.stop());
}

fn config(cluster: &Cluster, transport: TransportChoice) -> (Address, ClientConfig) {
    let node = cluster.node(0);
    let job = node.config().job.clone();
    (node.info().control.clone(), ClientConfig { job, transport, ..ClientConfig::default() })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn puts(
    runtime: &tokio::runtime::Runtime,
    cluster: &Cluster,
    transport: TransportChoice,
    bytes: usize,
) {
    let (at, config) = config(cluster, transport);
    let client = runtime.block_on(Client::connect(&at, config)).unwrap();
    let handle = client.blocking().unwrap();
    let value = vec![7u8; bytes];
    let count = PUTS.min((64 << 20) / bytes * 4);
    let round = |name: &str, replicas: u8, by_log: bool| {
        let opts = PutOptions::default().replicas(replicas).device_alloc(by_log);
        let mut times = Vec::new();
        for i in 0..count {
            let key = format!("{name}/{i}");
            let began = BootClock.now_ns();
            handle.put(key.as_bytes(), &value, &opts).unwrap();
            times.push((BootClock.now_ns() - began) as f64 / 1e3);
            handle.remove(key.as_bytes()).unwrap();
        }
        median(times)
    };
    for by_log in [false, true] {
        let how = if by_log { "into logs" } else { "by plans" };
        round("warm", 2, by_log);
        let (mut one, mut two, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..ROUNDS {
            let name = |n: u8| format!("{how}-{n}-{i}");
            let (a, b) = (round(&name(1), 1, by_log), round(&name(2), 2, by_log));
            one.push(a);
            two.push(b);
            ratios.push(b / a);
        }
        let (one, two, ratio) = (median(one), median(two), median(ratios));
        println!(
            "put of {bytes} B, {transport:?}, {how}: {one:.0} us, of 2 replicas {two:.0} us, \
             x{ratio:.2}"
        );
        let counters = handle.client().write_counters();
        assert_eq!((counters.by_log > 0, counters.replicas_short), (by_log, 0));
    }
    handle.close();
}

/// GB/s of all readers.
fn read_for(cluster: &Cluster, runtime: &tokio::runtime::Runtime) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let readers = (0..READERS).map(|reader| {
        let (at, config) = config(cluster, TransportChoice::Tcp);
        let client = runtime.block_on(Client::connect(&at, config)).unwrap();
        let (handle, stop) = (client.blocking().unwrap(), stop.clone());
        spawn_named(&format!("reader-{reader}"), move || {
            let mut into = vec![0u8; HOT];
            let mut bytes = 0;
            while !stop.load(Ordering::Relaxed) {
                bytes += handle.get_into(b"hot", &mut into).unwrap();
            }
            handle.close();
            bytes
        })
        .unwrap()
    });
    let readers: Vec<_> = readers.collect();
    let began = BootClock.now_ns();
    std::thread::sleep(READ_FOR);
    stop.store(true, Ordering::Relaxed);
    let bytes: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    bytes as f64 / (BootClock.now_ns() - began) as f64
}

fn reads(runtime: &tokio::runtime::Runtime, cluster: &Cluster) {
    let handle = runtime.block_on(async { cluster.client().for_another_runtime() });
    let handle = handle.blocking().unwrap();
    let value = vec![7u8; HOT];
    let with = |replicas: u8| {
        let opts = PutOptions::default().replicas(replicas).device_alloc(false);
        assert_eq!(handle.put_replicas(&[(b"hot", &value)], &opts), [Ok(u32::from(replicas))]);
        let speed = read_for(cluster, runtime);
        handle.remove(b"hot").unwrap();
        speed
    };
    let (mut one, mut three, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (a, b) = (with(1), with(3));
        one.push(a);
        three.push(b);
        ratios.push(b / a);
    }
    let (one, three, ratio) = (median(one), median(three), median(ratios));
    println!(
        "{READERS} clients by tcp read one object of {HOT} B: {one:.2} GB/s, of 3 replicas \
         {three:.2} GB/s, x{ratio:.2}"
    );
}
