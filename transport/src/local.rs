//! Verbs over a segment of this process. Token and gate are the caller's responsibility: code of
//! this process enters its plan's gate before it posts.

use crate::error::TransportError;
use crate::mapped::Mapped;
use crate::verbs::{Alive, Kind, Op, Verbs};
use nkv_store::{Memory, Stripes};
use std::sync::Arc;

/// The owner's own memory.
#[derive(Debug, Clone)]
pub struct LocalVerbs {
    mapped: Mapped,
    alive: Alive,
}

impl LocalVerbs {
    /// `alive` is marked dead when the owner in this process stops.
    pub fn new(memory: Arc<dyn Memory>, alive: Alive) -> Self {
        Self { mapped: Mapped::new(memory), alive }
    }

    /// The same, with large reads and writes done by several threads.
    pub fn with_stripes(self, stripes: Stripes) -> Self {
        Self { mapped: self.mapped.with_stripes(stripes), ..self }
    }
}

impl Verbs for LocalVerbs {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        self.mapped.post(token, ops, &self.alive, &"this process's segment")
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.mapped.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::threads::spawn_named;
    use nkv_store::{AnonMemory, Export, StoreError};
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// Memory whose owner dies while it is written.
    #[derive(Debug)]
    struct Dying(AnonMemory, Alive);

    impl Memory for Dying {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn export(&self) -> Export {
            self.0.export()
        }
        fn host_base(&self) -> Option<NonNull<u8>> {
            None
        }
        fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
            self.1.mark_dead();
            self.0.read(offset, dst)
        }
        fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
            self.1.mark_dead();
            self.0.write(offset, src)
        }
        fn load(&self, offset: u64) -> Result<u64, StoreError> {
            self.0.load(offset)
        }
        fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
            self.0.store(offset, value)
        }
        fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
            self.0.compare_swap(offset, expect, new)
        }
        fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
            self.0.fetch_add(offset, add)
        }
    }

    #[test]
    fn success_is_not_reported_if_the_owner_died_during_the_work() {
        for read in [false, true] {
            let alive = Alive::new();
            let memory = Dying(AnonMemory::new(4096).unwrap(), alive.clone());
            let verbs = LocalVerbs::new(Arc::new(memory), alive);
            let mut dst = [0; 100];
            let r = if read { verbs.read(0, &mut dst) } else { verbs.write(1, 0, &[1; 100]) };
            assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
        }
    }

    /// Memory that blocks the write at one offset.
    #[derive(Debug)]
    struct Slow(AnonMemory, u64, AtomicBool);

    impl Memory for Slow {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn export(&self) -> Export {
            self.0.export()
        }
        fn host_base(&self) -> Option<NonNull<u8>> {
            None
        }
        fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
            self.0.read(offset, dst)
        }
        fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
            while offset == self.1 && self.2.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.0.write(offset, src)
        }
        fn load(&self, offset: u64) -> Result<u64, StoreError> {
            self.0.load(offset)
        }
        fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
            self.0.store(offset, value)
        }
        fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
            self.0.compare_swap(offset, expect, new)
        }
        fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
            self.0.fetch_add(offset, add)
        }
    }

    #[test]
    fn i4_a_word_behind_a_large_write_waits_for_the_slowest_of_its_threads() {
        const LEN: usize = 1 << 20;
        for late in 0..4 {
            let at = 4096 + late * (LEN as u64 / 4);
            let slow = Slow(AnonMemory::new(2 << 20).unwrap(), at, AtomicBool::new(true));
            let memory = Arc::new(slow);
            let stripes = Stripes::new(4, LEN as u64);
            let verbs = LocalVerbs::new(memory.clone(), Alive::new()).with_stripes(stripes);
            let put = spawn_named("put", move || {
                let payload = vec![7; LEN];
                let write = Op::Write { offset: 4096, src: &payload };
                verbs.post(1, &mut [write, Op::Store { offset: 0, value: 1 }])
            })
            .unwrap();
            let landed = |i: u64| memory.load(4096 + i * (LEN as u64 / 4)).unwrap() != 0;
            while !(0..4).all(|i| i == late || landed(i)) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(30));
            assert!(memory.load(0).unwrap() == 0 && !landed(late));
            memory.2.store(false, Ordering::SeqCst);
            put.join().unwrap().unwrap();
            assert_eq!(memory.load(0).unwrap(), 1);
            let mut all = vec![0; LEN];
            memory.read(4096, &mut all).unwrap();
            assert!(all.iter().all(|b| *b == 7));
        }
    }
}
