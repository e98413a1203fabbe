//! Splits a batch of any size into requests that an agent accepts: by number of verbs, by payload
//! bytes, and where a large read precedes a change. Order is kept: the requests follow each other
//! on one connection [I4].

use super::frame::{
    MAX_EARLY_BYTES, OP_APPEND, OP_COMPARE_SWAP, OP_FETCH_ADD, OP_FIND, OP_FLUSH, OP_READ,
    OP_STORE, OP_WRITE, OpDesc, REQUEST_BYTES, REQUEST_MAGIC, Request,
};
use super::line::Line;
use super::tags::has_tag;
use crate::access::SEEN_BYTES;
use crate::verbs::Op;
use zerocopy::IntoBytes;

/// Limits of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub ops: usize,
    pub bytes: u64,
}

/// A part of one verb: bytes `from..from + len` of its payload; len 0 for words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub op: usize,
    pub from: usize,
    pub len: usize,
}

impl Piece {
    /// The bytes that a write sends for this piece.
    pub(super) fn written<'a>(&self, ops: &[Op<'a>]) -> Option<&'a [u8]> {
        match ops.get(self.op) {
            Some(Op::Write { src, .. }) => src.get(self.from..self.from + self.len),
            _ => None,
        }
    }
}

/// One request under construction; its buffers are reused for the next one.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Header, descriptors and, before it is sent, their tag.
    pub head: Vec<u8>,
    /// Pieces in the order of their descriptors.
    pub pieces: Vec<Piece>,
    /// Atomics among them.
    pub results: usize,
    /// Small payloads to send, each followed by its tag.
    pub small: Vec<u8>,
    /// Payload to send.
    pub write_bytes: u64,
    /// Payload to receive.
    pub read_bytes: u64,
}

/// Position in the batch at which the next request starts.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    op: usize,
    from: usize,
}

impl Outgoing {
    /// Fills in the next request; false if nothing is left.
    pub(super) fn next(
        &mut self,
        ops: &[Op<'_>],
        cursor: &mut Cursor,
        limits: Limits,
        id: u64,
        token: u64,
    ) -> bool {
        self.begin();
        while let Some(op) = ops.get(cursor.op) {
            let Some(len) = self.room(op, cursor.from, limits) else {
                break;
            };
            let whole = payload_len(op);
            // A read or write of 0 bytes needs no descriptor.
            if len > 0 || whole.is_none() {
                self.push(op, Piece { op: cursor.op, from: cursor.from, len });
            }
            cursor.from += len;
            if cursor.from >= whole.unwrap_or(0) {
                *cursor = Cursor { op: cursor.op + 1, from: 0 };
            }
        }
        self.finish(id, token);
        !self.pieces.is_empty()
    }

    /// Empties it for a request.
    pub(super) fn begin(&mut self) {
        self.head.clear();
        self.head.resize(REQUEST_BYTES, 0);
        self.pieces.clear();
        (self.results, self.write_bytes, self.read_bytes) = (0, 0, 0);
    }

    /// Fills in the header, once all verbs are described.
    pub(super) fn finish(&mut self, id: u64, token: u64) {
        let header = Request {
            magic: REQUEST_MAGIC.into(),
            n_ops: (self.pieces.len() as u32).into(),
            id: id.into(),
            token: token.into(),
            write_bytes: self.write_bytes.into(),
            read_bytes: self.read_bytes.into(),
        };
        self.head[..REQUEST_BYTES].copy_from_slice(header.as_bytes());
    }

    /// Appends one verb, by its code and numbers as [`OpDesc`] has them.
    pub(super) fn describe(
        &mut self,
        (code, relative): (u32, u32),
        (offset, a, b): (u64, u64, u64),
        piece: Piece,
    ) {
        match code {
            OP_READ => self.read_bytes += a,
            OP_WRITE => self.write_bytes += a,
            OP_FETCH_ADD | OP_COMPARE_SWAP | OP_FIND | OP_APPEND => self.results += 1,
            _ => {}
        }
        let desc = OpDesc {
            code: code.into(),
            relative: relative.into(),
            offset: offset.into(),
            a: a.into(),
            b: b.into(),
        };
        self.head.extend_from_slice(desc.as_bytes());
        self.pieces.push(piece);
    }

    /// Appends the tag of header and descriptors, and the tags of small payloads. Call it once,
    /// when the request is sent. Small payloads are copied, so that the bytes sent are those that
    /// were tagged.
    pub(super) fn sign(&mut self, line: &mut Line, ops: &[Op<'_>]) {
        let tag = line.tags.next(&[&self.head]);
        self.head.extend_from_slice(tag.bytes());
        self.small.clear();
        let payloads = self.pieces.iter().filter_map(|p| p.written(ops));
        for payload in payloads.filter(|payload| has_tag(payload.len())) {
            let start = self.small.len();
            self.small.extend_from_slice(payload);
            let tag = line.tags.of_payload(&self.small[start..]);
            self.small.extend_from_slice(tag.bytes());
        }
    }

    /// How many payload bytes of this verb fit (0 for words and empty payloads); `None` if the verb
    /// must wait for the next request.
    fn room(&self, op: &Op<'_>, from: usize, limits: Limits) -> Option<usize> {
        let early = op.changes() && self.read_bytes > MAX_EARLY_BYTES;
        if self.pieces.len() >= limits.ops || early {
            return None;
        }
        let used = match op {
            Op::Read { .. } => self.read_bytes,
            Op::Write { .. } => self.write_bytes,
            _ => return Some(0),
        };
        let left = payload_len(op).unwrap_or(0) - from;
        let room = limits.bytes.saturating_sub(used).min(left as u64) as usize;
        // A header's fields are never split: the agent can only check them as a whole.
        let tears = op.changes() && left <= SEEN_BYTES && room < left;
        if tears && left as u64 <= limits.bytes {
            return None;
        }
        (room > 0 || left == 0).then_some(room)
    }

    fn push(&mut self, op: &Op<'_>, piece: Piece) {
        let len = piece.len as u64;
        let (code, a, b) = match op {
            Op::Read { .. } => (OP_READ, len, 0),
            Op::Write { .. } => (OP_WRITE, len, 0),
            Op::Store { value, .. } => (OP_STORE, *value, 0),
            Op::FetchAdd { add, .. } => (OP_FETCH_ADD, *add, 0),
            Op::CompareSwap { expect, new, .. } => (OP_COMPARE_SWAP, *expect, *new),
            // Buffers of a device are on the host by now.
            Op::Flush | Op::ReadToDevice { .. } | Op::WriteFromDevice { .. } => (OP_FLUSH, 0, 0),
        };
        self.describe((code, 0), (op.range().0 + piece.from as u64, a, b), piece);
    }
}

/// Payload bytes of a read or write.
pub(super) fn payload_len(op: &Op<'_>) -> Option<usize> {
    match op {
        Op::Read { dst, .. } => Some(dst.len()),
        Op::Write { src, .. } => Some(src.len()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{Steps, check_header};
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    fn batch<'a>(shape: &[(u8, usize)], bytes: &'a [u8], room: &'a mut [Vec<u8>]) -> Vec<Op<'a>> {
        let sizes = shape.iter().zip(room);
        sizes
            .map(|((kind, len), room)| match kind {
                0 => {
                    *room = vec![0; *len];
                    Op::Read { offset: 8, dst: room }
                }
                1 => Op::Write { offset: 8, src: &bytes[..*len] },
                2 => Op::Store { offset: 8, value: 1 },
                3 => Op::FetchAdd { offset: 8, add: 1, old: 0 },
                4 => Op::CompareSwap { offset: 8, expect: 1, new: 2, old: 0 },
                _ => Op::Flush,
            })
            .collect()
    }

    proptest! {
        #[test]
        fn i4_split_requests_cover_a_batch_once_and_in_order_and_the_agent_accepts_each(
            shape in proptest::collection::vec(
                (0u8..6, prop_oneof![0usize..70, 0usize..200_000]), 0..40,
            ),
            ops_limit in 1usize..9,
            bytes_limit in prop_oneof![1u64..200, 1u64..150_000],
        ) {
            let bytes = vec![0; 200_000];
            let mut room = vec![Vec::new(); shape.len()];
            let ops = batch(&shape, &bytes, &mut room);
            let limits = Limits { ops: ops_limit, bytes: bytes_limit };
            let (mut out, mut cursor) = (Outgoing::default(), Cursor::default());
            let mut all = Vec::new();
            while out.next(&ops, &mut cursor, limits, 1, 1) {
                prop_assert!(out.pieces.len() <= ops_limit);
                let (header, descs) = Request::read_from_prefix(&out.head).unwrap();
                check_header(&header, bytes_limit).unwrap();
                let mut steps = Steps::default();
                steps.decode(&header, descs).unwrap();
                all.extend_from_slice(&out.pieces);
            }
            for p in &all {
                let small = payload_len(&ops[p.op]).is_some_and(|len| len <= SEEN_BYTES);
                let torn = payload_len(&ops[p.op]).is_some_and(|len| len != p.len);
                let write = matches!(ops[p.op], Op::Write { .. });
                prop_assert!(!(write && small && torn) || bytes_limit < SEEN_BYTES as u64);
            }
            let mut pieces = all.into_iter().peekable();
            for (i, op) in ops.iter().enumerate() {
                let mut from = 0;
                let whole = payload_len(op);
                while whole.is_none_or(|w| from < w) {
                    let p = pieces.next().unwrap();
                    prop_assert_eq!((p.op, p.from), (i, from));
                    from += p.len;
                    if whole.is_none() {
                        break;
                    }
                }
                prop_assert_eq!(from, whole.unwrap_or(0));
            }
            prop_assert!(pieces.next().is_none());
        }
    }
}
