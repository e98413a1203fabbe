//! A segment whose payload is memory of a device. Soft-RoCE takes no dma-buf: tested are the
//! attempt, its fallback by the address, and the error text, and how payload is read back before a
//! header says that it is whole. No GPU's memory has been registered yet.

use super::*;
use nkv_store::Export;
use nkv_store::memory::{DmaBuf, SplitMemory};
use nkv_store::testkit::MemoryDouble;
use std::os::fd::{AsRawFd, OwnedFd};

const BORDER: u64 = SEGMENT / 2;

/// Host memory that is exported as a GPU's, at this address.
#[derive(Debug)]
struct Vram {
    memory: AnonMemory,
    address: u64,
    buffer: OwnedFd,
    writes_ordered: bool,
}

impl MemoryDouble for Vram {
    fn inner(&self) -> &dyn Memory {
        &self.memory
    }
    fn host_len(&self) -> u64 {
        0
    }
    fn export(&self) -> Export {
        let dma_buf = Some(DmaBuf { fd: self.buffer.as_raw_fd(), offset: 0 });
        let Self { address, writes_ordered, .. } = *self;
        Export::Device { address, dma_buf, writes_ordered }
    }
}

/// Control words, then payload that lies at this address.
fn split(writes_ordered: bool, address: impl FnOnce(u64) -> u64) -> Arc<dyn Memory> {
    let memory = AnonMemory::new(SEGMENT - BORDER).unwrap();
    let address = address(memory.host_base().unwrap().as_ptr() as u64);
    let buffer = rustix::fs::memfd_create("vram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let control = Arc::new(AnonMemory::new(BORDER).unwrap());
    let payload = Vram { memory, address, buffer, writes_ordered };
    Arc::new(SplitMemory::new(control, Arc::new(payload)).unwrap())
}

#[test]
fn a_dma_buf_that_is_not_taken_is_registered_by_its_address_and_accesses_cross_the_border() {
    let (fabric, memory) = (fabric(), split(false, |host| host));
    let exported = fabric.export(memory.clone(), &Part::halves(SEGMENT), false).unwrap();
    let (verbs, _served) = path(&*fabric, &*exported);
    let value: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let (mut there, mut back) = (vec![0; value.len()], vec![0; value.len()]);
    for before in [0, 8, 50_000, 100_000] {
        let at = BORDER - before;
        verbs.write(TOKEN, at, &value).unwrap();
        memory.read(at, &mut there).unwrap();
        verbs.read(at, &mut back).unwrap();
        assert!(there == value && back == value, "{before} bytes before the border");
        memory.write(at, &vec![0; value.len()]).unwrap();
    }
}

#[test]
fn memory_that_is_taken_in_neither_way_is_an_error_that_says_both() {
    let parts = Part::halves(SEGMENT);
    let e = fabric().export(split(false, |_| 4096), &parts, false).unwrap_err().to_string();
    for part in ["ibv_reg_dmabuf_mr", "Linux 5.12", "nvidia-peermem", "65536 bytes for rxe0"] {
        assert!(e.contains(part), "no {part} in: {e}");
    }
    let odd = [Part { len: BORDER + 8, access: Access::Words }, parts[1]];
    let odd = [odd[0], Part { len: BORDER - 8, ..odd[1] }];
    let e = fabric().export(split(false, |host| host), &odd, false).unwrap_err().to_string();
    assert!(e.contains("no one address"), "a part over the border: {e}");
}

/// Requests of a batch, and how many of them wait for the reads before.
fn requests(verbs: &RdmaVerbs, ops: &mut [Op<'_>]) -> (u64, u64) {
    let c = verbs.counters();
    let before = (count(&c.requests), count(&c.fenced));
    verbs.post(TOKEN, ops).unwrap();
    (count(&c.requests) - before.0, count(&c.fenced) - before.1)
}

#[test]
fn i4_payload_in_a_device_is_read_back_before_ready_unless_the_device_orders_writes() {
    let page = [7; 4096];
    for (ordered, more) in [(false, 1), (true, 0)] {
        let memory = split(ordered, |host| host);
        let path = counted_path_to(memory.clone(), 1, false, |_| {}).unwrap();
        let write = |offset| Op::Write { offset, src: &page };
        let ready = |expect, new| Op::CompareSwap { offset: 64, expect, new, old: 0 };
        let verbs = &path.verbs;
        // The read waits for the writes before it, and READY waits for the read.
        assert_eq!(requests(verbs, &mut [write(BORDER), ready(0, 1)]), (2 + more, more));
        assert_eq!(memory.load(64).unwrap(), 1);
        assert_eq!(requests(verbs, &mut [write(BORDER), write(BORDER + 4096)]), (2, 0));
        // Of payload that an earlier batch wrote, too.
        assert_eq!(requests(verbs, &mut [ready(1, 2)]), (1 + more, more));
        assert_eq!(requests(verbs, &mut [Op::Store { offset: 64, value: 9 }]), (1, 0));
        assert_eq!(requests(verbs, &mut [Op::Flush]), (1 + more, 0), "of both memories");
    }
}

#[test]
fn i4_large_payload_in_a_device_over_several_pairs_is_whole_at_ready() {
    let value: Vec<u8> = (0..3_000_000u32).map(|i| (i / 64) as u8).collect();
    let memory = split(false, |host| host);
    let path = counted_path_to(memory.clone(), 3, false, |_| {}).unwrap();
    let mut ops = [
        Op::Store { offset: 64, value: 4 },
        Op::Write { offset: BORDER, src: &value },
        Op::CompareSwap { offset: 64, expect: 4, new: 5, old: 0 },
    ];
    path.verbs.post(TOKEN, &mut ops).unwrap();
    assert!(count(&path.verbs.counters().spread) > 0);
    let mut there = vec![0; value.len()];
    memory.read(BORDER, &mut there).unwrap();
    assert!(there == value && memory.load(64).unwrap() == 5);
}

#[test]
fn ranges_that_are_no_segment_are_refused_and_the_pair_is_not_used() {
    for turn in [
        |ranges: &mut Vec<fabric::RemoteRange>| ranges[0].len -= 8,
        |ranges: &mut Vec<fabric::RemoteRange>| ranges[1].access = Access::Words,
        |ranges: &mut Vec<fabric::RemoteRange>| ranges[1].address = u64::MAX - 7,
    ] {
        let lie = |answer: &mut Answer| turn(&mut answer.paths[0].as_mut().unwrap().ranges);
        let e = counted_path_to(split(false, |host| host), 1, false, lie).map(drop).unwrap_err();
        assert!(e.to_string().contains("payloads begin at 4194304"), "{e}");
    }
}
