//! One process of a test: threads collect its output, so that no pipe fills up; waits for its end
//! are bounded; it is killed when the test is over.

use super::holds_within;
use nkv_pace::HANGS;
use nkv_store::threads::spawn_named;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a rank may take to join.
pub const READY_LIMIT: Duration = HANGS;
/// How long a process may take to end after a signal.
pub const EXIT_LIMIT: Duration = HANGS;
/// How long a signal may take to reach every thread.
const SIGNAL_LIMIT: Duration = HANGS;
/// Bytes of output kept of each stream: the last.
const KEPT_BYTES: usize = 256 * 1024;
/// Prefix of the line for programs.
const READY: &str = "nkv-node ready ";

/// The end of one output stream.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<String>>);

impl Tail {
    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, line: &str) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if text.len() + line.len() > KEPT_BYTES {
            text.clear();
        }
        text.push_str(line);
        text.push('\n');
    }
}

/// Collects a stream in a thread; the receiver gets the lines that begin with [`READY`].
fn collect(stream: impl Read + Send + 'static) -> (Tail, Receiver<String>) {
    let (tail, (tx, rx)) = (Tail::default(), sync_channel(16));
    let kept = tail.clone();
    spawn_named("test-output", move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            kept.add(&line);
            if line.starts_with(READY) {
                let _ = tx.try_send(line);
            }
        }
    })
    .expect("a thread");
    (tail, rx)
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 plus the signal's number.
    pub code: i32,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Ended {
    /// The last line of stderr: the error sentence.
    pub fn sentence(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

/// An `nkv-node` that has joined.
pub struct Process {
    child: Child,
    fields: BTreeMap<String, String>,
    stdout: Tail,
    stderr: Tail,
    lines: Receiver<String>,
}

impl Process {
    /// Starts it and waits for its line for programs.
    pub fn start(command: Command) -> Self {
        let mut process = Self::spawn(command);
        process.is_ready();
        process
    }

    /// Waits for its first line for programs, if it was not seen yet.
    pub fn is_ready_once(&mut self) {
        if self.fields.is_empty() {
            self.is_ready();
        }
    }

    /// Waits for its line for programs.
    pub fn is_ready(&mut self) {
        match self.lines.recv_timeout(READY_LIMIT) {
            Ok(line) => self.fields = fields(&line),
            Err(RecvTimeoutError::Timeout) => {
                self.kill9();
                panic!("not ready in time:\n{}", self.stderr());
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.wait_exit(EXIT_LIMIT);
                panic!("ended with {} before it was ready:\n{}", ended.code, ended.stderr);
            }
        }
    }

    /// Starts it and waits for nothing.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdout, lines) = collect(child.stdout.take().expect("stdout"));
        let (stderr, _) = collect(child.stderr.take().expect("stderr"));
        Self { child, fields: BTreeMap::new(), stdout, stderr, lines }
    }

    /// The next line for programs: one per joining.
    pub fn joined_again(&mut self, limit: Duration) {
        let line = self.lines.recv_timeout(limit);
        self.fields = fields(&line.unwrap_or_else(|_| panic!("{}", self.stderr())));
    }

    /// A field of the line for programs.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.fields))
    }

    /// Rank number.
    pub fn rank(&self) -> u32 {
        self.field("rank").parse().expect("a number")
    }

    /// Control address.
    pub fn control(&self) -> &str {
        self.field("control")
    }

    /// HTTP address.
    pub fn http(&self) -> &str {
        self.field("http")
    }

    /// Data address.
    pub fn data(&self) -> &str {
        self.field("data")
    }

    /// Unix socket.
    pub fn unix(&self) -> &str {
        self.field("unix")
    }

    /// Name of the segment in shared memory.
    pub fn segment(&self) -> &str {
        self.field("segment")
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        // The child is not waited for yet, so the id is still its own, dead or not.
        let _ = kill_process(pid, signal);
    }

    /// SIGSTOP; returns once every thread is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = self.pid();
        assert!(holds_within(SIGNAL_LIMIT, || all_threads_stand(pid)), "process {pid} runs on");
    }

    /// SIGKILL, and waits for the end.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// True if it ends within the limit.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        holds_within(limit, || self.status().is_some())
    }

    /// True as long as it runs.
    pub fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child's status")
    }

    /// Waits for its end; kills it and panics if that takes longer than `limit`.
    pub fn wait_exit(&mut self, limit: Duration) -> Ended {
        if !self.ends_within(limit) {
            self.kill9();
            panic!("still running after {} ms:\n{}", limit.as_millis(), self.stderr());
        }
        let status = self.status().expect("ended");
        let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(-1);
        // The streams end with the process, and their threads soon after.
        holds_within(EXIT_LIMIT, || {
            matches!(self.lines.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected))
                && Arc::strong_count(&self.stderr.0) == 1
        });
        Ended { code, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Runs a command that is expected to end by itself.
pub fn run_to_end(command: Command, limit: Duration) -> Ended {
    Process::spawn(command).wait_exit(limit)
}

fn fields(line: &str) -> BTreeMap<String, String> {
    let words = line.trim_start_matches(READY).split_whitespace();
    let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
    words.filter_map(pair).collect()
}

/// True if no thread of a process runs: it was stopped.
pub fn all_threads_stand(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    tasks.filter_map(Result::ok).all(|t| {
        let stat = std::fs::read_to_string(t.path().join("stat")).unwrap_or_default();
        // pid (name) state ...; a name may hold anything but ends at the last parenthesis.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        state.is_none_or(|s| s == "T")
    })
}
