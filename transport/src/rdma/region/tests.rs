//! Which calls register memory, with which arguments, and what their errors say. The calls are a
//! double's: no device here takes a dma-buf.

use super::*;
use nkv_store::memory::SplitMemory;
use nkv_store::testkit::MemoryDouble;
use nkv_store::{AnonMemory, StoreError};
use std::cell::RefCell;

pub(in crate::rdma) const CONTROL: u64 = 8192;
pub(in crate::rdma) const PAYLOAD: u64 = 1 << 20;
const ADDRESS: u64 = 0x7000_0000_0000;
const BUFFER: DmaBuf = DmaBuf { fd: 77, offset: 0 };

/// A call that was made: by dma-buf or not, address, length, flags.
type Call = (Option<DmaBuf>, u64, usize, u32);

/// Answers with these errno numbers; 0: success.
struct Double {
    dma_buf: i32,
    address: i32,
    calls: RefCell<Vec<Call>>,
}

impl Double {
    fn new(dma_buf: i32, address: i32) -> Self {
        Self { dma_buf, address, calls: RefCell::default() }
    }

    fn answer(&self, call: Call, errno: i32) -> *mut sys::ibv_mr {
        self.calls.borrow_mut().push(call);
        if errno == 0 {
            return std::ptr::dangling_mut();
        }
        set_errno(errno);
        std::ptr::null_mut()
    }

    fn register(&self, location: MemoryLocation) -> Result<(), String> {
        let registered =
            register(self, "mlx5_0", location, PAYLOAD as usize, Some(Access::Payload));
        registered.map(drop).map_err(|e| e.to_string())
    }
}

/// Sets this thread's errno, as a call of libibverbs does.
fn set_errno(errno: i32) {
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

impl RegisterCalls for Double {
    fn by_address(&self, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr {
        self.answer((None, address, len, flags), self.address)
    }

    fn by_dma_buf(&self, of: DmaBuf, address: u64, len: usize, flags: u32) -> *mut sys::ibv_mr {
        self.answer((Some(of), address, len, flags), self.dma_buf)
    }
}

/// VRAM without a byte behind it.
#[derive(Debug)]
struct Vram {
    bytes: AnonMemory,
    dma_buf: Option<DmaBuf>,
    writes_ordered: bool,
}

impl MemoryDouble for Vram {
    fn inner(&self) -> &dyn Memory {
        &self.bytes
    }

    fn export(&self) -> Export {
        let Self { dma_buf, writes_ordered, .. } = *self;
        Export::Device { address: ADDRESS, dma_buf, writes_ordered }
    }
}

/// Control words, and such payload.
pub(in crate::rdma) fn segment(
    dma_buf: Option<DmaBuf>,
    writes_ordered: bool,
) -> Result<SplitMemory, StoreError> {
    let bytes = AnonMemory::new(PAYLOAD)?;
    let control = Arc::new(AnonMemory::new(CONTROL)?);
    let split = SplitMemory::new(control, Arc::new(Vram { bytes, dma_buf, writes_ordered }));
    Ok(split.expect("control words that the CPU can access"))
}

fn payload(dma_buf: Option<DmaBuf>) -> MemoryLocation {
    MemoryLocation::of(&segment(dma_buf, false).unwrap(), CONTROL, PAYLOAD).unwrap()
}

fn relaxed() -> u32 {
    let all = flag::IBV_ACCESS_LOCAL_WRITE
        | flag::IBV_ACCESS_REMOTE_READ
        | flag::IBV_ACCESS_REMOTE_WRITE
        | flag::IBV_ACCESS_RELAXED_ORDERING;
    all.0
}

#[test]
fn vram_is_registered_by_its_dma_buf_alone_where_that_works() {
    let calls = Double::new(0, libc::EFAULT);
    calls.register(payload(Some(BUFFER))).unwrap();
    let made = (Some(BUFFER), ADDRESS, PAYLOAD as usize, relaxed());
    assert_eq!(*calls.calls.borrow(), [made]);
}

#[test]
fn vram_whose_dma_buf_is_refused_or_absent_is_registered_by_its_address() {
    let by_address = (None, ADDRESS, PAYLOAD as usize, relaxed());
    let refused = Double::new(libc::EOPNOTSUPP, 0);
    refused.register(payload(Some(BUFFER))).unwrap();
    let by_dma_buf = (Some(BUFFER), ADDRESS, PAYLOAD as usize, relaxed());
    assert_eq!(*refused.calls.borrow(), [by_dma_buf, by_address]);
    let without = Double::new(0, 0);
    without.register(payload(None)).unwrap();
    assert_eq!(*without.calls.borrow(), [by_address]);
}

#[test]
fn vram_that_neither_way_registers_is_one_error_with_both_reasons_and_remedies() {
    for (errno, number, why) in [
        (libc::EOPNOTSUPP, "(os error 95)", "rdma-core 34"),
        (libc::ENOSYS, "(os error 38)", "Linux 5.12"),
        (libc::EINVAL, "(os error 22)", "BAR1"),
    ] {
        let e = Double::new(errno, libc::EFAULT).register(payload(Some(BUFFER))).unwrap_err();
        for part in [
            "VRAM cannot be registered: ibv_reg_dmabuf_mr on 1048576 bytes for mlx5_0",
            number,
            why,
            "; and ibv_reg_mr, by nvidia-peermem, on 1048576 bytes for mlx5_0",
            "(os error 14)",
            "modprobe nvidia-peermem",
        ] {
            assert!(e.contains(part), "no {part:?} in: {e}");
        }
    }
    let e = Double::new(0, libc::EFAULT).register(payload(None)).unwrap_err();
    assert!(e.contains("exports no dma-buf of 1048576 bytes (Linux 5.12"), "{e}");
    assert!(e.contains("ibv_reg_mr, by nvidia-peermem,") && e.contains("(os error 14)"), "{e}");
}

#[test]
fn i4_what_is_read_back_is_registered_without_relaxed_ordering() {
    let calls = Double::new(0, 0);
    let (location, access) = (payload(Some(BUFFER)), Some(Access::PayloadReadBack));
    register(&calls, "mlx5_0", location, 4096, access).map(drop).unwrap();
    let strict = relaxed() & !flag::IBV_ACCESS_RELAXED_ORDERING.0;
    assert_eq!(*calls.calls.borrow(), [(Some(BUFFER), ADDRESS, 4096, strict)]);
}

#[test]
fn control_words_are_host_memory_with_strict_order_and_no_range_lies_in_two_memories() {
    let split = segment(Some(BUFFER), false).unwrap();
    let of = |offset, len| MemoryLocation::of(&split, offset, len);
    let host = split.host_base().unwrap();
    assert_eq!(of(0, CONTROL), Some(MemoryLocation::Host(host)));
    let words = Double::new(0, 0);
    let registered = register(&words, "mlx5_0", of(0, 64).unwrap(), 64, Some(Access::Words));
    registered.map(drop).unwrap();
    let (dma_buf, address, len, flags) = words.calls.borrow()[0];
    assert_eq!((dma_buf, address, len), (None, host.as_ptr() as u64, 64));
    assert_eq!(flags & flag::IBV_ACCESS_RELAXED_ORDERING.0, 0, "[I5]");
    // Further on in the dma-buf, as at the device's address.
    let dma_buf = Some(DmaBuf { offset: 4096, ..BUFFER });
    let address = ADDRESS + 4096;
    let further = MemoryLocation::Device { address, dma_buf, writes_ordered: false };
    assert_eq!(of(CONTROL + 4096, PAYLOAD - 4096), Some(further));
    for (offset, len) in [
        (0, CONTROL + 1),
        (CONTROL - 8, 16),
        (CONTROL, PAYLOAD + 1),
        (CONTROL + PAYLOAD, 8),
        (u64::MAX - 7, 8),
        (8, u64::MAX),
    ] {
        assert_eq!(of(offset, len), None, "{len} bytes at {offset}");
    }
}

#[test]
fn i4_payload_is_read_back_unless_its_device_orders_all_that_rdma_devices_write() {
    for ordered in [false, true] {
        let split = segment(None, ordered).unwrap();
        let location = MemoryLocation::of(&split, CONTROL, 8).unwrap();
        assert_eq!(location.needs_reading_back(), !ordered);
    }
    let host = MemoryLocation::of(&segment(None, false).unwrap(), 0, 8).unwrap();
    assert!(!host.needs_reading_back());
}
