//! The socket of a ring: one byte on it wakes an end that sleeps in an event loop, and its end is
//! the peer's end. A thread's end is in no event loop: it would be woken there, in vain, by every
//! byte that the other end takes.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes taken at once; they say nothing but "look".
const TAKEN: usize = 64;

#[derive(Debug)]
pub(super) enum Doorbell {
    /// Of a thread that sleeps on a futex and looks here now and then.
    Apart(OwnedFd),
    /// Of a task.
    Heard(UnixStream),
}

impl Doorbell {
    /// Takes the socket out of the event loop that it is in.
    pub(super) fn apart(socket: UnixStream) -> io::Result<Self> {
        Ok(Self::Apart(socket.into_std()?.into()))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Apart(fd) => fd.as_fd(),
            Self::Heard(socket) => socket.as_fd(),
        }
    }

    /// Wakes the other end; false if it is gone.
    pub(super) fn ring(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A full socket holds a bell already.
        !matches!(rustix::net::send(self.fd(), &[0], flags), Err(Errno::PIPE | Errno::CONNRESET))
    }

    /// Takes what is there: how many bytes, 0 at the end, None if there is nothing.
    pub(super) fn take(&self) -> io::Result<Option<usize>> {
        match rustix::net::recv(self.fd(), &mut [0; TAKEN], RecvFlags::DONTWAIT) {
            Ok((taken, _)) => Ok(Some(taken)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::CONNRESET | Errno::PIPE) => Ok(Some(0)),
            Err(e) => Err(e.into()),
        }
    }

    /// Ready when it may have rung: what [`Doorbell::take`] then says. The task is woken later if
    /// not.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        let Self::Heard(socket) = self else {
            return Poll::Ready(Err(io::Error::other("a bell that no task hears")));
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

    /// Says that this end is over.
    pub(super) fn shut(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.fd(), Shutdown::Write)?)
    }
}
