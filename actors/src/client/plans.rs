//! The open plans of a producer, shared by the handle that writes and the links over which owners
//! end plans. A gate per plan shows whether a write is in flight. A plan that its owner dropped is
//! never started, even if the reply that grants it arrives later [I10].

use super::log_names::LogNames;
use super::peer::Peer;
use crate::attachment::ProducerGates;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::message::{KeyBytes, KeyReport, PlanDesc, PlanId, PlanRef, Term};
use gates::OwnerGates;
use hashbrown::{HashMap, HashSet};
use nkv_store::device_log::{LogLayout, OpenClaims};
use nkv_store::{Key, KeyId};
use nkv_transport::gate::{Gate, InFlight, Inside};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

mod gates;

/// Owners whose unreported keys are kept although no attachment to them is left.
const MOST_NAMED: usize = 256;
/// How long a publish waits for writes of other threads.
const SEAL_LIMIT: Duration = Duration::from_secs(1);

/// One open plan of this process.
#[derive(Debug)]
pub struct PlanState {
    pub(crate) desc: PlanDesc,
    pub(crate) key: Key,
    pub(crate) peer: Arc<Peer>,
    pub(crate) deadline_ns: u64,
    gate: Arc<Gate>,
    // Inside the gate for kernels, whose writes it does not see.
    held: Mutex<Option<Inside>>,
    for_kernels: AtomicBool,
    // Held until its slot is dropped, also when the plan is closed before.
    in_place: AtomicBool,
    announced: AtomicBool,
    sealed: AtomicBool,
    broken: AtomicBool,
    pub(crate) committing: tokio::sync::Mutex<()>,
    committed: AtomicBool,
    // Its caller has finished with it.
    forgotten: AtomicBool,
    covered: Mutex<Ranges>,
    group: Option<KeyId>,
}

impl PlanState {
    pub(crate) fn new(desc: PlanDesc, key: Key, peer: Arc<Peer>, deadline_ns: u64) -> Self {
        Self {
            desc,
            key,
            peer,
            deadline_ns,
            gate: Arc::new(Gate::new()),
            held: Mutex::default(),
            for_kernels: AtomicBool::new(false),
            in_place: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            committing: tokio::sync::Mutex::new(()),
            committed: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            covered: Mutex::new(Ranges::default()),
            group: None,
        }
    }

    /// Its object belongs to this group.
    pub(crate) fn in_group(self, group: Option<KeyId>) -> Self {
        Self { group, ..self }
    }

    /// What the owner is to learn of its group, once it is committed.
    pub(crate) fn group_report(&self) -> Option<KeyReport> {
        let (slot, epoch) = (self.desc.meta.at.slot, self.desc.meta.at.epoch);
        let key = || KeyBytes::shared(self.key.clone());
        self.group.map(|group| KeyReport { slot, epoch, key: key(), group: Some(group) })
    }

    /// Enters the gate to write: while the guard lives, the owner does not reuse the extent.
    pub(crate) fn enter(&self, now_ns: u64) -> Result<InFlight<'_>> {
        let in_flight = self.enter_sealed(now_ns)?;
        if self.sealed.load(Ordering::SeqCst) {
            return Err(Error::invalid(format!(
                "key {} is being published; its bytes cannot change any more",
                self.key
            )));
        }
        Ok(in_flight)
    }

    /// Stays inside the gate until the plan is closed: kernels may write, and the owner does not
    /// reuse the extent meanwhile, also past the deadline [I10].
    pub(crate) fn hold(&self, now_ns: u64) -> Result<()> {
        let _inside = self.enter(now_ns)?;
        self.for_kernels.store(true, Ordering::SeqCst);
        let mut held = self.held();
        if held.is_none() {
            *held = Some(self.gate.enter_shared().ok_or_else(|| self.ended())?);
        }
        Ok(())
    }

    /// Stays inside the gate until [`Self::let_go`], also after the plan is closed: who has a slot
    /// may write there as long as it keeps that.
    pub(crate) fn keep_held(&self) {
        self.in_place.store(true, Ordering::SeqCst);
    }

    /// Enters a plan that is held, to write or read in place: also past the deadline, and after its
    /// owner has ended it.
    pub(crate) fn enter_held(&self) -> Result<Inside> {
        let inside = self.held().as_ref().map(Inside::again);
        // In this order: a seal that does not see this one inside is seen here.
        inside.filter(|_| !self.sealed.load(Ordering::SeqCst)).ok_or_else(|| {
            let text = format!("key {} is committed, or being committed, or given up", self.key);
            Error::invalid(text)
        })
    }

    /// Whether its slot keeps it, and nobody writes through this library now.
    fn is_kept_alone(&self) -> bool {
        self.in_place.load(Ordering::SeqCst) && self.is_held() && self.gate.inside() <= 1
    }

    fn held(&self) -> MutexGuard<'_, Option<Inside>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether kernels may write.
    pub(crate) fn is_held(&self) -> bool {
        self.held().is_some()
    }

    /// Whether kernels were let in, and perhaps have ended.
    pub(crate) fn is_for_kernels(&self) -> bool {
        self.for_kernels.load(Ordering::SeqCst)
    }

    /// Whether kernels may write, and nobody else. The gate must be closed: nobody enters any more.
    fn is_held_alone(&self) -> bool {
        self.is_held() && self.gate.inside() <= 1
    }

    /// No kernel writes any more.
    pub(crate) fn let_go(&self) {
        *self.held() = None;
    }

    /// The master has committed the plan.
    pub(crate) fn note_committed(&self) {
        self.committed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.committed.load(Ordering::SeqCst)
    }

    /// Lets no new write start and waits for those in flight; Timeout after `SEAL_LIMIT` [I6].
    pub(crate) fn seal(&self, machine: &dyn Machine) -> Result<()> {
        self.sealed.store(true, Ordering::SeqCst);
        for _ in 0..SEAL_LIMIT.as_millis() {
            if self.gate.inside() <= u32::from(self.is_held()) {
                return Ok(());
            }
            machine.rest(Duration::from_millis(1));
        }
        Err(Error::timeout(format!(
            "a write for key {} was still in flight after {SEAL_LIMIT:?}",
            self.key
        )))
    }

    /// Records that a write failed midway: the content of the extent is unknown, and over tcp its
    /// bytes may still arrive. Such a plan is never published.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// An error if a write of this plan failed.
    pub(crate) fn check_whole(&self) -> Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Error::reclaimed(format!(
                "a write for key {} failed before; abort it and put it again",
                self.key
            )));
        }
        Ok(())
    }

    /// Allows writes again, after a publish that found bytes missing.
    pub(crate) fn unseal(&self) {
        self.sealed.store(false, Ordering::SeqCst);
    }

    /// Enters the gate to publish.
    pub(crate) fn enter_sealed(&self, now_ns: u64) -> Result<InFlight<'_>> {
        if now_ns >= self.deadline_ns {
            return Err(Error::reclaimed(format!(
                "the {} ms to write key {} are over; open a new plan (or raise write_ttl_ms)",
                self.desc.write_ttl_ms, self.key
            )));
        }
        self.gate.enter().ok_or_else(|| self.ended())
    }

    fn ended(&self) -> Error {
        Error::reclaimed(format!(
            "the plan for key {} was ended by rank {} (expired, aborted or removed)",
            self.key, self.desc.meta.rank
        ))
    }

    /// True for the first caller: the header fields and WRITING are still to be written.
    pub(crate) fn first_write(&self) -> bool {
        !self.announced.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn cover(&self, offset: u64, len: u64) {
        self.covered.lock().unwrap_or_else(PoisonError::into_inner).add(offset, len);
    }

    /// Bytes of the object that no write has covered yet.
    pub(crate) fn missing(&self) -> u64 {
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner).total();
        self.desc.meta.object.bytes_total.saturating_sub(covered)
    }

    /// The reference that a commit or abort of this plan sends.
    pub(crate) fn reference(&self) -> PlanRef {
        PlanRef { plan: self.desc.plan, at: self.desc.meta.at, key: self.desc.meta.key }
    }
}

/// Disjoint byte ranges, merged as they grow.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + len);
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(s, e)| e - s).sum()
    }
}

#[derive(Debug, Default)]
struct Inner {
    by_plan: BTreeMap<PlanId, Arc<PlanState>>,
    // Closed plans with a write still in flight.
    leaving: BTreeMap<PlanId, Arc<PlanState>>,
    by_key: HashMap<Key, PlanId>,
    // Plans for kernels that are committed and whose callers have not finished with them: a commit
    // of the key does nothing.
    committed: HashMap<Key, PlanId>,
    // Plans ended before their grant arrived. Emptied whenever no open is in flight, so its size
    // is bounded by what the master granted meanwhile.
    refused: HashSet<PlanId>,
    opening: usize,
    // The handle is closed: no further plan is registered.
    shut: bool,
    // The terms that owners obey, by incarnation, as long as there is an attachment.
    terms: BTreeMap<u64, Weak<Mutex<Term>>>,
    // Keys that owners do not have yet, by incarnation.
    names: BTreeMap<u64, Arc<LogNames>>,
}

impl Inner {
    /// Removes the closed plans that have no write in flight. The caller drops them after it
    /// releases the lock.
    fn leave(&mut self) -> Vec<Arc<PlanState>> {
        self.leaving.extract_if(.., |_, p| p.gate.is_drained()).map(|(_, p)| p).collect()
    }
}

/// All open plans of one producer.
#[derive(Debug, Default)]
pub struct OpenPlans(Mutex<Inner>);

/// Marks that an `OpenForWrite` is in flight.
#[derive(Debug)]
pub(crate) struct Opening<'a>(&'a OpenPlans);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.opening -= 1;
        if inner.opening == 0 {
            inner.refused.clear();
        }
    }
}

impl OpenPlans {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys that an owner does not have yet, of all attachments to it: one that breaks leaves
    /// them to the next.
    pub(crate) fn names(&self, incarnation: u64, layout: LogLayout) -> Arc<LogNames> {
        let mut inner = self.lock();
        if inner.names.len() >= MOST_NAMED && !inner.names.contains_key(&incarnation) {
            inner.names.retain(|_, names| Arc::strong_count(names) > 1);
        }
        inner.names.entry(incarnation).or_insert_with(|| Arc::new(LogNames::new(layout))).clone()
    }

    /// The gates of a new attachment to an owner, with the open claims and the keys that the owner
    /// asks for.
    pub(crate) fn gates(
        self: &Arc<Self>,
        incarnation: u64,
        claims: Option<Arc<OpenClaims>>,
        names: Option<Arc<LogNames>>,
    ) -> Arc<dyn ProducerGates> {
        let mut inner = self.lock();
        let known = inner.terms.get(&incarnation).and_then(Weak::upgrade);
        let term = known.unwrap_or_else(|| {
            inner.terms.retain(|_, term| term.strong_count() > 0);
            let made = Arc::new(Mutex::default());
            inner.terms.insert(incarnation, Arc::downgrade(&made));
            made
        });
        Arc::new(OwnerGates { plans: self.clone(), incarnation, term, claims, names })
    }

    /// Call before requesting plans; keep the guard until the granted ones are registered or given
    /// up. Disconnected if the handle is closed.
    pub(crate) fn opening(&self) -> Result<Opening<'_>> {
        let mut inner = self.lock();
        if inner.shut {
            return Err(Error::handle_closed());
        }
        inner.opening += 1;
        Ok(Opening(self))
    }

    /// True when no `OpenForWrite` is in flight.
    pub(crate) fn none_opening(&self) -> bool {
        self.lock().opening == 0
    }

    /// Registers a granted plan. Reclaimed if its owner has ended it already; Disconnected if the
    /// handle is closed.
    pub(crate) fn register(&self, plan: PlanState) -> Result<Arc<PlanState>> {
        let mut inner = self.lock();
        if inner.shut {
            return Err(Error::handle_closed());
        }
        let obeyed = plan.peer.gates.obeyed();
        if inner.refused.contains(&plan.desc.plan) || plan.desc.plan.term < obeyed {
            return Err(Error::reclaimed(format!(
                "the plan for key {} was ended before it could be used",
                plan.key
            )));
        }
        let plan = Arc::new(plan);
        inner.by_key.insert(plan.key.clone(), plan.desc.plan);
        inner.committed.remove(&plan.key);
        inner.by_plan.insert(plan.desc.plan, plan.clone());
        Ok(plan)
    }

    /// The open plan of a key.
    pub(crate) fn of_key(&self, key: &Key) -> Option<Arc<PlanState>> {
        let inner = self.lock();
        inner.by_key.get(key).and_then(|p| inner.by_plan.get(p)).cloned()
    }

    /// Refuses all further opens and registrations: the handle is being closed.
    pub(crate) fn shut(&self) {
        self.lock().shut = true;
    }

    /// All open plans.
    pub(crate) fn all(&self) -> Vec<Arc<PlanState>> {
        self.lock().by_plan.values().cloned().collect()
    }

    /// Removes a plan that was committed, aborted or refused.
    pub(crate) fn close(&self, plan: &PlanState) {
        // A thread that still holds the plan cannot write any more: the object may be LIVE now
        // [I6].
        plan.gate.close();
        if !plan.in_place.load(Ordering::SeqCst) {
            plan.let_go();
        }
        let mut inner = self.lock();
        let is = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        if is(&plan.for_kernels) && is(&plan.committed) && !is(&plan.forgotten) {
            inner.committed.insert(plan.key.clone(), plan.desc.plan);
        }
        // Dropped after this lock is released: the drop of a peer's last reference takes the
        // owner's lock, and the owner holds that lock while it calls here.
        let mut gone = inner.leave();
        // A plan with a write in flight is kept in `leaving`. Otherwise its owner would be notified
        // that no write is in flight.
        match inner.by_plan.remove(&plan.desc.plan) {
            Some(p) if !p.gate.is_drained() => drop(inner.leaving.insert(plan.desc.plan, p)),
            out => gone.extend(out),
        }
        if inner.by_key.get(&plan.key) == Some(&plan.desc.plan) {
            inner.by_key.remove(&plan.key);
        }
        drop(inner);
        drop(gone);
    }

    /// Whether the last plan for kernels of a key is committed, and its caller knows it now.
    pub(crate) fn take_committed(&self, key: &Key) -> bool {
        self.lock().committed.remove(key).is_some()
    }

    /// The caller of a plan has finished with it.
    pub(crate) fn forget(&self, plan: &PlanState) {
        let mut inner = self.lock();
        plan.forgotten.store(true, Ordering::SeqCst);
        if inner.committed.get(&plan.key) == Some(&plan.desc.plan) {
            inner.committed.remove(&plan.key);
        }
    }

    /// Ends a plan at its owner's request: no write of it starts any more.
    pub(crate) fn drop_plan(&self, plan: PlanId) {
        let mut inner = self.lock();
        match inner.by_plan.get(&plan) {
            Some(p) => p.gate.close(),
            None if inner.opening > 0 => {
                inner.refused.insert(plan);
            }
            None => {}
        }
    }

    /// True when no write is in flight for any plan, open or closed, beside those of who keeps a
    /// slot.
    pub(crate) fn all_drained(&self) -> bool {
        let mut inner = self.lock();
        let gone = inner.leave();
        let mut all = inner.leaving.values().chain(inner.by_plan.values());
        let out = all.all(|p| p.gate.is_drained() || p.is_kept_alone());
        drop(inner);
        drop(gone);
        out
    }

    /// Whether somebody keeps a slot in the memory of this owner.
    pub(crate) fn has_slots_at(&self, incarnation: u64) -> bool {
        let inner = self.lock();
        let mut all = inner.leaving.values().chain(inner.by_plan.values());
        all.any(|p| p.desc.meta.at.incarnation == incarnation && p.is_kept_alone())
    }

    /// True if this plan is open.
    pub(crate) fn holds(&self, plan: PlanId) -> bool {
        self.lock().by_plan.contains_key(&plan)
    }

    /// Number of plans open now.
    pub fn len(&self) -> usize {
        self.lock().by_plan.len()
    }
}

#[cfg(test)]
mod tests;
