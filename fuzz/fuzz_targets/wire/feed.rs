//! A connection as a peer makes it: its bytes arrive in pieces of any size, with waits between
//! them, followed by the end, or by more bytes as long as they are read.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes after which an endless peer stops: far above any limit, and quick enough for a test.
const ENDLESS_BYTES: usize = 1 << 30;

/// The stream; counts what was taken from it.
pub struct Feed<'a> {
    bytes: &'a [u8],
    taken: usize,
    filler: Option<u8>,
    // Random state that decides pieces and waits.
    dice: u64,
    waited: bool,
}

impl<'a> Feed<'a> {
    /// `bytes`, then the end or `filler` without end; `seed` decides over pieces and waits.
    pub fn new(bytes: &'a [u8], filler: Option<u8>, seed: u64) -> Self {
        Self { bytes, taken: 0, filler, dice: seed | 1, waited: false }
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Of `bytes`, what was not taken yet.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.taken.min(self.bytes.len())..]
    }

    fn roll(&mut self) -> usize {
        // xorshift64: never 0 again, since it does not start there.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 32) as usize
    }
}

impl AsyncRead for Feed<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let left = self.rest();
        if left.is_empty() {
            if let Some(filler) = self.filler {
                let n = buf.remaining().min(ENDLESS_BYTES.saturating_sub(self.taken));
                buf.initialize_unfilled_to(n).fill(filler);
                buf.advance(n);
                self.taken += n;
            }
            return Poll::Ready(Ok(()));
        }
        // Never twice in a row, so that the next poll makes progress.
        if !self.waited && self.roll().is_multiple_of(4) {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        let piece = 1 + self.roll() % 64;
        let n = piece.min(left.len()).min(buf.remaining());
        buf.put_slice(&left[..n]);
        self.taken += n;
        Poll::Ready(Ok(()))
    }
}
