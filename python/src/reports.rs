//! Locations and figures in plain Python values; `nkv.cache` gives the fields their names.

use nkv::message::{Existence, ObjMeta};

/// key_hash, owner_rank, header_off, payload_off, bytes_total, page_bytes, n_pages, epoch.
pub(crate) type Location = (u64, u32, u64, u64, u64, u32, u32, u32);

pub(crate) fn location(meta: &ObjMeta) -> Location {
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
    )
}

pub(crate) fn locations(found: &[ObjMeta]) -> Vec<Location> {
    found.iter().map(location).collect()
}

/// Whether each key can be read.
pub(crate) fn readable(found: &[Existence]) -> Vec<bool> {
    found.iter().map(|found| *found == Existence::Ready).collect()
}
