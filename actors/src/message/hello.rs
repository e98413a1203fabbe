//! How a control connection begins: who calls, what for, and why not.

use super::{RankInfo, SeenView, SegmentCommand, SegmentDone, Term, View};
use crate::error::Result;
use nkv_store::key::HASHER_KEY_BYTES;
use nkv_transport::fabric::{Answer, Offer};
use nkv_transport::wire::Address;
use serde::{Deserialize, Serialize};

/// First frame on a control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`super::MESSAGES_VERSION`].
    pub version: u32,
    /// Job id; two jobs never meet.
    pub job: String,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// What a control connection is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Requests of a client (producer incarnation) to the master behind this node.
    Client {
        /// Random id of the client.
        producer: u64,
        /// Whether it would take a ring in place of this connection (`nkv_transport::ring`).
        ring: bool,
    },
    /// A rank joins and keeps the connection as its link.
    Rank {
        /// Who.
        info: Box<RankInfo>,
        /// The highest term its owner obeyed; the default if it never had a master.
        obeyed: Term,
        /// Whether a plan was ever granted on it: if not, it has nothing to lose or to bring.
        holds: bool,
        /// The last membership it was told of.
        seen: SeenView,
        /// From a first segment: the others of its node, as (segment, incarnation). A restarted
        /// master does not say that a key is absent before it met them.
        siblings: Vec<(u32, u64)>,
    },
    /// A client uses this node's segment.
    Attach {
        /// Random id of the client.
        producer: u64,
        /// The incarnation it means.
        incarnation: u64,
        /// How it reaches the memory.
        by: AttachBy,
    },
    /// A word to this node about itself; answered once it is done, and with `Working` until then.
    Segments(SegmentCommand),
    /// A client that is to map a segment, and does not reach it by its name: the descriptor, over
    /// this unix socket.
    Descriptor {
        /// The segment's incarnation.
        incarnation: u64,
    },
}

/// How a client reaches an owner's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachBy {
    /// Through the tcp agent, which fences it.
    Agent,
    /// It maps the memory: then it must answer `Drop` [I10].
    Map,
    /// Through devices, with its end of the way: it must answer `Drop`, or is severed.
    Fabric(Offer),
}

/// Answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// To a client: where the master is, and the members.
    Client {
        /// Control address of the master as this node reaches it; None if it is this node.
        master: Option<Address>,
        /// Present view (empty on a node that is not the master).
        view: View,
        /// Call defaults of the cluster.
        settings: Settings,
        /// What makes the identities of keys.
        hasher: HasherKey,
        /// Bytes of a lane of the ring that this node made for the client. Then requests go through
        /// it, and the client begins by taking it.
        ring: Option<u64>,
    },
    /// To a rank: joined.
    Rank {
        /// The master's term.
        term: Term,
        /// Settings of the cluster.
        settings: Settings,
        /// Whether the master waits to hear that plans are recorded (`PlansRecorded`).
        confirm: bool,
    },
    /// To an attaching client.
    Attached {
        /// The term the owner obeys: a plan of a lower one is refused before its first byte.
        term: Term,
        /// The pin table of this attachment, if it maps the memory and there was one left [I9].
        pins: Option<u32>,
        /// Shown with every change of the device log, where it is written through the tcp agent.
        log_token: Option<u64>,
        /// The owner's end of a way through devices, or why there is none, if one was offered.
        fabric: Option<std::result::Result<Answer, String>>,
    },
    /// To a word to this node.
    Segments(Result<SegmentDone>),
    /// The descriptor follows once the client says that it listens for it.
    Descriptor,
    /// No, and why; `again` if it may be tried later.
    Refused {
        /// One clear sentence.
        why: Refusal,
    },
}

/// What an answer is, for the error that it is not the one that was asked for.
impl std::fmt::Display for Welcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client { master: Some(at), .. } => write!(f, "that the master is at {at}"),
            Self::Client { master: None, .. } => f.write_str("as the master does to a client"),
            Self::Rank { .. } => f.write_str("as the master does to a rank"),
            Self::Attached { .. } => f.write_str("as an owner does that is attached to"),
            Self::Segments(_) => f.write_str("as a node does that was told to mount"),
            Self::Descriptor => f.write_str("with a descriptor"),
            Self::Refused { why } => write!(f, "with a refusal: {why}"),
        }
    }
}

/// The key of the job's [`nkv_store::KeyHasher`] [I16]. Only members are sent it, over a unix
/// socket of their own user or encrypted, and nobody prints it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HasherKey(pub [u8; HASHER_KEY_BYTES]);

impl std::fmt::Debug for HasherKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HasherKey(not shown)")
    }
}

/// Why a connection was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Other version of the messages.
    #[error(
        "this node speaks message version {ours}, the other side {theirs}; use one nkv version in \
         a job"
    )]
    Version {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Other job.
    #[error(
        "this is job '{ours}', not '{theirs}'; set NKV_JOB alike on every rank, or use another \
         NKV_PORT"
    )]
    Job {
        /// Ours.
        ours: String,
        /// Theirs.
        theirs: String,
    },
    /// Other world size.
    #[error(
        "rank {rank} was started with world size {theirs}, but the master (rank 0) with {ours}: \
         start every rank of the job with the same --world-size (NKV_WORLD_SIZE)"
    )]
    WorldSize {
        /// Who asked.
        rank: u32,
        /// The master's.
        ours: u32,
        /// The rank's.
        theirs: u32,
    },
    /// Another key that hashes keys: neither side would find what the other stored [I16].
    #[error(
        "{who} hashes keys under another key (fingerprint {theirs:016x}) than this job \
         ({ours:016x}): give every rank and client of the job the same secret, or none, and the \
         same nkv version"
    )]
    Keys {
        /// Who asked.
        who: String,
        /// The job's fingerprint.
        ours: u64,
        /// Theirs.
        theirs: u64,
    },
    /// A segment number past the last.
    #[error("rank {rank} cannot have a segment {segment}: they count from 0 to {last}")]
    Segment {
        /// Who asked.
        rank: u32,
        /// The segment.
        segment: u32,
        /// The largest number.
        last: u32,
    },
    /// The rank number is in use by a living process.
    #[error(
        "rank {rank} is already in the cluster and alive (pid {pid}, heard of {heard_ms} ms ago): \
         end that process, or give this one another --rank (NKV_RANK)"
    )]
    RankAlive {
        /// The number.
        rank: u32,
        /// Its process.
        pid: u32,
        /// Since its last heartbeat.
        heard_ms: u64,
    },
    /// That incarnation was declared gone [I17].
    #[error("incarnation {incarnation:016x} of rank {rank} was declared gone; start afresh")]
    Gone {
        /// Rank number.
        rank: u32,
        /// The incarnation.
        incarnation: u64,
    },
    /// Not now.
    #[error("not now: {0}")]
    Later(String),
    /// Not the node that was meant.
    #[error("{0}")]
    NotHere(String),
    /// It would map the memory, and nobody could tell when it is dead.
    #[error(
        "no pidfd of {peer} can be had (a kernel before 5.3, or another pid namespace): its death \
         could not be proven, so it does not map this memory, and is served over tcp"
    )]
    NoProof {
        /// Who.
        peer: String,
    },
    /// What it says of itself cannot be.
    #[error("this hello cannot be true, and is not believed: {0}")]
    Invalid(String),
    /// The two ends do not share the job's secret; found in the handshake that comes first [I20].
    #[error("{0}")]
    Untrusted(String),
}

/// Settings that a cluster shares, told by the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes per page if the caller names none.
    pub page_bytes: u32,
    /// Milliseconds a producer has from open to commit.
    pub write_ttl_ms: u64,
    /// Membership TTL in milliseconds.
    pub ttl_ms: u64,
    /// Limit of one control call in milliseconds.
    pub call_timeout_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i16_a_welcome_does_not_show_the_key_that_hashes_keys() {
        let settings = Settings { page_bytes: 1, write_ttl_ms: 1, ttl_ms: 1, call_timeout_ms: 1 };
        let (view, hasher) = (View::default(), HasherKey([211; HASHER_KEY_BYTES]));
        let welcome = Welcome::Client { master: None, view, settings, hasher, ring: None };
        let shown = format!("{welcome:?} {welcome:#?}");
        assert!(shown.contains("not shown") && !shown.contains("211"), "{shown}");
    }
}
