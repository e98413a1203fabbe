//! Tags: what makes each message's head (verbs, offsets, lengths, tokens, results) the other end's own
//! on a connection that was authenticated. A relay or a hijacker can pass messages on, and neither
//! make, change, drop, repeat nor reorder one [I20]. Payload has none, for speed: that is all bytes
//! that are read and written, headers and index entries among them.

use crate::wire::auth::{TAG_BYTES, TagKey, TagKeys};

/// The two directions of one connection as one end has them; without keys no message has a tag.
#[derive(Debug, Default)]
pub(super) struct Tags(Option<Keys>);

#[derive(Debug)]
struct Keys {
    out: TagKey,
    incoming: TagKey,
}

/// What goes behind a message's head: a tag, or nothing.
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

    /// Room for the tag of the next message in.
    pub(super) fn room(&self) -> Option<[u8; TAG_BYTES]> {
        self.0.as_ref().map(|_| [0; TAG_BYTES])
    }

    /// Whether the next message in is the other end's.
    pub(super) fn fits(&mut self, parts: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        self.0.as_mut().is_none_or(|keys| keys.incoming.is_next(parts, tag))
    }
}
