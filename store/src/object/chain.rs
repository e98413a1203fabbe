//! The verbs of a producer and of a reader, in the order that keeps a reader from accepting an
//! incomplete object [I4] [I7]. They are the same over every transport and in the models. Who may
//! post them, and when, is not decided here.

use super::{
    Expect, ObjectDesc, SetMark, Unreadable, producer_fields, ready, unchanged, validate, writing,
};
use crate::key::KeyId;
use crate::layout::{ObjHeader, PRODUCER_FIELDS, PUBLISH_OFF, Region};
use crate::op::{Op, Source};
use std::mem::offset_of;
use zerocopy::IntoBytes;

/// The verbs with which a producer writes the object of one plan.
#[derive(Debug, Clone, Copy)]
pub struct Publication {
    header_off: u64,
    payload_base: u64,
    epoch: u32,
    fields: [u8; PRODUCER_FIELDS as usize],
}

impl Publication {
    /// An object whose header lies at segment offset `header_off` and was armed with `epoch`.
    pub fn new((header_off, epoch): (u64, u32), key: KeyId, object: &ObjectDesc) -> Self {
        let fields = producer_fields(key, object);
        Self { header_off, payload_base: object.payload_off(), epoch, fields }
    }

    /// The same, with the mark of its replicas.
    #[must_use]
    pub fn in_set(mut self, mark: SetMark) -> Self {
        if !mark.is_none() {
            let at = offset_of!(ObjHeader, n_pages);
            self.fields[at..at + 4].copy_from_slice(&mark.word().to_le_bytes());
        }
        self
    }

    /// The header's fields.
    pub(crate) fn fields(&self) -> &[u8; PRODUCER_FIELDS as usize] {
        &self.fields
    }

    /// The header, then (WRITING, epoch): posted before the first page.
    pub fn announce(&self) -> [Op<'_>; 2] {
        let publish = self.header_off + PUBLISH_OFF;
        [
            Op::Write { offset: self.header_off, src: &self.fields },
            Op::Store { offset: publish, value: writing(self.epoch) },
        ]
    }

    /// Writes `bytes` at an offset of the object. Between `announce` and `publish`, in any order.
    pub fn page<'a>(&self, offset: u64, bytes: &'a [u8]) -> Op<'a> {
        self.part(offset, Source::Host(bytes))
    }

    /// The same for bytes that may be in a device.
    pub fn part<'a>(&self, offset: u64, part: Source<'a>) -> Op<'a> {
        part.write_at(self.payload_base + offset)
    }

    /// READY, after all pages have landed, also those sent over other connections [I4].
    pub fn publish(&self) -> [Op<'static>; 2] {
        [Op::Flush, self.ready()]
    }

    /// Header, payload and READY as one chain on one connection [I4].
    pub fn whole<'a>(&'a self, payload: &'a [u8]) -> [Op<'a>; 4] {
        let [fields, writing] = self.announce();
        [fields, writing, self.page(0, payload), self.ready()]
    }

    /// The same with the payload in parts, written one after another.
    pub fn gathered<'a, S: Into<Source<'a>> + Copy>(&'a self, parts: &[S]) -> Vec<Op<'a>> {
        let mut ops = Vec::from(self.announce());
        let mut offset = 0;
        for part in parts.iter().map(|part| (*part).into()).filter(|part| !part.is_empty()) {
            ops.push(self.part(offset, part));
            offset += part.len() as u64;
        }
        ops.push(self.ready());
        ops
    }

    /// Always a compare-and-swap with the epoch: it changes nothing in a slot that has a newer
    /// epoch.
    fn ready(&self) -> Op<'static> {
        Op::CompareSwap {
            offset: self.header_off + PUBLISH_OFF,
            expect: writing(self.epoch),
            new: ready(self.epoch),
            old: 0,
        }
    }

    /// `Ok` if the compare-and-swap to READY in this batch succeeded, else the word it found: the
    /// plan is `Reclaimed`.
    pub fn took(&self, batch: &[Op<'_>]) -> Result<(), u64> {
        let found = batch.iter().find_map(|op| match op {
            Op::CompareSwap { old, .. } => Some(*old),
            _ => None,
        });
        match found.unwrap_or_default() {
            old if old == writing(self.epoch) => Ok(()),
            old => Err(old),
        }
    }
}

/// One read of one object by its location.
#[derive(Debug)]
pub struct Reading {
    header_off: u64,
    expect: Expect,
    before: ObjHeader,
    after: ObjHeader,
}

impl Reading {
    /// A read of what `expect` describes, under the header at segment offset `header_off`.
    pub fn new(header_off: u64, expect: Expect) -> Self {
        let unread = ObjHeader::default();
        Self { header_off, expect, before: unread, after: unread }
    }

    /// Reads header, payload, and header again; `dst` must have `bytes_total` bytes.
    pub fn chain<'a>(&'a mut self, dst: &'a mut [u8]) -> [Op<'a>; 3] {
        debug_assert_eq!(dst.len() as u64, self.expect.bytes_total, "dst of another length");
        let (offset, payload_base) = (self.header_off, self.expect.payload_base);
        [
            Op::Read { offset, dst: self.before.as_mut_bytes() },
            Op::Read { offset: payload_base, dst },
            Op::Read { offset, dst: self.after.as_mut_bytes() },
        ]
    }

    /// Reads the header once more, for a chain that was too slow: post it after the chain has
    /// ended.
    pub fn again(&mut self) -> Op<'_> {
        Op::Read { offset: self.header_off, dst: self.after.as_mut_bytes() }
    }

    /// Whether the copy is valid: its header was valid before [I2] and the same after [I7]. A
    /// header that changed meanwhile is `Gone`.
    pub fn judge(&self, arena: &Region) -> Result<(), Unreadable> {
        validate(&self.before, &self.expect, arena)?;
        if unchanged(&self.before, &self.after) { Ok(()) } else { Err(Unreadable::Gone) }
    }
}

/// Whether a chain that began and ended at these times needs no further check [I7]: within 0.8 of
/// the quarantine nothing that it copied was reused, in whatever order its reads were executed.
/// After a slower chain the reader reads the header once more.
pub fn chain_in_time(began_ns: u64, ended_ns: u64, quarantine_ns: u64) -> bool {
    ended_ns.saturating_sub(began_ns) <= quarantine_ns / 10 * 8
}
