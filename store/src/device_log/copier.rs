//! Copies survivors to the head of the log, in bounded pieces: a producer of the owner's own
//! process, over its memory. It decides nothing: what it copies was chosen by
//! [`DeviceLog::survivors`](super::DeviceLog::survivors), and the owner decides when it accepts the
//! copy whether it is served. It needs the processors' atomic domain [I1].

use super::claim::{Claim, ClaimStep, ClaimWrite, ControlLine, LogPut};
use super::{LogLayout, LogObject, Moves};
use crate::error::StoreError;
use crate::layout::{OWNER_OFF, is_live};
use crate::memory::Memory;
use crate::op::Op;
use std::sync::Arc;

/// Steps that a claim without room waits, at a tenth of a millisecond each: as long as the owner
/// waits for the copy with the default Q.
const MOST_WAITS: u32 = 250;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Copier {
    memory: Arc<dyn Memory>,
    layout: LogLayout,
    moves: Arc<Moves>,
    buffer: Vec<u8>,
    now: Option<Copying>,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// It began a copy, moved a piece, or ended one.
    Moved,
    /// The claim still waits for room.
    Waiting,
}

/// A copy in progress.
#[derive(Debug)]
enum Copying {
    Waiting { claim: Claim, from: LogObject, waits: u32, skipped: bool },
    Writing { write: ClaimWrite, from: LogObject, done: u64 },
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

    /// Begins the next copy, or moves one piece.
    pub fn step(&mut self) -> Result<Step, StoreError> {
        let next = match self.now.take() {
            Some(Copying::Writing { write, from, done }) => self.go_on(write, from, done),
            Some(Copying::Waiting { claim, from, waits, skipped }) => {
                self.place(claim, from, (waits, skipped))
            }
            None => match self.moves.next() {
                Some(object) => self.begin(object, false),
                None => return Ok(Step::Idle),
            },
        };
        if next.is_err() {
            // Nothing more is written for this claim: it is a hole.
            self.moves.leave();
        }
        self.now = next?;
        let waits = matches!(self.now, Some(Copying::Waiting { .. }));
        Ok(if waits { Step::Waiting } else { Step::Moved })
    }

    /// Claims for a copy, in line with producers: a copy that only claimed where there is room
    /// would get none while they flood the log.
    fn begin(&mut self, from: LogObject, skipped: bool) -> Result<Option<Copying>, StoreError> {
        if !self.is_live(&from)? {
            return Ok(None);
        }
        let page = from.object.page_bytes;
        let put = LogPut::new(self.layout, from.key, page, from.object.bytes_total);
        let Some(put) = put.map(|put| put.in_set(from.mark)) else { return Ok(None) };
        let mut line = ControlLine::unread();
        line.read().run(&*self.memory)?;
        let Some(bound) = put.in_line(&line) else { return self.no_room(&from) };
        self.moves.enter(bound);
        let mut op = put.fetch_add();
        op.run(&*self.memory)?;
        let Op::FetchAdd { old: p, .. } = op else { return Ok(None) };
        let again = self.is_of_log(&from);
        self.moves.note(p, put.claim_bytes(), (from.slot, from.epoch), again);
        self.place(put.claimed(p), from, (MOST_WAITS, skipped))
    }

    /// Announces the copy if its claim is below the limit now.
    fn place(
        &mut self,
        claim: Claim,
        from: LogObject,
        (waits, skipped): (u32, bool),
    ) -> Result<Option<Copying>, StoreError> {
        let mut line = ControlLine::unread();
        line.read().run(&*self.memory)?;
        match claim.next(line.heap_limit()) {
            ClaimStep::Write(write) => {
                self.run(&mut write.publication().announce())?;
                Ok(Some(Copying::Writing { write, from, done: 0 }))
            }
            ClaimStep::Skip(skip) => {
                self.run(&mut skip.ops())?;
                self.moves.leave();
                // The next claim is not across the end of the log.
                if skipped { Ok(None) } else { self.begin(from, true) }
            }
            ClaimStep::Wait(claim) if waits > 0 && self.is_live(&from)? => {
                Ok(Some(Copying::Waiting { claim, from, waits: waits - 1, skipped }))
            }
            ClaimStep::Wait(claim) => {
                // Nothing was written, and nothing will be.
                self.moves.abandon(claim.abandon());
                self.moves.leave();
                self.no_room(&from)
            }
        }
    }

    /// An object of the log goes with the tail; the evictor's choice is evicted.
    fn no_room(&self, from: &LogObject) -> Result<Option<Copying>, StoreError> {
        if !self.is_of_log(from) {
            self.moves.has_no_room(from);
        }
        Ok(None)
    }

    fn go_on(
        &mut self,
        write: ClaimWrite,
        from: LogObject,
        done: u64,
    ) -> Result<Option<Copying>, StoreError> {
        let left = from.object.bytes_total.saturating_sub(done);
        if !self.is_live(&from)? {
            // It has ended meanwhile: its bytes may be another's.
            self.run(&mut write.abort().ops())?;
            self.moves.leave();
            return Ok(None);
        }
        if left > 0 {
            let piece = left.min(self.buffer.len() as u64) as usize;
            let part = &mut self.buffer[..piece];
            self.memory.read(from.object.payload_off() + done, part)?;
            self.memory.write(write.object.payload_off() + done, part)?;
            let done = done + piece as u64;
            return Ok(Some(Copying::Writing { write, from, done }));
        }
        self.run(&mut write.publication().publish())?;
        self.moves.leave();
        Ok(None)
    }

    /// Else it is one of the heap.
    fn is_of_log(&self, from: &LogObject) -> bool {
        from.slot < self.layout.slots()
    }

    /// Whether an object still is where it was found.
    fn is_live(&self, from: &LogObject) -> Result<bool, StoreError> {
        let owner = self.memory.load(self.layout.any_header_off(from.slot) + OWNER_OFF)?;
        Ok(is_live(owner, from.epoch))
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
