//! Lookups that the agent makes: for any number of keys one request, and one answer with what was
//! found. The client side; the agent's is `Steps::resolve`.

use super::batch::{Outgoing, Piece};
use super::client::{TcpVerbs, bytes_of};
use super::deadline::Deadline;
use super::frame::{NOT_FOUND, NOT_READ, OP_FIND, OP_READ};
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
        self.begin();
        for (i, key) in keys.iter().enumerate() {
            let first = i * OPS_PER_FIND;
            let lookup = Piece { op: first, from: 0, len: 0 };
            self.describe((OP_FIND, 0), (key.hash, 0, key.check), lookup);
            for (op, read) in ops.iter().enumerate().skip(first + 1).take(OPS_PER_FIND - 1) {
                let (offset, len) = read.range();
                if len > 0 {
                    let piece = Piece { op, from: 0, len: len as usize };
                    self.describe((OP_READ, 1), (offset, len, 0), piece);
                }
            }
        }
        self.finish(id, 0);
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
        let (done, _) = self.exchange(&mut ops, |out, ops, id| out.find(&keys, ops, id))?;
        let results: Vec<_> = ops.iter().step_by(OPS_PER_FIND).map(found).collect();
        drop(ops);
        finds.iter_mut().zip(results).for_each(|(find, found)| find.found = found);
        Some(done)
    }

    /// One request, which `fill` describes, and its outcome; and whether the agent closes the
    /// connection after it, for example in the middle of it. None: it exceeds what the agent takes.
    pub(super) fn exchange(
        &self,
        ops: &mut [Op<'_>],
        fill: impl FnOnce(&mut Outgoing, &[Op<'_>], u64),
    ) -> Option<(Result<(), TransportError>, bool)> {
        let gone = || self.pool.alive.check(&self.pool.target);
        if let Err(e) = gone() {
            return Some((Err(e), false));
        }
        let deadline = Deadline::for_bytes(self.pool.opts.stall_ms, bytes_of(ops));
        let mut lease = match self.pool.lease(deadline) {
            Ok(lease) => lease,
            Err(e) => return Some((Err(e), false)),
        };
        let in_step = std::mem::take(&mut lease.in_step);
        let conn = match lease.conn() {
            Ok(conn) if in_step => conn,
            Ok(_) => return None,
            Err(e) => return Some((Err(e), false)),
        };
        let id = conn.next_id;
        fill(&mut conn.out, ops, id);
        let bytes = conn.out.read_bytes.max(conn.out.write_bytes);
        if conn.out.pieces.len() > conn.limits.ops || bytes > conn.limits.bytes {
            lease.in_step = true;
            return None;
        }
        conn.line.limits.deadline = deadline;
        match self.ask(conn, id, ops) {
            Ok((outcome, closing)) => {
                lease.in_step = !closing;
                Some((outcome.and_then(|()| gone()), closing))
            }
            Err(e) => Some((Err(e), true)),
        }
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
