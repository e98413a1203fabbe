//! Memory exported as a dma-buf. Soft-RoCE does not support it: tested are the attempt, its
//! fallback, and the error text. No GPU's memory has been registered yet.

use super::*;
use nkv_store::Export;
use nkv_store::testkit::MemoryDouble;
use std::os::fd::{AsRawFd, OwnedFd};

/// Host memory that is exported as a GPU's, at this address.
#[derive(Debug)]
struct Vram {
    memory: AnonMemory,
    address: u64,
    buffer: OwnedFd,
}

impl Vram {
    fn at_address(address: impl FnOnce(u64) -> u64) -> Arc<dyn Memory> {
        let memory = AnonMemory::new(SEGMENT).unwrap();
        let address = address(memory.host_base().unwrap().as_ptr() as u64);
        let buffer = rustix::fs::memfd_create("vram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        Arc::new(Self { memory, address, buffer })
    }
}

impl MemoryDouble for Vram {
    fn inner(&self) -> &dyn Memory {
        &self.memory
    }
    fn export(&self) -> Export {
        Export::DmaBuf { fd: self.buffer.as_raw_fd(), offset: 0, address: self.address }
    }
}

#[test]
fn a_dma_buf_that_is_not_taken_is_registered_by_its_address() {
    let (fabric, memory) = (fabric(), Vram::at_address(|host| host));
    let exported = fabric.export(memory.clone(), &Part::halves(SEGMENT), false).unwrap();
    let (verbs, _served) = path(&*fabric, &*exported);
    let value: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    verbs.write(TOKEN, SEGMENT / 2 - 50_000, &value).unwrap();
    let mut there = vec![0; value.len()];
    memory.read(SEGMENT / 2 - 50_000, &mut there).unwrap();
    assert!(there == value, "over the border of headers and payload");
}

#[test]
fn memory_that_is_taken_in_neither_way_is_an_error_that_says_both() {
    let e = fabric()
        .export(Vram::at_address(|_| 4096), &Part::halves(SEGMENT), false)
        .unwrap_err()
        .to_string();
    for part in ["ibv_reg_dmabuf_mr", "Linux 5.12", "nvidia-peermem", "4194304 bytes for rxe0"] {
        assert!(e.contains(part), "no {part} in: {e}");
    }
}
