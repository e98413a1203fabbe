//! Messages between master and owner on a segment's link, and between an owner and an attached
//! client.

use super::{
    Abandoned, DiskAnswer, DiskQuestion, KeyBytes, KeyId, KeyReport, LogObjectEntry, LogQuestion,
    MovedObject, ObjectDesc, OwnerGauges, PlanId, PlanRef, ReplicaSet, SeenView, SlotRef, Term,
};
use nkv_store::Retention;
use nkv_store::arena::Extent;
use serde::{Deserialize, Serialize};

/// Master to owner, on the segment's link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterToOwner {
    /// A plan was granted in your heap.
    PlanOpened(PlanOpened),
    /// Plans were committed: make the objects live. In the order of the batch.
    Committed(Vec<PlanRef>),
    /// End the plan by [I10].
    EndPlan {
        /// The plan.
        plan: PlanId,
        /// Its slot.
        at: SlotRef,
        /// Why.
        cause: EndCause,
    },
    /// Retire these live objects.
    Retire(Vec<SlotRef>),
    /// These Freed were applied.
    FreedAck(Vec<SlotRef>),
    /// An open waits for this many contiguous bytes.
    MakeRoom {
        /// Contiguous bytes wanted.
        bytes: u64,
        /// Bytes that all opens which wait there want together.
        all: u64,
        /// Number of earlier attempts, which made no room.
        attempt: u32,
    },
    /// Evict until used bytes are at most this.
    EvictTo {
        /// Bytes.
        bytes: u64,
    },
    /// The current members. Kept outside the Owner actor and acknowledged by `ViewSeen` [I17].
    View(SeenView),
    /// The master is alive.
    Heartbeat {
        /// Its clock, in ms. The owner's next heartbeat returns it.
        stamp_ms: u64,
    },
    /// The report was applied: objects may be placed on this segment now.
    ReportTaken,
    /// Answer to `Draining`: no plan follows this message.
    NoMorePlans,
    /// Process the device log, then answer with `LogAnswer`.
    AskLog {
        /// Number of the question.
        number: u64,
        /// The question.
        question: LogQuestion,
    },
    /// Answer with `DiskAnswer`, for the disk of this node.
    AskDisk {
        /// Number of the question.
        number: u64,
        /// The question.
        question: DiskQuestion,
    },
    /// The removal that `DiskQuestion::Remove` numbered so is over.
    RemovalOver {
        /// Its number.
        removal: u64,
        /// It was one of several rounds, or failed: it is likely to be asked for again.
        again: bool,
    },
    /// What other ranks say of groups of objects.
    Groups(GroupNews),
    /// These objects belong to these sets: report them so.
    InSet(Vec<(SlotRef, ReplicaSet)>),
    /// Make the replicas that these keys lack: the master says how many, and where.
    MakeReplicas(Vec<KeyBytes>),
    /// A frame of this owner was invalid, for this reason: the link ends.
    Refused(String),
    /// Report every slot, under this number.
    RequestReport {
        /// Parts of an older report are ignored.
        number: u64,
    },
}

/// A plan as its owner is sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOpened {
    /// The plan.
    pub plan: PlanId,
    /// tcp token.
    pub token: u64,
    /// Slot and epoch.
    pub at: SlotRef,
    /// The object that is to be written, and the extent reserved for it.
    pub object: ObjectDesc,
    /// Key string, kept by the owner for reports.
    pub key: KeyBytes,
    /// The producer that writes.
    pub producer: u64,
    /// The producer's request that asked for it: a repeat gets this same plan [I11].
    pub request: u64,
    /// Which item of that request.
    pub item: u32,
    /// Milliseconds from receipt until the owner ends it as expired.
    pub deadline_ms: u64,
    /// The replicas to which the object will belong.
    pub set: ReplicaSet,
    /// What the owner's evictor is to do with the object.
    pub retention: Retention,
}

/// Why a plan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndCause {
    /// Its deadline passed: fence, then adopt if READY.
    Expired,
    /// Its producer is gone: fence, then adopt if READY.
    ProducerGone,
    /// The producer aborted it.
    Aborted,
    /// The key was removed meanwhile.
    Removed,
    /// The master does not know it.
    Unknown,
    /// A later term began: fence, then keep if READY.
    TermOver,
}

/// Owner to master, on the segment's link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerToMaster {
    /// The owner is alive.
    Heartbeat {
        /// Its gauges.
        gauges: Box<OwnerGauges>,
        /// The stamp of the master that came last over this link.
        stamp_ms: u64,
    },
    /// LIVE was cleared: these objects are not readable any more.
    Retired(Vec<SlotRef>),
    /// Quarantine is over, the slots are armed with the next epoch. Repeated until acknowledged.
    Freed(Vec<SlotRef>),
    /// An ended plan was READY: it is live.
    Adopted(PlanRef),
    /// Every plan sent over this link, up to this one, is recorded, and so survives the master.
    /// Sent only if the welcome asked for it (`confirm`).
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
    /// Objects of the device log whose key string is known now.
    Announced(Vec<LogObjectEntry>),
    /// Objects that the device log has accepted and callers wait for; without their key strings.
    Accepted(Vec<LogObjectEntry>),
    /// Objects of log or heap that are served from copies in the log now.
    Moved(Vec<MovedObject>),
    /// Answer to `AskLog`.
    LogAnswer {
        /// Number of the question.
        number: u64,
        /// To `Find`: objects that the log serves. To removals: those of several replicas that lost
        /// LIVE, the newest.
        served: Vec<LogObjectEntry>,
        /// To `Remove`: keys whose objects lost LIVE.
        removed: Vec<KeyId>,
        /// To `RemoveAll`: number of objects that lost LIVE.
        taken: u64,
    },
    /// Answer to `AskDisk`.
    DiskAnswer {
        /// Number of the question.
        number: u64,
        /// The answer.
        answer: DiskAnswer,
    },
    /// The view of this number is kept.
    ViewSeen {
        /// Its number.
        number: u64,
    },
    /// Objects that are read often here.
    OftenRead(Vec<OftenRead>),
    /// Objects whose time after their first read is over: remove their keys.
    Expired(Vec<SlotRef>),
    /// What became of groups of objects here: other ranks may have more of them.
    Groups(GroupNews),
    /// Shutting down: grant no more plans here.
    Draining,
    /// The segment leaves the cluster.
    Leave,
}

/// Groups in one [`GroupNews`], of each kind.
pub const MAX_GROUPS: usize = 4096;

/// Groups of objects, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNews {
    /// One of their objects was read.
    pub used: Vec<KeyId>,
    /// One of their objects was evicted.
    pub lost: Vec<KeyId>,
}

/// One object that is read often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OftenRead {
    /// Its slot.
    pub slot: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Above the bound, or warm: not far below it.
    pub hot: bool,
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

/// The content of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotContent {
    /// Nothing; armed.
    Free,
    /// A live object.
    Live {
        /// Key string.
        key: KeyBytes,
        /// Its bytes, in the extent reserved for it.
        object: ObjectDesc,
        /// The replicas to which it belongs.
        set: ReplicaSet,
        /// What the owner's evictor does with it.
        retention: Retention,
    },
    /// An open plan.
    Open(Box<PlanOpened>),
    /// A live object of the device log whose key string is known.
    Logged(Box<LogObjectEntry>),
    /// Retired or ending, not free yet: only `Freed` frees it. Of length 0 if it is not known.
    Held(Extent),
}

/// Client to owner, on an attach connection. One-way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientToOwner {
    /// Objects that were read.
    Touched(TouchBatch),
    /// Asks whether this plan, opened before this attachment, is still open. Answered by `Plan`.
    CheckPlan(PlanId),
    /// This process does not write for this plan, now or later.
    Dropped(PlanId),
    /// Of the plans of lower terms only these may still be written, by kernels: the others are not,
    /// now or later.
    TermObeyed {
        /// The term.
        term: Term,
        /// Plans that this process holds for kernels.
        held: Vec<PlanId>,
    },
    /// Keys of objects put into the device log.
    KeysReported(Vec<KeyReport>),
    /// A claim in the device log that was abandoned.
    Abandoned(Abandoned),
    /// Every key that this process had to report when it was asked, in this round or before, has
    /// been sent.
    NamesSent(u64),
    /// This process has no claim open below this position of the log.
    ClearBelow(u64),
    /// Nothing is written through this attachment, now or later.
    Detach,
}

/// One use of an object, as its reader reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Header slot.
    pub slot: u32,
    /// Epoch that was read.
    pub epoch: u32,
    /// Bytes that were read.
    pub bytes: u64,
    /// It was read; else a put met it, which wrote nothing.
    pub read: bool,
}

/// How a reader got the location of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Via {
    /// From an index, read one-sided.
    Index,
    /// From the handle's cache of locations.
    Cache,
    /// From the master.
    Master,
}

/// Numbers of reads, by how the location was found.
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
    /// Counts one read.
    pub fn count(&mut self, via: Via) {
        match via {
            Via::Index => self.by_index += 1,
            Via::Cache => self.by_cache += 1,
            Via::Master => self.by_master += 1,
        }
    }
}

/// Reads of one owner's objects by one handle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchBatch {
    /// In the order in which to touch them; the oldest may be missing.
    pub list: Vec<Touch>,
    /// Counts of all reads, those missing in `list` included.
    pub counts: ReadCounts,
}

/// Owner to client, on an attach connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerToClient {
    /// A frame of this client was invalid, for this reason: the attachment ends.
    Refused(String),
    /// Do not start this plan; answer `Dropped` once none of its writes is in flight.
    Drop(PlanId),
    /// Answer `ClearBelow` once this process has no open claim below this position of the log.
    ClearBelow(u64),
    /// Report the keys of objects put into the log, and answer `NamesSent` with this round.
    SendNames(u64),
    /// Do not start a plan of a lower term; answer `TermObeyed` once none of their writes is in
    /// flight, but those of kernels.
    Term(Term),
    /// Answer to CheckPlan.
    Plan {
        /// The plan.
        plan: PlanId,
        /// Whether it may be written.
        open: bool,
    },
}
