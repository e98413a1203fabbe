//! What a seed fixes before a run begins: ranks and their hosts, heap sizes and time limits, the
//! clients' hosts, and the faults of network, clocks and threads. Everything is small and short, so
//! that events that are rare in production happen often.

use crate::data::WireProfile;
use crate::dice::Dice;
use crate::memory::StallProfile;
use crate::net::NetworkProfile;
use nkv::{ElectionChoice, MemoryChoice, NodeConfig, Placement, Secret};
use nkv_store::evict::{PolicyKind, Watermarks};
use nkv_store::layout::PAYLOAD_ALIGN;
use std::net::IpAddr;
use std::time::Duration;

/// Calls of clients in one run, at least.
pub const OPS: u64 = 2_000;
/// Rank 0's control port.
pub const PORT: u16 = 7_400;
/// The job of every run.
pub const JOB: &str = "sim";
/// Of a thousand runs, in how many the ranks elect the master.
const ELECTING_PERMILLE: u64 = 450;
/// The stream of choices that says whether a run has striped objects.
const STRIPES: u64 = 40;
const SECRET: &[u8] = b"a secret of sixteen bytes";

/// See the file's first paragraph.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of the whole run: other streams fork from it.
    pub seed: u64,
    /// Host of each rank.
    pub ranks: Vec<usize>,
    /// Host of each client process.
    pub clients: Vec<usize>,
    pub hosts: usize,
    /// Tasks of each client process, and of each rank's own handle.
    pub workers: usize,
    pub own_workers: usize,
    /// Keys: families times members.
    pub families: usize,
    pub members: usize,
    pub faults: usize,
    /// Ranks elect the master.
    pub elects: bool,
    pub network: NetworkProfile,
    pub wire_profile: WireProfile,
    pub hiccups: StallProfile,
    /// (offset in nanoseconds, parts per million of true time) of each host's clock.
    pub clocks: Vec<(u64, u64)>,
    /// Puts that ask for the device log, of a thousand.
    pub log_permille: u64,
    /// By which objects are placed.
    pub placement: String,
    /// Some values are put in stripes.
    pub stripes: bool,
    /// Puts that ask for replicas, and for how many at most.
    pub replicas: (u64, u8),
    // Units of each rank's device log; 0: it has none.
    logs: Vec<u64>,
    base: NodeConfig,
    private: Vec<bool>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 1);
        let n = dice.between(3, 5) as usize;
        let mut ranks: Vec<usize> = (0..n).collect();
        if dice.permille(300) {
            // Two ranks of one host: they reach each other by shared memory.
            ranks[n - 1] = n - 2;
        }
        let clients = dice.between(2, 4) as usize;
        let hosts = n + 2;
        // Mostly on a rank's host: they map its memory.
        let clients = (0..clients).map(|_| match dice.permille(600) {
            true => *dice.pick(&ranks),
            false => dice.below(hosts as u64) as usize,
        });
        let clients = clients.collect();
        let base = config(&mut dice);
        let rate = |dice: &mut Dice| dice.between(960_000, 1_040_000);
        let clocks = (0..hosts).map(|_| (dice.between(1, 1 << 50), rate(&mut dice))).collect();
        Self {
            seed,
            private: (0..n).map(|_| dice.permille(200)).collect(),
            ranks,
            clients,
            hosts,
            workers: dice.between(2, 3) as usize,
            own_workers: dice.between(0, 1) as usize,
            families: dice.between(4, 10) as usize,
            members: dice.between(6, 16) as usize,
            faults: dice.between(6, 14) as usize,
            network: network(&mut dice),
            wire_profile: wire_profile(&mut dice),
            hiccups: StallProfile {
                permille: dice.between(0, 20),
                // Often longer than a plan, and its quarantine.
                ms: (1, *dice.pick(&[15, 60, 120, 120, 400])),
                claim_permille: *dice.pick(&[0, 30, 120, 300]),
            },
            logs: (0..n).map(|_| log_units(&mut dice)).collect(),
            log_permille: dice.between(0, 700),
            replicas: (*dice.pick(&[0, 0, 100, 400]), dice.between(2, 3) as u8),
            stripes: Dice::new(seed, STRIPES).permille(400),
            clocks,
            placement: base.placement.to_string(),
            elects: base.election == ElectionChoice::Ranks,
            base,
        }
    }

    /// Settings of one rank.
    pub fn config(&self, rank: u32) -> NodeConfig {
        let host = self.ranks[rank as usize];
        let memory = match self.private[rank as usize] {
            true => MemoryChoice::Private,
            false => MemoryChoice::Shm,
        };
        let log_bytes = self.logs[rank as usize] * PAYLOAD_ALIGN;
        NodeConfig {
            rank,
            world_size: self.ranks.len() as u32,
            master_host: ip(self.ranks[0]).to_string(),
            listen: ip(host),
            port: PORT,
            memory,
            rack: format!("/row/{}", host % 2).parse().expect("a path"),
            heap_bytes: self.base.heap_bytes + log_bytes,
            log_bytes: Some(log_bytes),
            ..self.base.clone()
        }
    }

    /// Whether an object may have several replicas.
    pub fn makes_replicas(&self) -> bool {
        self.replicas.0 > 0 || self.base.hot_reads > 0 || self.base.cache_on_read
    }

    /// Whether one may have them though nobody asked for them.
    pub fn makes_extras(&self) -> bool {
        self.base.hot_reads > 0 || self.base.cache_on_read
    }

    /// Every key's name.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let key = |i: usize| format!("family-{:02}/{:03}", i / self.members, i % self.members);
        (0..self.families * self.members).map(|i| key(i).into_bytes()).collect()
    }
}

/// An address of a host, where others reach it.
pub fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

/// The job's secret.
pub fn secret() -> Secret {
    Secret::new(SECRET, "the simulation").expect("long enough")
}

/// Room for few objects, so that it is full all the time; not every rank has a log.
fn log_units(dice: &mut Dice) -> u64 {
    if dice.permille(300) { 0 } else { dice.between(4, 24) }
}

fn config(dice: &mut Dice) -> NodeConfig {
    let election = match dice.permille(ELECTING_PERMILLE) {
        true => ElectionChoice::Ranks,
        false => ElectionChoice::Rank0,
    };
    NodeConfig {
        election,
        master_lease_ms: dice.between(400, 900),
        job: JOB.to_string(),
        heap_bytes: dice.between(16, 48) * 4096,
        prefault: false,
        quarantine_ms: dice.between(5, 40) as u32,
        ttl_ms: dice.between(900, 2_500),
        heartbeat_ms: 0,
        // Shorter than the TTL, mostly: else plans of dead producers end by the TTL.
        write_ttl_ms: match dice.weighted(&[20, 55, 25]) {
            0 => dice.between(20, 150),
            1 => dice.between(150, 1_500),
            _ => dice.between(3_000, 8_000),
        },
        join_timeout_ms: 60_000,
        call_timeout_ms: dice.between(300, 1_200),
        watermarks: match dice.between(60, 85) as u32 {
            lo if lo % 3 == 0 => Watermarks::Auto,
            lo => Watermarks::Percent { hi: 95, lo },
        },
        policy: *dice.pick(&[PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Lru2]),
        page_bytes: 4096,
        full_wait_ms: 0,
        // Longer than any claim waits in line: 20 ms in steps that are 1 ms long here.
        log_claim_ttl_ms: dice.between(150, 900),
        data_connections: 64,
        hot_reads: match dice.permille(400) {
            true => dice.between(1, 4),
            false => 0,
        },
        hot_replicas: dice.between(2, 4) as u8,
        cache_on_read: dice.permille(400),
        secret: Some(secret()),
        placement: placement(dice),
        ..NodeConfig::default()
    }
}

fn placement(dice: &mut Dice) -> Placement {
    match dice.weighted(&[60, 10, 10, 10, 10]) {
        0 => Placement::Hash,
        1 => Placement::Random(dice.next()),
        2 => Placement::MostFree,
        3 => Placement::LocalFirst,
        _ => Placement::Topology,
    }
}

fn network(dice: &mut Dice) -> NetworkProfile {
    let (low, high) = *dice.pick(&[(0, 1), (0, 2), (1, 4), (0, 10)]);
    let slow_permille = dice.between(0, 30);
    NetworkProfile { delay_ms: (low, high), slow_permille, slow_ms: (5, dice.between(20, 200)) }
}

fn wire_profile(dice: &mut Dice) -> WireProfile {
    WireProfile {
        gap_permille: dice.between(5, 40),
        gap_ms: (1, dice.between(5, 150)),
        loss_permille: dice.between(0, 15),
        connect: Duration::from_millis(1_000),
        stall: Duration::from_millis(1_500),
        agent_stall: Duration::from_millis(5_000),
    }
}
