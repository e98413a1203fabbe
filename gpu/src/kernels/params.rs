//! One type per kernel with its parameters, in the kernel's order. All addresses are those of the
//! device.

/// Parameters of `nkv_gather_publish` and `nkv_gather_bulk`.
#[derive(Debug, Clone, Copy)]
pub struct GatherPublish {
    /// Address of the descriptors, in memory of the GPU.
    pub descriptors: u64,
    /// Number of descriptors.
    pub count: u32,
    /// Address of a word in memory of the GPU, 0 at first, of which no other launch in progress
    /// makes use. The kernel leaves it 0.
    pub done: u64,
    /// Address of the publish word.
    pub publish: u64,
    /// What the publish word must be: (WRITING, epoch).
    pub expect: u64,
    /// What it becomes: (READY, epoch).
    pub ready: u64,
    /// Address of a word for what the publish word was. READY was written if it is `expect`.
    pub found: u64,
}

impl GatherPublish {
    /// The parameters, widened to 64 bits.
    pub fn args(&self) -> [u64; 7] {
        let count = u64::from(self.count);
        let Self { descriptors, done, publish, expect, ready, found, .. } = *self;
        [descriptors, count, done, publish, expect, ready, found]
    }
}

/// Parameters of `nkv_wait_scatter`.
#[derive(Debug, Clone, Copy)]
pub struct WaitScatter {
    /// Address of the object's header.
    pub header: u64,
    /// The key's hash.
    pub key_hash: u64,
    /// The key's check.
    pub key_check: u64,
    /// Epoch of the location.
    pub epoch: u32,
    /// Segment offset of page 0, from which the descriptors were made.
    pub payload_base: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// How often each block reads the publish word at most.
    pub spins: u64,
    /// Address of the descriptors, in memory of the GPU.
    pub descriptors: u64,
    /// Number of descriptors.
    pub count: u32,
    /// As in [`GatherPublish`].
    pub done: u64,
    /// Address of a word for the [`ScatterResult`].
    pub result: u64,
}

impl WaitScatter {
    /// The parameters, widened to 64 bits.
    pub fn args(&self) -> [u64; 11] {
        let (epoch, count) = (u64::from(self.epoch), u64::from(self.count));
        let Self { header, key_hash, key_check, payload_base, bytes, spins, .. } = *self;
        let Self { descriptors, done, result, .. } = *self;
        [
            header,
            key_hash,
            key_check,
            epoch,
            payload_base,
            bytes,
            spins,
            descriptors,
            count,
            done,
            result,
        ]
    }
}

/// What `nkv_wait_scatter` found. The copy is to be used if `Valid` and not otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScatterResult {
    /// Readable before the copy, unchanged after it [I2] [I7].
    Valid,
    /// READY did not come in time.
    NotReady,
    /// Another object, or one that is not served.
    Gone,
    /// Retired or replaced during the copy.
    Changed,
}

impl ScatterResult {
    /// From the word that the kernel wrote.
    pub fn from_word(word: u64) -> Option<ScatterResult> {
        Some(match word {
            1 => ScatterResult::Valid,
            2 => ScatterResult::NotReady,
            3 => ScatterResult::Gone,
            4 => ScatterResult::Changed,
            _ => return None,
        })
    }
}

/// Parameters of `nkv_log_put`.
#[derive(Debug, Clone, Copy)]
pub struct LogPut {
    /// Address of the [`LogPutObject`]s, in memory of the GPU.
    pub objects: u64,
    /// Number of objects.
    pub count: u32,
    /// Address of the claim word, in memory of the GPU: only kernels change it [I1].
    pub bump: u64,
    /// Address of `heap_limit`.
    pub limit: u64,
    /// Address of the log's first header.
    pub headers: u64,
    /// Address of the log's first payload byte.
    pub payload: u64,
    /// Segment offset of the log's first payload byte.
    pub offset: u64,
    /// Length of the log in bytes.
    pub log_bytes: u64,
    /// How often a claim above the limit reads the limit again at most.
    pub spins: u64,
    /// Address of one [`LogPutResult`] for each object.
    pub results: u64,
}

impl LogPut {
    /// The parameters, widened to 64 bits.
    pub fn args(&self) -> [u64; 10] {
        let Self { objects, bump, limit, headers, payload, offset, log_bytes, .. } = *self;
        let (count, spins, results) = (u64::from(self.count), self.spins, self.results);
        [objects, count, bump, limit, headers, payload, offset, log_bytes, spins, results]
    }
}

/// One object for `nkv_log_put`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPutObject {
    /// Address of its bytes, a multiple of 16.
    pub src: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes to claim: `bytes` in whole units of 4 KiB, at least one, at most a quarter of the log.
    pub claim_bytes: u64,
    /// The key's hash.
    pub key_hash: u64,
    /// The key's check.
    pub key_check: u64,
    /// Number of pages.
    pub n_pages: u32,
    /// Bytes per page.
    pub page_size: u32,
}

/// What became of one object.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPutResult {
    /// Position of its last claim; meaningful if `Stored` or `Waited`.
    pub position: u64,
    /// See [`LogPutStatus::from_word`].
    pub status: u64,
}

/// Whether an object was stored, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPutStatus {
    /// READY is set.
    Stored,
    /// There was no room below the limit; nothing is claimed.
    Full,
    /// The claim was above the limit for too long: it must be reported to the owner as abandoned.
    Waited,
    /// Every claim crossed the end of the log; nothing is claimed.
    Wrapped,
}

impl LogPutStatus {
    /// From [`LogPutResult::status`].
    pub fn from_word(word: u64) -> Option<LogPutStatus> {
        Some(match word {
            1 => LogPutStatus::Stored,
            2 => LogPutStatus::Full,
            3 => LogPutStatus::Waited,
            4 => LogPutStatus::Wrapped,
            _ => return None,
        })
    }
}

const _: () = {
    assert!(size_of::<LogPutObject>() == 48 && size_of::<LogPutResult>() == 16);
    assert!(std::mem::offset_of!(LogPutObject, n_pages) == 40);
};
