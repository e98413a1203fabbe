//! The producers that have access to this owner's memory, and which of them still have to confirm
//! that they dropped a plan [I10]. Kept outside the Owner actor, so a panic does not lose it.

pub use crate::attachment::AttachId;
use crate::attachment::ProducerGates;
use crate::message::{OwnerToClient, PlanId, Term};
use nkv_transport::fabric::RemoteAccess;
use nkv_transport::wire::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A request to a mapped process that was not answered is sent again after this time.
const RESEND_NS: u64 = 1_000_000_000;
/// A data path through devices is severed if its producer has not answered after this time.
const SEVER_NS: u64 = 3_000_000_000;
/// Frames queued for one attached process, at most.
pub const ATTACH_QUEUE: usize = 4096;

/// How the owner reaches an attached producer.
#[derive(Debug, Clone)]
pub enum Route {
    /// In this process.
    Local(Arc<dyn ProducerGates>),
    /// Another process of this host, by its attach connection.
    Process {
        /// Frames to it.
        tx: mpsc::Sender<OwnerToClient>,
        /// Detects its death. A process for which there is no such proof does not get the mapping:
        /// it uses the agent, which can fence it.
        process: Arc<dyn Process>,
    },
    /// A process anywhere, which writes through devices.
    Fabric {
        /// Frames to it.
        tx: mpsc::Sender<OwnerToClient>,
        /// Its data path: once severed, none of its verbs is executed here any more.
        served: Arc<dyn RemoteAccess>,
    },
}

impl Route {
    /// True when the other end can no longer write. For this process `here` decides; another
    /// process must be dead; a path through devices must be severed.
    fn is_drained(&self, here: impl FnOnce(&dyn ProducerGates) -> bool) -> bool {
        match self {
            Self::Local(gates) => here(&**gates),
            // A broken connection proves nothing.
            Self::Process { process, .. } => !process.is_alive(),
            Self::Fabric { served, .. } => served.is_severed(),
        }
    }

    /// Sends to another process if its queue has room; `remind` repeats what was not answered.
    fn send(&self, message: OwnerToClient) {
        match self {
            Self::Local(..) => {}
            Self::Process { tx, .. } | Self::Fabric { tx, .. } => drop(tx.try_send(message)),
        }
    }

    /// Asks the producer to drop a plan.
    fn drop_plan(&self, plan: PlanId) {
        match self {
            Self::Local(gates) => gates.drop_plan(plan),
            other => other.send(OwnerToClient::Drop(plan)),
        }
    }

    /// Sends a message again if a mapped process has not answered it for `RESEND_NS`. A path
    /// through devices is severed instead, after `SEVER_NS`.
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

    /// Whether a reply on another attachment of the same producer also counts for this one. Not for
    /// a path through devices: a posted write may arrive after its producer dropped the plan, so
    /// only the reply on its own attach connection counts.
    fn covers_others(&self) -> bool {
        !matches!(self, Self::Fabric { .. })
    }
}

#[derive(Debug)]
struct Attachment {
    producer: u64,
    route: Route,
    asked: OpenRequests,
    // It replaces broken attachments of the same producer.
    stands_for: bool,
    // Its connection ended without `Detach`: only the death of its process, or a later attachment
    // of its producer, ends what is pending.
    cut: bool,
}

impl Attachment {
    fn dead(&self) -> bool {
        self.route.is_drained(|_| false)
    }

    /// Asks for what other attachments of its producer have not answered.
    fn take_over(&mut self, OpenRequests { pending, term, clear }: OpenRequests) {
        self.asked.term = self.asked.term.max(term);
        if let Some((term, _)) = self.asked.term {
            self.route.send(OwnerToClient::Term(term));
        }
        for (plan, sent) in pending {
            self.route.drop_plan(plan);
            self.asked.pending.insert(plan, sent);
        }
        self.asked.clear = self.asked.clear.max(clear);
        if let Some((below, _)) = self.asked.clear {
            self.route.send(OwnerToClient::ClearBelow(below));
        }
    }
}

/// Requests without an answer, and when each was sent.
#[derive(Debug, Default, PartialEq)]
struct OpenRequests {
    // Plans that it must drop. Their extents are held until it answers.
    pending: BTreeMap<PlanId, u64>,
    // The term that it must obey, until it confirms.
    term: Option<(Term, u64)>,
    // The position of the log that it was asked about, until it answers that nothing is open below.
    clear: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Inner {
    next: AttachId,
    all: BTreeMap<AttachId, Attachment>,
    // Broken attachment -> the attachment that answers about the log in its place.
    stand_ins: BTreeMap<AttachId, AttachId>,
    // Attachments whose process died before it answered about the log: they count as fenced, not as
    // clear.
    died: BTreeSet<AttachId>,
    // Plans of lower terms that producers hold for kernels. A new term is complete without them:
    // each is fenced on its own.
    held: BTreeSet<PlanId>,
    // The term that the attachments were told of last: the tables may have a newer one already.
    begun: Option<Term>,
}

impl Inner {
    fn answers_for(&self, mut id: AttachId) -> AttachId {
        while let Some(later) = self.stand_ins.get(&id) {
            id = *later;
        }
        id
    }

    /// What the broken attachments of a producer have not answered.
    fn open_requests(&self, producer: u64) -> OpenRequests {
        let mut asked = OpenRequests::default();
        let broken = self.all.values().filter(|a| a.producer == producer && a.cut);
        for old in broken.map(|a| &a.asked) {
            asked.pending.extend(old.pending.iter().map(|(plan, sent)| (*plan, *sent)));
            asked.term = asked.term.max(old.term);
            asked.clear = asked.clear.max(old.clear);
        }
        asked
    }

    /// Lets an attachment answer for the broken ones of its producer, which are forgotten. All
    /// attachments of a producer share one gate, and so a process that attaches repeatedly holds
    /// one entry.
    fn replace_cut(&mut self, id: AttachId) {
        let Some(producer) = self.all.get(&id).map(|a| a.producer) else { return };
        // A path through devices is only replaced once it is severed: what was posted may land.
        let broken = |a: &Attachment| {
            a.producer == producer && a.cut && (a.route.covers_others() || a.dead())
        };
        if !self.all.values().any(broken) {
            return;
        }
        let asked = self.open_requests(producer);
        for (old, a) in self.all.extract_if(.., |_, a| broken(a)) {
            if a.asked.clear.is_some() {
                self.stand_ins.insert(old, id);
            }
        }
        if let Some(a) = self.all.get_mut(&id) {
            a.stands_for = true;
            a.take_over(asked);
        }
    }

    /// Asks a path through devices what broken attachments of its producer have not answered.
    /// Severing it does not prove that the process stopped writing through a mapping: the broken
    /// attachments stay until the producer answers here or its process dies.
    fn ask_as_well(&mut self, id: AttachId) {
        let Some(producer) = self.all.get(&id).map(|a| a.producer) else { return };
        let OpenRequests { mut pending, term, .. } = self.open_requests(producer);
        // `u64::MAX`: this request is never overdue.
        pending.values_mut().for_each(|sent| *sent = u64::MAX);
        let term = term.map(|(term, _)| (term, u64::MAX));
        if let Some(a) = self.all.get_mut(&id) {
            a.take_over(OpenRequests { pending, term, clear: None });
        }
    }

    /// The attachments for which a reply of `producer` on attachment `id` counts.
    fn covered_by(&mut self, id: AttachId, producer: u64) -> impl Iterator<Item = &mut Attachment> {
        let of = move |(other, a): &(&AttachId, &mut Attachment)| {
            a.producer == producer && (**other == id || a.route.covers_others())
        };
        self.all.iter_mut().filter(of).map(|(_, a)| a)
    }

    /// Forgets broken attachments of dead processes that hold no plan; with `with_plans`, also
    /// those that do.
    fn forget_dead(&mut self, with_plans: bool) {
        let Self { all, died, .. } = self;
        all.retain(|id, a| {
            let over = a.cut && (with_plans || a.asked.pending.is_empty()) && a.dead();
            if over && a.asked.clear.is_some() {
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
        let (id, over) = (inner.next, route.covers_others());
        let asked = OpenRequests::default();
        let made = Attachment { producer, route, asked, stands_for: false, cut: false };
        inner.all.insert(id, made);
        if over {
            inner.replace_cut(id)
        } else {
            inner.ask_as_well(id)
        }
        id
    }

    /// The producer confirmed that it does not write here, now or later.
    pub fn detach(&self, id: AttachId) {
        let route = self.lock().all.get(&id).map(|a| a.route.clone());
        if let Some(Route::Fabric { served, .. }) = route {
            served.sever();
        }
        let mut inner = self.lock();
        // What it took over from broken attachments is not answered by its end [I10] [I14].
        let owes = |a: &Attachment| a.stands_for && a.asked != OpenRequests::default();
        if inner.all.get(&id).is_some_and(owes) {
            drop(inner);
            return self.cut(id);
        }
        let gone = inner.all.remove(&id);
        // Dropped outside the lock: this may drop the plans of a whole handle.
        drop(inner);
        drop(gone);
    }

    /// Removes an attachment that was never used. The broken ones that it replaces may still write
    /// [I10].
    pub fn take_back(&self, id: AttachId) {
        if self.lock().all.get(&id).is_some_and(|a| a.stands_for) {
            self.cut(id);
        } else {
            self.detach(id);
        }
    }

    /// The connection ended without `Detach`.
    pub fn cut(&self, id: AttachId) {
        let mut inner = self.lock();
        let Some(a) = inner.all.get_mut(&id) else { return };
        a.cut = true;
        let producer = a.producer;
        // The producer may be attached anew before the end of its earlier connection is noticed.
        let later = inner
            .all
            .range(id..)
            .rev()
            .find(|(_, a)| a.producer == producer && !a.cut && a.route.covers_others());
        if let Some(later) = later.map(|(later, _)| *later) {
            inner.replace_cut(later);
        }
        inner.forget_dead(true);
    }

    /// The producer confirmed on attachment `id` that it does not write for this plan, now or
    /// later. All its attachments share one gate, so this counts for broken ones too.
    pub fn dropped(&self, id: AttachId, producer: u64, plan: PlanId) {
        for a in self.lock().covered_by(id, producer) {
            if let Route::Fabric { served, .. } = &a.route {
                tracing::debug!(pairs = ?served.pairs(), plan = plan.seq, "dropped by producer");
            }
            a.asked.pending.remove(&plan);
        }
    }

    /// Asks every attachment of `producer` to drop `plan`.
    pub fn drop_plan(&self, producer: u64, plan: PlanId, now_ns: u64) {
        let mut inner = self.lock();
        for a in inner.all.values_mut().filter(|a| a.producer == producer) {
            a.route.drop_plan(plan);
            a.asked.pending.insert(plan, now_ns);
        }
    }

    /// True when no attachment of `producer` can still write for `plan`.
    pub fn is_dropped(&self, producer: u64, plan: PlanId, now_ns: u64) -> bool {
        let mut inner = self.lock();
        let mut all = true;
        for a in inner.all.values_mut().filter(|a| a.producer == producer) {
            let Some(sent) = a.asked.pending.get_mut(&plan) else { continue };
            if a.route.is_drained(|gates| gates.is_drained(plan)) {
                a.asked.pending.remove(&plan);
                continue;
            }
            all = false;
            a.route.remind(OwnerToClient::Drop(plan), sent, now_ns);
        }
        inner.forget_dead(false);
        all
    }

    /// Tells every attachment that plans of lower terms are over: those in progress, those not
    /// started, and those whose grant is still in flight, of which this owner may have no record.
    pub fn new_term(&self, term: Term, now_ns: u64) {
        let mut inner = self.lock();
        inner.held.clear();
        inner.begun = Some(term);
        for a in inner.all.values_mut() {
            match &a.route {
                Route::Local(gates) => gates.obey(term),
                other => other.send(OwnerToClient::Term(term)),
            }
            a.asked.term = Some((term, now_ns));
        }
    }

    /// The producer confirmed on attachment `id` that all its attachments obey a term, and write
    /// for no plans of lower ones but those `held` for kernels. No answer if one of those is not
    /// `known` to the owner, which could not report its slot as taken: it is asked again.
    pub fn term_obeyed(
        &self,
        (id, producer): (AttachId, u64),
        (term, held): (Term, Vec<PlanId>),
        known: &BTreeSet<PlanId>,
    ) {
        if !held.iter().all(|plan| known.contains(plan)) {
            return;
        }
        let mut inner = self.lock();
        let mut answered = false;
        for a in inner.covered_by(id, producer) {
            if a.asked.term.is_some_and(|(asked, _)| asked <= term) {
                a.asked.term = None;
                answered = true;
            }
        }
        if answered {
            inner.held.extend(held);
        }
    }

    /// The plans of lower terms that kernels may still write, all of them `known` to the owner,
    /// once no attachment can write for any other. None before, and before they were told of the
    /// term.
    pub fn all_obey(
        &self,
        term: Term,
        known: &BTreeSet<PlanId>,
        now_ns: u64,
    ) -> Option<BTreeSet<PlanId>> {
        let mut inner = self.lock();
        if inner.begun != Some(term) {
            return None;
        }
        let Inner { all, held, .. } = &mut *inner;
        let mut obey = true;
        for a in all.values_mut() {
            let Some((term, sent)) = &mut a.asked.term else { continue };
            let term = *term;
            let obeys = |gates: &dyn ProducerGates| {
                let plans = gates.obeys(term);
                let plans = plans.filter(|plans| plans.iter().all(|plan| known.contains(plan)));
                plans.map(|plans| held.extend(plans)).is_some()
            };
            if a.route.is_drained(obeys) {
                a.asked.term = None;
                continue;
            }
            obey = false;
            a.route.remind(OwnerToClient::Term(term), sent, now_ns);
        }
        inner.forget_dead(false);
        obey.then(|| inner.held.clone())
    }

    /// Asks every attachment whether it has an open claim below this position of the log; returns
    /// the attachments asked.
    pub fn ask_clear(&self, below: u64, now_ns: u64) -> Vec<AttachId> {
        let mut inner = self.lock();
        // The entries of an earlier check are of no use any more.
        inner.stand_ins.clear();
        inner.died.clear();
        for a in inner.all.values_mut() {
            a.route.send(OwnerToClient::ClearBelow(below));
            a.asked.clear = Some((below, now_ns));
        }
        inner.all.keys().copied().collect()
    }

    /// The handles of this process.
    pub fn local(&self) -> Vec<Arc<dyn ProducerGates>> {
        let local = |a: &Attachment| match &a.route {
            Route::Local(gates) => Some(gates.clone()),
            Route::Process { .. } | Route::Fabric { .. } => None,
        };
        self.lock().all.values().filter_map(local).collect()
    }

    /// The attachment's process answered that it has no open claim below.
    pub fn clear_below(&self, id: AttachId, below: u64) {
        if let Some(a) = self.lock().all.get_mut(&id)
            && a.asked.clear.is_some_and(|(asked, _)| asked <= below)
        {
            a.asked.clear = None;
        }
    }

    /// True once the attachment answered so, or is gone. An overdue question is sent again.
    pub fn is_clear_below(&self, id: AttachId, below: u64, now_ns: u64) -> bool {
        let mut inner = self.lock();
        let id = inner.answers_for(id);
        let Some(a) = inner.all.get_mut(&id) else { return true };
        let Some((_, sent)) = &mut a.asked.clear else { return true };
        if let Route::Local(gates) = &a.route {
            return gates.is_clear_below(below);
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

    /// Severs every path through devices; their producers attach again.
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

    /// True if there is no attachment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
