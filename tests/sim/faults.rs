//! The faults of a run: spread over its calls, several at a time, each of a kind and at a place
//! that follow from the seed.

use crate::cluster::{Actor, Cluster};
use crate::dice::Dice;
use crate::plan::OPS;
use std::rc::Rc;
use std::time::Duration;

/// Actors that may be made to panic. A poller is on ranks with a log.
const ACTORS: [Actor; 5] =
    [Actor::Master, Actor::Owner, Actor::Evictor, Actor::Producer, Actor::Poller];
/// Number of polls whether a client has claimed.
const TRAPPED_POLLS: u32 = 40;
/// Pause between checks whether the next fault is due.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A fault begins at most this many events after it is due.
const WITHIN_EVENTS: u64 = 300;
/// The next fault begins after this many polls even if calls make no progress.
const MAX_WAITS: u32 = 600;
/// Of a thousand cuts, how many last longer than the kernel's timeout of a connection.
const LONG_PERMILLE: u64 = 80;
const LONG_MS: (u64, u64) = (16_000, 25_000);

/// Causes every fault of the run; returns when the last has begun. Cuts and pauses end by
/// themselves.
pub async fn all(cluster: Rc<Cluster>, mut dice: Dice) {
    let n = cluster.plan.faults as u64;
    for i in 0..n {
        let due = OPS * (i + 1) / (n + 2);
        for _ in 0..MAX_WAITS {
            if cluster.ops.get() >= due {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        loop {
            // In the middle of the events of one virtual time, not between two.
            let within = cluster.trace.after_events(dice.below(WITHIN_EVENTS));
            let _ = tokio::time::timeout(POLL_INTERVAL * 10, within).await;
            // One that finds nothing to break is no fault.
            if one(&cluster, &mut dice).await {
                break;
            }
        }
    }
}

async fn one(cluster: &Rc<Cluster>, dice: &mut Dice) -> bool {
    let (ranks, clients) = (cluster.plan.ranks.len() as u64, cluster.plan.clients.len() as u64);
    let (rank, client) = (dice.below(ranks) as usize, dice.below(clients) as usize);
    let (lossy, pause) = (dice.permille(400), pause(dice));
    let (name, done) = match dice.weighted(&[12, 7, 5, 14, 8, 15, 10, 10, 8, 10, 6, 7, 10]) {
        0 => ("a rank is killed", cluster.kill_rank(rank, lossy)),
        1 => ("the master is killed", cluster.kill_rank(master(cluster), lossy)),
        2 => ("a rank leaves", cluster.terminate_rank(rank)),
        3 => ("a rank stands still", cluster.pause_rank(rank, pause)),
        4 => ("a client stands still", cluster.pause_client(client, pause)),
        5 => ("a path is cut", cut_a_path(cluster, dice)),
        6 => ("a host is cut off", cut_a_host_off(cluster, dice)),
        7 => ("connections break", break_connections(cluster, dice)),
        8 => ("a client is killed", cluster.kill_client(client, lossy)),
        9 => {
            let actor = *dice.pick(&ACTORS);
            let rank = if matches!(actor, Actor::Master) { master(cluster) } else { rank };
            ("an actor panics", cluster.crash(rank, actor))
        }
        10 => (
            "the master dies while a writer stands still",
            dies_beside(cluster, client, lossy, dice),
        ),
        11 => ("the master dies and its words with it", dies_unheard(cluster, rank, dice)),
        _ => ("a producer dies in its claim", dies_claiming(cluster, lossy).await),
    };
    if done {
        cluster.trace.note("fault", format!("{name} (rank {rank}, client {client})"));
        cluster.coverage.borrow_mut().count(&format!("fault: {name}"));
        cluster.coverage.borrow_mut().count("faults");
    }
    done
}

/// The rank of the master: rank 0 while there is none.
fn master(cluster: &Cluster) -> usize {
    cluster.master().unwrap_or(0)
}

/// A stopped client delays its owners' reports to the next master; meanwhile its keys are put again
/// elsewhere. False if there is none.
fn dies_beside(cluster: &Rc<Cluster>, client: usize, lossy: bool, dice: &mut Dice) -> bool {
    let stopped = cluster.pause_client(client, dice.ms(3_000, 8_000));
    stopped && cluster.kill_rank(master(cluster), lossy)
}

/// Kills a client program that has claimed in a mapped log, before it writes. False if none claims
/// within a while.
async fn dies_claiming(cluster: &Rc<Cluster>, lossy: bool) -> bool {
    let trap = cluster.machines.trap.clone();
    trap.arm(true);
    for _ in 0..TRAPPED_POLLS {
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Some(client) = trap.caught().and_then(|pid| cluster.client_of(pid)) {
            return cluster.kill_client(client, lossy);
        }
    }
    trap.arm(false);
    false
}

/// For a while the master's messages to one rank do not arrive; then the master is killed. False if
/// it has no process.
fn dies_unheard(cluster: &Rc<Cluster>, rank: usize, dice: &mut Dice) -> bool {
    let master = master(cluster);
    let (from, to) = (cluster.plan.ranks[master], cluster.plan.ranks[rank]);
    if from == to || !cluster.is_running(master) {
        return false;
    }
    let pause = dice.ms(20, 400);
    cut(cluster, vec![(from, to)], pause + POLL_INTERVAL);
    let cluster = cluster.clone();
    tokio::task::spawn_local(async move {
        tokio::time::sleep(pause).await;
        if !cluster.closing.get() {
            cluster.kill_rank(master, true);
        }
    });
    true
}

/// Shorter than the TTL, or longer.
fn pause(dice: &mut Dice) -> Duration {
    match dice.weighted(&[50, 35, 15]) {
        0 => dice.ms(5, 400),
        1 => dice.ms(400, 2_000),
        _ => dice.ms(2_000, 6_000),
    }
}

fn duration_of_a_cut(dice: &mut Dice) -> Duration {
    if dice.permille(LONG_PERMILLE) { dice.ms(LONG_MS.0, LONG_MS.1) } else { pause(dice) }
}

fn cut_a_path(cluster: &Rc<Cluster>, dice: &mut Dice) -> bool {
    let hosts = cluster.plan.hosts as u64;
    let a = dice.below(hosts) as usize;
    let b = (a + dice.between(1, hosts - 1) as usize) % hosts as usize;
    let both = dice.permille(500);
    let mut paths = vec![(a, b)];
    if both {
        paths.push((b, a));
    }
    cut(cluster, paths, duration_of_a_cut(dice));
    true
}

fn cut_a_host_off(cluster: &Rc<Cluster>, dice: &mut Dice) -> bool {
    let hosts = cluster.plan.hosts;
    let a = cluster.plan.ranks[dice.below(cluster.plan.ranks.len() as u64) as usize];
    let (inwards, outwards) =
        *dice.pick(&[(true, true), (true, true), (true, false), (false, true)]);
    let mut paths = Vec::new();
    for b in (0..hosts).filter(|b| *b != a) {
        if outwards {
            paths.push((a, b));
        }
        if inwards {
            paths.push((b, a));
        }
    }
    cut(cluster, paths, duration_of_a_cut(dice));
    true
}

fn cut(cluster: &Rc<Cluster>, paths: Vec<(usize, usize)>, pause: Duration) {
    cluster.trace.note("cut", format!("{paths:?} for {pause:?}"));
    paths.iter().for_each(|(from, to)| cluster.net.cut(*from, *to));
    let cluster = cluster.clone();
    tokio::task::spawn_local(async move {
        tokio::time::sleep(pause).await;
        // Of two cuts of one path that overlap, the first to end ends both.
        paths.iter().for_each(|(from, to)| cluster.net.mend(*from, *to));
        cluster.trace.note("mended", format!("{paths:?}"));
    });
}

fn break_connections(cluster: &Rc<Cluster>, dice: &mut Dice) -> bool {
    let n = dice.between(1, 4);
    let broken = (0..n).filter(|_| cluster.net.break_one(dice)).count();
    cluster.coverage.borrow_mut().add("connections broken", broken as u64);
    broken > 0
}
