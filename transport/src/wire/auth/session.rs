//! The result of a handshake. With a key, everything that follows is bound to it: control
//! connections are encrypted with it, data connections carry tags under keys sent in the handshake.
//! A relay can only forward bytes [I20].

use super::super::net::BoxStream;
use super::super::sealed::Sealed;
use siphasher::sip128::{Hasher128, SipHasher24};
use snow::TransportState;
use std::fmt;
use std::hash::Hasher;

/// Bytes of the tag key of one direction.
const TAG_KEY_BYTES: usize = 16;
/// Bytes of the tag keys of both directions.
pub(super) const TAG_KEYS_BYTES: usize = 2 * TAG_KEY_BYTES;
/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// An authenticated connection.
pub struct Session(Option<(Box<TransportState>, TagKeys)>);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Session(not shown)" } else { "Session(none)" })
    }
}

impl Session {
    pub(super) fn new(transport: TransportState, tags: TagKeys) -> Self {
        Self(Some((Box::new(transport), tags)))
    }

    /// A session of two ends that the kernel identified.
    pub(super) fn plain() -> Self {
        Self(None)
    }

    /// The stream for all that follows: encrypted, unless only its two ends can access it.
    pub fn seal(self, stream: BoxStream) -> BoxStream {
        match self.0 {
            Some((transport, _)) if !stream.is_private() => {
                Box::new(Sealed::new(stream, transport))
            }
            _ => stream,
        }
    }

    #[cfg(test)]
    pub(crate) fn keyed(self) -> Option<Box<TransportState>> {
        self.0.map(|(transport, _)| transport)
    }

    /// The tag keys, on a connection that was authenticated by a secret or cookie.
    pub(crate) fn tags(&self) -> Option<TagKeys> {
        self.0.as_ref().map(|(_, tags)| tags.clone())
    }
}

/// The tag keys of a data connection, as one of its ends uses them.
#[derive(Debug, Clone)]
pub(crate) struct TagKeys {
    pub out: TagKey,
    pub incoming: TagKey,
}

impl TagKeys {
    /// Those of the client: the key for what goes to the node comes first.
    pub(super) fn of_client(bytes: &[u8; TAG_KEYS_BYTES]) -> Self {
        let key = |from: usize| {
            let mut key = [0; TAG_KEY_BYTES];
            key.copy_from_slice(&bytes[from..from + TAG_KEY_BYTES]);
            TagKey { key, next: 0 }
        };
        Self { out: key(0), incoming: key(TAG_KEY_BYTES) }
    }

    pub(super) fn of_node(bytes: &[u8; TAG_KEYS_BYTES]) -> Self {
        let Self { out, incoming } = Self::of_client(bytes);
        Self { out: incoming, incoming: out }
    }
}

/// One direction. Each message has the next number, which is not transmitted and never repeats.
#[derive(Clone)]
pub(crate) struct TagKey {
    key: [u8; TAG_KEY_BYTES],
    next: u64,
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TagKey(not shown, {} so far)", self.next)
    }
}

impl TagKey {
    /// The tag of the next message: SipHash-2-4 of 128 bits over its number and its parts. The
    /// lengths of the parts follow from the first part, or from an earlier message.
    pub(crate) fn tag(&mut self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        let mut mac = SipHasher24::new_with_key(&self.key);
        mac.write(&self.next.to_le_bytes());
        self.next += 1;
        parts.iter().for_each(|part| mac.write(part));
        mac.finish128().as_bytes()
    }

    /// Skips the check of the next message.
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// Whether this is the tag of the next message; constant time.
    pub(crate) fn is_next(&mut self, parts: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        let right = u128::from_le_bytes(self.tag(parts));
        right ^ u128::from_le_bytes(*tag) == 0
    }
}
