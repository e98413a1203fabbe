//! The reference for times: plain copies of the same sizes over as many buffers as there are
//! objects. They are done between the measured operations, so that a machine that slows down for a
//! second slows both and the ratio stays. Every page is touched beforehand, so that no page fault
//! is timed.

use crate::stopwatch::timed;
use nkv_store::Buffer;
use std::hint::black_box;

/// As many heap buffers as objects, each of one size, every page faulted in.
#[derive(Debug)]
pub(crate) struct MemcpyBaseline {
    buffers: Vec<Buffer>,
}

impl MemcpyBaseline {
    /// `objects` buffers of `size` bytes.
    pub(crate) fn new(size: usize, objects: usize) -> Self {
        Self { buffers: (0..objects.max(1)).map(|_| faulted(size)).collect() }
    }

    /// The least work of a put: copies `src` into buffer `index` (modulo their number). Returns
    /// nanoseconds.
    pub(crate) fn copy_in(&mut self, index: usize, src: &[u8]) -> u64 {
        let at = index % self.buffers.len();
        copy(src, &mut self.buffers[at][..src.len()])
    }

    /// The least work of a get: copies buffer `index` (modulo their number) into `dst`. Returns
    /// nanoseconds.
    pub(crate) fn copy_out(&self, index: usize, dst: &mut [u8]) -> u64 {
        copy(&self.buffers[index % self.buffers.len()][..dst.len()], dst)
    }
}

/// Copies; returns nanoseconds.
pub(crate) fn copy(src: &[u8], dst: &mut [u8]) -> u64 {
    let ((), ns) = timed(|| black_box(&mut *dst).copy_from_slice(black_box(src)));
    black_box(dst);
    ns
}

/// Operation (false) and copy (true) alternate in going first: the second one finds warmer caches.
pub(crate) fn copy_and_operation(index: usize) -> [bool; 2] {
    [index % 2 == 1, index.is_multiple_of(2)]
}

/// A buffer whose pages are faulted in, huge pages if available: like a buffer that a user
/// registers once and reuses.
pub(crate) fn faulted(size: usize) -> Buffer {
    let mut bytes = Buffer::new(size).expect("the machine has memory for the load's own buffers");
    bytes.fill(black_box(0x5a));
    bytes
}

#[cfg(test)]
mod tests {
    use super::MemcpyBaseline;

    #[test]
    fn what_goes_into_a_buffer_comes_out_of_it() {
        let mut baseline = MemcpyBaseline::new(64, 3);
        for index in 0..3 {
            baseline.copy_in(index, &[index as u8; 64]);
        }
        let mut dst = [0; 64];
        for index in 0..9 {
            baseline.copy_out(index, &mut dst);
            assert_eq!(dst, [(index % 3) as u8; 64]);
        }
    }
}
