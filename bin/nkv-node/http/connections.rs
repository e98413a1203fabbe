//! The HTTP connections: bounded in number, each for one request, with a time limit. A new
//! connection beyond the bound ends another one: the oldest that has sent nothing yet, else the
//! oldest whose answer has not begun. So silent peers cannot keep a probe out. This module does not
//! parse HTTP.

use axum::serve::Listener;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Most connections at once: enough that a probe has time to send its request while thousands of
/// others connect per second.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Limit of each of two steps: until the first byte of the answer, and from there to its last.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(5);
/// Pause after an accept error (out of file descriptors), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts every connection, and ends the oldest beyond the bound.
pub(super) struct Bounded {
    listener: TcpListener,
    open: Arc<Open>,
    limit: Duration,
}

/// The open connections by number, which is also their order of age.
#[derive(Debug, Default)]
struct Open(Mutex<(u64, BTreeMap<u64, One>)>);

/// Progress of a connection; the one with the least is ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Silent,
    Asking,
    Answered,
}

#[derive(Debug)]
struct One {
    step: Step,
    // Dropping it ends the connection.
    _stays: oneshot::Sender<()>,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, One>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection; ends the oldest with the least progress if there is no room.
    fn enter(&self) -> (u64, oneshot::Receiver<()>) {
        let (stays, ends) = oneshot::channel();
        let mut all = self.lock();
        if all.1.len() >= MAX_CONNECTIONS {
            let first = all.1.iter().min_by_key(|(number, one)| (one.step, **number));
            let first = first.map(|(number, _)| *number);
            first.and_then(|number| all.1.remove(&number));
        }
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, One { step: Step::Silent, _stays: stays });
        (number, ends)
    }

    fn reached(&self, number: u64, step: Step) {
        if let Some(one) = self.lock().1.get_mut(&number) {
            one.step = step;
        }
    }
}

impl Bounded {
    /// `limit` applies to each of the two steps of a connection.
    pub(super) fn new(listener: TcpListener, limit: Duration) -> Self {
        Self { listener, open: Arc::default(), limit }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Connections accepted before can read their request before they may be ended.
                    tokio::task::yield_now().await;
                    return (Connection::new(stream, self.limit, self.open.clone()), peer);
                }
                Err(error) => tracing::debug!(%error, "HTTP accept failed"),
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection. It counts towards the bound until it is dropped, after two limits at most.
pub(super) struct Connection {
    stream: TcpStream,
    limit: Duration,
    step_ends: Pin<Box<Sleep>>,
    step: Step,
    open: Arc<Open>,
    number: u64,
    ends: oneshot::Receiver<()>,
}

impl Connection {
    fn new(stream: TcpStream, limit: Duration, open: Arc<Open>) -> Self {
        let step_ends = Box::pin(tokio::time::sleep(limit));
        let (number, ends) = open.enter();
        Self { stream, limit, step_ends, step: Step::Silent, open, number, ends }
    }

    /// Records the step; true if the connection had not reached it before.
    fn reached(&mut self, step: Step) -> bool {
        let further = self.step < step;
        if further {
            self.step = step;
            self.open.reached(self.number, step);
        }
        further
    }

    /// An error once the step has exceeded its limit, or a newer connection has ended this one;
    /// else the task is woken when that happens.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if Pin::new(&mut self.ends).poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match self.step_ends.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().1.remove(&self.number);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.reached(Step::Asking);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.reached(Step::Answered) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    type Entered = (u64, oneshot::Receiver<()>);

    /// Numbers of the connections that were ended.
    fn gone(all: &mut [Entered]) -> Vec<u64> {
        let over = |one: &mut Entered| one.1.try_recv() == Err(TryRecvError::Closed);
        all.iter_mut().filter_map(|one| over(one).then_some(one.0)).collect()
    }

    #[test]
    fn the_oldest_silent_connection_is_ended_first_and_then_the_oldest_that_waits_for_its_answer() {
        let open = Open::default();
        let mut all: Vec<_> = (0..MAX_CONNECTIONS).map(|_| open.enter()).collect();
        assert!(gone(&mut all).is_empty(), "there was room");
        let (first, second, third) = (all[0].0, all[1].0, all[2].0);
        open.reached(first, Step::Answered);
        open.reached(second, Step::Asking);
        all.push(open.enter());
        assert_eq!(gone(&mut all), [third]);
        for (number, _) in &all[3..] {
            open.reached(*number, Step::Asking);
        }
        all.push(open.enter());
        // The newest has sent nothing yet and is still open: the oldest is ended.
        assert_eq!(gone(&mut all), [second, third]);
        assert_eq!(open.lock().1.len(), MAX_CONNECTIONS);
    }
}
