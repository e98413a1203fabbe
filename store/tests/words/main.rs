//! The words of a segment under a model checker: publishing, retiring, reusing and reading run the
//! production code, over words for which every interleaving and every permitted reordering is tried
//! within a bound on preemptions. One file per question; `segment` contains what they share.
#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod late;
mod led;
mod log;
mod log_claims;
mod log_reuse;
mod log_table;
mod pins;
mod publish;
mod reuse;
mod segment;
