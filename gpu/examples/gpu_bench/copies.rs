//! Copies between host and VRAM by fragments: those of `VramMemory`, whose calls return when the
//! bytes are there, against copies of the driver from pinned memory that are queued together.

use crate::gather::{Plain, seconds_each};
use crate::{Bench, Done};
use cudarc::driver::{DriverError, sys};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use std::sync::Arc;

/// Pinned memory of the driver's own.
struct Pinned(*mut std::ffi::c_void);

impl Pinned {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        let mut at = std::ptr::null_mut();
        // SAFETY: the pointer lives until the call returns.
        unsafe { sys::cuMemAllocHost_v2(&mut at, bytes).result()? };
        Ok(Self(at))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once, after its copies were waited for.
        let _ = unsafe { sys::cuMemFreeHost(self.0) };
    }
}

/// See the file's first paragraph.
pub fn copies(bench: &Bench) -> Done {
    let total: usize = bench.either(64 << 20, 1 << 20);
    let vram = Arc::new(Vram::allocate(&bench.device, total as u64)?);
    let memory = VramMemory::new(vram.clone())?;
    let plain = Plain::new()?;
    let pinned = Pinned::new(total)?;
    let mut host = vec![1_u8; total];
    let times = bench.either(5, 1);
    let gigabytes = total as f64 / 1e9;
    for size in [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20_usize] {
        for to_device in [true, false] {
            let queued = seconds_each(
                times,
                |_| {
                    for at in (0..total).step_by(size) {
                        let device = vram.address() + at as u64;
                        // SAFETY: inside both memories, which live until the stream was waited for.
                        let rc = unsafe {
                            let host = pinned.0.byte_add(at);
                            if to_device {
                                sys::cuMemcpyHtoDAsync_v2(device, host, size, plain.0)
                            } else {
                                sys::cuMemcpyDtoHAsync_v2(host, device, size, plain.0)
                            }
                        };
                        rc.result()?;
                    }
                    Ok(())
                },
                || plain.wait(),
            )?;
            let ours = seconds_each(
                times,
                |_| {
                    for (at, piece) in host.chunks_mut(size).enumerate() {
                        let offset = (at * size) as u64;
                        if to_device {
                            memory.write(offset, piece)?;
                        } else {
                            memory.read(offset, piece)?;
                        }
                    }
                    Ok(())
                },
                || Ok(()),
            )?;
            let direction = if to_device { "host to device" } else { "device to host" };
            let name = format!("{direction}, fragments of {} KiB", size >> 10);
            let theirs = gigabytes / queued;
            let against = Some(("copies from pinned memory, queued", theirs));
            bench.lines.figure(&name, "GB/s", gigabytes / ours, against);
        }
    }
    Ok(())
}
