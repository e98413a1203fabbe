//! A flush in a request is executed in the owner's memory, before the answer [I4].

use super::*;
use nkv_store::StoreError;
use nkv_transport::{Op, Verbs};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that counts its flushes, and records the count at each change of a word.
#[derive(Debug)]
struct Flushed {
    memory: AnonMemory,
    flushes: AtomicU64,
    at_stores: std::sync::Mutex<Vec<u64>>,
}

impl nkv_store::testkit::MemoryDouble for Flushed {
    fn inner(&self) -> &dyn Memory {
        &self.memory
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        self.memory.host_base()
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        self.at_stores.lock().unwrap().push(self.flushes.load(Ordering::SeqCst));
        self.memory.store(offset, value)
    }
    fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.memory.flush();
    }
}

#[test]
fn i4_a_flush_behind_a_change_is_made_in_the_owners_memory_before_the_answer() {
    let memory = Arc::new(Flushed {
        memory: AnonMemory::new(SEGMENT_BYTES).unwrap(),
        flushes: AtomicU64::new(0),
        at_stores: std::sync::Mutex::default(),
    });
    let access: Arc<dyn Access> = Arc::new(OpenAccess);
    let at = "127.0.0.1:0".parse().unwrap();
    let limits = AgentLimits::default();
    let agent =
        TcpAgent::start(at, memory.clone(), INCARNATION, JOB, access, None, limits).unwrap();
    let to = agent.local_addr().to_string();
    let client = TcpVerbs::connect(&to, INCARNATION, JOB, TcpOptions::default()).unwrap();
    let write = Op::Write { offset: 4096, src: &[7; 100] };
    let flushes = || memory.flushes.swap(0, Ordering::SeqCst);
    // At the end of a stripe, and of one that asks twice.
    client.post(TOKEN, &mut [write, Op::Flush]).unwrap();
    assert_eq!(flushes(), 1);
    let write = Op::Write { offset: 4096, src: &[8; 100] };
    client.post(TOKEN, &mut [write, Op::Flush, Op::Flush]).unwrap();
    assert_eq!(flushes(), 2);
    // In the middle: what follows it in the request follows it in memory, too.
    let store = |value| Op::Store { offset: 64, value };
    client.post(TOKEN, &mut [store(1), Op::Flush, store(2)]).unwrap();
    assert_eq!((flushes(), memory.load(64).unwrap()), (1, 2));
    assert_eq!(*memory.at_stores.lock().unwrap(), [0, 1]);
}
