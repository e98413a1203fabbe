//! Engines on real directories, on a disk that fails, and on one that loses power.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod crash;
mod disk;
mod engines;
mod faults;
mod model;
mod offline;
mod reads;
mod scene;
mod writer;
