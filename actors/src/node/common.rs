//! What all segments of a node share: its configuration, credentials, and tables.

use super::NodeConfig;
use super::watchdog::Watchlist;
use crate::current_master::CurrentMaster;
use crate::environment::Environment;
use crate::membership::Siblings;
use crate::message::{Settings, Term};
use crate::replication::Replication;
use crate::server::SegmentRegistry;
use crate::tier::DiskTier;
use nkv_store::{KeyHasher, KeyPool};
use nkv_transport::wire::auth::Guard;
use std::sync::Arc;
use tokio::sync::watch;

/// What all segments of a node share.
pub(super) struct Common {
    pub config: NodeConfig,
    pub env: Environment,
    // Authenticates connections to the node, and holds its own credentials.
    pub guard: Arc<Guard>,
    // The hasher that makes the identities of the job's keys [I16].
    pub hasher: KeyHasher,
    // Shares key strings between a master and the owners of this process.
    pub key_pool: Arc<KeyPool>,
    // Receives the reason when an actor cannot go on: the node ends.
    pub failed: watch::Sender<Option<String>>,
    pub registry: SegmentRegistry,
    // Where the master is.
    pub master: Arc<CurrentMaster>,
    pub siblings: Arc<Siblings>,
    // Makes replicas of what the node has.
    pub replication: Arc<Replication>,
    // The SSD tier of the node, for all its segments.
    pub tier: Option<Arc<DiskTier>>,
    pub watchlist: Arc<Watchlist>,
    // The master's term and the cluster's settings, as the first segment received them at its join;
    // until then no term, and the settings of this node.
    pub settings: watch::Sender<(Term, Settings)>,
}

impl Drop for Common {
    fn drop(&mut self) {
        self.replication.close();
        if let Some(tier) = &self.tier {
            tier.close();
        }
    }
}
