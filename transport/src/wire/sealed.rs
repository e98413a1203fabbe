//! An encrypted control connection: what is written goes out in records of a session, each {its
//! length u16, ciphertext with its tag}, and a record that is not the next one of the other end
//! ends the connection [I20]. Buffers are bounded; it knows nothing of frames.

use super::net::{BoxStream, Stream};
use snow::TransportState;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Plaintext of a record, at most. A peer's claim costs this much memory.
const RECORD_BYTES: usize = 16 << 10;
/// Before each record: its length.
const HEAD_BYTES: usize = 2;
/// Behind each record.
const TAG_BYTES: usize = 16;
/// Plaintext that one write takes, so that a large frame is few calls of the system.
const WRITE_BYTES: usize = 4 * RECORD_BYTES;

const _: () = assert!(RECORD_BYTES + TAG_BYTES <= u16::MAX as usize);

/// See the file's first paragraph.
pub(super) struct Sealed {
    inner: BoxStream,
    session: Box<TransportState>,
    // A record that is coming in: got of its bytes are there.
    record: Vec<u8>,
    got: usize,
    // What of the last one was not read yet: plain[read..].
    plain: Vec<u8>,
    read: usize,
    // Records on their way out: out[sent..] is still to go.
    out: Vec<u8>,
    sent: usize,
}

fn forged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "bytes that the other end of the session did not say")
}

impl Sealed {
    pub(super) fn new(inner: BoxStream, session: Box<TransportState>) -> Self {
        let (record, plain, out) = (Vec::new(), Vec::new(), Vec::new());
        Self { inner, session, record, got: 0, plain, read: 0, out, sent: 0 }
    }

    /// Bytes of the record that is coming in, as far as they are known.
    fn due(&self) -> io::Result<usize> {
        if self.got < HEAD_BYTES {
            return Ok(HEAD_BYTES);
        }
        let len = usize::from(u16::from_le_bytes([self.record[0], self.record[1]]));
        // One without content is never sent: many of them would be work for nothing.
        if len <= TAG_BYTES || len > RECORD_BYTES + TAG_BYTES {
            return Err(forged());
        }
        Ok(HEAD_BYTES + len)
    }

    /// Takes the next record in; false at the end of the stream.
    fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let due = self.due()?;
            if self.got == due && due > HEAD_BYTES {
                break;
            }
            self.record.resize(due, 0);
            let mut room = ReadBuf::new(&mut self.record[self.got..]);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut room))?;
            match room.filled().len() {
                0 if self.got == 0 => return Poll::Ready(Ok(false)),
                0 => return Poll::Ready(Err(ErrorKind::UnexpectedEof.into())),
                n => self.got += n,
            }
        }
        self.plain.resize(self.got - HEAD_BYTES - TAG_BYTES, 0);
        let opened = self.session.read_message(&self.record[HEAD_BYTES..], &mut self.plain);
        if opened != Ok(self.plain.len()) {
            return Poll::Ready(Err(forged()));
        }
        (self.got, self.read) = (0, 0);
        Poll::Ready(Ok(true))
    }

    /// Sends what was sealed.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.out[self.sent..]))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.out.clear();
        self.out.shrink_to(2 * RECORD_BYTES);
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Appends a record to what goes out.
    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        let start = self.out.len();
        let len = plain.len() + TAG_BYTES;
        self.out.extend_from_slice(&(len as u16).to_le_bytes());
        self.out.resize(start + HEAD_BYTES + len, 0);
        let sealed = self.session.write_message(plain, &mut self.out[start + HEAD_BYTES..]);
        sealed.map(drop).map_err(|e| io::Error::other(e.to_string()))
    }
}

impl Stream for Sealed {}

impl AsyncRead for Sealed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if this.read == this.plain.len() && !ready!(this.poll_record(cx))? {
            return Poll::Ready(Ok(()));
        }
        let n = buf.remaining().min(this.plain.len() - this.read);
        buf.put_slice(&this.plain[this.read..this.read + n]);
        this.read += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sealed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_out(cx))?;
        let taken = &buf[..buf.len().min(WRITE_BYTES)];
        taken.chunks(RECORD_BYTES).try_for_each(|plain| this.seal(plain))?;
        // Taken already: what cannot go now goes with the next write or flush.
        match this.poll_out(cx) {
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
