//! Lookups that the agent makes: for any number of keys one request, and one answer with what was
//! found. The client side; the agent's is `Steps::resolve`.

use super::batch::{Outgoing, Piece};
use super::client::{TcpVerbs, bytes_of, send};
use super::deadline::Deadline;
use super::frame::{
    NOT_FOUND, NOT_READ, OP_FIND, OP_READ, OpDesc, REQUEST_BYTES, REQUEST_MAGIC, Request,
};
use crate::error::TransportError;
use crate::verbs::{Find, Found, Op};
use nkv_store::KeyId;
use nkv_store::layout::HEADER_BYTES;
use zerocopy::IntoBytes;

/// Verbs of one lookup: itself, header, payload, header.
const OPS_PER_FIND: usize = 4;

impl Outgoing {
    /// Fills in the request for these lookups. Its answer goes to `ops`: of each key the result as
    /// that of an atomic, and the reads.
    fn find(&mut self, keys: &[KeyId], ops: &[Op<'_>], id: u64) {
        self.head.clear();
        self.head.resize(REQUEST_BYTES, 0);
        self.pieces.clear();
        (self.results, self.write_bytes, self.read_bytes) = (keys.len(), 0, 0);
        for (i, key) in keys.iter().enumerate() {
            let first = i * OPS_PER_FIND;
            self.verb((OP_FIND, 0), (key.hash, 0, key.check), (first, 0));
            for (op, read) in ops.iter().enumerate().skip(first + 1).take(OPS_PER_FIND - 1) {
                let (offset, len) = read.range();
                if len > 0 {
                    self.verb((OP_READ, 1), (offset, len, 0), (op, len as usize));
                    self.read_bytes += len;
                }
            }
        }
        let header = Request {
            magic: REQUEST_MAGIC.into(),
            n_ops: (self.pieces.len() as u32).into(),
            id: id.into(),
            token: 0.into(),
            write_bytes: 0.into(),
            read_bytes: self.read_bytes.into(),
        };
        self.head[..REQUEST_BYTES].copy_from_slice(header.as_bytes());
    }

    fn verb(
        &mut self,
        (code, relative): (u32, u32),
        (offset, a, b): (u64, u64, u64),
        (op, len): (usize, usize),
    ) {
        let desc = OpDesc {
            code: code.into(),
            relative: relative.into(),
            offset: offset.into(),
            a: a.into(),
            b: b.into(),
        };
        self.head.extend_from_slice(desc.as_bytes());
        self.pieces.push(Piece { op, from: 0, len });
    }
}

impl TcpVerbs {
    /// See [`crate::verbs::Verbs::find`].
    pub(super) fn find_all(&self, finds: &mut [Find<'_>]) -> Option<Result<(), TransportError>> {
        let keys: Vec<KeyId> = finds.iter().map(|find| find.key).collect();
        let mut ops: Vec<Op<'_>> = Vec::with_capacity(finds.len() * OPS_PER_FIND);
        for find in finds.iter_mut() {
            let [before, after] = &mut find.headers;
            ops.extend([
                Op::FetchAdd { offset: 0, add: 0, old: NOT_FOUND },
                Op::Read { offset: 0, dst: before.as_mut_bytes() },
                Op::Read { offset: HEADER_BYTES, dst: find.payload },
                Op::Read { offset: 0, dst: after.as_mut_bytes() },
            ]);
        }
        let done = self.exchange(&keys, &mut ops)?;
        let results: Vec<_> = ops.iter().step_by(OPS_PER_FIND).map(found).collect();
        drop(ops);
        finds.iter_mut().zip(results).for_each(|(find, found)| find.found = found);
        Some(done)
    }

    /// One request and its answer. None: it exceeds what the agent accepts.
    fn exchange(&self, keys: &[KeyId], ops: &mut [Op<'_>]) -> Option<Result<(), TransportError>> {
        let deadline = Deadline::for_bytes(self.pool.opts.stall_ms, bytes_of(ops));
        let mut lease = match self.pool.lease(deadline) {
            Ok(lease) => lease,
            Err(e) => return Some(Err(e)),
        };
        let in_step = std::mem::take(&mut lease.in_step);
        let conn = match lease.conn() {
            Ok(conn) if in_step => conn,
            Ok(_) => return None,
            Err(e) => return Some(Err(e)),
        };
        let id = conn.next_id;
        conn.out.find(keys, ops, id);
        if conn.out.pieces.len() > conn.limits.ops || conn.out.read_bytes > conn.limits.bytes {
            lease.in_step = true;
            return None;
        }
        conn.line.limits.deadline = deadline;
        conn.next_id += 1;
        conn.out.sign(&mut conn.line, ops);
        let sent = send(&conn.line, &conn.out, ops);
        let answer = self.answer(&mut conn.line, &conn.out, id, ops, sent);
        Some(answer.and_then(|(outcome, closing)| {
            lease.in_step = !closing;
            outcome
        }))
    }
}

fn found(op: &Op<'_>) -> Found {
    match op {
        Op::FetchAdd { old: NOT_READ, .. } => Found::NotRead,
        Op::FetchAdd { old, .. } if *old != NOT_FOUND => {
            Found::At(*old as u32, (*old >> 32) as u32)
        }
        _ => Found::Nothing,
    }
}
