//! Large objects in stripes, from the handle to the owner and back, by every transport; and the
//! buffers in which `get` returns them.

use crate::embedding::{bytes, config, on, used_is_live};
use nkv_actors::{Client, ClientConfig, Cluster, NodeConfig, TransportChoice};

const MIB: usize = 1 << 20;

async fn cluster(job: &str) -> Cluster {
    let base = config(job);
    let (heap_bytes, log_bytes) = (224 << 20, Some(128 << 20));
    let base = NodeConfig { heap_bytes, log_bytes, data_stripes: 4, ..base };
    Cluster::start(1, base).await.unwrap()
}

async fn striped(cluster: &Cluster, transport: TransportChoice) -> Client {
    let job = cluster.node(0).config().job.clone();
    let config = ClientConfig {
        job,
        transport,
        data_stripes: 4,
        device_alloc: false,
        ..ClientConfig::default()
    };
    Client::connect(&cluster.node(0).info().control, config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_large_objects_arrive_whole_in_stripes_by_every_transport() {
    let cluster = cluster("striped").await;
    let tcp = striped(&cluster, TransportChoice::Tcp).await;
    let shm = striped(&cluster, TransportChoice::Shm).await;
    let handles = [tcp, shm, cluster.client()];
    let mut buffer = vec![0; 21 * MIB];
    for (w, writer) in handles.iter().enumerate() {
        for (device_alloc, n) in [(false, 8 * MIB), (false, 17 * MIB + 13), (true, 20 * MIB - 1)] {
            let value = bytes(n, w as u8);
            let opts = on(0).device_alloc(device_alloc);
            writer.put(b"large", &value, &opts).await.unwrap();
            for reader in &handles {
                assert!(reader.get(b"large").await.unwrap() == value, "{n} by {w}");
                buffer.fill(0);
                assert_eq!(reader.get_into(b"large", &mut buffer).await.unwrap(), n);
                assert!(buffer[..n] == value && buffer[n..].iter().all(|b| *b == 0));
            }
            writer.remove(b"large").await.unwrap();
            used_is_live(&cluster).await;
        }
        assert_eq!(writer.write_counters().by_log, 1, "{w}");
    }
    // One connection more for each stripe, and no more.
    assert_eq!(cluster.node(0).status().agent.connections, 4);
    for handle in &handles[..2] {
        handle.close().await;
    }
    used_is_live(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_pages_of_a_plan_go_in_stripes_too() {
    let cluster = cluster("striped-plan").await;
    let tcp = striped(&cluster, TransportChoice::Tcp).await;
    let value = bytes(20 * MIB + 5, 3);
    let plan = tcp.open_for_write(b"k", value.len() as u64, &on(0)).await.unwrap();
    plan.write_from(9 * MIB as u64, &value[9 * MIB..]).unwrap();
    plan.write_from(0, &value[..9 * MIB]).unwrap();
    plan.publish().await.unwrap();
    assert!(cluster.client().get(b"k").await.unwrap() == value);
    tcp.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_get_returns_stays_as_it_is_and_its_buffer_is_used_again_once_dropped() {
    let cluster = cluster("pooled").await;
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let client = striped(&cluster, transport).await;
        for i in 0..3u8 {
            client.put(&[i], &bytes(MIB - usize::from(i), i), &on(0)).await.unwrap();
        }
        let first = client.get(&[0]).await.unwrap();
        let second = client.get(&[1]).await.unwrap();
        assert_ne!(first.as_ptr(), second.as_ptr());
        let (place, clone) = (first.as_ptr(), first.clone());
        drop(first);
        assert_ne!(client.get(&[2]).await.unwrap().as_ptr(), place, "a clone is still out");
        drop((clone, client.get(&[2]).await.unwrap()));
        let again = client.get(&[2]).await.unwrap();
        assert!(again == bytes(MIB - 2, 2) && second == bytes(MIB - 1, 1));
        client.remove_all().await.unwrap();
        client.close().await;
        drop(client);
        assert!(second == bytes(MIB - 1, 1), "bytes outlive object and handle");
    }
    cluster.stop().await;
}
