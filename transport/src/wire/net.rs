//! The network interface: opens and accepts control connections. [`OsNet`] is the operating
//! system's network; a simulation implements its own. A unix socket accepts only this user and
//! root.

use super::address::Address;
use super::peer::{Peer, unix_peer};
use crate::half_open;
use nkv_store::fork::{OwnProcessOnly, ProcessMark};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A control connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Whether it is a unix socket: then its two ends can share memory.
    fn is_unix(&self) -> bool {
        false
    }

    /// Whether only its two ends can read or change the data: then it is not encrypted.
    fn is_private(&self) -> bool {
        self.is_unix()
    }

    /// The underlying unix socket, if no received data waits to be read.
    fn into_unix(self: Box<Self>) -> Option<UnixStream> {
        None
    }
}

impl Stream for BufReader<TcpStream> {}
impl Stream for DuplexStream {}

impl Stream for BufReader<UnixStream> {
    fn is_unix(&self) -> bool {
        true
    }

    fn into_unix(self: Box<Self>) -> Option<UnixStream> {
        self.buffer().is_empty().then(|| self.into_inner())
    }
}

/// A control connection of any kind.
pub type BoxStream = Box<dyn Stream>;

/// Opens control connections and listens for them.
pub trait Net: Send + Sync {
    /// Connects. Without a time limit of its own: the caller sets one.
    fn connect(&self, addr: &Address) -> BoxFuture<'static, io::Result<BoxStream>>;
    /// Listens. Port 0 takes any free port; see [`Listener::local`].
    fn listen(&self, addr: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;
}

/// Accepts control connections.
pub trait Listener: Send {
    /// Accepts the next connection. Cancel-safe. A system error (too many open files) is returned;
    /// the listener can be used again after a pause.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxStream, Peer)>>;
    /// The address on which it actually listens.
    fn local(&self) -> Address;
}

/// Small reads of a control stream use a buffer of this size.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Backlog: connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Mode of a unix socket file.
const SOCKET_MODE: u32 = 0o600;

/// The operating system's network.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsNet;

impl Net for OsNet {
    fn connect(&self, addr: &Address) -> BoxFuture<'static, io::Result<BoxStream>> {
        let addr = addr.clone();
        Box::pin(async move {
            match addr {
                Address::Tcp(a) => boxed_tcp(TcpStream::connect(a).await?),
                Address::Unix(p) => {
                    let stream = UnixStream::connect(&p).await?;
                    check_node(stream.peer_cred()?.uid(), &p)?;
                    Ok(boxed(stream))
                }
            }
        })
    }

    fn listen(&self, addr: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let addr = addr.clone();
        Box::pin(async move {
            Ok(match addr {
                Address::Tcp(a) => Box::new(TcpAccept(TcpListener::bind(a).await?)) as Box<_>,
                Address::Unix(p) => Box::new(UnixAccept::bind(p)?) as Box<dyn Listener>,
            })
        })
    }
}

fn boxed<S>(s: S) -> BoxStream
where
    S: AsyncRead,
    BufReader<S>: Stream + 'static,
{
    Box::new(BufReader::with_capacity(READ_BUFFER_BYTES, s))
}

fn boxed_tcp(s: TcpStream) -> io::Result<BoxStream> {
    s.set_nodelay(true)?;
    half_open::watch(SockRef::from(&s))?;
    Ok(boxed(s))
}

struct TcpAccept(TcpListener);

impl Listener for TcpAccept {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxStream, Peer)>> {
        Box::pin(async move {
            loop {
                match self.0.accept().await {
                    Ok((s, from)) => {
                        // A peer that has already hung up cannot be configured; skip it.
                        let Ok(stream) = boxed_tcp(s) else { continue };
                        return Ok((stream, Peer { unix: None, text: format!("tcp {from}") }));
                    }
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(e) => return Err(e),
                }
            }
        })
    }

    fn local(&self) -> Address {
        Address::Tcp(self.0.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string()))
    }
}

/// A unix listener that removes its own socket file when dropped.
struct UnixAccept {
    // Its drop removes it from an event loop that a forked child shares with its parent.
    listener: OwnProcessOnly<UnixListener>,
    path: PathBuf,
    inode: u64,
    made: ProcessMark,
}

impl UnixAccept {
    fn bind(path: PathBuf) -> io::Result<Self> {
        unlink_if_stale(&path)?;
        // Bound under a unique name and renamed once its mode is 0600: nobody can connect before
        // that.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut own = path.clone().into_os_string();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        own.push(format!(".{}.{n}", std::process::id()));
        let own = PathBuf::from(own);
        let made = Self::bind_at(&own, &path);
        if made.is_err() {
            let _ = std::fs::remove_file(&own);
        }
        made
    }

    fn bind_at(own: &Path, path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(own)?)?;
        std::fs::set_permissions(own, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = UnixListener::from_std(std::os::fd::OwnedFd::from(socket).into())?;
        let inode = std::fs::symlink_metadata(own)?.ino();
        std::fs::rename(own, path)?;
        let (listener, made) = (OwnProcessOnly::new(listener), ProcessMark::here());
        Ok(Self { listener, path: path.to_path_buf(), inode, made })
    }
}

impl Drop for UnixAccept {
    fn drop(&mut self) {
        if !self.made.is_here() {
            return;
        }
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket file that no process listens on; refuses a socket in use or another kind of
/// file.
fn unlink_if_stale(path: &Path) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(m) => m,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if !meta.file_type().is_socket() {
        let why = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A live listener with a full backlog must not block this process.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => {
            let why = format!("a process listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
    }
}

impl Listener for UnixAccept {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxStream, Peer)>> {
        Box::pin(async move {
            loop {
                let (stream, _) = self.listener.accept().await?;
                let Ok(cred) = stream.peer_cred() else {
                    continue;
                };
                let me = rustix::process::geteuid().as_raw();
                if !may_connect(cred.uid(), me) {
                    let (uid, path) = (cred.uid(), self.path.display());
                    tracing::warn!(uid, %path, "refused a connection of another user");
                    continue;
                }
                let unix = unix_peer(&stream, cred.pid().unwrap_or(0), cred.uid());
                let text = format!("unix pid {} uid {}", unix.pid, unix.uid);
                return Ok((boxed(stream), Peer { unix: Some(unix), text }));
            }
        })
    }

    fn local(&self) -> Address {
        Address::Unix(self.path.clone())
    }
}

/// A client accepts nodes of its own user and of root; root accepts all nodes [I20].
fn check_node(uid: u32, path: &Path) -> io::Result<()> {
    let me = rustix::process::geteuid().as_raw();
    if may_connect(me, uid) || may_connect(uid, me) {
        return Ok(());
    }
    let why = format!("user {uid}, not this one ({me}), listens at {}", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Only this process's user and root [I20].
fn may_connect(uid: u32, me: u32) -> bool {
    uid == me || uid == 0
}

#[cfg(test)]
mod tests;
