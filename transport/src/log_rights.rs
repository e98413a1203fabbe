//! What a producer that does not map the segment may do in the device log. The tcp agent claims for
//! its connections, permits each write only within the producer's claims, and always knows which
//! claims are open (docs/reference/log.md, section 3). One value per producer and token, for all
//! its connections. It writes bytes only to settle what a fenced producer left; it sends no message
//! and waits for nothing.
//!
//! *Why the answer "none open below B" is right.* An entry is in the table, under its lock, before
//! the agent makes the fetch-and-add for it. If that one returned p < B, where the owner read B
//! from `bump_ptr`, the owner's acquire load synchronises with its release: the entry was made
//! before the question, and the answer, under the same lock, comes after it. The answer finds the
//! entry, at a bound that is at most p or at p itself, or its removal after the claim's last verb
//! was executed. So an answer "none open" stays true.
//!
//! *No write after the last verb of a claim.* Once READY was stored by the compare-and-swap, or
//! DEAD was stored, the owner may give the bytes to the next lap at any time. So a claim ends only
//! in a request that is the only one inside it, as that request's last verb for it. A request that
//! is inside a claim keeps it open, also for questions about positions below B.
//!
//! *Header contents are checked.* The owner accepts a header whose size is that of a claim. A
//! header that states more than was claimed would settle other producers' claims. So the fields are
//! checked when they arrive, and no word that makes the owner read them is stored before they were
//! written.

mod change;
mod table;

use crate::access::{Cut, Intent};
use change::LogChange;
use nkv_store::Memory;
use nkv_store::device_log::{Abandon, BUMP_PTR_OFF, HEAP_LIMIT_OFF, LogLayout};
use nkv_store::error::StoreError;
use nkv_store::key::KeyId;
use nkv_store::layout::{ObjHeader, PUBLISH_OFF, epoch_of, state};
use nkv_store::object::{ObjectDesc, dead, producer_fields, ready};
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::{At, Claim, Table};

/// Claims that one producer may have open over tcp, including those that wait for room. Further
/// puts use the plan path.
pub const MAX_OPEN_CLAIMS: usize = 64;

/// The log rights of one producer, behind one token. See [`crate::grants::Grants::open_log`].
#[derive(Debug)]
pub struct LogRights {
    layout: LogLayout,
    memory: Arc<dyn Memory>,
    table: Mutex<Table>,
}

/// What a fenced producer left in the log, and how it was settled.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[must_use = "record `abandoned` at the owner, and wait for the requests in flight"]
pub struct EndedClaims {
    /// Claims that are DEAD now: the owner's next pass records them.
    pub dead: u64,
    /// Claims that were READY or DEAD already, without the agent having recorded it.
    pub over: u64,
    /// Claims above the limit: nothing was written there, nor ever will be. The owner records them
    /// with `DeviceLog::abandon`. Every later call returns them again.
    pub abandoned: Vec<Abandon>,
    /// Fetch-and-adds that failed or panicked: the position that they claimed, if any, is unknown.
    /// The hole rule voids it, and no producer has it open any more.
    pub unknown: u64,
    /// Claims that a request is still inside, which were left unchanged. The fence was not
    /// complete; call again when it is.
    pub in_flight: u64,
}

impl LogRights {
    /// Rights to a log, with nothing claimed. `memory` is the segment that `layout` describes.
    pub fn new(layout: LogLayout, memory: Arc<dyn Memory>) -> LogRights {
        LogRights { layout, memory, table: Mutex::default() }
    }

    pub(crate) fn layout(&self) -> LogLayout {
        self.layout
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to "have you no claim open below this position?". Once true it stays true; false
    /// means only "not yet".
    pub fn clear_below(&self, below: u64) -> bool {
        self.lock().claims.iter().all(|claim| match claim.at {
            // Its fetch-and-add comes after this answer, hence after B was read.
            At::Asked => true,
            At::Claiming(p) | At::Position(p) => p >= below,
        })
    }

    /// Open claims, and those of them in doubt: whether they were made stays unknown until
    /// [`LogRights::finish`].
    pub fn open(&self) -> (usize, usize) {
        let table = self.lock();
        let open = table.claims.iter().filter(|claim| claim.at != At::Asked).count();
        let in_doubt = |c: &&Claim| c.users.is_empty() && matches!(c.at, At::Claiming(_));
        (open, table.claims.iter().filter(in_doubt).count())
    }

    /// The producer gives up this claim. True if it was open, nothing was written for it and no
    /// request is inside: it is over now, and the caller must call `DeviceLog::abandon`. On false
    /// it must not: the claim is not this producer's, or is being written, or was written.
    pub fn abandon(&self, claim: Abandon) -> bool {
        let Abandon { p, n } = claim;
        let mut table = self.lock();
        let found = table.claims.iter().position(|c| {
            let this = c.position() == Some(p) && c.n == n;
            this && !c.written && c.users.is_empty()
        });
        found.map(|i| table.claims.swap_remove(i)).is_some()
    }

    /// Ends these rights and settles the open claims, after the token was revoked and drained. A
    /// claim below the limit becomes DEAD unless it is READY; claims above it are returned in
    /// [`EndedClaims::abandoned`]. May be repeated, and must be after an error (a device lost) or
    /// if a request was still inside.
    pub fn finish(&self) -> Result<EndedClaims, StoreError> {
        let mut table = self.lock();
        table.closed = true;
        let limit = self.memory.load(HEAP_LIMIT_OFF)?;
        let mut settled = EndedClaims::default();
        let mut i = 0;
        while let Some(claim) = table.claims.get(i) {
            if !claim.users.is_empty() {
                settled.in_flight += 1;
                i += 1;
                continue;
            }
            let n = claim.n;
            match (claim.below(&self.layout, limit), claim.position()) {
                (Some(p), _) if self.kill(p, n)? => settled.dead += 1,
                (Some(_), _) => settled.over += 1,
                (None, Some(p)) => table.given_up.push(Abandon { p, n }),
                (None, None) => settled.unknown += 1,
            }
            table.claims.swap_remove(i);
        }
        settled.abandoned.clone_from(&table.given_up);
        Ok(settled)
    }

    /// Marks a claim below the limit as DEAD if no request is inside; false if it was over. In that
    /// case the slot may belong to another claim by now and is not changed. Else it belongs to this
    /// claim until the store below: the tail does not pass an unsettled claim.
    fn kill(&self, p: u64, n: u64) -> Result<bool, StoreError> {
        let (at, Some(epoch)) = (self.layout.header_off(self.layout.slot(p)), self.layout.epoch(p))
        else {
            return Ok(false);
        };
        let publish = self.memory.load(at + PUBLISH_OFF)?;
        if epoch_of(publish) > epoch || [ready(epoch), dead(epoch)].contains(&publish) {
            return Ok(false);
        }
        let nobody = KeyId { hash: 0, check: 0 };
        let fields = producer_fields(nobody, &ObjectDesc::at(self.layout.payload_off(p), n, 0));
        // Everything its producer has written over any connection is ordered before this [I4].
        self.memory.flush();
        self.memory.write(at, &fields)?;
        self.memory.store(at + PUBLISH_OFF, dead(epoch))?;
        Ok(true)
    }

    /// Whether a request may make this change, with the current claims. If so, the request is
    /// inside the claim, or has an entry for the one it makes, until [`LogRights::leave`].
    pub(crate) fn check(&self, intent: &Intent, cut: &Arc<dyn Cut>) -> Result<(), String> {
        let layout = &self.layout;
        let change = LogChange::of(layout, intent).ok_or_else(|| {
            format!(
                "{intent:?} is not a change of a log producer: it adds whole units of {}, up to {} \
                 bytes, to the word at {BUMP_PTR_OFF}, and writes into its claims",
                layout.unit(),
                layout.max_claim()
            )
        })?;
        let limit = self.memory.load(HEAP_LIMIT_OFF).map_err(|e| e.to_string())?;
        let mut table = self.lock();
        if table.closed {
            return Err("the log rights of this token have ended: attach again".to_string());
        }
        if let LogChange::Bump { n } = change {
            if table.claims.len() >= MAX_OPEN_CLAIMS {
                return Err(format!(
                    "{MAX_OPEN_CLAIMS} claims of this token are open: settle some, or use the \
                     plan path"
                ));
            }
            table.claims.push(Claim::asked(n, cut));
            return Ok(());
        }
        let Some((i, p)) = table.find(layout, &change, |claim| claim.below(layout, limit)) else {
            return Err(format!(
                "{intent:?} is covered by none of the {} open claims of this token: write \
                 only into open claims, with their own epoch, and below the limit of {limit}",
                table.claims.len()
            ));
        };
        let claim = &mut table.claims[i];
        let allowed = claim.allow(layout, p, &change, cut);
        if allowed.is_err() && change.publishes() == Some(state::DEAD) {
            // Its producer wants to end it: a request that hangs inside would keep it open.
            let others = claim.users.iter().filter(|user| !Arc::ptr_eq(&user.cut, cut));
            others.for_each(|user| user.cut.cut());
        }
        allowed
    }

    /// A permitted change is about to be executed.
    pub(crate) fn starts(
        &self,
        intent: &Intent,
        bytes: &[u8],
        cut: &Arc<dyn Cut>,
    ) -> Result<(), String> {
        let layout = &self.layout;
        let lost = || format!("{intent:?} was not allowed");
        let change = LogChange::of(layout, intent).ok_or_else(lost)?;
        if let LogChange::Bump { n } = change {
            // The fetch-and-add returns no lower value than this.
            let bound = self.memory.load(BUMP_PTR_OFF).map_err(|e| e.to_string())?;
            let mut table = self.lock();
            let claim = table.on_its_way(n, cut, |at| at == At::Asked).ok_or_else(lost)?;
            claim.at = At::Claiming(bound);
            return Ok(());
        }
        let mut table = self.lock();
        let (i, p) = table.find_used(layout, &change, cut).ok_or_else(lost)?;
        let claim = &mut table.claims[i];
        if matches!(change, LogChange::Fields { .. }) {
            fields_of(layout, p, claim.n, bytes)?;
        }
        claim.written = true;
        Ok(())
    }

    /// A change was executed.
    pub(crate) fn done(&self, intent: &Intent, found: u64, cut: &Arc<dyn Cut>) {
        let layout = &self.layout;
        let mut table = self.lock();
        let Some(change) = LogChange::of(layout, intent) else {
            return;
        };
        if let LogChange::Bump { n } = change {
            let under_way = |at| matches!(at, At::Claiming(_));
            if let Some(claim) = table.on_its_way(n, cut, under_way) {
                claim.at = At::Position(found);
                claim.users.clear();
            }
            return;
        }
        let Some((i, _)) = table.find_used(layout, &change, cut) else {
            return;
        };
        let failed = matches!(*intent, Intent::CompareSwap { expect, .. } if found != expect);
        match change {
            LogChange::Fields { .. } => table.claims[i].fields = true,
            LogChange::Publish { to: state::READY | state::DEAD, .. } if !failed => {
                drop(table.claims.swap_remove(i));
            }
            _ => {}
        }
    }

    /// The request of this connection has left: it writes nothing more.
    pub(crate) fn leave(&self, cut: &Arc<dyn Cut>) {
        self.lock().leave(cut);
    }
}

/// Whether these are correct header fields for the claim of `n` bytes at `p`, as the owner checks
/// them.
fn fields_of(layout: &LogLayout, p: u64, n: u64, bytes: &[u8]) -> Result<(), String> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
        word.map(u64::from_ne_bytes)
    };
    let base = word(offset_of!(ObjHeader, payload_base));
    let total = word(offset_of!(ObjHeader, bytes_total));
    let fits = total.and_then(|total| layout.claim_bytes(total)) == Some(n);
    if fits && base == Some(layout.payload_off(p)) {
        return Ok(());
    }
    Err(format!(
        "a header that states {total:?} bytes at {base:?} for the claim of {n} bytes at {p}, whose \
                 payload lies at {}",
        layout.payload_off(p)
    ))
}

#[cfg(test)]
mod tests;
