//! Readers of the model: each copies unit by unit while other steps happen, and accepts its copy
//! only by the rules of its kind [I7] [I8] [I9]. An accepted copy is compared with what really
//! happened.

use super::{Model, RULES, Step, Wrong};
use crate::device_log::tests::U;
use crate::device_log::*;
use crate::layout::ObjHeader;
use crate::object::{Expect, chain_in_time, unchanged, validate};
use zerocopy::IntoBytes;

/// Locations that readers remember.
const CACHED: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The second header check follows the last byte.
    Strict,
    /// A chain whose second header check overtook the payload: accepted if it was in time.
    OutOfOrder,
    /// Pinned first; no second header check.
    Pinned,
}

#[derive(Debug)]
pub(super) enum Reader {
    Idle,
    /// Has a location of any age and source.
    Found(LogObject, Kind),
    Copying(Copying),
}

#[derive(Debug)]
pub(super) struct Copying {
    at: LogObject,
    kind: Kind,
    began: u64,
    before: ObjHeader,
    copy: Vec<u8>,
    /// It makes one step in so many turns.
    pace: u64,
}

impl Model {
    /// One reader makes a step. With `begin`, idle ones start to read.
    pub(super) fn reader_step(&mut self, begin: bool) -> Step {
        let i = self.dice.below(self.readers.len() as u64) as usize;
        let next = match std::mem::replace(&mut self.readers[i], Reader::Idle) {
            Reader::Idle if begin => self.find(),
            Reader::Idle => Reader::Idle,
            Reader::Found(at, kind) => self.open(at, kind),
            Reader::Copying(reader) if !self.dice.one_in(reader.pace) => Reader::Copying(reader),
            Reader::Copying(mut reader) => {
                let done = reader.copy.len() as u64;
                if done < reader.at.object.bytes_total {
                    let mut page = vec![0; (reader.at.object.bytes_total - done).min(U) as usize];
                    self.w.memory.read(reader.at.object.payload_off() + done, &mut page).unwrap();
                    reader.copy.extend(page);
                    Reader::Copying(reader)
                } else {
                    self.judge(&reader)?;
                    Reader::Idle
                }
            }
        };
        self.readers[i] = next;
        Ok(())
    }

    /// A location that the directory has now or had long ago, used at some later time.
    fn find(&mut self) -> Reader {
        // In the order of claims: the order of a hash map would not be reproducible from a seed.
        let mut objects: Vec<&LogObject> = self.w.index.objects.values().collect();
        objects.sort_by_key(|object| (object.epoch, object.slot));
        if !objects.is_empty() {
            let found = *objects[self.dice.below(objects.len() as u64) as usize];
            self.cached.push_back(found);
            self.cached.drain(..self.cached.len().saturating_sub(CACHED));
        }
        if self.cached.is_empty() {
            return Reader::Idle;
        }
        let newest = self.cached.len() - 1;
        let old = self.dice.below(self.cached.len() as u64) as usize;
        let at = self.cached[if self.dice.one_in(2) { newest } else { old }];
        let kind = match self.dice.below(5) {
            0 => Kind::Pinned,
            1 | 2 => Kind::OutOfOrder,
            _ => Kind::Strict,
        };
        Reader::Found(at, kind)
    }

    fn header_at(&self, at: &LogObject) -> ObjHeader {
        let mut header = ObjHeader::default();
        let offset = self.w.layout.header_off(at.slot);
        self.w.memory.read(offset, header.as_mut_bytes()).unwrap();
        header
    }

    /// Pins, if it is of that kind, and validates before the first byte.
    fn open(&mut self, at: LogObject, kind: Kind) -> Reader {
        if kind == Kind::Pinned {
            self.pins.push((at.slot, at.epoch));
        }
        let before = self.header_at(&at);
        let expect = Expect {
            key: Some(at.key),
            epoch: Some(at.epoch),
            payload_base: at.object.payload_off(),
            bytes_total: at.object.bytes_total,
        };
        if validate(&before, &expect, &self.w.layout.region()).is_err() {
            self.met.rejected += 1;
            self.unpin(&at, kind);
            return Reader::Idle;
        }
        let pace = [1, 1, 2, 20][self.dice.below(4) as usize];
        Reader::Copying(Copying { at, kind, began: self.now, before, copy: Vec::new(), pace })
    }

    fn unpin(&mut self, at: &LogObject, kind: Kind) {
        if kind == Kind::Pinned {
            let i = self.pins.iter().position(|pin| *pin == (at.slot, at.epoch)).unwrap();
            self.pins.swap_remove(i);
        }
    }

    /// Whether the copy may be accepted; if so, it must be the object.
    fn judge(&mut self, reader: &Copying) -> Step {
        let Copying { at, kind, began, before, copy, .. } = reader;
        let in_time = chain_in_time(*began, self.now, RULES.quarantine_ns);
        // Read directly after the first check, before the copy: must be equal.
        let by_time = *kind == Kind::OutOfOrder && in_time;
        let believed = by_time || *kind == Kind::Pinned || unchanged(before, &self.header_at(at));
        self.unpin(at, *kind);
        self.met.slow += u64::from(*kind == Kind::OutOfOrder && !in_time);
        self.met.pinned += u64::from(*kind == Kind::Pinned);
        if !believed {
            self.met.rejected += 1;
            return Ok(());
        }
        self.met.reads += 1;
        self.w.log.touch(at.slot, at.epoch);
        let p = self.w.layout.position(at.slot, at.epoch).unwrap();
        let actual = &self.actual[&p];
        let name = actual.name.to_le_bytes();
        let whole = copy.chunks(8).all(|word| word == &name[..word.len()]);
        if whole && actual.key == at.key {
            Ok(())
        } else {
            Err(Wrong::Bytes(format!("{kind:?} reader of {at:?} after {began}, truth {actual:?}")))
        }
    }
}
