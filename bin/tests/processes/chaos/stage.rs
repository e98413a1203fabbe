//! Three ranks in processes of their own, a load on them, and the checks once it has stopped:
//! stored objects are served, used bytes are live bytes, removed objects leave nothing.

use super::board::{Fate, SharedState, Stored};
use super::load::{Worker, connect, shown};
use crate::accounts::{self, accounted};
use crate::cluster_process::ProcessCluster;

use crate::random::Random;
use nkv::message::{ClusterStats, Location, OwnerGauges};
use nkv::{Client, Error, ErrorKind, TransportChoice};
use nkv_pace::Stopwatch;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Ranks of the cluster.
pub const RANKS: u32 = 3;
/// Membership TTL.
pub const TTL_MS: u64 = 1_000;
/// Limit from open to commit (`--write-ttl-ms`).
pub const DEADLINE_MS: u64 = 2_000;
/// Quarantine of retired memory.
pub const QUARANTINE_MS: u64 = 50;
/// Owners and master check their deadlines at least this often, and heartbeats carry the figures.
const POLLS_MS: u64 = 500;
/// What may be added to a wait: three ranks, the load and the checks share two cores.
pub const SLACK_MS: u64 = 1_000;
/// Within this used bytes are live bytes again: the producer's TTL or the deadline, whichever is
/// later, then quarantine.
pub const SETTLE_MS: u64 = TTL_MS + DEADLINE_MS + QUARANTINE_MS + POLLS_MS + SLACK_MS;
/// Payload bytes of a rank's heap: the load never fills it.
const HEAP_BYTES: u64 = 96 << 20;
/// Bytes of its log, which the load fills many times.
pub const LOG_BYTES: u64 = 32 << 20;
/// Age of an open claim after which all producers are asked.
pub const CLAIM_TTL_MS: u64 = 500;
/// Threads of this process that carry the load; a tcp call blocks one.
const THREADS: usize = 4;
/// The load ends within this once it is asked to.
const STOP_LIMIT: Duration = nkv_pace::HANGS;
/// Pause of a bounded wait.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Any other bounded wait.
const WAIT_MS: u64 = nkv_pace::HANGS_MS;
/// Keys per batch of removes.
const REMOVE_KEYS: usize = 256;

/// See the file's first paragraph.
pub struct TestCluster {
    /// Runs the load.
    pub rt: Runtime,
    /// The ranks.
    pub cluster: ProcessCluster,
    /// The handle of the checks.
    pub observer: Client,
    /// State shared with the load.
    pub board: Arc<SharedState>,
    /// Slowest wait for used bytes to be live bytes.
    pub slowest_settle_ms: u64,
}

impl TestCluster {
    /// Starts the ranks; returns once all have joined.
    pub fn start() -> Self {
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()
            .unwrap();
        let flags = [
            ("--heap-bytes", HEAP_BYTES + LOG_BYTES),
            ("--log-bytes", LOG_BYTES),
            ("--log-claim-ttl-ms", CLAIM_TTL_MS),
            ("--ttl-ms", TTL_MS),
            ("--write-ttl-ms", DEADLINE_MS),
            ("--quarantine-ms", QUARANTINE_MS),
        ];
        let cluster = ProcessCluster::start(RANKS, move |command| {
            for (flag, value) in flags {
                command.arg(flag).arg(value.to_string());
            }
        });
        let node = cluster.address(0);
        let observer = rt.block_on(connect(&node, cluster.job(), TransportChoice::Auto));
        let board = Arc::new(SharedState::default());
        let slowest_settle_ms = 0;
        let stage = Self { rt, cluster, observer, board, slowest_settle_ms };
        stage.wait_for("all ranks to be in", WAIT_MS, |s| s.ranks.len() == RANKS as usize);
        stage
    }

    /// Connects `n` handles, half by shared memory, half by tcp, each through another node.
    pub fn workers(&self, n: u32, name: &str, random: &mut Random) -> Vec<Worker> {
        self.note_logs();
        let one = |i: u32| {
            let transport = [TransportChoice::Shm, TransportChoice::Tcp][i as usize % 2];
            let node = self.cluster.address(random.below(RANKS.into()) as u32);
            Worker {
                client: self.rt.block_on(connect(&node, self.cluster.job(), transport)),
                board: self.board.clone(),
                random: Random::new(random.next(), i.into()),
                name: format!("{name}/{i}"),
                ranks: RANKS,
                maps: transport == TransportChoice::Shm,
                made: 0,
                gone: Vec::new(),
            }
        };
        (0..n).map(one).collect()
    }

    /// Maps the logs of the present ranks.
    pub fn note_logs(&self) {
        self.board.logs.note(&self.rt.block_on(self.observer.membership()).unwrap());
    }

    /// An owner's figures, from itself.
    pub fn gauges(&self, rank: u32) -> OwnerGauges {
        accounts::gauges(&self.cluster, rank)
    }

    /// Starts workers.
    pub fn load(&self, workers: Vec<Worker>) -> Vec<JoinHandle<Worker>> {
        self.note_logs();
        self.board.stop(false);
        workers.into_iter().map(|w| self.rt.spawn(w.run())).collect()
    }

    /// Ends the load; returns its workers with their handles.
    pub fn quiet(&self, load: Vec<JoinHandle<Worker>>) -> Vec<Worker> {
        self.board.stop(true);
        let ended = async {
            let mut workers = Vec::new();
            for task in load {
                workers.push(task.await.unwrap());
            }
            workers
        };
        let ended = self.rt.block_on(async { tokio::time::timeout(STOP_LIMIT, ended).await });
        ended.unwrap_or_else(|_| panic!("the load does not end within {STOP_LIMIT:?}"))
    }

    /// Waits for a condition on the cluster's figures; returns how long it took.
    pub fn wait_for(
        &self,
        what: &str,
        limit_ms: u64,
        holds: impl Fn(&ClusterStats) -> bool,
    ) -> u64 {
        let watch = Stopwatch::start();
        self.rt.block_on(async {
            loop {
                let stats = self.observer.stats().await.unwrap();
                let waited = watch.took();
                if holds(&stats) {
                    return waited.ms;
                }
                assert!(waited.within(limit_ms), "waited {waited} for {what}: {stats:#?}");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        })
    }

    /// Waits until used bytes are live bytes on each of `ranks` ranks, by the owners' figures and
    /// by the master's, every claim in a log is accounted for, and no plan is open and no view
    /// held.
    pub fn settle(&mut self, ranks: u32) {
        let waited = self.wait_for("used bytes = live bytes", SETTLE_MS, |s| balanced(s, ranks));
        self.slowest_settle_ms = self.slowest_settle_ms.max(waited);
    }

    /// One checked read by the observer: `Some` if it is there and right.
    pub fn read(&self, s: &Stored) -> Option<Error> {
        let calls = &self.board.calls;
        let get = calls.make("check", "", self.observer.get(&s.key));
        match self.rt.block_on(get) {
            Ok(got) => {
                calls.compare(&s.key, s.version, s.len, &got);
                None
            }
            Err(e) => Some(e),
        }
    }

    /// Checks that every object on the board is served with the right bytes.
    pub fn check_stored(&self, context: &str) {
        for s in self.board.all() {
            if let Some(e) = self.read(&s).filter(|e| !self.board.log_made_room(&s, e)) {
                let at = (self.board.mark(&s), s.meta.as_ref().map(|m| (m.rank, m.at)));
                self.board
                    .calls
                    .fault(format!("{context}: {} is stored: {e} {at:?}", shown(&s.key)));
            }
        }
    }

    /// Checks that objects with an unsure put or remove are whole or absent, as their fate allows;
    /// whole ones go on the board.
    pub fn check_unsure(&self, context: &str) -> u64 {
        let mut whole = 0;
        self.note_logs();
        for (mut s, fate) in self.board.take_unsure() {
            let what = shown(&s.key);
            let fault = |text: String| self.board.calls.fault(format!("{context}: {what} {text}"));
            match (self.read(&s), fate) {
                (None, Fate::Absent) => fault("was Reclaimed and is read".to_string()),
                (None, _) => {
                    whole += 1;
                    // It may lie in another log than the preferred one.
                    let found = self.rt.block_on(self.observer.get_location(&s.key));
                    s.mark = None;
                    s.meta = found.ok().and_then(Location::into_memory);
                    self.board.add(s);
                }
                (Some(e), _) if self.board.log_made_room(&s, &e) => {}
                (Some(e), Fate::Whole) => {
                    let log = self.board.mark(&s).map(|mark| self.board.logs.described(mark));
                    fault(format!("was acknowledged: {e} {log:?}"));
                }
                (Some(e), _) if e.kind() == ErrorKind::NotFound => {}
                (Some(e), _) => fault(format!("is neither whole nor absent: {e}")),
            }
        }
        whole
    }

    /// Removes every object on the board; then no byte is used on any rank.
    pub fn remove_all(&mut self, context: &str) {
        let stored = self.board.take_all();
        for some in stored.chunks(REMOVE_KEYS) {
            let keys: Vec<&[u8]> = some.iter().map(|s| &s.key[..]).collect();
            for (s, gone) in some.iter().zip(self.rt.block_on(self.observer.remove_many(&keys))) {
                if let Err(e) = gone
                    && !self.board.log_made_room(s, &e)
                {
                    self.board.calls.fault(format!("{context}: remove {}: {e}", shown(&s.key)));
                }
            }
        }
        self.wait_for("an empty cluster", SETTLE_MS, |s| {
            let empty = |r: &nkv::message::RankStats| {
                r.allocated_bytes == 0 && r.owner.log_objects == 0 && r.owner.log_live_bytes == 0
            };
            balanced(s, RANKS) && s.objects == 0 && s.ranks.iter().all(empty)
        });
    }
}

fn balanced(s: &ClusterStats, ranks: u32) -> bool {
    let at_rest = |r: &nkv::message::RankStats| {
        let o = &r.owner;
        let space = o.heap_used == o.live_bytes && r.allocated_bytes == o.live_bytes;
        space && o.fencing == 0 && o.pinned == 0 && accounted(o)
    };
    let no_plan = s.plans_open == 0 && s.waiting == 0;
    s.ranks.len() == ranks as usize && no_plan && s.ranks.iter().all(at_rest)
}
