//! `--connect`: clients that call put, get and exists on running nodes in given proportions for a
//! given time. Others may use the cluster at the same time: a run uses its own keys and a part of
//! the memory, and removes its objects.

mod client;

use crate::connection::{heap_takes, part_for, remote};
use crate::flags::Flags;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, now_ns};
use anyhow::Context;
use client::{Client, Outcome, Plan};
use nkv_programs::progress;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The part of all payload memory that the objects of a run may take: one in this many bytes.
const MEMORY_SHARE: u64 = 4;
/// Most objects that one client keeps alive.
const MAX_OBJECTS: u64 = 1024;
/// Most bytes that one client keeps alive; the plain copies take as many again.
const MAX_BYTES: u64 = 256 << 20;
/// Pause between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(100);

/// Runs the clients.
///
/// # Errors
/// If the cluster cannot be reached, or a client's thread cannot be started.
pub(crate) fn run(flags: &Flags, stop: &Stop) -> anyhow::Result<Report> {
    let handles = (0..flags.clients).map(|_| remote(flags)).collect::<anyhow::Result<Vec<_>>>()?;
    let view = handles.first().context("--clients is at least 1")?.membership()?;
    heap_takes(&view, flags, (flags.size, "--size"))?;
    let memory: u64 = view.ranks.iter().map(|(info, _)| part_for(info, flags, flags.size)).sum();
    let objects = objects_per_client(memory, u64::from(flags.clients), flags.size);
    let plan = Plan {
        flags: flags.clone(),
        run_id: nkv_store::random_u64(),
        objects,
        deadline: Deadline::after(flags.run_length()),
        stop: stop.clone(),
        done: Arc::new(AtomicU64::new(0)),
    };
    let start = now_ns();
    let threads = handles
        .into_iter()
        .enumerate()
        .map(|(index, handle)| {
            let client = Client::new(plan.clone(), index, handle);
            nkv_store::threads::spawn_named(&format!("nkv-mix-{index}"), move || client.run())
        })
        .collect::<Result<Vec<_>, _>>()?;
    show_progress(&plan, &threads);
    let (ended, panicked): (Vec<_>, Vec<_>) =
        threads.into_iter().map(JoinHandle::join).partition(Result::is_ok);
    let outcomes = ended.into_iter().flatten();
    let mut report = report(outcomes, now_ns().saturating_sub(start));
    report.tally.failed_elsewhere("clients (their threads panicked)", panicked.len() as u64);
    Ok(report)
}

/// Objects that each client keeps: a part of the memory there is, at least one.
fn objects_per_client(memory: u64, clients: u64, size: u64) -> usize {
    let bytes = (memory / MEMORY_SHARE / clients.max(1)).min(MAX_BYTES);
    (bytes / size.max(1)).clamp(1, MAX_OBJECTS) as usize
}

fn show_progress(plan: &Plan, threads: &[JoinHandle<Outcome>]) {
    let bar = progress::time(plan.deadline.length_ms());
    // Ends when the clients end; each of them checks the deadline and the stop flag.
    while threads.iter().any(|t| !t.is_finished()) {
        bar.set_position(plan.deadline.elapsed_ms());
        bar.set_message(format!("{} operations", plan.done.load(Ordering::Relaxed)));
        Deadline::after(TICK).sleep(&Stop::default());
    }
    bar.finish_and_clear();
}

fn report(outcomes: impl Iterator<Item = Outcome>, wall_ns: u64) -> Report {
    let all = outcomes.reduce(|mut all, outcome| {
        all.merge(outcome);
        all
    });
    let Outcome { puts, gets, exists, removes, asked, longest_ns, tally } =
        all.unwrap_or_else(|| Outcome::new(0));
    let (hit_blocks, longest_call_ns) = (gets.count(), Some(longest_ns));
    let mut report =
        Report { blocks: asked, hit_blocks, tally, longest_call_ns, ..Report::default() };
    [puts, gets, exists, removes].into_iter().for_each(|times| report.measured(times));
    let requests = report.requests;
    eprintln!(
        "nkv-load: {requests} operations in {:.1} s ({:.0} a second), {} of {} gets missed",
        wall_ns as f64 / 1e9,
        requests as f64 / (wall_ns.max(1) as f64 / 1e9),
        report.blocks - report.hit_blocks,
        report.blocks
    );
    report
}

#[cfg(test)]
mod tests {
    use super::objects_per_client;

    #[test]
    fn clients_share_a_part_of_the_memory_and_have_one_object_at_least() {
        assert_eq!(objects_per_client(192 << 20, 4, 64 << 10), 192);
        assert_eq!(objects_per_client(192 << 20, 4, 64 << 20), 1);
        assert_eq!(objects_per_client(192 << 30, 1, 4096), 1024);
        assert_eq!(objects_per_client(192 << 30, 1, 16 << 20), 16);
    }
}
