//! Random lives of four slots against a plain model that records the time of each step.

use super::*;
use crate::arena::Arena;
use proptest::prelude::*;
use std::collections::HashSet;

const SLOTS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Life {
    Free,
    Open,
    Live,
    Fencing,
    /// Since when the state holds.
    Quarantined(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Written {
    Nothing,
    Started,
    Published,
    Aborted,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    epoch: u32,
    life: Life,
    written: Written,
    extent: Extent,
    bytes: u64,
}

/// A random step. `back` makes a call late, by about so many epochs.
#[derive(Debug, Clone)]
enum Op {
    Open { slot: u32, bytes: u64, back: u32 },
    Begin { slot: u32 },
    Publish { slot: u32, back: u32 },
    Abort { slot: u32 },
    Commit { slot: u32, back: u32 },
    Retire { slot: u32, back: u32, fenced: bool },
    Fenced { slot: u32, back: u32 },
    Wait { ns: u64 },
    Scan,
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..SLOTS;
    let back = || prop_oneof![6 => Just(0u32), 1 => Just(1), 1 => Just(2)];
    prop_oneof![
        4 => (slot(), 0..9000u64, back())
            .prop_map(|(slot, bytes, back)| Op::Open { slot, bytes, back }),
        4 => slot().prop_map(|slot| Op::Begin { slot }),
        4 => (slot(), back()).prop_map(|(slot, back)| Op::Publish { slot, back }),
        1 => slot().prop_map(|slot| Op::Abort { slot }),
        4 => (slot(), back()).prop_map(|(slot, back)| Op::Commit { slot, back }),
        3 => (slot(), back(), any::<bool>())
            .prop_map(|(slot, back, fenced)| Op::Retire { slot, back, fenced }),
        3 => (slot(), back()).prop_map(|(slot, back)| Op::Fenced { slot, back }),
        3 => (0..Q).prop_map(|ns| Op::Wait { ns }),
        1 => Just(Op::Wait { ns: Q }),
        1 => Just(Op::Scan),
    ]
}

struct World {
    slots: Slots,
    heap: Heap,
    arena: Arena,
    cells: Vec<Cell>,
    plans: Vec<OpenSlot>,
    used_epochs: HashSet<(u32, u32)>,
    now: u64,
}

impl World {
    fn new() -> World {
        // More room than slots, so that placement is never what fails.
        let heap = heap(64);
        let cell = Cell {
            epoch: 1,
            life: Life::Free,
            written: Written::Nothing,
            extent: Extent { offset: 0, len: 0 },
            bytes: 0,
        };
        World {
            arena: Arena::new(heap.layout().arena, heap.layout().arena_unit, 64),
            slots: Slots::fresh(heap.clone()),
            heap,
            cells: vec![cell; SLOTS as usize],
            plans: Vec::new(),
            used_epochs: HashSet::new(),
            now: 1,
        }
    }

    fn cell(&mut self, slot: u32) -> &mut Cell {
        &mut self.cells[slot as usize]
    }

    fn key(slot: u32, epoch: u32) -> KeyId {
        KEYS.id(format!("{slot}@{epoch}").as_bytes())
    }

    fn retention(slot: u32, epoch: u32) -> Retention {
        let soft = Retention::SoftPin(Duration::from_secs(epoch.into()));
        let read = Retention::UntilRead(Duration::from_secs(epoch.into()));
        let (first, extra) = (Retention::EvictFirst, Retention::Extra);
        let all = [Retention::Usual, first, soft, Retention::HardPin, extra, read];
        all[((slot + epoch) % 6) as usize]
    }

    fn open(&mut self, slot: u32, bytes: u64, epoch: u32) -> Result<(), TestCaseError> {
        let cell = *self.cell(slot);
        let extent = self.arena.alloc(bytes).unwrap();
        let opened = self.slots.open(slot, epoch, extent);
        if cell.life != Life::Free || cell.epoch != epoch {
            prop_assert!(opened.is_err());
            self.arena.free(extent).unwrap();
            return Ok(());
        }
        prop_assert!(opened.is_ok() && self.slots.open(slot, epoch, extent).is_ok());
        prop_assert!(self.slots.retain(slot, epoch, Self::retention(slot, epoch)).is_ok());
        prop_assert!(self.used_epochs.insert((slot, epoch)), "[I3] epoch {epoch} again");
        *self.cell(slot) =
            Cell { life: Life::Open, written: Written::Nothing, extent, bytes, ..cell };
        self.plans.push(OpenSlot { slot, epoch, extent, ending: false });
        Ok(())
    }

    /// Until it is fenced a producer may write its header at any time.
    fn begin(&mut self, slot: u32) {
        let cell = *self.cell(slot);
        let writer = matches!(cell.life, Life::Open | Life::Fencing);
        if writer && cell.written == Written::Nothing {
            begin(
                &self.heap,
                slot,
                cell.epoch,
                Self::key(slot, cell.epoch),
                cell.extent,
                cell.bytes,
            );
            self.cell(slot).written = Written::Started;
        }
    }

    /// A compare-and-swap may come at any time, however late.
    fn publish(&mut self, slot: u32, epoch: u32) -> Result<(), TestCaseError> {
        let cell = *self.cell(slot);
        let took = publish(&self.heap, slot, epoch);
        prop_assert_eq!(took, epoch == cell.epoch && cell.written == Written::Started);
        if took {
            self.cell(slot).written = Written::Published;
        }
        Ok(())
    }

    fn abort(&mut self, slot: u32) {
        let cell = *self.cell(slot);
        if cell.life == Life::Open && cell.written == Written::Started {
            let at = self.heap.layout().header_off(slot) + PUBLISH_OFF;
            self.heap.memory().store(at, dead(cell.epoch)).unwrap();
            self.cell(slot).written = Written::Aborted;
        }
    }

    fn commit(&mut self, slot: u32, epoch: u32) -> Result<(), TestCaseError> {
        let cell = *self.cell(slot);
        let committed = self.slots.commit(slot, epoch);
        let here = epoch == cell.epoch;
        match cell.life {
            Life::Open | Life::Live if here && cell.written == Written::Published => {
                let wanted = Committed {
                    newly: cell.life == Life::Open,
                    key: Self::key(slot, epoch),
                    bytes_total: cell.bytes,
                    extent: cell.extent,
                    retention: Self::retention(slot, epoch),
                };
                prop_assert_eq!(committed.unwrap(), wanted);
                self.cell(slot).life = Life::Live;
                self.plans.retain(|p| p.slot != slot);
            }
            Life::Free | Life::Open if here => {
                prop_assert!(!is_already_retired(&committed.unwrap_err()));
            }
            _ => prop_assert!(is_already_retired(&committed.unwrap_err()), "[I11]"),
        }
        Ok(())
    }

    fn retire(&mut self, slot: u32, epoch: u32, fenced: bool) -> Result<(), TestCaseError> {
        let (cell, now) = (*self.cell(slot), self.now);
        let retired = self.slots.retire(slot, epoch, fenced, now);
        let here = epoch == cell.epoch;
        match cell.life {
            Life::Open | Life::Live if here => {}
            _ => {
                let again = is_already_retired(&retired.unwrap_err());
                prop_assert_eq!(again, !here || cell.life != Life::Free);
                return Ok(());
            }
        }
        prop_assert_eq!(retired.unwrap(), cell.extent);
        self.cell(slot).life = if fenced { Life::Quarantined(now) } else { Life::Fencing };
        if fenced {
            self.plans.retain(|p| p.slot != slot);
        } else if let Some(plan) = self.plans.iter_mut().find(|p| p.slot == slot) {
            // Marked late, or never, as a panic can leave it: both must be held.
            plan.ending = epoch.is_multiple_of(2);
        } else {
            let extent = cell.extent;
            self.plans.push(OpenSlot { slot, epoch, extent, ending: true });
        }
        Ok(())
    }

    fn fenced(&mut self, slot: u32, epoch: u32) -> Result<(), TestCaseError> {
        let (cell, now) = (*self.cell(slot), self.now);
        let due = cell.life == Life::Fencing && cell.epoch == epoch;
        prop_assert_eq!(self.slots.fenced(slot, epoch, now), due);
        if due {
            self.cell(slot).life = Life::Quarantined(now);
            self.plans.retain(|p| p.slot != slot);
        }
        Ok(())
    }

    /// Time passes: exactly those are freed whose Q is over, each extent once [I8].
    fn wait(&mut self, ns: u64) -> Result<(), TestCaseError> {
        self.now += ns;
        let now = self.now;
        let mut freed = self.slots.due(now);
        freed.sort_unstable_by_key(|f| f.slot);
        let mut due = Vec::new();
        for (slot, cell) in self.cells.iter_mut().enumerate() {
            if matches!(cell.life, Life::Quarantined(since) if now >= since + Q) {
                due.push((slot as u32, cell.epoch));
                self.arena.free(cell.extent).unwrap();
                *cell = Cell {
                    epoch: cell.epoch + 1,
                    life: Life::Free,
                    written: Written::Nothing,
                    ..*cell
                };
            }
        }
        let slots: Vec<_> = freed.iter().map(|f| (f.slot, f.epoch)).collect();
        prop_assert_eq!(slots, due);
        for f in freed {
            let extent = self.cells[f.slot as usize].extent;
            prop_assert!(f.extent == extent || f.extent.len == 0, "{f:?} was {extent:?}");
        }
        Ok(())
    }

    fn scan(&mut self) {
        let cells = &self.cells;
        let committed = |slot: u32, epoch: u32| {
            let cell = cells.get(slot as usize);
            cell.is_some_and(|c| c.epoch == epoch && c.life == Life::Live)
        };
        self.slots = Slots::scan(self.heap.clone(), &self.plans, committed, self.now);
        for cell in &mut self.cells {
            if let Life::Quarantined(since) = &mut cell.life {
                *since = self.now;
            }
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let epoch_of = |slot: u32, back: u32| self.cells[slot as usize].epoch.saturating_sub(back);
        match *op {
            Op::Open { slot, bytes, back } => self.open(slot, bytes, epoch_of(slot, back))?,
            Op::Begin { slot } => self.begin(slot),
            Op::Publish { slot, back } => self.publish(slot, epoch_of(slot, back))?,
            Op::Abort { slot } => self.abort(slot),
            Op::Commit { slot, back } => self.commit(slot, epoch_of(slot, back))?,
            Op::Retire { slot, back, fenced } => self.retire(slot, epoch_of(slot, back), fenced)?,
            Op::Fenced { slot, back } => self.fenced(slot, epoch_of(slot, back))?,
            Op::Wait { ns } => self.wait(ns)?,
            Op::Scan => self.scan(),
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let total = |of: fn(&Life) -> bool| {
            let hits = self.cells.iter().filter(|c| of(&c.life));
            hits.fold((0, 0), |(n, bytes), c| (n + 1, bytes + c.extent.len))
        };
        let u = self.slots.usage();
        prop_assert_eq!((u.live_objects, u.live_bytes), total(|l| *l == Life::Live));
        prop_assert_eq!((u.open_plans, u.open_bytes), total(|l| *l == Life::Open));
        let (fencing, fencing_bytes) = total(|l| *l == Life::Fencing);
        let (waiting, waiting_bytes) = total(|l| matches!(l, Life::Quarantined(_)));
        prop_assert_eq!((u.fencing, u.quarantined), (fencing, waiting));
        // After a scan the size of a retired plan may be unknown, never too large.
        prop_assert!(u.held_bytes <= fencing_bytes + waiting_bytes);
        prop_assert_eq!((u.unheard, u.spent), (0, 0));
        let ends = self.cells.iter().filter_map(|c| match c.life {
            Life::Quarantined(since) => Some(since + Q),
            _ => None,
        });
        prop_assert_eq!(self.slots.next_due_ns(), ends.min());
        let cells = (0u32..).zip(self.cells.clone());
        let hard = |(slot, c): &(u32, Cell)| {
            c.life == Life::Live && Self::retention(*slot, c.epoch) == Retention::HardPin
        };
        let hard_bytes = cells.clone().filter(hard).map(|(_, c)| c.extent.len).sum::<u64>();
        prop_assert_eq!(u.hard_bytes, hard_bytes);
        for (slot, cell) in cells {
            self.check_slot(slot, &cell)?;
        }
        Ok(())
    }

    fn check_slot(&mut self, slot: u32, cell: &Cell) -> Result<(), TestCaseError> {
        let header = self.slots.header(slot);
        let served = matches!(cell.life, Life::Free | Life::Open | Life::Live);
        let retention = match cell.life {
            Life::Free => Retention::Usual,
            _ => Self::retention(slot, cell.epoch),
        };
        let owner = word(u32::from(served) | retention.bits(), cell.epoch);
        prop_assert_eq!(header.owner, owner, "slot {}", slot);
        let open = cell.life == Life::Open;
        let again = self.slots.retain(slot, cell.epoch, retention).is_ok();
        prop_assert!(again == open && self.slots.retain(slot, cell.epoch + 1, retention).is_err());
        let wanted = Expect {
            key: Some(Self::key(slot, cell.epoch)),
            epoch: Some(cell.epoch),
            payload_base: cell.extent.offset,
            bytes_total: cell.bytes,
        };
        let readable = served && cell.written == Written::Published;
        let valid = validate(&header, &wanted, &self.heap.layout().arena);
        prop_assert_eq!(valid.is_ok(), readable, "[I2] slot {}: {:?}", slot, valid);
        let publish = match cell.written {
            Written::Nothing => reserved(cell.epoch),
            Written::Started => writing(cell.epoch),
            Written::Published => ready(cell.epoch),
            Written::Aborted => dead(cell.epoch),
        };
        prop_assert!(!served || header.publish == publish, "slot {}", slot);
        prop_assert_eq!(self.slots.is_published(slot, cell.epoch), readable);
        prop_assert!(!self.slots.is_published(slot, cell.epoch.wrapping_sub(1)));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn i2_i3_i8_i10_i11_any_life_is_the_models(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op)?;
            world.check()?;
        }
        // At the end everything is retired and everything is freed.
        for slot in 0..SLOTS {
            let epoch = world.cells[slot as usize].epoch;
            world.retire(slot, epoch, true)?;
            world.fenced(slot, epoch)?;
        }
        world.wait(Q)?;
        world.check()?;
        prop_assert_eq!(world.slots.usage().held_bytes, 0);
        prop_assert_eq!(world.arena.used_bytes(), 0, "an extent was not handed back");
    }
}
