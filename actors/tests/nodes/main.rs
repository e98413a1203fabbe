//! Whole nodes in one process: calls through real actors, panics, forged peers. One program, since
//! each would compile the runtime's generics again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod embedding;

mod cache_on_read;
mod closed;
mod collide;
mod device_log;
mod device_payload;
mod election;
mod embedded;
mod forged_rank;
mod frozen;
mod full_log;
mod groups;
mod hot;
mod last_blocks;
mod listing;
mod moved;
mod named;
mod panics;
mod parts;
mod placement;
mod pool;
mod prefetch;
mod replicas;
mod replicas_in_logs;
mod retention;
mod round_trips;
mod saving;
mod segment_faults;
mod segments;
mod striped;
mod stripes;
mod tier;
mod unasked;
mod unauthenticated;
mod when_ready;
