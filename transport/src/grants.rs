//! The tokens of open plans and of producers with log rights: what each may change, and the fence
//! that ends it [I10]. It is kept outside the Owner actor and shared with the tcp agent, so a panic
//! of the actor loses no fence. It writes no byte itself. A token is forgotten on request after its
//! fence; an unknown token is refused.

use crate::access::{Access, Cut, Intent, Permit};
use crate::gate::Gate;
use crate::log_rights::LogRights;
use hashbrown::HashMap;
use nkv_store::arena::Extent;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::device_log::LogLayout;
use nkv_store::layout::{PRODUCER_FIELDS, PUBLISH_OFF, Region, epoch_of, low, state, word};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a request waits for its token to appear: the producer may receive the plan from the
/// master shortly before the owner does.
pub const TOKEN_WAIT: Duration = Duration::from_millis(500);

/// What one open plan may change in the owner's segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Segment offset of the object's header.
    pub header_off: u64,
    /// Epoch of the slot: the only one the publish word may get.
    pub epoch: u32,
    /// Where the payload goes.
    pub extent: Extent,
}

impl Grant {
    /// Checks whether the plan permits this change. Nothing else in the segment may be changed.
    pub fn check(&self, intent: &Intent) -> Result<(), String> {
        let publish = self.header_off.saturating_add(PUBLISH_OFF);
        let allowed = match *intent {
            Intent::Write { offset, len } => {
                let payload = Region { offset: self.extent.offset, len: self.extent.len };
                let fields = Region { offset: self.header_off, len: PRODUCER_FIELDS };
                payload.covers(offset, len) || fields.covers(offset, len)
            }
            Intent::Store { offset, value } => {
                let may = [word(state::WRITING, self.epoch), word(state::DEAD, self.epoch)];
                offset == publish && may.contains(&value)
            }
            Intent::CompareSwap { offset, expect, new } => {
                let from = matches!(low(expect), state::RESERVED | state::WRITING);
                let to = matches!(low(new), state::WRITING | state::READY | state::DEAD);
                let epochs = epoch_of(expect) == self.epoch && epoch_of(new) == self.epoch;
                offset == publish && from && to && epochs
            }
            Intent::FetchAdd { .. } => false,
        };
        if allowed {
            return Ok(());
        }
        Err(format!(
            "{intent:?} is not covered by the plan: header at {}, epoch {}, {} payload bytes at {}",
            self.header_off, self.epoch, self.extent.len, self.extent.offset
        ))
    }
}

/// The rights of a token.
#[derive(Debug)]
enum Rights {
    Plan(Grant),
    Log(Arc<LogRights>),
}

#[derive(Debug)]
struct Entry {
    rights: Rights,
    gate: Gate,
    // Connections inside the gate now; bounded by the agent's connections.
    in_flight: Mutex<Vec<Arc<dyn Cut>>>,
}

impl Entry {
    fn in_flight(&self) -> MutexGuard<'_, Vec<Arc<dyn Cut>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Known {
    entries: HashMap<u64, Arc<Entry>>,
    // Number of requests that wait for a token. Nearly always 0, and then `open` makes no system
    // call.
    waiting: usize,
}

/// All tokens of one owner.
#[derive(Debug, Default)]
pub struct Grants {
    known: Mutex<Known>,
    opened: Condvar,
}

/// A request inside its token's gate.
#[derive(Debug)]
pub struct Admitted {
    entry: Arc<Entry>,
    cut: Arc<dyn Cut>,
}

impl Grants {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `token` may change what `grant` covers. A known token stays unchanged: a
    /// repeated open neither extends a grant nor lifts a fence. Token 0 is never granted.
    pub fn open(&self, token: u64, grant: Grant) {
        self.open_as(token, Rights::Plan(grant));
    }

    /// From now on `token` may claim in the log and write its claims, over any connection. As with
    /// [`Grants::open`], a known token stays unchanged.
    pub fn open_log(&self, token: u64, rights: Arc<LogRights>) {
        self.open_as(token, Rights::Log(rights));
    }

    fn open_as(&self, token: u64, rights: Rights) {
        if token == 0 {
            tracing::error!(?rights, "opened with token 0: its tcp writes will be refused");
            return;
        }
        let mut known = self.lock();
        known.entries.entry(token).or_insert_with(|| {
            Arc::new(Entry { rights, gate: Gate::new(), in_flight: Mutex::new(Vec::new()) })
        });
        if known.waiting > 0 {
            self.opened.notify_all();
        }
    }

    /// Fences a token: no further request is admitted, and connections inside are cut, so that not
    /// even a stalled one stays. False if the token is unknown, which is refused anyway. The fence
    /// is complete when [`Grants::is_drained`].
    pub fn revoke(&self, token: u64) -> bool {
        let Some(entry) = self.lock().entries.get(&token).cloned() else {
            return false;
        };
        // Closed first: a request that enters the list after it was read sees the gate closed and
        // leaves.
        entry.gate.close();
        for connection in entry.in_flight().iter() {
            connection.cut();
        }
        true
    }

    /// True if no byte of this token is or will be written: it is unknown, or revoked with no
    /// request inside.
    pub fn is_drained(&self, token: u64) -> bool {
        self.lock().entries.get(&token).is_none_or(|e| e.gate.is_closed() && e.gate.is_drained())
    }

    /// Waits for [`Grants::is_drained`] of a revoked token; false if a request is still inside
    /// after `timeout`.
    pub fn wait_drained(&self, token: u64, timeout: Duration) -> bool {
        let Some(entry) = self.lock().entries.get(&token).cloned() else {
            return true;
        };
        entry.gate.is_closed() && entry.gate.wait_drained(timeout)
    }

    /// Removes a token whose fence is complete or whose plan ended normally; closes its gate. A
    /// token with log rights only after its fence, since the rights cannot be settled while a
    /// request is inside.
    pub fn forget(&self, token: u64) {
        if let Some(entry) = self.lock().entries.remove(&token) {
            entry.gate.close();
        }
    }

    /// Number of known tokens, including revoked ones.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// True if no token is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of a token; waits for it to appear if needed.
    fn find(&self, token: u64, wait: Duration) -> Option<Arc<Entry>> {
        let deadline = BootClock.now_ns().saturating_add(wait.as_nanos() as u64);
        let mut known = self.lock();
        loop {
            if let Some(e) = known.entries.get(&token) {
                return Some(e.clone());
            }
            let left = deadline.saturating_sub(BootClock.now_ns());
            if token == 0 || left == 0 {
                return None;
            }
            known.waiting += 1;
            let waited = self.opened.wait_timeout(known, Duration::from_nanos(left));
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
            known.waiting -= 1;
        }
    }

    /// Admits one request of `token`, waiting up to `wait` for the token to become known.
    pub fn enter(
        &self,
        token: u64,
        wait: Duration,
        cut: &Arc<dyn Cut>,
    ) -> Result<Admitted, String> {
        let entry = self.find(token, wait).ok_or_else(|| {
            format!(
                "token {token:#018x} belongs to no open plan or log right (waited {} ms)",
                wait.as_millis()
            )
        })?;
        let revoked =
            || format!("token {token:#018x} was revoked: its plan or log right has ended");
        if !entry.gate.acquire() {
            return Err(revoked());
        }
        entry.in_flight().push(cut.clone());
        let admitted = Admitted { entry, cut: cut.clone() };
        if admitted.entry.gate.is_closed() {
            return Err(revoked());
        }
        Ok(admitted)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // Before the gate: a thread that sees the gate empty also finds no claim in use.
        if let Rights::Log(log) = &self.entry.rights {
            log.leave(&self.cut);
        }
        let mut in_flight = self.entry.in_flight();
        if let Some(i) = in_flight.iter().position(|c| Arc::ptr_eq(c, &self.cut)) {
            in_flight.swap_remove(i);
        }
        drop(in_flight);
        self.entry.gate.release();
    }
}

impl Permit for Admitted {
    fn check(&self, intent: &Intent) -> Result<(), String> {
        match &self.entry.rights {
            Rights::Plan(grant) => grant.check(intent),
            Rights::Log(log) => log.check(intent, &self.cut),
        }
    }

    fn starts(&self, intent: &Intent, bytes: &[u8]) -> Result<(), String> {
        match &self.entry.rights {
            Rights::Plan(_) => Ok(()),
            Rights::Log(log) => log.starts(intent, bytes, &self.cut),
        }
    }

    fn done(&self, intent: &Intent, found: u64) {
        if let Rights::Log(log) = &self.entry.rights {
            log.done(intent, found, &self.cut);
        }
    }

    fn is_revoked(&self) -> bool {
        self.entry.gate.is_closed()
    }

    fn log(&self) -> Option<LogLayout> {
        match &self.entry.rights {
            Rights::Plan(_) => None,
            Rights::Log(log) => Some(log.layout()),
        }
    }
}

impl Access for Grants {
    fn admit<'a>(&'a self, token: u64, cut: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String> {
        Ok(Box::new(self.enter(token, TOKEN_WAIT, cut)?))
    }
}

#[cfg(test)]
mod tests;
