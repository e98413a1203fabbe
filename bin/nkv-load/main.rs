//! nkv-load: puts load on an nkv cluster, compares every byte that comes back, and tells how long
//! things took beside plain copies. This file only chooses the run and the exit status.

mod bench;
mod budgets;
mod connection;
mod content;
mod corrupt;
mod destination;
mod embedded;
mod flags;
mod html;
mod latency;
mod lookups;
mod memcpy;
mod mix;
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

use clap::Parser;
use destination::Destination;
use flags::{Flags, Mode};
use nkv::StartError;
use report::Report;
use setting::Beginning;
use std::io::IsTerminal;
use std::process::ExitCode;
use stop::Stop;
use tracing_subscriber::EnvFilter;

/// Exit status of a run with wrong bytes or failures, and of one that could not be done.
const FAILED: u8 = 1;
/// Exit status of a wrong command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let mode = match flags.mode() {
        Ok(mode) => mode,
        Err(text) => {
            eprintln!("nkv-load: {text}");
            return ExitCode::from(USAGE);
        }
    };
    match run(&flags, mode) {
        Ok(report) if report.tally.is_clean() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => {
            eprintln!("nkv-load: {error:#}");
            let start = error.downcast_ref::<StartError>();
            ExitCode::from(start.map_or(FAILED, StartError::exit_code))
        }
    }
}

fn run(flags: &Flags, mode: Mode) -> anyhow::Result<Report> {
    let page = flags.report.as_deref().map(Destination::reserve).transpose()?;
    let beginning = Beginning::now();
    let rt = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stop = Stop::default();
    rt.block_on(async { stop.on_signals() })?;
    let report = match mode {
        Mode::Embedded => embedded::run(flags, &rt, &stop)?,
        Mode::Mix => mix::run(flags, &stop)?,
        Mode::Trace => trace::run(flags, &rt, &stop)?,
        Mode::Bench => bench::run(flags, &rt, &stop)?,
        Mode::Budgets => budgets::run(flags, &stop)?,
        Mode::Lookups => lookups::run(flags, &stop)?,
        Mode::Pour => pour::run(flags, &stop)?,
    };
    report.print(flags.json.as_deref())?;
    if let Some(page) = page {
        page.write(&html::page(&report, &beginning.setting(flags, mode)))?;
    }
    Ok(report)
}
