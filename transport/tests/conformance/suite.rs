//! The properties that every transport must have.

mod bytes;
mod device;
mod refusals;
mod words;

pub use bytes::*;
pub use device::*;
pub use refusals::*;
pub use words::*;

use nkv_store::Memory;

/// A deterministic stream that differs between seeds and never repeats within a page.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn bytes_at(memory: &dyn Memory, offset: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    memory.read(offset, &mut v).unwrap();
    v
}
