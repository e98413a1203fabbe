//! Who holds which pin table of a segment [I9]. A table is given with an attachment and comes back
//! by its holder's word that no view is left, or by proof that its process is dead; a broken
//! connection proves neither. Lies outside the Owner actor.

use super::attachments::AttachId;
use nkv_store::heap::Heap;
use nkv_store::layout::Region;
use nkv_store::memory::HostMemory;
use nkv_store::pins::{TABLES, Table};
use nkv_transport::wire::Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a holder may be believed to be gone.
#[derive(Debug, Clone)]
pub enum Proof {
    /// Of this process: its own word is the only end.
    Here,
    /// Another process: dead when its pidfd says so, or what stands for one.
    Process(Arc<dyn Process>),
}

#[derive(Debug)]
struct Holder {
    attachment: AttachId,
    proof: Proof,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct PinTables {
    memory: Option<(HostMemory, Region)>,
    // By the table's number; at most `TABLES`.
    holders: Mutex<Vec<Option<Holder>>>,
}

impl PinTables {
    /// The tables of a segment; none in memory that the CPU may not touch.
    pub fn of(heap: &Heap) -> Self {
        let memory = HostMemory::of(heap.memory().clone()).map(|m| (m, heap.geometry().pins));
        Self { memory, holders: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Holder>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an empty table; none while all are held.
    pub fn give(&self, attachment: AttachId, proof: Proof) -> Option<u32> {
        self.memory.as_ref()?;
        self.remove_dead();
        let mut holders = self.lock();
        let number = match holders.iter().position(Option::is_none) {
            Some(free) => free,
            None if holders.len() < TABLES as usize => {
                holders.push(None);
                holders.len() - 1
            }
            None => {
                tracing::warn!("all {TABLES} pin tables are held: no views for one more process");
                return None;
            }
        };
        holders[number] = Some(Holder { attachment, proof });
        Some(number as u32)
    }

    /// The holder said that no view is left and none will be made.
    pub fn take_back(&self, attachment: AttachId) {
        self.clear(|holder| holder.attachment == attachment);
    }

    /// Takes the tables of dead processes back; true if there were any.
    pub fn remove_dead(&self) -> bool {
        self.clear(|holder| match &holder.proof {
            Proof::Here => false,
            Proof::Process(process) => !process.is_alive(),
        })
    }

    fn clear(&self, gone: impl Fn(&Holder) -> bool) -> bool {
        let Some((memory, region)) = &self.memory else { return false };
        let mut cleared = false;
        // Wiped under the lock: before it can be given again.
        for (number, holder) in self.lock().iter_mut().enumerate() {
            if holder.as_ref().is_some_and(&gone)
                && let Some(table) = Table::of(region, number as u32)
            {
                match table.wipe(memory.words()) {
                    Ok(()) => *holder = None,
                    Err(error) => tracing::error!(%error, number, "a pin table stays held"),
                }
                cleared = true;
            }
        }
        cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::{AnonMemory, HeapConfig};
    use rustix::process::{PidfdFlags, pidfd_open};

    fn tables() -> (PinTables, Heap) {
        let config = HeapConfig { arena_bytes: 4096, ..HeapConfig::default() };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory, &config).unwrap();
        (PinTables::of(&heap), heap)
    }

    fn pinned(heap: &Heap) -> usize {
        let memory = HostMemory::of(heap.memory().clone()).unwrap();
        nkv_store::pins::scan(memory.words(), &heap.geometry().pins).unwrap().len()
    }

    fn pin(heap: &Heap, number: u32) {
        let memory = HostMemory::of(heap.memory().clone()).unwrap();
        let table = Table::of(&heap.geometry().pins, number).unwrap();
        table.set(memory.words(), 0, 5, number).unwrap();
    }

    #[test]
    fn i9_a_pin_ends_by_its_holders_word_or_by_his_death() {
        let (tables, heap) = tables();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        assert_eq!(tables.give(1, Proof::Here), Some(0));
        assert_eq!(tables.give(2, Proof::Process(pidfd)), Some(1));
        pin(&heap, 0);
        pin(&heap, 1);
        assert!(!tables.remove_dead());
        assert_eq!(pinned(&heap), 2, "it lives: nothing but its word ends its pins");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tables.remove_dead());
        assert_eq!(pinned(&heap), 1);
        tables.take_back(7);
        assert_eq!(pinned(&heap), 1, "another's word");
        tables.take_back(1);
        assert_eq!(pinned(&heap), 0);
    }

    #[test]
    fn tables_are_given_once_and_again_when_they_came_back() {
        let (tables, _heap) = tables();
        for n in 0..TABLES {
            assert_eq!(tables.give(u64::from(n), Proof::Here), Some(n));
        }
        assert_eq!(tables.give(500, Proof::Here), None);
        tables.take_back(77);
        assert_eq!(tables.give(500, Proof::Here), Some(77));
    }
}
