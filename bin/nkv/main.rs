//! nkv: looks at a running cluster and moves single values in and out of it, for people and for
//! scripts. It owns no memory and holds nothing open after its one command.

mod doctor;
#[path = "../endpoints.rs"]
mod endpoints;
mod evicting;
mod exit;
#[path = "../fabric.rs"]
mod fabric;
mod flags;
mod keys;
mod listing;
mod objects;
#[path = "../open_files.rs"]
mod open_files;
mod output;
#[path = "../packaging.rs"]
#[expect(dead_code, reason = "its flags are those of programs without commands")]
mod packaging;
mod patience;
mod removing;
mod segments;
#[path = "../sizes.rs"]
mod sizes;
mod standing;
mod stats;
mod status;
mod top;
mod transfer;
mod trouble;

use clap::{CommandFactory, Parser};
use endpoints::NoneServes;
use flags::{Command, Flags};
use nkv::message::Seat;
use nkv::{Address, Blocking, ClientConfig, Secret};
use patience::Patience;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Runtime;
use trouble::{Answer, Trouble};

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(said) => return misread(&said),
    };
    match run(&flags) {
        Ok(answer) => ExitCode::from(answer.exit_code()),
        // Whoever read the output has seen enough.
        Err(trouble) if trouble.is_closed_pipe() => ExitCode::SUCCESS,
        Err(trouble) => {
            let said =
                if flags.json { trouble.json().to_string() } else { format!("nkv: {trouble}") };
            // A closed stderr changes nothing about the outcome.
            let _ = writeln!(std::io::stderr(), "{said}");
            ExitCode::from(trouble.exit_code())
        }
    }
}

/// Help, the version, or what is wrong about the command line.
fn misread(said: &clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(exit::USAGE);
    let words = std::env::args_os().skip(1).take_while(|word| word != "--");
    if code != 0 && words.into_iter().any(|word| word == "--json") {
        let text = said.render().to_string();
        let message = text.trim_end().trim_start_matches("error: ");
        let error = json!({ "error": { "kind": "InvalidArgument", "message": message } });
        let _ = writeln!(std::io::stderr(), "{error}");
    } else {
        // A closed stdout or stderr changes nothing about the outcome.
        let _ = said.print();
    }
    ExitCode::from(code)
}

/// The way to the cluster that the command line names.
struct Cluster<'a> {
    flags: &'a Flags,
    nodes: Vec<Address>,
    config: ClientConfig,
    patience: Patience,
    runtime: Runtime,
}

impl<'a> Cluster<'a> {
    fn of(flags: &'a Flags) -> Result<Self, Trouble> {
        let secret = Secret::find(flags.secret_file.as_deref());
        flags.fabric.check(flags.transport).map_err(Trouble::Usage)?;
        let config = ClientConfig {
            job: flags.job.clone(),
            transport: flags.transport,
            call_timeout_ms: flags.timeout_ms,
            fabric: flags.fabric.config(),
            secret: secret.map_err(|e| Trouble::Usage(e.to_string()))?,
            // One call or two: taking every page would take longer than they do.
            prefault: false,
            ..ClientConfig::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            flags,
            nodes: flags.nodes(),
            config,
            patience: Patience::starting(flags.timeout_ms),
            runtime: runtime.map_err(|e| Trouble::io("a runtime", e))?,
        })
    }

    fn connect(&self) -> Result<Blocking, Trouble> {
        self.flags.fabric.find().map_err(Trouble::Usage)?;
        let starting = |none: &NoneServes| none.all(patience::is_starting);
        let connecting = || self.runtime.block_on(endpoints::connect(&self.nodes, &self.config));
        Ok(self.patience.retry(starting, connecting)?.blocking()?)
    }

    /// Runs a command and says goodbye to the owners it met, so that they need not notice it
    /// themselves.
    fn with(
        &self,
        work: impl FnOnce(&Blocking) -> Result<Answer, Trouble>,
    ) -> Result<Answer, Trouble> {
        let handle = self.connect()?;
        let outcome = work(&handle);
        handle.close();
        outcome
    }

    fn status(&self) -> Result<Answer, Trouble> {
        let json = self.flags.json;
        match self.connect().and_then(|handle| status::show(&handle, json)) {
            Err(why) if why.exit_code() == exit::UNREACHED => {
                standing::show(&self.runtime, &self.nodes, &self.config, why, json)
            }
            shown => shown,
        }
    }
}

/// Files that one command has open at once.
const FILES: u64 = 32;

fn run(flags: &Flags) -> Result<Answer, Trouble> {
    open_files::raise(FILES).map_err(Trouble::Usage)?;
    match &flags.command {
        Command::Doctor => doctor::run(&flags.fabric.config(), flags.json),
        Command::Completions { shell } => {
            packaging::completions(Flags::command(), *shell)
                .map_err(|e| Trouble::io("stdout", e))?;
            Ok(Answer::Found)
        }
        Command::Man { folder } => man(folder.as_deref()),
        _ => ask(flags, Cluster::of(flags)?),
    }
}

/// Commands that ask the cluster about keys and members; the others are done.
fn ask(flags: &Flags, cluster: Cluster<'_>) -> Result<Answer, Trouble> {
    let (patience, json) = (&cluster.patience, flags.json);
    let key = |key| keys::parse(key, flags.literal_keys).map_err(Trouble::Usage);
    let keys = |keys| keys::parse_all(keys, flags.literal_keys).map_err(Trouble::Usage);
    match &flags.command {
        Command::Status => cluster.status(),
        Command::Stats => stats::show(&cluster.connect()?, json),
        Command::Top { interval, once } => {
            let top = top::Top { interval: *interval, once: *once, json };
            let Cluster { nodes, config, patience, runtime, .. } = cluster;
            top.run(runtime, nodes, config, &patience)
        }
        Command::Put { key: named, file, rank, page_bytes } => {
            let key = &key(named)?;
            let put =
                objects::Put { key, file: file.as_deref(), rank: *rank, page_bytes: *page_bytes };
            cluster.with(|handle| put.run(handle, patience, json))
        }
        Command::Get { key: named, output, force } => {
            let key = key(named)?;
            let to = objects::Output { file: output.as_deref(), force: *force };
            cluster.with(|handle| objects::get(handle, patience, &key, to, json))
        }
        Command::Rm { all: true, yes, .. } => {
            removing::all(&cluster.connect()?, patience, &flags.job, (*yes, json))
        }
        Command::Rm { matching: Some(pattern), .. } => {
            removing::matching(&cluster.connect()?, patience, pattern, json)
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
            ls.run(&cluster.connect()?, patience)
        }
        Command::Evict { until_below, rank } => {
            evicting::evict(&cluster.connect()?, patience, (*rank, *until_below), json)
        }
        Command::Mount { bytes, rank } => {
            segments::mount(&cluster.connect()?, patience, (*rank, *bytes), json)
        }
        Command::Unmount { segment, rank, wait_ms } => {
            let seat = Seat { rank: *rank, segment: *segment };
            segments::unmount(&cluster.connect()?, seat, *wait_ms, json)
        }
        Command::Doctor | Command::Completions { .. } | Command::Man { .. } => Ok(Answer::Found),
    }
}

/// One page to stdout, or one page per command into a folder.
fn man(folder: Option<&Path>) -> Result<Answer, Trouble> {
    let Some(folder) = folder else {
        packaging::man(Flags::command()).map_err(|e| Trouble::io("stdout", e))?;
        return Ok(Answer::Found);
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Flags::command(), folder))
        .map_err(|e| Trouble::io(folder.display().to_string(), e))?;
    Ok(Answer::Found)
}
