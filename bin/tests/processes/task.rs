//! This program as a process that a test starts, stops and kills. Its kind and its task are in its
//! environment.

use crate::{chaos, flood, kernels, late_writers, stress};
use std::fmt::Display;
use std::process::{Command, ExitCode};

/// The process's kind, a blank, and its task.
const VARIABLE: &str = "NKV_TEST_TASK";

/// What a process does with the text of its task.
type Main = fn(&str) -> ExitCode;

/// What a process can be.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A producer of `chaos`.
    Chaos,
    /// A producer of `flood`.
    Flood,
    /// A producer of `kernels`.
    Kernels,
    /// A writer of `late_writers`.
    LateWriter,
    /// A writer or reader of `stress`.
    Stress,
}

impl Kind {
    const ALL: [(Self, &str, Main); 5] = [
        (Self::Chaos, "chaos", chaos::producer::main),
        (Self::Flood, "flood", flood::producer::main),
        (Self::Kernels, "kernels", kernels::main),
        (Self::LateWriter, "late-writer", late_writers::steps::main),
        (Self::Stress, "stress", stress::process::main),
    ];
}

/// This program, once more, as such a process.
pub fn command(kind: Kind, task: impl Display) -> Command {
    let (_, name, _) = Kind::ALL[kind as usize];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(VARIABLE, format!("{name} {task}"));
    command
}

/// Does the task that is in the environment, if there is one.
pub fn run() -> Option<ExitCode> {
    let text = std::env::var(VARIABLE).ok()?;
    let known = text.split_once(' ').and_then(|(name, task)| {
        Kind::ALL.iter().find(|(_, known, _)| *known == name).map(|(_, _, main)| main(task))
    });
    Some(known.unwrap_or_else(|| {
        eprintln!("{VARIABLE}: not a task: {text}");
        ExitCode::FAILURE
    }))
}
