//! The error type of this crate. Its texts state offsets and sizes, and what to do.

/// What went wrong in a segment, with the numbers.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An access outside the memory it was meant for.
    #[error(
        "{what} at offset {offset} of {len} bytes is outside the segment of {segment_len} bytes"
    )]
    OutOfBounds {
        /// Verb or structure.
        what: &'static str,
        /// Byte offset asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes that exist.
        segment_len: u64,
    },
    /// A word access that is not 8-byte aligned.
    #[error("word access at offset {offset} is not 8-byte aligned")]
    Misaligned {
        /// Byte offset asked for.
        offset: u64,
    },
    /// A key outside 1 to 1,024 bytes.
    #[error("a key has 1 to 1024 bytes, this one has {len}")]
    BadKey {
        /// Its length in bytes.
        len: usize,
    },
    /// A setting that cannot work, with the remedy in the text.
    #[error("{0}")]
    InvalidConfig(String),
    /// The machine has less memory than asked for, with numbers and remedy in the text.
    #[error("{0}")]
    NotEnoughMemory(String),
    /// The bytes are not a segment of this layout version.
    #[error("not a usable nkv segment: {0}")]
    BadSegment(String),
    /// A segment of that name is in use by a living process.
    #[error("{0}")]
    InUse(String),
    /// No room for an object; nothing was changed.
    #[error("no free range of {asked} bytes (free {free}, largest range {largest_hole})")]
    ArenaFull {
        /// Bytes asked for, rounded up to the allocator's bin.
        asked: u64,
        /// Bytes free in all.
        free: u64,
        /// Largest free range.
        largest_hole: u64,
    },
    /// A transition that the object's life does not allow, e.g. a stale epoch [I11].
    #[error("slot {slot} is at epoch {epoch} and {state}: {refused}")]
    WrongState {
        /// Header slot.
        slot: u32,
        /// Epoch the slot is at.
        epoch: u32,
        /// State it is in.
        state: &'static str,
        /// What was refused, and why.
        refused: String,
    },
    /// An access that this kind of memory cannot serve, with the remedy in the text.
    #[error("{0}")]
    Unsupported(String),
    /// A call of a device's driver failed, with numbers and remedy in the text.
    #[error("{0}")]
    Device(String),
    /// A system call failed.
    #[error("{call} on {path}: {source}")]
    Os {
        /// System call.
        call: &'static str,
        /// What it was applied to.
        path: String,
        /// errno.
        source: std::io::Error,
    },
}

impl StoreError {
    /// Wraps an errno with the call and the thing it was applied to.
    pub fn os(
        call: &'static str,
        path: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::Os { call, path: path.into(), source: source.into() }
    }

    /// `OutOfBounds` unless `len` bytes at `offset` are inside the segment.
    ///
    /// # Errors
    /// As said.
    #[inline]
    pub fn check_bounds(
        what: &'static str,
        offset: u64,
        len: u64,
        segment_len: u64,
    ) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= segment_len => Ok(()),
            _ => Err(Self::OutOfBounds { what, offset, len, segment_len }),
        }
    }

    /// `SegmentInUse` for a segment name that exists.
    pub(crate) fn in_use(path: &std::path::Path) -> Self {
        Self::InUse(format!(
            "{} exists already: another node has this job, rank and incarnation",
            path.display()
        ))
    }
}
