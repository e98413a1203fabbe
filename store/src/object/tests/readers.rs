//! A reader against a slot that is reused as fast as it can be, with no quarantine between: what it
//! accepts must be whole, by the header's words alone.

use super::*;
use crate::threads::spawn_named;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Most lives of the slot; the reader ends the race after it has seen enough of them.
const LIVES: u32 = 2_000_000;
/// Whole copies, and copies overtaken by a reuse, that the reader must have seen.
const ENOUGH: (u64, u64) = (1000, 20);
const PAYLOAD: usize = 16 * 4096;

/// Puts and retires one slot until it is stopped; every payload byte is the low byte of its epoch.
fn reuse(mut slots: Slots, key: KeyId, stop: &AtomicBool) {
    let heap = slots.heap().clone();
    let at = extent(&heap, 0, 16);
    for epoch in (1..=LIVES).take_while(|_| !stop.load(Ordering::Relaxed)) {
        slots.open(0, epoch, at).unwrap();
        begin(&heap, 0, epoch, key, at, PAYLOAD as u64);
        heap.memory().write(at.offset, &[epoch as u8; PAYLOAD]).unwrap();
        assert!(publish(&heap, 0, epoch));
        slots.commit(0, epoch).unwrap();
        // Long enough for some readers and too short for others.
        for _ in 0..epoch % 64 * 64 {
            std::hint::spin_loop();
        }
        if epoch.is_multiple_of(64) {
            std::thread::yield_now();
        }
        let now = u64::from(epoch) * Q;
        slots.retire(0, epoch, true, now).unwrap();
        assert_eq!(slots.due(now + Q).len(), 1);
    }
}

#[test]
fn i7_a_reader_accepts_no_torn_payload() {
    let slots = Slots::fresh(heap(16));
    let heap = slots.heap().clone();
    let arena = heap.layout().arena;
    let key = KEYS.id(b"k");
    let at = extent(&heap, 0, 16);
    let bytes_total = PAYLOAD as u64;
    let wanted = Expect { key: Some(key), epoch: None, payload_base: at.offset, bytes_total };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let owner = spawn_named("owner", move || reuse(slots, key, &stopped)).unwrap();
    let (mut accepted, mut refused) = (0u64, 0u64);
    let mut copy = vec![0u8; PAYLOAD];
    let mut torn = None;
    while (accepted < ENOUGH.0 || refused < ENOUGH.1) && torn.is_none() && !owner.is_finished() {
        let before = read_header(&heap, 0).unwrap();
        if validate(&before, &wanted, &arena).is_err() {
            continue;
        }
        heap.memory().read(at.offset, &mut copy).unwrap();
        fence(Ordering::Acquire);
        if unchanged(&before, &read_header(&heap, 0).unwrap()) {
            accepted += 1;
            let epoch = epoch_of(before.owner) as u8;
            torn = copy.iter().find(|&&b| b != epoch).map(|&b| (epoch, b));
        } else {
            refused += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    owner.join().unwrap();
    assert_eq!(torn, None, "(epoch, byte found) of an accepted copy");
    assert!(accepted > 0, "the reader never met an object that stayed");
}
