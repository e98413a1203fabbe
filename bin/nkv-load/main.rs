//! nkv-load: puts load on an nkv cluster, compares every byte that comes back, and tells how long
//! things took beside plain copies. This file only chooses the run and the exit status.

mod bench;
mod budgets;
mod connection;
mod content;
mod corrupt;
mod destination;
mod embedded;
#[path = "../endpoints.rs"]
#[expect(dead_code, reason = "what only a program that need not be told where the cluster is uses")]
mod endpoints;
#[path = "../fabric.rs"]
mod fabric;
mod flags;
mod html;
mod latency;
#[path = "../logging.rs"]
mod logging;
mod lookups;
mod memcpy;
mod mix;
#[path = "../open_files.rs"]
mod open_files;
#[path = "../packaging.rs"]
mod packaging;
mod pour;
mod progress;
mod report;
mod setting;
#[path = "../sizes.rs"]
mod sizes;
mod stop;
mod stopwatch;
mod tally;
mod timeline;
mod trace;

use anyhow::bail;
use clap::{CommandFactory, Parser};
use destination::Destination;
use flags::{Flags, Mode};
use nkv::StartError;
use report::Report;
use setting::Beginning;
use std::process::ExitCode;
use stop::Stop;
use tracing_subscriber::EnvFilter;

/// Files of a run: an embedded cluster of three ranks takes some 120.
const FILES: u64 = 192;
/// Files of each client of a mix: its runtime and its connections.
const FILES_PER_CLIENT: u64 = 16;
/// Exit status of a run with wrong bytes or failures.
const FAILED: u8 = 1;
/// Exit status of a wrong command line.
const USAGE: u8 = 2;
/// Exit status of a run that did not come to its end; nothing that it reported was wrong.
const UNDONE: u8 = 3;

fn main() -> ExitCode {
    let flags = Flags::parse();
    match flags.packaging.print(Flags::command()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::from(UNDONE),
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    logging::start(filter, flags.log_format);
    let mode = match flags.mode() {
        Ok(mode) => mode,
        Err(text) => {
            eprintln!("nkv-load: {text}");
            return ExitCode::from(USAGE);
        }
    };
    let mut report = Report::default();
    let done = run(&flags, mode, &mut report);
    if let Err(error) = &done {
        eprintln!("nkv-load: {error:#}");
    }
    match done {
        // Whatever else went wrong.
        _ if !report.tally.is_clean() => ExitCode::from(FAILED),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let start = error.downcast_ref::<StartError>();
            ExitCode::from(start.map_or(UNDONE, StartError::exit_code))
        }
    }
}

/// `--budgets` keeps in `report` what it found also where it does not come to its end; the others
/// report at their end.
fn run(flags: &Flags, mode: Mode, report: &mut Report) -> anyhow::Result<()> {
    open_files::raise(FILES + FILES_PER_CLIENT * u64::from(flags.clients))
        .map_err(anyhow::Error::msg)?;
    let page = flags.report.as_deref().map(Destination::reserve).transpose()?;
    let beginning = Beginning::now();
    let rt = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stop = Stop::default();
    rt.block_on(async { stop.on_signals() })?;
    let done = match mode {
        Mode::Embedded => embedded::run(flags, &rt, &stop).map(|r| *report = r),
        Mode::Mix => mix::run(flags, &stop).map(|r| *report = r),
        Mode::Trace => trace::run(flags, &rt, &stop).map(|r| *report = r),
        Mode::Bench => bench::run(flags, &rt, &stop).map(|r| *report = r),
        Mode::Budgets => budgets::run(flags, &stop, report),
        Mode::Lookups => lookups::run(flags, &stop).map(|r| *report = r),
        Mode::Pour => pour::run(flags, &stop).map(|r| *report = r),
    };
    if done.is_err() {
        report.tally.lines().iter().for_each(|line| eprintln!("nkv-load: {line}"));
        return done;
    }
    report.print(flags.json.as_deref())?;
    if let Some(page) = page {
        page.write(&html::page(report, &beginning.setting(flags, mode)))?;
    }
    if report.ops.is_empty() && report.rates.is_empty() && !stop.asked() {
        let failed = report.tally.failed;
        anyhow::ensure!(failed == 0, "not one operation succeeded; {failed} failed");
        bail!("the time was over before the first operation: give a longer --duration");
    }
    Ok(())
}
