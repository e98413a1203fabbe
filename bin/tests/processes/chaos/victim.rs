//! The parent's end of a producer process: starts it, keeps its journal, kills it. The process
//! never outlives this handle.

use super::board::{Fate, SharedState, Stored};
use super::producer::{Task, key};
use crate::cluster_process::until;
use crate::task::Kind;
use nkv::message::ObjMeta;
use nkv_pace::Took;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limit of a producer to finish its object and close its handle when asked to end.
const END_LIMIT_MS: u64 = nkv_pace::HANGS_MS;
/// A signal has its effect within this.
const SIGNAL_LIMIT: Duration = nkv_pace::HANGS;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time of a call for which none was printed.
const NEVER: Took = Took { ms: u64::MAX, percent: 100, spare_ms: 0 };
/// Errors of a producer's call that a killed rank may cause.
const EXCUSED: [&str; 4] = ["Disconnected", "Timeout", "NotReady", "Reclaimed"];

/// State of an object by its producer's last line about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Between open and READY.
    Open,
    /// In the middle of a put through the log of that rank, which is one call.
    Putting(u32),
    /// READY may be set, and the object may even be committed.
    Publishing,
    /// READY is set; not known to be committed.
    Ready,
    /// Committed.
    Committed,
    /// It was put, and its location is not known: a log may have evicted it.
    Unlocated,
    /// One of its calls failed, and its producer continued.
    Lost,
}

/// One object of a producer.
#[derive(Debug, Clone)]
pub struct Written {
    /// Its number, which is its version too.
    pub number: u64,
    /// Its bytes.
    pub len: usize,
    /// Its location.
    pub meta: Option<ObjMeta>,
    /// Its state.
    pub phase: Phase,
}

/// What a producer printed.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    /// Its objects, in order.
    pub objects: Vec<Written>,
    /// Calls that failed, by kind.
    pub lost: BTreeMap<String, u64>,
    /// True if it ended when asked.
    pub ended: bool,
}

/// See the file's first paragraph.
pub struct ProducerProcess {
    /// Its task.
    pub task: Task,
    child: Child,
    journal: Arc<Mutex<Journal>>,
    reader: Option<JoinHandle<()>>,
}

impl ProducerProcess {
    /// Starts it. Its committed objects go on the board, its calls into the board's records.
    pub fn start(task: Task, board: &Arc<SharedState>) -> Self {
        let mut child = crate::task::command(Kind::Chaos, task.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let journal = Arc::new(Mutex::new(Journal::default()));
        let (board, name, shared) = (board.clone(), task.name.clone(), journal.clone());
        let reader = spawn_named("chaos-journal", move || {
            for line in lines.map_while(Result::ok) {
                note(&line, &name, &shared, &board);
            }
        });
        Self { task, child, journal, reader: Some(reader.unwrap()) }
    }

    /// Its journal so far.
    pub fn journal(&self) -> Journal {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last state of its last object.
    pub fn last(&self) -> Option<Written> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).objects.last().cloned()
    }

    /// SIGSTOP; no thread of it runs any more when this returns.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        until(SIGNAL_LIMIT, "the producer stands", || all_threads_stand(self.child.id()));
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it with SIGKILL; returns its whole journal.
    pub fn kill(&mut self) -> Journal {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.journal_to_the_end()
    }

    /// Asks it to end; returns its whole journal.
    pub fn end(&mut self) -> Journal {
        drop(self.child.stdin.take());
        let until = BootClock.now_ms() + END_LIMIT_MS;
        while self.child.try_wait().unwrap().is_none() {
            assert!(
                BootClock.now_ms() < until,
                "{} does not end: {:?}",
                self.task.name,
                self.journal()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        self.journal_to_the_end()
    }

    fn journal_to_the_end(&mut self) -> Journal {
        // The pipe ends with the process, and the reader with the pipe.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.journal()
    }
}

impl Drop for ProducerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all_threads_stand(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(Result::ok).all(|t| {
        let stat = std::fs::read_to_string(t.path().join("stat")).unwrap_or_default();
        // pid (name) state ...; a name may hold anything but ends at the last parenthesis.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        state.is_none_or(|s| s == "T")
    })
}

fn note(line: &str, name: &str, journal: &Mutex<Journal>, board: &SharedState) {
    let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
    let fields: Vec<&str> = line.split(' ').collect();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    let took = |i: usize| fields.get(i).and_then(|f| f.parse::<Took>().ok());
    let meta = |i: usize| fields.get(i).map(|f| serde_json::from_str(f).expect("an ObjMeta"));
    match (fields[0], field(1), field(2), took(2)) {
        ("open", Some(number), Some(len), _) => {
            let (len, phase) = (len as usize, Phase::Open);
            journal.objects.push(Written { number, len, meta: meta(4), phase });
            board.calls.ended("open", "Ok", line, took(3).unwrap_or(NEVER));
        }
        ("publishing", Some(_), None, None) => set(&mut journal, Phase::Publishing),
        ("ready", Some(_), None, None) => set(&mut journal, Phase::Ready),
        ("committed", Some(_), _, Some(took)) => {
            set(&mut journal, Phase::Committed);
            board.calls.ended("publish", "Ok", line, took);
            if let Some(w) = journal.objects.last() {
                board.add(stored(name, w, board));
            }
        }
        ("unpublished", Some(_), _, Some(took)) => {
            board.calls.ended("publish", "Err", line, took);
        }
        ("putting", Some(number), Some(len), _) => {
            let phase = Phase::Putting(field(3).unwrap_or_default() as u32);
            journal.objects.push(Written { number, len: len as usize, meta: None, phase });
        }
        ("put", Some(_), _, Some(took)) => {
            board.calls.ended("put into a log", "Ok", line, took);
            set(&mut journal, Phase::Committed);
            if let Some(w) = journal.objects.last_mut() {
                w.meta = meta(3);
                board.add(stored(name, w, board));
            }
        }
        ("unlocated", Some(_), _, Some(took)) => {
            board.calls.ended("put into a log", "Ok", line, took);
            set(&mut journal, Phase::Unlocated);
            if let Some(w) = journal.objects.last() {
                board.add_unsure(stored(name, w, board), Fate::Either);
            }
        }
        // Its other calls write pages: they need only the owner.
        ("lost", Some(number), _, Some(took)) => lost(line, (number, took), &mut journal, board),
        ("ended", None, None, None) => journal.ended = true,
        // None of its calls may fail where no rank dies.
        _ => board.calls.fault(format!("producer {name}: {line}")),
    }
}

/// A call failed because of the killed rank, and the producer continues. Its last object is whole
/// or absent whatever the error: it may have set READY itself.
fn lost(line: &str, (number, took): (u64, Took), journal: &mut Journal, board: &SharedState) {
    let kind = line.split(' ').nth(3).unwrap_or_default();
    *journal.lost.entry(kind.to_string()).or_default() += 1;
    if board.doomed().is_none() || !EXCUSED.contains(&kind) {
        board.calls.fault(format!("a producer, with {:?} doomed: {line}", board.doomed()));
    }
    match journal.objects.last_mut().filter(|w| w.number == number) {
        Some(w) => w.phase = Phase::Lost,
        // No plan was granted: the open was its only call.
        None => board.calls.ended("open", kind, line, took),
    }
}

/// An object as the journal describes it.
pub fn stored(name: &str, w: &Written, board: &SharedState) -> Stored {
    let (key, version) = (key(name, w.number), w.number);
    let mark = w.meta.as_ref().and_then(|meta| board.logs.mark_of(meta));
    Stored { key, version, len: w.len, meta: w.meta.clone(), mark }
}

fn set(journal: &mut Journal, phase: Phase) {
    if let Some(w) = journal.objects.last_mut() {
        w.phase = phase;
    }
}
