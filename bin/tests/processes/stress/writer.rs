//! A writing process: it puts, by log and by plan, removes and reads its own keys. No other process
//! writes them, so it knows what each read may return: this version, or nothing.

use super::call_log::CallLog;
use super::process::{Stopped, Task};
use super::values::{self, KEYS};
use crate::random::Random;
use nkv::{Blocking, ErrorKind, PutOptions, Result};

/// Of a hundred puts so many ask for a log.
const LOG_PERCENT: u64 = 60;
const PAGE_BYTES: u32 = 32 << 10;

/// One key of this process.
#[derive(Clone, Copy)]
struct Own {
    number: u64,
    version: Option<u64>,
    // It was put before, so it is removed before it is put again: it may have been evicted.
    put: bool,
}

struct Writer {
    client: Blocking,
    task: Task,
    random: Random,
    own: Vec<Own>,
    next: u64,
    call_log: CallLog,
}

/// Works until it is asked to stop; then reads all its keys once more.
pub fn run(client: Blocking, task: Task, stopped: &Stopped) -> Result<()> {
    let own = (0..KEYS).map(|number| Own { number, version: None, put: false }).collect();
    let random = Random::new(task.seed, 0);
    let mut writer = Writer { client, task, random, own, next: KEYS, call_log: CallLog::default() };
    while !stopped.is() {
        let at = writer.random.below(KEYS) as usize;
        match writer.random.below(10) {
            0..=4 => writer.write(at),
            5 => drop(writer.remove(at)),
            _ => writer.read(at),
        }
    }
    (0..KEYS as usize).for_each(|at| writer.read(at));
    writer.call_log.print_sums();
    writer.client.close();
    Ok(())
}

impl Writer {
    fn key(&self, at: usize) -> Vec<u8> {
        values::key(self.task.number, self.task.generation, self.own[at].number)
    }

    /// Stops using a key: a call failed and it is unknown whether it took effect.
    fn leave(&mut self, at: usize) {
        self.own[at] = Own { number: self.next, version: None, put: false };
        self.next += 1;
    }

    fn write(&mut self, at: usize) {
        if self.own[at].put && !self.remove(at) {
            return;
        }
        let (key, version) = (self.key(at), self.random.next());
        let by_log = self.random.percent(LOG_PERCENT);
        let rank = self.random.percent(60).then(|| self.random.below(self.task.ranks) as u32);
        let opts =
            PutOptions::default().preferred_rank(rank).page_bytes(PAGE_BYTES).device_alloc(by_log);
        let verb = if by_log { "put_log" } else { "put_plan" };
        match self.client.put(&key, &values::value(&key, version), &opts) {
            Ok(()) => {
                (self.own[at].version, self.own[at].put) = (Some(version), true);
                self.call_log.count(verb, "Ok");
            }
            Err(e) => {
                self.call_log.failed(verb, &key, &e);
                self.leave(at);
            }
        }
    }

    /// True if the key is certainly absent.
    fn remove(&mut self, at: usize) -> bool {
        let key = self.key(at);
        match self.client.remove(&key) {
            Ok(()) => self.call_log.count("remove", "Ok"),
            Err(e) => {
                self.call_log.failed("remove", &key, &e);
                // It was evicted; or the rank that knows is not there, and its state is unknown.
                if e.kind() != ErrorKind::NotFound {
                    self.leave(at);
                    return false;
                }
            }
        }
        (self.own[at].version, self.own[at].put) = (None, false);
        if let Ok(got) = self.client.get(&key) {
            let version = values::version(&key, &got);
            let shown = String::from_utf8_lossy(&key).into_owned();
            self.call_log.fault(&format!("{shown} was removed and is read: {version:?}"));
        }
        true
    }

    fn read(&mut self, at: usize) {
        let key = self.key(at);
        match self.client.get(&key) {
            Ok(got) => {
                let (read, put) = (values::version(&key, &got), self.own[at].version);
                if read.as_ref().ok() != put.as_ref() {
                    let shown = String::from_utf8_lossy(&key).into_owned();
                    self.call_log.fault(&format!("{shown} is {put:?} and read as {read:?}"));
                }
                self.call_log.count("get_own", "Ok");
            }
            Err(e) => {
                if e.kind() == ErrorKind::NotFound {
                    self.own[at].version = None;
                }
                self.call_log.failed("get_own", &key, &e);
            }
        }
    }
}
