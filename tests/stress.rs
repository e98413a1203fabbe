//! Many processes, too little memory, and kills: writers by log and by plan, readers of every kind,
//! owners whose heaps and logs are always full; writers, readers and one owner are killed at times
//! derived from a printed seed. Every byte read is compared, and afterwards every byte of every
//! owner is accounted for.
//!
//! `NKV_STRESS_SECONDS` (5); `NKV_CHAOS_SEED` repeats a run's choices. See scripts/stress.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "chaos/accounts.rs"]
mod accounts;
#[path = "stress/call_log.rs"]
mod call_log;
mod cluster_process;
#[path = "chaos/content.rs"]
mod content;
#[path = "chaos/harness.rs"]
mod harness;
#[path = "stress/process.rs"]
mod process;
#[path = "chaos/random.rs"]
#[expect(dead_code, reason = "it is as long as it is told, whatever the rounds")]
mod random;
#[path = "stress/reader.rs"]
mod reader;
#[path = "stress/run.rs"]
mod run;
#[path = "stress/values.rs"]
mod values;
#[path = "stress/writer.rs"]
mod writer;

use harness::Case;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::var(process::TASK_VARIABLE) {
        Ok(task) => process::main(&task),
        Err(_) => harness::main(&[Case {
            name: "every_byte_is_right_while_writers_readers_and_an_owner_die",
            run: run::every_byte_is_right_while_writers_readers_and_an_owner_die,
        }]),
    }
}
