//! Pages of the journal: 4 KiB each, with a checksum of their own.

use crate::directory::KeyDigest;
use crate::piece::BLOCK;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first eight bytes of a page.
const MAGIC: u64 = u64::from_le_bytes(*b"nkvjrnl1");
/// Records in a page.
pub const RECORDS: usize = (BLOCK - size_of::<PageHeader>()) / size_of::<Record>();

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PageHeader {
    magic: u64,
    directory: [u8; 16],
    generation: u64,
    page: u64,
    synced: u64,
    snapshot_pages: u64,
    count: u32,
    crc32c: u32,
}

/// What happened to one object. Little-endian numbers; [`Record::kind`] first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Record {
    /// [`ADD`], [`REMOVE`] or [`USED`].
    pub kind: u8,
    pub padding: u8,
    pub slab: u16,
    pub header_blocks: u32,
    /// Of its record in the slab, in blocks of 4 KiB.
    pub first_block: u32,
    pub blocks: u32,
    pub digest: [u8; 16],
    pub seq: u64,
    pub len: u64,
    pub layout: u64,
    /// In seconds since 1970.
    pub used_s: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<Record>() == 64 && size_of::<PageHeader>() == 64);
const _: () = assert!(cfg!(target_endian = "little"), "the journal's numbers are little-endian");

/// The object is at its place.
pub const ADD: u8 = 1;
/// The object of this key and sequence number is gone.
pub const REMOVE: u8 = 2;
/// The object of this key and sequence number was used.
pub const USED: u8 = 3;

impl Record {
    /// A record of an object without its place.
    pub fn of(kind: u8, digest: KeyDigest, seq: u64) -> Self {
        Self {
            kind,
            padding: 0,
            slab: 0,
            header_blocks: 0,
            first_block: 0,
            blocks: 0,
            digest: digest.0,
            seq,
            len: 0,
            layout: 0,
            used_s: 0,
            reserved: 0,
        }
    }
}

/// What a page says besides its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageInfo {
    /// Number of the journal: each one begins with all objects that there were.
    pub generation: u64,
    /// Number of the page in its journal.
    pub page: u64,
    /// Pages before this number were on disk for good when this one was written.
    pub synced: u64,
    /// How many pages the objects take with which the journal begins.
    pub snapshot_pages: u64,
}

/// Writes a page over `into`.
pub fn encode(into: &mut [u8], directory: [u8; 16], info: PageInfo, records: &[Record]) {
    let PageInfo { generation, page, synced, snapshot_pages } = info;
    let count = records.len() as u32;
    let mut header = PageHeader {
        magic: MAGIC,
        directory,
        generation,
        page,
        synced,
        snapshot_pages,
        count,
        crc32c: 0,
    };
    let (head, body) = into.split_at_mut(size_of::<PageHeader>());
    let bytes = records.as_bytes();
    body[..bytes.len()].copy_from_slice(bytes);
    body[bytes.len()..].fill(0);
    head.copy_from_slice(header.as_bytes());
    header.crc32c = crc32c::crc32c(into);
    into[..size_of::<PageHeader>()].copy_from_slice(header.as_bytes());
}

/// Reads a page of this directory and journal. None if it is none, or damaged.
pub fn decode(
    bytes: &[u8],
    directory: [u8; 16],
    generation: u64,
) -> Option<(PageInfo, Vec<Record>)> {
    let (head, body) = bytes.split_at_checked(size_of::<PageHeader>())?;
    let mut header = PageHeader::read_from_bytes(head).ok()?;
    let ours = header.magic == MAGIC
        && header.directory == directory
        && header.generation == generation
        && header.count as usize <= RECORDS;
    let written = std::mem::replace(&mut header.crc32c, 0);
    let sum = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), body);
    if !ours || sum != written {
        return None;
    }
    let each = body.chunks_exact(size_of::<Record>()).take(header.count as usize);
    let records = each.filter_map(|bytes| Record::read_from_bytes(bytes).ok()).collect();
    let PageHeader { generation, page, synced, snapshot_pages, .. } = header;
    Some((PageInfo { generation, page, synced, snapshot_pages }, records))
}
