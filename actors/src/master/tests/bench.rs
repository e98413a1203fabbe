//! A Master on an arbiter of its own with a manual clock, and ranks that send only what a test
//! makes them send.

use crate::actor::ActorAddr;
use crate::executor::OwnedExecutor;
use crate::master::{Ask, DOWNLINK_FRAMES, FromRank, Join, LinkId, Master, MasterDurable, Members};
use crate::message::{
    CopyPlan, ExportedMemory, KeyBytes, Location, MasterToOwner, ObjectDesc, OpenItem,
    OwnerToMaster, PlanDesc, PlanRef, RankInfo, Refusal, ReplicaSet, Request, Response, SeenView,
    SegmentId, Settings, SlotContent, SlotEntry, SlotRef, Term,
};
use crate::placement::Placement;
use crate::{ErrorKind, Result};
use nkv_store::KeyHasher;
use nkv_store::Retention;
use nkv_store::SegmentLayout;
use nkv_store::arena::Extent;
use nkv_store::clock::{BootClock, Clock, ManualClock};
use nkv_store::layout::Region;
use nkv_transport::wire::Address;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc;

pub(super) const LIMIT: Duration = nkv_pace::HANGS;
pub(super) const TTL_MS: u64 = 1_000;
pub(super) const UNIT: u64 = 4096;
/// Slots of a fake rank, and pages of its arena.
pub(super) const SLOTS: u32 = 4;
const BASE: u64 = 1 << 20;

pub(super) struct Bench {
    pub master: ActorAddr<Master>,
    pub members: Arc<Members>,
    pub clock: ManualClock,
    /// Whether ranks that join must report which plans they have recorded.
    pub confirming: bool,
    world: u32,
    _executor: OwnedExecutor,
}

/// One simulated rank. It acknowledges views while `keeps_views` is set.
pub(super) struct Rank {
    pub info: RankInfo,
    pub rx: mpsc::Receiver<MasterToOwner>,
    pub term: Term,
    link: LinkId,
    master: ActorAddr<Master>,
    pub keeps_views: bool,
}

/// Computes the identities of keys.
pub(super) const HASHER: KeyHasher = KeyHasher::new([7; 16]);

pub(in crate::master) fn info(rank: u32, incarnation: u64, world: u32) -> RankInfo {
    RankInfo {
        rank,
        segment_id: 0,
        world_size: world,
        incarnation,
        boot_id: 1,
        numa_node: None,
        rack: Default::default(),
        pid: 1,
        control: Address::Tcp("127.0.0.1:1".into()),
        local: None,
        data: None,
        fabric: None,
        memory: ExportedMemory::Private,
        key_fingerprint: HASHER.fingerprint(),
        prefault: false,
        disk: false,
        http: None,
        layout: SegmentLayout {
            segment_bytes: BASE + u64::from(SLOTS) * UNIT,
            slots: SLOTS,
            header_base: UNIT,
            arena: Region { offset: BASE, len: u64::from(SLOTS) * UNIT },
            quarantine_ms: 5,
            ..SegmentLayout::default()
        },
    }
}

pub(super) fn term(number: u64, master: u64) -> Term {
    Term { number, master }
}

pub(super) fn view(term: Term, number: u64, incarnations: &[u64]) -> SeenView {
    SeenView { term, number, incarnations: incarnations.to_vec() }
}

pub(super) fn key(k: &str) -> KeyBytes {
    KeyBytes::from(k.as_bytes())
}

pub(super) fn extent_of(slot: u32) -> u64 {
    BASE + u64::from(slot) * UNIT
}

pub(super) fn live(slot: u32, epoch: u32, k: &str) -> SlotEntry {
    let what = SlotContent::Live {
        object: ObjectDesc {
            extent: Extent { offset: extent_of(slot), len: UNIT },
            bytes_total: UNIT,
            page_bytes: 4096,
        },
        key: key(k),
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    };
    SlotEntry { slot, epoch, what }
}

pub(super) fn held(slot: u32, epoch: u32) -> SlotEntry {
    let what = SlotContent::Held(Extent { offset: extent_of(slot), len: UNIT });
    SlotEntry { slot, epoch, what }
}

impl Bench {
    pub(super) async fn new(world: u32) -> Self {
        Self::with_lease(world, 0).await
    }

    /// Ranks elect the master, which counts on each for a lease.
    pub(super) async fn with_lease(world: u32, lease_ms: u64) -> Self {
        Self::made(world, lease_ms, Placement::Hash).await
    }

    /// Objects are placed so.
    pub(super) async fn placing(world: u32, placement: Placement) -> Self {
        Self::made(world, 0, placement).await
    }

    async fn made(world: u32, lease_ms: u64, placement: Placement) -> Self {
        let executor = OwnedExecutor::arbiter().unwrap();
        let clock = ManualClock::default();
        clock.advance_ms(1_000_000);
        let members = Members::new(term(1, 50), (0, world), lease_ms, clock.now_ms());
        let members = Arc::new(members.with_placement(placement));
        let durable = MasterDurable {
            world_size: world,
            ttl_ms: TTL_MS,
            full_wait_ms: 50,
            hot_replicas: 3,
            settings: Settings {
                page_bytes: 4096,
                write_ttl_ms: 100,
                ttl_ms: TTL_MS,
                call_timeout_ms: 500,
                master_lease_ms: lease_ms,
            },
            hasher: HASHER,
            key_pool: Arc::default(),
            members: members.clone(),
            next_plan: Arc::new(AtomicU64::new(1)),
            boot_id: nkv_store::boot_id(),
            clock: Arc::new(clock.clone()),
            random: Arc::new(nkv_store::OsRandom),
        };
        let master =
            ActorAddr::start(executor.executor(), durable, Arc::new(|_| {})).await.unwrap();
        Self { master, members, clock, confirming: false, world, _executor: executor }
    }

    /// All ranks have joined for the first time and reported empty heaps. They are in the master's
    /// process, so no commit waits until they have recorded its plan.
    pub(super) async fn whole(world: u32) -> (Self, Vec<Rank>) {
        Self::new(world).await.whole_of(world).await
    }

    /// The same, with ranks in other processes than the master's.
    pub(super) async fn whole_apart(world: u32) -> (Self, Vec<Rank>) {
        let bench = Self::new(world).await;
        Self { confirming: true, ..bench }.whole_of(world).await
    }

    async fn whole_of(self, world: u32) -> (Self, Vec<Rank>) {
        let bench = self;
        let mut ranks = Vec::new();
        for rank in 0..world {
            ranks.push(bench.join(rank, 100 + u64::from(rank)).await.unwrap());
        }
        for r in &mut ranks {
            r.reports(Vec::new()).await;
        }
        (bench, ranks)
    }

    pub(super) async fn join(
        &self,
        rank: u32,
        incarnation: u64,
    ) -> std::result::Result<Rank, Refusal> {
        self.joins(info(rank, incarnation, self.world), Term::default(), false, SeenView::default())
            .await
    }

    /// A rank with one more segment of its own incarnation.
    pub(super) async fn mount(
        &self,
        segment_id: SegmentId,
        incarnation: u64,
    ) -> std::result::Result<Rank, Refusal> {
        let info = RankInfo {
            segment_id: segment_id.segment,
            ..info(segment_id.rank, incarnation, self.world)
        };
        self.joins(info, Term::default(), false, SeenView::default()).await
    }

    /// Joins again, with nothing ever placed on it.
    pub(super) async fn rejoin(&self, rank: u32, incarnation: u64) -> Rank {
        let obeyed = self.members.term();
        let info = info(rank, incarnation, self.world);
        self.joins(info, obeyed, false, SeenView::default()).await.unwrap()
    }

    /// Joins with objects of an earlier master.
    pub(super) async fn join_from(
        &self,
        rank: u32,
        incarnation: u64,
        obeyed: Term,
        seen: SeenView,
    ) -> std::result::Result<Rank, Refusal> {
        self.joins(info(rank, incarnation, self.world), obeyed, true, seen).await
    }

    pub(super) async fn joins(
        &self,
        info: RankInfo,
        obeyed: Term,
        holds: bool,
        seen: SeenView,
    ) -> std::result::Result<Rank, Refusal> {
        self.joins_with(info, (obeyed, holds, seen), Vec::new()).await
    }

    /// Joins as the first segment of a node that has others.
    pub(super) async fn joins_with(
        &self,
        info: RankInfo,
        (obeyed, holds, seen): (Term, bool, SeenView),
        siblings: Vec<(u32, u64)>,
    ) -> std::result::Result<Rank, Refusal> {
        let (tx, rx) = mpsc::channel(DOWNLINK_FRAMES);
        let own = !self.confirming;
        let of_this_life = own && info.rank == 0;
        let join =
            Join { info: info.clone(), obeyed, holds, seen, siblings, own, of_this_life, tx };
        let joined = self.master.call(join, LIMIT).await.unwrap()?;
        Ok(Rank {
            info,
            rx,
            term: joined.term,
            link: joined.link,
            master: self.master.clone(),
            keeps_views: true,
        })
    }

    pub(super) async fn ask(&self, request: Request) -> Response {
        self.master.call(Ask { producer: 7, request }, LIMIT).await.unwrap()
    }

    /// Starts a call whose answer comes later.
    pub(super) fn asks(&self, request: Request) -> tokio::task::JoinHandle<Response> {
        let master = self.master.clone();
        tokio::spawn(async move { master.call(Ask { producer: 7, request }, LIMIT).await.unwrap() })
    }

    pub(super) async fn open(&self, request: u64, k: &str, rank: u32) -> Result<PlanDesc> {
        match self.ask(opening(request, k, rank)).await {
            Response::Plans(mut list) => list.remove(0),
            Response::Failed(e) => Err(e),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn done(&self, request: Request) -> Result<()> {
        done(self.ask(request).await)
    }

    pub(super) async fn commit(&self, plan: &PlanDesc) -> Result<()> {
        self.done(Request::Commit(vec![plan_ref(plan)])).await
    }

    pub(super) async fn found(&self, k: &str) -> std::result::Result<SlotRef, ErrorKind> {
        match self
            .ask(Request::GetLocation {
                keys: vec![key(k)],
                gone: Vec::new(),
                promote: Default::default(),
            })
            .await
        {
            Response::Locations(mut list) => {
                list.remove(0).map(|m| at(&m[0])).map_err(|e| e.kind())
            }
            Response::Failed(e) => Err(e.kind()),
            other => panic!("{other:?}"),
        }
    }

    /// Returns once the master has handled a tick that began after this call, and so has seen the
    /// current time. No other message may be in flight to the master.
    pub(super) async fn ticks(&self) {
        let before = self.master.status().handled;
        let handled = async || self.master.status().handled;
        // The message in its handler now may be a tick that read the clock before.
        eventually("the master's timer comes up", handled, |n| *n >= before + 2).await;
    }

    /// Lets a TTL pass in which these ranks send frames. In small steps: the master would take one
    /// long step for a pause of its own.
    pub(super) async fn a_ttl_passes(&self, ranks: &[&Rank]) {
        for _ in 0..10 {
            self.clock.advance_ms(TTL_MS / 8);
            for r in ranks {
                r.sends(OwnerToMaster::Retired(Vec::new())).await;
            }
            self.ticks().await;
        }
    }

    /// Sends the master 50 requests, with 2 ms between them for its own work.
    pub(super) async fn goes_on_meanwhile(&self) {
        for _ in 0..50 {
            assert!(matches!(self.ask(Request::View).await, Response::View(_)));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Puts an object of 4 KiB: open and commit.
    pub(super) async fn put(&self, request: u64, k: &str, rank: &mut Rank) -> PlanDesc {
        let plan = self.open(request, k, rank.info.rank).await.unwrap();
        self.commit(&plan).await.unwrap();
        plan
    }
}

/// Polls every few milliseconds until the value is as wanted, within [`LIMIT`].
pub(super) async fn eventually<T: Debug>(
    what: &str,
    mut poll: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) {
    let until_ms = BootClock.now_ms() + nkv_pace::HANGS_MS;
    let mut found = poll().await;
    while !wanted(&found) {
        assert!(BootClock.now_ms() < until_ms, "not within {LIMIT:?}: {what}; found {found:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
        found = poll().await;
    }
}

pub(super) fn done(response: Response) -> Result<()> {
    match response {
        Response::Done(mut list) => list.remove(0),
        Response::Failed(e) => Err(e),
        other => panic!("{other:?}"),
    }
}

pub(super) fn opening(request: u64, k: &str, rank: u32) -> Request {
    let item = OpenItem {
        key: k.as_bytes().to_vec(),
        bytes_total: UNIT,
        preferred_rank: Some(rank),
        medium: Default::default(),
        further: Vec::new(),
        nearest: None,
        page_bytes: 4096,
        replicas: 1,
        replica_of: None,
        retention: Retention::Usual,
    };
    Request::OpenForWrite { request, wait_ms: 100, items: vec![item] }
}

/// The plan of the one item that was asked for.
pub(super) fn granted(response: Response) -> crate::Result<PlanDesc> {
    match response {
        Response::Plans(mut list) => list.remove(0),
        other => panic!("{other:?}"),
    }
}

pub(super) fn wants_room(d: &MasterToOwner) -> Option<()> {
    matches!(d, MasterToOwner::MakeRoom { .. }).then_some(())
}

pub(super) fn plan_ref(p: &PlanDesc) -> PlanRef {
    PlanRef { plan: p.plan, at: p.meta.at, key: p.meta.key }
}

pub(super) fn copy_ref(c: &CopyPlan) -> PlanRef {
    PlanRef { plan: c.plan, at: c.meta.at, key: c.meta.key }
}

impl Rank {
    pub(super) async fn sends(&self, up: OwnerToMaster) {
        let (segment_id, incarnation, link) = (self.info.id(), self.info.incarnation, self.link);
        self.master.call(FromRank { segment_id, incarnation, link, up }, LIMIT).await.unwrap();
    }

    /// The next frame that `want` picks; views are kept on the way.
    pub(super) async fn receives<T>(&mut self, want: impl Fn(&MasterToOwner) -> Option<T>) -> T {
        let work = async {
            loop {
                let down = self.rx.recv().await.expect("the link was cut");
                if let MasterToOwner::View(v) = &down
                    && self.keeps_views
                {
                    self.sends(OwnerToMaster::ViewSeen { number: v.number }).await;
                }
                if let Some(t) = want(&down) {
                    return t;
                }
            }
        };
        tokio::time::timeout(LIMIT, work).await.expect("a frame that never came")
    }

    /// Handles and returns the frames that have arrived, without waiting for more.
    pub(super) async fn drain(&mut self) -> Vec<MasterToOwner> {
        let mut all = Vec::new();
        while let Ok(down) = self.rx.try_recv() {
            if let MasterToOwner::View(v) = &down
                && self.keeps_views
            {
                self.sends(OwnerToMaster::ViewSeen { number: v.number }).await;
            }
            all.push(down);
        }
        all
    }

    /// True once the master has cut this link.
    pub(super) async fn is_cut(&mut self) -> bool {
        tokio::time::timeout(LIMIT, async { while self.rx.recv().await.is_some() {} }).await.is_ok()
    }

    /// Answers a request for a report.
    pub(super) async fn reports(&mut self, slots: Vec<SlotEntry>) {
        let number = self
            .receives(|d| match d {
                MasterToOwner::RequestReport { number } => Some(*number),
                _ => None,
            })
            .await;
        self.sends(OwnerToMaster::Report { number, slots, last: true }).await;
        self.receives(|d| matches!(d, MasterToOwner::ReportTaken).then_some(())).await;
    }

    pub(super) fn at(&self, slot: u32, epoch: u32) -> SlotRef {
        SlotRef { incarnation: self.info.incarnation, slot, epoch }
    }

    /// Retires as requested, and reports the slots freed.
    pub(super) async fn retires(&mut self) -> SlotRef {
        let at = self
            .receives(|d| match d {
                MasterToOwner::Retire(list) => list.first().copied(),
                _ => None,
            })
            .await;
        self.sends(OwnerToMaster::Retired(vec![at])).await;
        self.sends(OwnerToMaster::Freed(vec![at])).await;
        at
    }

    pub(super) fn leaves_the_link(&self) -> (ActorAddr<Master>, crate::master::LinkDown) {
        let down = crate::master::LinkDown { segment_id: self.info.id(), link: self.link };
        (self.master.clone(), down)
    }

    /// Ends its connection.
    pub(super) async fn hangs_up(self) {
        let (master, down) = self.leaves_the_link();
        drop(self.rx);
        master.push(down).await.unwrap();
    }
}

/// Where an object lies in memory.
pub(super) fn at(location: &Location) -> SlotRef {
    location.in_memory().expect("in memory").at
}

/// The locations of key k; none if it is not there.
pub(super) async fn located(bench: &Bench) -> Vec<SlotRef> {
    let keys = vec![key("k")];
    let asked = Request::GetLocation { keys, gone: Vec::new(), promote: Default::default() };
    let Response::Locations(mut list) = bench.ask(asked).await else { panic!("no locations") };
    list.remove(0).unwrap_or_default().iter().map(at).collect()
}
