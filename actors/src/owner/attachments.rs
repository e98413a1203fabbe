//! Who has this owner's memory mapped, and which of them still have to say that they dropped a
//! plan [I10]. Lies outside the Owner actor, so a panic does not lose it.

use crate::message::{OwnerToClient, PlanId, Term};
use crate::plans::{Obeyed, OpenPlans};
use nkv_transport::fabric::RemoteAccess;
use nkv_transport::wire::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A `Drop` that was not answered is said again after this long.
const RESEND_NS: u64 = 1_000_000_000;
/// One that writes through devices is severed if it has not answered after this long.
const SEVER_NS: u64 = 3_000_000_000;
/// Frames waiting for one attached process.
pub const ATTACH_QUEUE: usize = 4096;

/// How an attached producer is told to drop a plan.
#[derive(Debug, Clone)]
pub enum Route {
    /// In this very process.
    Local(Arc<OpenPlans>, Arc<Obeyed>),
    /// Another process of this host, by its attach connection.
    Process {
        /// Frames to it.
        tx: mpsc::Sender<OwnerToClient>,
        /// Proof of its death. Without one nobody could ever be sure that it writes no more: it is
        /// served through the agent, which fences it.
        process: Arc<dyn Process>,
    },
    /// A process anywhere, which writes through devices.
    Fabric {
        /// Frames to it.
        tx: mpsc::Sender<OwnerToClient>,
        /// Its way in: severed, nothing of it is executed here any more.
        served: Arc<dyn RemoteAccess>,
    },
}

impl Route {
    /// True when nobody at its other end can write what is asked about: this process says so of
    /// its own plans by `here`, another one is out when it is dead.
    fn is_drained(&self, here: impl FnOnce(&OpenPlans, &Obeyed) -> bool) -> bool {
        match self {
            Self::Local(plans, obeyed) => here(plans, obeyed),
            // A broken connection proves nothing.
            Self::Process { process, .. } => !process.is_alive(),
            Self::Fabric { served, .. } => served.is_severed(),
        }
    }

    /// A word to another process, if its queue has room: `remind` sees to what was not answered.
    fn send(&self, message: OwnerToClient) {
        match self {
            Self::Local(..) => {}
            Self::Process { tx, .. } | Self::Fabric { tx, .. } => drop(tx.try_send(message)),
        }
    }

    /// Tells its end to drop a plan.
    fn drop_plan(&self, plan: PlanId) {
        match self {
            Self::Local(plans, _) => plans.drop_plan(plan),
            other => other.send(OwnerToClient::Drop(plan)),
        }
    }

    /// Says again to another process what it has not answered for a while. One that writes through
    /// devices is not waited for: its way in is severed.
    fn remind(&self, message: OwnerToClient, sent_ns: &mut u64, now_ns: u64) {
        let waited = now_ns.saturating_sub(*sent_ns);
        match self {
            Self::Process { tx, .. } if waited > RESEND_NS => {
                *sent_ns = now_ns;
                let _ = tx.try_send(message);
            }
            Self::Fabric { served, .. } if waited > SEVER_NS => served.sever(),
            _ => {}
        }
    }

    /// Whether a word said over another attachment of its producer speaks for this one. What was
    /// sent through a device may arrive after its sender gave it up, so of such a way only its own
    /// link knows.
    fn covers_others(&self) -> bool {
        !matches!(self, Self::Fabric { .. })
    }
}

#[derive(Debug)]
struct Attachment {
    producer: u64,
    route: Route,
    // Plans it was told to drop and when; until answered, their extents are held.
    pending: BTreeMap<PlanId, u64>,
    // The term it was told to obey and when, until it said that it does.
    term: Option<(Term, u64)>,
    // The position of the log it was asked about and when, until it said that nothing is open
    // below.
    clear: Option<(u64, u64)>,
    // It stands for broken ones of the same producer, too.
    stands_for: bool,
    // Its connection ended without `Detach`: only its death frees what is pending.
    cut: bool,
}

impl Attachment {
    fn dead(&self) -> bool {
        self.route.is_drained(|_, _| false)
    }
}

/// Names one attachment.
pub type AttachId = u64;

#[derive(Debug, Default)]
struct Inner {
    next: AttachId,
    all: BTreeMap<AttachId, Attachment>,
    // Who answers about the log instead of an attachment that broke off.
    stand_ins: BTreeMap<AttachId, AttachId>,
    // Those that died before they answered about the log: fenced by their death, not clear by a
    // word.
    died: BTreeSet<AttachId>,
}

impl Inner {
    fn answers_for(&self, mut id: AttachId) -> AttachId {
        while let Some(later) = self.stand_ins.get(&id) {
            id = *later;
        }
        id
    }

    /// Those for which a word over attachment `id` of `producer` speaks.
    fn covered_by(&mut self, id: AttachId, producer: u64) -> impl Iterator<Item = &mut Attachment> {
        let of = move |(other, a): &(&AttachId, &mut Attachment)| {
            a.producer == producer && (**other == id || a.route.covers_others())
        };
        self.all.iter_mut().filter(of).map(|(_, a)| a)
    }

    /// Forgets the attachments of dead processes that hold nothing any more; those `with_plans`
    /// too.
    fn forget_dead(&mut self, with_plans: bool) {
        let Self { all, died, .. } = self;
        all.retain(|id, a| {
            let over = a.cut && (with_plans || a.pending.is_empty()) && a.dead();
            if over && a.clear.is_some() {
                died.insert(*id);
            }
            !over
        });
    }
}

/// All attachments of one owner.
#[derive(Debug, Default)]
pub struct Attachments(Mutex<Inner>);

impl Attachments {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A producer mapped the memory.
    pub fn add(&self, producer: u64, route: Route) -> AttachId {
        let mut inner = self.lock();
        inner.next += 1;
        let id = inner.next;
        // What an attachment that broke off was still asked, this one is asked now.
        let (mut pending, mut term, mut clear) = (BTreeMap::new(), None, None);
        let mut stands_for = false;
        for old in inner.all.values().filter(|a| a.producer == producer && a.cut) {
            stands_for = true;
            pending.extend(old.pending.iter().map(|(plan, sent)| (*plan, *sent)));
            term = term.max(old.term);
            clear = clear.max(old.clear);
        }
        if let Some((term, _)) = term {
            route.send(OwnerToClient::Term(term));
        }
        for plan in pending.keys() {
            route.drop_plan(*plan);
        }
        if route.covers_others() {
            let broken = |a: &Attachment| a.producer == producer && a.cut && a.clear.is_some();
            let replaced: Vec<_> =
                inner.all.iter().filter(|(_, a)| broken(a)).map(|(old, _)| *old).collect();
            inner.stand_ins.extend(replaced.into_iter().map(|old| (old, id)));
            if let Some((below, _)) = clear {
                route.send(OwnerToClient::ClearBelow(below));
            }
            // One gate stands for all attachments of a producer, so the latest stands for the
            // broken ones: a process that attaches again and again holds one entry.
            inner.all.retain(|_, a| !(a.producer == producer && a.cut));
        } else {
            // Severing it proves nothing of memory that the process maps: what broke off stays,
            // until the producer's word of it comes over this link, or its process dies. Asked just
            // now.
            stands_for = false;
            pending.values_mut().for_each(|sent| *sent = u64::MAX);
            term = term.map(|(term, _)| (term, u64::MAX));
            clear = None;
        }
        let made = Attachment { producer, route, pending, term, clear, stands_for, cut: false };
        inner.all.insert(id, made);
        id
    }

    /// It said that nothing of it is or will be written here.
    pub fn detach(&self, id: AttachId) {
        let route = self.lock().all.get(&id).map(|a| a.route.clone());
        if let Some(Route::Fabric { served, .. }) = route {
            served.sever();
        }
        // Dropped without the lock: with it may go the plans of a whole handle.
        let gone = self.lock().all.remove(&id);
        drop(gone);
    }

    /// It was never used, which says nothing of the broken ones that it stands for [I10].
    pub fn take_back(&self, id: AttachId) {
        if self.lock().all.get(&id).is_some_and(|a| a.stands_for) {
            self.cut(id);
        } else {
            self.detach(id);
        }
    }

    /// Its connection ended without a word.
    pub fn cut(&self, id: AttachId) {
        let mut inner = self.lock();
        if let Some(a) = inner.all.get_mut(&id) {
            a.cut = true;
        }
        inner.forget_dead(true);
    }

    /// The producer said, over attachment `id`, that nothing of this plan is or will be written:
    /// its gate is one for all of them, broken ones included.
    pub fn dropped(&self, id: AttachId, producer: u64, plan: PlanId) {
        for a in self.lock().covered_by(id, producer) {
            if let Route::Fabric { served, .. } = &a.route {
                tracing::debug!(pairs = ?served.pairs(), plan = plan.seq, "dropped by its word");
            }
            a.pending.remove(&plan);
        }
    }

    /// Tells every attachment of `producer` to drop `plan`.
    pub fn drop_plan(&self, producer: u64, plan: PlanId, now_ns: u64) {
        let mut inner = self.lock();
        for a in inner.all.values_mut().filter(|a| a.producer == producer) {
            a.route.drop_plan(plan);
            a.pending.insert(plan, now_ns);
        }
    }

    /// True when no attachment of `producer` can still write for `plan`.
    pub fn is_dropped(&self, producer: u64, plan: PlanId, now_ns: u64) -> bool {
        let mut inner = self.lock();
        let mut all = true;
        for a in inner.all.values_mut().filter(|a| a.producer == producer) {
            let Some(sent) = a.pending.get_mut(&plan) else {
                continue;
            };
            if a.route.is_drained(|plans, _| plans.is_drained(plan)) {
                a.pending.remove(&plan);
                continue;
            }
            all = false;
            a.route.remind(OwnerToClient::Drop(plan), sent, now_ns);
        }
        inner.forget_dead(false);
        all
    }

    /// Tells every attachment that plans of lower terms are over: those in flight, those not
    /// started, and those whose grant is still on its way, which the owner may never have heard of.
    pub fn new_term(&self, term: Term, now_ns: u64) {
        for a in self.lock().all.values_mut() {
            match &a.route {
                Route::Local(plans, obeyed) => plans.obey(obeyed, term),
                other => other.send(OwnerToClient::Term(term)),
            }
            a.term = Some((term, now_ns));
        }
    }

    /// A producer said, over attachment `id`, that it obeys a term with all of them.
    pub fn term_obeyed(&self, id: AttachId, producer: u64, term: Term) {
        for a in self.lock().covered_by(id, producer) {
            if a.term.is_some_and(|(asked, _)| asked <= term) {
                a.term = None;
            }
        }
    }

    /// True when no attachment can still write for a plan of a lower term.
    pub fn all_obey(&self, now_ns: u64) -> bool {
        let mut inner = self.lock();
        let mut all = true;
        for a in inner.all.values_mut() {
            let Some((term, sent)) = &mut a.term else { continue };
            if a.route.is_drained(|plans, obeyed| plans.obeys(obeyed, *term)) {
                a.term = None;
                continue;
            }
            all = false;
            a.route.remind(OwnerToClient::Term(*term), sent, now_ns);
        }
        inner.forget_dead(false);
        all
    }

    /// Asks everybody who may claim in the log whether nothing is open below a position; who they
    /// are.
    pub fn ask_clear(&self, below: u64, now_ns: u64) -> Vec<AttachId> {
        let mut inner = self.lock();
        // A check that ended needs nobody to stand in.
        inner.stand_ins.clear();
        inner.died.clear();
        for a in inner.all.values_mut() {
            a.route.send(OwnerToClient::ClearBelow(below));
            a.clear = Some((below, now_ns));
        }
        inner.all.keys().copied().collect()
    }

    /// An attachment's process said that nothing of it is open below.
    pub fn clear_below(&self, id: AttachId, below: u64) {
        if let Some(a) = self.lock().all.get_mut(&id)
            && a.clear.is_some_and(|(asked, _)| asked <= below)
        {
            a.clear = None;
        }
    }

    /// True once it said so, or said goodbye. Asked again after a while.
    pub fn is_clear_below(&self, id: AttachId, below: u64, now_ns: u64) -> bool {
        let mut inner = self.lock();
        let id = inner.answers_for(id);
        let Some(a) = inner.all.get_mut(&id) else { return true };
        let Some((_, sent)) = &mut a.clear else { return true };
        if let Route::Local(_, obeyed) = &a.route {
            return obeyed.is_clear_below(below);
        }
        a.route.remind(OwnerToClient::ClearBelow(below), sent, now_ns);
        false
    }

    /// True if that attachment's process is dead.
    pub fn cannot_write(&self, id: AttachId) -> bool {
        let inner = self.lock();
        let id = inner.answers_for(id);
        inner.died.contains(&id) || inner.all.get(&id).is_some_and(Attachment::dead)
    }

    /// Ends every way through devices; who had one attaches again.
    pub fn sever_devices(&self) {
        for a in self.lock().all.values() {
            if let Route::Fabric { served, .. } = &a.route {
                served.sever();
            }
        }
    }

    /// Attachments now.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// True if nobody is attached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
