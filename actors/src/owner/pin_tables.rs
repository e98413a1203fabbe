//! Which process holds which pin table of a segment [I9]. A table is given with an attachment. It
//! comes back when its holder reports that no view is left, or when its process is proved dead; a
//! broken connection proves neither. Kept outside the Owner actor.

use super::attachments::AttachId;
use nkv_store::heap::Heap;
use nkv_store::layout::Region;
use nkv_store::memory::HostMemory;
use nkv_store::pins::{TABLES, Table};
use nkv_transport::wire::Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Holder {
    attachment: AttachId,
    // Another process, whose death its pidfd (or a substitute) shows. None if the holder is in this
    // one: only its own release ends it.
    process: Option<Arc<dyn Process>>,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct PinTables {
    memory: Option<(HostMemory, Region)>,
    // By the table's number; at most `TABLES`.
    holders: Mutex<Vec<Option<Holder>>>,
}

impl PinTables {
    /// The pin tables of a segment; none if the CPU cannot access its memory.
    pub fn of(heap: &Heap) -> Self {
        let memory = heap.host_control().map(|m| (m, heap.layout().pins));
        Self { memory, holders: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Holder>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an empty table and returns its number; none while all are held. `process`: the holder,
    /// if it is another process.
    pub fn give(&self, attachment: AttachId, process: Option<Arc<dyn Process>>) -> Option<u32> {
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
                tracing::warn!("all {TABLES} pin tables are held: one more process gets no views");
                return None;
            }
        };
        holders[number] = Some(Holder { attachment, process });
        Some(number as u32)
    }

    /// The holder reported that no view is left and that it makes none.
    pub fn take_back(&self, attachment: AttachId) {
        self.clear(|holder| holder.attachment == attachment);
    }

    /// Takes back the tables of dead processes; true if there were any.
    pub fn remove_dead(&self) -> bool {
        self.clear(|holder| holder.process.as_ref().is_some_and(|process| !process.is_alive()))
    }

    fn clear(&self, gone: impl Fn(&Holder) -> bool) -> bool {
        let Some((memory, region)) = &self.memory else { return false };
        let mut cleared = false;
        // Wiped under the lock, before the table can be given again.
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
        nkv_store::pins::scan(memory.words(), &heap.layout().pins).unwrap().len()
    }

    fn pin(heap: &Heap, number: u32) {
        let memory = HostMemory::of(heap.memory().clone()).unwrap();
        let table = Table::of(&heap.layout().pins, number).unwrap();
        table.set(memory.words(), 0, 5, number).unwrap();
    }

    #[test]
    fn i9_a_pin_ends_when_its_holder_releases_it_or_dies() {
        let (tables, heap) = tables();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::empty()).unwrap());
        assert_eq!(tables.give(1, None), Some(0));
        assert_eq!(tables.give(2, Some(pidfd)), Some(1));
        pin(&heap, 0);
        pin(&heap, 1);
        assert!(!tables.remove_dead());
        assert_eq!(pinned(&heap), 2, "it lives: only its own release ends its pins");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tables.remove_dead());
        assert_eq!(pinned(&heap), 1);
        tables.take_back(7);
        assert_eq!(pinned(&heap), 1, "released by another attachment");
        tables.take_back(1);
        assert_eq!(pinned(&heap), 0);
    }

    #[test]
    fn tables_are_given_once_and_again_when_they_came_back() {
        let (tables, _heap) = tables();
        for n in 0..TABLES {
            assert_eq!(tables.give(u64::from(n), None), Some(n));
        }
        assert_eq!(tables.give(500, None), None);
        tables.take_back(77);
        assert_eq!(tables.give(500, None), Some(77));
    }
}
