//! The frames of the handshake: four structures of fixed size, little-endian, sent before anything
//! whose length a peer could choose. The first 12 bytes of each never change: magic and version.
//!
//! ```text
//! client                                   node
//!   Opening   channel, means, job, nonce  ->
//!                                         <-  Challenge   go on or why not, needs, nonce
//!   Proof     HMAC("client", both)        ->
//!                                         <-  Verdict     HMAC("server", both and the proof)
//! ```

use super::secret::MAC_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything below.
pub const AUTH_VERSION: u32 = 1;
/// Bytes of a nonce: two never meet by chance.
pub(super) const NONCE_BYTES: usize = 32;
/// Longest job name, and longest text of a challenge.
pub(super) const TEXT_BYTES: usize = 256;

/// To one who expects a control frame of older releases, bytes 4 and 5 are another wire version.
pub(super) const OPENING_MAGIC: u64 = u64::from_le_bytes(*b"nkv-auth");
pub(super) const CHALLENGE_MAGIC: u64 = u64::from_le_bytes(*b"nkv-chal");
pub(super) const PROOF_MAGIC: u64 = u64::from_le_bytes(*b"nkv-mac!");
pub(super) const VERDICT_MAGIC: u64 = u64::from_le_bytes(*b"nkv-done");

/// A text of at most [`TEXT_BYTES`], the rest zero.
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

    /// What was written, or what can be read of it.
    pub(super) fn shown(&self) -> String {
        let len = (self.len.get() as usize).min(TEXT_BYTES);
        String::from_utf8_lossy(&self.bytes[..len]).into_owned()
    }

    /// True for exactly this text.
    pub(super) fn is(&self, text: &str) -> bool {
        self.as_bytes() == Self::new(text).as_bytes() && text.len() <= TEXT_BYTES
    }
}

/// The client's first word.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Opening {
    pub magic: U64,
    pub version: U32,
    /// [`super::Channel`] as a number.
    pub channel: U32,
    /// What the client can prove: [`super::Means`] as a number.
    pub means: U32,
    pub job: Text,
    pub nonce: [u8; NONCE_BYTES],
}

/// The node's answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Challenge {
    pub magic: U64,
    pub version: U32,
    /// [`Status`] as a number.
    pub status: U32,
    /// What the node demands: [`super::Means`] as a number.
    pub needs: U32,
    /// The node's job if the client named another, or why not.
    pub text: Text,
    pub nonce: [u8; NONCE_BYTES],
}

/// What the client proves.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Proof {
    pub magic: U64,
    pub version: U32,
    pub mac: [u8; MAC_BYTES],
}

/// The node's last word, with its own proof unless it refuses.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct Verdict {
    pub magic: U64,
    pub version: U32,
    /// [`Status`] as a number.
    pub status: U32,
    pub mac: [u8; MAC_BYTES],
}

/// Bytes of the client's first frame.
pub const OPENING_BYTES: usize = size_of::<Opening>();
/// Bytes of the node's answer.
pub const CHALLENGE_BYTES: usize = size_of::<Challenge>();
/// Bytes of the client's proof.
pub const PROOF_BYTES: usize = size_of::<Proof>();
/// Bytes of the node's last frame.
pub const VERDICT_BYTES: usize = size_of::<Verdict>();

const _: () = {
    assert!(OPENING_BYTES == 312 && CHALLENGE_BYTES == 312);
    assert!(PROOF_BYTES == 44 && VERDICT_BYTES == 48);
};

/// How a challenge or a verdict ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    /// Go on; in a verdict: welcome.
    Ok = 0,
    /// Another version.
    Version = 1,
    /// Another job; the text is ours.
    Job = 2,
    /// This port is of the other channel.
    Channel = 3,
    /// What the client can prove is not what is demanded.
    Means = 4,
    /// The proof is wrong.
    Proof = 5,
    /// No room; the text says why.
    Busy = 6,
    /// What came was no opening.
    Foreign = 7,
}

impl Status {
    pub(super) fn from_wire(n: u32) -> Option<Self> {
        use Status::{Busy, Channel, Foreign, Job, Means, Ok, Proof, Version};
        let all = [Ok, Version, Job, Channel, Means, Proof, Busy, Foreign];
        all.into_iter().find(|s| *s as u32 == n)
    }
}
