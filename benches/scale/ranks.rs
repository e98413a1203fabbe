//! A master, and ranks that answer it: they report what they are to hold, confirm views, and answer
//! questions about logs with nothing.

use nkv::message::{
    ExportedMemory, LogObjectEntry, MasterToOwner, ObjectDesc, OwnerToMaster, RankInfo, ReplicaSet,
    Request, Response, SeenView, SegmentId, Settings, SlotContent, SlotEntry, Term, View,
};
use nkv::{Address, Placement};
use nkv_actors::actor::ActorAddr;
use nkv_actors::executor::OwnedExecutor;
use nkv_actors::master::{
    Ask, DOWNLINK_FRAMES, FromRank, Join, LinkId, Master, MasterDurable, Members,
};
use nkv_store::arena::Extent;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::layout::{HEADER_BYTES, Region};
use nkv_store::{KeyHasher, KeyPool, OsRandom, SegmentLayout, random_u64};
use nkv_transport::wire::encode_frame;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of an object, and of its slot's part of the arena.
pub const SLOT_BYTES: u64 = 4_096;
/// Slots of each rank's log.
const LOG_SLOTS: u32 = 8;
/// Entries of one part of a report.
const PART: u32 = 4_096;
/// Longer than any run.
const TTL_MS: u64 = 3_600_000;
const LIMIT: Duration = Duration::from_secs(600);

/// Threads of actors, by their ids.
fn arbiters() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let named = tasks.filter(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("actix")
    });
    named.map(|task| task.path().to_string_lossy().into_owned()).collect()
}

pub struct Job {
    master: ActorAddr<Master>,
    hasher: KeyHasher,
    world: u32,
    joined: Vec<(RankInfo, LinkId)>,
    // Frames with views that ranks were sent.
    views: Arc<AtomicU64>,
    // Where the system shows the time of the master's thread.
    thread: String,
    _executor: OwnedExecutor,
}

impl Job {
    /// A master of its term, which nobody has joined.
    pub async fn start(world: u32, placement: Placement, term: u64) -> Self {
        let before = arbiters();
        let executor = OwnedExecutor::arbiter().unwrap();
        let hasher = KeyHasher::new([7; 16]);
        let term = Term { number: term, master: random_u64() };
        let members = Members::new(term, (0, world), 0, BootClock.now_ms());
        let durable = MasterDurable {
            world_size: world,
            ttl_ms: TTL_MS,
            full_wait_ms: 0,
            hot_replicas: 3,
            settings: Settings {
                page_bytes: SLOT_BYTES as u32,
                write_ttl_ms: TTL_MS,
                ttl_ms: TTL_MS,
                call_timeout_ms: TTL_MS,
                master_lease_ms: 0,
            },
            hasher,
            key_pool: Arc::new(KeyPool::default()),
            members: Arc::new(members.with_placement(placement)),
            next_plan: Arc::new(AtomicU64::new(1)),
            boot_id: 1,
            clock: Arc::new(BootClock),
            random: Arc::new(OsRandom),
        };
        let failed = Arc::new(|_: &'static str| std::process::abort());
        let master = ActorAddr::start(executor.executor(), durable, failed).await.unwrap();
        let thread = arbiters().into_iter().find(|thread| !before.contains(thread)).unwrap();
        let (joined, views) = (Vec::new(), Arc::default());
        Self { master, hasher, world, joined, views, thread, _executor: executor }
    }

    pub fn ranks(&self) -> usize {
        self.joined.len()
    }

    /// For how long the master's thread was on a processor.
    pub fn busy_ns(&self) -> u64 {
        let times = std::fs::read_to_string(format!("{}/schedstat", self.thread)).unwrap();
        times.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub async fn ask(&self, request: Request) -> Response {
        self.master.call(Ask { producer: 7, request }, LIMIT).await.unwrap()
    }

    pub async fn sends(&self, rank: usize, up: OwnerToMaster) {
        let (info, link) = &self.joined[rank];
        let (segment_id, incarnation, link) = (info.id(), info.incarnation, *link);
        self.master.push(FromRank { segment_id, incarnation, link, up }).await.unwrap();
    }

    /// The key of an object, of all ranks' together.
    pub fn key(&self, i: u64) -> String {
        key((i % u64::from(self.world)) as u32, (i / u64::from(self.world)) as u32)
    }

    /// All ranks join, and report so many objects each, of as many as they have room for. Returns
    /// once the master serves.
    pub async fn join_all(&mut self, objects: u32, slots: u32) {
        let infos: Vec<_> = (0..self.world).map(|rank| self.info(rank, slots.max(1))).collect();
        let incarnations: Vec<u64> = infos.iter().map(|info| info.incarnation).collect();
        let obeyed = match objects {
            0 => Term::default(),
            _ => Term { number: 1, master: 1 },
        };
        for info in infos {
            let (tx, rx) = mpsc::channel(DOWNLINK_FRAMES);
            let seen = match objects {
                0 => SeenView::default(),
                _ => SeenView { term: obeyed, number: 1, incarnations: incarnations.clone() },
            };
            let join = Join {
                info: info.clone(),
                obeyed,
                holds: objects > 0,
                seen,
                siblings: Vec::new(),
                own: false,
                of_this_life: false,
                tx,
            };
            let joined = self.master.call(join, LIMIT).await.unwrap().unwrap();
            let stub = Stub {
                info: info.clone(),
                link: joined.link,
                objects,
                master: self.master.clone(),
                views: self.views.clone(),
            };
            tokio::spawn(stub.answer(rx));
            self.joined.push((info, joined.link));
        }
        while self.view().await.ranks.len() < self.joined.len() || !self.serves().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn serves(&self) -> bool {
        let keys = vec![self.key(0).as_bytes().into()];
        matches!(self.ask(Request::MatchPrefix(keys)).await, Response::Prefix(_))
            && self.all_reported().await
    }

    async fn all_reported(&self) -> bool {
        let Response::Stats(stats) = self.ask(Request::Stats).await else { return false };
        stats.ranks.len() == self.joined.len() && stats.waiting == 0 && self.view().await.settled
    }

    async fn view(&self) -> View {
        match self.ask(Request::View).await {
            Response::View(view) => view,
            other => panic!("{other}"),
        }
    }

    /// Bytes of a view on the wire.
    pub async fn view_bytes(&self) -> usize {
        let mut frame = Vec::new();
        encode_frame(&mut frame, 1, &Response::View(self.view().await)).unwrap();
        frame.len()
    }

    /// The last rank leaves. Returns once all others have confirmed the view without it.
    pub async fn loses_one(&mut self) {
        let before = self.views.load(Ordering::SeqCst);
        self.sends(self.joined.len() - 1, OwnerToMaster::Leave).await;
        self.joined.pop();
        let all = self.joined.len() as u64;
        while self.views.load(Ordering::SeqCst) < before + all {
            tokio::task::yield_now().await;
        }
    }

    fn info(&self, rank: u32, slots: u32) -> RankInfo {
        let arena = Region { offset: base(slots), len: u64::from(slots) * SLOT_BYTES };
        let log_bytes = u64::from(LOG_SLOTS) * SLOT_BYTES;
        RankInfo {
            rank,
            segment_id: 0,
            world_size: self.world,
            incarnation: u64::from(rank) + 1_000,
            boot_id: u64::from(rank / 8),
            numa_node: None,
            rack: format!("/row/{}", rank / 64).parse().unwrap(),
            pid: 1,
            control: Address::Tcp("10.0.0.1:7400".into()),
            local: None,
            data: Some("10.0.0.1:7401".into()),
            fabric: None,
            http: None,
            memory: ExportedMemory::Private,
            layout: SegmentLayout {
                segment_bytes: arena.offset + arena.len,
                slots: slots + LOG_SLOTS,
                log_slots: LOG_SLOTS,
                header_base: SLOT_BYTES,
                log: Region { offset: arena.offset - log_bytes, len: log_bytes },
                arena,
                quarantine_ms: 10,
                ..SegmentLayout::default()
            },
            key_fingerprint: self.hasher.fingerprint(),
            prefault: false,
            disk: false,
        }
    }
}

/// Where the arena of a segment with so many slots begins: behind headers and log.
fn base(slots: u32) -> u64 {
    let headers = (u64::from(slots + LOG_SLOTS) * HEADER_BYTES).next_multiple_of(SLOT_BYTES);
    SLOT_BYTES + headers + u64::from(LOG_SLOTS) * SLOT_BYTES
}

fn key(rank: u32, object: u32) -> String {
    format!("model/layer/{rank:04}/{object:08x}")
}

/// A rank.
struct Stub {
    info: RankInfo,
    link: LinkId,
    objects: u32,
    master: ActorAddr<Master>,
    views: Arc<AtomicU64>,
}

impl Stub {
    async fn sends(&self, up: OwnerToMaster) {
        let (segment_id, incarnation): (SegmentId, u64) = (self.info.id(), self.info.incarnation);
        let frame = FromRank { segment_id, incarnation, link: self.link, up };
        // The job may have ended.
        let _ = self.master.call(frame, LIMIT).await;
    }

    async fn answer(self, mut rx: mpsc::Receiver<MasterToOwner>) {
        while let Some(down) = rx.recv().await {
            match down {
                MasterToOwner::RequestReport { number } => self.report(number).await,
                MasterToOwner::View(view) => {
                    self.sends(OwnerToMaster::ViewSeen { number: view.number }).await;
                    self.views.fetch_add(1, Ordering::SeqCst);
                }
                MasterToOwner::AskLog { number, .. } => {
                    let served: Vec<LogObjectEntry> = Vec::new();
                    let removed = Vec::new();
                    let answer = OwnerToMaster::LogAnswer { number, served, removed, taken: 0 };
                    self.sends(answer).await;
                }
                _ => {}
            }
        }
    }

    async fn report(&self, number: u64) {
        let mut from = 0;
        loop {
            let end = self.objects.min(from + PART);
            let slots = (from..end).map(|object| self.entry(object)).collect();
            let last = end == self.objects;
            self.sends(OwnerToMaster::Report { number, slots, last }).await;
            if last {
                return;
            }
            from = end;
        }
    }

    fn entry(&self, object: u32) -> SlotEntry {
        let offset = self.info.layout.arena.offset + u64::from(object) * SLOT_BYTES;
        let extent = Extent { offset, len: SLOT_BYTES };
        let object_desc =
            ObjectDesc { extent, bytes_total: SLOT_BYTES, page_bytes: SLOT_BYTES as u32 };
        let what = SlotContent::Live {
            object: object_desc,
            key: key(self.info.rank, object).as_bytes().into(),
            set: ReplicaSet::NONE,
            retention: Default::default(),
        };
        SlotEntry { slot: object + LOG_SLOTS, epoch: 1, what }
    }
}
