//! nkv-ssd: objects on disk, in a directory of one node.
//!
//! - [`engine`] is what an engine does: save, load, remove, prune, check.
//! - [`slab`] is the default: objects in a few large preallocated files, and a journal of them.
//! - [`files`] keeps one safetensors file for each object: slower, and the reference of the tests.
//! - [`record`] is the bytes of one object on disk, in both engines a safetensors file.
//! - [`offline`] opens a directory that no node uses, to be checked, exported or filled.
//! - [`writer`] saves behind the callers' backs, with a bounded queue.
//! - [`storage`] is the file system as the engines use it; tests put a failing one in its place.
//!
//! Bytes go straight between a segment and the disk. Nothing read from disk is believed before its
//! checksums match [I21]. This crate knows no network and no actors.
#![expect(unsafe_code, reason = "the kernel reads and writes mapped memory by raw addresses")]

pub mod directory;
pub mod engine;
pub mod files;
mod index;
pub mod offline;
pub mod piece;
pub mod record;
mod record_io;
pub mod slab;
pub mod storage;
mod sync;
pub mod writer;

pub use directory::{Directory, KeyDigest};
pub use engine::{
    Durability, Engine, Found, LoadError, Object, Payload, Saved, SsdError, Stats, Validated,
    WallClock,
};
pub use files::FilesEngine;
pub use slab::SlabEngine;
pub use storage::{Disk, Storage};
