//! The ends of simulated connections as the program sees them: `Net`, `Listener` and streams of one
//! process. The network decides what happens between them.

use super::{Conn, ConnId, Due, End, ListenAddress, Net, Waiting};
use crate::net::pipe::Pipe;
use crate::process::{Liveness, Pid};
use nkv_transport::wire::{Address, BoxFuture, BoxStream, Listener, Peer, UnixPeer};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Pause between attempts of a connect while its path is cut, and the limit of all attempts.
const SYN_AGAIN: Duration = Duration::from_millis(500);
const SYN_TRIES: u32 = 120;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;
/// Of a thousand writes, how many take only a part.
const SHORT_WRITES_PERMILLE: u64 = 10;

/// The network as one process has it.
#[derive(Debug, Clone)]
pub struct SimNet {
    pub net: Net,
    pub pid: Pid,
    pub host: usize,
    pub life: Arc<Liveness>,
}

/// The address of a host, as text.
pub fn ip_of(host: usize) -> String {
    format!("10.0.0.{}", host + 1)
}

fn host_of(ip: &str) -> Option<usize> {
    ip.strip_prefix("10.0.0.")?.parse::<usize>().ok()?.checked_sub(1)
}

impl SimNet {
    fn listen_address(&self, at: &Address) -> io::Result<ListenAddress> {
        let wrong = || io::Error::new(ErrorKind::AddrNotAvailable, at.to_string());
        match at {
            Address::Unix(path) => Ok((self.host, path.display().to_string())),
            Address::Tcp(text) => {
                let (ip, port) = text.rsplit_once(':').ok_or_else(wrong)?;
                Ok((host_of(ip).ok_or_else(wrong)?, port.to_string()))
            }
        }
    }

    async fn dial(self, at: Address) -> io::Result<BoxStream> {
        let listener = self.listen_address(&at)?;
        let (here, there) = (self.host, listener.0);
        for _ in 0..SYN_TRIES {
            tokio::time::sleep(self.net.delay(here, there)).await;
            if !self.net.is_open(here, there) || !self.net.is_open(there, here) {
                tokio::time::sleep(SYN_AGAIN).await;
                continue;
            }
            let made = self.net.connect(&self, &listener, matches!(at, Address::Unix(_)));
            tokio::time::sleep(self.net.delay(there, here)).await;
            return made.map(|s| Box::new(s) as BoxStream).ok_or_else(|| {
                io::Error::new(ErrorKind::ConnectionRefused, format!("nobody listens at {at}"))
            });
        }
        Err(io::Error::new(ErrorKind::TimedOut, format!("{at} does not answer")))
    }
}

impl nkv_transport::wire::Net for SimNet {
    fn connect(&self, addr: &Address) -> BoxFuture<'static, io::Result<BoxStream>> {
        Box::pin(self.clone().dial(addr.clone()))
    }

    fn listen(&self, addr: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let made =
            self.listen_address(addr).and_then(|listener| self.net.listen(listener, self.pid));
        let at = made.map(|listener| {
            let local = match addr {
                Address::Unix(_) => addr.clone(),
                Address::Tcp(_) => Address::Tcp(format!("{}:{}", ip_of(listener.0), listener.1)),
            };
            let net = self.net.clone();
            Box::new(SimListener { net, listener, local, pid: self.pid }) as Box<dyn Listener>
        });
        Box::pin(async move { at })
    }
}

impl Net {
    fn listen(&self, (host, port): ListenAddress, pid: Pid) -> io::Result<ListenAddress> {
        let mut state = self.lock();
        let port = match port.as_str() {
            "0" => {
                state.next_port += 1;
                state.next_port.to_string()
            }
            _ => port,
        };
        let listener = (host, port);
        if state.listeners.contains_key(&listener) {
            return Err(io::Error::new(ErrorKind::AddrInUse, listener.1));
        }
        state.listeners.insert(listener.clone(), Waiting { pid, ..Waiting::default() });
        Ok(listener)
    }

    fn connect(&self, from: &SimNet, listener: &ListenAddress, unix: bool) -> Option<SimStream> {
        let mut state = self.lock();
        let conn = state.next_conn;
        let waiting = state.listeners.get_mut(listener)?;
        if waiting.queue.len() >= BACKLOG {
            return None;
        }
        let named = unix.then(|| (from.pid, from.life.clone()));
        let end = |side| SimStream { net: self.clone(), conn, side };
        waiting.queue.push_back((end(1), named));
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
        let ends = [from.host, listener.0].map(|host| End { host, open: true });
        state.conns.insert(conn, Conn { ends, pipes: [Pipe::default(), Pipe::default()] });
        state.next_conn += 1;
        Some(end(0))
    }
}

struct SimListener {
    net: Net,
    listener: ListenAddress,
    local: Address,
    pid: Pid,
}

impl Listener for SimListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxStream, Peer)>> {
        Box::pin(std::future::poll_fn(|cx| {
            let mut state = self.net.lock();
            let gone = || io::Error::new(ErrorKind::NotConnected, "the process is being killed");
            let waiting = state.listeners.get_mut(&self.listener).ok_or_else(gone)?;
            let Some((stream, named)) = waiting.queue.pop_front() else {
                waiting.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let text = format!("connection {}", stream.conn);
            let unix = named.map(|(pid, life)| UnixPeer {
                pid: pid as i32,
                uid: 0,
                process: Some(life as Arc<dyn nkv_transport::wire::Process>),
            });
            Poll::Ready(Ok((Box::new(stream) as BoxStream, Peer { unix, text })))
        }))
    }

    fn local(&self) -> Address {
        self.local.clone()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.net.lock();
        let ours = state.listeners.get(&self.listener).is_some_and(|d| d.pid == self.pid);
        let listener = ours.then(|| state.listeners.remove(&self.listener));
        drop(state);
        // Drops the connections that were not accepted: outside the lock.
        drop(listener);
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct SimStream {
    net: Net,
    conn: ConnId,
    side: usize,
}

impl nkv_transport::wire::Stream for SimStream {
    /// False: people who debug a run can read its frames, and no time is spent on encryption that
    /// is not under test.
    fn is_private(&self) -> bool {
        true
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.net.lock();
        let Some(conn) = state.conns.get_mut(&self.conn) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        let pipe = &mut conn.pipes[1 - self.side];
        match pipe.take(buf.remaining()) {
            Some(Ok(bytes)) => {
                buf.put_slice(&bytes);
                Poll::Ready(Ok(()))
            }
            Some(Err(why)) => Poll::Ready(Err(why.into())),
            None => {
                pipe.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.net.lock();
        let Some(conn) = state.conns.get_mut(&self.conn) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        let (from, to) = conn.path(self.side);
        let pipe = &mut conn.pipes[self.side];
        if let Some(why) = pipe.broken() {
            return Poll::Ready(Err(why.into()));
        }
        let room = pipe.room();
        if room == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = room.min(buf.len());
        if n > 1 && state.dice.permille(SHORT_WRITES_PERMILLE) {
            n = state.dice.between(1, n as u64 - 1) as usize;
        }
        let now = Instant::now();
        let due = now + state.delay(from, to);
        let whole = state.is_open((from, to)) && state.is_open((to, from));
        let Some(conn) = state.conns.get_mut(&self.conn) else {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        };
        let pipe = &mut conn.pipes[self.side];
        pipe.unacknowledged |= !whole;
        let idle = pipe.is_idle();
        let due = pipe.send(&buf[..n], due);
        if due > now {
            if idle {
                state.schedule(due, Due::Arrival(self.conn, self.side));
            }
        } else {
            drop(state);
            self.net.arrivals(self.conn, self.side);
        }
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

impl SimStream {
    /// Closes the sending direction.
    fn finish(&self) {
        let mut state = self.net.lock();
        let Some(conn) = state.conns.get(&self.conn) else { return };
        let (from, to) = conn.path(self.side);
        let due = Instant::now() + state.delay(from, to);
        let Some(conn) = state.conns.get_mut(&self.conn) else { return };
        let pipe = &mut conn.pipes[self.side];
        if pipe.broken().is_none() {
            let due = pipe.finish(due);
            state.schedule(due, Due::Arrival(self.conn, self.side));
        }
    }

    /// The process is killed: its kernel may drop bytes that it had not delivered yet.
    fn die(&self, lossy: bool) {
        let mut state = self.net.lock();
        let Some(conn) = state.conns.get_mut(&self.conn) else { return };
        // Bytes that it did not read make its kernel reset the connection.
        let reset = lossy || conn.pipes[1 - self.side].has_unread();
        if reset {
            conn.pipes[self.side].lose_flight();
        }
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let dying = self.net.lock().dying;
        if let Some((_, lossy)) = dying {
            self.die(lossy);
        }
        self.finish();
        let mut state = self.net.lock();
        let Some(conn) = state.conns.get_mut(&self.conn) else { return };
        conn.ends[self.side].open = false;
        // Bytes that the other end sends from here on are not read.
        conn.pipes[1 - self.side].lose_flight();
        state.forget_if_over(self.conn);
    }
}
