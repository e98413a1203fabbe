//! Bytes that one read or write of a file covers: a range of a segment, or of a buffer of ours.

use crate::sync::lock;
use nkv_store::{Buffer, Memory};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Mutex;

/// Address and length of a direct read or write are multiples of it, and so is its file offset.
pub const BLOCK: usize = 4096;
/// Addresses in memory may lie closer: what disks ask for.
const ADDRESS_ALIGN: usize = 512;

/// A range of memory that a read fills or a write takes.
///
/// It is an address, not a slice: other processes may map the memory, and may write there.
#[derive(Debug)]
pub struct Piece<'a> {
    start: NonNull<u8>,
    len: usize,
    of: PhantomData<&'a mut [u8]>,
}

impl<'a> Piece<'a> {
    /// A buffer of this process.
    pub fn of_buffer(buffer: &'a mut [u8]) -> Self {
        let len = buffer.len();
        Self { start: NonNull::from(buffer).cast(), len, of: PhantomData }
    }

    /// `len` bytes of a segment. None unless the CPU can access them and a disk can take them from
    /// where they lie.
    pub fn of_memory(memory: &'a dyn Memory, offset: u64, len: usize) -> Option<Self> {
        let end = offset.checked_add(len as u64)?;
        let base = memory.host_base().filter(|_| end <= memory.host_len())?;
        // SAFETY: offset + len <= host_len, for which `host_base` is valid while `memory` lives,
        // and 'a is a borrow of it.
        let start = unsafe { base.add(offset as usize) };
        let aligned = (start.as_ptr() as usize).is_multiple_of(ADDRESS_ALIGN);
        aligned.then_some(Self { start, len, of: PhantomData })
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        // SAFETY: `start` is valid for `len` bytes while 'a lasts; the copy is private.
        unsafe { self.start.copy_to_nonoverlapping(NonNull::from(&mut copy[..]).cast(), self.len) };
        copy
    }

    /// Overwrites the bytes.
    ///
    /// # Panics
    /// If `from` has another length.
    pub fn fill(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.len, "as long as the piece");
        // SAFETY: `start` is valid for `len` bytes while 'a lasts, and `from` is another object.
        unsafe { self.start.copy_from_nonoverlapping(NonNull::from(from).cast(), self.len) };
    }
}

/// Bytes of all pieces together.
pub(crate) fn bytes_of(pieces: &[Piece<'_>]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Page-aligned buffers that are used again: a fresh one costs page faults.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Buffer>>);

/// What most headers need, with the last block of a payload.
const USUAL: usize = 4 * BLOCK;
/// How many are kept.
const MOST_KEPT: usize = 64;

impl Buffers {
    /// A buffer of at least `len` bytes, of any content.
    ///
    /// # Errors
    /// If the kernel gives no memory.
    pub fn take(&self, len: usize) -> std::io::Result<Buffer> {
        if len <= USUAL
            && let Some(kept) = lock(&self.0).pop()
        {
            return Ok(kept);
        }
        Buffer::new(len.max(USUAL)).map_err(std::io::Error::other)
    }

    /// Keeps a buffer for later.
    pub fn give_back(&self, buffer: Buffer) {
        let mut kept = lock(&self.0);
        if buffer.len() == USUAL && kept.len() < MOST_KEPT {
            kept.push(buffer);
        }
    }
}
