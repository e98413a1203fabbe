//! The agent's answers with results and payload. The reads after the last change of a request are
//! executed here, in order, each copied into the socket before the next begins [I7].

use super::broken::End;
use super::gather::Gather;
use super::request::Steps;
use super::serve::{Connection, SMALL_BYTES};
use super::tags::Tags;
use crate::mapped::Mapped;
use std::sync::atomic::{Ordering, fence};
use zerocopy::IntoBytes;

/// Reads up to this length in bytes are collected and sent together.
const SMALL_READ_BYTES: usize = 4 << 10;
/// Memory that the CPU cannot address is copied to a buffer in pieces of this many bytes.
pub(super) const STAGE_BYTES: usize = 256 << 10;

impl Connection<'_> {
    /// Sends the answer to a request whose changes are done, and executes its last reads.
    pub(super) fn send_results(&mut self, head: &[u8]) -> Result<(), End> {
        let Self { shared, line, steps, results, early, small, stage, .. } = self;
        let (segment, results) = (&shared.segment, results.as_bytes());
        let (mut out, tags) = line.gather_tagged();
        let tag = tags.next(&[head, results]);
        tag_early(early, steps, tags);
        for piece in [head, results, tag.bytes(), early] {
            // SAFETY: head, results, tag and early are not touched before the last send below.
            unsafe { out.add(piece.as_ptr(), piece.len())? };
        }
        let base = small.as_mut_ptr();
        let mut used = 0;
        let mut reads = steps.trailing().peekable();
        while let Some((offset, len)) = reads.next() {
            let more = reads.peek().is_some();
            if len > SMALL_READ_BYTES {
                send_large(&mut out, segment, offset, len, more, stage)?;
                used = 0;
                continue;
            }
            let with_tag = len + tags.len_behind(len);
            if used + with_tag > SMALL_BYTES {
                out.send(true)?;
                used = 0;
            }
            // SAFETY: used + with_tag <= SMALL_BYTES; earlier pieces that are still to be sent lie
            // below `used`; `small` is used through `base` alone here.
            let piece = unsafe { std::slice::from_raw_parts_mut(base.add(used), with_tag) };
            let (payload, behind) = piece.split_at_mut(len);
            segment.read(offset, payload)?;
            behind.copy_from_slice(tags.of_payload(payload).bytes());
            // SAFETY: as above: not overwritten before it is sent.
            unsafe { out.add(base.add(used), with_tag)? };
            used += with_tag;
        }
        Ok(out.send(false)?)
    }
}

/// Fills in the tags of data read before a change: they follow the tag of the results.
fn tag_early(mut early: &mut [u8], steps: &Steps, tags: &mut Tags) {
    for len in steps.early_reads() {
        let both = len + tags.len_behind(len);
        let Some(piece) = early.split_off_mut(..both) else { return };
        let (payload, behind) = piece.split_at_mut(len);
        behind.copy_from_slice(tags.of_payload(payload).bytes());
    }
}

fn send_large(
    out: &mut Gather<'_>,
    segment: &Mapped,
    offset: u64,
    len: usize,
    more: bool,
    stage: &mut Vec<u8>,
) -> Result<(), End> {
    if let Some(src) = segment.at(offset, len) {
        // SAFETY: mapped while the segment lives; others may write it meanwhile, which the
        // reader's second header read detects [I7].
        unsafe { out.add(src, len)? };
        out.send(more)?;
        // The reader's second header read comes after the payload [I7].
        fence(Ordering::Acquire);
        return Ok(());
    }
    // What was collected may be in other buffers, but not in `stage`.
    stage.resize(STAGE_BYTES, 0);
    let mut done = 0;
    while done < len {
        let n = STAGE_BYTES.min(len - done);
        let at = offset + done as u64;
        segment.read(at, &mut stage[..n])?;
        done += n;
        // SAFETY: the stage is not touched before this send returns.
        unsafe { out.add(stage.as_ptr(), n)? };
        out.send(more || done < len)?;
    }
    Ok(())
}
