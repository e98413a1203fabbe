//! The cost of a copy into and out of a segment, with memcpy and with the streaming copies, side by
//! side in one run: `cargo bench -p nkv-store`. Prints medians in microseconds; asserts nothing.
#![expect(unsafe_code, reason = "measures raw copies")]
#![expect(clippy::unwrap_used, reason = "a measurement ends where it cannot go on")]

use nkv_store::clock::{BootClock, Clock};
use nkv_store::streaming::{copy_in, copy_out};
use nkv_store::{Buffer, Memory, SegmentName, random_u64, shm};
use std::hint::black_box;

/// Much larger than any last-level cache, as a heap is: in a smaller ring memcpy would find its
/// lines cached.
const WALKED: usize = 2 << 30;
const SIZES: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const ROUNDS: usize = 2;

/// # Safety
/// As `std::ptr::copy_nonoverlapping`.
unsafe fn memcpy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

fn main() {
    let name = SegmentName { job: "copies".into(), rank: 0, incarnation: random_u64() };
    let segment = shm::create(&name, WALKED as u64, shm::Allocation::NOW).unwrap();
    let base = segment.host_base().unwrap().as_ptr();
    let mut huge = Buffer::new((16 << 20) + 1).unwrap();
    let mut small = vec![1u8; (16 << 20) + 1];
    let (huge, small) = (huge.as_mut_ptr(), small.as_mut_ptr());
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>14} {:>10} {:>10}",
        "KiB",
        "in memcpy",
        "in stream",
        "out memcpy",
        "out",
        "in, 4K source",
        "memcpy +1",
        "out +1"
    );
    for size in SIZES {
        let mut times = [const { Vec::new() }; 7];
        for _ in 0..ROUNDS {
            for (kind, times) in times.iter_mut().enumerate() {
                for at in (0..WALKED).step_by(size) {
                    let start = BootClock.now_ns();
                    // SAFETY: at + size <= WALKED; the buffers have 16 MiB, the largest size, and
                    // one more.
                    unsafe {
                        let there = base.add(at);
                        match kind {
                            0 => memcpy(huge, there, size),
                            1 => copy_in(huge, there, size),
                            2 => memcpy(there, huge, size),
                            3 => copy_out(there, huge, size),
                            4 => memcpy(small, there, size),
                            // To an address that an unaligned buffer may have.
                            5 => memcpy(there, huge.add(1), size),
                            _ => copy_out(there, huge.add(1), size),
                        }
                        black_box(*there);
                    }
                    times.push(BootClock.now_ns() - start);
                }
            }
        }
        print!("{:>10}", size >> 10);
        for t in &mut times {
            t.sort_unstable();
            print!(" {:>10.1}", t[t.len() / 2] as f64 / 1000.0);
        }
        println!();
    }
}
