//! nkv-load: puts load on an nkv cluster, compares every byte that it reads, and reports times
//! beside those of plain copies. This file only chooses the run and the exit status.

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
mod report;
mod round_trips;
mod setting;
mod status;
mod stop;
mod stopwatch;
mod tally;
mod timeline;
mod trace;

use clap::{CommandFactory, FromArgMatches};
use destination::Destination;
use flags::{Flags, Mode};
use nkv_programs::logging::LogFormat;
use nkv_programs::{endpoints, exit, logging, open_files, packaging, streams, variables};
use report::Report;
use setting::Setting;
use status::ended;
use std::io::Write;
use std::process::ExitCode;
use stop::Stop;
use stopwatch::now_ns;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Files of a run: an embedded cluster of three ranks takes some 120.
const FILES: u64 = 192;
/// Files of each client of a mix: its runtime and its connections.
const FILES_PER_CLIENT: u64 = 16;

fn main() -> ExitCode {
    let command = packaging::with_plain_usage(Flags::command());
    let read = command.try_get_matches().and_then(|found| Flags::from_arg_matches(&found));
    let flags = match read {
        Ok(flags) => flags,
        Err(error) => return ExitCode::from(streams::print("nkv-load", &error)),
    };
    match flags.packaging.print(Flags::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(e) => return fail(LogFormat::Text, exit::LOCAL, &format!("stdout: {e}")),
    }
    let filter = match filter() {
        Ok(filter) => filter,
        Err(why) => return fail(LogFormat::Text, exit::USAGE, &why),
    };
    logging::start(filter, flags.log_format);
    for line in variables::unknown_here() {
        tracing::warn!("{line}");
    }
    let mode = match endpoints::check_port().and_then(|_| flags.mode()) {
        Ok(mode) => mode,
        Err(why) => return fail(flags.log_format, exit::USAGE, &why),
    };
    let mut report = Report::default();
    let done = run(&flags, mode, &mut report);
    // Wrong bytes decide the status whatever else failed; failures decide it only if some operation
    // succeeded.
    let decided = report.tally.wrong_bytes > 0 || report.did_something();
    let status = match &done {
        _ if decided && !report.tally.is_clean() => exit::ABSENT,
        Ok(()) => exit::DONE,
        Err(error) => status::of(error),
    };
    match done {
        Ok(()) => ExitCode::from(status),
        Err(error) => fail(flags.log_format, status, &text(&error)),
    }
}

/// The error with its causes; an error of the library names its own.
fn text(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    let own = error.chain().position(|cause| cause.is::<nkv::Error>());
    causes.take(own.map_or(usize::MAX, |own| own + 1)).collect::<Vec<_>>().join(": ")
}

/// The filter of log lines.
fn filter() -> Result<EnvFilter, String> {
    let filter = std::env::var_os("RUST_LOG").filter(|filter| !filter.is_empty());
    let Some(filter) = filter else { return Ok(EnvFilter::new("warn")) };
    let filter = filter.to_string_lossy();
    EnvFilter::try_new(&*filter)
        .map_err(|e: ParseError| format!("RUST_LOG \"{}\": {e}", filter.escape_debug()))
}

/// Prints why the run failed, in the form of the log, and returns the status.
fn fail(format: LogFormat, status: u8, why: &str) -> ExitCode {
    match format {
        LogFormat::Text => {
            // A closed stderr changes nothing about the outcome.
            let _ = writeln!(std::io::stderr(), "nkv-load: {why}");
        }
        LogFormat::Json => tracing::error!(exit_status = status, "{why}"),
    }
    ExitCode::from(status)
}

/// `--budgets` adds its rows to `report` as it measures them, also if it fails later; the other
/// runs return a report at their end.
fn run(flags: &Flags, mode: Mode, report: &mut Report) -> anyhow::Result<()> {
    streams::check_stdout()?;
    open_files::raise(FILES + FILES_PER_CLIENT * u64::from(flags.clients))
        .map_err(|why| ended(exit::LOCAL, why))?;
    let reserve = |path: &std::path::PathBuf, option| Destination::reserve(option, path);
    let page = flags.report.as_ref().map(|path| reserve(path, "--report")).transpose()?;
    let to_stdout = flags.json.as_deref() == Some("-".as_ref());
    let json = flags.json.as_ref().filter(|_| !to_stdout);
    let json = json.map(|path| reserve(path, "--json")).transpose()?;
    let (setting, start_ns) = (Setting::of(flags, mode), now_ns());
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
        Mode::RoundTrips => round_trips::run(flags, &stop).map(|r| *report = r),
        Mode::Pour => pour::run(flags, &stop).map(|r| *report = r),
        Mode::Serve => return trace::serve(flags.serve.as_deref().unwrap_or_default(), &rt),
    };
    if done.is_err() {
        report.tally.lines().iter().for_each(|line| eprintln!("nkv-load: {line}"));
        return done;
    }
    report.print(to_stdout)?;
    if let Some(json) = json {
        json.write(&(report.json()? + "\n"))?;
    }
    if let Some(page) = page {
        let wall_ns = now_ns().saturating_sub(start_ns);
        page.write(&html::page(report, &setting, wall_ns)?)?;
    }
    if !report.did_something() && !stop.asked() {
        let failed = report.tally.failed;
        return Err(ended(
            exit::UNREACHED,
            match failed {
                0 => {
                    "the run ended before the first operation: give a longer --duration".to_string()
                }
                _ => format!("not one operation succeeded; {failed} failed"),
            },
        ));
    }
    Ok(())
}
