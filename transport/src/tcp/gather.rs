//! Sends pieces of memory with as few system calls as possible, without copying large ones.

use super::broken::{Broken, TimeLimits};
use socket2::Socket;
use std::os::fd::AsRawFd;

/// Slices handed to the kernel in one call.
const GATHER_SLICES: usize = 64;
/// Bytes passed to the kernel in one call. Measured on loopback between cold memory of 64 MiB at
/// both ends: sends of 64 MiB reach half the throughput of sends of 0.5 to 1 MiB, and so do sends
/// of 128 KiB.
const SEND_BYTES: usize = 512 << 10;

/// Pieces collected for as few send calls as possible.
pub(super) struct Gather<'a> {
    socket: &'a Socket,
    limits: TimeLimits,
    slices: [libc::iovec; GATHER_SLICES],
    n: usize,
}

impl<'a> Gather<'a> {
    pub(super) fn new(socket: &'a Socket, limits: TimeLimits) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { socket, limits, slices: [none; GATHER_SLICES], n: 0 }
    }

    /// Adds a piece, which may be empty; sends first if all slices are used.
    ///
    /// # Safety
    /// `src` must stay readable for `len` bytes until `send` returns or the value is dropped.
    pub(super) unsafe fn add(&mut self, src: *const u8, len: usize) -> Result<(), Broken> {
        if len == 0 {
            return Ok(());
        }
        if self.n > 0 {
            // Small pieces lie next to each other in one buffer and share one slice.
            let last = &mut self.slices[self.n - 1];
            if last.iov_base.cast::<u8>().wrapping_add(last.iov_len).cast_const() == src {
                last.iov_len += len;
                return Ok(());
            }
        }
        if self.n == GATHER_SLICES {
            self.send(true)?;
        }
        self.slices[self.n] = libc::iovec { iov_base: src.cast_mut().cast(), iov_len: len };
        self.n += 1;
        Ok(())
    }

    /// Sends everything added. `more`: further data follows at once, so a short segment may wait.
    pub(super) fn send(&mut self, more: bool) -> Result<(), Broken> {
        let fd = self.socket.as_raw_fd();
        let mut first = 0;
        let mut idle = 0;
        while first < self.n {
            self.limits.in_time()?;
            let (end, cut, whole) = self.piece(first);
            // A short segment waits for what follows. A large piece is pushed: holding back its end
            // halves the throughput.
            let more = more && !whole;
            let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
            // SAFETY: a msghdr of zeros is a valid empty one.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.slices[first..end].as_mut_ptr();
            message.msg_iovlen = end - first;
            self.slices[end - 1].iov_len -= cut;
            // SAFETY: slices[first..end] name memory that `add` was promised to be readable.
            let sent = unsafe { libc::sendmsg(fd, &raw const message, flags) };
            self.slices[end - 1].iov_len += cut;
            if sent < 0 {
                self.limits.after_error(&mut idle)?;
                continue;
            }
            // A blocking send ends early at its time limit, so part of its time was spent waiting.
            idle = 1;
            first = self.advance(first, sent as usize);
        }
        self.n = 0;
        Ok(())
    }

    /// What one call sends: the end of its slices, the bytes of the last slice left for the next
    /// call, and whether the call is at its maximum.
    fn piece(&self, first: usize) -> (usize, usize, bool) {
        let mut bytes = 0;
        for (i, slice) in self.slices[first..self.n].iter().enumerate() {
            bytes += slice.iov_len;
            if bytes >= SEND_BYTES {
                return (first + i + 1, bytes - SEND_BYTES, true);
            }
        }
        (self.n, 0, false)
    }

    /// Drops the first `sent` bytes; returns the index of the first slice with bytes left.
    fn advance(&mut self, mut first: usize, mut sent: usize) -> usize {
        while first < self.n && sent >= self.slices[first].iov_len {
            sent -= self.slices[first].iov_len;
            first += 1;
        }
        if sent > 0 {
            let s = &mut self.slices[first];
            // SAFETY: sent < iov_len: still inside the slice.
            s.iov_base = unsafe { s.iov_base.cast::<u8>().add(sent) }.cast();
            s.iov_len -= sent;
        }
        first
    }
}
