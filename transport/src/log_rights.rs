//! What one producer without the segment's memory may do in the device log: the tcp agent claims
//! for its connections, lets each write only what its producer claimed, and knows at any moment
//! what is open (docs/reference/log.md, section 3). One value per producer and token, over whatever
//! connections. It places bytes only when it settles what an ended producer left; it asks nobody
//! and waits for nothing.
//!
//! *Nothing open below B?* An entry is in the table, under its lock, before the fetch-and-add that
//! the agent makes for it. If that one returned p < B, where the owner read B from `bump_ptr`, the
//! owner's acquire load synchronises with its release: the entry was made before the question, and
//! the answer, under the same lock, comes after it. It finds the entry, at a bound that is not
//! above p or at p itself, or what removed it: the claim's last verb, executed. So a yes stays
//! true.
//!
//! *Over is over.* Once READY took, or DEAD was stored, the owner may hand the bytes to the next
//! lap at any time. So a claim ends only in a request that is alone inside it, and as that
//! request's last verb for it: whoever is inside a claim holds it open, below B as well.
//!
//! *What a header says.* The owner believes a header whose size is a claim's. One that said more
//! than was claimed would settle what others claimed. So the fields are looked at as they arrive,
//! and no word that makes the owner look at them is stored before they were written.

mod change;
mod table;

use crate::access::{Cut, Intent};
use change::LogChange;
use nkv_store::Memory;
use nkv_store::device_log::{Abandon, BUMP_PTR_OFF, HEAP_LIMIT_OFF, LogGeometry};
use nkv_store::error::StoreError;
use nkv_store::key::KeyId;
use nkv_store::layout::{ObjHeader, PUBLISH_OFF, epoch_of};
use nkv_store::object::{dead, producer_fields, ready};
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::{At, Claim, Table};

/// Claims that one producer may have open over tcp, waiting ones included. Above, the plan path.
pub const MAX_OPEN_CLAIMS: usize = 64;

/// The log rights of one producer, behind one token. See [`crate::grants::Grants::open_log`].
#[derive(Debug)]
pub struct LogRights {
    geometry: LogGeometry,
    memory: Arc<dyn Memory>,
    table: Mutex<Table>,
}

/// What an ended producer left behind, and what became of it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[must_use = "what was abandoned is for the owner to note, and who is inside to wait for"]
pub struct EndedClaims {
    /// Claims that are DEAD now: the owner's next pass takes note of them.
    pub dead: u64,
    /// Claims that were READY or DEAD though the agent did not come to note it.
    pub over: u64,
    /// Claims above the limit: nothing was written there, nor ever will be. The owner notes them by
    /// `DeviceLog::abandon`. Returned again by every later call.
    pub abandoned: Vec<Abandon>,
    /// Fetch-and-adds that failed or panicked: where they claimed, if they did, nobody knows. The
    /// hole rule voids it, and nobody has it open any more.
    pub unknown: u64,
    /// Claims that a request is still inside: nothing was done about them. The fence was not
    /// complete; call again when it is.
    pub in_flight: u64,
}

impl LogRights {
    /// Rights to a log, with nothing claimed. `memory` is the segment of which `geometry` speaks.
    pub fn new(geometry: LogGeometry, memory: Arc<dyn Memory>) -> LogRights {
        LogRights { geometry, memory, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to "nothing open below this position?". Once true it stays true; false says only
    /// "not yet".
    pub fn clear_below(&self, below: u64) -> bool {
        self.lock().claims.iter().all(|claim| match claim.at {
            // Its fetch-and-add comes after this answer, hence after B was read.
            At::Asked => true,
            At::Claiming(p) | At::Position(p) => p >= below,
        })
    }

    /// Claims open, and those of them in doubt: made or not, nobody will know, until
    /// [`LogRights::finish`].
    pub fn open(&self) -> (usize, usize) {
        let table = self.lock();
        let open = table.claims.iter().filter(|claim| claim.at != At::Asked).count();
        (open, table.claims.iter().filter(|claim| Table::in_doubt(claim)).count())
    }

    /// The producer gave up this claim. True if it was open, nothing was written for it and nobody
    /// is inside: it is over now, and `DeviceLog::abandon` is to be called. On false it must not
    /// be: the claim is not this producer's, or is or was being written.
    pub fn abandon(&self, claim: Abandon) -> bool {
        let Abandon { p, n } = claim;
        let mut table = self.lock();
        let found = table.claims.iter().position(|c| {
            let this = c.position() == Some(p) && c.n == n;
            this && !c.written && c.users.is_empty()
        });
        found.map(|i| table.claims.swap_remove(i)).is_some()
    }

    /// Ends these rights and settles what is open, once its token is revoked with nobody inside:
    /// DEAD, unless READY, below the limit, and [`EndedClaims::abandoned`] above it. May be
    /// repeated, and has to be after an error (a device lost) or with somebody inside.
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
            match (claim.below(&self.geometry, limit), claim.position()) {
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

    /// DEAD for a claim below the limit that nobody is inside; false if it was over. Then the slot
    /// may be another claim's by now, and is not touched. Else it is this claim's until the store
    /// below: the tail does not pass what nobody settled.
    fn kill(&self, p: u64, n: u64) -> Result<bool, StoreError> {
        let (at, Some(epoch)) =
            (self.geometry.header_off(self.geometry.slot(p)), self.geometry.epoch(p))
        else {
            return Ok(false);
        };
        let publish = self.memory.load(at + PUBLISH_OFF)?;
        if epoch_of(publish) > epoch || [ready(epoch), dead(epoch)].contains(&publish) {
            return Ok(false);
        }
        let nobody = KeyId { hash: 0, check: 0 };
        let fields = producer_fields(nobody, 0, 0, self.geometry.payload_off(p), n);
        // What its producer had written over any connection is before it [I4].
        self.memory.flush();
        self.memory.write(at, &fields)?;
        self.memory.store(at + PUBLISH_OFF, dead(epoch))?;
        Ok(true)
    }

    /// Whether a request may make this change, as the claims are now. If so the request is inside
    /// the claim, or has a place for the one it makes, until [`LogRights::leave`].
    pub(crate) fn check(&self, intent: &Intent, cut: &Arc<dyn Cut>) -> Result<(), String> {
        let geometry = &self.geometry;
        let change = LogChange::of(geometry, intent).ok_or_else(|| {
            format!(
                "{intent:?} is nothing that a producer of the log does: it adds whole units of {} \
                 up to {} bytes to the word at {BUMP_PTR_OFF}, and writes what it claimed",
                geometry.unit(),
                geometry.max_claim()
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
                    "{MAX_OPEN_CLAIMS} claims of this token are open: settle some, or take the \
                     plan path"
                ));
            }
            table.claims.push(Claim::asked(n, cut));
            return Ok(());
        }
        let Some((i, p)) = table.find(geometry, &change, |claim| claim.below(geometry, limit))
        else {
            return Err(format!(
                "{intent:?} is covered by none of the {} open claims of this token: only what was \
                 claimed and is not over may be written, with its own epoch, and below the limit \
                 of {limit}",
                table.claims.len()
            ));
        };
        let claim = &mut table.claims[i];
        let allowed = claim.allow(geometry, p, &change, cut);
        if allowed.is_err() && matches!(change, LogChange::Dead { .. }) {
            // Its producer wants an end of it: a request that hangs inside would keep it open.
            let others = claim.users.iter().filter(|user| !Arc::ptr_eq(&user.cut, cut));
            others.for_each(|user| user.cut.cut());
        }
        allowed
    }

    /// A change that was allowed comes next.
    pub(crate) fn starts(
        &self,
        intent: &Intent,
        bytes: &[u8],
        cut: &Arc<dyn Cut>,
    ) -> Result<(), String> {
        let geometry = &self.geometry;
        let lost = || format!("{intent:?} was not allowed");
        let change = LogChange::of(geometry, intent).ok_or_else(lost)?;
        if let LogChange::Bump { n } = change {
            // Whatever the fetch-and-add finds is not below what is found now.
            let bound = self.memory.load(BUMP_PTR_OFF).map_err(|e| e.to_string())?;
            let mut table = self.lock();
            let claim = table.on_its_way(n, cut, |at| at == At::Asked).ok_or_else(lost)?;
            claim.at = At::Claiming(bound);
            return Ok(());
        }
        let mut table = self.lock();
        let (i, p) = table.find_used(geometry, &change, cut).ok_or_else(lost)?;
        let claim = &mut table.claims[i];
        if matches!(change, LogChange::Fields { .. }) {
            fields_of(geometry, p, claim.n, bytes)?;
        }
        claim.written = true;
        Ok(())
    }

    /// A change was made.
    pub(crate) fn done(&self, intent: &Intent, found: u64, cut: &Arc<dyn Cut>) {
        let geometry = &self.geometry;
        let mut table = self.lock();
        let Some(change) = LogChange::of(geometry, intent) else {
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
        let Some((i, _)) = table.find_used(geometry, &change, cut) else {
            return;
        };
        match (change, *intent) {
            (LogChange::Fields { .. }, _) => table.claims[i].fields = true,
            (LogChange::Ready { .. }, Intent::CompareSwap { expect, .. }) if found != expect => {}
            (LogChange::Ready { .. } | LogChange::Dead { .. }, _) => {
                drop(table.claims.swap_remove(i))
            }
            _ => {}
        }
    }

    /// The request of this connection is out: it places no more.
    pub(crate) fn leave(&self, cut: &Arc<dyn Cut>) {
        self.lock().leave(cut);
    }
}

/// Whether these are the fields of the claim of `n` bytes at `p`, as the owner would believe them.
fn fields_of(geometry: &LogGeometry, p: u64, n: u64, bytes: &[u8]) -> Result<(), String> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
        word.map(u64::from_ne_bytes)
    };
    let base = word(offset_of!(ObjHeader, payload_base));
    let total = word(offset_of!(ObjHeader, bytes_total));
    let fits = total.and_then(|total| geometry.claim_bytes(total)) == Some(n);
    if fits && base == Some(geometry.payload_off(p)) {
        return Ok(());
    }
    Err(format!(
        "a header that says {total:?} bytes at {base:?} for the claim of {n} bytes at {p}, whose \
                 payload lies at {}",
        geometry.payload_off(p)
    ))
}

#[cfg(test)]
mod tests;
