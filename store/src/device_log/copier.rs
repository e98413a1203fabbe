//! Copies survivors to the head of the log, in bounded pieces: a producer of the owner's own
//! process, over its memory. It decides nothing: what it copies was chosen by
//! [`DeviceLog::survivors`](super::DeviceLog::survivors), and the owner decides when it accepts the
//! copy whether it is served. It needs the processors' atomic domain [I1].

use super::claim::{ClaimStep, ClaimWrite, ControlLine, LogPut};
use super::{LogLayout, LogObject, Moves};
use crate::error::StoreError;
use crate::layout::{OWNER_OFF, flag, word};
use crate::memory::Memory;
use crate::op::Op;
use std::sync::Arc;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Copier {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    moves: Arc<Moves>,
    buffer: Vec<u8>,
    now: Option<Copying>,
}

/// A copy in progress.
#[derive(Debug)]
struct Copying {
    write: ClaimWrite,
    from: LogObject,
    done: u64,
}

impl Copier {
    /// A copier that moves at most `piece` bytes in one step; None while the log has another.
    pub fn new(
        memory: Arc<dyn Memory>,
        layout: LogLayout,
        moves: Arc<Moves>,
        piece: usize,
    ) -> Option<Copier> {
        let buffer = vec![0; piece.max(1)];
        moves.take_place().then(|| Copier { memory, layout, moves, buffer, now: None })
    }

    /// Begins the next copy, or moves one piece; false if there was nothing to do.
    pub fn step(&mut self) -> Result<bool, StoreError> {
        let next = match self.now.take() {
            Some(copying) => self.go_on(copying),
            None => match self.moves.next() {
                Some(object) => self.begin(object),
                None => return Ok(false),
            },
        };
        if next.is_err() {
            // Nothing more is written for this claim: it is a hole.
            self.moves.leave();
        }
        self.now = next?;
        Ok(true)
    }

    /// Claims for a copy and announces it. None if there is no room now: the object goes with the
    /// tail.
    fn begin(&mut self, from: LogObject) -> Result<Option<Copying>, StoreError> {
        if !self.is_live(&from)? {
            return Ok(None);
        }
        let page = from.object.page_bytes;
        let put = LogPut::new(self.layout, from.key, page, from.object.bytes_total);
        let Some(put) = put else { return Ok(None) };
        let again = from.slot < self.layout.slots();
        // A claim across the end of the log is skipped, and the next one is not across it.
        for _ in 0..2 {
            let mut line = ControlLine::unread();
            line.read().run(&*self.memory)?;
            let Some(bound) = put.room(&line) else { return self.no_room(&from, again) };
            self.moves.enter(bound);
            let mut op = put.fetch_add();
            op.run(&*self.memory)?;
            let Op::FetchAdd { old: p, .. } = op else { return Ok(None) };
            self.moves.note(p, put.claim_bytes(), (from.slot, from.epoch), again);
            match put.claimed(p).next(line.heap_limit()) {
                ClaimStep::Write(write) => {
                    self.run(&mut write.publication().announce())?;
                    return Ok(Some(Copying { write, from, done: 0 }));
                }
                ClaimStep::Skip(skip) => {
                    self.run(&mut skip.ops())?;
                    self.moves.leave();
                }
                // Producers were faster: nothing was written, and nothing will be.
                ClaimStep::Wait(claim) => {
                    self.moves.abandon(claim.abandon());
                    self.moves.leave();
                    return self.no_room(&from, again);
                }
            }
        }
        Ok(None)
    }

    /// An object of the log goes with the tail; the evictor's choice is evicted.
    fn no_room(&self, from: &LogObject, again: bool) -> Result<Option<Copying>, StoreError> {
        if !again {
            self.moves.has_no_room(from);
        }
        Ok(None)
    }

    fn go_on(&mut self, mut copying: Copying) -> Result<Option<Copying>, StoreError> {
        let Copying { write, from, done } = &mut copying;
        let left = from.object.bytes_total.saturating_sub(*done);
        if !self.is_live(from)? {
            // It has ended meanwhile: its bytes may be another's.
            self.run(&mut write.abort().ops())?;
            self.moves.leave();
            return Ok(None);
        }
        if left > 0 {
            let piece = left.min(self.buffer.len() as u64) as usize;
            let part = &mut self.buffer[..piece];
            self.memory.read(from.object.payload_off() + *done, part)?;
            self.memory.write(write.object.payload_off() + *done, part)?;
            *done += piece as u64;
            return Ok(Some(copying));
        }
        self.run(&mut write.publication().publish())?;
        self.moves.leave();
        Ok(None)
    }

    /// Whether an object still is where it was found.
    fn is_live(&self, from: &LogObject) -> Result<bool, StoreError> {
        let owner = self.memory.load(self.layout.any_header_off(from.slot) + OWNER_OFF)?;
        Ok(owner == word(flag::LIVE, from.epoch))
    }

    fn run(&self, ops: &mut [Op<'_>]) -> Result<(), StoreError> {
        ops.iter_mut().try_for_each(|op| op.run(&*self.memory))
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.moves.leave_place();
    }
}
