//! Mounting and unmounting of segments while a node runs. Each segment joins the master by itself,
//! and is reached through the node's one control port. Unmounting removes it with its objects, and
//! leaves nothing behind. Segment 0 is not handled here: it starts and ends with its node.

use super::common::Common;
use super::segment::{Joining, SegmentFlags, SegmentHandle, SegmentHost, UnjoinedSegment};
use super::status::shown;
use super::{MemoryChoice, StartError};
use crate::client::Shared;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::membership::{LinkState, Siblings};
use crate::message::{MAX_SEGMENTS, RankInfo, SegmentId, UnmountReport};
use crate::owner::RetireAll;
use nkv_transport::wire::Address;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Between checks whether a drain is done.
pub(super) const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a drain waits for the master's message that no plan follows.
pub(super) const QUIET_LIMIT_MS: u64 = 1_000;
/// A segment that has not joined the master within this time is not mounted.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Longest an unmount waits for open plans: ten minutes.
const MAX_UNMOUNT_MS: u64 = 600_000;
/// How long an owner may take to retire all its objects.
const RETIRE_LIMIT: Duration = Duration::from_secs(30);

/// See the file's first paragraph.
pub(crate) struct Segments {
    pub(super) common: Common,
    // Set once the node listens.
    pub(super) reach: OnceLock<NodeAddresses>,
    // Set once the node joins.
    pub(super) first: OnceLock<First>,
    // Runs an unmount to its end, even if its caller is gone.
    home: Executor,
    // One mount at a time: each measures the memory that is left before it takes some.
    raising: tokio::sync::Mutex<()>,
    table: Mutex<Table>,
}

/// The first segment of a node, and its client handle, set once it has both.
pub(super) struct First {
    pub segment_handle: SegmentHandle,
    pub handle: Weak<Shared>,
    pub started_ms: u64,
}

/// Addresses of the node.
#[derive(Debug, Clone)]
pub(super) struct NodeAddresses {
    pub control: Address,
    pub local: Option<Address>,
}

struct Table {
    // False once the node drains or stops: no further mounts.
    open: bool,
    hosts: BTreeMap<u32, Hosted>,
}

struct Hosted {
    // None while it is made.
    host: Option<SegmentHost>,
    // It is being unmounted.
    going: bool,
}

/// Reserves a segment number while the segment is made; freed on drop unless the segment was
/// mounted.
struct Reserved<'a> {
    segments: &'a Segments,
    id: u32,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut table = self.segments.lock();
        if table.hosts.get(&self.id).is_some_and(|hosted| hosted.host.is_none()) {
            table.hosts.remove(&self.id);
            self.segments.common.siblings.remove(self.id);
        }
    }
}

impl Segments {
    pub(super) fn new(common: Common, home: Executor) -> Self {
        Self {
            common,
            reach: OnceLock::new(),
            first: OnceLock::new(),
            home,
            raising: tokio::sync::Mutex::default(),
            table: Mutex::new(Table { open: true, hosts: BTreeMap::new() }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn segment_id(&self, segment: u32) -> SegmentId {
        SegmentId { rank: self.common.config.rank, segment }
    }

    /// Makes a segment of `bytes` payload bytes and joins it to the cluster; returns once the
    /// master has handled its report. A failed mount leaves nothing behind.
    pub(crate) async fn mount(self: &Arc<Self>, bytes: u64) -> Result<RankInfo> {
        let _one_at_a_time = self.raising.lock().await;
        let reserved = self.reserve()?;
        self.check_memory(bytes)?;
        let unjoined =
            UnjoinedSegment::new(&self.common, reserved.id, bytes).await.map_err(refused)?;
        let Some(NodeAddresses { control, local }) = self.reach.get().cloned() else {
            return Err(Error::not_ready(format!("{} does not listen yet", self.segment_id(0))));
        };
        let info = unjoined.info(&self.common, control, local);
        // Before its first object: the node reports it to a later master, which then waits for it.
        self.common.siblings.add(reserved.id, info.incarnation);
        let how = Joining {
            voter: None,
            limit: self.join_limit(),
            siblings: Arc::new(Siblings::default()),
            settings_tx: watch::Sender::new(self.common.settings.borrow().clone()),
            switches: SegmentFlags::default(),
        };
        let host = unjoined.join(&self.common, info.clone(), how);
        let segment_handle = host.segment_handle.clone();
        let (back, why) = match self.taken_in(&segment_handle).await {
            Ok(()) => (self.keep(host), self.ending()),
            Err(e) => (Some(host), e),
        };
        if let Some(host) = back {
            segment_handle.leave().await;
            drop(host);
            return Err(why);
        }
        self.watch_link(reserved.id, segment_handle.link);
        tracing::info!(segment = reserved.id, bytes = info.layout.arena.len, "mounted");
        Ok(info)
    }

    fn ending(&self) -> Error {
        Error::disconnected(format!("{} is shutting down and mounts nothing", self.segment_id(0)))
    }

    fn reserve(&self) -> Result<Reserved<'_>> {
        let mut table = self.lock();
        if !table.open {
            return Err(self.ending());
        }
        let free = (1..MAX_SEGMENTS).find(|id| !table.hosts.contains_key(id));
        let id = free.ok_or_else(|| {
            Error::out_of_memory(format!(
                "{} has {MAX_SEGMENTS} segments, as many as there can be: unmount one first",
                self.segment_id(0)
            ))
        })?;
        table.hosts.insert(id, Hosted { host: None, going: false });
        Ok(Reserved { segments: self, id })
    }

    /// Private memory is allocated on first use: without this check a lack of memory would show
    /// only later, as an out-of-memory kill.
    fn check_memory(&self, bytes: u64) -> Result<()> {
        let available = self.common.env.machine.available();
        if self.common.config.memory == MemoryChoice::Private && available > 0 && bytes > available
        {
            return Err(Error::out_of_memory(format!(
                "a segment of {bytes} bytes: this machine has {available} bytes left; mount less"
            )));
        }
        Ok(())
    }

    fn join_limit(&self) -> Duration {
        JOIN_LIMIT.min(Duration::from_millis(self.common.config.join_timeout_ms))
    }

    /// Waits until the master has handled the segment's report.
    async fn taken_in(&self, segment_handle: &SegmentHandle) -> Result<()> {
        let mut link = segment_handle.link.clone();
        let done = |l: &LinkState| !matches!(l, LinkState::Joining | LinkState::Lost(_));
        let limit = self.join_limit();
        let state = match tokio::time::timeout(limit, link.wait_for(done)).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(Error::internal("the link's task ended")),
            Err(_) => LinkState::NoMaster("no answer".to_string()),
        };
        match state {
            LinkState::Joined => Ok(()),
            LinkState::Refused(why) => {
                Err(Error::disconnected(format!("the master refused the segment: {why}")))
            }
            LinkState::NoMaster(why) => Err(Error::disconnected(format!(
                "the master did not accept the segment within {limit:?}: {why}"
            ))),
            other => {
                Err(Error::disconnected(format!("the link of the segment: {}", shown(&other))))
            }
        }
    }

    /// Adds the segment to the node's; returns it if the node began to shut down meanwhile.
    fn keep(&self, host: SegmentHost) -> Option<SegmentHost> {
        let mut table = self.lock();
        if !table.open {
            return Some(host);
        }
        let id = host.segment_handle.info.segment_id;
        self.common.watchlist.add(id, host.segment_handle.roles.watches());
        table.hosts.insert(id, Hosted { host: Some(host), going: false });
        None
    }

    /// Takes a mounted segment down when the master declares it gone; its node runs on without it.
    fn watch_link(self: &Arc<Self>, id: u32, mut link: watch::Receiver<LinkState>) {
        let weak = Arc::downgrade(self);
        self.home.task(async move {
            if link.wait_for(|l| *l == LinkState::Gone).await.is_err() {
                return;
            }
            if let Some(segments) = weak.upgrade() {
                tracing::error!(segment = id, "declared gone by the master: unmounted");
                segments.take_down(id).await;
            }
        });
    }

    /// Unmounts a segment: no new plan is placed on it, and open plans have `limit` to end. Then
    /// its objects are retired and leave the index, and its memory and name are removed.
    pub(crate) async fn unmount(
        self: &Arc<Self>,
        id: u32,
        limit: Duration,
    ) -> Result<UnmountReport> {
        let segment_handle = self.let_go(id)?;
        let (tx, rx) = oneshot::channel();
        let segments = self.clone();
        // On the node's own executor: it runs to its end even if this call is dropped.
        self.home.task(async move {
            let _ = tx.send(segments.unmounting(id, segment_handle, limit).await);
        });
        rx.await.map_err(|_| Error::disconnected("the node ended while it unmounted a segment"))
    }

    fn let_go(&self, id: u32) -> Result<SegmentHandle> {
        if id == 0 {
            return Err(Error::invalid(format!(
                "segment 0 of {} cannot be unmounted: it ends with its node",
                self.segment_id(0)
            )));
        }
        let mut table = self.lock();
        match table.hosts.get_mut(&id) {
            Some(Hosted { host: Some(host), going: going @ false }) => {
                *going = true;
                host.segment_handle.drain();
                Ok(host.segment_handle.clone())
            }
            Some(Hosted { going, .. }) => {
                let what = if *going { "unmounted" } else { "mounted" };
                let text = format!("{} is being {what} right now", self.segment_id(id));
                Err(Error::not_ready(text))
            }
            None => {
                let there: Vec<_> = table.hosts.keys().map(u32::to_string).collect();
                let there = match there.as_slice() {
                    [] => "none is mounted".to_string(),
                    all => format!("mounted are {}", all.join(", ")),
                };
                Err(Error::not_found(format!("there is no {}; {there}", self.segment_id(id))))
            }
        }
    }

    async fn unmounting(
        &self,
        id: u32,
        segment_handle: SegmentHandle,
        limit: Duration,
    ) -> UnmountReport {
        let clock = &self.common.env.clock;
        let start = clock.now_ms();
        let limit_ms = (limit.as_millis() as u64).min(MAX_UNMOUNT_MS);
        until(|| segment_handle.is_quiet(), start + limit_ms.min(QUIET_LIMIT_MS), &**clock).await;
        until(|| segment_handle.open_plans() == 0, start + limit_ms, &**clock).await;
        let plans_left = segment_handle.open_plans();
        let mut objects = retire_all(&segment_handle).await;
        self.common.siblings.remove(id);
        let confirmed = segment_handle.leave().await;
        // A plan still open may have been committed between the two calls.
        objects += retire_all(&segment_handle).await;
        self.take_down(id).await;
        let waited_ms = clock.now_ms() - start;
        tracing::info!(segment = id, objects, plans_left, confirmed, "unmounted");
        UnmountReport { objects, plans_left, waited_ms, confirmed }
    }

    async fn take_down(&self, id: u32) {
        self.common.siblings.remove(id);
        self.common.watchlist.remove(id);
        let host = self.lock().hosts.remove(&id);
        // Joins the threads of its tcp connections.
        if let Err(error) = self.home.beside(move || drop(host)).await {
            tracing::warn!(segment = id, %error, "taking a segment down failed");
        }
    }

    /// Refuses further mounts, and drains all mounted segments.
    pub(super) fn drain(&self) {
        self.lock().open = false;
        self.all().iter().for_each(SegmentHandle::drain);
    }

    /// What `of` returns for each mounted segment, in the order of their numbers.
    pub(super) fn each<T>(&self, of: impl FnMut(&SegmentHost) -> T) -> Vec<T> {
        self.lock().hosts.values().filter_map(|hosted| hosted.host.as_ref()).map(of).collect()
    }

    /// The handles of all mounted segments.
    pub(super) fn all(&self) -> Vec<SegmentHandle> {
        self.each(|host| host.segment_handle.clone())
    }

    /// Takes everything down at once.
    pub(super) fn close(&self) {
        let hosts = {
            let mut table = self.lock();
            table.open = false;
            std::mem::take(&mut table.hosts)
        };
        for id in hosts.keys() {
            self.common.watchlist.remove(*id);
        }
        drop(hosts);
    }
}

/// Polls until `so` holds, or until the time `end_ms`.
pub(super) async fn until(so: impl Fn() -> bool, end_ms: u64, clock: &dyn nkv_store::clock::Clock) {
    while !so() && clock.now_ms() < end_ms {
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
}

async fn retire_all(segment_handle: &SegmentHandle) -> u64 {
    segment_handle.roles.owner.call(RetireAll, RETIRE_LIMIT).await.unwrap_or_else(|error| {
        // Its memory is removed in any case, and no verb succeeds after that.
        tracing::warn!(%error, "objects of a segment were not retired before it went");
        0
    })
}

/// The error of a mount whose segment could not be made.
fn refused(e: StartError) -> Error {
    match e {
        StartError::Config(text) => Error::invalid(text),
        StartError::HeapTooLarge(text) => Error::out_of_memory(text),
        other => Error::internal(other.to_string()),
    }
}
