//! nkv: looks at a running cluster and moves single values in and out of it, for people and for
//! scripts. It owns no memory and holds nothing open after its one command.

mod doctor;
#[path = "../fabric.rs"]
mod fabric;
mod flags;
mod listing;
mod objects;
mod output;
mod patience;
mod removing;
mod segments;
#[path = "../sizes.rs"]
mod sizes;
mod stats;
mod status;
mod top;
mod transfer;
mod trouble;

use clap::Parser;
use flags::{Command, Flags};
use nkv::message::Seat;
use nkv::{Blocking, ClientConfig, Secret};
use patience::Patience;
use std::io::Write;
use std::process::ExitCode;
use trouble::{Answer, Trouble};

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(said) => {
            // A closed stdout or stderr changes nothing about the outcome.
            let _ = said.print();
            let usage = u8::try_from(said.exit_code()).unwrap_or(trouble::EXIT_USAGE);
            return ExitCode::from(usage);
        }
    };
    match run(&flags) {
        Ok(Answer::Found) => ExitCode::SUCCESS,
        Ok(Answer::Absent) => ExitCode::from(trouble::EXIT_ABSENT),
        // Whoever read the output has seen enough.
        Err(trouble) if trouble.is_closed_pipe() => ExitCode::SUCCESS,
        Err(trouble) => {
            let _ = writeln!(std::io::stderr(), "nkv: {trouble}");
            ExitCode::from(trouble.exit_code())
        }
    }
}

fn run(flags: &Flags) -> Result<Answer, Trouble> {
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
    let patience = Patience::starting(flags.timeout_ms);
    let connect = || {
        flags.fabric.find().map_err(Trouble::Usage)?;
        let node = flags.connect.as_ref().ok_or_else(Trouble::nowhere)?;
        patience
            .call(|| Blocking::connect(node, config.clone()))
            .map_err(|error| Trouble::connecting(node, error))
    };
    match &flags.command {
        Command::Doctor => doctor::run(&flags.fabric.config(), flags.json),
        Command::Status => status::show(&connect()?, flags.json),
        Command::Stats => stats::show(&connect()?, flags.json),
        Command::Top { interval, once } => {
            let node = flags.connect.as_ref().ok_or_else(Trouble::nowhere)?;
            let top = top::Top { interval: *interval, once: *once, json: flags.json };
            top.run(node, config.clone(), &patience)
        }
        Command::Put { key, file, rank, page_bytes } => {
            let put =
                objects::Put { key, file: file.as_deref(), rank: *rank, page_bytes: *page_bytes };
            with(&connect()?, |handle| put.run(handle, &patience, flags.json))
        }
        Command::Get { key, output } => {
            let to = output.as_deref();
            with(&connect()?, |handle| objects::get(handle, &patience, key, to, flags.json))
        }
        Command::Rm { all: true, yes, .. } => {
            removing::all(&connect()?, &patience, &flags.job, (*yes, flags.json))
        }
        Command::Rm { matching: Some(pattern), .. } => {
            removing::matching(&connect()?, &patience, pattern, flags.json)
        }
        Command::Rm { keys, .. } => {
            with(&connect()?, |handle| objects::rm(handle, keys, flags.json))
        }
        Command::Ls { pattern, long, limit } => {
            let (pattern, limit) = (pattern.as_deref(), limit.map(|n| n as usize));
            let ls = listing::Ls { pattern, long: *long, limit, json: flags.json };
            ls.run(&connect()?, &patience)
        }
        Command::Mount { bytes, rank } => {
            segments::mount(&connect()?, &patience, (*rank, *bytes), flags.json)
        }
        Command::Unmount { segment, rank, wait_ms } => {
            let seat = Seat { rank: *rank, segment: *segment };
            segments::unmount(&connect()?, seat, *wait_ms, flags.json)
        }
        Command::Exists { keys } => {
            with(&connect()?, |handle| objects::exists(handle, keys, flags.json))
        }
    }
}

/// Runs a command and says goodbye to the owners it met, so that they need not notice it themselves.
fn with(
    handle: &Blocking,
    work: impl FnOnce(&Blocking) -> Result<Answer, Trouble>,
) -> Result<Answer, Trouble> {
    let outcome = work(handle);
    handle.close();
    outcome
}
