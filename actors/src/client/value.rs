//! What a put writes: bytes in one buffer, or in several.

use nkv_transport::verbs::Source;

/// Most parts that are written one by one.
pub(super) const MOST_PARTS: usize = 64;

/// A value, whole or in parts that lie one after another in the object.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Whole(&'a [u8]),
    Parts(&'a [&'a [u8]]),
    /// As `Parts`, of which some are in a device.
    Sources(&'a [Source<'a>]),
}

impl<'a> Value<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Value::Whole(bytes) => bytes.len(),
            Value::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
            Value::Sources(parts) => parts.iter().map(Source::len).sum(),
        }
    }

    /// What is written first, as far as it can be loaded.
    pub(super) fn start(&self) -> &'a [u8] {
        match self {
            Value::Whole(bytes) => bytes,
            Value::Parts(parts) => parts.first().copied().unwrap_or_default(),
            Value::Sources([Source::Host(bytes), ..]) => bytes,
            Value::Sources(_) => &[],
        }
    }
}
