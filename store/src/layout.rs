//! All structures that lie in shared, device or remote memory, with their offsets checked at
//! compile time. All integers are little-endian words of the host (x86-64 and aarch64).
//! docs/PROTOCOL.md, section 1, shows which process writes which field.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of the extension block: "nkvheap1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"nkvheap1");
/// Version of everything in this file. A reader refuses any other.
pub const LAYOUT_VERSION: u32 = 5;
/// Bytes reserved for [`HeapCtl`] and [`HeapExt`] at offset 0.
pub const CTL_BYTES: u64 = 4096;
/// Bytes of one header slot.
pub const HEADER_BYTES: u64 = 64;
/// Smallest unit of payload placement: every extent starts and ends on it.
pub const PAYLOAD_ALIGN: u64 = 4096;

/// The control block (144 bytes at offset 0).
/// `bump_ptr` and `heap_limit` are monotonic byte counts of the device log [I13].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct HeapCtl {
    /// Offset of the first payload byte.
    pub heap_base: u64,
    /// Device log: position up to which claims may be written, monotonic.
    pub heap_limit: u64,
    /// Device log: bytes claimed, monotonic; the only word with several writers [I1].
    pub bump_ptr: u64,
    /// Offset of the header arena.
    pub hdr_base: u64,
    /// Header slots.
    pub hdr_count: u32,
    /// Statistics, owner only.
    pub hdr_head: u32,
    /// Unused.
    pub free_head: [u64; 8],
    /// Offset of the announce ring, 0 if none.
    pub ann_base: u64,
    /// Records in the announce ring.
    pub ann_capacity: u32,
    /// Statistics, owner only.
    pub ann_head: u32,
    /// Statistics, owner only.
    pub ann_tail: u32,
    /// Statistics, owner only.
    pub epoch: u32,
    /// Eviction starts above this percentage.
    pub water_hi: u32,
    /// Eviction ends below this percentage.
    pub water_lo: u32,
    /// Unused.
    pub _pad: [u32; 2],
}

/// Our extension of the control block, at [`EXT_OFF`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct HeapExt {
    /// [`MAGIC`], written last when a segment is formatted.
    pub magic: u64,
    /// [`LAYOUT_VERSION`].
    pub layout_version: u32,
    /// An [`AtomicDomain`].
    pub atomic_domain: u32,
    /// Segment id within its rank.
    pub segment_id: u64,
    /// Random, never 0, never repeated [I3].
    pub incarnation: u64,
    /// First 8 bytes of the kernel's boot id.
    pub boot_id: u64,
    /// Room for the number of the term that the owner obeys; nkv writes 0.
    pub term_number: u64,
    /// Room for that term's random id; nkv writes 0.
    pub term_master: u64,
    /// Quarantine in milliseconds [I8], fixed per incarnation.
    pub quarantine_ms: u32,
    /// Log unit in bytes.
    pub log_unit: u32,
    /// Length of the whole segment in bytes.
    pub segment_bytes: u64,
    /// Rank that contributes the segment.
    pub rank: u32,
    /// Header slots [0, log_slots) belong to the device log.
    pub log_slots: u32,
    /// One [`Region`] per [`RegionKind`], in its order.
    pub regions: [Region; REGIONS],
    /// Unit in bytes of the extents in the arena.
    pub arena_unit: u32,
    /// Unused.
    pub _pad: u32,
}

/// Which device executes all atomic operations on words with several writers, in a whole segment
/// [I1].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum AtomicDomain {
    /// Processors: those of processes that map the segment, and the tcp agent on behalf of others.
    #[default]
    Cpu = 0,
    /// One RDMA device of the owner's host, also for the host's own processes.
    Nic = 1,
    /// The GPU in which the payloads lie: kernels of any process that maps them. The claim word is
    /// in its memory then.
    Gpu = 2,
}

impl AtomicDomain {
    pub(crate) const ALL: [Self; 3] = [Self::Cpu, Self::Nic, Self::Gpu];
}

impl std::str::FromStr for AtomicDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|domain| domain.to_string() == text);
        named.ok_or_else(|| format!("cpu, nic or gpu, not '{text}'"))
    }
}

impl std::fmt::Display for AtomicDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Nic => "nic",
            Self::Gpu => "gpu",
        })
    }
}

/// An offset outside every segment, aligned, to which a header's length can be added without
/// overflow.
pub const NOWHERE: u64 = u64::MAX - 4095;

/// One region of a segment: offset and length in bytes; length 0 if absent.
#[repr(C)]
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Serialize,
    Deserialize,
)]
pub struct Region {
    /// Byte offset in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Region {
    /// Whether `len` bytes at `offset` lie in it.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        offset >= self.offset && end.is_some_and(|end| end <= self.offset.saturating_add(self.len))
    }
}

/// Entries of a region table.
pub const REGIONS: usize = 7;

/// Index into [`HeapExt::regions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum RegionKind {
    /// [`HeapCtl`] and [`HeapExt`].
    Ctl = 0,
    /// Header slots.
    Headers = 1,
    /// One-sided index buckets.
    Index = 2,
    /// Announce ring, for which the layout keeps room; nkv uses none.
    Announce = 3,
    /// Device log payloads.
    Log = 4,
    /// Managed payloads.
    Arena = 5,
    /// Pin tables of attached processes.
    Pins = 6,
}

/// Offset of [`HeapExt`].
pub const EXT_OFF: u64 = 192;

/// The object header: one 64-byte slot.
#[repr(C, align(64))]
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ObjHeader {
    /// xxh64 of the key. Producer.
    pub key_hash: u64,
    /// Number of pages; or, of an object that was put into several logs, its
    /// [`crate::object::SetMark`]. Producer.
    pub n_pages: u32,
    /// Bytes per page. Producer.
    pub page_size: u32,
    /// Segment offset of page 0. Producer.
    pub payload_base: u64,
    /// Logical bytes. Producer.
    pub bytes_total: u64,
    /// SipHash-2-4 of the key under the key of the job [I16]. Producer.
    pub key_check: u64,
    /// Publish word: state in the low half, epoch in the high half. Producer of that epoch.
    pub publish: u64,
    /// Best-effort access time in milliseconds of CLOCK_BOOTTIME. Owner.
    pub last_access: u64,
    /// Owner word: flags in the low half, owner epoch in the high half. Owner.
    pub owner: u64,
}

/// Offset of `key_check` in a header.
pub const KEY_CHECK_OFF: u64 = 32;
/// Bytes at the start of a header that the producer writes with one write. The publish word follows
/// directly, so that both can be sent together.
pub const PRODUCER_FIELDS: u64 = 40;
/// Offset of the publish word in a header.
pub const PUBLISH_OFF: u64 = 40;
/// Offset of `last_access` in a header.
pub const LAST_ACCESS_OFF: u64 = 48;
/// Offset of the owner word in a header.
pub const OWNER_OFF: u64 = 56;

/// Values of the publish word's low half.
pub mod state {
    /// Armed by the owner, nothing written yet.
    pub const RESERVED: u32 = 0;
    /// A producer is writing.
    pub const WRITING: u32 = 1;
    /// Published: header and payload are complete.
    pub const READY: u32 = 2;
    /// Aborted or skipped by the producer.
    pub const DEAD: u32 = 3;
}

/// Bits of the owner word's low half. The others are those of a [`crate::Retention`].
pub mod flag {
    /// The owner serves this slot at `owner_epoch`. Cleared to retire.
    pub const LIVE: u32 = 1;
}

/// Packs a publish word (`state`, epoch) or an owner word (flags, owner epoch).
pub const fn word(low: u32, epoch: u32) -> u64 {
    (epoch as u64) << 32 | low as u64
}

/// Whether an owner word has LIVE at this epoch.
pub const fn is_live(owner: u64, epoch: u32) -> bool {
    low(owner) & flag::LIVE != 0 && epoch_of(owner) == epoch
}

/// Low half of a packed word: state or flags.
pub const fn low(word: u64) -> u32 {
    word as u32
}

/// High half of a packed word: the epoch.
pub const fn epoch_of(word: u64) -> u32 {
    (word >> 32) as u32
}

macro_rules! offsets {
    ($t:ty, $size:literal, { $($field:ident : $off:literal),+ $(,)? }) => {
        const _: () = {
            assert!(size_of::<$t>() == $size);
            $(assert!(std::mem::offset_of!($t, $field) == $off);)+
        };
    };
}

offsets!(HeapCtl, 144, {
    heap_base: 0, heap_limit: 8, bump_ptr: 16, hdr_base: 24, hdr_count: 32, hdr_head: 36,
    free_head: 40, ann_base: 104, ann_capacity: 112, ann_head: 116, ann_tail: 120, epoch: 124,
    water_hi: 128, water_lo: 132,
});
offsets!(HeapExt, 200, {
    magic: 0, layout_version: 8, atomic_domain: 12, segment_id: 16, incarnation: 24, boot_id: 32,
    term_number: 40, term_master: 48, quarantine_ms: 56, log_unit: 60, segment_bytes: 64,
    rank: 72, log_slots: 76, regions: 80, arena_unit: 192,
});
offsets!(ObjHeader, 64, {
    key_hash: 0, n_pages: 8, page_size: 12, payload_base: 16, bytes_total: 24, key_check: 32,
    publish: 40, last_access: 48, owner: 56,
});
const _: () = {
    assert!(EXT_OFF as usize >= size_of::<HeapCtl>());
    assert!(EXT_OFF as usize + size_of::<HeapExt>() <= CTL_BYTES as usize);
    assert!(size_of::<ObjHeader>() == HEADER_BYTES as usize && align_of::<ObjHeader>() == 64);
};
