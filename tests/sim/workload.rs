//! What clients do: tasks that call the program's own handle, again and again, by choices that
//! follow from the seed, and record every answer in the ledger. A call may be dropped midway, and
//! its process may be killed during it: the ledger records that too.

mod reads;
mod removals;
mod striped;
mod writes;

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::ledger::Outcome;
use crate::process::Pid;
use crate::stack::StackfulFuture;
use nkv::message::{MasterCounters, ObjMeta};
use nkv::{Client, ErrorKind, IfExists, PutOptions, Retention};
use std::rc::Rc;
use std::time::Duration;

/// Of a thousand calls, how many are dropped midway, and after how long at most.
const GIVEN_UP_PERMILLE: u64 = 30;
const GIVEN_UP_MS: u64 = 60;
/// Locations that a task remembers, to read by them later.
const REMEMBERED: usize = 16;
/// How long an unmount waits for open plans.
const UNMOUNT: Duration = Duration::from_millis(300);

/// One task of a client program, or of a rank's own handle.
pub struct Worker {
    cluster: Rc<Cluster>,
    client: Client,
    dice: Dice,
    remembered: Vec<(usize, ObjMeta)>,
    // What the options of the put at hand ask for.
    until_read: Option<Duration>,
}

/// Counts a call for as long as it is in flight.
struct Calling(Rc<Cluster>);

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
        self.0.count_op();
    }
}

/// Works until the run closes; `program`: as a client program of its own.
pub fn work(
    cluster: Rc<Cluster>,
    client: Client,
    dice: Dice,
    program: Option<Pid>,
) -> StackfulFuture<()> {
    let worker = Worker { cluster, client, dice, remembered: Vec::new(), until_read: None };
    StackfulFuture::new(worker.run()).of(program)
}

impl Worker {
    async fn run(mut self) {
        while !self.cluster.closing.get() {
            tokio::time::sleep(self.dice.ms(0, 3)).await;
            let cluster = self.cluster.clone();
            cluster.calls.set(cluster.calls.get() + 1);
            let calling = Calling(cluster);
            match self.dice.permille(GIVEN_UP_PERMILLE) {
                true => {
                    let limit = self.dice.ms(0, GIVEN_UP_MS);
                    let _ = tokio::time::timeout(limit, self.call()).await;
                }
                false => self.call().await,
            }
            drop(calling);
        }
    }

    async fn call(&mut self) {
        match self.dice.weighted(&[
            260, 50, 110, 250, 50, 60, 45, 35, 25, 70, 20, 8, 2, 12, 6, 6, 30, 15, 8, 2, 60,
        ]) {
            0 => self.put().await,
            1 => self.put_many().await,
            2 => self.put_by_pages().await,
            3 => self.get().await,
            4 => self.get_many().await,
            5 => self.exists().await,
            6 => self.get_location().await,
            7 => self.read_where_it_was().await,
            8 => self.match_prefix().await,
            9 => self.remove().await,
            10 => self.remove_many().await,
            11 => self.remove_matching().await,
            12 => self.remove_all().await,
            13 => self.evict().await,
            14 => self.list().await,
            15 => self.check_stats().await,
            16 => self.get_when_ready().await,
            17 => self.get_many_when_ready().await,
            18 => self.replicate().await,
            19 => self.mount_or_unmount().await,
            _ => self.striped().await,
        }
    }

    fn key(&mut self) -> usize {
        self.dice.below(self.cluster.ledger.keys() as u64) as usize
    }

    /// Different keys, `most` at most.
    fn some_keys(&mut self, most: u64) -> Vec<usize> {
        let n = self.dice.between(1, most);
        let mut keys: Vec<usize> = (0..n).map(|_| self.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn name(&self, key: usize) -> Vec<u8> {
        self.cluster.ledger.key_name(key)
    }

    fn options(&mut self) -> PutOptions {
        let ranks = self.cluster.plan.ranks.len() as u64;
        let preferred_rank = self.dice.permille(400).then(|| self.dice.below(ranks) as u32);
        let page_bytes = *self.dice.pick(&[0, 512, 1024, 4096]);
        let log = self.dice.permille(self.cluster.plan.log_permille);
        let (permille, most) = self.cluster.plan.replicas;
        let replicas = match self.dice.permille(permille) {
            true => self.dice.between(2, most.into()) as u8,
            false => 1,
        };
        let until_read = Duration::from_secs(self.dice.between(1, 3));
        let retention = match self.dice.weighted(&[60, 10, 10, 10, 10]) {
            0 => Retention::Usual,
            1 => Retention::EvictFirst,
            2 => Retention::SoftPin(Duration::from_secs(self.dice.between(1, 5))),
            3 => Retention::HardPin,
            _ => Retention::UntilRead(until_read),
        };
        self.until_read = (retention == Retention::UntilRead(until_read)).then_some(until_read);
        let opts = match self.dice.below(20) {
            n if n < 5 => PutOptions::default().group(&[n as u8]).expect("a name"),
            _ => PutOptions::default(),
        };
        opts.retention(retention)
            .preferred_rank(preferred_rank)
            .replicas(replicas)
            .page_bytes(page_bytes)
            .device_alloc(log)
            .if_exists(if log { IfExists::Keep } else { IfExists::Fail })
    }

    fn report(&self, what: &'static str, key: usize, outcome: Outcome) {
        self.cluster.coverage.borrow_mut().count(&format!("{what}: {outcome}"));
        self.cluster.trace.event(what, (key, outcome), || format!("key {key}: {outcome}"));
    }

    async fn evict(&mut self) {
        let ratio = self.dice.below(100) as f64 / 100.0;
        let done = self.client.evict_until_below(ratio).await;
        self.report("evict", 0, Outcome::of(&done));
    }

    /// More replicas of some objects, or fewer.
    async fn replicate(&mut self) {
        if self.cluster.plan.replicas.0 == 0 {
            return;
        }
        let keys = self.some_keys(4);
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let names: Vec<_> = names.iter().map(|k| &k[..]).collect();
        let wanted = self.dice.between(1, 3) as u8;
        self.cluster.ledger.replicates(&keys);
        for (key, done) in keys.into_iter().zip(self.client.replicate(&names, wanted).await) {
            self.report("replicate", key, Outcome::of(&done));
        }
    }

    async fn check_stats(&mut self) {
        let term = self.client.membership().await.map(|v| v.term);
        let stats = self.client.stats().await;
        self.report("stats", 0, Outcome::of(&stats));
        if let (Ok(term), Ok(stats)) = (term, stats) {
            self.cluster.note_master(term, &stats.master);
        }
    }

    async fn mount_or_unmount(&mut self) {
        let rank = self.dice.below(self.cluster.plan.ranks.len() as u64) as u32;
        let mounted = self.cluster.with_node(rank as usize, |n| n.mounted()).unwrap_or_default();
        if let Some(info) = mounted.first() {
            let done = self.client.unmount_segment(rank, info.segment_id, UNMOUNT).await;
            return self.report("unmount", 0, Outcome::of(&done));
        }
        let bytes = self.dice.between(4, 16) * 4096;
        let done = self.client.mount_segment(rank, bytes).await;
        self.report("mount", 0, Outcome::of(&done));
    }

    fn remember(&mut self, key: usize, meta: ObjMeta) {
        if self.remembered.len() >= REMEMBERED {
            self.remembered.swap_remove(0);
        }
        self.remembered.push((key, meta));
    }
}

/// The master's counters that a run adds up.
pub fn counters_of(m: &MasterCounters) -> [(&'static str, u64); 12] {
    [
        ("master: opened", m.opened),
        ("master: committed", m.committed),
        ("master: commit refused", m.commit_refused),
        ("master: plans ended", m.plans_ended),
        ("master: adopted", m.adopted),
        ("master: out of memory", m.out_of_memory),
        ("master: lookup hits", m.lookup_hits),
        ("master: lookup misses", m.lookup_misses),
        ("master: removed", m.removed),
        ("master: replicas short", m.replicas_short),
        ("master: replicas repaired", m.replicas_repaired),
        ("master: hot objects", m.hot_objects),
    ]
}

/// True if the answer is that there is no such key.
fn is_absent<T>(result: &nkv::Result<T>) -> bool {
    matches!(result, Err(e) if e.kind() == ErrorKind::NotFound)
}
