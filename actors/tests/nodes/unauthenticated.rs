//! Connections that send nothing do not keep members out [I20].

use crate::embedding::config;
use nkv_actors::{Client, ClientConfig, Cluster, PutOptions, TransportChoice};
use nkv_transport::wire::Address;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// More than the limit of unauthenticated peers.
const SILENT: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i20_silent_unauthenticated_peers_do_not_keep_members_out() {
    let cluster = Cluster::start(1, config("unauthenticated")).await.unwrap();
    let node = cluster.node(0);
    let job = node.config().job.clone();
    let (control, local) = (node.info().control.clone(), node.info().local.clone().unwrap());
    let connect = async |at: &Address| {
        let transport = TransportChoice::Auto;
        let config = ClientConfig { job: job.clone(), transport, ..ClientConfig::default() };
        let client = Client::connect(at, config).await.unwrap();
        client.put(b"k", b"v", &PutOptions::default()).await.unwrap();
        client.remove(b"k").await.unwrap();
    };
    let mut by_tcp: Vec<_> =
        (0..SILENT).map(|_| TcpStream::connect(control.bare()).unwrap()).collect();
    let by_unix: Vec<_> = (0..100).map(|_| UnixStream::connect(local.bare()).unwrap()).collect();
    // Each of them connects after all the silent ones.
    for _ in 0..5 {
        connect(&local).await;
        connect(&control).await;
        by_tcp.push(TcpStream::connect(control.bare()).unwrap());
    }
    // The oldest connection was closed; the peer sees an end or a reset.
    let first = tokio::task::spawn_blocking(move || by_tcp[0].read(&mut [0; 1]));
    assert!(!matches!(first.await.unwrap(), Ok(1)));
    drop(by_unix);
    cluster.stop().await;
}
