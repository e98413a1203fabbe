//! SIGKILL under load, repeatedly: of rank 0, of owners and of producers, at times derived from a
//! printed seed. Within two seconds every call has ended; keys on living ranks are served; no byte
//! is wrong; after the TTLs used bytes are live bytes on every rank.
//!
//! `NKV_CHAOS_ROUNDS` (5) rounds each; `NKV_CHAOS_SEED` repeats a run's choices. See scripts/chaos.

mod board;
mod calls;
pub mod hole_rounds;
mod load;
mod logs;
pub mod master_rounds;
pub mod owner_rounds;
pub mod producer;
pub mod producer_rounds;
mod stage;
mod victim;
