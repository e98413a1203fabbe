//! A put into the log that the owner's end makes.

use nkv_store::KeyId;
use nkv_store::object::SetMark;

/// What the owner's end did with an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Appended {
    /// Nothing: the token has no log rights, or too many claims of it are open.
    #[default]
    Refused,
    /// Nothing: the log has no room below its limit now.
    NoRoom,
    /// It is READY; its claim begins at this position.
    Ready(u64),
    /// The claim at this position extends above the limit. It is open, and nothing is written: wait
    /// until the limit has moved and write it, or give it up [I13].
    Waits(u64),
    /// The claim at this position was voided meanwhile.
    Void(u64),
}

/// An object for the owner's end to put into its log.
#[derive(Debug)]
pub struct Append<'a> {
    /// Its key.
    pub key: KeyId,
    /// Logical page size in bytes.
    pub page_bytes: u32,
    /// The replicas to which it belongs.
    pub mark: SetMark,
    /// The whole object.
    pub payload: &'a [u8],
    /// Result.
    pub outcome: Appended,
}

impl<'a> Append<'a> {
    /// An object that is still to be put.
    pub fn new(key: KeyId, page_bytes: u32, payload: &'a [u8]) -> Self {
        let (mark, outcome) = (SetMark::NONE, Appended::default());
        Self { key, page_bytes, mark, payload, outcome }
    }

    /// The same object as one of several replicas.
    #[must_use]
    pub fn in_set(self, mark: SetMark) -> Self {
        Self { mark, ..self }
    }
}
