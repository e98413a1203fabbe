//! nkv-node: one rank of a cluster in a process of its own. It merges flags, variables, a file and
//! the launcher's variables into one configuration, runs a node with it, shows its state over HTTP
//! and ends it on a signal. The library implements the node.

mod flags;
mod http;
mod metrics;
mod ready;
mod run;
mod signals;
mod start_lines;

use nkv_programs::logging::LogFormat;
use nkv_programs::settings::{self, Machine, Settings};
use nkv_programs::{exit, launcher, logging, open_files, streams};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// How long tasks that are still running may take to end with the process.
const RUNTIME_END: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // The first call fixes the start time.
    metrics::started();
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => return ExitCode::from(streams::print("nkv-node", &error)),
    };
    match flags.packaging.print(flags::with_choices) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return fail(exit::LOCAL, &format!("stdout: {error}")),
    }
    let resolved = launcher::environment()
        .and_then(|env| settings::resolve(&flags.given(), &env, Machine::measure()));
    let settings = match resolved {
        Ok(settings) => settings,
        Err(error) => return fail(exit::USAGE, &error),
    };
    if flags.print_config {
        let text = start_lines::configuration(&settings.lines);
        return match streams::write(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(exit::LOCAL, &format!("stdout: {error}")),
        };
    }
    serve(settings)
}

fn serve(settings: Settings) -> ExitCode {
    let filter = match EnvFilter::try_new(&settings.log) {
        Ok(filter) => filter,
        Err(error) => {
            let why = format!("--log \"{}\": {error}", settings.log.escape_debug());
            return fail(exit::USAGE, &why);
        }
    };
    let format = settings.log_format;
    logging::start(filter, format);
    match open_files::raise(open_files::of_rank(settings.node.world_size)) {
        Ok(limit) => check_open_files(limit, &settings),
        Err(why) => return end(format, exit::LOCAL, &why),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.threads)
        .thread_name("nkv-worker")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return end(format, exit::LOCAL, &format!("no runtime: {error}")),
    };
    let outcome = runtime.block_on(run::run(settings));
    runtime.shutdown_timeout(RUNTIME_END);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => end(format, why.code, &why.why),
    }
}

/// Warns early: later, each connection beyond the limit is refused.
fn check_open_files(limit: u64, settings: &Settings) {
    let wanted =
        open_files::of_rank(settings.node.world_size) + settings.node.data_connections as u64;
    if limit < wanted {
        tracing::warn!(
            limit,
            wanted,
            "the limit of open files is below what --data-connections and the ranks may take: some \
             connections will be refused; raise the hard limit (ulimit -n), or give fewer"
        );
    }
}

/// Logs why a rank that had started ends.
fn end(format: LogFormat, code: u8, why: &str) -> ExitCode {
    match format {
        LogFormat::Text => fail(code, &why),
        LogFormat::Json => {
            tracing::error!(exit_status = code, "{why}");
            ExitCode::from(code)
        }
    }
}

/// Prints one sentence and returns the exit code.
fn fail(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    // A closed stderr is ignored.
    let _ = writeln!(std::io::stderr(), "nkv-node: {why}");
    ExitCode::from(code)
}
