//! Locations and figures in plain Python values; `nkv.cache` gives the fields their names.

use nkv::message::{Existence, Location as At, ObjMeta};

/// key_hash, owner_rank, header_off, payload_off, bytes_total, page_bytes, n_pages, epoch, tier.
pub(crate) type Location = (u64, u32, u64, u64, u64, u32, u32, u32, &'static str);

/// Where an object lies in memory.
pub(crate) fn in_memory(meta: &ObjMeta) -> Location {
    let object = &meta.object;
    (
        meta.key.hash,
        meta.rank,
        meta.header_off,
        object.payload_off(),
        object.bytes_total,
        object.page_bytes,
        object.n_pages(),
        meta.at.epoch,
        "memory",
    )
}

/// Where an object is.
pub(crate) fn location(at: &At) -> Location {
    match at {
        At::Memory(meta) => in_memory(meta),
        At::Disk(disk) => (disk.key.hash, disk.rank, 0, 0, disk.bytes_total, 0, 0, 0, "disk"),
    }
}

pub(crate) fn locations(found: &[At]) -> Vec<Location> {
    found.iter().map(location).collect()
}

/// Whether each key can be read.
pub(crate) fn readable(found: &[Existence]) -> Vec<bool> {
    found.iter().map(|found| matches!(found, Existence::Ready | Existence::OnDisk)).collect()
}
