//! Executes the changes of one request one after the other, with real memory accesses, while its
//! permit is held [I10]. All of them were checked before. Checked here: whether a fence has come
//! meanwhile, and whether the content that arrived is permitted at its position. It sends no
//! answer.

use super::broken::End;
use super::reply::STAGE_BYTES;
use super::request::Step;
use super::serve::Connection;
use super::tags::MAX_TAGGED_BYTES;
use crate::access::{Intent, Permit, SEEN_BYTES};
use std::sync::atomic::{Ordering, fence};

impl Connection<'_> {
    /// Executes one verb, unless a fence has come. The permit is called directly before and after a
    /// change, so it knows exactly which changes were made.
    pub(super) fn execute(&mut self, step: &Step, permit: &dyn Permit) -> Result<(), End> {
        if permit.is_revoked() {
            return Err(End::Fenced);
        }
        let segment = &self.shared.segment;
        match *step {
            Step::Read { offset, len } => {
                let (start, len) = (self.early.len(), len as usize);
                // Leaves space for the tag, which is computed after that of the results.
                self.early.resize(start + len + self.line.tags.len_behind(len), 0);
                segment.read(offset, &mut self.early[start..start + len])?;
            }
            Step::Flush => segment.flush(),
            // Only in requests without a change, whose reads the answer makes.
            Step::Find(_) | Step::ReadFound { .. } => {}
            Step::Append(object) => {
                let result = self.append(permit, &object)?;
                self.results.push(result);
            }
            // Received by the append before it.
            Step::Appended { .. } => {}
            Step::Change(intent @ Intent::Write { offset, len }) => {
                self.place(permit, &intent, offset, len as usize)?;
                permit.done(&intent, 0);
            }
            Step::Change(intent) => {
                let found = self.change_word(permit, &intent)?;
                self.results.extend(found);
            }
        }
        Ok(())
    }

    /// Executes a change of one word; the word that an atomic found.
    pub(super) fn change_word(
        &self,
        permit: &dyn Permit,
        intent: &Intent,
    ) -> Result<Option<u64>, End> {
        let segment = &self.shared.segment;
        permit.starts(intent, &[]).map_err(End::Unfit)?;
        let found = match *intent {
            Intent::FetchAdd { offset, add } => Some(segment.fetch_add(offset, add)?),
            Intent::CompareSwap { offset, expect, new } => {
                Some(segment.compare_swap(offset, expect, new)?)
            }
            Intent::Store { offset, value } => {
                segment.store(offset, value)?;
                None
            }
            Intent::Write { .. } => None,
        };
        permit.done(intent, found.unwrap_or_default());
        Ok(found)
    }

    /// Receives the next `len` bytes of the connection to `offset`.
    pub(super) fn place(
        &mut self,
        permit: &dyn Permit,
        intent: &Intent,
        offset: u64,
        len: usize,
    ) -> Result<(), End> {
        let segment = &self.shared.segment;
        let mut small = [0; MAX_TAGGED_BYTES];
        if let Some(bytes) = small.get_mut(..len) {
            // The tag is checked first: nothing that the producer did not send is written or passed
            // to the permit [I20].
            self.line.take_payload(bytes)?;
            let seen = if len <= SEEN_BYTES { &*bytes } else { &[] };
            permit.starts(intent, seen).map_err(End::Unfit)?;
            return Ok(segment.write(offset, bytes)?);
        }
        permit.starts(intent, &[]).map_err(End::Unfit)?;
        if let Some(dst) = segment.at(offset, len) {
            // None of the bytes is visible before a word stored earlier [I7].
            fence(Ordering::Release);
            // SAFETY: mapped for `len` bytes, and ours to write while the permit is held [I10].
            let whole = unsafe { self.line.take_raw(dst, len, &|| permit.is_revoked()) }?;
            return if whole { Ok(()) } else { Err(End::Fenced) };
        }
        self.stage.resize(STAGE_BYTES, 0);
        let mut done = 0;
        while done < len {
            let n = STAGE_BYTES.min(len - done);
            self.line.take(&mut self.stage[..n])?;
            if permit.is_revoked() {
                return Err(End::Fenced);
            }
            segment.write(offset + done as u64, &self.stage[..n])?;
            done += n;
        }
        Ok(())
    }
}

// Content that is passed to a permit always has a tag.
const _: () = assert!(SEEN_BYTES <= MAX_TAGGED_BYTES);
