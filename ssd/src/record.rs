//! The bytes of one object on disk: a header of whole 4 KiB blocks, then the payload. Both together
//! are a safetensors file with one tensor `payload` of bytes, so any reader of that format can
//! read an exported object.

use crate::directory::{hex, unhex_any};
use crate::engine::Payload;
use crate::piece::BLOCK;
use nkv_store::{Key, StoreError, key::MAX_KEY_BYTES};
use serde::Deserialize;

/// A checksum covers this many bytes of the payload.
pub const CHUNK: u64 = 256 << 10;
/// Bytes that are copied at a time to be summed: they stay in the processor's first cache.
const STEP: usize = 16 << 10;
/// Longest header: that of an object of some 300 GiB.
const MOST_HEADER: usize = 16 << 20;

/// Where the checksum of the header stands in it: its other bytes never move it.
const OPENING: &str = "{\"__metadata__\":{\"header_crc32c\":\"";
const LENGTH_BYTES: usize = 8;
const CRC_AT: usize = LENGTH_BYTES + OPENING.len();
const CRC_DIGITS: usize = 8;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// [`crate::Directory::id`].
    pub directory: String,
    /// Where the record begins in its file. A header found elsewhere is not this record's.
    pub offset: u64,
    /// Grows with every record of the directory.
    pub seq: u64,
    /// The object's key.
    pub key: Key,
    /// [`crate::Object::layout`].
    pub layout: u64,
    /// Length of the payload.
    pub len: u64,
    /// CRC-32C of each [`CHUNK`] of the payload.
    pub sums: Vec<u32>,
}

/// Bytes of the header of an object: a multiple of 4 KiB.
pub fn header_bytes(key: &Key, len: u64) -> u64 {
    // What `Header::encode` writes besides the key and the checksums is below 512 bytes.
    let text = 512 + 2 * key.as_bytes().len() as u64 + 8 * len.div_ceil(CHUNK);
    text.next_multiple_of(BLOCK as u64)
}

/// CRC-32C of each [`CHUNK`] of a payload, taken from its start on as the bytes arrive.
pub struct Sums<'a> {
    payload: Payload<'a>,
    done: u64,
    sums: Vec<u32>,
    result: Result<(), StoreError>,
}

impl<'a> Sums<'a> {
    /// None of the bytes is there yet.
    pub fn of(payload: Payload<'a>) -> Self {
        let sums = Vec::with_capacity(payload.len.div_ceil(CHUNK) as usize);
        Self { payload, done: 0, sums, result: Ok(()) }
    }

    /// The first `bytes` are there.
    pub fn advance(&mut self, bytes: u64) {
        if self.result.is_ok() {
            self.result = self.add(bytes.min(self.payload.len));
        }
    }

    fn add(&mut self, end: u64) -> Result<(), StoreError> {
        let (at, left) = (self.payload.offset + self.done, end.saturating_sub(self.done));
        // SAFETY: these bytes are there, so what brought them writes there no more, and they are
        // borrowed within this call alone.
        if let Some(own) = unsafe { self.payload.memory.unshared(at, left) } {
            self.add_own(own);
            return Ok(());
        }
        let mut step = [0; STEP];
        while self.done < end {
            let in_chunk = self.done % CHUNK;
            let some = (STEP as u64).min(end - self.done).min(CHUNK - in_chunk) as usize;
            self.payload.memory.read(self.payload.offset + self.done, &mut step[..some])?;
            if in_chunk == 0 {
                self.sums.push(0);
            }
            if let Some(sum) = self.sums.last_mut() {
                *sum = crc32c::crc32c_append(*sum, &step[..some]);
            }
            self.done += some as u64;
        }
        Ok(())
    }

    /// The next bytes, where they lie.
    fn add_own(&mut self, mut own: &[u8]) {
        while !own.is_empty() {
            let in_chunk = self.done % CHUNK;
            let some = own.len().min((CHUNK - in_chunk) as usize);
            let (now, later) = own.split_at(some);
            match self.sums.last_mut().filter(|_| in_chunk > 0) {
                Some(sum) => *sum = crc32c::crc32c_append(*sum, now),
                None => self.sums.push(crc32c::crc32c(now)),
            }
            self.done += some as u64;
            own = later;
        }
    }

    /// All bytes are there.
    ///
    /// # Errors
    /// If the payload is not in the memory.
    pub fn finish(mut self) -> Result<Vec<u32>, StoreError> {
        self.advance(self.payload.len);
        self.result.map(|()| self.sums)
    }
}

#[derive(Deserialize)]
struct Text {
    #[serde(rename = "__metadata__")]
    metadata: Metadata,
    payload: Tensor,
}

#[derive(Deserialize)]
struct Metadata {
    directory: String,
    offset: String,
    seq: String,
    layout: String,
    key: String,
    crc32c: String,
}

#[derive(Deserialize)]
struct Tensor {
    data_offsets: [u64; 2],
}

impl Header {
    /// Writes it over `into`, which has [`header_bytes`] bytes.
    ///
    /// # Panics
    /// If `into` is shorter than what is written: its length comes from [`header_bytes`].
    pub fn encode(&self, into: &mut [u8]) {
        let sums = self.sums.iter().map(|sum| sum.to_be_bytes()).collect::<Vec<_>>();
        let text = format!(
            "{OPENING}00000000\",\"nkv\":\"1\",\"directory\":\"{}\",\"offset\":\"{:016x}\",\"seq\":\
             \"{:016x}\",\"layout\":\"{:016x}\",\"key\":\"{}\",\"crc32c\":\"{}\"}},\"payload\":\
             {{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[0,{}]}}}}",
            self.directory,
            self.offset,
            self.seq,
            self.layout,
            hex(self.key.as_bytes()),
            hex(&sums.concat()),
            self.len,
            self.len,
        );
        let json = into.len() - LENGTH_BYTES;
        into[..LENGTH_BYTES].copy_from_slice(&(json as u64).to_le_bytes());
        into[LENGTH_BYTES..LENGTH_BYTES + text.len()].copy_from_slice(text.as_bytes());
        into[LENGTH_BYTES + text.len()..].fill(b' ');
        let sum = format!("{:08x}", crc32c::crc32c(into));
        into[CRC_AT..CRC_AT + CRC_DIGITS].copy_from_slice(sum.as_bytes());
    }

    /// How long the header is whose first block this is. None if it is none.
    pub fn bytes_of(first: &[u8]) -> Option<usize> {
        let length = first.get(..LENGTH_BYTES)?.try_into().ok()?;
        let bytes = usize::try_from(u64::from_le_bytes(length)).ok()?.checked_add(LENGTH_BYTES)?;
        (bytes.is_multiple_of(BLOCK) && (BLOCK..=MOST_HEADER).contains(&bytes)).then_some(bytes)
    }

    /// Reads a header of [`Header::bytes_of`] bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &mut [u8]) -> Result<Header, String> {
        let whole = Self::bytes_of(bytes) == Some(bytes.len());
        let opened = bytes.get(LENGTH_BYTES..CRC_AT) == Some(OPENING.as_bytes());
        if !whole || !opened {
            return Err("there is no header of a record".to_owned());
        }
        let written: [u8; CRC_DIGITS] =
            bytes[CRC_AT..CRC_AT + CRC_DIGITS].try_into().map_err(|_| "too short")?;
        bytes[CRC_AT..CRC_AT + CRC_DIGITS].fill(b'0');
        let sum = crc32c::crc32c(bytes);
        bytes[CRC_AT..CRC_AT + CRC_DIGITS].copy_from_slice(&written);
        if format!("{sum:08x}").as_bytes() != written {
            return Err("the header's checksum does not match".to_owned());
        }
        // The spaces that fill the block take the parser longer than the rest.
        let text: Text = serde_json::from_slice(bytes[LENGTH_BYTES..].trim_ascii_end())
            .map_err(|error| format!("the header cannot be read: {error}"))?;
        Self::of_text(text).ok_or_else(|| "the header contradicts itself".to_owned())
    }

    fn of_text(text: Text) -> Option<Header> {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let [0, len] = text.payload.data_offsets else { return None };
        let metadata = text.metadata;
        let key = unhex_any(&metadata.key).filter(|key| key.len() <= MAX_KEY_BYTES)?;
        let sums = unhex_any(&metadata.crc32c).filter(|sums| sums.len().is_multiple_of(4))?;
        let sums: Vec<u32> = sums
            .chunks_exact(4)
            .filter_map(|sum| Some(u32::from_be_bytes(sum.try_into().ok()?)))
            .collect();
        (sums.len() as u64 == len.div_ceil(CHUNK)).then_some(Header {
            directory: metadata.directory,
            offset: number(&metadata.offset)?,
            seq: number(&metadata.seq)?,
            layout: number(&metadata.layout)?,
            key: Key::new(&key).ok()?,
            len,
            sums,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(key: &[u8], len: u64) -> (Header, Vec<u8>) {
        let key = Key::new(key).unwrap();
        let sums = (0..len.div_ceil(CHUNK)).map(|at| at as u32 ^ 0xdead_beef).collect();
        let mut bytes = vec![7; header_bytes(&key, len) as usize];
        let directory = "0123456789abcdef0123456789abcdef".to_owned();
        let header = Header { directory, offset: 4096, seq: 9, key, layout: 5, len, sums };
        header.encode(&mut bytes);
        (header, bytes)
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            key in prop::collection::vec(any::<u8>(), 1..=MAX_KEY_BYTES),
            len in 0u64..1 << 32,
        ) {
            let (header, mut bytes) = header(&key, len);
            prop_assert_eq!(Header::bytes_of(&bytes), Some(bytes.len()));
            prop_assert_eq!(Header::decode(&mut bytes).unwrap(), header);
        }

        #[test]
        fn i21_a_header_with_a_changed_byte_is_refused(at in 0usize..4096, bit in 0u8..8) {
            let (_, mut bytes) = header(b"key", 3 * CHUNK);
            bytes[at] ^= 1 << bit;
            prop_assert!(Header::decode(&mut bytes).is_err());
        }

        #[test]
        fn i19_bytes_of_any_kind_are_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..9000),
        ) {
            let _ = Header::bytes_of(&bytes);
            prop_assert!(Header::decode(&mut bytes).is_err());
        }
    }

    #[test]
    fn a_record_is_a_safetensors_file() {
        let (_, mut bytes) = header(&[0xff; MAX_KEY_BYTES], 70_000);
        bytes.extend(vec![3; 70_000]);
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("payload").unwrap().data(), &[3; 70_000]);
    }
}
