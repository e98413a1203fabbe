//! The frames of the handshake: little-endian structures of fixed size, sent before anything whose
//! length a peer could choose. The first 12 bytes of opening and answer never change: magic and
//! version.
//!
//! ```text
//! client                                             node
//!   Opening  channel, means, job; Noise message 1  ->
//!                                                  <-  Answer  go on or why not; Noise message 2
//!   Finish   first message of the session          ->
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Version of everything below. Version 1 was an exchange of nonces and HMACs, which did not
/// authenticate the data that followed.
pub(super) const AUTH_VERSION: u32 = 2;
/// Length of Noise messages 1 and 2: a public key and the tag of an empty payload.
pub(super) const NOISE_BYTES: usize = 32 + 16;
/// Longest job name, and longest text of an answer, in bytes.
pub(super) const TEXT_BYTES: usize = 256;

/// For a peer that expects a control frame of older releases, bytes 4 and 5 are another wire
/// version.
pub(super) const OPENING_MAGIC: u64 = u64::from_le_bytes(*b"nkv-auth");
pub(super) const ANSWER_MAGIC: u64 = u64::from_le_bytes(*b"nkv-chal");

/// A text of at most [`TEXT_BYTES`], padded with zeros.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Text {
    len: U32,
    bytes: [u8; TEXT_BYTES],
}

impl Text {
    /// The text, cut on a character boundary if it is too long.
    pub(super) fn new(text: &str) -> Self {
        let cut = &text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES)];
        let mut bytes = [0; TEXT_BYTES];
        bytes[..cut.len()].copy_from_slice(cut);
        Self { len: (cut.len() as u32).into(), bytes }
    }

    /// The text as received; invalid parts are replaced.
    pub(super) fn shown(&self) -> String {
        let len = (self.len.get() as usize).min(TEXT_BYTES);
        String::from_utf8_lossy(&self.bytes[..len]).into_owned()
    }

    /// True if it is exactly this text.
    pub(super) fn is(&self, text: &str) -> bool {
        self.as_bytes() == Self::new(text).as_bytes() && text.len() <= TEXT_BYTES
    }
}

/// The client's plaintext fields. They are the prologue of the Noise handshake, which fails unless
/// both ends have the same bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Prologue {
    pub magic: U64,
    pub version: U32,
    /// [`super::Channel`] as a number.
    pub channel: U32,
    /// What the client can prove: [`super::AuthMeans`] as a number.
    pub means: U32,
    pub job: Text,
}

/// The client's first frame.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Opening {
    pub clear: Prologue,
    /// Noise message 1; zeros without a key.
    pub noise: [u8; NOISE_BYTES],
}

/// The node's answer. A refusal is not authenticated: it may only end this connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Answer {
    pub magic: U64,
    pub version: U32,
    /// [`Status`] as a number.
    pub status: U32,
    /// What the node requires: [`super::AuthMeans`] as a number.
    pub needs: U32,
    /// The node's job if the client named another, or the reason of a refusal.
    pub text: Text,
    /// Noise message 2; zeros with a refusal and without a key.
    pub noise: [u8; NOISE_BYTES],
}

/// Bytes of the client's first frame.
pub const OPENING_BYTES: usize = size_of::<Opening>();
/// Bytes of the node's answer.
pub const ANSWER_BYTES: usize = size_of::<Answer>();
/// Length in bytes of the client's last frame: the tag keys of both directions, encrypted.
pub const FINISH_BYTES: usize = 32 + 16;

// At least as many as a client of version 1 waits for: in them it reads the other version.
const _: () = assert!(OPENING_BYTES == 328 && ANSWER_BYTES == 328);

/// Status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub(super) enum Status {
    /// Continue.
    Ok = 0,
    /// Another version.
    Version = 1,
    /// Another job; the text is the node's job.
    Job = 2,
    /// This port belongs to the other channel.
    Channel = 3,
    /// What the client can prove differs from what the node requires.
    AuthMeans = 4,
    /// The client's Noise message was made with another secret.
    Proof = 5,
    /// No room; the text says why.
    Busy = 6,
    /// The bytes received were not an opening.
    Foreign = 7,
}

impl Status {
    pub(super) fn from_wire(n: u32) -> Option<Self> {
        Self::try_read_from_bytes(&n.to_ne_bytes()).ok()
    }
}
