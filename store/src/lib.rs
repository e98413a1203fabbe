//! nkv-store: the layout of memory, and the rules for changing it.
//!
//! - [`layout`] is the single list of structures that lie in shared, device or remote memory.
//! - [`memory`] is the trait of every kind of memory; [`shm`] implements it for host shared memory.
//! - [`words`] chooses the memory order of every access to it; [`op`] is such an access as a
//!   value, [`stripes`] computes into how many parts, each for one thread, a large one is cut.
//! - [`heap`] divides a segment into regions, [`arena`] allocates payload extents in it.
//! - [`object`] is the one module that implements an object's life cycle.
//! - [`index`] maps keys to headers for readers, [`reader`] is a reader on this host, [`pins`] keep
//!   the bytes of views in place.
//! - [`evict`] picks victims, [`retention`] says which objects it spares. [`log_lines`] limits how
//!   much others can make a process log. [`std_fds`] reports which standard streams were closed at
//!   the start.
//!
//! This crate contains no networking and no actors.
#![expect(unsafe_code, reason = "shared memory is mapped and accessed by raw pointers here")]

pub mod arena;
mod arming;
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
pub mod log_limit;
pub mod log_lines;
pub mod memory;
pub mod object;
pub mod op;
pub mod pins;
mod quarantine;
pub mod random;
pub mod reader;
pub mod retention;
pub mod segment_layout;
pub mod shm;
pub mod std_fds;
pub mod streaming;
pub mod stripes;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod threads;
pub mod words;

pub use arena::{Arena, ArenaUnit, Extent};
pub use buffer::Buffer;
pub use error::StoreError;
pub use evict::{Policy, PolicyKind, Watermarks};
pub use heap::{Heap, HeapConfig, SegmentIdentity};
pub use incarnation::{boot_id, random_u64};
pub use key::{Key, KeyHasher, KeyId, KeyPool};
pub use memory::{AnonMemory, Export, Memory, OwnMemory};
pub use object::{Expect, Slots, Unreadable};
pub use random::{OsRandom, Random};
pub use retention::Retention;
pub use segment_layout::SegmentLayout;
pub use shm::{SegmentName, ShmMemory};
pub use stripes::Stripes;
