//! Tags authenticate the head of each message (verbs, offsets, lengths, tokens, results) on an
//! authenticated connection. A relay or a hijacker can forward messages, but cannot make, change,
//! drop, repeat or reorder them [I20]. A verb's payload has its own tag if it is small, such as a
//! header or index buckets. Large payload has no tag, for speed.

use crate::wire::auth::{TAG_BYTES, TagKeys};

/// Payload of one verb of up to this many bytes is followed by a tag: a header, or a pair of index
/// buckets.
pub(super) const MAX_TAGGED_BYTES: usize = 128;

/// Whether payload of `len` bytes has a tag, on a connection with tags.
pub(super) fn has_tag(len: usize) -> bool {
    (1..=MAX_TAGGED_BYTES).contains(&len)
}

/// Tag keys of both directions of one connection; without keys no message has a tag.
#[derive(Debug, Default)]
pub(super) struct Tags(pub(super) Option<TagKeys>);

/// The tag that follows a message's head or a small payload; nothing without keys.
pub(super) struct Tag(Option<[u8; TAG_BYTES]>);

impl Tag {
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |tag| tag)
    }
}

impl Tags {
    /// The tag of the next outgoing message.
    pub(super) fn next(&mut self, parts: &[&[u8]]) -> Tag {
        Tag(self.0.as_mut().map(|keys| keys.out.tag(parts)))
    }

    /// The tag of a verb's payload, which counts as the next outgoing message; nothing if it is
    /// large.
    pub(super) fn of_payload(&mut self, payload: &[u8]) -> Tag {
        if has_tag(payload.len()) { self.next(&[payload]) } else { Tag(None) }
    }

    /// Length in bytes of the tag that follows `payload` bytes of payload.
    pub(super) fn len_behind(&self, payload: usize) -> usize {
        if self.0.is_some() && has_tag(payload) { TAG_BYTES } else { 0 }
    }

    /// Skips the check of the next incoming message; returns the length of its tag in bytes.
    pub(super) fn skip(&mut self) -> usize {
        self.0.as_mut().map_or(0, |keys| {
            keys.incoming.skip();
            TAG_BYTES
        })
    }

    /// A buffer for the tag of the next incoming message.
    pub(super) fn room(&self) -> Option<[u8; TAG_BYTES]> {
        self.0.as_ref().map(|_| [0; TAG_BYTES])
    }

    /// Whether the tag of the next incoming message is correct.
    pub(super) fn fits(&mut self, parts: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        self.0.as_mut().is_none_or(|keys| keys.incoming.is_next(parts, tag))
    }
}
