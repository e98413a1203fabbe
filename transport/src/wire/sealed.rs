//! An encrypted control connection: data is sent in records of a session, each {length u16,
//! ciphertext with its tag}. A record that is not the next one of the other end ends the connection
//! [I20]. Buffers are bounded; frames are not interpreted here.

use super::net::{BoxStream, Stream};
use snow::TransportState;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most plaintext bytes of a record. A peer's length field costs at most this much memory.
const RECORD_BYTES: usize = 16 << 10;
/// Bytes of the length before each record.
const HEAD_BYTES: usize = 2;
/// Bytes of the tag after each record.
const TAG_BYTES: usize = 16;
/// Plaintext bytes that one write accepts, so that a large frame needs few system calls.
const WRITE_BYTES: usize = 4 * RECORD_BYTES;

const _: () = assert!(RECORD_BYTES + TAG_BYTES <= u16::MAX as usize);

/// An encrypted stream.
pub(super) struct Sealed {
    inner: BoxStream,
    session: Box<TransportState>,
    // A record being received: `got` of its bytes have arrived.
    record: Vec<u8>,
    got: usize,
    // The part of the last record not read yet: plain[read..].
    plain: Vec<u8>,
    read: usize,
    // Records being sent: out[sent..] is still to be sent.
    out: Vec<u8>,
    sent: usize,
}

fn forged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "bytes that the other end of the session did not send")
}

impl Sealed {
    pub(super) fn new(inner: BoxStream, session: Box<TransportState>) -> Self {
        let (record, plain, out) = (Vec::new(), Vec::new(), Vec::new());
        Self { inner, session, record, got: 0, plain, read: 0, out, sent: 0 }
    }

    /// Length in bytes of the record being received, as far as it is known.
    fn due(&self) -> io::Result<usize> {
        if self.got < HEAD_BYTES {
            return Ok(HEAD_BYTES);
        }
        let len = usize::from(u16::from_le_bytes([self.record[0], self.record[1]]));
        // A record without content is never sent: many of them would be work without effect.
        if len <= TAG_BYTES || len > RECORD_BYTES + TAG_BYTES {
            return Err(forged());
        }
        Ok(HEAD_BYTES + len)
    }

    /// Receives the next record; false at the end of the stream.
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

    /// Sends the sealed records.
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

    /// Appends a record to `out`.
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
        // The data is accepted already: what cannot be sent now is sent by the next write or flush.
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
