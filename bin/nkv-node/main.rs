//! nkv-node: one rank of a cluster in a process of its own. It turns flags, variables, a file and
//! what a launcher exports into one configuration, runs a node with it, shows it over HTTP and ends
//! it when a signal asks. What a node is and does is the library's business.

mod flags;
mod http;
mod launcher;
mod metrics;
#[path = "../packaging.rs"]
mod packaging;
mod ready;
mod run;
mod settings;
mod signals;
#[path = "../sizes.rs"]
mod sizes;
mod start_lines;

use nkv::transport::wire::auth::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use settings::{Machine, Settings};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Exit code for what should not happen.
const EXIT_INTERNAL: u8 = 70;
/// How long tasks that are still running may take to end with the process.
const RUNTIME_END: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(said) => {
            // A closed stdout or stderr changes nothing about the outcome.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(settings::EXIT_CONFIG));
        }
    };
    match flags.packaging.print(flags::command()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return fail(EXIT_INTERNAL, &format!("stdout: {error}")),
    }
    let env: launcher::Env = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    // Dropped above without a word, which a secret must not be.
    for secret in [SECRET_VARIABLE, SECRET_FILE_VARIABLE] {
        if std::env::var_os(secret).is_some() && !env.contains_key(secret) {
            let why = format!("{secret} is no text: put the secret into a file for --secret-file");
            return fail(settings::EXIT_CONFIG, &why);
        }
    }
    let settings = match settings::resolve(&flags, &env, Machine::measure()) {
        Ok(settings) => settings,
        Err(error) => return fail(error.exit_code(), &error),
    };
    if flags.print_config {
        let _ = write!(std::io::stdout(), "{}", start_lines::configuration(&settings.lines));
        return ExitCode::SUCCESS;
    }
    serve(settings)
}

fn serve(settings: Settings) -> ExitCode {
    let filter = match EnvFilter::try_new(&settings.log) {
        Ok(filter) => filter,
        Err(error) => {
            let why = format!("--log \"{}\": {error}", settings.log.escape_debug());
            return fail(settings::EXIT_CONFIG, &why);
        }
    };
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    lines.with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.threads)
        .thread_name("nkv-worker")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_INTERNAL, &format!("no runtime: {error}")),
    };
    let outcome = runtime.block_on(run::run(settings));
    runtime.shutdown_timeout(RUNTIME_END);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(end) => fail(end.code, &end.why),
    }
}

/// One clear sentence, and the exit code that goes with it.
fn fail(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    say(&format!("nkv-node: {why}"));
    ExitCode::from(code)
}

/// A line to stderr; one that nobody reads any more is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
