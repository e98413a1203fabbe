//! What all clones of a handle share with its Producer: attachments, open plans, cached locations,
//! the last view of the membership, and counters.

use super::buffers::Buffers;
use super::config::ClientConfig;
use super::counters::{Messages, Reads, Times, Writes};
use super::keys::HandleKeys;
use super::locations::Locations;
use super::peer::Peer;
use super::peers::Peers;
use super::plans::OpenPlans;
use super::rank_choice::{RankChoice, site_of};
use super::read_cache::ReadCache;
use crate::environment::Environment;
use crate::executor::OwnedExecutor;
use crate::message::{RankState, Settings, View, is_news};
use crate::slow_path::ClientSlowPath;
use arc_swap::ArcSwap;
use nkv_store::fork::ProcessMark;
use nkv_transport::wire::auth::Credentials;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// State that all clones of a handle share with its Producer.
pub struct Shared {
    pub(crate) env: Environment,
    pub(crate) config: ClientConfig,
    pub(crate) credentials: Credentials,
    pub(crate) keys: HandleKeys,
    pub(crate) producer_id: u64,
    pub(crate) plans: Arc<OpenPlans>,
    // Has one more reference for each message about abandoned plans that is in flight.
    pub(crate) abandoning: Arc<()>,
    pub(crate) peers: Peers,
    pub(crate) locations: Locations,
    pub(super) read_cache: Option<Arc<ReadCache>>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) reads: Reads,
    pub(crate) writes: Writes,
    pub(crate) messages: Arc<Messages>,
    pub(crate) times: Times,
    pub(crate) slow_path: Arc<ClientSlowPath>,
    pub(crate) draining: Arc<AtomicBool>,
    // The handle is closed: every call fails.
    pub(crate) closed: AtomicBool,
    pub(super) settings: Settings,
    pub(super) view: RwLock<View>,
    // World size of the job; 0 while unknown.
    pub(super) world: AtomicU32,
    // The same in a job that places objects by the hash of their keys; else 0.
    pub(super) hashed_over: AtomicU32,
    pub(super) rank_choice: ArcSwap<RankChoice>,
    pub(super) next_request: AtomicU64,
    // Only a standalone client has one; a node's handle uses the executor of its node.
    pub(super) executor: Option<OwnedExecutor>,
    pub(crate) made: ProcessMark,
    // The rank of the node that this handle belongs to, or the first one on its host.
    pub(crate) home: Option<u32>,
}

/// After the last handle is dropped its thread runs this much longer, so that its links can send
/// Detach.
const LAST_FRAMES_LIMIT: Duration = Duration::from_millis(100);

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child must not send anything for its parent.
        if !self.made.is_here() {
            return;
        }
        if let Some(cache) = &self.read_cache {
            cache.close();
        }
        // Only this handle can report these keys.
        for peer in self.peers.all() {
            peer.send_names(usize::MAX);
        }
        if let Some(executor) = self.executor.take() {
            let here = executor.executor().clone();
            here.task(async move {
                tokio::time::sleep(LAST_FRAMES_LIMIT).await;
                drop(executor);
            });
        }
    }
}

impl Shared {
    /// Adds a new attachment to an owner; it is disconnected if the owner was declared gone
    /// meanwhile [I17]. False if this handle was closed meanwhile.
    pub(crate) fn take_in(&self, peer: Arc<Peer>) -> bool {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        match view.member(peer.incarnation) {
            Some((_, state)) => peer.take_puts(*state == RankState::Alive),
            None if view.settled => peer.disconnect(),
            None => {}
        }
        let taken = self.peers.insert(peer.clone(), &self.closed);
        if taken {
            let (rank, transport) = (peer.rank, peer.kind());
            tracing::info!(rank, %transport, passed_over = ?peer.passed_over, "attached");
        }
        taken
    }

    /// Incarnation of a rank's first segment, if the segment is alive and has a device log.
    pub(crate) fn first_with_log(&self, rank: u32) -> Option<u64> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let up =
            view.node(rank).filter(|(info, s)| info.layout.log_slots > 0 && *s == RankState::Alive);
        up.map(|(info, _)| info.incarnation)
    }

    pub(crate) fn view(&self) -> View {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a view of the membership, unless a later one is already kept. Disconnects owners that
    /// are no longer members: their objects may have been removed and put again elsewhere [I17].
    pub(crate) fn keep_view(&self, view: View) {
        let mut kept = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if view.order() != kept.order() && !is_news(view.order(), kept.order()) {
            return;
        }
        self.rank_choice.store(Arc::new(RankChoice::new(&view, site_of(&self.config, &self.env))));
        self.hashed_over.store(RankChoice::hashed_over(&view), Ordering::Relaxed);
        self.world.store(view.world_size, Ordering::Relaxed);
        for (info, state) in &view.ranks {
            self.peers.take_puts(info.incarnation, *state == RankState::Alive);
        }
        if view.settled {
            let members = view.ranks.iter().map(|(info, _)| info.incarnation).collect();
            self.peers.disconnect_others(&members);
        }
        *kept = view;
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared(producer {:016x})", self.producer_id)
    }
}
