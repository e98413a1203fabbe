//! The process that is killed: this test's own binary, started again. It writes objects page by
//! page, slowly, so that it spends most of its time between open and READY, and prints each step on
//! stdout before the next one: its last line shows where it was killed. It ends when stdin ends.

use crate::content;
use crate::past_the_handle::own_verbs;
use crate::random::Random;
use nkv::message::{ObjMeta, PlanDesc};
use nkv::{Address, Blocking, ClientConfig, Error, PutOptions, Result, TransportChoice};
use nkv_pace::Stopwatch;
use nkv_store::layout::PUBLISH_OFF;
use nkv_store::object::{ready, writing};
use nkv_store::threads::spawn_named;
use nkv_transport::verbs::{Op, Verbs};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Largest object, and its pages; of a hundred objects so many are of one large page, so that a
/// kill can fall into the middle of its bytes.
const MAX_BYTES: u64 = 512 << 10;
const PAGE_BYTES: u32 = 32 << 10;
const LARGE_PAGE_BYTES: u32 = 4 << 20;
const LARGE_PERCENT: u64 = 20;
/// Writing one object takes about so long, spread over its pages.
const WRITE_MS: (u64, u64) = (20, 70);
/// Pause after a failed call.
const LOST_PAUSE: Duration = Duration::from_millis(20);
/// Sizes of objects put through a log, and the pause before each: a log sustains a quarter of its
/// bytes per quarantine.
const LOG_BYTES: (u64, u64) = (4 << 20, 8 << 20);
const LOG_PAUSE: Duration = Duration::from_millis(30);
/// Longest pause between READY and commit, if the producer sets READY itself.
const READY_MS: u64 = 20;

/// A producer's task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Any node of the cluster.
    pub node: Address,
    /// The job.
    pub job: String,
    /// How its bytes travel.
    pub transport: TransportChoice,
    /// Seed of its choices.
    pub seed: u64,
    /// Prefix of its keys.
    pub name: String,
    /// Ranks of the cluster.
    pub ranks: u32,
    /// Of a hundred objects so many are put through a log.
    pub log_percent: u64,
    /// True: it continues after a failed call, because a rank is going to be killed; else it ends.
    pub goes_on: bool,
}

impl Task {
    /// The text for the variable.
    pub fn to_text(&self) -> String {
        let Self { node, job, transport, seed, name, ranks, log_percent, goes_on } = self;
        format!("{node} {job} {transport} {seed} {name} {ranks} {log_percent} {goes_on}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut next = || fields.next();
        Some(Self {
            node: next()?.parse().ok()?,
            job: next()?.to_string(),
            transport: next()?.parse().ok()?,
            seed: next()?.parse().ok()?,
            name: next()?.to_string(),
            ranks: next()?.parse().ok()?,
            log_percent: next()?.parse().ok()?,
            goes_on: next()?.parse().ok()?,
        })
    }
}

/// Key of a producer's object.
pub fn key(name: &str, number: u64) -> Vec<u8> {
    format!("{name}/{number}").into_bytes()
}

/// Works until stdin ends.
pub fn main(task: &str) -> ExitCode {
    let Some(task) = Task::parse(task) else {
        eprintln!("not a task: {task}");
        return ExitCode::FAILURE;
    };
    match work(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            print_line(&format!("failed {} {e}", e.kind()));
            ExitCode::FAILURE
        }
    }
}

/// One line, one write: a reader of the pipe sees it whole or not at all.
fn print_line(line: &str) {
    let text = format!("{line}\n");
    // If the parent no longer reads, stdin has ended too.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// A location as a field of a line, which the parent parses.
fn shown_meta(meta: &ObjMeta) -> Result<String> {
    serde_json::to_string(meta).map_err(|e| Error::internal(e.to_string()))
}

fn work(task: &Task) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = stop.clone();
    spawn_named("chaos-stdin", move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        stopper.store(true, Ordering::Release);
    })?;
    let transport = task.transport;
    let config = ClientConfig { job: task.job.clone(), transport, ..ClientConfig::default() };
    let mut producer = Producer {
        client: Blocking::connect(&task.node, config)?,
        task: task.clone(),
        random: Random::new(task.seed, 0),
        own: HashMap::new(),
    };
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let watch = Stopwatch::start();
        match producer.produce(number) {
            Err(e) if task.goes_on => {
                print_line(&format!("lost {number} {} {} {e}", watch.took().to_line(), e.kind()));
                std::thread::sleep(LOST_PAUSE);
            }
            other => other?,
        }
    }
    producer.client.close();
    print_line("ended");
    Ok(())
}

struct Producer {
    client: Blocking,
    task: Task,
    random: Random,
    // Verbs that bypass the handle, like a kernel or NIC of the writer, by incarnation.
    own: HashMap<u64, Box<dyn Verbs>>,
}

impl Producer {
    fn produce(&mut self, number: u64) -> Result<()> {
        if self.random.percent(self.task.log_percent) {
            return self.put_into_log(number);
        }
        let key = key(&self.task.name, number);
        let (max, page_bytes) = match self.random.percent(LARGE_PERCENT) {
            true => (u64::from(LARGE_PAGE_BYTES), LARGE_PAGE_BYTES),
            false => (MAX_BYTES, PAGE_BYTES),
        };
        let len = self.random.between(1, max);
        let preferred = self.random.below(self.task.ranks.into()) as u32;
        let opts = PutOptions::default().preferred_rank(preferred).page_bytes(page_bytes);
        let value = content::bytes(&key, number, len as usize);

        let watch = Stopwatch::start();
        let plan = self.client.open_for_write(&key, len, &opts)?;
        let took = watch.took().to_line();
        let desc = plan.desc().ok_or_else(|| Error::internal("a plan that is over at once"))?;
        let meta = shown_meta(&desc.meta)?;
        print_line(&format!("open {number} {len} {took} {meta}"));

        let mut pages: Vec<(u32, &[u8])> = (0..).zip(value.chunks(page_bytes as usize)).collect();
        self.random.shuffle(&mut pages);
        let pause_us = self.random.between(WRITE_MS.0, WRITE_MS.1) * 1_000 / pages.len() as u64;
        for (index, page) in pages {
            std::thread::sleep(Duration::from_micros(pause_us));
            plan.write_page(index, page)?;
        }
        if self.random.percent(50)
            && let Some(desc) = plan.desc().cloned()
        {
            self.flip(&desc)?;
            print_line(&format!("ready {number}"));
            std::thread::sleep(Duration::from_millis(self.random.below(READY_MS)));
        } else {
            print_line(&format!("publishing {number}"));
        }
        let watch = Stopwatch::start();
        self.client.publish(plan).inspect_err(|_| {
            print_line(&format!("unpublished {number} {}", watch.took().to_line()));
        })?;
        print_line(&format!("committed {number} {}", watch.took().to_line()));
        Ok(())
    }

    /// One call without a message. The object is large, so that a kill can fall between its claim
    /// and READY. If the log is full the put takes a plan, and later laps of the log may overwrite
    /// it.
    fn put_into_log(&mut self, number: u64) -> Result<()> {
        let key = key(&self.task.name, number);
        let len = self.random.between(LOG_BYTES.0, LOG_BYTES.1);
        let rank = self.random.below(self.task.ranks.into()) as u32;
        let opts =
            PutOptions::default().preferred_rank(rank).page_bytes(PAGE_BYTES).device_alloc(true);
        let value = content::bytes(&key, number, len as usize);
        std::thread::sleep(LOG_PAUSE);
        print_line(&format!("putting {number} {len} {rank}"));
        let watch = Stopwatch::start();
        self.client.put(&key, &value, &opts)?;
        let took = watch.took().to_line();
        match self.client.get_location(&key) {
            Ok(at) => {
                let meta = shown_meta(&at.into_memory().expect("no node has a disk"))?;
                print_line(&format!("put {number} {took} {meta}"));
            }
            Err(e) => print_line(&format!("unlocated {number} {took} {}", e.kind())),
        }
        Ok(())
    }

    /// Sets READY without the handle: `publish` then finds it set and only commits.
    fn flip(&mut self, desc: &PlanDesc) -> Result<()> {
        let (at, offset) = (desc.meta.at, desc.meta.header_off + PUBLISH_OFF);
        let verbs = match self.own.entry(at.incarnation) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => e.insert(own_verbs(
                &self.client,
                &self.task.job,
                self.task.transport,
                at.incarnation,
            )?),
        };
        let (expect, new) = (writing(at.epoch), ready(at.epoch));
        let mut ops = [Op::Flush, Op::CompareSwap { offset, expect, new, old: 0 }];
        verbs.post(desc.token, &mut ops)?;
        match ops {
            [_, Op::CompareSwap { old, .. }] if old == expect => Ok(()),
            other => Err(Error::internal(format!("READY of {at:?} was not flipped: {other:?}"))),
        }
    }
}
