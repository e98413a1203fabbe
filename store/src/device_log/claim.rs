//! The producer's side: one fetch-and-add claims bytes, slot and epoch, and this file decides, as
//! values, what the claim is good for. It posts nothing and waits for nothing: the caller posts the
//! verbs over its transport and decides how long a claim waits for room.
//!
//! The steps of one put: [`ControlLine::read`], [`LogPut::room`], `OpenClaims::enter`,
//! [`LogPut::fetch_add`], [`LogPut::claimed`] with `OpenClaim::note`, then [`Claim::next`] until it
//! returns where to write. A producer that cannot complete these steps uses the plan path.

use super::LogLayout;
use crate::key::KeyId;
use crate::layout::{HeapCtl, PRODUCER_FIELDS, PUBLISH_OFF};
use crate::object::{ObjectDesc, Publication, SetMark, dead, producer_fields};
use crate::op::Op;
use std::mem::offset_of;
use zerocopy::IntoBytes;

/// Segment offset of the word of claimable bytes.
pub const HEAP_LIMIT_OFF: u64 = offset_of!(HeapCtl, heap_limit) as u64;
/// Segment offset of the word of claimed bytes, the only word with several writers [I1].
pub const BUMP_PTR_OFF: u64 = offset_of!(HeapCtl, bump_ptr) as u64;

/// The first 64 bytes of a segment, with `heap_limit` and `bump_ptr`. If a transport splits the
/// read, it reads `heap_limit` first; both words only grow.
#[derive(Debug, Clone, Copy)]
pub struct ControlLine([u64; 8]);

impl ControlLine {
    /// Not read yet: it permits no claim.
    pub fn unread() -> ControlLine {
        ControlLine([0; 8])
    }

    /// From values known before, possibly read at different times: both words only grow, so neither
    /// value is too high. For a caller for which a read costs a round trip: the fetch-and-add
    /// returns the current bump.
    pub fn known(heap_limit: u64, bump_ptr: u64) -> ControlLine {
        let mut line = ControlLine::unread();
        line.0[HEAP_LIMIT_OFF as usize / 8] = heap_limit;
        line.0[BUMP_PTR_OFF as usize / 8] = bump_ptr;
        line
    }

    /// The verb that reads it.
    pub fn read(&mut self) -> Op<'_> {
        Op::Read { offset: 0, dst: self.0.as_mut_bytes() }
    }

    /// Position up to which claims may be written, at the time of the read; it only grows.
    #[inline]
    pub fn heap_limit(&self) -> u64 {
        self.0[HEAP_LIMIT_OFF as usize / 8]
    }

    /// Bytes claimed, at the time of the read; it only grows.
    #[inline]
    pub fn bump_ptr(&self) -> u64 {
        self.0[BUMP_PTR_OFF as usize / 8]
    }
}

/// One object to be written to the log.
#[derive(Debug, Clone, Copy)]
pub struct LogPut {
    layout: LogLayout,
    key: KeyId,
    page_bytes: u32,
    bytes_total: u64,
    n: u64,
    mark: SetMark,
}

impl LogPut {
    /// An object of `bytes_total` bytes. None if it exceeds a quarter of the log: a put of it uses
    /// the plan path.
    pub fn new(layout: LogLayout, key: KeyId, page_bytes: u32, bytes_total: u64) -> Option<LogPut> {
        let n = layout.claim_bytes(bytes_total)?;
        Some(LogPut { layout, key, page_bytes, bytes_total, n, mark: SetMark::NONE })
    }

    /// The same object as one of several replicas.
    #[must_use]
    pub fn in_set(self, mark: SetMark) -> LogPut {
        LogPut { mark, ..self }
    }

    /// Whether to claim at all. Returns the bump that was read: the lower bound with which to enter
    /// `OpenClaims`, since the fetch-and-add returns no lower value. None: use the plan path. There
    /// is no room before the limit now, which eviction changes; or the claimed bytes are not whole
    /// units: another process overwrote the word and the log is unusable.
    #[inline]
    pub fn room(&self, line: &ControlLine) -> Option<u64> {
        // The owner's limit never passes the last epoch, so every position below it has an epoch
        // [I3].
        self.ends_below(line, line.heap_limit())
    }

    /// The same for a claim that may wait in line: at most a quarter of the log beyond the limit.
    pub(super) fn in_line(&self, line: &ControlLine) -> Option<u64> {
        self.ends_below(line, line.heap_limit().saturating_add(self.layout.max_claim()))
    }

    #[inline]
    fn ends_below(&self, line: &ControlLine, most: u64) -> Option<u64> {
        let bump_ptr = line.bump_ptr();
        let fits = bump_ptr.checked_add(self.n).is_some_and(|end| end <= most);
        (fits && bump_ptr.is_multiple_of(self.layout.unit())).then_some(bump_ptr)
    }

    /// The claim. After it the log depends on the producer: the claim must be settled or abandoned,
    /// or the hole rule voids it [I13].
    #[inline]
    pub fn fetch_add(&self) -> Op<'static> {
        Op::FetchAdd { offset: BUMP_PTR_OFF, add: self.n, old: 0 }
    }

    /// The claim that the fetch-and-add made: `p` is the value it returned.
    #[inline]
    pub fn claimed(&self, p: u64) -> Claim {
        Claim { put: *self, position: p }
    }

    /// Its key.
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// The replicas to which it belongs.
    pub fn mark(&self) -> SetMark {
        self.mark
    }

    /// Logical page size in bytes.
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Bytes claimed: whole units.
    pub fn claim_bytes(&self) -> u64 {
        self.n
    }
}

/// A claim for which nothing was written yet.
#[derive(Debug)]
#[must_use = "a claim that is neither placed, skipped nor abandoned is a hole in the log"]
pub struct Claim {
    put: LogPut,
    /// Position at which it begins.
    pub position: u64,
}

/// What to do with a claim.
#[derive(Debug)]
pub enum ClaimStep {
    /// It extends above the limit: wait, read the control line again, and call [`Claim::next`]
    /// again. Meanwhile do not claim again and do not touch its slot [I13]. After the caller's time
    /// limit abandon it.
    Wait(Claim),
    /// It crosses the end of the log: post [`Skip::ops`], and start again after they have landed.
    Skip(Skip),
    /// The claim is usable: write the object here.
    Write(ClaimWrite),
}

impl Claim {
    /// What to do with the claim, given the limit that was read.
    #[inline]
    pub fn next(self, heap_limit: u64) -> ClaimStep {
        let Claim { put, position: p } = self;
        let layout = put.layout;
        let below = p.checked_add(put.n).is_some_and(|end| end <= heap_limit);
        // A position that is not on a unit or has no epoch only results from a word that another
        // process overwrote. Such a claim waits until it is abandoned.
        let Some(epoch) = layout.epoch(p).filter(|_| below && layout.is_claim(p, put.n)) else {
            return ClaimStep::Wait(Claim { put, position: p });
        };
        let slot = layout.slot(p);
        let (header_off, payload_off) = (layout.header_off(slot), layout.payload_off(p));
        if layout.wraps(p, put.n) {
            let nothing = ObjectDesc::at(payload_off, put.n, 0);
            let fields = producer_fields(KeyId { hash: 0, check: 0 }, &nothing);
            return ClaimStep::Skip(Skip { header_off, epoch, fields });
        }
        let object = ObjectDesc::at(payload_off, put.bytes_total, put.page_bytes);
        ClaimStep::Write(ClaimWrite {
            key: put.key,
            mark: put.mark,
            position: p,
            slot: (slot, epoch),
            header_off,
            object,
        })
    }

    /// Gives the claim up, unwritten. Send the value to the owner. Whatever the owner answers, this
    /// producer writes nothing there, so its entry in `OpenClaims` may be left at once.
    pub fn abandon(self) -> Abandon {
        Abandon { p: self.position, n: self.put.n }
    }
}

/// A claim given up by a producer that wrote nothing there and never will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandon {
    /// Position at which it begins.
    pub p: u64,
    /// Bytes claimed.
    pub n: u64,
}

/// A claim that crosses the end of the log: its header marks it, its bytes stay unused.
#[derive(Debug)]
pub struct Skip {
    header_off: u64,
    epoch: u32,
    fields: [u8; PRODUCER_FIELDS as usize],
}

impl Skip {
    /// The header's fields, then (DEAD, epoch), on which the owner acts. A flush separates them
    /// because both lie in one cache line.
    pub fn ops(&self) -> [Op<'_>; 3] {
        [
            Op::Write { offset: self.header_off, src: &self.fields },
            Op::Flush,
            Op::Store { offset: self.header_off + PUBLISH_OFF, value: dead(self.epoch) },
        ]
    }
}

/// A claim that is being written: its position, and the verbs that fill it.
#[derive(Debug)]
pub struct ClaimWrite {
    key: KeyId,
    mark: SetMark,
    header_off: u64,
    /// Position at which it begins.
    pub position: u64,
    /// Header slot and epoch, as in a location.
    pub slot: (u32, u32),
    /// Where the payload goes.
    pub object: ObjectDesc,
}

impl ClaimWrite {
    /// The verbs: header and WRITING, pages, READY, in the order of [I4].
    #[inline]
    pub fn publication(&self) -> Publication {
        let object = Publication::new((self.header_off, self.slot.1), self.key, &self.object);
        object.in_set(self.mark)
    }

    /// The producer's abort, after an error before READY was posted.
    pub fn abort(&self) -> Abort {
        let fields = *self.publication().fields();
        Abort(Skip { header_off: self.header_off, epoch: self.slot.1, fields })
    }
}

/// Marks as DEAD a claim whose writing failed.
#[derive(Debug)]
pub struct Abort(Skip);

impl Abort {
    /// Flush, the header's fields once more, then (DEAD, epoch). The fields are repeated because
    /// the write that failed may have been theirs, and the owner ignores a DEAD without them.
    pub fn ops(&self) -> [Op<'_>; 4] {
        let [fields, flush, dead] = self.0.ops();
        [Op::Flush, fields, flush, dead]
    }
}
