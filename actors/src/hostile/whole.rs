//! A scene with known state, and the checks that it has not changed: an object in the honest rank's
//! segment, one in the owner's, and a plan granted in the hostile rank's.

use super::lies::HostileInput;
use super::scene::{ARENA, LIAR, LIMIT, LOG_SLOTS, Member, OWNED, SLOTS, TestCluster, info};
use super::seeds;
use crate::master::{Ask, LinkDown, MasterTick};
use crate::message::*;
use nkv_store::Retention;
use nkv_store::heap::FIRST_EPOCH;
use nkv_store::layout::{HEADER_BYTES, PUBLISH_OFF};
use nkv_store::object::{live_slots, producer_fields, ready};
use std::collections::HashSet;
use std::ops::Range;

const UNIT: u64 = 4096;
const CLIENT: u64 = 0x71;
/// Slot of the owner's object.
const KEPT_SLOT: u32 = LOG_SLOTS + 5;
/// Slot of an object that is written and not committed.
const WRITTEN_SLOT: u32 = LOG_SLOTS + 6;

/// A scene and its known state.
pub(super) struct Whole {
    pub scene: TestCluster,
    // The object in the honest rank's segment.
    object: ObjMeta,
    // The plan in the hostile rank's segment.
    pub granted: PlanDesc,
    requests: u64,
}

fn item(key: &[u8], rank: u32) -> OpenItem {
    OpenItem {
        key: key.to_vec(),
        bytes_total: UNIT,
        preferred_rank: Some(rank),
        medium: Default::default(),
        further: Vec::new(),
        nearest: None,
        page_bytes: 4096,
        replicas: 1,
        replica_of: None,
        retention: Retention::Usual,
    }
}

fn key(text: &str) -> KeyBytes {
    KeyBytes::from(text.as_bytes())
}

fn reference(plan: &PlanDesc) -> PlanRef {
    PlanRef { plan: plan.plan, at: plan.meta.at, key: plan.meta.key }
}

fn bytes_of(plan: &PlanDesc) -> Range<u64> {
    plan.meta.object.extent.offset..plan.meta.object.extent.end()
}

/// Asserts that no two extents share a byte, and that all are in the arena.
fn are_apart(mut extents: Vec<Range<u64>>, arena: Range<u64>) {
    extents.sort_by_key(|e| e.start);
    for e in &extents {
        assert!(e.start >= arena.start && e.end <= arena.end, "{e:?} is not within {arena:?}");
    }
    for pair in extents.windows(2) {
        assert!(pair[0].end <= pair[1].start, "one byte belongs to two: {pair:?}");
    }
}

impl TestCluster {
    async fn asks(&self, request: Request) -> Response {
        let ask = Ask { producer: CLIENT, request };
        self.master.call(ask, LIMIT).await.expect("an answer")
    }

    async fn opens(&mut self, request: u64, items: Vec<OpenItem>) -> Vec<PlanDesc> {
        let open = Request::OpenForWrite { request, wait_ms: 0, items };
        match self.asks(open).await {
            Response::Plans(plans) => plans.into_iter().map(|p| p.expect("a plan")).collect(),
            other => panic!("no plans: {other}"),
        }
    }

    /// The hostile member's link ends, and it joins again.
    pub(super) async fn liar_back(&mut self) {
        self.liar_leaves().await;
        self.liar = self.join(info(1, LIAR), (Term::default(), false), Vec::new()).await;
        assert!(self.liar.is_some(), "it may come back");
    }

    async fn liar_leaves(&mut self) {
        if let Some(Member { segment_id, link, .. }) = self.liar.take() {
            let _ = self.master.call(LinkDown { segment_id, link }, LIMIT).await;
        }
    }

    async fn liar_reports(&mut self) {
        let nothing = OwnerToMaster::Report { number: 0, slots: Vec::new(), last: true };
        assert!(self.receive_from_member(nothing).await, "an honest report");
    }

    async fn liar_is_there(&mut self) {
        if self.liar.as_ref().is_none_or(Member::is_cut) {
            self.liar_back().await;
            self.liar_reports().await;
        }
    }

    /// Opens a plan at the owner and writes its object, as master and producer do.
    async fn owner_has(&mut self, slot: u32, seq: u64, text: &str) -> PlanRef {
        let at = SlotRef { slot, ..seeds::at(OWNED) };
        let plan = PlanId { seq, ..seeds::PLAN };
        let payload = seeds::owned_arena() + u64::from(slot - LOG_SLOTS) * UNIT;
        let (opened, token) = (seeds::opened(OWNED, payload), 100 + seq);
        let opened = PlanOpened { plan, at, token, key: key(text), ..opened };
        assert!(self.receive_from_master(MasterToOwner::PlanOpened(opened)).await);
        let (memory, off) = (self.heap.memory(), self.heap.layout().header_off(slot));
        let id = nkv_store::KeyHasher::new([7; 16]).id(text.as_bytes());
        memory
            .write(off, &producer_fields(id, &ObjectDesc::at(payload, UNIT, UNIT as u32)))
            .expect("memory");
        memory.store(off + PUBLISH_OFF, ready(FIRST_EPOCH)).expect("memory");
        PlanRef { plan, at, key: id }
    }

    /// Delivers the message from a peer that may send it; true if it was accepted.
    pub(super) async fn receives(&mut self, input: HostileInput) -> bool {
        match input {
            HostileInput::Hello(info, seen, siblings) => {
                self.liar_leaves().await;
                self.liar = self.join_with(*info, (Term::default(), false, seen), siblings).await;
                self.liar.is_some()
            }
            HostileInput::Settings(settings) => settings.check().is_ok(),
            HostileInput::OwnerToMaster(report @ OwnerToMaster::Report { .. }) => {
                self.liar_back().await;
                self.receive_from_member(report).await
            }
            HostileInput::OwnerToMaster(up) => {
                self.liar_is_there().await;
                self.receive_from_member(up).await
            }
            HostileInput::Request(request) => match self.asks(request).await {
                Response::Failed(_) => false,
                Response::Done(list) => list.iter().any(Result::is_ok),
                Response::Plans(list) => list.iter().any(Result::is_ok),
                _ => true,
            },
            HostileInput::MasterToOwner(down) => self.receive_from_master(down).await,
            HostileInput::ClientToOwner(message) => self.receive_from_process(message).await,
            HostileInput::Response(response) => self.to_client(&response),
        }
    }
}

impl Whole {
    pub(super) async fn new() -> Self {
        let mut scene = TestCluster::new().await;
        scene.liar_reports().await;
        let object = scene.opens(1, vec![item(b"of the honest", 0)]).await.remove(0);
        let done = scene.asks(Request::Commit(vec![reference(&object)])).await;
        assert!(matches!(&done, Response::Done(list) if list[0].is_ok()), "{done}");
        let meta = object.meta;
        let what = SlotContent::Live {
            object: meta.object,
            key: key("of the honest"),
            set: ReplicaSet::NONE,
            retention: Retention::Usual,
        };
        scene.held = vec![SlotEntry { slot: meta.at.slot, epoch: meta.at.epoch, what }];
        let granted = scene.opens(2, vec![item(b"of the liar", 1)]).await.remove(0);
        let done = scene.owner_has(KEPT_SLOT, 0, "kept").await;
        assert!(scene.receive_from_master(MasterToOwner::Committed(vec![done])).await);
        scene.owner_has(WRITTEN_SLOT, 2, "written").await;
        Self { scene, object: meta, granted, requests: 2 }
    }

    /// Asserts that the known state has not changed.
    pub(super) async fn check(&mut self) {
        for status in [self.scene.master.status(), self.scene.owner.status()] {
            let why = status.last_error.unwrap_or_default();
            assert_eq!(status.panics, 0, "the {} panicked: {why}", status.name);
        }
        self.check_owner();
        self.scene.honest_stays().await;
        self.check_index().await;
        self.check_allocator().await;
    }

    /// One object is live in the owner's segment, at its slot, and one is READY and not committed;
    /// the owner's gauges agree.
    fn check_owner(&self) {
        let heap = &self.scene.heap;
        let (g, memory) = (heap.layout(), heap.memory());
        let arena = g.arena.offset..g.arena.offset + g.arena.len;
        let mut extents = Vec::new();
        let mut ids = HashSet::new();
        for live in live_slots(heap) {
            let mut header = [0; HEADER_BYTES as usize];
            memory.read(g.header_off(live.slot), &mut header).expect("memory");
            let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8"));
            extents.push(word(16)..word(16) + live.bytes_total);
            assert!(ids.insert((word(0), word(32))), "one key is LIVE twice");
        }
        are_apart(extents.clone(), arena);
        let kept: Vec<_> = live_slots(heap).map(|l| (l.slot, l.epoch)).collect();
        let there = [(KEPT_SLOT, FIRST_EPOCH), (WRITTEN_SLOT, FIRST_EPOCH)];
        assert_eq!(kept, there, "what is live, or could be, in the owner's segment");
        let gauges = self.scene.tables.gauges.snapshot();
        assert_eq!((gauges.objects, gauges.live_bytes), (1, UNIT), "what the owner counts");
        let used = gauges.live_bytes + gauges.open_bytes + gauges.held_bytes;
        assert_eq!(gauges.heap_used, used);
        assert!(used <= gauges.heap_total);
        let plans = self.scene.tables.lock().plans.len() as u64;
        assert!(gauges.plans_open <= plans, "a slot is open for a plan that nobody knows");
    }

    /// The honest rank's object is found at its location, and only its bytes are allocated.
    async fn check_index(&self) {
        let keys = vec![key("of the honest")];
        let found = self
            .scene
            .asks(Request::GetLocation { keys, gone: Vec::new(), promote: Default::default() })
            .await;
        match &found {
            Response::Locations(list) => {
                assert_eq!(list[..], [Ok(vec![self.object.clone().into()])])
            }
            other => panic!("no locations: {other}"),
        }
        let Response::Stats(stats) = self.scene.asks(Request::Stats).await else {
            panic!("no figures")
        };
        let arena = u64::from(SLOTS) * UNIT;
        for rank in &stats.ranks {
            assert!(rank.allocated_bytes + rank.largest_hole <= arena, "{rank:?}");
        }
        assert_eq!(stats.ranks[0].allocated_bytes, UNIT, "of the honest rank");
        assert!(stats.objects >= 1 && stats.objects <= u64::from(SLOTS + LOG_SLOTS) + 1);
    }

    /// The rest of the hostile rank's arena is granted once, beside the plan that was granted
    /// before; and no commit is acknowledged before its owner has confirmed the plan.
    async fn check_allocator(&mut self) {
        self.scene.liar_is_there().await;
        self.requests += 1;
        let rest = |n: u32| item(format!("rest {} {n}", self.requests).as_bytes(), 1);
        let items = (1..SLOTS).map(rest).collect();
        let mut plans = self.scene.opens(self.requests, items).await;
        let last = plans.last().cloned().expect("some");
        self.is_not_acknowledged(&last).await;
        plans.push(self.granted.clone());
        let slots: HashSet<_> = plans.iter().map(|p| p.meta.at.slot).collect();
        assert_eq!(slots.len(), plans.len(), "a slot was granted twice: {plans:?}");
        let managed = LOG_SLOTS..LOG_SLOTS + SLOTS;
        assert!(slots.iter().all(|slot| managed.contains(slot)), "{slots:?}");
        are_apart(plans.iter().map(bytes_of).collect(), ARENA..ARENA + u64::from(SLOTS) * UNIT);
    }

    async fn is_not_acknowledged(&self, plan: &PlanDesc) {
        let ask = Ask { producer: CLIENT, request: Request::Commit(vec![reference(plan)]) };
        let answer = self.scene.master.call(ask, LIMIT);
        let later = async {
            let _ = self.scene.master.push(MasterTick).await;
            // Handled after the commit and its consequences.
            let _ = self.scene.asks(Request::View).await;
        };
        tokio::select! {
            biased;
            answer = answer => panic!("acknowledged, and nobody has confirmed it: {answer:?}"),
            () = later => {}
        }
    }
}
