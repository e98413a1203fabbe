//! The socket of a ring: one byte on it wakes an end that sleeps in an event loop, and its close
//! signals the end of the peer. For an end used by a thread the socket is not in an event loop,
//! where every byte would wake that loop needlessly.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes read at once; their values have no meaning.
const TAKEN: usize = 64;

#[derive(Debug)]
pub(super) enum Doorbell {
    /// For a thread that sleeps on a futex and checks the socket periodically.
    Apart(OwnedFd),
    /// For a task.
    Heard(UnixStream),
}

impl Doorbell {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Apart(fd) => fd.as_fd(),
            Self::Heard(socket) => socket.as_fd(),
        }
    }

    /// Wakes the other end; false if it is gone.
    pub(super) fn ring(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // If the socket buffer is full, it already holds a byte that wakes.
        !matches!(rustix::net::send(self.fd(), &[0], flags), Err(Errno::PIPE | Errno::CONNRESET))
    }

    /// Reads the bytes that are there: how many, 0 at the end of stream, None if there is nothing.
    pub(super) fn take(&self) -> io::Result<Option<usize>> {
        match rustix::net::recv(self.fd(), &mut [0; TAKEN], RecvFlags::DONTWAIT) {
            Ok((taken, _)) => Ok(Some(taken)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::CONNRESET | Errno::PIPE) => Ok(Some(0)),
            Err(e) => Err(e.into()),
        }
    }

    /// Ready when a byte may have arrived, with the result of [`Doorbell::take`]. Otherwise the
    /// task is woken later.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        let Self::Heard(socket) = self else {
            return Poll::Ready(Err(io::Error::other("a doorbell that is in no event loop")));
        };
        ready!(socket.poll_read_ready(cx))?;
        let rung = socket
            .try_io(Interest::READABLE, || self.take()?.ok_or(io::ErrorKind::WouldBlock.into()));
        Poll::Ready(match rung {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        })
    }

    /// Shuts the socket down: this end is closed.
    pub(super) fn shut(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.fd(), Shutdown::Write)?)
    }
}
