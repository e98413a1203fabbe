//! Checks of a device log: a claim is written only between the tail and the limit, is readable once
//! its owner set LIVE and never without READY, and loses LIVE in the order of claims, to make room,
//! or because of a request.

use super::{Cause, Formatted, Inner, Watch, handled};
use crate::ledger::SlotEpoch;
use nkv_store::device_log::{BUMP_PTR_OFF, HEAP_LIMIT_OFF, LogLayout};
use nkv_store::layout::{ObjHeader, epoch_of, flag, low, state};
use nkv_store::{AnonMemory, KeyId, Memory};

impl Watch {
    /// A claim of `bytes` at position `at` was made.
    pub fn claimed(&self, at: u64, bytes: u64) {
        let inner = self.lock();
        if let Some(g) = &inner.segment {
            self.ledger.claimed(g.identity.rank, at, bytes);
        }
    }

    /// A claim is written to: checks that it lies below the limit [I13] and not below the tail
    /// [I14].
    pub(super) fn in_time(
        &self,
        g: &Formatted,
        log: &LogLayout,
        memory: &AnonMemory,
        (slot, publish): (u32, u64),
        header: &ObjHeader,
    ) {
        let (p, limit) = (log.position(slot, epoch_of(publish)), memory.load(HEAP_LIMIT_OFF));
        let n = log.claim_bytes(header.bytes_total);
        let Some(((p, n), limit)) = p.zip(n).zip(limit.ok()) else {
            let text =
                format!("[I13] slot {slot} of the log of rank {} holds no claim", g.identity.rank);
            return self.ledger.wrong(text);
        };
        let tail = limit.saturating_sub(log.log_bytes());
        if p + n > limit {
            self.ledger.wrong(format!(
                "[I13] {n} bytes at {p} of the log of rank {} are written above its limit {limit}",
                g.identity.rank
            ));
        }
        if p < tail {
            self.ledger.wrong(format!(
                "[I14] {n} bytes at {p} of the log of rank {} are written late: its tail is at \
                 {tail}",
                g.identity.rank
            ));
        }
    }

    /// READY took: the bytes are all there, and the claim is its owner's to accept.
    pub(super) fn settled(
        &self,
        g: &Formatted,
        slot: u32,
        header: &ObjHeader,
        memory: &AnonMemory,
    ) {
        let Some(bytes) = self.bytes_of(slot, header, memory) else { return };
        let key = KeyId { hash: header.key_hash, check: header.key_check };
        let spot = SlotEpoch {
            incarnation: g.identity.incarnation,
            slot,
            epoch: epoch_of(header.publish),
        };
        self.ledger.settled(spot, g.identity.rank, key, &bytes);
    }

    /// The owner accepted a claim, found that its key is there, or took its object back.
    pub(super) fn owner_word_of_log(
        &self,
        inner: &mut Inner,
        (g, log): (&Formatted, &LogLayout),
        (memory, slot): (&AnonMemory, u32),
        (before, after): (u64, u64),
    ) {
        let (was, is) = (low(before) & flag::LIVE != 0, low(after) & flag::LIVE != 0);
        let epoch = epoch_of(after);
        let spot = SlotEpoch { incarnation: g.identity.incarnation, slot, epoch };
        if was {
            let cause = Self::end_in_log(inner, log, memory, (slot, epoch_of(before)));
            return self.owner_word(inner, g, (slot, cause), before, after);
        }
        let Ok(header) = super::header_at(memory, g.layout.header_off(slot)) else { return };
        if low(header.publish) != state::READY || epoch_of(header.publish) != epoch {
            return self.ledger.wrong(format!(
                "[I15] slot {slot} of the log of rank {} is taken at epoch {epoch} without READY",
                g.identity.rank
            ));
        }
        if !is {
            return self.ledger.is_duplicate(spot);
        }
        self.owner_word(inner, g, (slot, Cause::Unseen), before, after);
        self.ledger.accepted(spot, log.slots());
        self.serves(inner, g, spot, &header);
    }

    /// Checks why an object of the log is retired: to make room, only the oldest, and no more than
    /// are needed.
    fn end_in_log(
        inner: &Inner,
        log: &LogLayout,
        memory: &AnonMemory,
        (slot, epoch): (u32, u32),
    ) -> Cause {
        let of = |slot: u32, epoch: u32| log.position(slot, epoch).unwrap_or_default();
        let here = of(slot, epoch);
        let live = inner.readable.values().filter(|e| e.slot < log.slots());
        let oldest = live.map(|e| of(e.slot, e.epoch)).all(|p| p >= here);
        let claimed = memory.load(BUMP_PTR_OFF).unwrap_or_default();
        let needed = (claimed + log.max_claim()).saturating_sub(log.log_bytes());
        match oldest && here < needed {
            true => Cause::Evicted,
            false => handled(inner.owner.as_ref()),
        }
    }
}
