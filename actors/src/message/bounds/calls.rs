//! Checks of a client's requests, of the answers to it, and of the settings of its cluster.

use super::{ensure, key, list, named_twice, size, time};
use crate::error::{Error, Result};
use crate::message::{
    AwaitReady, KEYS_PER_ROUND, Listed, Location, MAX_AWAIT_MS, MAX_BATCH, MAX_PLACES,
    MAX_REPLICAS, ObjMeta, ObjectDesc, PlanDesc, Readiness, Request, Response, SaveAt, Settings,
};
use crate::striping::MAX_STRIPES;
use nkv_store::SegmentLayout;
use nkv_store::layout::HEADER_BYTES;
use nkv_store::segment_layout::MAX_ARENA_BYTES;

impl Settings {
    /// Checks that the settings are possible.
    pub fn check(&self) -> Result<()> {
        ensure(self.page_bytes > 0 && self.ttl_ms > 0, || {
            format!("settings of {} bytes a page and a TTL of {} ms", self.page_bytes, self.ttl_ms)
        })?;
        time("a write TTL", self.write_ttl_ms)?;
        time("a TTL", self.ttl_ms)?;
        time("a master's lease", self.master_lease_ms)?;
        time("a call's limit", self.call_timeout_ms)
    }
}

impl ObjMeta {
    /// Checks that the location is possible in a segment with these slots and payloads.
    pub fn check(&self, layout: &SegmentLayout) -> Result<()> {
        let payloads = layout.payloads();
        let ObjectDesc { extent, bytes_total, .. } = self.object;
        let end = extent.offset.checked_add(bytes_total);
        let inside = extent.offset >= payloads.offset
            && end.is_some_and(|end| end <= payloads.offset.saturating_add(payloads.len));
        let named =
            self.at.slot < layout.slots && self.header_off == layout.header_off(self.at.slot);
        ensure(inside && named, || {
            format!(
                "an object of {bytes_total} bytes at {}, slot {} with its header at {}: rank {} \
                 has {} slots from {} on and payloads at {payloads:?}",
                extent.offset,
                self.at.slot,
                self.header_off,
                self.rank,
                layout.slots,
                layout.header_base
            )
        })
    }

    /// Checks that the location is possible in any segment.
    fn check_numbers(&self) -> Result<()> {
        let ObjectDesc { extent, bytes_total, .. } = self.object;
        let end = extent.offset.checked_add(bytes_total);
        let header_end = self.header_off.checked_add(HEADER_BYTES);
        let (at, header) = (extent.offset, self.header_off);
        ensure(bytes_total <= MAX_ARENA_BYTES && end.is_some() && header_end.is_some(), || {
            format!("an object of {bytes_total} bytes at {at}, its header at {header}")
        })
    }
}

/// Checks the locations of one key.
fn check_places<'a, T: 'a>(places: &'a [T], check: impl FnMut(&'a T) -> Result<()>) -> Result<()> {
    let n = places.len();
    ensure((1..=MAX_PLACES).contains(&n), || format!("{n} locations of one key"))?;
    places.iter().try_for_each(check)
}

impl SaveAt {
    fn check(&self) -> Result<()> {
        check_disks(&self.disks)?;
        // Those that have it, that are at it, that could not, and that were named.
        list("ranks", self.but.len(), 4 * MAX_PLACES)
    }
}

/// Checks on which disks something is to be.
pub(crate) fn check_disks(disks: &[Option<u32>]) -> Result<()> {
    let (n, most) = (disks.len(), usize::from(MAX_REPLICAS));
    ensure((1..=most).contains(&n), || format!("{n} disks: 1 to {most}"))?;
    match named_twice(disks.iter().copied().flatten()) {
        Some(rank) => ensure(false, || format!("rank {rank} is named for two disks: it has one")),
        None => Ok(()),
    }
}

impl Location {
    fn check_numbers(&self) -> Result<()> {
        match self {
            Self::Memory(meta) => meta.check_numbers(),
            Self::Disk(disk) => {
                size("an object on disk", disk.bytes_total, "bytes", MAX_ARENA_BYTES)
            }
        }
    }
}

impl Response {
    /// Checks an answer of the master. The caller checks that a list is as long as the request, and
    /// locations once it has the segment's layout.
    pub fn check(&self) -> Result<()> {
        let checked = match self {
            Response::Plans(list) => {
                list.iter().flatten().try_for_each(|plan| plan.meta.check_numbers())
            }
            Response::Locations(list) => {
                list.iter().flatten().try_for_each(|l| check_places(l, Location::check_numbers))
            }
            Response::OnDisks(saved) => {
                let disks = |of: &Vec<_>| list("disks", of.len(), MAX_PLACES);
                saved.iter().flatten().try_for_each(disks)
            }
            Response::Prefix(list) => list.iter().try_for_each(Location::check_numbers),
            Response::Readiness(list) => list.iter().try_for_each(|(_, of)| match of {
                Readiness::Ready(places) => check_places(places, ObjMeta::check_numbers),
                Readiness::Writing(meta) => meta.check_numbers(),
                Readiness::Ended(_) => Ok(()),
            }),
            Response::Listed { keys, .. } => {
                // Of a striped object the ranks of all replicas of its stripes.
                let most = usize::from(MAX_STRIPES) * MAX_PLACES;
                let ranks = |row: &Listed| {
                    list("ranks of a key", row.others.len(), most)?;
                    list("extra replicas of a key", row.extras.len(), MAX_PLACES)
                };
                list("keys", keys.len(), KEYS_PER_ROUND)
                    .and_then(|()| keys.iter().try_for_each(ranks))
            }
            _ => Ok(()),
        };
        checked.map_err(|e| {
            Error::internal(format!("the master's answer is invalid: {}", e.message()))
        })
    }
}

impl PlanDesc {
    /// Checks a plan for an object of `bytes` bytes. Its location is checked with its owner's
    /// segment.
    pub fn check(&self, bytes: u64) -> Result<()> {
        let ObjectDesc { extent, bytes_total, .. } = self.meta.object;
        let fits = bytes_total == bytes && extent.len >= bytes && bytes <= MAX_ARENA_BYTES;
        ensure(fits, || {
            format!(
                "a plan of {bytes_total} bytes in an extent of {} where {bytes} were asked for",
                extent.len
            )
        })?;
        time("a write TTL", self.write_ttl_ms)
    }
}

impl AwaitReady {
    /// Checks it; returns the length of its longest list, as a number of keys.
    fn check(&self) -> Result<usize> {
        let ms = self.wait_ms;
        ensure(ms <= MAX_AWAIT_MS, || format!("a wait of {ms} ms; at most {MAX_AWAIT_MS}"))?;
        let (keys, watched) = (self.keys.len(), self.watched.len());
        ensure(watched <= keys, || format!("{watched} headers watched for {keys} keys"))?;
        Ok(keys.max(self.gone.len().div_ceil(MAX_PLACES)).max(self.mapped.len()))
    }
}

impl Request {
    /// Checks a request as a whole. An error in one item of a batch is that item's answer.
    pub fn check(&self) -> Result<()> {
        let n = match self {
            Request::RemoveAt(list) => {
                list.iter().try_for_each(|(of, _)| key(of))?;
                list.len()
            }
            Request::List { after: Some(of), .. } => {
                return key(of);
            }
            Request::OpenForWrite { items, .. } => items.len(),
            Request::Commit(l) | Request::Abort(l) => l.len(),
            // For one key a reader may have tried several locations.
            Request::GetLocation { keys, gone, .. } => {
                keys.len().max(gone.len().div_ceil(MAX_PLACES))
            }
            Request::AwaitReady(asked) => asked.check()?,
            Request::SaveToDisk { keys, at } => {
                let (n, wanted) = (keys.len(), at.len());
                ensure(n == wanted, || format!("{n} keys to save at {wanted} places"))?;
                list("keys", n, MAX_BATCH)?;
                at.iter().try_for_each(SaveAt::check)?;
                n
            }
            Request::MatchPrefix(k)
            | Request::Exists { keys: k, .. }
            | Request::Replicate { keys: k, .. }
            | Request::Remove(k) => k.len(),
            Request::Withdraw { .. }
            | Request::EvictUntilBelow(_)
            | Request::Stats
            | Request::View
            | Request::Watch { .. }
            | Request::List { .. }
            | Request::RemoveMatching(_) => 0,
        };
        ensure(n <= MAX_BATCH, || {
            format!("a batch has at most {MAX_BATCH} items, this one {n}; split it")
        })
    }
}
