//! A descriptor of shared memory, passed over a unix socket that both ends have proven themselves
//! on. The client says first that it listens for it: with an ordinary read a descriptor would be
//! lost.

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

/// The client's word that it listens for the descriptor, and the byte that the descriptor travels
/// with.
const TAKE: u8 = b'r';
const PASS: u8 = b'R';

/// Passes `fd` to the client at the other end, and returns the socket. Waits for the client's word
/// without a limit of its own.
///
/// # Errors
/// If `stream` is no unix socket, the client says something else, or it has gone.
pub async fn pass_descriptor(mut stream: BoxStream, fd: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let word = stream.read_u8().await?;
    if word != TAKE {
        return Err(odd(format!("a client that was offered a descriptor said {word:#04x}")));
    }
    let socket = unix(stream)?;
    socket.async_io(Interest::WRITABLE, || send(&socket, fd)).await?;
    Ok(socket)
}

/// Takes the descriptor that the node at the other end has announced; with the socket. Waits for it
/// without a limit of its own. What it is of, the caller checks.
///
/// # Errors
/// If `stream` is no unix socket, something else came, or nothing does any more.
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
    // All of them, or they would stay open.
    let mut fds: Vec<OwnedFd> = fds.flatten().collect();
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (byte[0], fds.pop()) {
        (PASS, Some(fd)) if fds.is_empty() => Ok(fd),
        (byte, _) => Err(odd(format!("{byte:#04x} came in place of a descriptor"))),
    }
}
