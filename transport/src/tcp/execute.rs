//! Executes the changes of one request one after the other, with real memory accesses, while its
//! permit is held [I10]. All of them were checked before. Checked here: whether a fence has come
//! meanwhile, and whether the content that arrived is permitted at its position. It sends no
//! answer.

use super::broken::End;
use super::line::Line;
use super::reply::STAGE_BYTES;
use super::request::Step;
use super::tags::MAX_TAGGED_BYTES;
use crate::access::{Intent, Permit, SEEN_BYTES};
use crate::mapped::Mapped;
use std::sync::atomic::{Ordering, fence};

/// Executes changes in order under one permit.
pub(super) struct Executor<'a> {
    pub line: &'a mut Line,
    pub segment: &'a Mapped,
    pub permit: &'a dyn Permit,
    pub results: &'a mut Vec<u64>,
    pub early: &'a mut Vec<u8>,
    pub stage: &'a mut Vec<u8>,
}

impl Executor<'_> {
    /// Executes one verb; false if a fence stopped it. The permit is called directly before and
    /// after a change, so it knows exactly which changes were made.
    pub(super) fn step(&mut self, step: &Step) -> Result<bool, End> {
        if self.permit.is_revoked() {
            return Ok(false);
        }
        let Some(intent) = step.intent() else {
            return self.execute_read(step).map(|()| true);
        };
        if let Step::Write { offset, len } = *step {
            return self.place(&intent, offset, len as usize);
        }
        self.permit.starts(&intent, &[]).map_err(End::Unfit)?;
        let segment = self.segment;
        let found = match *step {
            Step::FetchAdd { offset, add } => Some(segment.fetch_add(offset, add)),
            Step::CompareSwap { offset, expect, new } => {
                Some(segment.compare_swap(offset, expect, new))
            }
            Step::Store { offset, value } => {
                segment.store(offset, value)?;
                None
            }
            Step::Write { .. } | Step::Read { .. } | Step::Flush => None,
        };
        let found = found.transpose()?;
        self.permit.done(&intent, found.unwrap_or_default());
        self.results.extend(found);
        Ok(true)
    }

    /// Executes a verb that changes nothing.
    fn execute_read(&mut self, step: &Step) -> Result<(), End> {
        match *step {
            Step::Read { offset, len } => {
                let start = self.early.len();
                let (len, tag) = (len as usize, self.line.tag_behind(len as usize));
                // Leaves space for the tag, which is computed after that of the results.
                self.early.resize(start + len + tag, 0);
                let found = &mut self.early[start..start + len];
                self.segment.read(offset, found)?;
            }
            Step::Flush => self.segment.flush(),
            _ => {}
        }
        Ok(())
    }

    /// Receives the next `len` bytes of the connection to `offset`.
    fn place(&mut self, intent: &Intent, offset: u64, len: usize) -> Result<bool, End> {
        let mut small = [0; MAX_TAGGED_BYTES];
        let whole = if let Some(bytes) = small.get_mut(..len) {
            // The tag is checked first: nothing that the producer did not send is written or passed
            // to the permit [I20].
            self.line.take_payload(bytes)?;
            let seen = if len <= SEEN_BYTES { &*bytes } else { &[] };
            self.permit.starts(intent, seen).map_err(End::Unfit)?;
            self.segment.write(offset, bytes)?;
            true
        } else {
            self.permit.starts(intent, &[]).map_err(End::Unfit)?;
            self.place_many(offset, len)?
        };
        if whole {
            self.permit.done(intent, 0);
        }
        Ok(whole)
    }

    fn place_many(&mut self, offset: u64, len: usize) -> Result<bool, End> {
        if let Some(dst) = self.segment.at(offset, len) {
            let permit = self.permit;
            // None of the bytes is visible before a word stored earlier [I7].
            fence(Ordering::Release);
            // SAFETY: mapped for `len` bytes, and ours to write while the permit is held [I10].
            let whole = unsafe { self.line.take_raw(dst, len, &|| permit.is_revoked()) }?;
            return Ok(whole);
        }
        self.stage.resize(STAGE_BYTES, 0);
        let mut done = 0;
        while done < len {
            let n = STAGE_BYTES.min(len - done);
            self.line.take(&mut self.stage[..n])?;
            if self.permit.is_revoked() {
                return Ok(false);
            }
            self.segment.write(offset + done as u64, &self.stage[..n])?;
            done += n;
        }
        Ok(true)
    }
}

// Content that is passed to a permit always has a tag.
const _: () = assert!(SEEN_BYTES <= MAX_TAGGED_BYTES);
