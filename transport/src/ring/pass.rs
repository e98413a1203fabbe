//! How a ring comes to be: the node makes its memory, announces it on a unix socket that both ends have
//! proven themselves on, and passes the descriptor. The client says first that it listens for it:
//! with an ordinary read a descriptor would be lost.

use super::layout::memory_bytes;
use super::stream::{RingStream, Waiting};
use crate::wire::BoxStream;
use nkv_store::shm::NamelessMemory;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// Bytes of a lane: what a batch of some hundred keys takes. Larger frames go through in parts.
const LANE_BYTES: u64 = 64 << 10;
/// The client's word that it listens for the descriptor, and the byte that the descriptor travels with.
const TAKE: u8 = b'r';
const PASS: u8 = b'R';

/// A ring that a node made and has not passed yet.
#[derive(Debug)]
pub struct Offer {
    memory: NamelessMemory,
    lane_bytes: u64,
}

impl Offer {
    /// Makes a ring's memory, some 130 KiB.
    ///
    /// # Errors
    /// If the system has no sealed memory, or none left: then the socket serves.
    pub fn new() -> io::Result<Self> {
        let memory = NamelessMemory::create(memory_bytes(LANE_BYTES)?).map_err(io::Error::other)?;
        Ok(Self { memory, lane_bytes: LANE_BYTES })
    }

    /// What the client must be told: bytes of a lane.
    pub fn lane_bytes(&self) -> u64 {
        self.lane_bytes
    }

    /// Passes it to the client at the other end of `stream`, a unix socket. Waits for the client's
    /// word without a limit of its own.
    pub async fn pass(self, mut stream: BoxStream) -> io::Result<RingStream> {
        let word = stream.read_u8().await?;
        if word != TAKE {
            return Err(odd(format!("a client that was offered a ring said {word:#04x}")));
        }
        let socket = unix(stream)?;
        socket.async_io(Interest::WRITABLE, || send_fd(&socket, &self.memory)).await?;
        Ok(RingStream::node(self.memory, socket, self.lane_bytes))
    }
}

/// Takes the ring that the node at the other end of `stream`, a unix socket, has announced with lanes
/// of so many bytes. Waits for it without a limit of its own.
pub async fn take(stream: BoxStream, lane_bytes: u64, waiting: Waiting) -> io::Result<RingStream> {
    let bytes = memory_bytes(lane_bytes)?;
    let socket = unix(stream)?;
    let say = || rustix::net::send(&socket, &[TAKE], SendFlags::NOSIGNAL).map_err(Into::into);
    socket.async_io(Interest::WRITABLE, say).await?;
    let fd = socket.async_io(Interest::READABLE, || recv_fd(&socket)).await?;
    let memory = NamelessMemory::take(fd, bytes).map_err(io::Error::other)?;
    RingStream::client(memory, socket, lane_bytes, waiting)
}

fn unix(stream: BoxStream) -> io::Result<UnixStream> {
    stream.into_unix().ok_or_else(|| odd("a ring needs a unix socket with nothing unread".into()))
}

fn odd(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn send_fd(socket: &UnixStream, memory: &NamelessMemory) -> io::Result<()> {
    let fds = [memory.fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(&[PASS])], &mut control, flags)?;
    Ok(())
}

fn recv_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
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
        (byte, _) => Err(odd(format!("{byte:#04x} came in place of a ring"))),
    }
}
