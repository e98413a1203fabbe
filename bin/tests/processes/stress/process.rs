//! A stressed process: this test's own binary, started again as a writer or a reader. The parent's
//! end collects its output and kills it; the process never outlives the parent's end, and ends when
//! its stdin ends.

use super::call_log::{self, Sums, print_line};
use super::{reader, writer};
use crate::task::Kind;
use nkv::{Address, Blocking, ClientConfig, Error, Result, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writers of a run.
pub const WRITERS: u64 = 4;
/// A process ends within this when asked to.
const END_MS: u64 = nkv_pace::HANGS_MS;
/// Connecting is retried for this long: a rank may be dead at that time.
const CONNECT_MS: u64 = nkv_pace::HANGS_MS;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process's task.
#[derive(Debug, Clone)]
pub struct Task {
    /// A node that lives throughout.
    pub node: Address,
    /// The job.
    pub job: String,
    /// How its bytes travel.
    pub transport: TransportChoice,
    /// True for a writer, else it is a reader.
    pub writes: bool,
    /// Which of the writers, or of the readers.
    pub number: u64,
    /// Grows with every restart; part of its keys.
    pub generation: u64,
    /// Seed of its choices.
    pub seed: u64,
    /// Ranks of the cluster.
    pub ranks: u64,
}

impl Task {
    fn to_text(&self) -> String {
        let Self { node, job, transport, writes, number, generation, seed, ranks } = self;
        format!("{node} {job} {transport} {writes} {number} {generation} {seed} {ranks}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut next = || fields.next();
        Some(Self {
            node: next()?.parse().ok()?,
            job: next()?.to_string(),
            transport: next()?.parse().ok()?,
            writes: next()?.parse().ok()?,
            number: next()?.parse().ok()?,
            generation: next()?.parse().ok()?,
            seed: next()?.parse().ok()?,
            ranks: next()?.parse().ok()?,
        })
    }
}

/// Set when stdin ends.
#[derive(Clone, Default)]
pub struct Stopped(Arc<AtomicBool>);

impl Stopped {
    /// True once stdin has ended.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Works until stdin ends. Lines on stdin give the present generation of each writer.
pub fn main(text: &str) -> ExitCode {
    let Some(task) = Task::parse(text) else {
        eprintln!("not a task: {text}");
        return ExitCode::FAILURE;
    };
    match work(task) {
        Ok(()) => {
            print_line("ended");
            ExitCode::SUCCESS
        }
        Err(e) => {
            print_line(&format!("fault it ended with {e}"));
            ExitCode::FAILURE
        }
    }
}

fn work(task: Task) -> Result<()> {
    let stopped = Stopped::default();
    let generations: Arc<Vec<AtomicU64>> =
        Arc::new((0..WRITERS).map(|_| AtomicU64::new(0)).collect());
    let (stopper, shared_report) = (stopped.clone(), generations.clone());
    spawn_named("stress-stdin", move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            let mut words = line.split(' ').filter_map(|w| w.parse::<u64>().ok());
            if let (Some(writer), Some(generation)) = (words.next(), words.next())
                && let Some(known) = shared_report.get(writer as usize)
            {
                known.store(generation, Ordering::Relaxed);
            }
        }
        stopper.0.store(true, Ordering::Release);
    })?;
    let client = connect(&task)?;
    if task.writes {
        writer::run(client, task, &stopped)
    } else {
        reader::run(client, &task, generations, &stopped)
    }
}

fn connect(task: &Task) -> Result<Blocking> {
    let until = BootClock.now_ms() + CONNECT_MS;
    loop {
        let config = ClientConfig {
            job: task.job.clone(),
            transport: task.transport,
            ..ClientConfig::default()
        };
        match Blocking::connect(&task.node, config) {
            Err(e) if BootClock.now_ms() >= until => {
                return Err(Error::internal(format!("no connection for {CONNECT_MS} ms: {e}")));
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
            done => return done,
        }
    }
}

/// What a process printed.
#[derive(Debug, Clone, Default)]
struct Reported {
    sums: Sums,
    faults: Vec<String>,
    ended: bool,
    last_ms: u64,
}

/// The parent's end.
pub struct Stressed {
    /// Its task.
    pub task: Task,
    child: Child,
    stdin: Option<ChildStdin>,
    shared_report: Arc<Mutex<Reported>>,
    reader: Option<JoinHandle<()>>,
}

impl Stressed {
    /// Starts it.
    pub fn start(task: Task) -> Self {
        let mut child = crate::task::command(Kind::Stress, task.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let shared_report =
            Arc::new(Mutex::new(Reported { last_ms: BootClock.now_ms(), ..Reported::default() }));
        let shared = shared_report.clone();
        let reader = spawn_named("stress-told", move || {
            for line in lines.map_while(std::io::Result::ok) {
                let mut shared_report = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared_report.last_ms = BootClock.now_ms();
                match line.split_once(' ') {
                    Some(("sums", rest)) => shared_report.sums = call_log::parse(rest),
                    _ if line == "ended" => shared_report.ended = true,
                    _ => shared_report.faults.push(line),
                }
            }
        });
        Self { task, child, stdin, shared_report, reader: Some(reader.unwrap()) }
    }

    fn reported(&self) -> Reported {
        self.shared_report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends it the present generation of a writer.
    pub fn announce_generation(&mut self, writer: u64, generation: u64) {
        if let Some(stdin) = &mut self.stdin {
            // A process that is dead already is detected elsewhere.
            let _ = writeln!(stdin, "{writer} {generation}");
        }
    }

    /// Milliseconds since its last line.
    pub fn silent_ms(&self) -> u64 {
        BootClock.now_ms().saturating_sub(self.reported().last_ms)
    }

    /// SIGKILL; returns its sums and faults.
    pub fn kill(mut self) -> (Sums, Vec<String>) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let shared_report = self.read_to_the_end();
        (shared_report.sums, shared_report.faults)
    }

    /// Asks it to end; returns its sums and faults.
    pub fn end(mut self) -> (Sums, Vec<String>) {
        drop(self.stdin.take());
        let until = BootClock.now_ms() + END_MS;
        while self.child.try_wait().unwrap().is_none() {
            assert!(
                BootClock.now_ms() < until,
                "{:?} does not end: {:?}",
                self.task,
                self.reported()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        let mut shared_report = self.read_to_the_end();
        if !shared_report.ended {
            shared_report.faults.push(format!("{:?} ended before it was told to", self.task));
        }
        (shared_report.sums, shared_report.faults)
    }

    fn read_to_the_end(&mut self) -> Reported {
        // The pipe ends with the process, and the reader with the pipe.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.reported()
    }
}

impl Drop for Stressed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
