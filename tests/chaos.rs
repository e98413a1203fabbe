//! SIGKILL under load, repeatedly: of rank 0, of owners and of producers, at times derived from a
//! printed seed. Within two seconds every call has ended; keys on living ranks are served; no byte
//! is wrong; after the TTLs used bytes are live bytes on every rank.
//!
//! `NKV_CHAOS_ROUNDS` (5) rounds each; `NKV_CHAOS_SEED` repeats a run's choices. See scripts/chaos.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "chaos/accounts.rs"]
mod accounts;
#[path = "chaos/board.rs"]
mod board;
#[path = "chaos/calls.rs"]
mod calls;
mod cluster_process;
#[path = "chaos/content.rs"]
mod content;
#[path = "chaos/harness.rs"]
mod harness;
#[path = "chaos/hole_rounds.rs"]
mod hole_rounds;
#[path = "chaos/load.rs"]
mod load;
#[path = "chaos/logs.rs"]
mod logs;
#[path = "chaos/master_rounds.rs"]
mod master_rounds;
#[path = "chaos/owner_rounds.rs"]
mod owner_rounds;
#[path = "chaos/past_the_handle.rs"]
mod past_the_handle;
#[path = "chaos/producer.rs"]
mod producer;
#[path = "chaos/producer_rounds.rs"]
mod producer_rounds;
#[path = "chaos/random.rs"]
mod random;
#[path = "chaos/stage.rs"]
mod stage;
#[path = "chaos/victim.rs"]
mod victim;

use harness::Case;
use std::process::ExitCode;

const CASES: [Case; 5] = [
    Case { name: "sigkill_of_rank_0_under_load", run: master_rounds::sigkill_of_rank_0_under_load },
    Case {
        name: "sigkill_of_a_producer_under_load",
        run: producer_rounds::sigkill_of_a_producer_under_load,
    },
    Case {
        name: "sigkill_of_an_owner_under_load",
        run: owner_rounds::sigkill_of_an_owner_under_load,
    },
    Case {
        name: "sigkill_of_an_idle_owner_is_seen_at_once",
        run: owner_rounds::sigkill_of_an_idle_owner_is_seen_at_once,
    },
    Case {
        name: "i14_a_hole_is_void_only_after_the_death_of_its_stopped_producer",
        run: hole_rounds::i14_a_hole_is_void_only_after_the_death_of_its_stopped_producer,
    },
];

fn main() -> ExitCode {
    match std::env::var(producer::TASK_VARIABLE) {
        Ok(task) => producer::main(&task),
        Err(_) => harness::main(&CASES),
    }
}
