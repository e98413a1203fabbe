//! The end of a run: all faults end, clients finish, and within a bounded time everything leaked
//! must have been reclaimed. Used bytes are live bytes, at every owner and at the master;
//! acknowledged objects are read; then all are removed, and no byte is used any more.

use crate::cluster::Cluster;
use crate::ledger::{KnownBy, Roster};
use crate::net::ip_of;
use crate::plan::{JOB, PORT, secret};
use crate::stack::{self, StackfulFuture};
use nkv::message::ClusterStats;
use nkv::{Address, Client, ClientConfig};
use std::rc::Rc;
use std::time::Duration;

/// Calls that were begun before the end may take so long.
const LAST_CALLS: Duration = Duration::from_secs(60);
/// Everything is joined, reclaimed or gone within this: terms, deadlines, TTLs and the kernel's
/// timeouts of connections, one after the other.
const RECLAIMED: Duration = Duration::from_secs(90);
/// Pause between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Ends all faults and checks what is left.
pub async fn check(cluster: Rc<Cluster>) {
    for a in 0..cluster.plan.hosts {
        (0..cluster.plan.hosts).for_each(|b| cluster.net.mend(a, b));
    }
    cluster.machines.be_kind();
    cluster.closing.set(true);
    if !until(LAST_CALLS, async || cluster.calls.get() == 0 && cluster.clients_running() == 0).await
    {
        let (calls, clients) = (cluster.calls.get(), cluster.clients_running());
        let text = format!("{calls} calls and {clients} clients do not end");
        return cluster.ledger.wrong(text);
    }
    if !until(RECLAIMED, async || cluster.is_whole()).await {
        return cluster.ledger.wrong("the cluster does not become whole again".to_string());
    }
    // On a host of its own, by tcp, with nothing remembered.
    let handle = match cluster.last_client().await {
        Ok(handle) => handle,
        Err(e) => return cluster.ledger.wrong(format!("nobody can connect at the end: {e}")),
    };
    // Segments that were mounted may still be on their way to a new master.
    if !until(RECLAIMED, async || handle.exists(&[b"any"]).await.is_ok()).await {
        return cluster.ledger.wrong("nothing is found at the end".to_string());
    }
    if !reclaimed(&cluster, &handle, "at the end", unclean).await {
        return;
    }
    read_all(&cluster, &handle).await;
    let keys: Vec<usize> = (0..cluster.ledger.keys()).collect();
    let began = cluster.ledger.begin_removal(&keys, KnownBy::ByAll);
    let removed = handle.remove_all().await;
    let (outcome, roster) = (crate::ledger::Outcome::of(&removed), cluster.roster(began));
    keys.iter().for_each(|k| cluster.ledger.end_removal(began, *k, outcome, &roster));
    if let Err(e) = removed {
        cluster.ledger.wrong(format!("remove_all fails at the end: {e}"));
    }
    let used = |c: &Cluster, s: &ClusterStats| unclean(c, s).or_else(|| in_use(s));
    reclaimed(&cluster, &handle, "after remove_all", used).await;
    cluster.note_ends();
}

async fn until(limit: Duration, mut so: impl AsyncFnMut() -> bool) -> bool {
    let polls = limit.as_millis() / POLL_INTERVAL.as_millis();
    for _ in 0..polls {
        if so().await {
            return true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}

async fn reclaimed(
    cluster: &Rc<Cluster>,
    handle: &Client,
    when: &str,
    wrong: impl Fn(&Cluster, &ClusterStats) -> Option<String>,
) -> bool {
    let mut last = "no figures".to_string();
    let clean = until(RECLAIMED, async || {
        let why = match handle.stats().await {
            Ok(stats) => wrong(cluster, &stats),
            Err(e) => Some(e.to_string()),
        };
        let clean = why.is_none();
        last = why.unwrap_or_default();
        clean
    });
    if clean.await {
        return true;
    }
    cluster.ledger.wrong(format!("{when}, after {RECLAIMED:?}: {last}"));
    false
}

/// The first violation of the state that must hold once all is quiet.
fn unclean(cluster: &Cluster, stats: &ClusterStats) -> Option<String> {
    if stats.plans_open > 0 || stats.waiting > 0 {
        return Some(format!(
            "the master has {} plans open and {} waiting",
            stats.plans_open, stats.waiting
        ));
    }
    let (mut objects, mut logged) = (0, 0);
    for row in &stats.ranks {
        if row.state != "alive" {
            return Some(format!("rank {} segment {} is {}", row.rank, row.segment, row.state));
        }
        // As of now, not of its last heartbeat.
        let o = cluster.gauges(row.rank as usize, row.segment)?;
        let open = [o.plans_open, o.open_bytes, o.fencing, o.quarantined, o.held_bytes];
        let settled = o.log_accepted_bytes + o.log_skipped_bytes + o.log_abandoned_bytes;
        if o.log_claimed_bytes != settled + o.log_voided_bytes {
            return Some(format!(
                "[I13] rank {} has claims that nothing became of: {o:?}",
                row.rank
            ));
        }
        let unseen = cluster.ledger.unaccepted_on(row.incarnation);
        if unseen > 0 {
            return Some(format!("[I13] {unseen} puts to the log of rank {} wait", row.rank));
        }
        if open != [0; 5] || o.heap_used != o.live_bytes || row.allocated_bytes != o.live_bytes {
            return Some(format!(
                "rank {} segment {}: {} bytes allocated by the master, and {o:?}",
                row.rank, row.segment, row.allocated_bytes
            ));
        }
        let readable = cluster.ledger.readable_on(row.incarnation) as u64;
        if readable != o.objects + o.log_objects {
            return Some(format!(
                "rank {} segment {}: {readable} objects are readable, its owner counts {} and {} \
                 in its log",
                row.rank, row.segment, o.objects, o.log_objects
            ));
        }
        objects += o.objects;
        logged += o.log_objects;
    }
    let twice = cluster.ledger.twice_on_a_rank();
    if twice.is_some() {
        return twice;
    }
    // Objects of a log whose producer died before it sent their keys are not listed by the master.
    let listed = stats.objects;
    if cluster.plan.makes_replicas() {
        let members: Vec<u64> = stats.ranks.iter().map(|row| row.incarnation).collect();
        objects = cluster.ledger.keys_in_heaps(&members) as u64;
    }
    (!(objects..=objects + logged).contains(&listed)).then(|| {
        format!("owners have {objects} objects and {logged} in logs, the master lists {listed}")
    })
}

fn in_use(stats: &ClusterStats) -> Option<String> {
    let used = stats.ranks.iter().find(|r| r.allocated_bytes + r.owner.log_live_bytes > 0);
    used.map(|r| {
        let logged = r.owner.log_live_bytes;
        format!("rank {} has {} bytes in use, and {logged} in its log", r.rank, r.allocated_bytes)
    })
}

/// How often a read at the end is repeated if its owner is gone: ranks can go so often.
const READ_AGAIN: usize = 3;

/// Checks that every key has the state that the ledger expects.
async fn read_all(cluster: &Rc<Cluster>, handle: &Client) {
    let roster: Roster = cluster.roster(u64::MAX);
    for (key, spot) in cluster.ledger.must_be_there(&roster) {
        let name = cluster.ledger.key_name(key);
        // No node has a disk here.
        let found = handle.get_location(&name).await;
        match found.map(|at| at.into_memory().expect("in memory")) {
            Ok(meta) if meta.at.slot == spot.slot && meta.at.epoch == spot.epoch => {}
            Ok(meta) => cluster.trace.note("elsewhere", format!("key {key}: {:?}", meta.at)),
            // Its owner may evict it meanwhile: a log makes room ahead of demand.
            Err(_) if !cluster.ledger.is_readable(spot) => {}
            Err(e) => {
                let name = name.escape_ascii();
                cluster.ledger.wrong(format!("{name} is acknowledged, at {spot:?}, and lost: {e}"));
            }
        }
    }
    let (cluster, handle) = (cluster.clone(), handle.clone());
    StackfulFuture::new(async move {
        for key in 0..cluster.ledger.keys() {
            let began = cluster.ledger.moment();
            stack::read_from();
            let _reading = cluster.ledger.reading(key);
            let mut read = handle.get(&cluster.ledger.key_name(key)).await;
            // A rank that was stopped may be declared gone between the lookup and the read: it is
            // found so at once, or after the limit of an attempt to attach to it.
            for _ in 0..READ_AGAIN {
                use nkv::ErrorKind::{Disconnected, Timeout};
                let gone = |e: &nkv::Error| matches!(e.kind(), Disconnected | Timeout);
                if !read.as_ref().is_err_and(gone) {
                    break;
                }
                read = handle.get(&cluster.ledger.key_name(key)).await;
            }
            match read {
                Ok(bytes) => cluster.check_bytes(key, began, &bytes, &stack::read_from()),
                Err(e) if e.kind() == nkv::ErrorKind::NotFound => {
                    let roster = cluster.roster(u64::MAX);
                    cluster.ledger.check_absence((key, began), KnownBy::ByAll, &roster);
                }
                Err(e) => cluster.ledger.wrong(format!("a read at the end fails: {e}")),
            }
        }
    })
    .await;
}

impl Cluster {
    /// A handle in a process of its own, on the last host.
    async fn last_client(self: &Rc<Self>) -> nkv::Result<Client> {
        let at = Address::Tcp(format!("{}:{PORT}", ip_of(self.plan.ranks[0])));
        let config = ClientConfig {
            job: JOB.to_string(),
            call_timeout_ms: 5_000,
            secret: Some(secret()),
            ..ClientConfig::default()
        };
        let process = self.process_on(self.plan.hosts - 1);
        Client::connect_in(self.environment(&process, false), &at, config).await
    }
}
