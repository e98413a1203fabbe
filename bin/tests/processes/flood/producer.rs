//! One of the flooding processes: this test's own binary, started again. It puts its numbers one
//! after the other through the log, looks up at once each object that was put by a plan, and prints
//! those numbers.

use super::ids::{VALUE_BYTES, fill, key};
use crate::cluster_process::by_devices;
use crate::task::Kind;
use nkv::{Address, Blocking, ClientConfig, Error, PutOptions, Result, TransportChoice};
use nkv_store::threads::spawn_named;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Child, ExitCode, Stdio};
use std::thread::JoinHandle;

/// What a producer is sent.
pub struct Task {
    /// The node.
    pub node: Address,
    /// The job.
    pub job: String,
    /// Its first number.
    pub first: u64,
    /// How many it puts.
    pub count: u64,
}

/// Puts them all.
pub fn main(task: &str) -> ExitCode {
    match parse(task).ok_or_else(|| Error::invalid("not a task")).and_then(|task| flood(&task)) {
        Ok(by_plan) => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            for id in by_plan {
                // If the parent is gone, its own failure shows that.
                let _ = writeln!(out, "{id}");
            }
            let _ = writeln!(out, "ended");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{task}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(text: &str) -> Option<Task> {
    let mut fields = text.split(' ');
    let mut next = || fields.next();
    Some(Task {
        node: next()?.parse().ok()?,
        job: next()?.to_string(),
        first: next()?.parse().ok()?,
        count: next()?.parse().ok()?,
    })
}

fn flood(task: &Task) -> Result<Vec<u64>> {
    // Shared memory; if devices execute claims, they are made by loopback. One of two producers
    // uses devices alone.
    let transport = match by_devices() && task.first > 0 {
        true => TransportChoice::Rdma,
        false => TransportChoice::Shm,
    };
    let config = ClientConfig { job: task.job.clone(), transport, ..ClientConfig::default() };
    let client = Blocking::connect(&task.node, config)?;
    let opts =
        PutOptions::default().preferred_rank(0).page_bytes(VALUE_BYTES as u32).device_alloc(true);
    let (mut value, mut found) = ([0; VALUE_BYTES], [0; VALUE_BYTES]);
    let mut by_plan = Vec::new();
    for id in task.first..task.first + task.count {
        fill(id, &mut value);
        client.put(&key(id), &value, &opts)?;
        if client.client().write_counters().by_plan > by_plan.len() as u64 {
            by_plan.push(id);
            let n = client.get_into(&key(id), &mut found)?;
            if n != VALUE_BYTES || found != value {
                return Err(Error::internal(format!("{id}, put by a plan, has other bytes")));
            }
        }
    }
    client.close();
    Ok(by_plan)
}

/// The parent's end of a producer. The process never outlives it.
pub struct Flood {
    child: Child,
    reports: Option<JoinHandle<(Vec<u64>, bool)>>,
}

impl Flood {
    /// Starts it.
    pub fn start(task: &Task) -> Self {
        let Task { node, job, first, count } = task;
        let mut child = crate::task::command(Kind::Flood, format!("{node} {job} {first} {count}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reports = spawn_named("flood-told", move || {
            let (mut by_plan, mut ended) = (Vec::new(), false);
            for line in lines.map_while(std::io::Result::ok) {
                match line.parse() {
                    Ok(id) => by_plan.push(id),
                    Err(_) => ended = line == "ended",
                }
            }
            (by_plan, ended)
        });
        Self { child, reports: Some(reports.unwrap()) }
    }

    /// False once it has printed everything.
    pub fn runs(&self) -> bool {
        self.reports.as_ref().is_some_and(|reports| !reports.is_finished())
    }

    /// The numbers that it put by plans.
    pub fn end(mut self) -> Vec<u64> {
        let (by_plan, ended) = self.reports.take().unwrap().join().unwrap();
        assert!(ended, "a producer did not put all it was told to");
        assert!(self.child.wait().unwrap().success());
        by_plan
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
