//! A batch of verbs as chains of requests on one pair, in order; callers' bytes go through
//! registered buffers, or straight where the device knows them. What changes memory waits for the
//! reads and atomics before it (a fence in the request), the rest of the order is the pair's own
//! [I4].

use super::lane::{CHAIN, Lane, Opcode, Request};
use super::staging::{BUFFER_BYTES, Lease, Staging};
use crate::error::TransportError;
use crate::verbs::Op;
use nkv_store::clock::{BootClock, Clock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that memory and devices handle at once.
const LINE: u64 = 64;
/// Where a value begins in a buffer: no two share a line.
pub(super) const SPACING: usize = LINE as usize;
/// Not worth a request of its own.
pub(super) const SMALLEST_PIECE: usize = 4 << 10;
/// Fewer bytes are copied, even if the device knows where they are.
const DIRECT_FROM: usize = 4 << 10;
/// Bytes of one chain that go without a copy: it has a time limit.
pub(super) const DIRECT_BYTES: usize = 8 << 20;
/// Chains of one batch on their way at once.
pub(super) const FLYING: usize = 2;
/// How long a post may take, beside those of everybody else, where something goes on all the time
/// [I18].
const LONGEST: Duration = Duration::from_secs(10);
/// And as much longer as its bytes take at this rate.
const SLOWEST_BYTES_PER_S: u64 = 256 << 10;

/// When a post of so many bytes that begins now has taken too long, even if something went on all
/// the time.
pub(super) fn limit_ns(bytes: u64) -> u64 {
    let moving = Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWEST_BYTES_PER_S);
    BootClock.now_ns().saturating_add((LONGEST + moving).as_nanos() as u64)
}

/// One way to a segment: a pair, and the buffers of its device.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) lane: Lane,
    pub(super) staging: Arc<Staging>,
}

/// Bytes that arrive in a buffer and belong elsewhere.
struct CopyBack {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

/// Requests that go together, and the buffer that they use.
struct Chain {
    lease: Lease,
    used: usize,
    // Bytes of callers' memory that the device takes or brings itself.
    direct: usize,
    requests: Vec<Request>,
    landings: Vec<CopyBack>,
}

impl Chain {
    fn new(lease: Lease) -> Self {
        Self { lease, used: 0, direct: 0, requests: Vec::new(), landings: Vec::new() }
    }
}

/// A batch on its way. The memory of its operations is borrowed for longer than it lives, and it
/// waits for every chain that it sent before it goes, unless its pair is destroyed.
pub(super) struct Batch<'a> {
    path: &'a Path,
    until_ns: u64,
    open: Option<Chain>,
    flying: VecDeque<(u64, Chain)>,
    // A read or atomic is on its way that the next change must not overtake.
    reads: bool,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            // Given up half way: its buffers go back only when the device has let go of them.
            self.path.lane.break_off("a batch was given up");
        }
    }
}

impl<'a> Batch<'a> {
    /// With its first buffer, if there is one already. It has failed if it is not done by
    /// `until_ns`.
    pub(super) fn new(path: &'a Path, lease: Option<Lease>, until_ns: u64) -> Self {
        let open = lease.map(Chain::new);
        Self { path, until_ns, open, flying: VecDeque::new(), reads: false }
    }

    pub(super) fn add(&mut self, op: &mut Op<'_>) -> Result<(), TransportError> {
        match op {
            Op::Read { offset, dst } => self.add_read(*offset, dst),
            Op::Write { offset, src } => self.add_write(*offset, src),
            Op::Store { offset, value } => self.add_write(*offset, &value.to_ne_bytes()),
            Op::FetchAdd { offset, add, old } => {
                self.add_atomic(*offset, Opcode::FetchAdd(*add), old)
            }
            Op::CompareSwap { offset, expect, new, old } => {
                self.add_atomic(*offset, Opcode::CompareSwap(*expect, *new), old)
            }
            // A read is answered after everything before it has reached memory.
            Op::Flush => self.add_read(0, &mut [0; 8]).map(|()| self.drop_last_landing()),
        }
    }

    /// What goes on where the last write of a line ended travels with it: a header's fields and its
    /// publish word. A request costs as much as all that a line holds.
    fn join(&mut self, offset: u64, src: &[u8]) -> bool {
        let Some(chain) = &mut self.open else { return false };
        // Not one that takes a caller's memory as it is.
        let ours = chain.lease.key();
        let joins = |r: &&mut Request| r.does == Opcode::Write && r.local_key == ours;
        let Some(last) = chain.requests.last_mut().filter(joins) else { return false };
        let Ok(span) = self.path.span(offset, src.len()) else { return false };
        let (begun, at) = (last.len as usize, (span.address % LINE) as usize);
        let goes_on = last.remote + u64::from(last.len) == span.address;
        let in_line = begun <= at && at + src.len() <= LINE as usize;
        if !goes_on || !in_line || span.len < src.len() || span.key != last.remote_key {
            return false;
        }
        // SAFETY: every value has whole lines of the buffer, and this one ends within its first.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), last.local.add(begun), src.len()) };
        last.len += src.len() as u32;
        true
    }

    fn add_write(&mut self, mut offset: u64, mut src: &[u8]) -> Result<(), TransportError> {
        if self.join(offset, src) {
            return Ok(());
        }
        if let Some(key) = self.path.known(src.as_ptr(), src.len()) {
            return self.add_direct(
                Opcode::Write,
                offset,
                (src.as_ptr().cast_mut(), src.len()),
                key,
            );
        }
        while !src.is_empty() {
            let (chain, span) = self.room(offset, src.len())?;
            let local = chain.lease.address(chain.used);
            // SAFETY: `room` gave `span.len` bytes there, which nobody else uses; `src` has as
            // many.
            unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), local, span.len) };
            self.push(Opcode::Write, local, span);
            src = &src[span.len..];
            offset += span.len as u64;
        }
        Ok(())
    }

    /// Requests straight between a caller's registered memory and the other end. The operation
    /// borrows that memory until the batch has ended or its pair is destroyed.
    fn add_direct(
        &mut self,
        does: Opcode,
        offset: u64,
        (local, len): (*mut u8, usize),
        key: u32,
    ) -> Result<(), TransportError> {
        let mut done = 0;
        while done < len {
            self.chain(|c| c.requests.len() >= CHAIN || c.direct >= DIRECT_BYTES)?;
            let want = (len - done).min(BUFFER_BYTES);
            let span = self.path.span(offset + done as u64, want)?;
            // In the bounds of `local`, by the loop.
            self.request(does, (local.wrapping_add(done), key), span);
            if let Some(chain) = &mut self.open {
                chain.direct += span.len;
            }
            done += span.len;
        }
        Ok(())
    }

    fn add_read(&mut self, mut offset: u64, mut dst: &mut [u8]) -> Result<(), TransportError> {
        if let Some(key) = self.path.known(dst.as_ptr(), dst.len()) {
            return self.add_direct(Opcode::Read, offset, (dst.as_mut_ptr(), dst.len()), key);
        }
        while !dst.is_empty() {
            let (chain, span) = self.room(offset, dst.len())?;
            let local = chain.lease.address(chain.used);
            let (now, later) = std::mem::take(&mut dst).split_at_mut(span.len);
            chain.landings.push(CopyBack { from: local, to: now.as_mut_ptr(), len: span.len });
            self.push(Opcode::Read, local, span);
            dst = later;
            offset += span.len as u64;
        }
        Ok(())
    }

    fn add_atomic(
        &mut self,
        offset: u64,
        does: Opcode,
        old: &mut u64,
    ) -> Result<(), TransportError> {
        let (chain, span) = self.room(offset, 8)?;
        let local = chain.lease.address(chain.used);
        let to = std::ptr::from_mut(old).cast();
        chain.landings.push(CopyBack { from: local, to, len: 8 });
        self.push(does, local, span);
        Ok(())
    }

    fn drop_last_landing(&mut self) {
        if let Some(chain) = &mut self.open {
            chain.landings.pop();
        }
    }

    /// A request between the open chain's buffer and `span`.
    fn push(&mut self, does: Opcode, local: *mut u8, span: RemoteSpan) {
        let Some(key) = self.open.as_ref().map(|chain| chain.lease.key()) else { return };
        self.request(does, (local, key), span);
        if let Some(chain) = &mut self.open {
            chain.used += span.len.next_multiple_of(SPACING);
        }
    }

    fn request(&mut self, does: Opcode, (local, local_key): (*mut u8, u32), span: RemoteSpan) {
        let changes = does != Opcode::Read;
        let fence = changes && self.reads;
        if fence {
            self.reads = false;
        }
        self.reads |= does != Opcode::Write;
        let Some(chain) = &mut self.open else { return };
        chain.requests.push(Request {
            does,
            local,
            local_key,
            len: span.len as u32,
            remote: span.address,
            remote_key: span.key,
            fence,
        });
    }

    /// Room for the next request of at most `want` bytes at `offset`: in the open chain, or in a
    /// new one.
    fn room(
        &mut self,
        offset: u64,
        want: usize,
    ) -> Result<(&mut Chain, RemoteSpan), TransportError> {
        let full = |chain: &Chain| {
            let left = BUFFER_BYTES - chain.used;
            chain.requests.len() >= CHAIN || left < want.min(SMALLEST_PIECE)
        };
        let path = self.path;
        let chain = self.chain(full)?;
        let span = path.span(offset, want.min(BUFFER_BYTES - chain.used))?;
        Ok((chain, span))
    }

    /// The open chain, or a new one where there is none or it is full.
    fn chain(&mut self, full: impl Fn(&Chain) -> bool) -> Result<&mut Chain, TransportError> {
        if self.open.as_ref().is_some_and(full) {
            self.send()?;
        }
        let chain = match self.open.take() {
            Some(chain) => chain,
            None => Chain::new(self.another_buffer()?),
        };
        Ok(self.open.insert(chain))
    }

    fn another_buffer(&mut self) -> Result<Lease, TransportError> {
        loop {
            match self.path.staging.try_take()? {
                Some(lease) => return Ok(lease),
                // Gives one back.
                None if !self.flying.is_empty() => self.land()?,
                None => return self.path.staging.take(self.until_ns),
            }
        }
    }

    /// Sends the open chain, once few enough are on their way.
    pub(super) fn send(&mut self) -> Result<(), TransportError> {
        while self.flying.len() >= FLYING {
            self.land()?;
        }
        let Some(chain) = self.open.take() else { return Ok(()) };
        if chain.requests.is_empty() {
            return Ok(());
        }
        let id = self.path.lane.submit(&chain.requests, self.until_ns)?;
        self.flying.push_back((id, chain));
        Ok(())
    }

    /// Waits for the chain that went first, and brings home what it read.
    fn land(&mut self) -> Result<(), TransportError> {
        let Some((id, _)) = self.flying.front() else { return Ok(()) };
        let ended = self.path.lane.wait(*id, self.until_ns);
        let Some((_, chain)) = self.flying.pop_front() else { return Ok(()) };
        ended?;
        for l in &chain.landings {
            // SAFETY: the chain is done: the device wrote `len` bytes to `from`, in a buffer that
            // is still held, and `to` is memory of an operation that is borrowed for longer than
            // this batch.
            unsafe { std::ptr::copy_nonoverlapping(l.from, l.to, l.len) };
        }
        Ok(())
    }

    /// Sends what is open, and waits for everything that was sent.
    pub(super) fn finish(&mut self) -> Result<(), TransportError> {
        self.send()?;
        while !self.flying.is_empty() {
            self.land()?;
        }
        self.reads = false;
        Ok(())
    }

    /// Whether `finish` has nothing to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.open.is_none() && self.flying.iter().all(|(id, _)| self.path.lane.has_ended(*id))
    }
}

/// A piece of remote memory.
#[derive(Debug, Clone, Copy)]
struct RemoteSpan {
    address: u64,
    key: u32,
    len: usize,
}

impl Path {
    /// The key of callers' memory that the device knows, where sparing the copy is worth it.
    pub(super) fn known(&self, at: *const u8, len: usize) -> Option<u32> {
        (len >= DIRECT_FROM).then(|| self.staging.key_of(at, len)).flatten()
    }

    /// Sends a read of a word and a write of nothing: is either answered?
    pub(super) fn begin_try<'a>(
        &'a self,
        word: &'a mut [u8; 8],
        until_ns: u64,
    ) -> Result<Batch<'a>, TransportError> {
        let mut batch = Batch::new(self, None, until_ns);
        batch.add_read(0, word)?;
        if let Some(to) = self.lane.ranges.iter().find(|range| range.access.writes()) {
            let (chain, span) = batch.room(to.offset, 8)?;
            let local = chain.lease.address(chain.used);
            batch.push(Opcode::Write, local, RemoteSpan { len: 0, ..span });
        }
        batch.send()?;
        Ok(batch)
    }

    /// Where `want` bytes at `offset` lie for the device there; fewer where a range ends.
    fn span(&self, offset: u64, want: usize) -> Result<RemoteSpan, TransportError> {
        let inside = |r: &&crate::fabric::RemoteRange| {
            offset.checked_sub(r.offset).is_some_and(|at| at < r.len)
        };
        let range = self.lane.ranges.iter().find(inside).ok_or_else(|| {
            TransportError::OutOfBounds(format!("no registered memory at offset {offset}"))
        })?;
        let at = offset - range.offset;
        let len = (range.len - at).min(want as u64) as usize;
        Ok(RemoteSpan { address: range.address + at, key: range.key, len })
    }
}
