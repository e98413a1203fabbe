//! The master of a node: how it begins, with a term of its own, and how it ends.

use super::NodeConfig;
use super::common::Common;
use super::segment::report_to;
use super::settings::shared_settings;
use super::watchdog::{OF_MASTER, Watchlist};
use crate::actor::ActorAddr;
use crate::current_master::{CurrentMaster, LocalMaster, MasterPath};
use crate::election::StartMaster;
use crate::environment::Environment;
use crate::error::Result;
use crate::executor::Executor;
use crate::master::{MasterDurable, Members};
use crate::message::Term;
use nkv_store::{KeyHasher, KeyPool};
use nkv_transport::wire::{Address, BoxFuture};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;

/// See the file's first paragraph.
pub(super) struct MasterStarter {
    config: NodeConfig,
    env: Environment,
    hasher: KeyHasher,
    key_pool: Arc<KeyPool>,
    failed: watch::Sender<Option<String>>,
    watchlist: Arc<Watchlist>,
    master: Arc<CurrentMaster>,
    executor: Executor,
    // Of this node, nearest first.
    addresses: Arc<[Address]>,
}

impl MasterStarter {
    /// Of a node that is reached at these addresses; the master runs on this executor.
    pub(super) fn new(common: &Common, executor: &Executor, addresses: Arc<[Address]>) -> Self {
        Self {
            config: common.config.clone(),
            env: common.env.clone(),
            hasher: common.hasher,
            key_pool: common.key_pool.clone(),
            failed: common.failed.clone(),
            watchlist: common.watchlist.clone(),
            master: common.master.clone(),
            executor: executor.clone(),
            addresses,
        }
    }

    async fn start(&self, number: u64, alive: BTreeSet<u32>) -> Result<()> {
        let (config, clock) = (&self.config, &self.env.clock);
        let term = Term { number, master: self.env.random.u64() };
        let settings = shared_settings(config);
        let (lease_ms, now_ms) = (settings.master_lease_ms, clock.now_ms());
        let members = Members::new(term, (config.rank, config.world_size), lease_ms, now_ms);
        let members = Arc::new(members.waiting_for(alive).with_placement(config.placement));
        let durable = MasterDurable {
            world_size: config.world_size,
            ttl_ms: config.ttl_ms,
            full_wait_ms: config.full_wait_ms,
            hasher: self.hasher,
            key_pool: self.key_pool.clone(),
            settings,
            members: members.clone(),
            next_plan: Arc::new(AtomicU64::new(1)),
            boot_id: self.env.machine.boot_id(),
            clock: clock.clone(),
            random: self.env.random.clone(),
            hot_replicas: config.hot_replicas,
        };
        let exhausted = report_to(&self.failed, None);
        let actor = ActorAddr::start(&self.executor, durable, exhausted).await?;
        self.watchlist.add(OF_MASTER, [actor.watch()]);
        let addresses = self.addresses.clone();
        self.master.set(MasterPath::Local(LocalMaster { actor, members, addresses }));
        Ok(())
    }
}

impl StartMaster for MasterStarter {
    fn begin(&self, number: u64, alive: BTreeSet<u32>) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.start(number, alive))
    }

    fn end(&self) {
        self.watchlist.remove(OF_MASTER);
        // Its actor ends with the last connection that knows it.
        self.master.set(MasterPath::Remote([].into()));
    }
}
