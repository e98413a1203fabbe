//! The Evictor beside an Owner that cannot always tell it.

use super::*;
use crate::cell::{Freeze, MAILBOX_MESSAGES};
use crate::membership::Uplink;
use crate::message::{Down, KeyBytes, PlanId, PlanOpened, PlanRef, SlotRef, Term};
use crate::owner::{FromMaster, OwnerTruth, RetireAll};
use crate::place::OwnedPlace;
use nkv_store::AnonMemory;
use nkv_store::clock::BootClock;
use nkv_store::heap::{FIRST_EPOCH, HeapConfig};
use nkv_store::layout::PUBLISH_OFF;
use nkv_store::object::{producer_fields, ready};
use nkv_transport::grants::Grants;

/// For what a machine that does other things may need.
const LIMIT: Duration = Duration::from_secs(60);
/// As long as a sender needs to fill a mailbox.
const FROZEN: Duration = Duration::from_millis(400);
const UNIT: u64 = 4096;

struct Held;

impl Message for Held {
    type Reply = (usize, bool);
}

impl On<Held> for Evictor {
    fn on(&mut self, _: Held, reply: Reply<(usize, bool)>, _: &mut Turn<'_, Self>) {
        let missed = self.truth.tables.evictor_missed.load(Ordering::Acquire);
        reply.send((self.policy.len(), missed || self.look_again));
    }
}

struct Bench {
    heap: Heap,
    evictor: CellAddr<Evictor>,
    owner: CellAddr<Owner>,
    _places: [OwnedPlace; 2],
}

impl Bench {
    async fn new() -> Self {
        let config = HeapConfig { arena_bytes: 8 * UNIT, ..HeapConfig::default() };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory, &config).unwrap();
        let tables = Arc::new(OwnerTables::new(Arc::new(Grants::new()), &heap));
        let (slot, owner_slot) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let truth = EvictorTruth {
            heap: heap.clone(),
            policy: PolicyKind::Lru,
            watermarks: Watermarks { hi: 95, lo: 85 },
            tables: tables.clone(),
            owner: owner_slot.clone(),
        };
        let places = [OwnedPlace::arbiter().unwrap(), OwnedPlace::arbiter().unwrap()];
        let evictor = CellAddr::start(places[0].place(), truth, Arc::new(|_| {})).await.unwrap();
        let _ = slot.set(evictor.clone());
        let truth = OwnerTruth {
            heap: heap.clone(),
            hasher: nkv_store::KeyHasher::new([7; 16]),
            tables,
            uplink: Arc::new(Uplink::default()),
            evictor: slot,
            clock: Arc::new(BootClock),
            log_claim_ttl_ms: 5_000,
        };
        let owner = CellAddr::start(places[1].place(), truth, Arc::new(|_| {})).await.unwrap();
        let _ = owner_slot.set(owner.clone());
        Self { heap, evictor, owner, _places: places }
    }

    /// A committed object, as master and producer bring it about.
    async fn commits(&self, slot: u32) {
        let g = *self.heap.geometry();
        let key = KeyBytes::from(slot.to_le_bytes().to_vec());
        let at = SlotRef { incarnation: g.incarnation, slot, epoch: FIRST_EPOCH };
        let plan = PlanId { term: Term::default(), seq: u64::from(slot) };
        let payload = g.arena.offset + u64::from(slot) * UNIT;
        let id = nkv_store::KeyHasher::new([7; 16]).id(&key);
        let opened = PlanOpened {
            plan,
            token: 1 + u64::from(slot),
            at,
            extent_offset: payload,
            extent_len: UNIT,
            key,
            producer: 7,
            request: 1,
            item: 0,
            deadline_ms: 600_000,
            bytes_total: UNIT,
            page_bytes: UNIT as u32,
        };
        self.hears(Down::PlanOpened(opened)).await;
        let (memory, off) = (self.heap.memory(), g.header_off(slot));
        memory.write(off, &producer_fields(id, 1, UNIT as u32, payload, UNIT)).unwrap();
        memory.store(off + PUBLISH_OFF, ready(FIRST_EPOCH)).unwrap();
        self.hears(Down::Committed(vec![PlanRef { plan, at, key: id.into() }])).await;
    }

    async fn hears(&self, down: Down) {
        self.owner.call(FromMaster(down), LIMIT).await.unwrap();
    }

    /// Returns once the evictor holds so many, and has nothing to catch up with.
    async fn holds(&self, objects: usize) {
        let look = async {
            while self.evictor.call(Held, LIMIT).await.unwrap() != (objects, false) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let held = tokio::time::timeout(LIMIT, look).await;
        assert!(held.is_ok(), "the evictor never held {objects} objects");
    }

    /// The evictor stands still, and its mailbox is full: what follows is lost.
    fn deafen(&self) {
        self.evictor.tell(Freeze(FROZEN)).unwrap();
        let all = 0..=2 * MAILBOX_MESSAGES;
        let full = all.into_iter().find_map(|_| self.evictor.tell(Touched(Vec::new())).err());
        assert!(full.is_some(), "its mailbox takes everything");
    }
}

#[tokio::test]
async fn what_the_owner_could_not_tell_the_evictor_reads_from_the_headers() {
    let bench = Bench::new().await;
    bench.commits(0).await;
    bench.holds(1).await;
    bench.deafen();
    bench.commits(1).await;
    bench.holds(2).await;
    // As well what ceased to be.
    bench.deafen();
    bench.owner.call(RetireAll, LIMIT).await.unwrap();
    bench.holds(0).await;
}
