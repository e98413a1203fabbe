//! The single list of messages and of the types they contain. Verbs are requests (`OpenForWrite`),
//! names in the past tense report an event (`Retired`). Everything that crosses processes derives
//! serde and is bounded by the frame limit of `nkv_transport::wire`.

use crate::error::{Error, Result};
pub use crate::placement::Nearest;
use nkv_store::KeyId;
use nkv_store::Retention;
pub use nkv_store::object::ObjectDesc;
use nkv_store::object::SetMark;
use serde::{Deserialize, Serialize};

mod awaiting;
mod bounds;
mod disk;
mod election;
mod hello;
mod hex;
mod key_bytes;
mod link;
mod listing;
mod log;
mod medium;
mod members;
mod segments;
mod stats;

pub use awaiting::{AwaitReady, MAX_AWAIT_MS, Readiness};
pub use bounds::{MAX_TEXT_BYTES, MAX_TIME_MS};
pub(crate) use bounds::{check_disks, named_twice};
pub use disk::{
    DiskAnswer, DiskMeta, DiskQuestion, DiskSave, DiskSelection, Location, Promote, SaveAt, Tier,
};
pub use election::{Ballot, MAX_OTHERS, Standing};
pub use hello::{AttachBy, HasherKey, Hello, Purpose, Refusal, Settings, Welcome};
pub use link::{
    ClientToOwner, EndCause, GroupNews, MAX_GROUPS, MasterToOwner, OftenRead, OwnerToClient,
    OwnerToMaster, PlanOpened, ReadCounts, SlotContent, SlotEntry, Touch, TouchBatch, Via,
};
pub use listing::{KEYS_PER_ROUND, KeyState, Listed, MAX_PATTERN_BYTES, Removed, Selection, Swept};
pub use log::{Abandoned, KeyReport, LogObjectEntry, LogQuestion, MAX_ENDED_SETS, MovedObject};
pub use medium::{Medium, Preferred};
pub use members::{
    ExportedMemory, MAX_SEGMENTS, RankInfo, RankState, SeenView, SegmentId, View, is_news,
    is_quorum,
};
pub use segments::{
    EvictReport, NodeReport, PER_MILLE, SegmentCommand, SegmentDone, SegmentReport, UnmountReport,
    WORKING,
};
pub use stats::{ClusterStats, Gauges, MasterCounters, OwnerGauges, RankStats, RefusedRank};

/// Version of this list; both ends of a connection must agree.
pub const MESSAGES_VERSION: u32 = 38;
/// Keys or items in one batch message, at most.
pub const MAX_BATCH: usize = 65_536;
/// Slots in one frame between owner and master: the most that the receiver accepts.
pub(crate) const SLOTS_PER_FRAME: usize = MAX_BATCH;
/// Locations that a call tries for one key, one after the other, before it fails.
pub const MAX_PLACES: usize = 8;

/// (number, random master id), compared in that order.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term {
    /// One more than the highest that any owner obeyed.
    pub number: u64,
    /// Random id of the master process.
    #[serde(with = "hex")]
    pub master: u64,
}

/// Identifies one plan; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanId {
    /// Term that granted it.
    pub term: Term,
    /// Number within the term.
    pub seq: u64,
}

/// A slot at one epoch, of one incarnation. Every message about an object contains it [I11].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotRef {
    /// The owner's incarnation.
    #[serde(with = "hex")]
    pub incarnation: u64,
    /// Header slot.
    pub slot: u32,
    /// Epoch of that slot.
    pub epoch: u32,
}

/// The location of a readable object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjMeta {
    /// Identity of the key.
    pub key: KeyId,
    /// Owner rank.
    pub rank: u32,
    /// Owner incarnation, slot and epoch.
    pub at: SlotRef,
    /// Offset of the header in the owner's segment.
    pub header_off: u64,
    /// Its bytes.
    pub object: ObjectDesc,
}

/// Permission to write one object into one owner's memory: a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDesc {
    /// The plan.
    pub plan: PlanId,
    /// Random number that tcp writes must show.
    pub token: u64,
    /// Where the object will lie.
    pub meta: ObjMeta,
    /// Milliseconds that the producer has, counted from before its request.
    pub write_ttl_ms: u64,
    /// Further replicas of the same object, each to be written and committed by itself.
    pub copies: Vec<CopyPlan>,
}

/// The plan of a further replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPlan {
    /// The plan.
    pub plan: PlanId,
    /// Random number that tcp writes must show.
    pub token: u64,
    /// Where the replica will lie.
    pub meta: ObjMeta,
}

/// Replicas of one object, at most.
pub const MAX_REPLICAS: u8 = MAX_PLACES as u8;
const _: () = assert!(MAX_REPLICAS == SetMark::MOST);

/// The replicas of one put. Objects of one key that are of one set have the same bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaSet {
    /// Random: 64 bits of the master's, or 28 of a producer's; 0: an object that is alone.
    pub id: u64,
    /// How many replicas the put asked for.
    pub wanted: u8,
}

impl ReplicaSet {
    /// Of an object that is alone.
    pub const NONE: Self = Self { id: 0, wanted: 0 };

    /// Of a put into logs, as the headers of its objects name it.
    pub fn of_mark(mark: SetMark) -> Self {
        Self { id: mark.word().into(), wanted: mark.wanted() }
    }

    /// The mark in the headers of its objects, if they were put into logs.
    pub fn mark(self) -> Option<u32> {
        let word = u32::try_from(self.id).ok()?;
        (!SetMark::of_word(word).is_none()).then_some(word)
    }

    /// Whether two objects of one key have the same bytes because one put wrote them.
    pub fn is_same(self, other: Self) -> bool {
        self.id != 0 && self.id == other.id
    }
}

/// One object to open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenItem {
    /// Key, 1 to 1,024 bytes.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Rank that should own it, in any of its segments; by the job's placement if absent.
    pub preferred_rank: Option<u32>,
    /// In which memory its first replica should be.
    pub medium: Medium,
    /// Where further replicas should go, in this order.
    pub further: Vec<Preferred>,
    /// Where the writer is, if the job places objects by that and the writer knows.
    pub nearest: Option<Nearest>,
    /// Bytes per page; 0: those that rank 0 was started with.
    pub page_bytes: u32,
    /// Replicas, at most [`MAX_REPLICAS`]; 0 and 1 mean one. What has no room gets no plan.
    pub replicas: u8,
    /// One of the key's replicas, which was read: plans for those that it lacks are asked for; for
    /// [`Retention::Extra`] one for an extra replica at the preferred rank.
    pub replica_of: Option<SlotRef>,
    /// What the evictor of its rank is to do with it.
    pub retention: Retention,
}

/// One plan to commit or abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRef {
    /// The plan.
    pub plan: PlanId,
    /// Its slot.
    pub at: SlotRef,
    /// The key it was opened for [I16].
    pub key: KeyId,
}

pub use key_bytes::KeyBytes;

/// Whether a key exists, and in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existence {
    /// No such key.
    Absent,
    /// A plan for it is open.
    Writing,
    /// Readable.
    Ready,
    /// On the disk of a node alone: a read brings it back into memory first.
    OnDisk,
    /// Stored on a rank whose link is down: a read fails with `Disconnected` until the rank is
    /// back, or gone.
    Unreachable,
}

/// A client's request to the master; every request is a batch and one round trip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Plans for new objects. A repeat with the same `request` gets the same plans [I11].
    OpenForWrite {
        /// Number within the producer's life.
        request: u64,
        /// How long the caller waits for room, in ms.
        wait_ms: u64,
        /// The objects.
        items: Vec<OpenItem>,
    },
    /// The objects are READY: list them.
    Commit(Vec<PlanRef>),
    /// Abort the plans.
    Abort(Vec<PlanRef>),
    /// The caller of this OpenForWrite is gone: abort the plans that it was granted, and grant no
    /// more.
    Withdraw {
        /// Its number.
        request: u64,
    },
    /// The locations of keys.
    GetLocation {
        /// The keys.
        keys: Vec<KeyBytes>,
        /// Locations where the caller found no valid object: the master asks the owner before it
        /// returns one of them again.
        gone: Vec<SlotRef>,
        /// What to do with those that only a disk has.
        promote: Promote,
    },
    /// The longest run from the first key that is readable, in memory or on disk.
    MatchPrefix(Vec<KeyBytes>),
    /// Whether the keys exist.
    Exists {
        /// The keys.
        keys: Vec<KeyBytes>,
        /// What to do with those that only a disk has.
        promote: Promote,
    },
    /// Remove the keys; they never come back [I6].
    Remove(Vec<KeyBytes>),
    /// Remove keys, each if its object is the one at this slot: a reader found stripes of it gone,
    /// or its time is over.
    RemoveAt(Vec<(KeyBytes, SlotRef)>),
    /// Evict on every rank until used bytes are below this ratio of its heap.
    EvictUntilBelow(f64),
    /// Statistics of every rank.
    Stats,
    /// The membership view.
    View,
    /// The membership view, once it is later than this one, or the same view after a time limit.
    Watch {
        /// Term of the view that the caller has.
        term: Term,
        /// Its number.
        number: u64,
    },
    /// One round of a listing.
    List {
        /// Which keys, and where the round begins.
        of: Selection,
        /// Only keys after this one, in the order of bytes.
        after: Option<KeyBytes>,
        /// At most this many of them, in the order of bytes.
        limit: u32,
    },
    /// One round of a removal: matching keys are removed as by `Remove` [I6].
    RemoveMatching(Selection),
    /// Answered once one of the keys is readable, or its plan has ended.
    AwaitReady(AwaitReady),
    /// Give keys so many replicas, or leave them so many: answered before they are made.
    Replicate {
        /// The keys.
        keys: Vec<KeyBytes>,
        /// Replicas of each, 1 to [`MAX_REPLICAS`].
        wanted: u8,
    },
    /// Save keys on disks: answered once that is done for each, or has failed, or after a time
    /// limit.
    SaveToDisk {
        /// The keys.
        keys: Vec<KeyBytes>,
        /// Where each is to be saved.
        at: Vec<SaveAt>,
    },
}

impl Request {
    /// Names of the kinds, by [`Self::kind`].
    pub const KINDS: [&str; 17] = [
        "open",
        "commit",
        "abort",
        "withdraw",
        "locate",
        "match_prefix",
        "exists",
        "remove",
        "evict",
        "stats",
        "view",
        "list",
        "remove_matching",
        "await_ready",
        "replicate",
        "remove_at",
        "save_to_disk",
    ];

    /// Which of [`Self::KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            Self::OpenForWrite { .. } => 0,
            Self::Commit(_) => 1,
            Self::Abort(_) => 2,
            Self::Withdraw { .. } => 3,
            Self::GetLocation { .. } => 4,
            Self::MatchPrefix(_) => 5,
            Self::Exists { .. } => 6,
            Self::Remove(_) => 7,
            Self::EvictUntilBelow(_) => 8,
            Self::Stats => 9,
            Self::View | Self::Watch { .. } => 10,
            Self::List { .. } => 11,
            Self::RemoveMatching(_) => 12,
            Self::AwaitReady(_) => 13,
            Self::Replicate { .. } => 14,
            Self::RemoveAt(_) => 15,
            Self::SaveToDisk { .. } => 16,
        }
    }
}

/// Answers, in the order of the request's items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// To OpenForWrite.
    Plans(Vec<Result<PlanDesc>>),
    /// To Commit, Abort, Remove, RemoveAt.
    Done(Vec<Result<()>>),
    /// To GetLocation: of each key the places where it can be read, at least one; a disk alone.
    Locations(Vec<Result<Vec<Location>>>),
    /// To MatchPrefix.
    Prefix(Vec<Location>),
    /// To Exists.
    Existence {
        /// In the order of the keys.
        list: Vec<Existence>,
        /// Incarnations that hold ready keys; at most 16 of them.
        owners: Vec<u64>,
    },
    /// To Stats.
    Stats(ClusterStats),
    /// To View.
    View(View),
    /// The request as a whole failed.
    Failed(Error),
    /// To List.
    Listed {
        /// In the order of their bytes.
        keys: Vec<Listed>,
        /// Where the next round begins; absent at the end.
        next: Option<KeyId>,
    },
    /// To RemoveMatching.
    Swept(Swept),
    /// To SaveToDisk: what became of each key at the disk of each rank that was asked. Of none if
    /// no further disk can be asked.
    OnDisks(Vec<Result<Vec<(u32, DiskSave)>>>),
    /// To AwaitReady: what became of keys, with their number in the request. None of the others
    /// has changed; none at all if the time is over.
    Readiness(Vec<(u32, Readiness)>),
}

/// Describes an answer, for the error text when it does not fit the request.
impl std::fmt::Display for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plans(list) => write!(f, "{} plans", list.len()),
            Self::Done(list) => write!(f, "{} results", list.len()),
            Self::Locations(list) => write!(f, "{} locations", list.len()),
            Self::Prefix(list) => write!(f, "a prefix of {} keys", list.len()),
            Self::Existence { list, .. } => write!(f, "the existence of {} keys", list.len()),
            Self::Stats(_) => f.write_str("figures"),
            Self::View(_) => f.write_str("a membership view"),
            Self::Failed(e) => write!(f, "{e}"),
            Self::Listed { keys, .. } => write!(f, "a list of {} keys", keys.len()),
            Self::Swept(_) => f.write_str("a count of removals"),
            Self::OnDisks(list) => write!(f, "{} saved objects", list.len()),
            Self::Readiness(list) => write!(f, "the readiness of {} keys", list.len()),
        }
    }
}
