//! The Owner against a simulated master and simulated attached processes: changes of the term, and
//! late messages. `model_NAME` is the switch of the protocol's model that a test covers.

mod awaited;
mod closed_client;
mod groups;
mod held_plans;
mod holders;

use super::attachments::Route;
use super::tables::{OwnerTables, TermOrder};
use super::{FromClient, FromMaster, NewTerm, Owner, OwnerDurable};
use crate::actor::{ActorAddr, Crash};
use crate::executor::OwnedExecutor;
use crate::message::{
    ClientToOwner, EndCause, KeyBytes, MasterToOwner, ObjectDesc, OwnerToClient, OwnerToMaster,
    PlanId, PlanOpened, PlanRef, ReadCounts, ReplicaSet, SlotContent, SlotEntry, SlotRef, Term,
    Touch, TouchBatch,
};
use crate::uplink::Uplink;
use nkv_store::Retention;
use nkv_store::arena::Extent;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::device_log::BUMP_PTR_OFF;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, flag, low};
use nkv_store::object::{Holders, producer_fields, ready, reserved, writing};
use nkv_store::{AnonMemory, Key, KeyHasher};
use nkv_transport::grants::Grants;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

const HASHER: KeyHasher = KeyHasher::new([7; 16]);
const LIMIT: Duration = nkv_pace::HANGS;
const OLD: Term = Term { number: 1, master: 70 };
const NEW: Term = Term { number: 2, master: 5 };
const PRODUCER: u64 = 7;
const Q_MS: u64 = 20;

fn pidfd(pid: rustix::process::Pid) -> OwnedFd {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
}

struct Bench {
    owner: ActorAddr<Owner>,
    tables: Arc<OwnerTables>,
    heap: Heap,
    up: mpsc::Receiver<OwnerToMaster>,
    incarnation: u64,
    _executor: OwnedExecutor,
}

impl Bench {
    async fn new() -> Self {
        Self::with_log(0).await
    }

    async fn with_log(log_bytes: u64) -> Self {
        Self::held_by(log_bytes, Vec::new()).await
    }

    async fn held_by(log_bytes: u64, holders: Vec<Arc<dyn Holders>>) -> Self {
        let config = HeapConfig {
            log_bytes,
            arena_bytes: 8 * 4096,
            quarantine_ms: Q_MS as u32,
            ..HeapConfig::default()
        };
        let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
        let heap = Heap::format(memory, &config).unwrap();
        let tables = Arc::new(OwnerTables::new(Arc::new(Grants::new()), &heap, Arc::default()));
        let uplink = Arc::new(Uplink::default());
        let up = uplink.capture();
        let durable = OwnerDurable {
            replication: Arc::default(),
            heap: heap.clone(),
            hasher: HASHER,
            tables: tables.clone(),
            uplink,
            evictor: Arc::new(OnceLock::new()),
            clock: Arc::new(BootClock),
            log_claim_ttl_ms: 5_000,
            hot_reads: 0,
            holders,
            demotion: None,
        };
        let executor = OwnedExecutor::arbiter().unwrap();
        let owner = ActorAddr::start(executor.executor(), durable, Arc::new(|_| {})).await.unwrap();
        let incarnation = heap.identity().incarnation;
        let bench = Self { owner, tables, heap, up, incarnation, _executor: executor };
        bench.obeys(OLD).await;
        bench
    }

    async fn obeys(&self, term: Term) {
        assert_eq!(self.tables.obey(term), TermOrder::New);
        self.owner.call(NewTerm, LIMIT).await.unwrap();
    }

    fn at(&self, slot: u32, epoch: u32) -> SlotRef {
        SlotRef { incarnation: self.incarnation, slot, epoch }
    }

    async fn receives(&self, down: MasterToOwner) {
        self.owner.call(FromMaster(down), LIMIT).await.unwrap();
    }

    /// Receives a frame of an attachment of `PRODUCER`.
    async fn hears(&self, frame: ClientToOwner) {
        let from = Some((0, PRODUCER));
        self.owner.call(FromClient { from, frame }, LIMIT).await.unwrap();
    }

    /// Opens a plan of 4 KiB in a slot, as the link does: records it first, then sends it to the
    /// actor.
    async fn opens(&self, term: Term, seq: u64, slot: u32, epoch: u32) -> PlanRef {
        let p = self.records(term, seq, slot, epoch);
        self.receives(MasterToOwner::PlanOpened(p.clone())).await;
        PlanRef { plan: p.plan, at: p.at, key: HASHER.id(&p.key) }
    }

    /// The link takes a plan in; the actor has not handled its message yet.
    fn records(&self, term: Term, seq: u64, slot: u32, epoch: u32) -> PlanOpened {
        let p = PlanOpened {
            object: ObjectDesc {
                extent: Extent {
                    offset: self.heap.layout().arena.offset + u64::from(slot) * 4096,
                    len: 4096,
                },
                bytes_total: 4096,
                page_bytes: 4096,
            },
            plan: PlanId { term, seq },
            token: 1000 + seq,
            at: self.at(slot, epoch),
            key: KeyBytes::from(format!("k{seq}").into_bytes()),
            producer: PRODUCER,
            request: seq,
            item: 0,
            deadline_ms: 60_000,
            set: ReplicaSet::NONE,
            retention: Retention::Usual,
        };
        self.tables.record(&p, BootClock.now_ns());
        p
    }

    /// Writes header fields and publish word of a slot, as a producer does.
    fn writes(&self, slot: u32, key: &str, word: u64) {
        let g = self.heap.layout();
        let (memory, off) = (self.heap.memory(), g.header_off(slot));
        let key = HASHER.id(key.as_bytes());
        let fields = producer_fields(
            key,
            &ObjectDesc::at(g.arena.offset + u64::from(slot) * 4096, 4096, 4096),
        );
        memory.write(off, &fields).unwrap();
        memory.store(off + PUBLISH_OFF, word).unwrap();
    }

    fn word(&self, slot: u32) -> u64 {
        self.heap.memory().load(self.heap.layout().header_off(slot) + PUBLISH_OFF).unwrap()
    }

    /// The next frame to the master that `want` picks.
    async fn sent_to_master<T>(&mut self, want: impl Fn(&OwnerToMaster) -> Option<T>) -> T {
        let work = async {
            loop {
                let up = self.up.recv().await.expect("the uplink was cut");
                if let Some(t) = want(&up) {
                    return t;
                }
            }
        };
        tokio::time::timeout(LIMIT, work).await.expect("a frame that never came")
    }

    async fn report(&mut self) -> Vec<SlotEntry> {
        self.receives(MasterToOwner::RequestReport { number: 1 }).await;
        self.sent_to_master(reported).await
    }

    fn drain_sent(&mut self) -> Vec<OwnerToMaster> {
        std::iter::from_fn(|| self.up.try_recv().ok()).collect()
    }

    /// A process of this machine that has the segment mapped: this one.
    fn attaches(&self) -> mpsc::Receiver<OwnerToClient> {
        self.attaches_as(rustix::process::getpid())
    }

    fn attaches_as(&self, pid: rustix::process::Pid) -> mpsc::Receiver<OwnerToClient> {
        let (tx, rx) = mpsc::channel(16);
        self.tables.attachments.add(PRODUCER, Route::Process { tx, process: Arc::new(pidfd(pid)) });
        rx
    }
}

fn reported(up: &OwnerToMaster) -> Option<Vec<SlotEntry>> {
    match up {
        OwnerToMaster::Report { slots, .. } => Some(slots.clone()),
        _ => None,
    }
}

fn freed(up: &OwnerToMaster) -> Option<SlotRef> {
    match up {
        OwnerToMaster::Freed(list) => list.first().copied(),
        _ => None,
    }
}

async fn next_to_client(rx: &mut mpsc::Receiver<OwnerToClient>) -> OwnerToClient {
    tokio::time::timeout(LIMIT, rx.recv()).await.unwrap().unwrap()
}

/// Returns after several quarantines; the owner has run in each of them.
async fn longer_than_quarantine(b: &Bench) {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(Q_MS)).await;
        b.owner.call(crate::owner::GetGauges, LIMIT).await.unwrap();
    }
}

#[tokio::test]
async fn model_openterm_an_unwritten_slot_with_an_open_plan_is_not_free_after_a_term() {
    let mut b = Bench::new().await;
    b.opens(OLD, 1, 0, 1).await;
    assert_eq!(b.word(0), reserved(1));
    b.obeys(NEW).await;
    let slots = b.report().await;
    assert!(
        matches!(&slots[..], [SlotEntry { slot: 0, epoch: 1, what: SlotContent::Held(_) }]),
        "{slots:?}"
    );
    assert_eq!(b.sent_to_master(freed).await, b.at(0, 1));
    assert_eq!(b.word(0), reserved(2), "[I3] armed with the next epoch");
}

/// After a rank joined again its master may end a plan before it has sent it again, and a new term
/// may come between the two.
#[tokio::test]
async fn i10_a_plan_that_ends_before_its_own_message_is_handled_leaves_no_slot_open() {
    for by_term in [false, true] {
        let mut b = Bench::new().await;
        let p = b.records(OLD, 1, 0, 1);
        match by_term {
            false => {
                let (plan, at, cause) = (p.plan, p.at, EndCause::Aborted);
                b.receives(MasterToOwner::EndPlan { plan, at, cause }).await;
            }
            true => b.obeys(NEW).await,
        }
        b.receives(MasterToOwner::PlanOpened(p.clone())).await;
        assert_eq!(b.sent_to_master(freed).await, b.at(0, 1));
        // The gauges are published at the end of the message that freed the slot.
        b.receives(MasterToOwner::Heartbeat { stamp_ms: 0 }).await;
        let gauges = b.tables.gauges.snapshot();
        let left = (gauges.plans_open, gauges.open_bytes, gauges.fencing, gauges.held_bytes);
        assert_eq!(left, (0, 0, 0, 0), "ended by a term: {by_term}");
        assert_eq!(b.word(0), reserved(2));
    }
}

#[tokio::test]
async fn what_was_ready_at_a_new_term_is_kept_with_its_key_and_reported_not_announced() {
    let mut b = Bench::new().await;
    b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", ready(1));
    b.opens(OLD, 2, 1, 1).await;
    b.writes(1, "k2", writing(1));
    b.obeys(NEW).await;
    let slots = b.report().await;
    let live = slots.iter().find(|s| s.slot == 0).unwrap();
    assert!(matches!(&live.what, SlotContent::Live { key, .. } if **key == *b"k1"), "{slots:?}");
    let torn = slots.iter().find(|s| s.slot == 1).unwrap();
    assert!(matches!(torn.what, SlotContent::Held(_)), "{slots:?}");
    let other = b.drain_sent();
    assert!(!other.iter().any(|u| matches!(u, OwnerToMaster::Adopted(_))), "{other:?}");
}

#[tokio::test]
async fn a_report_waits_until_every_attached_process_obeys_the_term() {
    let mut b = Bench::new().await;
    let mut process = b.attaches();
    b.obeys(NEW).await;
    b.receives(MasterToOwner::RequestReport { number: 1 }).await;
    assert_eq!(next_to_client(&mut process).await, OwnerToClient::Term(NEW));
    longer_than_quarantine(&b).await;
    assert_eq!(b.drain_sent(), vec![], "a write for a plan never heard of may be in flight");
    b.hears(ClientToOwner::TermObeyed { term: OLD, held: vec![] }).await;
    assert_eq!(b.drain_sent(), vec![], "a word about an earlier term is no answer");
    b.hears(ClientToOwner::TermObeyed { term: NEW, held: vec![] }).await;
    b.sent_to_master(reported).await;
}

#[tokio::test]
async fn a_report_waits_for_a_stopped_process_until_it_dies() {
    let mut b = Bench::new().await;
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let _process = b.attaches_as(pid);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    b.obeys(NEW).await;
    b.receives(MasterToOwner::RequestReport { number: 1 }).await;
    longer_than_quarantine(&b).await;
    assert_eq!(b.drain_sent(), vec![]);
    child.kill().unwrap();
    child.wait().unwrap();
    b.sent_to_master(reported).await;
}

#[tokio::test]
async fn a_slot_written_for_a_plan_never_heard_of_is_retired_and_held() {
    let mut b = Bench::new().await;
    b.writes(3, "who knows", ready(1));
    b.obeys(NEW).await;
    let slots = b.report().await;
    let [SlotEntry { slot: 3, epoch: 1, what: SlotContent::Held(extent) }] = &slots[..] else {
        panic!("{slots:?}");
    };
    assert_eq!(extent.len, 4096, "[I8] readers that the dead master sent may be reading");
    assert_eq!(b.sent_to_master(freed).await, b.at(3, 1));
}

#[tokio::test]
async fn model_tie_an_owner_obeys_the_greater_of_two_terms_with_one_number() {
    let b = Bench::new().await;
    assert_eq!(b.tables.obey(OLD), TermOrder::Same);
    let (lower, higher) = (Term { master: 69, ..OLD }, Term { master: 71, ..OLD });
    assert_eq!(b.tables.obey(lower), TermOrder::Older(OLD));
    assert_eq!(b.tables.obey(higher), TermOrder::New);
    assert_eq!(b.tables.obey(OLD), TermOrder::Older(higher));
}

#[tokio::test]
async fn a_plan_of_a_superseded_master_gets_no_grant() {
    let b = Bench::new().await;
    b.obeys(NEW).await;
    b.opens(OLD, 1, 0, 1).await;
    assert!(b.tables.lock().plans.is_empty());
    assert!(!b.tables.wait_open(PlanId { term: OLD, seq: 1 }).await, "asked, it is over");
}

#[tokio::test]
async fn model_abortfence_i10_an_aborted_plans_slot_is_held_until_its_producer_dropped_it() {
    let mut b = Bench::new().await;
    let mut process = b.attaches();
    let p = b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", writing(1));
    b.receives(MasterToOwner::EndPlan { plan: p.plan, at: p.at, cause: EndCause::Aborted }).await;
    assert_eq!(next_to_client(&mut process).await, OwnerToClient::Drop(p.plan));
    longer_than_quarantine(&b).await;
    assert_eq!(b.tables.gauges.snapshot().fencing, 1, "held, and counted");
    assert!(b.drain_sent().iter().all(|u| freed(u).is_none()));
    assert_eq!(b.word(0), writing(1));
    b.hears(ClientToOwner::Dropped(p.plan)).await;
    assert_eq!(b.sent_to_master(freed).await, p.at);
}

#[tokio::test]
async fn model_closeck_i11_a_commit_of_a_slot_that_moved_on_is_denied() {
    let mut b = Bench::new().await;
    let p = b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", ready(1));
    b.receives(MasterToOwner::EndPlan { plan: p.plan, at: p.at, cause: EndCause::Removed }).await;
    assert_eq!(b.sent_to_master(freed).await, p.at);
    b.drain_sent();
    let second = b.opens(OLD, 2, 0, 2).await;
    b.writes(0, "k2", ready(2));
    b.receives(MasterToOwner::Committed(vec![p])).await;
    assert!(
        b.drain_sent().contains(&OwnerToMaster::Retired(vec![p.at])),
        "the master believed a wrong commit"
    );
    b.receives(MasterToOwner::Committed(vec![second])).await;
    assert_eq!(b.tables.gauges.snapshot().objects, 1);
}

#[tokio::test]
async fn i10_a_plan_that_expired_is_fenced_first_and_kept_only_if_ready() {
    let mut b = Bench::new().await;
    for (seq, word) in [(1, ready(1)), (2, writing(1))] {
        let slot = seq as u32 - 1;
        let p = b.opens(OLD, seq, slot, 1).await;
        b.writes(slot, &format!("k{seq}"), word);
        b.receives(MasterToOwner::EndPlan { plan: p.plan, at: p.at, cause: EndCause::Expired })
            .await;
    }
    let adopted = b
        .sent_to_master(|u| match u {
            OwnerToMaster::Adopted(p) => Some(p.at),
            _ => None,
        })
        .await;
    assert_eq!(adopted, b.at(0, 1));
    assert_eq!(b.sent_to_master(freed).await, b.at(1, 1));
}

#[tokio::test]
async fn a_panic_in_mid_change_of_terms_changes_terms_all_the_same() {
    let mut b = Bench::new().await;
    let mut process = b.attaches();
    b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", ready(1));
    b.obeys(NEW).await;
    b.owner.call(crate::actor::Crash, LIMIT).await.unwrap_err();
    b.receives(MasterToOwner::RequestReport { number: 2 }).await;
    assert_eq!(
        next_to_client(&mut process).await,
        OwnerToClient::Drop(PlanId { term: OLD, seq: 1 })
    );
    b.hears(ClientToOwner::Dropped(PlanId { term: OLD, seq: 1 })).await;
    b.hears(ClientToOwner::TermObeyed { term: NEW, held: vec![] }).await;
    let slots = b.sent_to_master(reported).await;
    assert!(matches!(slots[0].what, SlotContent::Live { .. }), "{slots:?}");
}

#[tokio::test]
async fn model_lateempty_i17_a_claim_in_its_log_is_something_placed_on_a_rank() {
    let bench = Bench::with_log(64 << 10).await;
    assert!(!bench.tables.memory().1, "nothing was placed there");
    bench.heap.memory().fetch_add(BUMP_PTR_OFF, 4096).unwrap();
    assert!(bench.tables.memory().1);
}

#[tokio::test]
async fn i15_what_a_panic_kept_from_the_master_is_said_again() {
    let mut bench = Bench::with_log(64 << 10).await;
    // As if it had been evicted, and the report of that had been lost with the actor.
    bench.tables.lock().keys.insert(1, (1, Key::new(b"evicted").unwrap()));
    bench.tables.lock().log_reported.insert(2, 1);
    let _ = bench.owner.call(Crash, LIMIT).await;
    let mut retired = bench
        .sent_to_master(|up| match up {
            OwnerToMaster::Retired(list) => Some(list.clone()),
            _ => None,
        })
        .await;
    retired.sort_unstable_by_key(|at| at.slot);
    assert_eq!(retired, [bench.at(1, 1), bench.at(2, 1)]);
    assert!(!bench.tables.has_key(1, 1));
}

#[tokio::test]
async fn figures_that_a_reader_reports_stay_at_the_end_of_their_numbers() {
    let b = Bench::new().await;
    let touch = |bytes| Touch { slot: 0, epoch: 1, bytes, read: true };
    let served = ReadCounts { by_index: u64::MAX, by_cache: 1, by_master: u64::MAX };
    for _ in 0..2 {
        let list = vec![touch(u64::MAX), touch(1)];
        b.hears(ClientToOwner::Touched(TouchBatch { list, counts: served })).await;
    }
    let gauges = b.tables.gauges.snapshot();
    assert_eq!(
        (gauges.bytes_read, gauges.gets_served, gauges.gets_by_cache),
        (u64::MAX, u64::MAX, 2)
    );
    assert_eq!(b.owner.status().panics, 0);
}

#[tokio::test]
async fn i3_a_slot_written_for_an_unheard_plan_is_retired_whatever_extent_its_header_claims() {
    let mut b = Bench::new().await;
    let p = b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", ready(1));
    b.receives(MasterToOwner::Committed(vec![p])).await;
    // Slot 1 claims the bytes of slot 0, slot 2 bytes outside the arena.
    let g = *b.heap.layout();
    for (slot, base) in [(1, g.arena.offset), (2, u64::MAX - 4095)] {
        let fields = producer_fields(HASHER.id(b"x"), &ObjectDesc::at(base, 4096, 4096));
        b.heap.memory().write(g.header_off(slot), &fields).unwrap();
        b.heap.memory().store(g.header_off(slot) + PUBLISH_OFF, ready(1)).unwrap();
    }
    b.obeys(NEW).await;
    let slots = b.report().await;
    for slot in [1, 2] {
        let owner = b.heap.memory().load(g.header_off(slot) + OWNER_OFF).unwrap();
        assert_eq!(
            low(owner) & flag::LIVE,
            0,
            "READY and LIVE at an epoch that is given out again"
        );
        let held = |e: &&SlotEntry| {
            (e.slot, e.epoch) == (slot, 1) && matches!(e.what, SlotContent::Held(_))
        };
        assert_eq!(slots.iter().filter(held).count(), 1, "{slots:?}");
    }
    let mut freed = Vec::new();
    while freed.len() < 2 {
        let more = |up: &OwnerToMaster| match up {
            OwnerToMaster::Freed(list) => Some(list.clone()),
            _ => None,
        };
        freed.extend(b.sent_to_master(more).await);
        freed.sort();
        freed.dedup();
    }
    assert_eq!(freed, [b.at(1, 1), b.at(2, 1)]);
    assert_eq!([b.word(1), b.word(2)], [reserved(2); 2]);
    assert_eq!(b.word(0), ready(1), "what was committed stays");
}
