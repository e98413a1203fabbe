//! What master and owner say to each other on a rank's link, and what an owner and an attached
//! client say.

use super::{
    Abandoned, KeyBytes, KeyReport, LogObjectEntry, LogQuestion, OwnerGauges, PlanId, PlanRef,
    SeenView, SlotRef, Term, WireKeyId,
};
use serde::{Deserialize, Serialize};

/// Master to owner, on the rank's link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterToOwner {
    /// A plan was granted in your heap.
    PlanOpened(PlanOpened),
    /// Plans were committed: the objects are live. In the order of the batch.
    Committed(Vec<PlanRef>),
    /// End the plan, whatever it takes [I10].
    EndPlan {
        /// The plan.
        plan: PlanId,
        /// Its slot.
        at: SlotRef,
        /// Why.
        cause: EndCause,
    },
    /// Take these live objects away.
    Retire(Vec<SlotRef>),
    /// These Freed were applied.
    FreedAck(Vec<SlotRef>),
    /// An open waits for this many contiguous bytes.
    MakeRoom {
        /// Contiguous bytes wanted.
        bytes: u64,
        /// How often it was asked for in vain.
        attempt: u32,
    },
    /// Evict until used bytes are at most this.
    EvictTo {
        /// Bytes.
        bytes: u64,
    },
    /// The members now. Kept outside the Owner and acknowledged by `ViewSeen` [I17].
    View(SeenView),
    /// Nothing to say, but alive.
    Heartbeat,
    /// Your report was taken in: objects may be placed on you now.
    ReportTaken,
    /// To `Draining`: no plan follows this word.
    NoMorePlans,
    /// Look into your device log, once it is drained; answer with `LogAnswer`.
    AskLog {
        /// Names the question.
        number: u64,
        /// What is asked.
        question: LogQuestion,
    },
    /// What you said cannot be: this link ends.
    Refused(String),
    /// Report every slot, under this number.
    RequestReport {
        /// Parts of an older report are ignored.
        number: u64,
    },
}

/// A plan as its owner hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOpened {
    /// The plan.
    pub plan: PlanId,
    /// tcp token.
    pub token: u64,
    /// Slot and epoch.
    pub at: SlotRef,
    /// Payload offset.
    pub extent_offset: u64,
    /// Payload bytes reserved.
    pub extent_len: u64,
    /// Key string, kept by the owner for reports.
    pub key: KeyBytes,
    /// Who writes.
    pub producer: u64,
    /// The producer's request that asked for it: a repeat gets this same plan [I11].
    pub request: u64,
    /// Which item of that request.
    pub item: u32,
    /// Milliseconds from now until the owner looks.
    pub deadline_ms: u64,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Bytes per page.
    pub page_bytes: u32,
}

/// Why a plan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndCause {
    /// Its deadline passed: look first, adopt if READY.
    Expired,
    /// Its producer is gone: look first, adopt if READY.
    ProducerGone,
    /// The producer gave it up.
    Aborted,
    /// The key was removed meanwhile.
    Removed,
    /// The master does not know it.
    Unknown,
    /// A later term began: look first, keep if READY.
    TermOver,
}

/// Owner to master, on the rank's link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerToMaster {
    /// Alive, with figures.
    Heartbeat(Box<OwnerGauges>),
    /// LIVE was cleared: not readable any more.
    Retired(Vec<SlotRef>),
    /// Quarantine is over, the slots are armed with the next epoch. Repeated until acknowledged.
    Freed(Vec<SlotRef>),
    /// An ended plan was READY: it is live.
    Adopted(PlanRef),
    /// Every plan told over this link so far, up to this one, is recorded where it survives the
    /// master. Sent where the welcome asked for it.
    PlansRecorded {
        /// The latest of them.
        up_to: PlanId,
    },
    /// Part of the answer to `RequestReport`.
    Report {
        /// The number asked for.
        number: u64,
        /// Slots that are not (free at epoch 1).
        slots: Vec<SlotEntry>,
        /// True in the last part.
        last: bool,
    },
    /// Objects of the device log that have a name now.
    Announced(Vec<LogObjectEntry>),
    /// Answer to `AskLog`.
    LogAnswer {
        /// Names the question.
        number: u64,
        /// To `Find`: what is served.
        served: Vec<LogObjectEntry>,
        /// To `Remove`: what lost LIVE.
        removed: Vec<WireKeyId>,
        /// To `RemoveAll`: how many objects lost LIVE.
        taken: u64,
    },
    /// The view of this number is kept.
    ViewSeen {
        /// Its number.
        number: u64,
    },
    /// Shutting down: place nothing here any more.
    Draining,
    /// Shut down: gone by its own word.
    Leave,
}

/// One slot in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotEntry {
    /// Header slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// What is there.
    pub what: SlotContent,
}

/// What lies in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotContent {
    /// Nothing; armed.
    Free,
    /// A live object.
    Live {
        /// Key string.
        key: KeyBytes,
        /// Payload offset.
        extent_offset: u64,
        /// Payload bytes reserved.
        extent_len: u64,
        /// Logical bytes.
        bytes_total: u64,
        /// Bytes per page.
        page_bytes: u32,
        /// Number of pages.
        n_pages: u32,
    },
    /// An open plan.
    Open(Box<PlanOpened>),
    /// A live object of the device log, which has a name.
    Logged(Box<LogObjectEntry>),
    /// Retired, not yet free: only `Freed` frees it.
    Held {
        /// Payload offset.
        extent_offset: u64,
        /// Payload bytes reserved.
        extent_len: u64,
    },
}

/// Client to owner, on an attach connection. One-way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientToOwner {
    /// Objects read.
    Touched(TouchBatch),
    /// Is this plan, opened before we were attached, still open?
    CheckPlan(PlanId),
    /// Nothing is or will be written for this plan by this process.
    Dropped(PlanId),
    /// No plan of a term below this one is or will be written by this process.
    TermObeyed(Term),
    /// Keys of objects put into the device log.
    KeysReported(Vec<KeyReport>),
    /// A claim on the device log that was given up.
    Abandoned(Abandoned),
    /// This process has no claim open below this position of the log.
    ClearBelow(u64),
    /// Nothing is or will be written through this attachment.
    Detach,
}

/// One read, as its reader reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Header slot.
    pub slot: u32,
    /// Epoch that was read.
    pub epoch: u32,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Who told a reader where its object lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Via {
    /// An index, read one-sided.
    Index,
    /// A location it had seen before.
    Cache,
    /// The master.
    Master,
}

/// Reads by who told where to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCounts {
    /// See [`Via::Index`].
    pub by_index: u64,
    /// See [`Via::Cache`].
    pub by_cache: u64,
    /// See [`Via::Master`].
    pub by_master: u64,
}

impl ReadCounts {
    /// One more.
    pub fn count(&mut self, via: Via) {
        match via {
            Via::Index => self.by_index += 1,
            Via::Cache => self.by_cache += 1,
            Via::Master => self.by_master += 1,
        }
    }
}

/// Reads that one handle did of one owner's objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchBatch {
    /// In the order in which they should be touched; the oldest may be missing.
    pub list: Vec<Touch>,
    /// All of them.
    pub counts: ReadCounts,
}

/// Owner to client, on an attach connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerToClient {
    /// What you said cannot be: this attachment ends.
    Refused(String),
    /// Never start this plan; say `Dropped` once nothing of it is in flight.
    Drop(PlanId),
    /// Say `ClearBelow` once this process has no claim open below this position of the log.
    ClearBelow(u64),
    /// Never start a plan of a lower term; say `TermObeyed` once none is in flight.
    Term(Term),
    /// Answer to CheckPlan.
    Plan {
        /// The plan.
        plan: PlanId,
        /// Whether it may be written.
        open: bool,
    },
}
