//! Which part of the log a change is about. Arithmetic only: whether there is a claim there, and
//! whether it may be written, is the table's to say.

use crate::access::Intent;
use nkv_store::device_log::{BUMP_PTR_OFF, LogGeometry};
use nkv_store::layout::{HEADER_BYTES, PRODUCER_FIELDS, PUBLISH_OFF, epoch_of, low, state};

/// A change that a producer of the log makes, if it makes any sense there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogChange {
    /// Claims so many bytes.
    Bump { n: u64 },
    /// Bytes [from, to) of the log, counted from its start.
    Payload { from: u64, to: u64 },
    /// A producer's part of a header but for the publish word, all at once.
    Fields { slot: u32 },
    /// The publish word: a producer writes.
    Writing { slot: u32, epoch: u32 },
    /// The publish word: the claim is over.
    Dead { slot: u32, epoch: u32 },
    /// The publish word, by exchange from WRITING: the claim is over if it takes.
    Ready { slot: u32, epoch: u32 },
}

impl LogChange {
    /// `None` for whatever no producer of the log does.
    pub(super) fn of(geometry: &LogGeometry, intent: &Intent) -> Option<LogChange> {
        match *intent {
            Intent::FetchAdd { offset, add } => {
                let claim = geometry.is_claim(0, add);
                (offset == BUMP_PTR_OFF && claim).then_some(LogChange::Bump { n: add })
            }
            Intent::Write { offset, len } => write(geometry, offset, len),
            Intent::Store { offset, value } => match header(geometry, offset)? {
                (slot, PUBLISH_OFF) => {
                    let epoch = epoch_of(value);
                    match low(value) {
                        state::WRITING => Some(LogChange::Writing { slot, epoch }),
                        state::DEAD => Some(LogChange::Dead { slot, epoch }),
                        _ => None,
                    }
                }
                _ => None,
            },
            Intent::CompareSwap { offset, expect, new } => {
                let (slot, at) = header(geometry, offset)?;
                let epoch = epoch_of(new);
                let steps = (low(expect), low(new)) == (state::WRITING, state::READY);
                let ready = at == PUBLISH_OFF && steps && epoch_of(expect) == epoch;
                ready.then_some(LogChange::Ready { slot, epoch })
            }
        }
    }

    /// Slot of the header that it changes, and the epoch that it names.
    pub(super) fn header(&self) -> Option<(u32, Option<u32>)> {
        match *self {
            LogChange::Bump { .. } | LogChange::Payload { .. } => None,
            LogChange::Fields { slot } => Some((slot, None)),
            LogChange::Writing { slot, epoch }
            | LogChange::Dead { slot, epoch }
            | LogChange::Ready { slot, epoch } => Some((slot, Some(epoch))),
        }
    }

    /// True for the verbs after which nothing more is written for a claim.
    pub(super) fn ends(&self) -> bool {
        matches!(self, LogChange::Dead { .. } | LogChange::Ready { .. })
    }

    /// True for what the owner reads the header's fields after.
    pub(super) fn ends_or_begins(&self) -> bool {
        self.ends() || matches!(self, LogChange::Writing { .. })
    }
}

fn write(geometry: &LogGeometry, offset: u64, len: u64) -> Option<LogChange> {
    match header(geometry, offset) {
        // In one piece or not at all: half of them cannot be judged.
        Some((slot, 0)) if len == PRODUCER_FIELDS => Some(LogChange::Fields { slot }),
        Some(_) => None,
        None => {
            let from = offset.checked_sub(geometry.region().offset)?;
            let to = from.checked_add(len)?;
            (to <= geometry.log_bytes()).then_some(LogChange::Payload { from, to })
        }
    }
}

/// The header that an offset lies in, and where in it.
fn header(geometry: &LogGeometry, offset: u64) -> Option<(u32, u64)> {
    let inside = offset.checked_sub(geometry.header_off(0))?;
    let slot = u32::try_from(inside / HEADER_BYTES).ok()?;
    (slot < geometry.slots()).then_some((slot, inside % HEADER_BYTES))
}
