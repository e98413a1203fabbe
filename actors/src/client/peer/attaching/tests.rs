//! Which transport a handle uses when the best one is refused, and that a closed handle takes no
//! attachment.

use crate::attachment::LocalOwners;
use crate::client::PutOptions;
use crate::client::producer::Attach;
use crate::environment::Environment;
use crate::{Client, ClientConfig, ErrorKind, Node, NodeConfig, TransportChoice};
use nkv_transport::wire::{Address, BoxFuture, BoxStream, Listener, Net, OsNet, Peer};
use std::io;
use std::sync::Arc;

/// The network of a host whose kernel gives no pidfd of a peer.
struct NoPidfds;

impl Net for NoPidfds {
    fn connect(&self, addr: &Address) -> BoxFuture<'static, io::Result<BoxStream>> {
        OsNet.connect(addr)
    }

    fn listen(&self, addr: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let listening = OsNet.listen(addr);
        Box::pin(async move { Ok(Box::new(Unnamed(listening.await?)) as Box<dyn Listener>) })
    }
}

struct Unnamed(Box<dyn Listener>);

impl Listener for Unnamed {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxStream, Peer)>> {
        Box::pin(async move {
            let (stream, mut peer) = self.0.accept().await?;
            if let Some(unix) = &mut peer.unix {
                unix.process = None;
            }
            Ok((stream, peer))
        })
    }

    fn local(&self) -> Address {
        self.0.local()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i10_a_process_without_a_pidfd_does_not_map_and_writes_by_tcp() {
    let job = format!("no-pidfd-{}", std::process::id());
    let config = NodeConfig { job: job.clone(), heap_bytes: 8 << 20, ..NodeConfig::default() };
    let here = Environment::of_this_process();
    let node = Environment { net: Arc::new(NoPidfds), ..here.clone() };
    let node = Node::start_in(node, config).await.unwrap();
    // Acts as another process, which does not know the owners of this one.
    let elsewhere = Environment { owners: LocalOwners::default(), ..here };
    let by = |transport| {
        let config = ClientConfig { job: job.clone(), transport, ..ClientConfig::default() };
        Client::connect_in(elsewhere.clone(), &node.info().control, config)
    };
    let client = by(TransportChoice::Auto).await.unwrap();
    client.put(b"k", b"value", &PutOptions::default()).await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap(), &b"value"[..]);
    let attached = client.shared.peers.all();
    assert_eq!(attached.len(), 1);
    assert_eq!(attached[0].kind(), nkv_transport::verbs::Kind::Tcp);
    let why = attached[0].passed_over.join("; ");
    assert!(why.contains("shm: ") && why.contains("no pidfd of unix pid"), "{why}");
    // A client that accepts only shared memory gets the same reason.
    let only = by(TransportChoice::Shm).await.unwrap();
    let e = only.put(b"l", b"value", &PutOptions::default()).await.unwrap_err();
    assert!(e.kind() == ErrorKind::Disconnected && e.message().contains("no pidfd"), "{e}");
    node.stop().await;
}

/// An attachment in flight when the handle was closed comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_handle_takes_no_attachment_that_comes_late() {
    let job = format!("late-attachment-{}", std::process::id());
    let config = NodeConfig { job: job.clone(), heap_bytes: 8 << 20, ..NodeConfig::default() };
    let node = Node::start(config).await.unwrap();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let config = ClientConfig { job: job.clone(), transport, ..ClientConfig::default() };
        let client = Client::connect(&node.info().control, config).await.unwrap();
        client.put(b"k", b"value", &PutOptions::default()).await.unwrap();
        client.remove(b"k").await.unwrap();
        let peer = client.shared.peers.all().remove(0);
        client.close().await;
        assert!(!client.shared.take_in(peer), "{transport}");
        let attach = Attach(node.info().clone());
        let late = client.actor.get().unwrap().call(attach, nkv_pace::HANGS).await.unwrap();
        let e = late.unwrap_err();
        assert!(e.kind() == ErrorKind::Disconnected && e.message().contains("is closed"), "{e}");
        assert!(client.shared.peers.all().is_empty(), "{transport}");
    }
    node.stop().await;
}
