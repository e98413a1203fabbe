//! How a control connection begins: the caller's hello, the answer, and the reasons for a refusal.

use super::{Ballot, RankInfo, SeenView, SegmentCommand, SegmentDone, Standing, Term, View};
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
        /// The rank and the segment.
        info: Box<RankInfo>,
        /// The highest term its owner obeyed; the default if it never had a master.
        obeyed: Term,
        /// Whether anything was ever placed on it, by a plan or by a claim in its log.
        holds: bool,
        /// The last membership view that it keeps.
        seen: SeenView,
        /// From a first segment: the others of its node, as (segment, incarnation). A restarted
        /// master does not report a key as absent before these have reported.
        siblings: Vec<(u32, u64)>,
    },
    /// A client uses this node's segment.
    Attach {
        /// Random id of the client.
        producer: u64,
        /// The incarnation that it attaches to.
        incarnation: u64,
        /// How it reaches the memory.
        by: AttachBy,
    },
    /// A rank asks who is master, or for a vote.
    Elect(Ballot),
    /// A command to this node; answered once it is done, and with `Working` until then.
    Segments(SegmentCommand),
    /// A client must map a segment and cannot open it by its name: send the file descriptor over
    /// this unix socket.
    Descriptor {
        /// The segment's incarnation.
        incarnation: u64,
    },
    /// The same for a segment's payloads in a GPU.
    Payload {
        /// The segment's incarnation.
        incarnation: u64,
    },
}

/// How a client reaches an owner's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachBy {
    /// Through the tcp agent, which fences it.
    Agent,
    /// It maps the memory, and must answer `Drop` [I10].
    Map,
    /// Through devices, with its end of the data path: it must answer `Drop`, or is severed.
    Fabric(Offer),
}

/// Answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// To a client: where the master is, and the members.
    Client {
        /// Control address of the master as this node reaches it; None if it is this node.
        master: Option<Address>,
        /// Current view (empty on a node that is not the master).
        view: View,
        /// Call defaults of the cluster.
        settings: Settings,
        /// Key of the hash that computes key identities.
        hasher: HasherKey,
        /// Bytes of a lane of the ring that this node made for the client, if any. The client takes
        /// the ring next, and sends its requests through it.
        ring: Option<u64>,
    },
    /// To a rank: joined.
    Rank {
        /// The master's term.
        term: Term,
        /// Settings of the cluster.
        settings: Settings,
        /// Whether the owner must report recorded plans to the master (`PlansRecorded`).
        confirm: bool,
        /// As in [`super::MasterToOwner::Heartbeat`].
        stamp_ms: u64,
    },
    /// To an attaching client.
    Attached {
        /// The term the owner obeys: a plan of a lower one is refused before its first byte.
        term: Term,
        /// The pin table of this attachment, if it maps the memory and there was one left [I9].
        pins: Option<u32>,
        /// Token for every change of the device log through the tcp agent, if the attachment has
        /// log rights.
        log_token: Option<u64>,
        /// The owner's end of a data path through devices, or why there is none, if one was
        /// offered.
        fabric: Option<std::result::Result<Answer, String>>,
    },
    /// To a rank that asks who is master, or for a vote.
    Elect(Standing),
    /// To a command to this node.
    Segments(Result<SegmentDone>),
    /// The descriptor follows once the client has sent that it is ready to receive it.
    Descriptor,
    /// The connection is refused.
    Refused {
        /// The reason.
        why: Refusal,
    },
}

/// Describes an answer, for the error text when it does not fit the hello.
impl std::fmt::Display for Welcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client { master: Some(at), .. } => write!(f, "that the master is at {at}"),
            Self::Client { master: None, .. } => f.write_str("as the master does to a client"),
            Self::Rank { .. } => f.write_str("as the master does to a rank"),
            Self::Attached { .. } => f.write_str("as an owner does that is attached to"),
            Self::Elect(_) => f.write_str("as a rank does that was asked for its vote"),
            Self::Segments(_) => f.write_str("as a node does that was told to mount"),
            Self::Descriptor => f.write_str("with a descriptor"),
            Self::Refused { why } => write!(f, "with a refusal: {why}"),
        }
    }
}

/// The key of the job's [`nkv_store::KeyHasher`] [I16]. It is sent to members only, over a unix
/// socket of their own user or encrypted, and is never printed.
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
        /// The rank that asked.
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
        /// The rank that asked.
        who: String,
        /// The job's fingerprint.
        ours: u64,
        /// Theirs.
        theirs: u64,
    },
    /// A segment number past the last.
    #[error("rank {rank} cannot have a segment {segment}: they count from 0 to {last}")]
    Segment {
        /// The rank that asked.
        rank: u32,
        /// The segment.
        segment: u32,
        /// The largest number.
        last: u32,
    },
    /// The rank number is in use by a living process.
    #[error(
        "rank {rank} is already in the cluster and alive (pid {pid}, last heartbeat {heard_ms} ms \
         ago): end that process, or give this one another --rank (NKV_RANK)"
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
    #[error("incarnation {incarnation:016x} of rank {rank} was declared gone; restart it")]
    Gone {
        /// Rank number.
        rank: u32,
        /// The incarnation.
        incarnation: u64,
    },
    /// Not now.
    #[error("not now: {0}")]
    Later(String),
    /// This is not the node that the caller wants.
    #[error("{0}")]
    NotHere(String),
    /// It would map the memory, and its death could not be detected.
    #[error(
        "no pidfd of {peer} is available (a kernel before 5.3, or another pid namespace): its \
         death could not be detected, so it does not map this memory and uses tcp"
    )]
    NoProof {
        /// The process.
        peer: String,
    },
    /// The hello contains impossible values.
    #[error("this hello is invalid: {0}")]
    Invalid(String),
    /// The two ends do not have the same secret of the job; found in the handshake before the hello
    /// [I20].
    #[error("{0}")]
    Untrusted(String),
}

/// Settings that a cluster shares, sent by the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes per page if the caller gives none.
    pub page_bytes: u32,
    /// Milliseconds that a producer has from open to commit.
    pub write_ttl_ms: u64,
    /// Membership TTL in milliseconds.
    pub ttl_ms: u64,
    /// Limit of one control call in milliseconds.
    pub call_timeout_ms: u64,
    /// For how long a rank that has heard from the master obeys no other, in milliseconds; 0: no
    /// other rank becomes master.
    pub master_lease_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i16_a_welcome_does_not_show_the_key_that_hashes_keys() {
        let settings = Settings {
            page_bytes: 1,
            write_ttl_ms: 1,
            ttl_ms: 1,
            call_timeout_ms: 1,
            master_lease_ms: 0,
        };
        let (view, hasher) = (View::default(), HasherKey([211; HASHER_KEY_BYTES]));
        let welcome = Welcome::Client { master: None, view, settings, hasher, ring: None };
        let shown = format!("{welcome:?} {welcome:#?}");
        assert!(shown.contains("not shown") && !shown.contains("211"), "{shown}");
    }
}
