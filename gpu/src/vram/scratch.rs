//! Memory between which copies are timed: two halves of VRAM, or VRAM and pinned memory of the
//! host.

use super::copies::Direction;
use crate::driver::{Device, DriverError};
use crate::kernels::{Descriptor, LaunchMemory};
use std::sync::Arc;

/// Bytes of each side.
const BYTES: u64 = 4 << 20;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Scratch {
    _memory: LaunchMemory,
    from: u64,
    into: u64,
}

impl Scratch {
    pub fn new(device: &Arc<Device>, of: Direction) -> Result<Self, DriverError> {
        let mut memory = LaunchMemory::new(device, 2 * BYTES as usize)?;
        let (vram, host) = (memory.address(), memory.host()?.as_ptr().addr() as u64);
        let (from, into) = match of {
            Direction::OnDevice => (vram, vram + BYTES),
            Direction::ToHost => (vram, host),
            Direction::FromHost => (host, vram),
        };
        Ok(Self { _memory: memory, from, into })
    }

    /// So many ranges of `size` bytes, in no order of their addresses. Several may be at one place.
    pub fn ranges(&self, count: usize, size: u64) -> Vec<Descriptor> {
        let places = (BYTES / size).max(1);
        let at = |n: u64| n * 7 % places * size;
        let copy = |n| Descriptor { dst: self.into + at(n), src: self.from + at(n + 1), size };
        (0..count as u64).map(copy).collect()
    }
}
