//! A terminal of a test's own: a program runs at one end, the test reads and closes the other. The
//! program's output is read during every wait, so that the program never blocks on it.

use super::holds_within;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Wide and high enough for `nkv top` with three ranks.
const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };

/// See the file's first paragraph.
pub struct Terminal {
    // None once closed.
    ours: Option<OwnedFd>,
    theirs: OwnedFd,
    seen: Vec<u8>,
}

impl Terminal {
    /// A new one.
    pub fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        grantpt(&ours).expect("a terminal of this user");
        unlockpt(&ours).expect("a terminal that can be opened");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other end");
        tcsetwinsize(&theirs, SIZE).expect("a size");
        Self { ours: Some(ours), theirs, seen: Vec::new() }
    }

    /// Starts a program at it.
    pub fn start(&self, mut command: Command) -> AtTerminal {
        let end = || Stdio::from(self.theirs.try_clone().expect("a descriptor"));
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        AtTerminal(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// What was written to it so far.
    pub fn seen(&mut self) -> String {
        let Some(ours) = &self.ours else { return self.text() };
        loop {
            let mut asked = [PollFd::new(ours, PollFlags::IN)];
            let _ = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if !asked[0].revents().contains(PollFlags::IN) {
                return self.text();
            }
            let mut bytes = [0; 4096];
            let n = rustix::io::read(ours, &mut bytes).expect("what was written");
            self.seen.extend(&bytes[..n]);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Waits until something was written to it.
    pub fn wait_for(&mut self, limit: Duration, text: &str) {
        let shown = holds_within(limit, || self.seen().contains(text));
        assert!(shown, "no {text:?} within {limit:?}: {}", self.text());
    }

    /// Types.
    pub fn type_in(&self, keys: &str) {
        let ours = self.ours.as_ref().expect("a terminal that is open");
        assert_eq!(rustix::io::write(ours, keys.as_bytes()), Ok(keys.len()));
    }

    /// Closes the test's end of the terminal.
    pub fn hang_up(&mut self) {
        self.ours = None;
    }

    /// Takes no more output.
    pub fn stop_output(&self) {
        tcflow(&self.theirs, Action::OOff).expect("a terminal");
    }

    /// True if it is in line mode with echo again.
    pub fn is_as_it_was(&self) -> bool {
        let modes = tcgetattr(&self.theirs).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

/// A program at a terminal; killed with the test.
pub struct AtTerminal(Child);

impl AtTerminal {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a pid");
        // The child is not waited for yet, so the id is still its own, dead or not.
        let _ = kill_process(pid, signal);
    }

    /// Waits for its end, while the terminal is read.
    pub fn wait(&mut self, terminal: &mut Terminal, limit: Duration) -> ExitStatus {
        let mut status = None;
        let ended = holds_within(limit, || {
            terminal.seen();
            status = self.0.try_wait().expect("a child's status");
            status.is_some()
        });
        assert!(ended, "still running after {limit:?}: {}", terminal.text());
        status.expect("ended")
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
