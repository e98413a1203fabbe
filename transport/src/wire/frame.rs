//! Frames: a 16-byte header {body length u32, version u16, flags u16, request id u64}, little
//! endian, then a bincode body (1.3, fixed-width integers). Memory is allocated as bytes arrive,
//! not by the stated length. Input that does not decode is an error that closes the connection
//! [I19]; nothing here may panic on input.

use bincode::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::error::Elapsed;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of header and encoding; both ends must have the same.
pub const WIRE_VERSION: u16 = 1;
/// Length of the header.
pub const FRAME_HEADER_BYTES: usize = size_of::<Header>();
/// Largest body in bytes. Batches are cut to fit; payload is never sent in frames.
pub const MAX_FRAME_BYTES: usize = 32 << 20;
/// Step by which a body buffer grows, or the length it already holds if that is more.
const GROW_BYTES: usize = 64 << 10;
/// A frame must be received or sent completely within this plus a second for each so many bytes, so
/// that a peer that trickles or does not read cannot hold resources without end.
const FRAME_LIMIT: Duration = Duration::from_secs(5);
const BYTES_PER_SECOND: u64 = 4 << 20;
/// Most bytes of bodies being received by this process at once, beyond [`GROW_BYTES`] each.
const MAX_IN_FLIGHT_BYTES: usize = 1 << 30;
/// A reused buffer is shrunk to this after an unusually large frame.
const KEEP_BYTES: usize = 64 << 10;

/// Why a frame could not be read or written. Any of them ends the connection.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream failed.
    #[error("stream: {0}")]
    Io(#[from] std::io::Error),
    /// The stream ended inside a frame.
    #[error("the stream ended {missing} bytes before the end of a frame")]
    Truncated {
        /// Bytes still expected.
        missing: usize,
    },
    /// The body is longer than the limit.
    #[error("a frame of {claimed} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its length in bytes.
        claimed: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The other end uses another version.
    #[error("the peer speaks wire version {got}, this end {WIRE_VERSION}: run the same release")]
    Version {
        /// Version in the frame.
        got: u16,
    },
    /// Flags that this version does not define.
    #[error("a frame with unknown flags {flags:#06x}")]
    Flags {
        /// Flags in the frame.
        flags: u16,
    },
    /// The body does not decode as the expected type.
    #[error("a frame body of {bytes} bytes does not decode: {reason}")]
    Decode {
        /// Its length in bytes.
        bytes: usize,
        /// The decoder's message.
        reason: String,
    },
    /// The rest of a frame was not received, or not sent, in time.
    #[error("a frame of {bytes} bytes was not complete within {ms} ms")]
    Late {
        /// Its length in bytes, as far as it is known.
        bytes: usize,
        /// The limit in milliseconds.
        ms: u128,
    },
    /// Too many large frames at once.
    #[error(
        "no room to receive {bytes} bytes beside {in_flight} others in flight (limit \
         {MAX_IN_FLIGHT_BYTES}); send smaller batches"
    )]
    Busy {
        /// Its length in bytes.
        bytes: usize,
        /// Bytes being received already.
        in_flight: usize,
    },
    /// The value cannot be encoded.
    #[error("cannot encode a frame: {0}")]
    Encode(String),
}

fn options(limit: usize) -> impl Options {
    // DefaultOptions also rejects trailing bytes.
    bincode::DefaultOptions::new().with_fixint_encoding().with_limit(limit as u64)
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Header {
    body: U32,
    version: U16,
    flags: U16,
    id: U64,
}

impl Header {
    /// The length of the body, once all fields are checked.
    fn checked_body(&self, limit: usize) -> Result<usize, WireError> {
        let (body, got, flags) = (self.body.get(), self.version.get(), self.flags.get());
        if got != WIRE_VERSION {
            return Err(WireError::Version { got });
        }
        if flags != 0 {
            return Err(WireError::Flags { flags });
        }
        if body as usize > limit {
            return Err(WireError::TooLarge { claimed: u64::from(body), limit });
        }
        Ok(body as usize)
    }
}

fn decode_body<T: DeserializeOwned>(body: &[u8], limit: usize) -> Result<T, WireError> {
    options(limit)
        .deserialize(body)
        .map_err(|e| WireError::Decode { bytes: body.len(), reason: e.to_string() })
}

/// Appends one whole frame to `buf`. On an error `buf` is unchanged.
pub fn encode_frame<T: Serialize + ?Sized>(
    buf: &mut Vec<u8>,
    id: u64,
    value: &T,
) -> Result<(), WireError> {
    let start = buf.len();
    buf.resize(start + FRAME_HEADER_BYTES, 0);
    if let Err(e) = options(MAX_FRAME_BYTES).serialize_into(&mut *buf, value) {
        buf.truncate(start);
        return Err(match *e {
            bincode::ErrorKind::SizeLimit => {
                WireError::TooLarge { claimed: MAX_FRAME_BYTES as u64 + 1, limit: MAX_FRAME_BYTES }
            }
            other => WireError::Encode(other.to_string()),
        });
    }
    let body = ((buf.len() - start - FRAME_HEADER_BYTES) as u32).into();
    let header = Header { body, version: WIRE_VERSION.into(), flags: 0.into(), id: id.into() };
    buf[start..start + FRAME_HEADER_BYTES].copy_from_slice(header.as_bytes());
    Ok(())
}

/// Decodes one frame from the front of `bytes`: returns its request id, its value, and its length
/// in bytes. `Truncated` if `bytes` ends too early.
pub fn decode_frame<T: DeserializeOwned>(bytes: &[u8]) -> Result<(u64, T, usize), WireError> {
    let (header, rest) = Header::ref_from_prefix(bytes)
        .map_err(|_| WireError::Truncated { missing: FRAME_HEADER_BYTES - bytes.len() })?;
    let len = header.checked_body(MAX_FRAME_BYTES)?;
    let body = rest.get(..len).ok_or_else(|| WireError::Truncated { missing: len - rest.len() })?;
    Ok((header.id.get(), decode_body(body, MAX_FRAME_BYTES)?, FRAME_HEADER_BYTES + len))
}

/// Writes one frame, with one write call if the stream accepts it whole. `buf` is scratch, reused
/// between calls and empty afterwards. Not cancel-safe: a dropped future may leave half a frame on
/// the stream, which must then be closed.
pub async fn write_frame<W, T>(
    w: &mut W,
    buf: &mut Vec<u8>,
    id: u64,
    value: &T,
) -> Result<(), WireError>
where
    W: AsyncWrite + Unpin,
    T: Serialize + ?Sized,
{
    buf.clear();
    encode_frame(buf, id, value)?;
    write_encoded(w, buf).await
}

/// Writes the frames that [`encode_frame`] left in `buf`, all at once, and empties it. Not
/// cancel-safe, as [`write_frame`].
pub async fn write_encoded<W: AsyncWrite + Unpin>(
    w: &mut W,
    buf: &mut Vec<u8>,
) -> Result<(), WireError> {
    let (bytes, limit) = (buf.len(), time_for(buf.len()));
    let write = async {
        w.write_all(buf).await?;
        w.flush().await
    };
    let written = within(limit, write).await;
    recycle(buf);
    Ok(written.map_err(|_| WireError::Late { bytes, ms: limit.as_millis() })??)
}

/// Reads one frame; `None` if the stream ended cleanly between frames. Never reads past the frame
/// it returns. `limit` bounds the body (at most [`MAX_FRAME_BYTES`]).
///
/// Cancel-safe if called again with the same `buf`: it keeps the bytes of a frame that is not yet
/// whole. It is empty whenever a frame was returned. After an error the stream must be closed.
pub async fn read_frame<R, T>(
    r: &mut R,
    buf: &mut Vec<u8>,
    limit: usize,
) -> Result<Option<(u64, T)>, WireError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    let limit = limit.min(MAX_FRAME_BYTES);
    // Between frames there is no time limit.
    if buf.is_empty() && !fill(r, buf, FRAME_HEADER_BYTES).await? {
        return Ok(None);
    }
    let mut room = ReceiveQuota::none(&IN_FLIGHT);
    let head = fill_to(r, buf, FRAME_HEADER_BYTES, &mut room);
    let late = |bytes| move |_| WireError::Late { bytes, ms: time_for(bytes).as_millis() };
    within(FRAME_LIMIT, head).await.map_err(late(0))??;
    let mut header = Header::new_zeroed();
    header.as_mut_bytes().copy_from_slice(&buf[..FRAME_HEADER_BYTES]);
    let end = FRAME_HEADER_BYTES + header.checked_body(limit)?;
    within(time_for(end), fill_to(r, buf, end, &mut room)).await.map_err(late(end))??;
    let value = decode_body(&buf[FRAME_HEADER_BYTES..end], limit);
    recycle(buf);
    Ok(Some((header.id.get(), value?)))
}

/// As `tokio::time::timeout`, but work that is complete at the first poll needs no clock and no
/// timer: over shared memory that is nearly always so.
pub async fn within<F: Future>(limit: Duration, work: F) -> Result<F::Output, Elapsed> {
    let mut work = pin!(work);
    let first = poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    });
    match first.await {
        Some(done) => Ok(done),
        None => tokio::time::timeout(limit, work).await,
    }
}

fn time_for(bytes: usize) -> Duration {
    FRAME_LIMIT + Duration::from_secs(bytes as u64 / BYTES_PER_SECOND)
}

/// A share of the bytes that this process receives at once.
struct ReceiveQuota(usize, &'static AtomicUsize);

static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

impl ReceiveQuota {
    fn none(of: &'static AtomicUsize) -> Self {
        Self(0, of)
    }

    /// Reserves room for `bytes` in all, beyond what every connection may have.
    fn grow_to(&mut self, bytes: usize) -> Result<(), WireError> {
        let more = bytes.saturating_sub(self.0);
        if bytes <= 2 * GROW_BYTES || more == 0 {
            return Ok(());
        }
        let in_flight = self.1.fetch_add(more, Ordering::Relaxed);
        self.0 += more;
        if in_flight + more > MAX_IN_FLIGHT_BYTES {
            return Err(WireError::Busy { bytes, in_flight });
        }
        Ok(())
    }
}

impl Drop for ReceiveQuota {
    fn drop(&mut self) {
        if self.0 > 0 {
            self.1.fetch_sub(self.0, Ordering::Relaxed);
        }
    }
}

/// Reads until the buffer holds `end` bytes. Memory grows with what has arrived, at most twofold
/// per read, and not by the stated length.
async fn fill_to<R: AsyncRead + Unpin>(
    r: &mut R,
    buf: &mut Vec<u8>,
    end: usize,
    room: &mut ReceiveQuota,
) -> Result<(), WireError> {
    while buf.len() < end {
        room.grow_to(end.min(2 * buf.len().max(GROW_BYTES)))?;
        if !fill(r, buf, end).await? {
            return Err(WireError::Truncated { missing: end - buf.len() });
        }
    }
    Ok(())
}

/// Reads some bytes, up to `end` in the buffer; false at the end of the stream.
async fn fill<R: AsyncRead + Unpin>(
    r: &mut R,
    buf: &mut Vec<u8>,
    end: usize,
) -> Result<bool, WireError> {
    let room = (end - buf.len()).min(GROW_BYTES.max(buf.len()));
    buf.reserve(room);
    let n = (&mut *r).take(room as u64).read_buf(buf).await?;
    Ok(n > 0)
}

fn recycle(buf: &mut Vec<u8>) {
    buf.clear();
    buf.shrink_to(KEEP_BYTES);
}

#[cfg(test)]
mod tests;
