//! Many processes, too little memory, and kills: writers by log and by plan, readers of every kind,
//! owners whose heaps and logs are always full; writers, readers and one owner are killed at times
//! derived from a printed seed. Every byte read is compared, and afterwards every byte of every
//! owner is accounted for.
//!
//! `NKV_STRESS_SECONDS` (5); `NKV_CHAOS_SEED` repeats a run's choices. See scripts/stress.

mod call_log;
pub mod process;
mod reader;
pub mod run;
mod values;
mod writer;
