//! The process at the other end of a unix socket, and whether it is alive. Pids are reused: only a
//! pidfd opened while the peer was certainly alive proves its death later [I9].

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// `getsockopt` name that returns a pidfd of the peer (Linux 6.5); not in libc yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// The process at the other end of a unix socket.
#[derive(Debug, Clone)]
pub struct UnixPeer {
    /// Its pid when it connected; 0 if it is in a pid namespace that is not visible here.
    pub pid: i32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Identifies the process permanently; absent if the kernel provides no pidfd.
    pub process: Option<Arc<dyn Process>>,
}

/// A process of this host, and whether it is alive: an interface that a simulation implements for
/// its own processes.
pub trait Process: Send + Sync + fmt::Debug {
    /// False once it has ended; it never becomes true again.
    fn is_alive(&self) -> bool;
}

/// A pidfd, which becomes readable when the process has exited, also for a zombie.
impl Process for OwnedFd {
    fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        // An error of the poll itself proves nothing.
        poll(&mut fds, Some(&NO_WAIT)) != Ok(1)
    }
}

/// The other end of a control connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Present on unix sockets.
    pub unix: Option<UnixPeer>,
    /// For logs.
    pub text: String,
}

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The peer of a connected unix socket, from its credentials (pid, uid).
pub(super) fn unix_peer(socket: &impl AsFd, pid: i32, uid: u32) -> UnixPeer {
    let pidfd = peer_pidfd(socket.as_fd().as_raw_fd()).or_else(|| pidfd_by_pid(socket, pid));
    UnixPeer { pid, uid, process: pidfd.map(|fd| Arc::new(fd) as Arc<dyn Process>) }
}

fn peer_pidfd(socket: RawFd) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers name locals of the length given.
    let r = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len)
    };
    // SAFETY: on success the kernel made a descriptor for us, which nobody else owns.
    (r == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// For older kernels: open by pid, then check again that the peer still has its end open. While it
/// does, its pid cannot belong to another process.
fn pidfd_by_pid(socket: &impl AsFd, pid: i32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let hung_up = poll(&mut fds, Some(&NO_WAIT)).ok()? > 0;
    (!hung_up && fd.is_alive()).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn i9_a_pidfd_says_alive_until_the_process_exits() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert!(fd.is_alive());
        drop(child.stdin.take());
        // Not yet waited for: even as a zombie it is dead.
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        assert!(!fd.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn i9_both_ways_to_a_pidfd_name_the_living_peer() {
        let (a, b) = UnixStream::pair().unwrap();
        let me = std::process::id() as i32;
        let by_pid = pidfd_by_pid(&a, me).unwrap();
        assert!(by_pid.is_alive());
        if let Some(fd) = peer_pidfd(a.as_raw_fd()) {
            assert!(fd.is_alive());
        }
        drop(b);
        assert!(pidfd_by_pid(&a, me).is_none(), "the peer hung up: its pid may be another's");
        assert!(pidfd_by_pid(&a, 0).is_none());
    }
}
