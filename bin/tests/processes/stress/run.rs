//! The run: starts the processes, kills some and starts others in their place, and checks what all
//! of them printed and the final state of the owners.

use super::call_log::Sums;
use super::process::{Stressed, Task, WRITERS};
use crate::accounts::accounted;
use crate::cluster_process::{ProcessCluster, by_devices, holds_within};
use crate::random::{Random, seed};
use nkv::message::{ClusterStats, RankStats};
use nkv::{Blocking, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

const RANKS: u32 = 3;
const READERS: u64 = 3;
/// Small enough that objects are evicted all the time.
const HEAP_BYTES: u64 = 6 << 20;
const LOG_BYTES: u64 = 4 << 20;

/// Bytes of heap and log: small enough for memory to be short, in an emulated guest too.
fn room() -> (u64, u64) {
    if by_devices() { (HEAP_BYTES / 6, LOG_BYTES / 4) } else { (HEAP_BYTES, LOG_BYTES) }
}
const SECONDS: u64 = 5;
/// A run takes at most so many times that.
const LONGEST: u64 = 4;
const VERBS: [&str; 10] = [
    "put_log",
    "put_plan",
    "remove",
    "get_own",
    "get",
    "get_many",
    "view",
    "exists",
    "match_prefix",
    "read_into",
];
/// Milliseconds between two kills.
const KILL_MS: (u64, u64) = (200, 900);
/// Milliseconds until the killed owner is started again.
const AWAY_MS: (u64, u64) = (0, 1_500);
/// A living process prints a line within this.
const SILENT_MS: u64 = nkv_pace::HANGS_MS;
/// At the end used bytes are live bytes within this.
const SETTLE: Duration = nkv_pace::HANGS;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

struct Run {
    cluster: ProcessCluster,
    random: Random,
    all: Vec<Stressed>,
    generations: Vec<u64>,
    sums: Sums,
    faults: Vec<String>,
    kills: [u64; 2],
    // Figures of the incarnation that was killed.
    evicted_before: u64,
}

fn seconds() -> u64 {
    match std::env::var("NKV_STRESS_SECONDS") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("NKV_STRESS_SECONDS={text}: {e}")),
        Err(_) => SECONDS,
    }
}

/// The test.
pub fn every_byte_is_right_while_writers_readers_and_an_owner_die() {
    let (seed, seconds) = (seed(), seconds());
    println!("stress: seed={seed} seconds={seconds}");
    let mut run = Run::start(seed);
    let since = BootClock.now_ms();
    let (mut ends, owner_dies) = (since + seconds * 1_000, since + seconds * 400);
    let latest = since + LONGEST * seconds * 1_000;
    let mut next_kill = since;
    let mut owner = None;
    while BootClock.now_ms() < ends {
        let now = BootClock.now_ms();
        if now >= next_kill {
            run.kill_one();
            next_kill = now + run.random.between(KILL_MS.0, KILL_MS.1);
        }
        if owner.is_none() && now >= owner_dies {
            owner = Some(run.kill_owner());
        }
        if let Some((rank, back)) = owner
            && now >= back
        {
            run.cluster.restart(rank);
            owner = Some((rank, u64::MAX));
        }
        run.expect_words();
        std::thread::sleep(POLL_INTERVAL);
        // A slow machine is given the time to do some of everything.
        if BootClock.now_ms() >= ends && ends < latest && !run.has_seen_all() {
            ends = latest.min(ends + 1_000);
        }
    }
    if let Some((rank, back)) = owner.filter(|(_, back)| *back != u64::MAX) {
        run.cluster.restart(rank);
        println!("stress: rank {rank} was to be back at {back}");
    }
    run.end();
    run.judge(seed);
}

impl Run {
    fn start(seed: u64) -> Self {
        let flags = [
            ("--heap-bytes", room().0 + room().1),
            ("--log-bytes", room().1),
            ("--log-claim-ttl-ms", 500),
            ("--ttl-ms", 1_000),
            ("--write-ttl-ms", 2_000),
            ("--quarantine-ms", 20),
        ];
        let cluster = ProcessCluster::start(RANKS, move |command| {
            for (flag, value) in flags {
                command.arg(flag).arg(value.to_string());
            }
            if by_devices() {
                command.args(["--atomic-domain", "nic"]);
            }
        });
        let mut run = Self {
            cluster,
            random: Random::new(seed, 0),
            all: Vec::new(),
            generations: vec![0; WRITERS as usize],
            sums: Sums::new(),
            faults: Vec::new(),
            kills: [0; 2],
            evicted_before: 0,
        };
        (0..WRITERS).for_each(|number| run.start_one(true, number));
        (0..READERS).for_each(|number| run.start_one(false, number));
        run
    }

    fn start_one(&mut self, writes: bool, number: u64) {
        let far = if by_devices() { TransportChoice::Rdma } else { TransportChoice::Tcp };
        let transport = [TransportChoice::Shm, far][number as usize % 2];
        let generation = if writes { self.generations[number as usize] } else { 0 };
        let task = Task {
            // The master's node: the others may be dead.
            node: self.cluster.address(0),
            job: self.cluster.job().to_string(),
            transport,
            writes,
            number,
            generation,
            seed: self.random.next(),
            ranks: RANKS.into(),
        };
        let mut started = Stressed::start(task);
        for (writer, generation) in (0..).zip(&self.generations) {
            started.announce_generation(writer, *generation);
        }
        self.all.push(started);
    }

    /// A writer's successor has its own keys: unfinished puts of the killed one may still become
    /// readable.
    fn kill_one(&mut self) {
        let at = self.random.below(self.all.len() as u64) as usize;
        let dead = self.all.swap_remove(at);
        let Task { writes, number, .. } = dead.task;
        self.kills[usize::from(writes)] += 1;
        self.add(dead.kill());
        if writes {
            self.generations[number as usize] += 1;
            let generation = self.generations[number as usize];
            self.all.iter_mut().for_each(|s| s.announce_generation(number, generation));
        }
        self.start_one(writes, number);
    }

    /// Kills an owner other than rank 0; returns it and when to start it again.
    fn kill_owner(&mut self) -> (u32, u64) {
        let rank = self.random.between(1, u64::from(RANKS) - 1) as u32;
        let o = crate::accounts::gauges(&self.cluster, rank);
        self.evicted_before = o.evictions + o.log_evictions;
        self.cluster.kill9(rank);
        let away = self.random.between(AWAY_MS.0, AWAY_MS.1);
        println!("stress: rank {rank} is killed, for {away} ms");
        (rank, BootClock.now_ms() + away)
    }

    fn add(&mut self, (sums, faults): (Sums, Vec<String>)) {
        for (what, n) in sums {
            *self.sums.entry(what).or_default() += n;
        }
        self.faults.extend(faults);
    }

    fn expect_words(&mut self) {
        if let Some(s) = self.all.iter().find(|s| s.silent_ms() > SILENT_MS) {
            panic!("{:?} hangs: no word for {} ms", s.task, s.silent_ms());
        }
    }

    fn end(&mut self) {
        for s in std::mem::take(&mut self.all) {
            self.add(s.end());
        }
    }

    fn went_well(&self, verb: &str) -> bool {
        self.sums.get(&format!("{verb}:Ok")).is_some_and(|done| *done > 0)
    }

    /// Whether memory was short, and every verb went well in a process that has ended.
    fn has_seen_all(&self) -> bool {
        let evicted = |rank| {
            let o = crate::accounts::gauges(&self.cluster, rank);
            o.evictions + o.log_evictions > 0
        };
        VERBS.iter().all(|verb| self.went_well(verb)) && evicted(0)
    }

    fn judge(&mut self, seed: u64) {
        println!("stress: calls {:?}", self.sums);
        assert!(
            self.faults.is_empty(),
            "seed {seed}: {} faults:\n  {}",
            self.faults.len(),
            self.faults[..self.faults.len().min(20)].join("\n  ")
        );
        for verb in VERBS {
            assert!(self.went_well(verb), "no {verb} ever went well: {:?}", self.sums);
        }
        let client = self.cluster.connect(0);
        let before = self.settled(&client, "used bytes are live bytes", |_| true);
        client.remove_all().unwrap();
        self.settled(&client, "nothing is left", |r| {
            r.allocated_bytes == 0 && r.owner.log_objects == 0 && r.owner.log_live_bytes == 0
        });
        let sum = |f: &dyn Fn(&RankStats) -> u64| before.ranks.iter().map(f).sum::<u64>();
        let evicted = sum(&|r| r.owner.evictions + r.owner.log_evictions) + self.evicted_before;
        assert!(evicted > 0, "memory was never short: {before:#?}");
        println!(
            "stress: seed={seed} wrong_bytes=0 writers_killed={} readers_killed={} \
             evicted={evicted} laps={:.1} voided={} fenced={}",
            self.kills[1],
            self.kills[0],
            sum(&|r| r.owner.log_claimed_bytes) as f64 / room().1 as f64,
            sum(&|r| r.owner.log_voided_bytes),
            sum(&|r| r.owner.log_fenced)
        );
    }

    /// Waits until every owner is idle, and `holds` is true of each.
    fn settled(
        &self,
        client: &Blocking,
        what: &str,
        holds: impl Fn(&RankStats) -> bool,
    ) -> ClusterStats {
        let mut last = None;
        let rests = holds_within(SETTLE, || {
            let stats = client.stats().unwrap();
            let all = stats.ranks.len() == RANKS as usize && stats.plans_open == 0;
            let rests = all && stats.ranks.iter().all(|r| is_at_rest(r) && holds(r));
            last = Some(stats);
            rests
        });
        let last = last.unwrap();
        assert!(rests, "not within {SETTLE:?}: {what}: {last:#?}");
        last
    }
}

fn is_at_rest(r: &RankStats) -> bool {
    let o = &r.owner;
    let space = o.heap_used == o.live_bytes && r.allocated_bytes == o.live_bytes;
    space && o.fencing == 0 && o.pinned == 0 && accounted(o)
}
