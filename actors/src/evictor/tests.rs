//! The Evictor when messages of the Owner are lost.

use super::*;
use crate::actor::MAILBOX_MESSAGES;
use crate::executor::OwnedExecutor;
use crate::message::{
    KeyBytes, MasterToOwner, ObjectDesc, PlanId, PlanOpened, PlanRef, SlotRef, Term,
};
use crate::owner::{FromMaster, HeapObserver, OwnerDurable, RetireAll};
use crate::uplink::Uplink;
use nkv_store::AnonMemory;
use nkv_store::arena::Extent;
use nkv_store::clock::BootClock;
use nkv_store::heap::{FIRST_EPOCH, HeapConfig};
use nkv_store::layout::PUBLISH_OFF;
use nkv_store::object::{producer_fields, ready};
use nkv_transport::grants::Grants;

/// Generous, for a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
const UNIT: u64 = 4096;

struct Held;

impl Message for Held {
    type Reply = (usize, bool);
}

impl On<Held> for Evictor {
    fn on(&mut self, _: Held, reply: Reply<(usize, bool)>, _: &mut Context<'_, Self>) {
        let missed = self.durable.tables.evictor_missed.load(Ordering::Acquire);
        let behind = missed || self.recheck || self.reading.is_some();
        reply.send((self.policy.len(), behind));
    }
}

/// The position of the reading: the next slot, or None if no reading is in progress.
struct Position;

impl Message for Position {
    type Reply = Option<u32>;
}

impl On<Position> for Evictor {
    fn on(&mut self, _: Position, reply: Reply<Option<u32>>, _: &mut Context<'_, Self>) {
        reply.send(self.reading.as_ref().map(|reading| match reading {
            Reading::Missed { next } | Reading::Cold { next, .. } => *next,
            Reading::Merging { latest, .. } => u32::MAX - latest.len() as u32,
        }));
    }
}

/// The evictor blocks until the other end is dropped.
struct Hold(std::sync::mpsc::Receiver<()>);

impl Message for Hold {
    type Reply = ();
}

impl On<Hold> for Evictor {
    fn on(&mut self, hold: Hold, _: Reply<()>, _: &mut Context<'_, Self>) {
        let _ = hold.0.recv();
    }
}

struct Bench {
    heap: Heap,
    tables: Arc<OwnerTables>,
    evictor: ActorAddr<Evictor>,
    owner: ActorAddr<Owner>,
    _executors: Vec<OwnedExecutor>,
}

impl Bench {
    async fn new() -> Self {
        Self::on(vec![OwnedExecutor::arbiter().unwrap(), OwnedExecutor::arbiter().unwrap()], 8)
            .await
    }

    /// Both on this thread, as in a node. Call it inside a `LocalSet`.
    async fn here(slots: usize) -> Self {
        Self::on(vec![OwnedExecutor::here(Arc::new(BootClock))], slots).await
    }

    /// The evictor on the first executor, the owner on the last.
    async fn on(executors: Vec<OwnedExecutor>, slots: usize) -> Self {
        let config = HeapConfig { arena_bytes: slots as u64 * UNIT, ..HeapConfig::default() };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory, &config).unwrap();
        let tables = Arc::new(OwnerTables::new(Arc::new(Grants::new()), &heap, Arc::default()));
        let (slot, owner_slot) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let durable = EvictorDurable {
            heap: heap.clone(),
            policy: PolicyKind::Lru,
            watermarks: Watermarks::Percent { hi: 95, lo: 85 },
            tables: tables.clone(),
            owner: owner_slot.clone(),
            clock: Arc::new(BootClock),
        };
        let evictor =
            ActorAddr::start(executors[0].executor(), durable, Arc::new(|_| {})).await.unwrap();
        let _ = slot.set(Arc::new(evictor.clone()) as Arc<dyn HeapObserver>);
        let durable = OwnerDurable {
            replication: Arc::default(),
            heap: heap.clone(),
            hasher: nkv_store::KeyHasher::new([7; 16]),
            tables: tables.clone(),
            uplink: Arc::new(Uplink::default()),
            evictor: slot,
            clock: Arc::new(BootClock),
            log_claim_ttl_ms: 5_000,
            hot_reads: 0,
            holders: Vec::new(),
            demotion: None,
        };
        let owners = &executors[executors.len() - 1];
        let owner = ActorAddr::start(owners.executor(), durable, Arc::new(|_| {})).await.unwrap();
        let _ = owner_slot.set(owner.clone());
        Self { heap, tables, evictor, owner, _executors: executors }
    }

    /// Commits an object as master and producer do.
    async fn commits(&self, slot: u32) {
        let g = *self.heap.layout();
        let key = KeyBytes::from(slot.to_le_bytes().to_vec());
        let at =
            SlotRef { incarnation: self.heap.identity().incarnation, slot, epoch: FIRST_EPOCH };
        let plan = PlanId { term: Term::default(), seq: u64::from(slot) };
        let payload = g.arena.offset + u64::from(slot) * UNIT;
        let id = nkv_store::KeyHasher::new([7; 16]).id(&key);
        let opened = PlanOpened {
            object: ObjectDesc {
                extent: Extent { offset: payload, len: UNIT },
                bytes_total: UNIT,
                page_bytes: UNIT as u32,
            },
            plan,
            token: 1 + u64::from(slot),
            at,
            key,
            producer: 7,
            request: 1,
            item: 0,
            deadline_ms: 600_000,
            set: crate::message::ReplicaSet::NONE,
            retention: Retention::Usual,
        };
        self.receives(MasterToOwner::PlanOpened(opened)).await;
        let (memory, off) = (self.heap.memory(), g.header_off(slot));
        memory
            .write(off, &producer_fields(id, &ObjectDesc::at(payload, UNIT, UNIT as u32)))
            .unwrap();
        memory.store(off + PUBLISH_OFF, ready(FIRST_EPOCH)).unwrap();
        self.receives(MasterToOwner::Committed(vec![PlanRef { plan, at, key: id }])).await;
    }

    async fn receives(&self, down: MasterToOwner) {
        self.owner.call(FromMaster(down), LIMIT).await.unwrap();
    }

    /// Returns once the evictor lists `objects` objects and no reading is pending.
    async fn holds(&self, objects: usize) {
        let wait = async {
            while self.evictor.call(Held, LIMIT).await.unwrap() != (objects, false) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let held = tokio::time::timeout(LIMIT, wait).await;
        assert!(held.is_ok(), "the evictor never held {objects} objects");
    }

    /// Blocks the evictor and fills its mailbox until the returned sender is dropped: messages sent
    /// to it meanwhile are lost.
    #[must_use]
    fn deafen(&self) -> std::sync::mpsc::Sender<()> {
        let (stands, hold) = std::sync::mpsc::channel();
        self.evictor.try_send(Hold(hold)).unwrap();
        let all = 0..=2 * MAILBOX_MESSAGES;
        let full = all
            .into_iter()
            .find_map(|_| self.evictor.try_send(HeapEvent::WereRead(Vec::new())).err());
        assert!(full.is_some(), "its mailbox takes everything");
        stands
    }
}

#[tokio::test]
async fn what_the_owner_could_not_tell_the_evictor_reads_from_the_headers() {
    let bench = Bench::new().await;
    bench.commits(0).await;
    bench.holds(1).await;
    let deaf = bench.deafen();
    bench.commits(1).await;
    drop(deaf);
    bench.holds(2).await;
    // The same for retired objects.
    let deaf = bench.deafen();
    bench.owner.call(RetireAll, LIMIT).await.unwrap();
    drop(deaf);
    bench.holds(0).await;
}

/// Number of pieces: more than are read while this thread's other tasks commit an object.
const PIECES: usize = 1_024;

impl Bench {
    async fn position(&self) -> Option<u32> {
        self.evictor.call(Position, LIMIT).await.unwrap()
    }

    /// Returns in the middle of a reading, once it is past slot `above`.
    async fn reads_past(&self, above: u32) -> u32 {
        loop {
            match self.position().await {
                Some(next) if next > above => return next,
                Some(_) => {}
                None => panic!("the headers were read in one go"),
            }
        }
    }
}

#[tokio::test]
async fn a_commit_is_handled_between_the_pieces_in_which_the_headers_are_read() {
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            let bench = Bench::here(PIECES * reading::SLOTS_PER_PIECE).await;
            let slots = bench.heap.layout().slots;
            bench.commits(0).await;
            bench.holds(1).await;
            // As an owner that was rebuilt after a panic does.
            bench.tables.evictor_missed.store(true, Ordering::Release);
            bench.evictor.try_send(EvictorTick).unwrap();
            let before = bench.reads_past(0).await;
            bench.commits(1).await;
            let after = bench.reads_past(before).await;
            assert!(after < slots, "a commit waited for slots {before} to {after} of {slots}");
            bench.holds(2).await;
        })
        .await;
}

#[tokio::test]
async fn an_evictor_that_panicked_evicts_in_the_order_of_the_last_access() {
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            let slots = 3 * reading::SLOTS_PER_PIECE as u32;
            let bench = Bench::here(slots as usize).await;
            // Two of each piece, and the last; the latest accesses are the lowest slots'.
            let there: Vec<u32> = (0..slots).step_by(128).chain([slots - 1]).collect();
            for slot in &there {
                bench.commits(*slot).await;
                let off = bench.heap.layout().header_off(*slot);
                let at = off + nkv_store::layout::LAST_ACCESS_OFF;
                bench.heap.memory().store(at, u64::from(slots - slot)).unwrap();
            }
            bench.holds(there.len()).await;
            let _ = bench.evictor.call(crate::actor::Crash, LIMIT).await;
            // Asked before the list is complete again.
            let all_but = |n: usize| EvictTo((there.len() - n) as u64 * UNIT);
            let gone = bench.evictor.call(all_but(3), LIMIT).await.unwrap();
            assert_eq!(gone, Victims { objects: 3, bytes: 3 * UNIT });
            let left: Vec<u32> = there[..there.len() - 3].to_vec();
            let live = || {
                let live = nkv_store::object::live_slots(&bench.heap);
                live.map(|object| object.slot).collect::<Vec<_>>()
            };
            bench.holds(left.len()).await;
            assert_eq!(live(), left, "the least recently used went");
        })
        .await;
}
