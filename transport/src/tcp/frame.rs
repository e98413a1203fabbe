//! The messages between client and agent: fixed-size little-endian structures, so that every length
//! is known before parsing. A request is header, descriptors, tag, payloads of the writes in order.
//! A response is header, message or results of the atomics in order, tag, payloads of the reads in
//! order. On an authenticated connection the tag covers everything before it in its message; hello
//! and welcome end with one, too. There each payload of at most [`super::tags::MAX_TAGGED_BYTES`]
//! is also followed by its own tag, which no length includes. The first 12 bytes of hello and
//! welcome never change: they contain the version.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Version of everything below.
pub const TCP_VERSION: u32 = 7;
/// Most verbs in one request; the client splits longer batches.
pub const MAX_OPS: usize = 4096;
/// Most payload bytes of one request in each direction; the client splits larger verbs. Default of
/// [`super::AgentLimits::max_request_bytes`].
pub const MAX_REQUEST_BYTES: u64 = 1 << 30;
/// Most bytes that reads before the last change of a request may return: the agent buffers them
/// until the changes are done. The client starts a new request instead of exceeding it.
pub(super) const MAX_EARLY_BYTES: u64 = 64 << 10;
/// Longest job name in bytes.
pub(super) const MAX_JOB_BYTES: usize = 256;
/// Longest text in a welcome or a response, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 1024;

pub(super) const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"nkvtcp-h");
pub(super) const WELCOME_MAGIC: u64 = u64::from_le_bytes(*b"nkvtcp-w");
pub(super) const REQUEST_MAGIC: u32 = u32::from_le_bytes(*b"nkvq");
pub(super) const RESPONSE_MAGIC: u32 = u32::from_le_bytes(*b"nkvr");

/// First bytes of a connection; followed by the job's name.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Hello {
    pub magic: U64,
    pub version: U32,
    pub job_len: U32,
    /// The owner's incarnation that the client expects.
    pub incarnation: U64,
}

/// The agent's answer; followed by a message.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Welcome {
    pub magic: U64,
    pub version: U32,
    pub status: U32,
    pub incarnation: U64,
    pub segment_len: U64,
    pub max_request_bytes: U64,
    pub message_len: U32,
    pub max_ops: U32,
}

/// First bytes of a request.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Request {
    pub magic: U32,
    pub n_ops: U32,
    /// Chosen by the client, returned in the response.
    pub id: U64,
    pub token: U64,
    /// Sum of the lengths of the Write descriptors.
    pub write_bytes: U64,
    /// Sum of the lengths of the Read descriptors.
    pub read_bytes: U64,
}

/// One verb. `a` and `b` by code: length; value; add; expect and new. Of a lookup or an append,
/// `offset` and `b` are the key's two hashes.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct OpDesc {
    pub code: U32,
    /// 1 in a read: `offset` counts from what the last lookup found, header first, then payload. 1
    /// in a write: the payload of the append before it. In an append: the object's page size.
    pub relative: U32,
    pub offset: U64,
    pub a: U64,
    pub b: U64,
}

/// First bytes of a response.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Response {
    pub magic: U32,
    pub status: U32,
    pub id: U64,
    /// Length in bytes of the text that follows a status other than Ok.
    pub message_len: U32,
    /// Number of results of atomics that follow, 8 bytes each.
    pub n_results: U32,
    /// Bytes of read payload that follow the results.
    pub read_bytes: U64,
    /// 1: the agent closes the connection after this response, and has processed nothing that was
    /// sent after its request. Requests after it were not executed and may be sent again.
    pub closing: U32,
    pub reserved: U32,
}

pub(super) const OP_READ: u32 = 1;
pub(super) const OP_WRITE: u32 = 2;
pub(super) const OP_STORE: u32 = 3;
pub(super) const OP_FETCH_ADD: u32 = 4;
pub(super) const OP_COMPARE_SWAP: u32 = 5;
pub(super) const OP_FLUSH: u32 = 6;
/// A lookup: its result is a header slot and, in the high half, the epoch; or `NOT_FOUND`, or
/// `NOT_READ`: what was to be read of it reaches beyond the segment. Only in requests without a
/// change.
pub(super) const OP_FIND: u32 = 7;
/// An append of `a` bytes, which the write after it brings: the agent claims, writes and publishes.
/// Its result is the claim's position, which leaves the low bits free, and one of the codes below.
pub(super) const OP_APPEND: u32 = 8;
/// The bytes of an append are the low bits of their word, below the mark of its replicas.
pub(super) const APPEND_LEN_BITS: u32 = 32;
pub(super) const APPEND_LEN: u64 = (1 << APPEND_LEN_BITS) - 1;
const _: () = assert!(MAX_REQUEST_BYTES <= APPEND_LEN);
pub(super) const APPEND_CODES: u64 = 7;
pub(super) const APPEND_READY: u64 = 0;
pub(super) const APPEND_WAITS: u64 = 1;
pub(super) const APPEND_VOID: u64 = 2;
pub(super) const APPEND_NO_ROOM: u64 = 3;
pub(super) const APPEND_REFUSED: u64 = 4;
pub(super) const NOT_FOUND: u64 = u64::MAX;
pub(super) const NOT_READ: u64 = u64::MAX - 1;

pub(super) const REQUEST_BYTES: usize = size_of::<Request>();
pub(super) const DESC_BYTES: usize = size_of::<OpDesc>();

const _: () = {
    assert!(size_of::<Hello>() == 24 && size_of::<Welcome>() == 48);
    assert!(REQUEST_BYTES == 40 && size_of::<Response>() == 40 && DESC_BYTES == 32);
};

/// How a handshake or a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub(super) enum Status {
    /// Done.
    Ok = 0,
    /// Token unknown, revoked, or not covering a verb.
    Refused = 1,
    /// A verb outside the segment or misaligned.
    OutOfBounds = 2,
    /// Not a request of this version.
    Protocol = 3,
    /// Every connection of the agent is in use.
    Busy = 4,
    /// The segment is of another incarnation.
    Incarnation = 5,
    /// The segment is of another job.
    Job = 6,
}

impl Status {
    pub(super) fn from_wire(n: u32) -> Option<Self> {
        Self::try_read_from_bytes(&n.to_ne_bytes()).ok()
    }
}

/// A text cut to [`MAX_MESSAGE_BYTES`], on a character boundary.
pub(super) fn message(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_MESSAGE_BYTES)]
}
