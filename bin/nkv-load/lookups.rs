//! `--lookups N`: N live objects of a few bytes, looked up in batches by one core: the key is
//! hashed, the bucket found and the header read inside the measurement. First keys that all exist,
//! in shuffled order, then as many that never existed.

use crate::connection::remote;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::report::{Rate, Report};
use crate::status::ended;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use anyhow::Context;
use nkv::{Blocking, Error, PutOptions};
use nkv_programs::exit;
use nkv_programs::progress;
use std::time::Duration;

const KEY_BYTES: usize = 32;
const VALUE: [u8; 8] = *b"nkv-load";
/// Keys of one lookup.
const BATCH: usize = 128;
/// Timed passes over all keys, after an untimed one.
const PASSES: usize = 3;
/// How long the owner may take to serve what was put.
const SERVED: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long removals are repeated that find nothing more: keys still missing then were evicted.
const VAIN: Duration = Duration::from_secs(1);
/// Puts between two checks of the stop flag.
const STEP: u32 = 4096;

type Name = [u8; KEY_BYTES];

/// Key number `index` of those that exist, or of those that do not.
fn name(run_id: u64, there: bool, index: u32) -> Name {
    let mut name = [b'.'; KEY_BYTES];
    name[..16].copy_from_slice(format!("{run_id:016x}").as_bytes());
    name[16] = if there { b'+' } else { b'-' };
    name[20..28].copy_from_slice(format!("{index:08}").as_bytes());
    name
}

/// Puts, waits until all are served, looks up, and removes.
///
/// # Errors
/// If the node cannot be reached or its log does not hold so many objects.
pub(crate) fn run(flags: &Flags, stop: &Stop) -> anyhow::Result<Report> {
    let count = flags.lookups.context("--lookups N")?;
    let handle = remote(flags)?;
    if !handle.membership()?.ranks.iter().any(|(info, _)| info.layout.log_slots > 0) {
        let mib = log_mib(count);
        let why =
            format!("no rank has a device log: start the node with --log-bytes {mib}MiB or more");
        return Err(ended(exit::NO_ROOM, why));
    }
    let run_id = nkv_store::random_u64();
    let done = measure(&handle, run_id, count, stop);
    // The keys are removed whatever the result.
    if let Err(error) = remove_all(&handle, run_id, count) {
        eprintln!(
            "nkv-load: {error}; nkv rm --matching '^{run_id:016x}' removes the rest of this run"
        );
    }
    handle.close();
    done
}

/// Removes through the master. Objects in a log are announced to it after their puts, so removals
/// are repeated while they still find more.
fn remove_all(handle: &Blocking, run_id: u64, count: u32) -> Result<(), Error> {
    handle.flush()?;
    let (mut left, mut vain) = (u64::from(count), Deadline::after(VAIN));
    while left > 0 && !vain.passed() {
        let removed = handle.remove_matching(&format!("^{run_id:016x}"))?;
        if !removed.is_nothing() {
            left = left.saturating_sub(removed.in_memory.max(removed.on_disk));
            vain = Deadline::after(VAIN);
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(())
}

fn measure(handle: &Blocking, run_id: u64, count: u32, stop: &Stop) -> anyhow::Result<Report> {
    let mut report = Report::default();
    put_all(handle, run_id, count, stop, &mut report);
    for (op, there) in [("lookup hit", true), ("lookup miss", false)] {
        let mut names: Vec<Name> = (0..count).map(|i| name(run_id, there, i)).collect();
        shuffle(&mut names);
        let keys: Vec<&[u8]> = names.iter().map(<[u8; KEY_BYTES]>::as_slice).collect();
        let found = if there {
            wait_served(handle, &keys, stop)?
        } else {
            look_up_all(handle, &keys, None)?
        };
        let expected = if there { keys.len() } else { 0 };
        // For one key in a thousand both buckets of the index may be full: then the lookup is no
        // hit.
        if found.abs_diff(expected) > keys.len() / 500 && !stop.asked() {
            let why = format!(
                "{found} of {count} objects are live where {expected} should be: an object takes 4 \
                 KiB of the log, and the owner keeps a quarter of it free: start the node with \
                 --log-bytes {}MiB or more",
                log_mib(count)
            );
            return Err(ended(exit::NO_ROOM, why));
        }
        let mut times = OpTimes::new(op, 0);
        for _ in 0..PASSES {
            if stop.asked() {
                break;
            }
            report.hit_blocks += look_up_all(handle, &keys, Some(&mut times))? as u64;
            report.blocks += keys.len() as u64;
        }
        report.rates.push(Rate { op: op.into(), processes: 1, per_s: times.per_s() });
        report.measured(times);
    }
    Ok(report)
}

/// MiB of a log of which three quarters hold `count` objects, with some spare.
fn log_mib(count: u32) -> u64 {
    (u64::from(count) * 4 * 4 / 3).div_ceil(1024) + 256
}

fn put_all(handle: &Blocking, run_id: u64, count: u32, stop: &Stop, report: &mut Report) {
    let opts = PutOptions::default().device_alloc(true);
    let bar = progress::bar(u64::from(count), "objects");
    for index in 0..count {
        if index % STEP == 0 {
            bar.set_position(u64::from(index));
            if stop.asked() {
                break;
            }
        }
        let key = name(run_id, true, index);
        if let Err(error) = handle.put(&key, &VALUE, &opts) {
            report.tally.failed("put", &key, &error);
        }
    }
    bar.finish_and_clear();
}

/// Waits until the owner serves all keys, or their number no longer grows: it serves what it has
/// accepted. Returns that number.
fn wait_served(handle: &Blocking, keys: &[&[u8]], stop: &Stop) -> Result<usize, Error> {
    let deadline = Deadline::after(SERVED);
    let mut found = look_up_all(handle, keys, None)?;
    while found < keys.len() && !deadline.passed() && !stop.asked() {
        Deadline::after(POLL_INTERVAL).sleep(stop);
        let now = look_up_all(handle, keys, None)?;
        if now <= found {
            break;
        }
        found = now;
    }
    Ok(found)
}

/// Looks all keys up once; returns how many were found.
fn look_up_all(
    handle: &Blocking,
    keys: &[&[u8]],
    mut times: Option<&mut OpTimes>,
) -> Result<usize, Error> {
    let (mut there, mut total) = ([false; BATCH], 0);
    for keys in keys.chunks(BATCH) {
        let there = &mut there[..keys.len()];
        let (outcome, ns) = timed(|| handle.lookup_mapped(keys, there));
        outcome?;
        if let Some(times) = &mut times {
            times.record_batch(ns, keys.len() as u64);
        }
        total += there.iter().filter(|there| **there).count();
    }
    Ok(total)
}

/// The headers lie in the order of the puts: in another order each lookup is a cache miss.
fn shuffle(names: &mut [Name]) {
    for last in (1..names.len()).rev() {
        let other = (nkv_store::random_u64() % (last as u64 + 1)) as usize;
        names.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::{log_mib, name, shuffle};
    use std::collections::BTreeSet;

    #[test]
    fn three_quarters_of_the_log_hold_all_objects() {
        assert_eq!(log_mib(1_000_000), 5465);
        assert!([1, 1000, 1_000_000].iter().all(|n| log_mib(*n) * 768 >= u64::from(*n) * 4));
    }

    #[test]
    fn names_differ_and_a_shuffle_loses_none() {
        let all = |there| (0..1000).map(move |i| name(7, there, i));
        let mut names: Vec<_> = all(true).chain(all(false)).collect();
        let before: BTreeSet<_> = names.iter().copied().collect();
        assert_eq!(before.len(), 2000);
        let ordered = names.clone();
        shuffle(&mut names);
        assert!(names != ordered && before == names.into_iter().collect());
    }
}
