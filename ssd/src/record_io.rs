//! Writes and reads one record: straight between the segment and the file where the payload lies
//! as a disk can take it, else by way of a buffer.

use crate::engine::{LoadError, Payload, SsdError};
use crate::piece::{BLOCK, Buffers, Piece};
use crate::record::{Header, Sums, header_bytes};
use crate::storage::BlockFile;
use std::io;

/// Bytes that go by way of a buffer at a time.
const BOUNCE: u64 = 1 << 20;

/// Bytes of the payload in whole blocks; the rest takes one block of its own.
fn whole_blocks(len: u64) -> u64 {
    len - len % BLOCK as u64
}

/// Bytes that a record takes in its file.
pub fn record_bytes(header_len: u64, len: u64) -> u64 {
    header_len + len.next_multiple_of(BLOCK as u64)
}

/// Writes a record at its header's place. Fills in the header's checksums.
pub fn write(
    file: &dyn BlockFile,
    header: &mut Header,
    payload: &Payload<'_>,
    buffers: &Buffers,
) -> Result<(), SsdError> {
    header.sums = Sums::of(*payload).finish()?;
    let header_len = header_bytes(&header.key, payload.len) as usize;
    let whole = whole_blocks(payload.len);
    let tail = (payload.len - whole) as usize;
    let mut buffer = buffers.take(header_len + BLOCK)?;
    let (head, rest) = buffer.split_at_mut(header_len);
    let last = &mut rest[..if tail > 0 { BLOCK } else { 0 }];
    header.encode(head);
    payload.memory.read(payload.offset + whole, &mut last[..tail])?;
    last[tail..].fill(0);
    let (start, after) = (header.offset, header.offset + header_len as u64);
    match Piece::of_memory(payload.memory, payload.offset, whole as usize) {
        Some(direct) => {
            let pieces = [Piece::of_buffer(head), direct, Piece::of_buffer(last)];
            file.write(start, &pieces)?;
        }
        None => {
            file.write(start, &[Piece::of_buffer(head)])?;
            bounce::<SsdError>(payload, whole, |at, bytes, payload_at| {
                payload.memory.read(payload_at, bytes)?;
                Ok(file.write(after + at, &[Piece::of_buffer(bytes)])?)
            })?;
            file.write(after + whole, &[Piece::of_buffer(last)])?;
        }
    }
    buffers.give_back(buffer);
    Ok(())
}

/// Why a record is not as it was written.
#[derive(Debug)]
pub enum Unread {
    /// Its bytes are others.
    Corrupt(String),
    /// The disk does not give them.
    Disk(io::Error),
    /// The segment's memory, or this process, failed: the record may be whole.
    Failed(SsdError),
}

impl Unread {
    /// Whether the record is of no use any more.
    pub fn is_lost(&self) -> bool {
        !matches!(self, Unread::Failed(_))
    }

    /// As an error of the directory.
    pub fn into_error(self) -> LoadError {
        match self {
            Unread::Corrupt(why) => LoadError::Corrupt(why),
            Unread::Disk(error) => LoadError::Io(error.into()),
            Unread::Failed(error) => LoadError::Io(error),
        }
    }
}

impl<E: Into<SsdError>> From<E> for Unread {
    fn from(error: E) -> Self {
        Unread::Failed(error.into())
    }
}

/// Reads a record whole, and checks it; whose it is, is for the caller to compare [I21].
pub fn read(
    file: &dyn BlockFile,
    offset: u64,
    header_len: u64,
    into: &Payload<'_>,
    buffers: &Buffers,
) -> Result<Header, Unread> {
    let header_len = header_len as usize;
    let whole = whole_blocks(into.len);
    let tail = (into.len - whole) as usize;
    let mut buffer = buffers.take(header_len + BLOCK)?;
    let (head, rest) = buffer.split_at_mut(header_len);
    let last = &mut rest[..if tail > 0 { BLOCK } else { 0 }];
    let after = offset + header_len as u64;
    // Of the bytes that a reader of the segment will see, not of those that the disk gave.
    let mut sums = Sums::of(*into);
    match Piece::of_memory(into.memory, into.offset, whole as usize) {
        Some(direct) => {
            let mut pieces = [Piece::of_buffer(head), direct, Piece::of_buffer(last)];
            let mut filled =
                |bytes: u64| sums.advance(bytes.saturating_sub(header_len as u64).min(whole));
            file.read_along(offset, &mut pieces, &mut filled).map_err(Unread::Disk)?;
        }
        None => {
            file.read(offset, &mut [Piece::of_buffer(head)]).map_err(Unread::Disk)?;
            bounce::<Unread>(into, whole, |at, bytes, payload_at| {
                file.read(after + at, &mut [Piece::of_buffer(bytes)]).map_err(Unread::Disk)?;
                Ok(into.memory.write(payload_at, bytes)?)
            })?;
            file.read(after + whole, &mut [Piece::of_buffer(last)]).map_err(Unread::Disk)?;
        }
    }
    let header = Header::decode(head).map_err(Unread::Corrupt)?;
    into.memory.write(into.offset + whole, &last[..tail])?;
    buffers.give_back(buffer);
    if header.len != into.len {
        return Err(Unread::Corrupt(format!("{} bytes, not {}", header.len, into.len)));
    }
    let found = sums.finish()?;
    match found.iter().zip(&header.sums).position(|(found, sum)| found != sum) {
        None => Ok(header),
        Some(chunk) => {
            Err(Unread::Corrupt(format!("the checksum of 256 KiB no. {chunk} does not match")))
        }
    }
}

/// Reads the header of a record alone.
pub fn read_header(
    file: &dyn BlockFile,
    offset: u64,
    header_len: u64,
    buffers: &Buffers,
) -> Result<Header, Unread> {
    let mut buffer = buffers.take(header_len as usize)?;
    let head = &mut buffer[..header_len as usize];
    file.read(offset, &mut [Piece::of_buffer(head)]).map_err(Unread::Disk)?;
    let header = Header::decode(head).map_err(Unread::Corrupt);
    buffers.give_back(buffer);
    header
}

/// Calls `step` for the first `whole` bytes of a payload, with a buffer for each part.
fn bounce<E: From<io::Error>>(
    payload: &Payload<'_>,
    whole: u64,
    mut step: impl FnMut(u64, &mut [u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    if whole == 0 {
        return Ok(());
    }
    let mut buffer =
        nkv_store::Buffer::new(BOUNCE.min(whole) as usize).map_err(io::Error::other)?;
    let mut done = 0;
    while done < whole {
        let some = BOUNCE.min(whole - done) as usize;
        step(done, &mut buffer[..some], payload.offset + done)?;
        done += some as u64;
    }
    Ok(())
}
