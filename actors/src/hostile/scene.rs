//! A master with an honest member and a hostile one, and a separate owner. Delivers messages to
//! both.

use crate::actor::ActorAddr;
use crate::executor::OwnedExecutor;
use crate::master::{Ask, FromRank, Join, LinkId, Master, MasterDurable, MasterTick, Members};
use crate::message::{
    ClientToOwner, Location, MasterToOwner, ObjMeta, OpenItem, OwnerToMaster, Purpose, RankInfo,
    Readiness, Request, Response, SeenView, SegmentId, Settings, SlotEntry, Term,
};
use crate::owner::tables::OwnerTables;
use crate::owner::{FromClient, FromMaster, NewTerm, Owner, OwnerDurable};
use crate::placement::Placement;
use crate::uplink::Uplink;
use nkv_store::Retention;
use nkv_store::SegmentLayout;
use nkv_store::clock::{Clock, ManualClock};
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::layout::Region;
use nkv_store::{AnonMemory, OsRandom};
use nkv_transport::grants::Grants;
use nkv_transport::wire::Address;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// A call that takes longer fails.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Frames queued for a member, at most.
const QUEUE: usize = 1024;
const TTL_MS: u64 = 1_000;
/// Bytes that a client with a plan has asked for.
const ASKED_BYTES: u64 = 4096;
/// Ranks of the cluster: the honest one and the hostile one.
pub(super) const WORLD: u32 = 2;
pub(super) const HONEST: u64 = 0x100;
pub(super) const LIAR: u64 = 0x200;
pub(super) const OWNED: u64 = 0x300;
pub(super) const PRODUCER: u64 = 7;
pub(super) const TERM: Term = Term { number: 1, master: 50 };
pub(super) const SLOTS: u32 = 8;
const UNIT: u64 = 4096;
/// Where the honest arena begins.
pub(super) const ARENA: u64 = 1 << 20;
pub(super) const LOG_SLOTS: u32 = 4;

pub(super) struct Member {
    pub segment_id: SegmentId,
    pub incarnation: u64,
    pub link: LinkId,
    // The master's term when it joined.
    term: Term,
    rx: mpsc::Receiver<MasterToOwner>,
    asked: u64,
}

impl Member {
    /// The master has ended its link.
    pub(super) fn is_cut(&self) -> bool {
        self.rx.is_closed()
    }
}

/// See the file's first paragraph.
pub(super) struct TestCluster {
    pub(super) master: ActorAddr<Master>,
    pub(super) owner: ActorAddr<Owner>,
    pub(super) tables: Arc<OwnerTables>,
    pub(super) heap: Heap,
    up: mpsc::Receiver<OwnerToMaster>,
    clock: ManualClock,
    honest: Option<Member>,
    pub(super) liar: Option<Member>,
    // The slots that the honest member reports.
    pub(super) held: Vec<SlotEntry>,
    requests: u64,
    _executor: OwnedExecutor,
}

pub(super) fn info(rank: u32, incarnation: u64) -> RankInfo {
    RankInfo {
        rank,
        segment_id: 0,
        world_size: WORLD,
        incarnation,
        boot_id: 1,
        numa_node: None,
        rack: Default::default(),
        pid: 1,
        control: Address::Tcp("127.0.0.1:1".into()),
        local: None,
        data: Some("127.0.0.1:2".into()),
        fabric: None,
        http: None,
        memory: Some("nkv.hostile.0.1".to_string()).into(),
        key_fingerprint: nkv_store::KeyHasher::new([7; 16]).fingerprint(),
        prefault: false,
        disk: false,
        layout: SegmentLayout {
            segment_bytes: ARENA + u64::from(SLOTS) * UNIT,
            slots: SLOTS + LOG_SLOTS,
            log_slots: LOG_SLOTS,
            header_base: UNIT,
            index: Region { offset: 2 * UNIT, len: 256 },
            log: Region {
                offset: ARENA - u64::from(LOG_SLOTS) * UNIT,
                len: u64::from(LOG_SLOTS) * UNIT,
            },
            arena: Region { offset: ARENA, len: u64::from(SLOTS) * UNIT },
            quarantine_ms: 5,
            ..SegmentLayout::default()
        },
    }
}

/// The segment of the owner under test.
pub(super) fn owned_config() -> HeapConfig {
    HeapConfig {
        incarnation: OWNED,
        arena_bytes: u64::from(SLOTS) * UNIT,
        log_bytes: u64::from(LOG_SLOTS) * UNIT,
        quarantine_ms: 5,
        ..HeapConfig::default()
    }
}

impl TestCluster {
    pub(super) async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance_ms(1_000_000);
        let executor = OwnedExecutor::here(Arc::new(clock.clone()));
        let master = start_master(&executor, &clock).await;
        let config = owned_config();
        let memory = AnonMemory::new(config.segment_bytes()).expect("some pages");
        let heap = Heap::format(Arc::new(memory), &config).expect("a heap");
        let tables = Arc::new(OwnerTables::new(Arc::new(Grants::new()), &heap, Arc::default()));
        let uplink = Arc::new(Uplink::default());
        let up = uplink.capture();
        let durable = OwnerDurable {
            replication: Arc::default(),
            heap: heap.clone(),
            hasher: nkv_store::KeyHasher::new([7; 16]),
            tables: tables.clone(),
            uplink,
            evictor: Arc::new(OnceLock::new()),
            clock: Arc::new(clock.clone()),
            log_claim_ttl_ms: 5_000,
            hot_reads: 0,
            holders: Vec::new(),
            demotion: None,
        };
        let owner = ActorAddr::start(executor.executor(), durable, Arc::new(|_| {})).await;
        let owner = owner.expect("an owner");
        tables.obey(TERM);
        let _ = owner.call(NewTerm, LIMIT).await;
        let (honest, liar) = (None, None);
        let mut scene = Self {
            master,
            owner,
            tables,
            heap,
            up,
            clock,
            honest,
            liar,
            held: Vec::new(),
            requests: 0,
            _executor: executor,
        };
        scene.honest = scene.join(info(0, HONEST), (Term::default(), false), Vec::new()).await;
        scene.honest_reports().await;
        scene.liar = scene.join(info(1, LIAR), (Term::default(), false), Vec::new()).await;
        scene
    }

    pub(super) async fn join(
        &mut self,
        info: RankInfo,
        (obeyed, holds): (Term, bool),
        siblings: Vec<(u32, u64)>,
    ) -> Option<Member> {
        self.join_with(info, (obeyed, holds, SeenView::default()), siblings).await
    }

    pub(super) async fn join_with(
        &mut self,
        info: RankInfo,
        (obeyed, holds, seen): (Term, bool, SeenView),
        siblings: Vec<(u32, u64)>,
    ) -> Option<Member> {
        let (tx, rx) = mpsc::channel(QUEUE);
        let (segment_id, incarnation) = (info.id(), info.incarnation);
        // The honest member confirms no plans, so it joins as one in the master's process.
        let own = incarnation != LIAR;
        let of_this_life = own && info.rank == 0;
        let join = Join { info, obeyed, holds, seen, siblings, own, of_this_life, tx };
        let joined = self.master.call(join, LIMIT).await.expect("the master answers").ok()?;
        let (link, term) = (joined.link, joined.term);
        Some(Member { segment_id, incarnation, link, term, rx, asked: 0 })
    }

    /// Answers the master's frames for the honest member.
    pub(super) async fn honest_reports(&mut self) {
        let Some(member) = &mut self.honest else { return };
        while let Ok(down) = member.rx.try_recv() {
            let up = match down {
                MasterToOwner::RequestReport { number } => {
                    OwnerToMaster::Report { number, slots: self.held.clone(), last: true }
                }
                MasterToOwner::View(view) => OwnerToMaster::ViewSeen { number: view.number },
                MasterToOwner::AskLog { number, .. } => OwnerToMaster::LogAnswer {
                    number,
                    served: Vec::new(),
                    removed: Vec::new(),
                    taken: 0,
                },
                _ => continue,
            };
            let (segment_id, incarnation, link) =
                (member.segment_id, member.incarnation, member.link);
            let _ = self.master.call(FromRank { segment_id, incarnation, link, up }, LIMIT).await;
        }
    }

    /// A hello: only one of a rank has an effect here.
    pub(super) async fn joins(&mut self, purpose: Purpose) {
        let Purpose::Rank { info, obeyed, holds, seen, siblings } = purpose else { return };
        // No other process can join as the honest rank: its link is up, or it joins again at once.
        if info.rank == 0 {
            return;
        }
        if let Some(member) = self.join_with(*info, (obeyed, holds, seen), siblings).await {
            self.liar = Some(member);
        }
    }

    /// False if the frame is refused: then the link is cut.
    pub(super) async fn receive_from_member(&mut self, up: OwnerToMaster) -> bool {
        let Some(member) = &mut self.liar else { return false };
        while let Ok(down) = member.rx.try_recv() {
            if let MasterToOwner::RequestReport { number } = down {
                member.asked = number;
            }
        }
        let asked = member.asked;
        // Hostile reports use the requested number, so that they are not ignored as old.
        let up = match up {
            OwnerToMaster::Report { slots, last, .. } => {
                OwnerToMaster::Report { number: asked, slots, last }
            }
            other => other,
        };
        let (segment_id, incarnation, link) = (member.segment_id, member.incarnation, member.link);
        let _ = self.master.call(FromRank { segment_id, incarnation, link, up }, LIMIT).await;
        self.liar.as_ref().is_some_and(|member| !member.is_cut())
    }

    pub(super) async fn client_asks(&mut self, request: Request) {
        let ask = Ask { producer: PRODUCER, request };
        // Some answers need messages of owners first, so the answer is not awaited.
        let _ = self.master.push(ask).await;
    }

    /// Delivers a frame as a segment's link does; false if it is refused.
    pub(super) async fn receive_from_master(&mut self, down: MasterToOwner) -> bool {
        let info = RankInfo { segment_id: 0, ..self.owned() };
        if info.check_to_owner(&down).is_err() {
            return false;
        }
        match &down {
            MasterToOwner::View(view) => {
                self.tables.keep_view(view.clone());
                return true;
            }
            MasterToOwner::PlanOpened(p) if p.at.incarnation == OWNED => {
                self.tables.record(p, self.clock.now_ns());
            }
            _ => {}
        }
        let _ = self.owner.call(FromMaster(down), LIMIT).await;
        while self.up.try_recv().is_ok() {}
        true
    }

    fn owned(&self) -> RankInfo {
        let incarnation = self.heap.identity().incarnation;
        RankInfo { incarnation, layout: *self.heap.layout(), ..info(0, OWNED) }
    }

    /// Delivers a frame as the owner's side of an attach connection does; false if it is refused.
    pub(super) async fn receive_from_process(&mut self, message: ClientToOwner) -> bool {
        if message.check(self.heap.layout()).is_err() {
            return false;
        }
        let _ = match message {
            ClientToOwner::CheckPlan(plan) => {
                let _ = self.tables.standing(plan);
                Ok(())
            }
            ClientToOwner::Detach => Ok(()),
            frame => {
                let from = Some((1, PRODUCER));
                self.owner.call(FromClient { from, frame }, LIMIT).await
            }
        };
        true
    }

    /// Checks an answer as a handle does; false if it is refused. Asserts that locations in an
    /// accepted one are within the segment.
    pub(super) fn to_client(&self, response: &Response) -> bool {
        if response.check().is_err() {
            return false;
        }
        let g = self.heap.layout();
        let possible = |meta: &ObjMeta| {
            let possible = meta.check(g).is_ok();
            assert!(!possible || meta.object.bytes_total <= g.payloads().len);
            possible
        };
        let anywhere = |location: &Location| match location {
            Location::Memory(meta) => possible(meta),
            Location::Disk(_) => true,
        };
        match response {
            Response::Plans(list) => list.iter().flatten().all(|plan| {
                let good = possible(&plan.meta) && plan.check(ASKED_BYTES).is_ok();
                assert!(!good || plan.write_ttl_ms.checked_mul(1_000_000).is_some());
                good
            }),
            Response::Locations(list) => list.iter().flatten().flatten().all(anywhere),
            Response::Prefix(list) => list.iter().all(anywhere),
            Response::Readiness(list) => list.iter().all(|(_, of)| match of {
                Readiness::Ready(places) => places.iter().all(possible),
                Readiness::Writing(meta) => possible(meta),
                Readiness::Ended(_) => true,
            }),
            _ => true,
        }
    }

    pub(super) async fn time_passes(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.honest_lives().await;
        let _ = self.master.call(MasterTick, LIMIT).await;
    }

    /// The actors have not panicked, and the hostile member does not keep others from a put.
    pub(super) async fn others_are_served(&mut self) {
        for status in [self.master.status(), self.owner.status()] {
            let why = status.last_error.unwrap_or_default();
            assert_eq!(status.panics, 0, "the {} panicked: {why}", status.name);
        }
        let held = self.honest.as_ref().map(|m| m.incarnation);
        assert_eq!(held, Some(HONEST));
        self.serves_a_put().await;
    }

    /// If the hostile member made the master raise its term, every link was cut: the honest member
    /// joins again.
    pub(super) async fn honest_stays(&mut self) {
        let cut = self.honest.as_ref().filter(|m| m.rx.is_closed()).map(|m| m.term);
        if let Some(obeyed) = cut {
            self.honest = self.join(info(0, HONEST), (obeyed, false), Vec::new()).await;
        }
        self.honest_reports().await;
    }

    async fn serves_a_put(&mut self) {
        self.honest_stays().await;
        // The master waits one TTL for ranks that have not reported; the honest rank sends frames
        // meanwhile.
        for _ in 0..2 * PARTS {
            self.time_passes(TTL_MS / PARTS).await;
            self.honest_reports().await;
        }
        self.requests += 1;
        let key = b"of somebody else entirely".to_vec();
        let items = vec![OpenItem {
            key,
            bytes_total: 1,
            preferred_rank: Some(0),
            medium: Default::default(),
            further: Vec::new(),
            nearest: None,
            page_bytes: 0,
            replicas: 1,
            replica_of: None,
            retention: Retention::Usual,
        }];
        let request =
            Request::OpenForWrite { request: u64::MAX - self.requests, wait_ms: 0, items };
        let ask = Ask { producer: PRODUCER + 1, request };
        let answer = self.master.call(ask, LIMIT).await;
        let honest = self.honest.is_some();
        assert!(matches!(answer, Ok(Response::Plans(_) | Response::Failed(_))), "{answer:?}");
        assert!(honest, "the honest rank was refused");
    }

    async fn honest_lives(&mut self) {
        let Some(member) = &self.honest else { return };
        let (segment_id, incarnation, link) = (member.segment_id, member.incarnation, member.link);
        let up = OwnerToMaster::Retired(Vec::new());
        let _ = self.master.call(FromRank { segment_id, incarnation, link, up }, LIMIT).await;
    }
}

/// Steps in which a TTL passes: the master would take one long step for a pause of its own.
const PARTS: u64 = 8;

async fn start_master(executor: &OwnedExecutor, clock: &ManualClock) -> ActorAddr<Master> {
    let members = Members::new(TERM, (0, WORLD), 0, clock.now_ms());
    let members = Arc::new(members.with_placement(Placement::Topology));
    let durable = MasterDurable {
        hasher: nkv_store::KeyHasher::new([7; 16]),
        key_pool: Arc::default(),
        world_size: WORLD,
        ttl_ms: TTL_MS,
        full_wait_ms: 50,
        hot_replicas: 3,
        settings: Settings {
            page_bytes: 4096,
            write_ttl_ms: 100,
            ttl_ms: TTL_MS,
            call_timeout_ms: 500,
            master_lease_ms: 0,
        },
        members,
        next_plan: Arc::new(AtomicU64::new(1)),
        boot_id: 1,
        clock: Arc::new(clock.clone()),
        random: Arc::new(OsRandom),
    };
    ActorAddr::start(executor.executor(), durable, Arc::new(|_| {})).await.expect("a master")
}
