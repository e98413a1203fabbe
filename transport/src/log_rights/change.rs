//! Classifies a change: which part of the log it concerns. Arithmetic only: whether there is a
//! claim, and whether it may be written, is decided by the table.

use crate::access::Intent;
use nkv_store::device_log::{BUMP_PTR_OFF, LogLayout};
use nkv_store::layout::{HEADER_BYTES, PRODUCER_FIELDS, PUBLISH_OFF, epoch_of, low, state};

/// A change that a producer may make in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogChange {
    /// Claims `n` bytes.
    Bump { n: u64 },
    /// Bytes [from, to) of the log, counted from its start.
    Payload { from: u64, to: u64 },
    /// The producer's fields of a header, without the publish word, in one write.
    Fields { slot: u32 },
    /// Publish word: WRITING; DEAD, which ends the claim; or READY by compare-and-swap from
    /// WRITING, which ends the claim if it succeeds.
    Publish { slot: u32, epoch: u32, to: u32 },
}

impl LogChange {
    /// `None` for every change that a producer never makes in the log.
    pub(super) fn of(layout: &LogLayout, intent: &Intent) -> Option<LogChange> {
        match *intent {
            Intent::FetchAdd { offset, add } => {
                let claim = layout.is_claim(0, add);
                (offset == BUMP_PTR_OFF && claim).then_some(LogChange::Bump { n: add })
            }
            Intent::Write { offset, len } => write(layout, offset, len),
            Intent::Store { offset, value } => {
                let ((slot, at), to) = (header(layout, offset)?, low(value));
                let may = at == PUBLISH_OFF && matches!(to, state::WRITING | state::DEAD);
                may.then_some(LogChange::Publish { slot, epoch: epoch_of(value), to })
            }
            Intent::CompareSwap { offset, expect, new } => {
                let (slot, at) = header(layout, offset)?;
                let epoch = epoch_of(new);
                let steps = (low(expect), low(new)) == (state::WRITING, state::READY);
                let ready = at == PUBLISH_OFF && steps && epoch_of(expect) == epoch;
                ready.then_some(LogChange::Publish { slot, epoch, to: state::READY })
            }
        }
    }

    /// Slot of the header that is changed, and the epoch in the change.
    pub(super) fn header(&self) -> Option<(u32, Option<u32>)> {
        match *self {
            LogChange::Bump { .. } | LogChange::Payload { .. } => None,
            LogChange::Fields { slot } => Some((slot, None)),
            LogChange::Publish { slot, epoch, .. } => Some((slot, Some(epoch))),
        }
    }

    /// The state that it publishes: the owner reads the header's fields from then on, and after
    /// another state than WRITING nothing more is written for the claim.
    pub(super) fn publishes(&self) -> Option<u32> {
        match *self {
            LogChange::Publish { to, .. } => Some(to),
            _ => None,
        }
    }
}

fn write(layout: &LogLayout, offset: u64, len: u64) -> Option<LogChange> {
    match header(layout, offset) {
        // Only as a whole: a part of the fields cannot be checked.
        Some((slot, 0)) if len == PRODUCER_FIELDS => Some(LogChange::Fields { slot }),
        Some(_) => None,
        None => {
            let from = offset.checked_sub(layout.region().offset)?;
            let to = from.checked_add(len)?;
            (to <= layout.log_bytes()).then_some(LogChange::Payload { from, to })
        }
    }
}

/// The slot of the header at an offset, and the position in the header.
fn header(layout: &LogLayout, offset: u64) -> Option<(u32, u64)> {
    let inside = offset.checked_sub(layout.header_off(0))?;
    let slot = u32::try_from(inside / HEADER_BYTES).ok()?;
    (slot < layout.slots()).then_some((slot, inside % HEADER_BYTES))
}
