//! A deterministic simulation of the whole cluster: the program's own nodes and clients, in one
//! thread, on virtual time, over a network, machines, clocks and threads whose faults follow from a
//! seed. Its oracle: no read returns bytes that were not put under that key, what was removed stays
//! removed, nothing acknowledged is lost while its owner lives, and everything leaked is reclaimed.
//!
//! `scripts/sim SEED` repeats one run and prints its events; `scripts/sim --seeds N` runs fresh
//! ones.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster;
mod content;
mod coverage;
mod data;
mod dice;
mod ending;
mod faults;
mod ledger;
mod machine;
mod memory;
mod net;
mod oracle;
mod plan;
mod process;
mod run;
mod seeds;
mod stack;
mod time;
mod trace;
mod workload;
