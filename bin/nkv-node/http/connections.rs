//! The HTTP connections: so many at once, each for one request and with so much time for it, that
//! one who says nothing, or does not read, keeps no probe out for long. It knows nothing of HTTP.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at once; further ones wait in the listen backlog.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Until the first byte of the answer, and from there to its last.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(5);
/// Pause after an accept error (out of file descriptors), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts while there is room.
pub(super) struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    limit: Duration,
}

impl Bounded {
    /// `limit` is for each of the two steps of a connection.
    pub(super) fn new(listener: TcpListener, limit: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(MAX_CONNECTIONS)), limit }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed; were it, refusing everybody is what a pause does.
            if let Ok(permit) = self.room.clone().acquire_owned().await {
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        return (Connection::new(stream, self.limit, permit), peer);
                    }
                    Err(error) => tracing::debug!(%error, "HTTP accept failed"),
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that counts for as long as it lives, which is two limits at most.
pub(super) struct Connection {
    stream: TcpStream,
    limit: Duration,
    step_ends: Pin<Box<Sleep>>,
    answering: bool,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, limit: Duration, permit: OwnedSemaphorePermit) -> Self {
        let step_ends = Box::pin(tokio::time::sleep(limit));
        Self { stream, limit, step_ends, answering: false, _permit: permit }
    }

    /// An error once the step has lasted too long; else the task is woken when it has.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.step_ends.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.answering {
            self.answering = true;
            let end = Instant::now() + self.limit;
            self.step_ends.as_mut().reset(end);
        }
        self.in_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
