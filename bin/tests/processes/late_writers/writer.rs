//! The parent's end of a writer process: sends it one step at a time, stops it and resumes it. The
//! process never outlives this handle, stopped or not.

use crate::cluster_process::{ProcessCluster, all_threads_stand, until};
use crate::task::Kind;
use nkv::TransportChoice;
use nkv::message::PlanDesc;
use nkv_store::threads::spawn_named;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Limit of a step of a running writer.
pub const STEP_LIMIT: Duration = nkv_pace::HANGS;
/// A signal takes effect within this.
const SIGNAL_LIMIT: Duration = nkv_pace::HANGS;

/// How a step ended: what it answered, or the kind and text of its error.
pub type Answer = Result<String, String>;

/// See the file's first paragraph.
pub struct Writer {
    child: Child,
    answers: Receiver<String>,
}

impl Writer {
    /// Starts it; it is connected when this returns.
    pub fn start(cluster: &ProcessCluster, transport: TransportChoice) -> Self {
        let task = format!("{} {} {transport}", cluster.address(0), cluster.job());
        let mut child = crate::task::command(Kind::LateWriter, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a writer process");
        let lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let (tx, answers) = sync_channel(16);
        spawn_named("writer-answers", move || {
            for line in lines.map_while(Result::ok) {
                let _ = tx.try_send(line);
            }
        })
        .expect("a thread");
        let writer = Self { child, answers };
        writer.answer().expect("a connected writer");
        writer
    }

    /// Sends it a step without waiting.
    pub fn send(&mut self, step: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin");
        writeln!(stdin, "{step}").and_then(|()| stdin.flush()).expect("a pipe to the writer");
    }

    /// The answer to the oldest step that is not answered yet.
    pub fn answer(&self) -> Answer {
        let line = self.answers.recv_timeout(STEP_LIMIT);
        let line = line.unwrap_or_else(|_| panic!("no answer within {STEP_LIMIT:?}"));
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", text) => Ok(text.to_string()),
            (_, text) => Err(text.to_string()),
        }
    }

    /// One step and its answer.
    pub fn step(&mut self, step: &str) -> Answer {
        self.send(step);
        self.answer()
    }

    /// Opens a plan for `bytes` bytes in pages of `page` bytes in the heap of `rank`.
    pub fn open(
        &mut self,
        key: &str,
        (bytes, page): (u64, u64),
        rank: u32,
        version: u64,
    ) -> PlanDesc {
        let text = self.step(&format!("open {key} {bytes} {page} {rank} {version}"));
        serde_json::from_str(&text.expect("a plan")).expect("a plan in JSON")
    }

    /// SIGSTOP; it runs no instruction any more when this returns.
    pub fn stop(&self) {
        stop(self.child.id());
    }

    /// SIGCONT.
    pub fn resume(&self) {
        signal(self.child.id(), Signal::CONT);
    }

    /// SIGKILL; it is dead when this returns.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a child that was not waited for.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("a signal to a child");
}

/// SIGSTOP; returns once every thread is stopped.
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    until(SIGNAL_LIMIT, "the process stands", || all_threads_stand(pid));
}
