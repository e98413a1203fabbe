//! Tags: what makes each message's head (verbs, offsets, lengths, tokens, results) the other end's
//! own on a connection that was authenticated. A relay or a hijacker can pass messages on, and
//! neither make, change, drop, repeat nor reorder one [I20]. The payload of a verb has a tag of its
//! own if it is small: headers and index entries are. Large payload has none, for speed.

use crate::wire::auth::{TAG_BYTES, TagKey, TagKeys};

/// Payload of one verb up to so many bytes has a tag behind it: a header, or a pair of index
/// buckets.
pub(super) const MAX_TAGGED_BYTES: usize = 128;

/// Whether payload of so many bytes has a tag, on a connection that has tags.
pub(super) fn has_tag(len: usize) -> bool {
    (1..=MAX_TAGGED_BYTES).contains(&len)
}

/// The two directions of one connection as one end has them; without keys no message has a tag.
#[derive(Debug, Default)]
pub(super) struct Tags(Option<Keys>);

#[derive(Debug)]
struct Keys {
    out: TagKey,
    incoming: TagKey,
}

/// What goes behind a message's head or a small payload: a tag, or nothing.
pub(super) struct Tag(Option<[u8; TAG_BYTES]>);

impl Tag {
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |tag| tag)
    }
}

impl Tags {
    pub(super) fn of_client(keys: Option<TagKeys>) -> Self {
        Self(keys.map(|k| Keys { out: k.to_node, incoming: k.to_client }))
    }

    pub(super) fn of_agent(keys: Option<TagKeys>) -> Self {
        Self(keys.map(|k| Keys { out: k.to_client, incoming: k.to_node }))
    }

    /// The tag of the next message out.
    pub(super) fn next(&mut self, parts: &[&[u8]]) -> Tag {
        Tag(self.0.as_mut().map(|keys| keys.out.tag(parts)))
    }

    /// The tag of a verb's payload, which is the next message out; nothing if it is large.
    pub(super) fn of_payload(&mut self, payload: &[u8]) -> Tag {
        if has_tag(payload.len()) { self.next(&[payload]) } else { Tag(None) }
    }

    /// Bytes of the tag behind payload of so many bytes.
    pub(super) fn len_behind(&self, payload: usize) -> usize {
        if self.0.is_some() && has_tag(payload) { TAG_BYTES } else { 0 }
    }

    /// The next message in is not looked at; bytes of its tag.
    pub(super) fn skip(&mut self) -> usize {
        self.0.as_mut().map_or(0, |keys| {
            keys.incoming.skip();
            TAG_BYTES
        })
    }

    /// Room for the tag of the next message in.
    pub(super) fn room(&self) -> Option<[u8; TAG_BYTES]> {
        self.0.as_ref().map(|_| [0; TAG_BYTES])
    }

    /// Whether the next message in is the other end's.
    pub(super) fn fits(&mut self, parts: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        self.0.as_mut().is_none_or(|keys| keys.incoming.is_next(parts, tag))
    }
}
