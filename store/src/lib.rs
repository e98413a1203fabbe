//! nkv-store: what lies in memory and on disk, and who may change it.
//!
//! - [`layout`] is the single list of structures that lie in shared, device or remote memory.
//! - [`memory`] is the one trait behind which every kind of memory lies; [`shm`] is its host kind.
//! - [`words`] chooses the memory orders of every access to it; [`op`] is such an access as a
//!   value, [`stripes`] says into how many threads' parts a large one is cut.
//! - [`heap`] carves a segment into regions, [`arena`] places payloads in it.
//! - [`object`] is the one place that knows an object's life.
//! - [`index`] leads readers to headers, [`reader`] is such a reader on this host, [`pins`] keep
//!   what is looked at in place.
//! - [`evict`] picks victims. [`log_lines`] bounds what others can make a process log. [`std_fds`]
//!   tells which standard streams were closed.
//!
//! This crate knows no network and no actor.
#![expect(unsafe_code, reason = "shared memory is mapped and accessed by raw pointers here")]

pub mod arena;
pub mod buffer;
pub mod clock;
pub mod device_log;
pub mod error;
pub mod evict;
pub mod fork;
pub mod heap;
pub mod incarnation;
pub mod index;
pub mod key;
pub mod layout;
pub mod log_lines;
pub mod memory;
pub mod object;
pub mod op;
pub mod pins;
pub mod random;
pub mod reader;
pub mod shm;
pub mod std_fds;
pub mod streaming;
pub mod stripes;
pub mod threads;
pub mod words;

pub use arena::{Arena, Extent};
pub use buffer::Buffer;
pub use error::StoreError;
pub use evict::{Policy, PolicyKind, Watermarks};
pub use heap::{Geometry, Heap, HeapConfig};
pub use incarnation::{boot_id, new_incarnation, random_u64};
pub use key::{Key, KeyHasher, KeyId};
pub use memory::{AnonMemory, Export, Memory};
pub use object::{Expect, Slots, Unreadable};
pub use random::{OsRandom, Random};
pub use shm::{SegmentName, ShmMemory};
pub use stripes::Stripes;
