//! A pool that cannot get a ring uses the socket and asks for no more rings.

use super::*;
use crate::{Node, NodeConfig};
use nkv_transport::wire::{BoxFuture, Listener, OsNet, Stream};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The system's network, with streams that hide their sockets from the client.
struct Wrapping;

struct Wrapped(BoxStream);

impl Stream for Wrapped {}

impl AsyncRead for Wrapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wrapped {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        src: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, src)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Net for Wrapping {
    fn connect(&self, addr: &Address) -> BoxFuture<'static, std::io::Result<BoxStream>> {
        let connecting = OsNet.connect(addr);
        Box::pin(async move { Ok(Box::new(Wrapped(connecting.await?)) as BoxStream) })
    }

    fn listen(&self, addr: &Address) -> BoxFuture<'static, std::io::Result<Box<dyn Listener>>> {
        OsNet.listen(addr)
    }
}

async fn node(job: &str) -> (Node, ControlPool) {
    let job = format!("{job}-{}", std::process::id());
    let config = NodeConfig { job: job.clone(), heap_bytes: 1 << 20, ..NodeConfig::default() };
    let node = Node::start(config).await.unwrap();
    let local = node.info().local.clone().unwrap();
    let path = Arc::new(CurrentMaster::of_handle(vec![local], false));
    let means = (Credentials::of_client(&job, None), HandleKeys::new(node.hasher()));
    (node, ControlPool::new(Arc::new(OsNet), path, means, 1, true))
}

const LIMIT: Duration = nkv_pace::HANGS;

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_cannot_be_taken_leaves_the_socket() {
    let (node, pool) = node("no-ring").await;
    let pool = ControlPool { net: Arc::new(Wrapping), ..pool };
    for _ in 0..2 {
        assert!(matches!(pool.call(Request::View, LIMIT).await, Ok(Response::View(_))));
        assert!(!pool.rings.load(Ordering::Relaxed), "it would be asked for again and again");
    }
    assert_eq!(pool.idle.lock().unwrap().len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_keeps_its_ring_and_takes_another_after_the_node_was_started_anew() {
    let (node, pool) = node("ring-again").await;
    let config = node.config().clone();
    for _ in 0..3 {
        assert!(matches!(pool.call(Request::View, LIMIT).await, Ok(Response::View(_))));
        assert_eq!(pool.idle.lock().unwrap().len(), 1);
    }
    node.stop().await;
    let gone = pool.call(Request::View, LIMIT).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Disconnected);
    let node = Node::start(config).await.unwrap();
    let local = node.info().local.clone().unwrap();
    let pool =
        ControlPool { master: Arc::new(CurrentMaster::of_handle(vec![local], false)), ..pool };
    assert!(matches!(pool.call(Request::View, LIMIT).await, Ok(Response::View(_))));
    assert!(pool.rings.load(Ordering::Relaxed));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_something_else_is_disconnected_and_names_the_master_and_its_address() {
    let (node, pool) = node("other-answer").await;
    let error = pool.unexpected("Exists", &Response::Done(vec![Ok(()), Ok(())]));
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    let at = node.info().local.clone().unwrap();
    let begins = format!("the master (at {at}) answered Exists with 2 results");
    assert!(error.message().starts_with(&begins), "{error}");
    node.stop().await;
}
