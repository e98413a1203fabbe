//! Puts into the log that the agent makes: claim, header, payload and READY of any number of
//! objects in one request. It makes the changes that a producer would post, in the same order and
//! with the same permission for each, so fences, holes and ended producers are handled as theirs
//! are. While it receives an object, only that object's claim is open, and those that wait in line.

use super::batch::{Outgoing, Piece};
use super::broken::End;
use super::client::TcpVerbs;
use super::frame::{
    APPEND_CODES, APPEND_LEN, APPEND_LEN_BITS, APPEND_NO_ROOM, APPEND_READY, APPEND_REFUSED,
    APPEND_VOID, APPEND_WAITS, OP_APPEND, OP_READ, OP_WRITE,
};
use super::request::ToAppend;
use super::serve::Connection;
use crate::access::{Intent, Permit};
use crate::error::TransportError;
use crate::verbs::{Append, Appended, Op, Verbs};
use nkv_store::device_log::{
    BUMP_PTR_OFF, ClaimStep, ClaimWrite, ControlLine, HEAP_LIMIT_OFF, LogPut,
};

/// Most claims of one append: one that crosses the log's end is skipped and made again.
const CLAIMS_PER_APPEND: usize = 4;
/// Verbs of one append: itself and its payload.
const OPS_PER_APPEND: usize = 2;

/// A claim, or why nothing is written: the result of the append.
enum Claimed {
    Write(ClaimWrite),
    Not(u64),
}

impl Connection<'_> {
    /// Receives an object into the log; returns the result of the append.
    pub(super) fn append(&mut self, permit: &dyn Permit, object: &ToAppend) -> Result<u64, End> {
        let len = object.len;
        match self.claim(permit, object)? {
            Claimed::Write(write) => self.write_claim(permit, &write, len).inspect_err(|_| {
                // Its producer may be gone, and nobody else knows the position. If this fails, too,
                // the claim stays open until the producer's rights end.
                for op in write.abort().ops() {
                    if self.apply(permit, &op).is_err() {
                        break;
                    }
                }
            }),
            Claimed::Not(result) => {
                self.line.discard_payloads(std::iter::once(len))?;
                Ok(result)
            }
        }
    }

    fn claim(
        &self,
        permit: &dyn Permit,
        &ToAppend { key, page_bytes, mark, len }: &ToAppend,
    ) -> Result<Claimed, End> {
        let segment = &self.shared.segment;
        let Some(layout) = permit.log() else { return Ok(Claimed::Not(APPEND_REFUSED)) };
        let put = LogPut::new(layout, key, page_bytes, len).map(|put| put.in_set(mark));
        let Some(put) = put else { return Ok(Claimed::Not(APPEND_NO_ROOM)) };
        let add = Intent::FetchAdd { offset: BUMP_PTR_OFF, add: put.claim_bytes() };
        for _ in 0..CLAIMS_PER_APPEND {
            let limit = segment.load(HEAP_LIMIT_OFF)?;
            let line = ControlLine::known(limit, segment.load(BUMP_PTR_OFF)?);
            if put.room(&line).is_none() {
                break;
            }
            if permit.is_revoked() {
                return Err(End::Fenced);
            }
            if permit.check(&add).is_err() {
                return Ok(Claimed::Not(APPEND_REFUSED));
            }
            let p = self.change_word(permit, &add)?.unwrap_or_default();
            match put.claimed(p).next(segment.load(HEAP_LIMIT_OFF)?) {
                ClaimStep::Write(write) => return Ok(Claimed::Write(write)),
                ClaimStep::Skip(skip) => {
                    skip.ops().iter().try_for_each(|op| self.apply(permit, op).map(drop))?;
                }
                // Another producer has overwritten the word if it is no position: a hole.
                ClaimStep::Wait(_) if !layout.is_claim(p, put.claim_bytes()) => break,
                ClaimStep::Wait(_) => return Ok(Claimed::Not(p | APPEND_WAITS)),
            }
        }
        Ok(Claimed::Not(APPEND_NO_ROOM))
    }

    /// Header, payload and READY of one claim [I4].
    fn write_claim(
        &mut self,
        permit: &dyn Permit,
        write: &ClaimWrite,
        len: u64,
    ) -> Result<u64, End> {
        let object = write.publication();
        for op in &object.announce() {
            self.apply(permit, op)?;
        }
        let (p, offset) = (write.position, write.object.payload_off());
        let payload = Intent::Write { offset, len };
        permit.check(&payload).map_err(End::Unfit)?;
        self.place(permit, &payload, offset, len as usize)?;
        permit.done(&payload, 0);
        let mut ops = object.publish();
        for op in &mut ops {
            let found = self.apply(permit, op)?;
            if let (Op::CompareSwap { old, .. }, Some(found)) = (op, found) {
                *old = found;
            }
        }
        Ok(p | object.took(&ops).map_or(APPEND_VOID, |()| APPEND_READY))
    }

    /// One verb that a producer would have posted, if it is permitted; the word that it found.
    fn apply(&self, permit: &dyn Permit, op: &Op<'_>) -> Result<Option<u64>, End> {
        if permit.is_revoked() {
            return Err(End::Fenced);
        }
        let segment = &self.shared.segment;
        let intent = match *op {
            Op::Flush => {
                segment.flush();
                return Ok(None);
            }
            Op::Write { offset, src } => Intent::Write { offset, len: src.len() as u64 },
            Op::Store { offset, value } => Intent::Store { offset, value },
            Op::CompareSwap { offset, expect, new, .. } => {
                Intent::CompareSwap { offset, expect, new }
            }
            // Not part of a publication.
            Op::FetchAdd { .. }
            | Op::Read { .. }
            | Op::ReadToDevice { .. }
            | Op::WriteFromDevice { .. } => return Ok(None),
        };
        permit.check(&intent).map_err(End::Unfit)?;
        let Op::Write { offset, src } = *op else { return self.change_word(permit, &intent) };
        permit.starts(&intent, src).map_err(End::Unfit)?;
        segment.write(offset, src)?;
        permit.done(&intent, 0);
        Ok(None)
    }
}

impl Outgoing {
    /// Fills in the request. Of each append `ops` has an atomic, for the result, and a write; its
    /// last is a read.
    fn appends(&mut self, appends: &[Append<'_>], ops: &[Op<'_>], token: u64, id: u64) {
        self.begin();
        for (i, append) in appends.iter().enumerate() {
            let (first, len) = (i * OPS_PER_APPEND, append.payload.len());
            let len_and_mark = len as u64 | u64::from(append.mark.word()) << APPEND_LEN_BITS;
            let key = (append.key.hash, len_and_mark, append.key.check);
            let itself = Piece { op: first, from: 0, len: 0 };
            self.describe((OP_APPEND, append.page_bytes), key, itself);
            let payload = Piece { op: first + 1, from: 0, len };
            self.describe((OP_WRITE, 1), (0, len as u64, 0), payload);
        }
        if let Some(read) = ops.last() {
            let (offset, len) = read.range();
            let piece = Piece { op: ops.len() - 1, from: 0, len: len as usize };
            self.describe((OP_READ, 0), (offset, len, 0), piece);
        }
        self.finish(id, token);
    }
}

impl TcpVerbs {
    /// See [`crate::verbs::Verbs::append`].
    pub(super) fn append_all(
        &self,
        token: u64,
        appends: &mut [Append<'_>],
        line: &mut ControlLine,
    ) -> Option<Result<(), TransportError>> {
        // Stripes over several connections bring a large object faster than one request.
        let too_large = |bytes: u64| bytes > APPEND_LEN || self.cuts(bytes);
        if appends.iter().any(|append| too_large(append.payload.len() as u64)) {
            return None;
        }
        let mut ops: Vec<Op<'_>> = Vec::with_capacity(appends.len() * OPS_PER_APPEND + 1);
        for append in appends.iter() {
            let result = Op::FetchAdd { offset: 0, add: 0, old: APPEND_REFUSED };
            ops.extend([result, Op::Write { offset: 0, src: append.payload }]);
        }
        ops.push(line.read());
        let fill = |out: &mut Outgoing, ops: &[Op<'_>], id| out.appends(appends, ops, token, id);
        let (done, closing) = self.exchange(&mut ops, fill)?;
        for (append, op) in appends.iter_mut().zip(ops.iter().step_by(OPS_PER_APPEND)) {
            append.outcome = outcome(op);
        }
        Some(done.map_err(|error| match error {
            // Refused in the middle: those before it may be READY.
            TransportError::Refused(why) if closing && appends.len() > 1 => {
                TransportError::Disconnected(why)
            }
            other => other,
        }))
    }
}

fn outcome(op: &Op<'_>) -> Appended {
    let Op::FetchAdd { old, .. } = *op else { return Appended::Refused };
    let p = old & !APPEND_CODES;
    match old & APPEND_CODES {
        APPEND_READY => Appended::Ready(p),
        APPEND_WAITS => Appended::Waits(p),
        APPEND_VOID => Appended::Void(p),
        APPEND_NO_ROOM => Appended::NoRoom,
        _ => Appended::Refused,
    }
}
