//! One end of a ring as a byte stream. Reading and writing are copies; this file decides how an end
//! waits: how long it polls, when it announces sleep, and how it is woken. Every wait lets the
//! caller's time limits run.

use super::doorbell::Doorbell;
use super::lane::{LaneError, LaneReader, LaneWriter};
use super::layout::EndAt;
use super::polling::Polling;
use super::sleep::{Sleep, WakeBy, Wanted};
use crate::wire::Stream;
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::shm::MemfdMemory;
use rustix::io::Errno;
use rustix::thread::futex;
use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// How long a thread polls for an answer while the node is awake, in nanoseconds. Answers to small
/// requests arrive within a few microseconds; for longer waits sleeping is worth it.
const THREAD_SPIN_NS: u64 = 20_000;
/// The same for a task, since the other tasks of its runtime wait meanwhile.
const TASK_SPIN_NS: u64 = 5_000;
/// How long a node polls for the next part of what a client began.
const NODE_SPIN_NS: u64 = 20_000;
/// Polls between two reads of the clock.
const POLLS_PER_CLOCK: u32 = 16;
/// Polls of a node before the other tasks on the thread run: about 0.2 us.
const POLLS_PER_YIELD: u32 = 4;
/// Longest sleep of a thread before the caller's time limit and the node's process are checked
/// again.
const SLICE: Duration = Duration::from_millis(10);

/// How a client waits for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// As a thread with no other work: a poll may block for about 10 ms.
    Thread,
    /// As a task among others in an event loop.
    Task,
}

/// One end of a ring.
#[derive(Debug)]
pub struct RingStream {
    memory: MemfdMemory,
    incoming: LaneReader,
    outgoing: LaneWriter,
    sleep: Sleep,
    bell: Doorbell,
    // None: the node's end, where other tasks on the thread run between two polls.
    waiting: Option<Waiting>,
    // History of waits of unspecified length at this end.
    polling: Polling,
    // Time until which the current wait polls, if there is one.
    spin_until_ns: Option<u64>,
    // Whether its word announces sleep.
    announced: bool,
    // Whether the last wait ended asleep.
    slept: bool,
    // The peer is gone; what it wrote before can still be read.
    over: bool,
}

impl RingStream {
    pub(super) fn node(memory: MemfdMemory, socket: UnixStream, lane_bytes: u64) -> Self {
        Self::new(memory, Doorbell::Heard(socket), EndAt::node(lane_bytes), None)
    }

    pub(super) fn client(
        memory: MemfdMemory,
        socket: UnixStream,
        lane_bytes: u64,
        waiting: Waiting,
    ) -> io::Result<Self> {
        let bell = match waiting {
            // Out of its event loop.
            Waiting::Thread => Doorbell::Apart(socket.into_std()?.into()),
            Waiting::Task => Doorbell::Heard(socket),
        };
        Ok(Self::new(memory, bell, EndAt::client(lane_bytes), Some(waiting)))
    }

    fn new(memory: MemfdMemory, bell: Doorbell, at: EndAt, waiting: Option<Waiting>) -> Self {
        Self {
            memory,
            incoming: LaneReader::new(at.incoming),
            outgoing: LaneWriter::new(at.outgoing),
            sleep: at.sleep,
            bell,
            waiting,
            polling: Polling::default(),
            spin_until_ns: None,
            announced: false,
            slept: false,
            over: false,
        }
    }

    /// How long the next wait polls before it sleeps: for a node that knows how soon its client
    /// usually sends again.
    pub fn set_spin(&mut self, time: Duration) {
        self.slept = false;
        self.spin_until_ns = Some(BootClock.now_ns() + time.as_nanos() as u64);
    }

    /// Whether this end slept since [`RingStream::set_spin`].
    pub fn slept(&self) -> bool {
        self.slept
    }

    /// Wakes the other end if it waits for what was just published.
    fn call(&mut self, what: Wanted) -> io::Result<()> {
        match self.sleep.call(&self.memory, what).map_err(broken)? {
            None => {}
            Some(WakeBy::Futex) => {
                let _ = futex::wake(self.futex(self.sleep.peers)?, futex::Flags::empty(), 1);
            }
            Some(WakeBy::Doorbell) => self.over |= !self.bell.ring(),
        }
        Ok(())
    }

    /// The half of a word that the kernel compares: the low one, the only half that is ever
    /// nonzero.
    fn futex(&self, word: u64) -> io::Result<&AtomicU32> {
        let half = if cfg!(target_endian = "big") { 4 } else { 0 };
        let base = self.memory.host_base().filter(|_| word + 8 <= self.memory.len());
        let base = base.ok_or_else(|| io::Error::other("a ring without memory"))?;
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned: words are. Others
        // change it, by whole atomic words only.
        Ok(unsafe { AtomicU32::from_ptr(base.as_ptr().add((word + half) as usize).cast()) })
    }

    /// True if the wait is over.
    fn come(&mut self, want: Wanted) -> io::Result<bool> {
        let there = match want {
            Wanted::Bytes => self.incoming.ready(&self.memory),
            Wanted::Space => self.outgoing.room(&self.memory),
        };
        Ok(self.over || there.map_err(broken)? > 0)
    }

    /// Ready when what is wanted may be there, or when the peer is gone.
    fn poll_wait(&mut self, cx: &mut Context<'_>, want: Wanted) -> Poll<io::Result<()>> {
        let until = match self.spin_until_ns {
            Some(until) => until,
            None => *self.spin_until_ns.insert(BootClock.now_ns() + self.spin_ns()),
        };
        let Some(waiting) = self.waiting else { return self.poll_turn(cx, want, until) };
        if self.spin(want, until)? {
            return Poll::Ready(Ok(()));
        }
        match waiting {
            Waiting::Thread => self.sleep_as_thread(cx, want),
            Waiting::Task => self.poll_bell(cx, want),
        }
    }

    /// Polls a few times, then lets the other tasks run; sleeps once the time is over.
    fn poll_turn(
        &mut self,
        cx: &mut Context<'_>,
        want: Wanted,
        until_ns: u64,
    ) -> Poll<io::Result<()>> {
        if BootClock.now_ns() >= until_ns {
            return self.poll_bell(cx, want);
        }
        for _ in 0..POLLS_PER_YIELD {
            if self.come(want)? {
                return Poll::Ready(Ok(()));
            }
            std::hint::spin_loop();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn spin_ns(&self) -> u64 {
        match self.waiting {
            None => NODE_SPIN_NS,
            Some(_) if !self.polling.should_poll() => 0,
            Some(Waiting::Thread) => THREAD_SPIN_NS,
            Some(Waiting::Task) => TASK_SPIN_NS,
        }
    }

    /// Polls for as long as the peer is awake; true if what is wanted came.
    fn spin(&mut self, want: Wanted, until_ns: u64) -> io::Result<bool> {
        while BootClock.now_ns() < until_ns {
            for _ in 0..POLLS_PER_CLOCK {
                if self.come(want)? {
                    self.polling.ended(false);
                    return Ok(true);
                }
                // It will not answer soon, which gives no information about its answers while it is
                // awake.
                if !self.sleep.peer_is_awake(&self.memory).map_err(broken)? {
                    return Ok(false);
                }
                std::hint::spin_loop();
            }
        }
        self.polling.ended(true);
        Ok(false)
    }

    fn announce(&mut self, want: Wanted, by: WakeBy) -> io::Result<u64> {
        (self.announced, self.slept) = (true, true);
        self.sleep.announce(&self.memory, want, by).map_err(broken)
    }

    /// What was waited for is there: marks this end as awake for the other end.
    fn up(&mut self) -> io::Result<()> {
        self.spin_until_ns = None;
        if std::mem::take(&mut self.announced) {
            self.sleep.up(&self.memory).map_err(broken)?;
        }
        Ok(())
    }

    /// Blocks for at most a slice; then the caller's time limits are checked.
    fn sleep_as_thread(&mut self, cx: &mut Context<'_>, want: Wanted) -> Poll<io::Result<()>> {
        let word = self.announce(want, WakeBy::Futex)?;
        if !self.come(want)? {
            let slice = futex::Timespec { tv_sec: 0, tv_nsec: SLICE.as_nanos() as i64 };
            let (own, flags) = (self.futex(self.sleep.own)?, futex::Flags::empty());
            let slept = futex::wait(own, flags, word as u32, Some(&slice));
            if slept == Err(Errno::TIMEDOUT) {
                self.over |= self.bell.take()? == Some(0);
            }
        }
        if self.come(want)? {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for a byte on the socket, or its end. A surplus byte is harmless: the end finds
    /// nothing and sleeps again.
    fn poll_bell(&mut self, cx: &mut Context<'_>, want: Wanted) -> Poll<io::Result<()>> {
        loop {
            self.announce(want, WakeBy::Doorbell)?;
            if self.come(want)? {
                return Poll::Ready(Ok(()));
            }
            self.over |= ready!(self.bell.poll_take(cx))? == Some(0);
        }
    }
}

fn broken(e: impl Into<LaneError>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e.into())
}

impl Stream for RingStream {}

impl AsyncRead for RingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            let n = this.incoming.read(&this.memory, buf.initialize_unfilled()).map_err(broken)?;
            if n > 0 {
                buf.advance(n);
                this.up()?;
                if this.incoming.release(&this.memory).map_err(broken)? {
                    this.call(Wanted::Space)?;
                }
                return Poll::Ready(Ok(()));
            }
            if this.over {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_wait(cx, Wanted::Bytes))?;
        }
    }
}

impl AsyncWrite for RingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        src: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if src.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if this.over {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let n = this.outgoing.write(&this.memory, src).map_err(broken)?;
            if n > 0 {
                this.up()?;
                this.call(Wanted::Bytes)?;
                return Poll::Ready(Ok(n));
            }
            ready!(this.poll_wait(cx, Wanted::Space))?;
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.bell.shut())
    }
}
