//! Asks the cluster: the master for the members and their figures, and each rank for its own
//! status. All are asked at once, each with a limit, so one sample takes about the longest limit at
//! most. It remembers the members, so that ranks are still asked while the master is gone.

use super::status_page::{self, NodePage};
use nkv::message::{ClusterStats, RankInfo, View};
use nkv::{Address, Client, ClientConfig, Error};
use nkv_store::clock::{BootClock, Clock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How long the master may take to answer.
const MASTER_LIMIT: Duration = Duration::from_millis(1_500);
/// Ranks asked at the same time.
const ASKED_AT_ONCE: usize = 64;
/// Ranks asked for their own status; for others only the master's figures are shown.
const ASKED_AT_MOST: usize = 1024;

/// One sample of the cluster.
#[derive(Debug)]
pub(super) struct Sample {
    /// When it ended, in nanoseconds of the boot clock.
    pub(super) at_ns: u64,
    /// The members and figures, or why the master did not answer.
    pub(super) master: Result<(View, ClusterStats), String>,
    /// The status that each rank serves, by rank; absent if it has no HTTP server.
    pub(super) nodes: BTreeMap<u32, Result<NodePage, String>>,
}

/// Takes samples.
#[derive(Debug)]
pub(super) struct Collector {
    config: ClientConfig,
    /// The nodes that the user named.
    given: Vec<Address>,
    next_entry_node: usize,
    client: Option<Client>,
    /// The last known members.
    known: BTreeMap<u32, RankInfo>,
}

impl Collector {
    /// Asks through `client` first; once that fails it connects through other nodes.
    pub(super) fn new(client: Client, given: Vec<Address>, config: ClientConfig) -> Self {
        Self { config, given, next_entry_node: 0, client: Some(client), known: BTreeMap::new() }
    }

    /// Asks everybody once.
    pub(super) async fn sample(&mut self) -> Sample {
        let asked = self.known.clone();
        let (mut nodes, master) = tokio::join!(ask_nodes(asked.values()), self.ask_master());
        if let Ok((view, _)) = &master {
            self.known = view.nodes().map(|(info, _)| (info.rank, info.clone())).collect();
            // Ranks that are new, or have a new incarnation, were not asked yet.
            let new = |info: &&RankInfo| {
                asked.get(&info.rank).is_none_or(|was| was.incarnation != info.incarnation)
            };
            nodes.extend(ask_nodes(self.known.values().filter(new)).await);
        }
        Sample { at_ns: BootClock.now_ns(), master, nodes }
    }

    async fn ask_master(&mut self) -> Result<(View, ClusterStats), String> {
        let answer = match tokio::time::timeout(MASTER_LIMIT, self.ask_through_client()).await {
            Ok(answer) => answer.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {} ms", MASTER_LIMIT.as_millis())),
        };
        if answer.is_err() {
            // Next time through another node: this one may be the broken one.
            self.client = None;
            self.next_entry_node = self.next_entry_node.wrapping_add(1);
        }
        answer
    }

    async fn ask_through_client(&mut self) -> Result<(View, ClusterStats), Error> {
        let client = match &self.client {
            Some(client) => client,
            None => {
                // Through the nodes that the user named, then all members, in turn.
                let members = self.known.values().map(|info| &info.control);
                let nodes: Vec<&Address> = self.given.iter().chain(members).collect();
                let node = nodes[self.next_entry_node % nodes.len()];
                self.client.insert(Client::connect(node, self.config.clone()).await?)
            }
        };
        Ok((client.membership().await?, client.stats().await?))
    }
}

/// The status of every rank that serves one.
async fn ask_nodes<'a>(
    ranks: impl Iterator<Item = &'a RankInfo>,
) -> BTreeMap<u32, Result<NodePage, String>> {
    let room = Arc::new(Semaphore::new(ASKED_AT_ONCE));
    let mut asked = JoinSet::new();
    for info in ranks.take(ASKED_AT_MOST) {
        let Some(address) = info.http.clone() else { continue };
        let (rank, incarnation, room) = (info.rank, info.incarnation, room.clone());
        asked.spawn(async move {
            let _turn = room.acquire_owned().await;
            (rank, status_page::fetch(&address, incarnation).await)
        });
    }
    let mut pages = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        if let Ok((rank, page)) = answer {
            pages.insert(rank, page);
        }
    }
    pages
}
