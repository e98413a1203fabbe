//! nkv: looks at a running cluster and moves single values in and out of it, for people and for
//! scripts. It owns no memory and holds nothing open after its one command.

mod cli_error;
mod doctor;
mod evict;
mod flags;
mod keys;
mod listing;
mod node_reports;
mod objects;
mod output;
mod remove;
mod retry_policy;
mod segments;
mod stats;
mod status;
mod top;
mod transfer;

use clap::{CommandFactory, FromArgMatches};
use cli_error::{CliError, CommandOutcome};
use flags::{Command, Flags};
use nkv::message::SegmentId;
use nkv::{Address, Blocking, ClientConfig, Secret};
use nkv_programs::endpoints::NoneServes;
use nkv_programs::{endpoints, exit, open_files, packaging, streams, variables};
use retry_policy::RetryPolicy;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let command = packaging::with_plain_usage(Flags::command());
    let read = command.try_get_matches().and_then(|found| Flags::from_arg_matches(&found));
    let flags = match read {
        Ok(flags) => flags,
        Err(printed) => return misread(&printed),
    };
    if !flags.json {
        for line in variables::unknown_here() {
            let _ = writeln!(std::io::stderr(), "nkv: {line}");
        }
    }
    match run(&flags) {
        Ok(answer) => ExitCode::from(answer.exit_code()),
        // The reader of the output closed the pipe: no failure.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let printed =
                if flags.json { error.json().to_string() } else { format!("nkv: {error}") };
            // A closed stderr changes nothing about the outcome.
            let _ = writeln!(std::io::stderr(), "{printed}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Help, the version, or what is wrong about the command line.
fn misread(printed: &clap::Error) -> ExitCode {
    let args = std::env::args_os().skip(1).take_while(|arg| arg != "--");
    if printed.use_stderr() && args.into_iter().any(|arg| arg == "--json") {
        let text = printed.render().to_string();
        let message = text.trim_end().trim_start_matches("error: ");
        let error = json!({ "error": { "kind": "InvalidArgument", "message": message } });
        let _ = writeln!(std::io::stderr(), "{error}");
        return ExitCode::from(u8::try_from(printed.exit_code()).unwrap_or(exit::USAGE));
    }
    ExitCode::from(streams::print("nkv", printed))
}

/// How to reach the cluster that the command line names.
struct Cluster<'a> {
    flags: &'a Flags,
    nodes: Vec<Address>,
    config: ClientConfig,
    retry: RetryPolicy,
    runtime: Runtime,
}

impl<'a> Cluster<'a> {
    fn of(flags: &'a Flags) -> Result<Self, CliError> {
        endpoints::check_port().map_err(CliError::Usage)?;
        let secret = Secret::find(flags.secret_file.as_deref());
        let option = if flags.secret_file.is_some() { "--secret-file: " } else { "" };
        flags.fabric.check(flags.transport).map_err(CliError::Usage)?;
        let config = ClientConfig {
            job: flags.job.clone(),
            transport: flags.transport,
            call_timeout_ms: flags.timeout_ms,
            fabric: flags.fabric.config(),
            secret: secret.map_err(|e| CliError::Usage(format!("{option}{e}")))?,
            // For one or two calls: faulting in every page would take longer than the calls.
            prefault: false,
            ..ClientConfig::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| CliError::io("a runtime", e))?;
        transfer::survive_file_limit(&runtime);
        Ok(Self {
            flags,
            nodes: flags.nodes(),
            config,
            retry: RetryPolicy::starting(flags.timeout_ms),
            runtime,
        })
    }

    fn connect(&self) -> Result<Blocking, CliError> {
        self.flags.fabric.find().map_err(CliError::Usage)?;
        let starting = |none: &NoneServes| none.all(retry_policy::is_starting);
        let connecting = || self.runtime.block_on(endpoints::connect(&self.nodes, &self.config));
        Ok(self.retry.retry(starting, connecting)?.blocking()?)
    }

    /// Runs a command and closes its handle, so that owners need not detect that it is gone.
    fn with(
        &self,
        work: impl FnOnce(&Blocking) -> Result<CommandOutcome, CliError>,
    ) -> Result<CommandOutcome, CliError> {
        let handle = self.connect()?;
        let outcome = work(&handle);
        handle.close();
        outcome
    }

    /// Prints the master's answer, or else each node's own report: within the limit of one call,
    /// however many nodes are asked.
    fn status(&self) -> Result<CommandOutcome, CliError> {
        self.flags.fabric.find().map_err(CliError::Usage)?;
        let json = self.flags.json;
        let starting = |failed: &node_reports::NoMaster| failed.is_starting();
        let asking = || self.runtime.block_on(node_reports::ask(&self.nodes, &self.config));
        match self.retry.retry(starting, asking) {
            Ok((view, stats)) => status::show(&view, &stats, json),
            Err(failed) => node_reports::show(failed, json),
        }
    }
}

/// Files that one command has open at once, at most.
const FILES: u64 = 32;

fn run(flags: &Flags) -> Result<CommandOutcome, CliError> {
    streams::check_stdout().map_err(|e| CliError::io("stdout", e))?;
    open_files::raise(FILES).map_err(CliError::Limit)?;
    match &flags.command {
        Command::Doctor => doctor::run(&flags.fabric.config(), flags.json),
        Command::Completions { shell } => {
            packaging::completions(Flags::command(), *shell)
                .map_err(|e| CliError::io("stdout", e))?;
            Ok(CommandOutcome::Found)
        }
        Command::Man { folder } => man(folder.as_deref()),
        _ => ask(flags, Cluster::of(flags)?),
    }
}

/// Runs the commands that need the cluster; [`run`] has done the others.
fn ask(flags: &Flags, cluster: Cluster<'_>) -> Result<CommandOutcome, CliError> {
    let (retry, json) = (&cluster.retry, flags.json);
    let key = |key| keys::parse(key, flags.literal_keys).map_err(CliError::Usage);
    let keys = |keys| keys::parse_all(keys, flags.literal_keys).map_err(CliError::Usage);
    match &flags.command {
        Command::Status => cluster.status(),
        Command::Stats => stats::show(&cluster.connect()?, json),
        Command::Top { interval, once } => {
            let top = top::Top { interval: *interval, once: *once, json };
            let Cluster { nodes, config, retry, runtime, .. } = cluster;
            top.run(runtime, nodes, config, &retry)
        }
        Command::Put { key: named, file, rank, page_bytes } => {
            let key = &key(named)?;
            let put =
                objects::Put { key, file: file.as_deref(), rank: *rank, page_bytes: *page_bytes };
            cluster.with(|handle| put.run(handle, retry, json))
        }
        Command::Get { key: named, output, force } => {
            let key = key(named)?;
            let to = objects::Output { file: output.as_deref(), force: *force };
            cluster.with(|handle| objects::get(handle, retry, &key, to, json))
        }
        Command::Rm { all: true, yes, .. } => {
            remove::all(&cluster.connect()?, retry, &flags.job, (*yes, json))
        }
        Command::Rm { matching: Some(pattern), .. } => {
            remove::matching(&cluster.connect()?, retry, pattern, json)
        }
        Command::Rm { keys: named, .. } => {
            let keys = keys(named)?;
            cluster.with(|handle| objects::rm(handle, &keys, json))
        }
        Command::Exists { keys: named } => {
            let keys = keys(named)?;
            cluster.with(|handle| objects::exists(handle, &keys, json))
        }
        Command::Ls { pattern, long, limit } => {
            let (pattern, limit) = (pattern.as_deref(), limit.map(|n| n as usize));
            let ls = listing::Ls { pattern, long: *long, limit, json };
            ls.run(&cluster.connect()?, retry)
        }
        Command::Evict { until_below, rank } => {
            evict::evict(&cluster.connect()?, retry, (*rank, *until_below), json)
        }
        Command::Mount { bytes, rank } => {
            segments::mount(&cluster.connect()?, retry, (*rank, *bytes), json)
        }
        Command::Unmount { segment, rank, wait_ms } => {
            let segment_id = SegmentId { rank: *rank, segment: *segment };
            segments::unmount(&cluster.connect()?, segment_id, *wait_ms, json)
        }
        Command::Doctor | Command::Completions { .. } | Command::Man { .. } => {
            Ok(CommandOutcome::Found)
        }
    }
}

/// One page to stdout, or one page per command into a folder.
fn man(folder: Option<&Path>) -> Result<CommandOutcome, CliError> {
    let keys: [(&str, &str); 1] = [("KEYS", keys::SYNTAX)];
    let Some(folder) = folder else {
        packaging::man(Flags::command(), &keys).map_err(|e| CliError::io("stdout", e))?;
        return Ok(CommandOutcome::Found);
    };
    let mut all = Flags::command().disable_help_subcommand(true);
    all.build();
    let pages = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for command in std::iter::once(&all).chain(all.get_subcommands()) {
            let file = folder.join(clap_mangen::Man::new(command.clone()).get_filename());
            std::fs::write(file, packaging::page(command.clone(), &keys)?)?;
        }
        Ok(())
    };
    pages().map_err(|e| CliError::io(folder.display().to_string(), e))?;
    Ok(CommandOutcome::Found)
}
