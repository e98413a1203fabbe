//! Large reads by io_uring: several parts are in flight at once, and the first ones can be checked
//! while the disk gives the others.

use super::plain;
use crate::piece::{BLOCK, Piece, bytes_of};
use crate::sync::lock;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

/// Parts of one read that are in flight at a time.
const DEPTH: usize = 2;
/// Shortest part: below it the disk's time for a request counts for more than its bytes.
const LEAST: u64 = 256 << 10;
/// Longest part.
const MOST: u64 = 256 << 10;
/// Rings that are kept, each for one thread at a time.
const MOST_KEPT: usize = 16;
/// Pause after the kernel refused to wait for what it is doing.
const PAUSE: Duration = Duration::from_millis(1);

/// Rings that are used again: making one costs more than a read.
pub(super) struct Rings(Mutex<Vec<IoUring>>);

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rings")
    }
}

impl Rings {
    /// None where the kernel has no io_uring, or does not let this process use it.
    pub fn new() -> Option<Self> {
        match working_ring() {
            Ok(ring) => Some(Self(Mutex::new(vec![ring]))),
            Err(error) => {
                tracing::debug!(%error, "no io_uring: the SSD tier reads by preadv");
                None
            }
        }
    }

    /// As [`super::BlockFile::read_along`].
    pub fn read_along(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        into: &mut [Piece<'_>],
        filled: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let total = bytes_of(into);
        let ring = if total < 2 * LEAST { None } else { self.take() };
        let Some(mut ring) = ring else {
            plain::read(file, at, into)?;
            filled(total);
            return Ok(());
        };
        Reading::new(&mut ring, file, parts_of(at, into)).run(filled)?;
        let mut kept = lock(&self.0);
        if kept.len() < MOST_KEPT {
            kept.push(ring);
        }
        Ok(())
    }

    fn take(&self) -> Option<IoUring> {
        let kept = lock(&self.0).pop();
        kept.or_else(|| IoUring::new(DEPTH as u32).ok())
    }
}

/// A ring that has carried something out: a sandbox may refuse the second call alone.
fn working_ring() -> io::Result<IoUring> {
    let mut ring = IoUring::new(DEPTH as u32)?;
    // SAFETY: it does nothing.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let done = ring.completion().count();
    if done == 1 { Ok(ring) } else { Err(io::Error::other("it completed nothing")) }
}

/// A range of the file, and where its bytes go.
struct Part {
    at: u64,
    len: u64,
    vectors: Vec<libc::iovec>,
    done: bool,
}

/// Cuts a read into parts of about the same length.
fn parts_of(at: u64, into: &[Piece<'_>]) -> Vec<Part> {
    let total = bytes_of(into);
    let count = (total / (total / 4).clamp(LEAST, MOST)).max(1);
    let len = total.div_ceil(count).next_multiple_of(BLOCK as u64);
    let mut parts: Vec<Part> = Vec::with_capacity(count as usize);
    let mut next = at;
    for piece in into {
        let mut start = 0;
        while start < piece.len() {
            let room = parts.last().map_or(0, |part| len - part.len);
            if room == 0 {
                parts.push(Part { at: next, len: 0, vectors: Vec::new(), done: false });
                continue;
            }
            let some = (piece.len() - start).min(room as usize);
            if let Some(part) = parts.last_mut() {
                let base = piece.start().as_ptr().wrapping_byte_add(start).cast();
                part.vectors.push(libc::iovec { iov_base: base, iov_len: some });
                part.len += some as u64;
            }
            next += some as u64;
            start += some;
        }
    }
    parts
}

/// The parts of one read. The kernel writes to them until they have completed, so it does not go
/// before that, also when a panic ends it.
struct Reading<'a> {
    ring: &'a mut IoUring,
    file: BorrowedFd<'a>,
    parts: Vec<Part>,
    submitted: usize,
    in_flight: usize,
    failed: Option<io::Error>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            self.complete();
        }
    }
}

impl<'a> Reading<'a> {
    fn new(ring: &'a mut IoUring, file: BorrowedFd<'a>, parts: Vec<Part>) -> Self {
        Self { ring, file, parts, submitted: 0, in_flight: 0, failed: None }
    }

    fn run(mut self, filled: &mut dyn FnMut(u64)) -> io::Result<()> {
        let (mut reported, mut bytes) = (0, 0);
        loop {
            self.submit();
            if self.in_flight == 0 {
                break;
            }
            self.complete();
            while self.failed.is_none() && self.parts.get(reported).is_some_and(|part| part.done) {
                bytes += self.parts[reported].len;
                reported += 1;
                // The disk has something to do meanwhile.
                self.submit();
                filled(bytes);
            }
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Queues parts, and hands them to the kernel, as long as there are some and room for them.
    fn submit(&mut self) {
        let before = self.in_flight;
        while self.failed.is_none() && self.in_flight < DEPTH {
            let Some(part) = self.parts.get(self.submitted) else { break };
            let vectors = part.vectors.as_ptr();
            let file = types::Fd(self.file.as_raw_fd());
            let entry = opcode::Readv::new(file, vectors, part.vectors.len() as u32)
                .offset(part.at)
                .build()
                .user_data(self.submitted as u64);
            // SAFETY: file, vectors and the pieces they name are borrowed while `self` lives, which
            // outlives the read: see `Drop`. Nothing of `parts` moves its vectors meanwhile.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                break;
            }
            self.submitted += 1;
            self.in_flight += 1;
        }
        if self.in_flight > before {
            // What the kernel does not take now, it takes when it is waited for.
            let _ = self.ring.submit();
        }
    }

    /// Waits for at least one part, and takes what has completed.
    fn complete(&mut self) {
        if let Err(error) = self.ring.submit_and_wait(1)
            && error.kind() != io::ErrorKind::Interrupted
        {
            std::thread::sleep(PAUSE);
        }
        for completed in self.ring.completion() {
            self.in_flight -= 1;
            let part = &mut self.parts[completed.user_data() as usize];
            let outcome = match completed.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                done if done as u64 == part.len => Ok(()),
                // A part of the part: a signal came, or the file ends.
                _ => plain::read_vectors(self.file, part.at, &mut part.vectors),
            };
            part.done = outcome.is_ok();
            if let Err(error) = outcome {
                self.failed.get_or_insert(error);
            }
        }
    }
}
