//! One tcp connection, used by both ends: raw receive and send with a limit on the time without
//! progress and a limit on the total time. Raw pointers, because the kernel copies directly between
//! socket and shared memory; no buffer here holds large payload.

use super::broken::{Broken, STALL_PARTS, TimeLimits, broken};
use super::deadline::Deadline;
use super::gather::Gather;
use super::tags::{Tags, has_tag};
use crate::access::Cut;
use crate::half_open;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Socket buffers. Measured on loopback: with 1 MiB a read of 1 MiB takes twice as long (sender and
/// receiver take turns), above 2 MiB nothing is gained.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;
/// Bytes received from the kernel in one call. Measured on loopback between cold memory of 64 MiB
/// at both ends: receives of 4 MiB reach six tenths of the throughput of receives of 256 KiB.
const RECEIVE_BYTES: usize = 256 << 10;
/// Small data is received through a buffer of this size, with one call for many pieces.
const INPUT_BYTES: usize = 16 << 10;

/// A socket that other threads may shut down while its thread blocks in it.
#[derive(Debug)]
pub(super) struct Interrupt {
    socket: Socket,
    cut: AtomicBool,
}

impl Interrupt {
    /// Ends every blocking call, now and later.
    pub(super) fn shut(&self) {
        // An error means that it is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// True if a fence stopped the reception: the agent answers and closes.
    pub(super) fn was_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }
}

impl Cut for Interrupt {
    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        // Sending stays possible, so that the agent can send the reason to the producer.
        let _ = self.socket.shutdown(Shutdown::Read);
    }
}

/// Sets the buffer sizes if the kernel grants them in full. If it would cut them (a small
/// net.core.rmem_max or wmem_max), its automatic tuning is better than a fixed small buffer.
fn prepare(socket: &Socket) -> io::Result<()> {
    static GRANTED: LazyLock<bool> = LazyLock::new(|| {
        ["rmem_max", "wmem_max"].iter().all(|name| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            let max = text.ok().and_then(|t| t.trim().parse::<usize>().ok());
            max.is_some_and(|max| max >= SOCKET_BUFFER_BYTES)
        })
    });
    if *GRANTED {
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    }
    Ok(())
}

/// True if the process or the system has no more descriptors or memory for sockets.
pub(super) fn is_exhausted(e: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Connects within `limit`.
pub(super) fn dial(to: SocketAddr, limit: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // Before connecting: the window scale is negotiated then.
    prepare(&socket)?;
    socket.connect_timeout(&SockAddr::from(to), limit)?;
    Ok(socket)
}

/// Listens; accepted sockets inherit the buffers.
pub(super) fn listen(at: SocketAddr, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    prepare(&socket)?;
    socket.bind(&SockAddr::from(at))?;
    socket.listen(backlog)?;
    Ok(socket)
}

/// A connection, used by one thread at a time.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) shared: Arc<Interrupt>,
    pub(super) limits: TimeLimits,
    // With keys the head of each message in both directions is followed by a tag, and so is each
    // small payload.
    pub(super) tags: Tags,
    input: Box<[u8]>,
    // Received bytes that were not taken yet are in input[start..end].
    start: usize,
    end: usize,
}

impl Line {
    pub(super) fn new(socket: Socket, stall_ms: u64) -> io::Result<Self> {
        socket.set_tcp_nodelay(true)?;
        half_open::watch(SockRef::from(&socket))?;
        let shared = Arc::new(Interrupt { socket, cut: AtomicBool::new(false) });
        let input = vec![0; INPUT_BYTES].into_boxed_slice();
        let limits = TimeLimits { stall_ms: 0, deadline: Deadline::NEVER };
        let tags = Tags::default();
        let mut line = Self { shared, limits, tags, input, start: 0, end: 0 };
        line.set_stall_ms(stall_ms)?;
        Ok(line)
    }

    /// Changes the limit of the time without progress.
    pub(super) fn set_stall_ms(&mut self, stall_ms: u64) -> io::Result<()> {
        self.limits.stall_ms = stall_ms.max(u64::from(STALL_PARTS));
        let part = Some(Duration::from_millis(self.limits.stall_ms) / STALL_PARTS);
        self.shared.socket.set_read_timeout(part)?;
        self.shared.socket.set_write_timeout(part)
    }

    /// Receives the tag of a head that was received in `parts`; an error if it is wrong.
    pub(super) fn check_tag(&mut self, parts: &[&[u8]]) -> Result<(), Broken> {
        let Some(mut tag) = self.tags.room() else { return Ok(()) };
        self.take(&mut tag)?;
        if self.tags.fits(parts, &tag) { Ok(()) } else { Err(Broken::Forged) }
    }

    /// Receives a verb's payload, and its tag if it is small. After an error (a wrong tag) the
    /// content of `dst` is not valid.
    pub(super) fn take_payload(&mut self, dst: &mut [u8]) -> Result<(), Broken> {
        self.take(dst)?;
        if has_tag(dst.len()) { self.check_tag(&[dst]) } else { Ok(()) }
    }

    /// Receives and drops payloads of these lengths with their tags, which are not checked.
    pub(super) fn discard_payloads(
        &mut self,
        lens: impl Iterator<Item = u64>,
    ) -> Result<(), Broken> {
        let mut bytes = 0;
        for len in lens {
            let tag = if usize::try_from(len).is_ok_and(has_tag) { self.tags.skip() } else { 0 };
            bytes += len + tag as u64;
        }
        self.discard(bytes)
    }

    /// One receive call with both limits. `Ok(0)` is the end of the stream.
    ///
    /// # Safety
    /// `dst` must be writable for `len` bytes.
    unsafe fn receive(&self, dst: *mut u8, len: usize, flags: i32) -> Result<usize, Broken> {
        let fd = self.shared.socket.as_raw_fd();
        let mut idle = 0;
        loop {
            self.limits.in_time()?;
            // SAFETY: the caller's promise; the kernel writes at most `len` bytes.
            let n = unsafe { libc::recv(fd, dst.cast(), len, flags) };
            if n >= 0 {
                return Ok(n as usize);
            }
            self.limits.after_error(&mut idle)?;
        }
    }

    /// Waits up to `idle` for the peer's next byte; false if none came or the peer hung up. Clears
    /// the deadline.
    pub(super) fn wait_begin(&mut self, idle: Duration) -> Result<bool, Broken> {
        self.limits.deadline = Deadline::NEVER;
        // The common case is one call that both waits and receives.
        match self.fill(1) {
            Ok(()) => return Ok(true),
            Err(Broken::Stalled(_)) => {}
            Err(Broken::Closed(_)) if self.start == self.end => return Ok(false),
            Err(e) => return Err(e),
        }
        let left = idle.saturating_sub(Duration::from_millis(self.limits.stall_ms));
        // Too long for the kernel: without a limit.
        let left = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&self.shared.socket, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut fds, left.as_ref()));
        if ready.map_err(|e| broken(e.into()))? == 0 {
            return Ok(false);
        }
        match self.fill(1) {
            Ok(()) => Ok(true),
            Err(Broken::Closed(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What has arrived already, without waiting: None if nothing has, 0 bytes at the end of the
    /// stream. Only before anything else is taken.
    pub(super) fn receive_now(&self, dst: &mut [u8]) -> io::Result<Option<usize>> {
        match retry_on_intr(|| recv(&self.shared.socket, &mut *dst, RecvFlags::DONTWAIT)) {
            Ok((n, _)) => Ok(Some(n)),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a few bytes in full without waiting, or fails.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&self.shared.socket, bytes, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// For poll and epoll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }

    /// Receives until at least `want` bytes (at most the buffer's size) can be taken.
    pub(super) fn fill(&mut self, want: usize) -> Result<(), Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + want > self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < want {
            let room = &mut self.input[self.end..];
            let (dst, len) = (room.as_mut_ptr(), room.len());
            // SAFETY: `room` is our own buffer.
            match unsafe { self.receive(dst, len, 0) }? {
                0 => return Err(Broken::Closed("the peer ended it".to_string())),
                n => self.end += n,
            }
        }
        Ok(())
    }

    /// Takes exactly `dst.len()` bytes into private memory.
    pub(super) fn take(&mut self, dst: &mut [u8]) -> Result<(), Broken> {
        // SAFETY: `dst` is borrowed for us alone.
        unsafe { self.take_raw(dst.as_mut_ptr(), dst.len(), &|| false) }.map(drop)
    }

    /// Takes a structure.
    pub(super) fn take_struct<T: zerocopy::FromBytes>(&mut self) -> Result<T, Broken> {
        let n = size_of::<T>();
        debug_assert!(n <= INPUT_BYTES);
        if self.end - self.start < n {
            self.fill(n)?;
        }
        let at = self.start;
        self.start += n;
        T::read_from_bytes(&self.input[at..at + n])
            .map_err(|_| Broken::Io(io::Error::other("a structure of another size")))
    }

    /// Takes up to `len` bytes that were received already.
    pub(super) fn take_received(&mut self, len: usize) -> &[u8] {
        let n = len.min(self.end - self.start);
        self.start += n;
        &self.input[self.start - n..self.start]
    }

    /// Takes `len` bytes to an address: first what was received already, then directly from the
    /// kernel, piece by piece. Calls `stop` before each piece; returns false if it stopped.
    ///
    /// # Safety
    /// `dst` must be writable for `len` bytes, by us, until this returns.
    pub(super) unsafe fn take_raw(
        &mut self,
        dst: *mut u8,
        len: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, Broken> {
        let mut done = 0;
        while done < len {
            if stop() {
                return Ok(false);
            }
            let left = len - done;
            if self.start == self.end && left < INPUT_BYTES {
                self.fill(1)?;
            }
            let ready = self.take_received(left);
            // SAFETY: done + ready.len() <= len, within what the caller promised.
            let at = unsafe { dst.add(done) };
            if !ready.is_empty() {
                // SAFETY: as above; the input buffer is private and cannot overlap.
                unsafe { std::ptr::copy_nonoverlapping(ready.as_ptr(), at, ready.len()) };
                done += ready.len();
                continue;
            }
            // SAFETY: at most `left` bytes from `at` on.
            match unsafe { self.receive(at, left.min(RECEIVE_BYTES), libc::MSG_WAITALL) }? {
                0 => return Err(Broken::Closed("the peer ended it".to_string())),
                n => done += n,
            }
        }
        Ok(true)
    }

    /// Receives and drops `len` bytes.
    fn discard(&mut self, mut len: u64) -> Result<(), Broken> {
        while len > 0 {
            if self.start == self.end {
                self.fill(1)?;
            }
            let n = len.min((self.end - self.start) as u64);
            self.start += n as usize;
            len -= n;
        }
        Ok(())
    }

    /// True if the peer has closed an unused connection, or sent unexpected bytes.
    pub(super) fn is_stale(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.shared.socket, &mut [0; 1], flags).err() != Some(Errno::AGAIN)
    }

    /// Ends sending: the peer reads what was sent, then end of stream.
    pub(super) fn finish_sending(&self) {
        let _ = self.shared.socket.shutdown(Shutdown::Write);
    }

    /// Sends pieces in order, in as few system calls as possible.
    pub(super) fn send<'p>(
        &self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<(), Broken> {
        let mut out = Gather::new(&self.shared.socket, self.limits);
        for piece in pieces {
            // SAFETY: borrowed until the last send has returned.
            unsafe { out.add(piece.as_ptr(), piece.len()) }?;
        }
        out.send(false)
    }

    /// Sends a message without payload: a structure, its text, and their tag.
    pub(super) fn send_head(&mut self, head: &[u8], text: &[u8]) -> Result<(), Broken> {
        let tag = self.tags.next(&[head, text]);
        self.send([head, text, tag.bytes()])
    }

    /// Starts a send of several pieces, with the tags to use for what is sent.
    pub(super) fn gather_tagged(&mut self) -> (Gather<'_>, &mut Tags) {
        (Gather::new(&self.shared.socket, self.limits), &mut self.tags)
    }
}

/// As an ordinary stream, for the handshake that begins every connection.
impl Read for Line {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            self.fill(1)?;
        }
        let ready = self.take_received(dst.len());
        dst[..ready.len()].copy_from_slice(ready);
        Ok(ready.len())
    }
}

impl Write for Line {
    fn write(&mut self, src: &[u8]) -> io::Result<usize> {
        self.send([src])?;
        Ok(src.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
