//! Passes a descriptor of shared memory over a unix socket whose two ends are authenticated. The
//! client first announces that it is ready to receive it: an ordinary read would lose the
//! descriptor.

use super::BoxStream;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// The byte with which the client announces that it is ready, and the byte sent with the
/// descriptor.
const TAKE: u8 = b'r';
const PASS: u8 = b'R';

/// Passes `fd` to the client at the other end, and returns the socket. Waits for the client's byte
/// without a time limit of its own.
///
/// # Errors
/// If `stream` is not a unix socket, or the client sends another byte or is gone.
pub async fn pass_descriptor(mut stream: BoxStream, fd: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let word = stream.read_u8().await?;
    if word != TAKE {
        return Err(odd(format!("a client that was offered a descriptor answered {word:#04x}")));
    }
    let socket = unix(stream)?;
    socket.async_io(Interest::WRITABLE, || send(&socket, fd)).await?;
    Ok(socket)
}

/// Receives the descriptor that the node at the other end has announced; returns it with the
/// socket. Waits for it without a time limit of its own. The caller checks what it refers to.
///
/// # Errors
/// If `stream` is not a unix socket, something else arrives, or the stream ends.
pub async fn take_descriptor(stream: BoxStream) -> io::Result<(OwnedFd, UnixStream)> {
    let socket = unix(stream)?;
    let send_take = || rustix::net::send(&socket, &[TAKE], SendFlags::NOSIGNAL).map_err(Into::into);
    socket.async_io(Interest::WRITABLE, send_take).await?;
    let fd = socket.async_io(Interest::READABLE, || receive(&socket)).await?;
    Ok((fd, socket))
}

fn unix(stream: BoxStream) -> io::Result<UnixStream> {
    let needed = "a descriptor needs a unix socket with nothing unread";
    stream.into_unix().ok_or_else(|| odd(needed.into()))
}

fn odd(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn send(socket: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(&[PASS])], &mut control, flags)?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut byte)];
    let got = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut control, flags)?;
    let fds = control.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    // All of them are taken, so that surplus ones are closed.
    let mut fds: Vec<OwnedFd> = fds.flatten().collect();
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (byte[0], fds.pop()) {
        (PASS, Some(fd)) if fds.is_empty() => Ok(fd),
        (byte, _) => Err(odd(format!("{byte:#04x} arrived instead of a descriptor"))),
    }
}
