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
mod replicate;
mod retry_policy;
mod save;
mod segments;
mod signals;
mod ssd;
mod stats;
mod status;
mod top;
mod transfer;

use clap::{CommandFactory, FromArgMatches};
use cli_error::CliError;
use flags::{Command, Flags};
use nkv::{Address, Blocking, Client, ClientConfig, Secret};
use nkv_programs::endpoints::NoneServes;
use nkv_programs::{endpoints, exit, open_files, packaging, streams, variables};
use retry_policy::RetryPolicy;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
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
        Ok(status) => ExitCode::from(status),
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
        let error = CliError::usage(text.trim_end().trim_start_matches("error: ")).json();
        let _ = writeln!(std::io::stderr(), "{error}");
        return ExitCode::from(u8::try_from(printed.exit_code()).unwrap_or(exit::USAGE));
    }
    ExitCode::from(streams::print("nkv", printed))
}

/// The cluster that the command line names, how to reach it, and how to print.
struct Cluster<'a> {
    flags: &'a Flags,
    nodes: Vec<Address>,
    config: ClientConfig,
    retry: RetryPolicy,
    runtime: Runtime,
}

/// A command's handle; it is closed at the end, so that owners need not detect that it is gone.
struct Handle(Blocking);

impl std::ops::Deref for Handle {
    type Target = Blocking;

    fn deref(&self) -> &Blocking {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<'a> Cluster<'a> {
    fn of(flags: &'a Flags) -> Result<Self, CliError> {
        endpoints::check_port().map_err(CliError::usage)?;
        let secret = Secret::find(flags.secret_file.as_deref());
        let option = if flags.secret_file.is_some() { "--secret-file: " } else { "" };
        flags.fabric.check(flags.transport).map_err(CliError::usage)?;
        let config = ClientConfig {
            job: flags.job.clone(),
            transport: flags.transport,
            call_timeout_ms: flags.timeout_ms,
            fabric: flags.fabric.config(),
            secret: secret.map_err(|e| CliError::usage(format!("{option}{e}")))?,
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

    fn client(&self) -> Result<Client, NoneServes> {
        let starting = |none: &NoneServes| none.all(retry_policy::is_starting);
        let connecting = || self.runtime.block_on(endpoints::connect(&self.nodes, &self.config));
        self.retry.retry(starting, connecting)
    }

    fn connect(&self) -> Result<Handle, CliError> {
        self.flags.fabric.find().map_err(CliError::usage)?;
        Ok(Handle(self.client()?.blocking()?))
    }

    /// The key that an argument names.
    fn key(&self, argument: &OsStr) -> Result<Vec<u8>, CliError> {
        keys::parse(argument, self.flags.literal_keys).map_err(CliError::usage)
    }

    /// The keys that arguments name.
    fn keys(&self, arguments: &[OsString]) -> Result<Vec<Vec<u8>>, CliError> {
        arguments.iter().map(|argument| self.key(argument)).collect()
    }

    /// Prints what a command found or did.
    fn show(&self, object: &impl Serialize, text: impl FnOnce() -> String) -> Result<u8, CliError> {
        output::show(self.flags.json, object, text)
    }
}

/// Files that one command has open at once, at most.
const FILES: u64 = 32;

/// Runs the command; returns the process's exit status.
fn run(flags: &Flags) -> Result<u8, CliError> {
    streams::check_stdout().map_err(|e| CliError::io("stdout", e))?;
    open_files::raise(FILES).map_err(CliError::Limit)?;
    let cluster = || Cluster::of(flags);
    match &flags.command {
        Command::Doctor { ssd_dir } => {
            doctor::run(&flags.fabric.config(), ssd_dir.as_deref(), flags.json)
        }
        Command::Completions { shell } => packaging::completions(Flags::command(), *shell)
            .map(|()| exit::DONE)
            .map_err(|e| CliError::io("stdout", e)),
        Command::Man { folder } => man(folder.as_deref()),
        Command::Status => node_reports::status(&cluster()?),
        Command::Stats => stats::show(&cluster()?),
        Command::Top(top) => top.run(cluster()?),
        Command::Put(put) => put.run(&cluster()?),
        Command::Get(get) => get.run(&cluster()?),
        Command::Rm(rm) => rm.run(&cluster()?),
        Command::Exists { keys } => objects::exists(keys, &cluster()?),
        Command::Ls(ls) => ls.run(&cluster()?),
        Command::Evict(evict) => evict.run(&cluster()?),
        Command::Replicate(replicate) => replicate.run(&cluster()?),
        Command::Save(save) => save.run(&cluster()?),
        Command::Mount(mount) => mount.run(&cluster()?),
        Command::Unmount(unmount) => unmount.run(&cluster()?),
        Command::Ssd { command } => command.run(flags),
    }
}

/// One page to stdout, or one page per command into a folder.
fn man(folder: Option<&Path>) -> Result<u8, CliError> {
    let keys: [(&str, &str); 1] = [("KEYS", keys::SYNTAX)];
    let Some(folder) = folder else {
        packaging::man(Flags::command(), &keys).map_err(|e| CliError::io("stdout", e))?;
        return Ok(exit::DONE);
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
    Ok(exit::DONE)
}
