//! Posts a batch of verbs as chains of requests on one pair, in order. Callers' bytes go through
//! registered buffers, or directly if the device has registered them. A change waits for the reads
//! and atomics before it (a fence in the request); the pair itself provides the rest of the order
//! [I4].

use super::lane::{CHAIN, Lane, Opcode, Request};
use super::region::Registration;
use super::staging::{BUFFER_BYTES, Lease, Staging};
use crate::error::TransportError;
use crate::fabric::{Access, RemoteRange};
use crate::verbs::Op;
use nkv_store::clock::{BootClock, Clock};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Cache line size in bytes.
const LINE: u64 = 64;
/// Distance of values in a buffer: no two share a line.
pub(super) const SPACING: usize = LINE as usize;
/// A smaller piece does not justify a request of its own.
pub(super) const SMALLEST_PIECE: usize = 4 << 10;
/// Fewer bytes are copied, even if the device has registered their memory.
const DIRECT_FROM: usize = 4 << 10;
/// Most bytes of one chain that are sent without a copy: a chain has a time limit.
pub(super) const DIRECT_BYTES: usize = 8 << 20;
/// Chains of one batch in flight at once.
pub(super) const FLYING: usize = 2;
/// Time limit of a post, shared with other posts, even if there is progress all the time [I18].
const LONGEST: Duration = Duration::from_secs(10);
/// Rate in bytes per second at which the time limit grows with the post's length.
const SLOWEST_BYTES_PER_S: u64 = 256 << 10;

/// Point in time at which a post of `bytes` that begins now has taken too long, even with progress.
pub(super) fn limit_ns(bytes: u64) -> u64 {
    let moving = Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWEST_BYTES_PER_S);
    BootClock.now_ns().saturating_add((LONGEST + moving).as_nanos() as u64)
}

/// One connection to a segment: a pair, and the buffers of its device.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) lane: Lane,
    pub(super) staging: Arc<Staging>,
    // Where to read payload back, if the owner wants that.
    read_back: Option<u64>,
}

/// Bytes that arrive in a buffer and are copied to the caller's memory.
struct CopyBack {
    from: *const u8,
    to: *mut u8,
    len: usize,
    // What an atomic found.
    is_result: bool,
}

/// Lies where an atomic's result comes, until the device has written it: a word that no segment has
/// but by chance.
static UNWRITTEN: LazyLock<u64> = LazyLock::new(nkv_store::random_u64);

/// Requests posted together, and the buffer that they use.
struct Chain {
    lease: Lease,
    used: usize,
    // Bytes of callers' memory that the device accesses directly.
    direct: usize,
    requests: Vec<Request>,
    landings: Vec<CopyBack>,
    // What requests use directly stays registered until they have ended.
    held: Vec<Arc<Registration>>,
}

impl Chain {
    fn new(lease: Lease) -> Self {
        Self {
            lease,
            used: 0,
            direct: 0,
            requests: Vec::new(),
            landings: Vec::new(),
            held: Vec::new(),
        }
    }
}

/// A batch in flight. Its operations' memory is borrowed for longer than it lives, and its drop
/// waits for every chain that was sent, unless its pair is destroyed.
pub(super) struct Batch<'a> {
    path: &'a Path,
    until_ns: u64,
    open: Option<Chain>,
    flying: VecDeque<(u64, Chain)>,
    // A read or atomic is in flight that the next change must not overtake.
    reads: bool,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            // Given up early: its buffers are returned only when the device no longer uses them.
            self.path.lane.break_off("a batch was given up");
        }
    }
}

impl<'a> Batch<'a> {
    /// With its first buffer, if there is one already. It fails if it is not complete at
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
                // A publish word: this pair wrote its payload, by this batch or an earlier one.
                self.read_payload_back()?;
                self.add_atomic(*offset, Opcode::CompareSwap(*expect, *new), old)
            }
            // The answer to a read comes after everything before it has reached memory. What a
            // device holds is on the host by now.
            Op::Flush | Op::ReadToDevice { .. } | Op::WriteFromDevice { .. } => {
                self.read_word(0)?;
                self.read_payload_back()
            }
        }
    }

    /// Where payload is in another memory than headers, its answer comes after the payload that
    /// was written before has landed; a read of a header would not show that.
    fn read_payload_back(&mut self) -> Result<(), TransportError> {
        self.path.read_back.map_or(Ok(()), |offset| self.read_word(offset))
    }

    /// A read whose word nobody needs, but its answer.
    fn read_word(&mut self, offset: u64) -> Result<(), TransportError> {
        let (_, span) = self.room(offset, 8)?;
        self.push(Opcode::Read, span);
        Ok(())
    }

    /// Appends a write to the previous one if it continues it within the same line, as a header's
    /// fields and its publish word do: a request costs as much as sending a whole line.
    fn join(&mut self, offset: u64, src: &[u8]) -> bool {
        let Some(chain) = &mut self.open else { return false };
        // Not for a request that uses a caller's memory directly.
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
        if let Some(known) = self.path.known(src.as_ptr(), src.len()) {
            let local = (src.as_ptr().cast_mut(), src.len());
            return self.add_direct(Opcode::Write, offset, local, &known);
        }
        while !src.is_empty() {
            let (chain, span) = self.room(offset, src.len())?;
            let local = chain.lease.address(chain.used);
            // SAFETY: `room` gave `span.len` bytes there, which nobody else uses; `src` has as
            // many.
            unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), local, span.len) };
            self.push(Opcode::Write, span);
            src = &src[span.len..];
            offset += span.len as u64;
        }
        Ok(())
    }

    /// Requests directly between a caller's registered memory and the other end. The operation
    /// borrows that memory until the batch has ended or its pair is destroyed.
    fn add_direct(
        &mut self,
        does: Opcode,
        offset: u64,
        (local, len): (*mut u8, usize),
        known: &Arc<Registration>,
    ) -> Result<(), TransportError> {
        let mut done = 0;
        while done < len {
            let (path, want) = (self.path, (len - done).min(BUFFER_BYTES));
            let chain = self.chain(|c| c.requests.len() >= CHAIN || c.direct >= DIRECT_BYTES)?;
            let span = path.span(offset + done as u64, want)?;
            chain.direct += span.len;
            chain.held.push(known.clone());
            // Inside `local`, by the loop's bounds.
            self.request(does, (local.wrapping_add(done), known.local_key()), span);
            done += span.len;
        }
        Ok(())
    }

    fn add_read(&mut self, mut offset: u64, mut dst: &mut [u8]) -> Result<(), TransportError> {
        if let Some(known) = self.path.known(dst.as_ptr(), dst.len()) {
            return self.add_direct(Opcode::Read, offset, (dst.as_mut_ptr(), dst.len()), &known);
        }
        while !dst.is_empty() {
            let (chain, span) = self.room(offset, dst.len())?;
            let local = chain.lease.address(chain.used);
            let (now, later) = std::mem::take(&mut dst).split_at_mut(span.len);
            let to = now.as_mut_ptr();
            chain.landings.push(CopyBack { from: local, to, len: span.len, is_result: false });
            self.push(Opcode::Read, span);
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
        // SAFETY: the next 8 bytes of a buffer that this chain holds, and no request uses yet.
        unsafe { local.cast::<u64>().write_unaligned(*UNWRITTEN) };
        chain.landings.push(CopyBack { from: local, to, len: 8, is_result: true });
        self.push(does, span);
        Ok(())
    }

    /// Adds a request between `span` and the next bytes of the open chain's buffer.
    fn push(&mut self, does: Opcode, span: RemoteSpan) {
        let Some(chain) = &mut self.open else { return };
        let buffer = (chain.lease.address(chain.used), chain.lease.key());
        chain.used += span.len.next_multiple_of(SPACING);
        self.request(does, buffer, span);
    }

    fn request(&mut self, does: Opcode, (local, local_key): (*mut u8, u32), span: RemoteSpan) {
        let fence = does != Opcode::Read && std::mem::take(&mut self.reads);
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

    /// Buffer space for the next request of at most `want` bytes at `offset`, in the open chain or
    /// in a new one.
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

    /// The open chain, or a new one if there is none or it is full.
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
                // Waiting for a chain returns a buffer.
                None if !self.flying.is_empty() => self.land()?,
                None => return self.path.staging.take(self.until_ns),
            }
        }
    }

    /// Sends the open chain, once few enough are in flight.
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

    /// Waits for the oldest chain, and copies out what it read.
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
            // SAFETY: as above; a result has 8 bytes.
            if l.is_result && unsafe { l.from.cast::<u64>().read_unaligned() } == *UNWRITTEN {
                return Err(TransportError::Timeout(
                    "the device reports an atomic as done and wrote no result: it may have been \
                     executed"
                        .to_string(),
                ));
            }
        }
        Ok(())
    }

    /// Sends the open chain, and waits for everything that was sent.
    pub(super) fn finish(&mut self) -> Result<(), TransportError> {
        self.send()?;
        while !self.flying.is_empty() {
            self.land()?;
        }
        self.reads = false;
        Ok(())
    }

    /// Whether `finish` returns without waiting.
    pub(super) fn is_over(&self) -> bool {
        self.open.is_none() && self.flying.iter().all(|(id, _)| self.path.lane.has_ended(*id))
    }
}

/// A range of remote memory.
#[derive(Debug, Clone, Copy)]
struct RemoteSpan {
    address: u64,
    key: u32,
    len: usize,
}

impl Path {
    pub(super) fn new(lane: Lane, staging: Arc<Staging>) -> Self {
        let wants = |r: &&RemoteRange| r.access == Access::PayloadReadBack;
        let read_back = lane.ranges.iter().find(wants).map(|r| r.offset);
        Self { lane, staging, read_back }
    }

    /// The registration of callers' memory, if avoiding the copy is worth it.
    pub(super) fn known(&self, at: *const u8, len: usize) -> Option<Arc<Registration>> {
        (len >= DIRECT_FROM).then(|| self.staging.known(at, len)).flatten()
    }

    /// Sends a read of a word and an empty write, to test whether either is answered.
    pub(super) fn begin_try(&self, until_ns: u64) -> Result<Batch<'_>, TransportError> {
        let mut batch = Batch::new(self, None, until_ns);
        batch.add(&mut Op::Flush)?;
        if let Some(to) = self.lane.ranges.iter().find(|range| range.access.writes()) {
            let (_, span) = batch.room(to.offset, 8)?;
            batch.push(Opcode::Write, RemoteSpan { len: 0, ..span });
        }
        batch.send()?;
        Ok(batch)
    }

    /// Remote address of `want` bytes at `offset`; fewer if a range ends before.
    fn span(&self, offset: u64, want: usize) -> Result<RemoteSpan, TransportError> {
        span_in(&self.lane.ranges, offset, want)
    }
}

/// The part of `want` bytes at `offset` that one range has: a request never crosses a border.
fn span_in(ranges: &[RemoteRange], offset: u64, want: usize) -> Result<RemoteSpan, TransportError> {
    let inside = |r: &&RemoteRange| offset.checked_sub(r.offset).is_some_and(|at| at < r.len);
    let range = ranges.iter().find(inside).ok_or_else(|| {
        TransportError::OutOfBounds(format!("no registered memory at offset {offset}"))
    })?;
    let at = offset - range.offset;
    let len = (range.len - at).min(want as u64) as usize;
    Ok(RemoteSpan { address: range.address + at, key: range.key, len })
}

#[cfg(test)]
mod tests;
