//! Pins keep an object's bytes in place while a process reads them without copying [I9]. Every
//! handle that maps a segment has a table in it, of words that each name a (slot, epoch). Only the
//! handle writes its table; the owner reads it before it arms a retired slot again. A pin ends when
//! its holder clears it or dies, never by a timeout. The assignment of tables is not decided here.

mod holder;

pub use holder::{NoPin, Pin, PinnedBytes, Pins};

use crate::error::StoreError;
use crate::layout::Region;
use crate::words::{self, Words};
use hashbrown::HashSet;

/// Tables of a segment: the number of handles that can hold views of it at the same time.
pub const TABLES: u32 = 128;
/// Pins of one table: number of distinct objects; views of one object share a pin.
pub const PINS: u32 = 4096;
/// The first line of a table holds the number of its words that were ever used.
const USED_BYTES: u64 = 64;
const TABLE_BYTES: u64 = USED_BYTES + PINS as u64 * 8;
/// Bytes of all tables.
pub const REGION_BYTES: u64 = TABLES as u64 * TABLE_BYTES;

/// Whether a region of a control block has a valid length for pin tables, or is absent.
pub(crate) fn fits(region: &Region) -> bool {
    region.len == 0 || region.len == REGION_BYTES
}

fn word_of(slot: u32, epoch: u32) -> u64 {
    // A slot has 31 bits: the sum is never 0, which means no pin.
    (u64::from(epoch) << 32) | (u64::from(slot) + 1)
}

fn object_of(word: u64) -> Option<(u32, u32)> {
    let slot = (word as u32).checked_sub(1)?;
    Some((slot, (word >> 32) as u32))
}

/// One pin table, for its holder and for the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    offset: u64,
}

impl Table {
    /// Table `number` of a segment; None if there is none of that number.
    pub fn of(pins: &Region, number: u32) -> Option<Table> {
        let offset = pins.offset + u64::from(number) * TABLE_BYTES;
        (number < TABLES && pins.len == REGION_BYTES).then_some(Table { offset })
    }

    fn word(&self, at: u32) -> u64 {
        self.offset + USED_BYTES + u64::from(at) * 8
    }

    /// Sets a pin. The caller checks the object's header afterwards, and reads the object only if
    /// the header is valid: either an owner that cleared LIVE before that check sees the pin, or
    /// the check sees the cleared LIVE [I9].
    pub fn set<W: Words + ?Sized>(
        &self,
        words: &W,
        at: u32,
        slot: u32,
        epoch: u32,
    ) -> Result<(), StoreError> {
        if words::load(words, self.offset)? <= u64::from(at) {
            words::store(words, self.offset, u64::from(at) + 1)?;
        }
        words::store(words, self.word(at), word_of(slot, epoch))?;
        words::flush(words);
        Ok(())
    }

    /// Clears a pin: a process that sees it cleared also sees all reads under the pin as complete.
    pub fn clear<W: Words + ?Sized>(&self, words: &W, at: u32) -> Result<(), StoreError> {
        words::store(words, self.word(at), 0)
    }

    /// Clears the table for the next holder. Only after the last holder has detached or is dead.
    pub fn wipe<W: Words + ?Sized>(&self, words: &W) -> Result<(), StoreError> {
        for at in 0..self.used(words)? {
            words::store(words, self.word(at), 0)?;
        }
        words::store(words, self.offset, 0)
    }

    fn used<W: Words + ?Sized>(&self, words: &W) -> Result<u32, StoreError> {
        Ok(words::load(words, self.offset)?.min(u64::from(PINS)) as u32)
    }
}

/// Every (slot, epoch) that some table names. Call it after LIVE was cleared and after a fence
/// [I9]: an object that was retired before and is not in the result has no reader and gets none.
pub fn scan<W: Words + ?Sized>(
    words: &W,
    pins: &Region,
) -> Result<HashSet<(u32, u32)>, StoreError> {
    let mut pinned = HashSet::new();
    for table in (0..TABLES).filter_map(|n| Table::of(pins, n)) {
        for at in 0..table.used(words)? {
            pinned.extend(object_of(words::load(words, table.word(at))?));
        }
    }
    Ok(pinned)
}
