//! `--trace`: replays the prefix-cache requests of a trace over a cluster, its own or a running
//! one. It reports hits and times, and also the nodes' own counters, so that the result can be
//! checked against a computation from the trace alone.

mod file;
mod generated;
mod kept;
mod ranks;
mod replay;
mod room;

use crate::connection::{heap_takes, remote, with_embedded};
use crate::flags::{Flags, LoadDurability, LoadSsdPolicy, TraceSource};
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, now_ns};
use anyhow::{Context, bail};
use file::Request;
use nkv::message::ClusterStats;
use nkv::{Blocking, NodeConfig};
use nkv_actors::tier::{Durability, SsdConfig, SsdPolicy};
use nkv_programs::progress;
use nkv_programs::sizes::show_bytes;
use nkv_ssd::directory::DESCRIPTION;
use ranks::Ranks;
pub(crate) use ranks::serve;
use replay::Replay;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Ranks of the embedded cluster.
const RANKS: u32 = 3;
/// How long to wait for the nodes' counters to show the reads that were done.
const COUNTERS_WAIT: Duration = Duration::from_secs(3);
/// Pause between two reads of the nodes' counters.
const COUNTERS_PAUSE: Duration = Duration::from_millis(50);

/// Replays the trace that the flags name.
///
/// # Errors
/// If the trace cannot be read, or no cluster can be started or reached.
pub(crate) fn run(flags: &Flags, rt: &Runtime, stop: &Stop) -> anyhow::Result<Report> {
    let source = flags.trace.as_ref().context("a replay needs --trace")?;
    let mut requests = match source {
        TraceSource::File(path) => file::load(path, flags.requests.unwrap_or(usize::MAX))?,
        TraceSource::Generated(workload) => generated::requests(workload),
    };
    requests.truncate(flags.requests.unwrap_or(usize::MAX));
    if requests.is_empty() {
        bail!("{source} holds no request");
    }
    if flags.connect.is_some() {
        return replay(flags, &requests, &remote(flags)?, stop);
    }
    let heap_bytes = match (flags.heap_bytes, flags.heap_percent) {
        (Some(bytes), _) => bytes,
        (None, Some(part)) => room::part(&requests, flags.block_bytes, RANKS, part),
        (None, None) => room::per_rank(&requests, flags.block_bytes, RANKS)?,
    };
    let config = NodeConfig {
        heap_bytes,
        log_bytes: flags.log_bytes,
        quarantine_ms: flags.quarantine_ms,
        watermarks: flags.watermarks,
        policy: flags.policy,
        ssd: ssd(flags, &requests)?,
        ..NodeConfig::default()
    };
    eprintln!(
        "nkv-load: {RANKS} embedded ranks of {} ({heap_bytes} bytes) each, with a log of {}",
        show_bytes(heap_bytes),
        show_bytes(config.parts().1)
    );
    if let Some(at) = flags.restart_at {
        return restarted(flags, &requests, (config, at), stop);
    }
    let mut report = with_embedded(rt, RANKS, config, |cluster| {
        let handle = cluster.client().blocking()?;
        let report = replay(flags, &requests, &handle, stop);
        handle.close();
        kept::print_tiers(cluster);
        report
    })?;
    report.facts.extend([
        ("ranks", format!("{RANKS}, embedded in the generator's process")),
        ("heap of a rank", format!("{} ({heap_bytes} bytes)", show_bytes(heap_bytes))),
    ]);
    Ok(report)
}

/// The SSD tier that the flags ask for.
fn ssd(flags: &Flags, requests: &[Request]) -> anyhow::Result<Option<SsdConfig>> {
    let Some(dir) = &flags.ssd_dir else { return Ok(None) };
    let of_ranks = |rank| dir.join(format!("rank-{rank}")).join(DESCRIPTION);
    if (0..RANKS).any(|rank| of_ranks(rank).exists()) {
        let dir = dir.display();
        bail!("{dir} has blocks of an earlier run, which would count as hits: name an empty one");
    }
    let room = || room::on_disk(requests, flags.block_bytes, RANKS);
    Ok(Some(SsdConfig {
        policy: match flags.ssd_policy {
            LoadSsdPolicy::EvictOnly => SsdPolicy::EvictOnly,
            LoadSsdPolicy::WriteThrough => SsdPolicy::WriteThrough,
        },
        durability: match flags.ssd_durability {
            LoadDurability::BestEffort => Durability::BestEffort,
            LoadDurability::Persistent => Durability::Persistent,
        },
        ..SsdConfig::new(dir, flags.ssd_bytes.unwrap_or_else(room))
    }))
}

/// Replays over ranks that are killed, all at once, and started again after `at` requests.
fn restarted(
    flags: &Flags,
    requests: &[Request],
    (config, at): (NodeConfig, usize),
    stop: &Stop,
) -> anyhow::Result<Report> {
    let block_bytes = usize::try_from(flags.block_bytes).context("--block-bytes")?;
    let config = NodeConfig { job: format!("nkv-load-{}", std::process::id()), ..config };
    let (before, after) = requests.split_at(at.min(requests.len()));
    let bar = progress::bar(requests.len() as u64, "requests");
    let start = now_ns();
    let (mut replay, mut killed_ns) = (Replay::new(block_bytes), 0);
    replay.remember_puts();
    for (requests, ends) in [(before, true), (after, false)] {
        let began = now_ns();
        let ranks = Ranks::start(&config, RANKS)?;
        heap_takes(&ranks.handle.membership()?, flags, (flags.block_bytes, "--block-bytes"))?;
        if !ends {
            let ms = now_ns().saturating_sub(began) / 1_000_000;
            eprintln!("nkv-load: {RANKS} ranks killed and started again in {ms} ms");
            replay.print_lost(&ranks.handle, killed_ns)?;
        }
        for request in requests {
            wait_until_due(request.timestamp_ms, flags.speed, start, stop);
            if stop.asked() {
                break;
            }
            replay.request(&ranks.handle, &request.hash_ids);
            bar.inc(1);
        }
        let (hits, blocks) = replay.so_far();
        eprintln!("nkv-load: {hits} of {blocks} blocks hit so far");
        if ends {
            killed_ns = now_ns();
            ranks.kill();
        } else {
            ranks.stop();
        }
    }
    bar.finish_and_clear();
    let report = replay.into_report();
    kept::print_bound(&requests[..report.requests as usize]);
    Ok(report)
}

fn replay(
    flags: &Flags,
    requests: &[Request],
    handle: &Blocking,
    stop: &Stop,
) -> anyhow::Result<Report> {
    let block_bytes = usize::try_from(flags.block_bytes).context("--block-bytes")?;
    heap_takes(&handle.membership()?, flags, (flags.block_bytes, "--block-bytes"))?;
    let before = handle.stats()?;
    let bar = progress::bar(requests.len() as u64, "requests");
    let start = now_ns();
    let mut replay = Replay::new(block_bytes);
    for request in requests {
        wait_until_due(request.timestamp_ms, flags.speed, start, stop);
        if stop.asked() {
            break;
        }
        replay.request(handle, &request.hash_ids);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let reads = replay.gets.count();
    let report = replay.into_report();
    kept::print_bound(&requests[..report.requests as usize]);
    kept::print_calls(handle);
    match nodes_after(handle, &before, reads) {
        Ok(after) => kept::print(&before, &after),
        Err(error) => eprintln!("nkv-load: no figures of the nodes: {error}"),
    }
    Ok(report)
}

/// Waits until the request is due by the trace's timestamps, scaled by `speed`; at speed 0 not at
/// all.
fn wait_until_due(timestamp_ms: f64, speed: f64, start_ns: u64, stop: &Stop) {
    if speed > 0.0 {
        let due = Duration::try_from_secs_f64(timestamp_ms / speed / 1000.0).unwrap_or_default();
        let passed = Duration::from_nanos(now_ns().saturating_sub(start_ns));
        Deadline::after(due.saturating_sub(passed)).sleep(stop);
    }
}

/// The nodes' figures once they show `reads` more gets than `before`, or after a bounded wait.
fn nodes_after(handle: &Blocking, before: &ClusterStats, reads: u64) -> nkv::Result<ClusterStats> {
    handle.flush()?;
    let deadline = Deadline::after(COUNTERS_WAIT);
    loop {
        let after = handle.stats()?;
        if gets(&after).saturating_sub(gets(before)) >= reads || deadline.passed() {
            return Ok(after);
        }
        Deadline::after(COUNTERS_PAUSE).sleep(&Stop::default());
    }
}

fn gets(stats: &ClusterStats) -> u64 {
    stats.ranks.iter().map(|r| r.owner.gets_served).sum()
}
