//! Puts through a device log, without a request to the master. One fetch-and-add claims space in
//! the owner's log; then header, pages and READY are written, all one-sided and on the caller's
//! thread. The key is reported to the owner later, in a batch, so that the object can be listed. A
//! put that the log cannot take uses a plan.

use super::Client;
use super::counters::Writes;
use super::peer::Peer;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Abandoned, ClientToOwner, KeyBytes, KeyReport, PutOptions};
use nkv_store::clock::Clock;
use nkv_store::device_log::{ClaimStep, ControlLine, LogGeometry, LogPut, OpenClaim, OpenClaims};
use nkv_store::key::key_hash;
use nkv_store::{Key, KeyId};
use nkv_transport::verbs::{Kind, Op};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a claim waits for room, and the pause between two polls.
const CLAIM_WAIT: Duration = Duration::from_millis(20);
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// After a refusal no put uses the log for this long. The time doubles with every refusal in a row,
/// at most `MOST_DOUBLINGS` times: to 64 s.
const REFUSED_NS: u64 = 1_000_000_000;
const MOST_DOUBLINGS: u32 = 6;
/// Most given-up claims kept until they are reported. The owner asks about claims that are never
/// reported.
const MAX_GIVEN_UP: usize = 1024;
/// Most claims of one put: a claim across the end of the log is skipped, and made again.
const CLAIMS_PER_PUT: usize = 4;
/// Most keys reported to an owner in one frame, and per timer tick of the Producer.
pub(super) const NAMES_PER_FRAME: usize = 1024;
pub(crate) const NAMES_PER_TICK: usize = 2048;

/// The log of one owner, as a handle writes to it.
#[derive(Debug)]
pub(crate) struct PeerLog {
    geometry: LogGeometry,
    open: Arc<OpenClaims>,
    // Sent with every change: the agent identifies the producer of a claim by it.
    token: u64,
    // Puts of this handle that are in the middle of a claim.
    in_flight: AtomicUsize,
    // The highest limit that a put has read, for the actor that reports keys: it must not post
    // verbs.
    limit: AtomicU64,
    // The highest bump that a put has seen; 0: the next put has to read it.
    bump: AtomicU64,
    // Positions and keys that are not reported to the owner yet.
    names: Mutex<VecDeque<(u64, KeyBytes)>>,
    // A whole batch was sent since the last check with `all`.
    batch_reported: AtomicBool,
    // Claims given up while they waited, which could not be reported to the owner at once.
    given_up: Mutex<VecDeque<Abandoned>>,
    // Refusals in a row, and until when no put uses this log because of them.
    refusals: AtomicU32,
    refused_until_ns: AtomicU64,
}

impl PeerLog {
    pub(crate) fn new(geometry: LogGeometry, open: Arc<OpenClaims>, token: u64) -> Self {
        Self {
            geometry,
            open,
            token,
            in_flight: AtomicUsize::new(0),
            limit: AtomicU64::new(0),
            bump: AtomicU64::new(0),
            names: Mutex::default(),
            batch_reported: AtomicBool::new(false),
            given_up: Mutex::default(),
            refusals: AtomicU32::new(0),
            refused_until_ns: AtomicU64::new(0),
        }
    }

    /// Whether the owner's agent refused a claim recently. An agent that has revoked the token
    /// refuses every claim, so the pause doubles with every refusal in a row.
    fn is_refused(&self, clock: &dyn Clock) -> bool {
        self.refusals.load(Ordering::Relaxed) > 0
            && clock.now_ns() < self.refused_until_ns.load(Ordering::Relaxed)
    }

    fn was_refused(&self, clock: &dyn Clock) {
        let times = self.refusals.fetch_add(1, Ordering::Relaxed).min(MOST_DOUBLINGS);
        self.refused_until_ns.store(clock.now_ns() + (REFUSED_NS << times), Ordering::Relaxed);
    }

    fn was_served(&self) {
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    fn keep_given_up(&self, abandoned: Abandoned) {
        let mut kept = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_GIVEN_UP {
            kept.push_back(abandoned);
        }
    }

    /// Reports given-up claims to the owner, until `send` fails.
    pub(crate) fn report_given_up(&self, send: impl Fn(Abandoned) -> bool) {
        loop {
            let mut kept = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(abandoned) = kept.pop_front() else { return };
            drop(kept);
            if !send(abandoned) {
                return self.keep_given_up(abandoned);
            }
        }
    }

    /// Whether to report now: true with at least `batch` unreported keys, or with a given-up claim.
    /// With `all` any key is enough, unless a whole batch was sent since the last call with `all`:
    /// then the next batch takes the remaining keys along.
    pub(crate) fn should_report_now(&self, batch: usize, all: bool) -> bool {
        let names = self.names_noted();
        let steady = all && self.batch_reported.swap(false, Ordering::Relaxed);
        if names >= batch {
            return true;
        }
        (all && names > 0 && !steady)
            || !self.given_up.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn name(&self, position: u64, key: &[u8]) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= self.geometry.slots() as usize {
            // The log has wrapped since: that object is gone.
            names.pop_front();
        }
        names.push_back((position, key.into()));
    }

    /// Takes over what an earlier attachment had not reported yet.
    pub(crate) fn inherit(&self, before: &PeerLog) {
        let most = self.geometry.slots() as usize;
        let names: Vec<_> = before.take_names(most);
        self.keep_names(names);
        before.report_given_up(|abandoned| {
            self.keep_given_up(abandoned);
            true
        });
    }

    /// Number of keys not reported yet.
    pub(crate) fn names_noted(&self) -> usize {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records that a whole batch of keys was sent.
    pub(crate) fn batch_reported(&self) {
        self.batch_reported.store(true, Ordering::Relaxed);
    }

    /// Puts back keys that could not be reported.
    pub(crate) fn keep_names(&self, untold: Vec<KeyReport>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for n in untold.into_iter().rev() {
            if let Some(position) = self.geometry.position(n.slot, n.epoch) {
                names.push_front((position, n.key));
            }
        }
        let excess = names.len().saturating_sub(self.geometry.slots() as usize);
        names.drain(..excess);
    }

    /// Takes up to `most` keys to report. Drops keys of objects below the known tail: the log has
    /// overwritten them.
    pub(crate) fn take_names(&self, most: usize) -> Vec<KeyReport> {
        let limit = self.limit.load(Ordering::Relaxed);
        let tail = limit.saturating_sub(self.geometry.log_bytes());
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((position, key)) = names.pop_front()
        {
            if let Some(epoch) = self.geometry.epoch(position).filter(|_| position >= tail) {
                let slot = self.geometry.slot(position);
                taken.push(KeyReport { slot, epoch, key });
            }
        }
        taken
    }

    /// Reads limit and bump.
    fn read_control_line(&self, peer: &Peer, line: &mut ControlLine) -> Result<()> {
        peer.verbs.post(0, &mut [line.read()])?;
        self.limit.fetch_max(line.heap_limit(), Ordering::Relaxed);
        Ok(())
    }

    /// The bound to claim with; None without room. Over RDMA, reading the control line takes as
    /// long as the claim, so it is skipped while the last known bump leaves room below the last
    /// known limit.
    fn room(&self, peer: &Peer, put: &LogPut, line: &mut ControlLine) -> Result<Option<u64>> {
        let bump = self.bump.load(Ordering::Relaxed);
        if peer.kind() == Kind::Rdma && bump > 0 {
            *line = ControlLine::known(self.limit.load(Ordering::Relaxed), bump);
            if let Ok(bound) = put.room(line) {
                return Ok(Some(bound));
            }
        }
        self.read_control_line(peer, line)?;
        Ok(put.room(line).ok())
    }

    /// True when no put of this handle is in the middle of a claim.
    pub(crate) fn is_drained(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }
}

/// Counts a put as in flight for as long as it lives.
struct InFlight<'a>(&'a PeerLog);

impl<'a> InFlight<'a> {
    fn enter(log: &'a PeerLog) -> Self {
        log.in_flight.fetch_add(1, Ordering::SeqCst);
        Self(log)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Claims by one fetch-and-add; returns the position of the claim.
fn claim(peer: &Peer, log: &PeerLog, put: &LogPut) -> Result<u64> {
    let mut ops = [put.fetch_add()];
    peer.verbs.post(log.token, &mut ops)?;
    match ops {
        [Op::FetchAdd { old, .. }] => Ok(old),
        _ => Err(Error::internal("a claim that is no fetch-and-add")),
    }
}

/// None if a put over RDMA failed before anything was written: a plan may use another data path.
fn or_plan<T>(peer: &Peer, done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(error) if peer.kind() == Kind::Rdma => {
            tracing::debug!(%error, rank = peer.rank, "a put over rdma failed; it uses a plan");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// What became of an attempt.
enum Attempt {
    Done,
    /// The log has no room now, or the object can never fit.
    Plan,
}

/// Result of a put without a message.
pub(crate) enum TryPut {
    /// The put has ended with this result.
    Done(Result<()>),
    /// The put needs a plan: its options ask for one, or the log did not take it.
    NeedsPlan,
    /// This handle is not attached to the owner of the log.
    NotAttached,
}

impl Client {
    pub(super) fn wants_log(&self, opts: &PutOptions) -> bool {
        opts.device_alloc.unwrap_or(self.shared.config.device_alloc)
    }

    /// The owner whose log a key belongs to, if this handle is attached to it.
    fn log_owner(&self, hash: u64, opts: &PutOptions) -> Option<Arc<Peer>> {
        let world = self.shared.world();
        let by_hash = || (world > 0).then(|| (hash % u64::from(world)) as u32);
        let rank = opts.preferred_rank.or_else(by_hash)?;
        self.shared.peers.first_of(rank)
    }

    /// Puts through the device log of the key's owner, without a message.
    pub(crate) fn try_put(&self, key: &[u8], value: &[u8], opts: &PutOptions) -> TryPut {
        if !self.wants_log(opts) {
            return TryPut::NeedsPlan;
        }
        // The value is fetched into the cache while the claim is made.
        nkv_store::streaming::fetch_source(value);
        if let Err(e) = self.check_usable() {
            return TryPut::Done(Err(e));
        }
        if let Err(e) = Key::check(key) {
            return TryPut::Done(Err(e.into()));
        }
        // The plan path returns the error of a node that is shutting down.
        if self.shared.draining.load(Ordering::Acquire) {
            return TryPut::NeedsPlan;
        }
        let hash = key_hash(key);
        let Some(peer) = self.log_owner(hash, opts) else { return TryPut::NotAttached };
        let Some(peer) = self.shared.peers.claiming(peer) else { return TryPut::NeedsPlan };
        let clock = &*self.shared.env.clock;
        let Some(log) = peer.open_log().filter(|log| !log.is_refused(clock)) else {
            return TryPut::NeedsPlan;
        };
        // Hashed as the owner hashes: under another identity nobody could find the object in its
        // log.
        let id = KeyId { hash, check: peer.hasher.check(key) };
        let put = || self.put_into((&peer, log), (key, id), value, opts);
        match peer.run_blocking(put) {
            Ok(Attempt::Done) => {
                log.was_served();
                Writes::count(&self.shared.writes.by_log, 1);
                TryPut::Done(Ok(()))
            }
            // Too many claims are open, or the owner revoked the token: puts use plans for a while.
            Err(e) if e.kind == ErrorKind::Reclaimed && peer.kind() == Kind::Tcp => {
                tracing::debug!(error = %e, "puts to this log take plans for a while");
                log.was_refused(clock);
                TryPut::NeedsPlan
            }
            Ok(Attempt::Plan) => {
                Writes::count(&self.shared.writes.log_full, 1);
                TryPut::NeedsPlan
            }
            Err(e) => TryPut::Done(Err(e)),
        }
    }

    fn put_into(
        &self,
        (peer, log): (&Peer, &PeerLog),
        (key, id): (&[u8], KeyId),
        value: &[u8],
        opts: &PutOptions,
    ) -> Result<Attempt> {
        let page = match opts.page_bytes {
            0 => self.shared.page_bytes(),
            bytes => bytes,
        };
        let pages = (value.len().div_ceil(page.max(1) as usize) as u32, page);
        let Ok(put) = LogPut::new(log.geometry, id, pages, value.len() as u64) else {
            return Ok(Attempt::Plan);
        };
        let _inside = InFlight::enter(log);
        let mut line = ControlLine::unread();
        let room = or_plan(peer, log.room(peer, &put, &mut line))?;
        let Some(bound) = room.flatten() else { return Ok(Attempt::Plan) };
        let Some(open) = log.open.enter(bound) else { return Ok(Attempt::Plan) };
        for _ in 0..CLAIMS_PER_PUT {
            // If a claim is lost in flight, its slot stays in doubt until the data path is severed.
            let Some(p) = or_plan(peer, claim(peer, log, &put))? else { return Ok(Attempt::Plan) };
            open.note(p);
            if peer.kind() == Kind::Rdma {
                log.bump.fetch_max(p.saturating_add(put.claim_bytes()), Ordering::Relaxed);
            }
            match self.wait_in_line(peer, log, put.claimed(p), &mut line)? {
                None => {
                    open.leave();
                    return Ok(Attempt::Plan);
                }
                Some(ClaimStep::Skip(skip)) => {
                    peer.verbs.post(log.token, &mut skip.ops())?;
                    log.read_control_line(peer, &mut line)?;
                    let Ok(bound) = put.room(&line) else {
                        open.leave();
                        return Ok(Attempt::Plan);
                    };
                    open.note(bound);
                }
                Some(ClaimStep::Write(write)) => {
                    Self::place(peer, log, &write, value, open)?;
                    log.name(p, key);
                    return Ok(Attempt::Done);
                }
                Some(ClaimStep::Wait(_)) => break,
            }
        }
        open.leave();
        Ok(Attempt::Plan)
    }

    /// Writes header, pages and READY as one chain. After a failure it marks the claim DEAD [I13].
    fn place(
        peer: &Peer,
        log: &PeerLog,
        write: &nkv_store::device_log::ClaimWrite,
        value: &[u8],
        open: OpenClaim<'_>,
    ) -> Result<()> {
        let object = write.publication();
        let mut ops = object.whole(value);
        let posted = peer.verbs.post(log.token, &mut ops);
        if let Err(e) = posted {
            // If this write fails too, the claim is a hole: the owner voids it after it has asked
            // this process.
            let _ = peer.verbs.post(log.token, &mut write.abort().ops());
            return Err(e.into());
        }
        let took = object.took(&ops);
        open.leave();
        took.map_err(|found| {
            let epoch = nkv_store::layout::epoch_of(found);
            Error::reclaimed(format!("a claim in the log of rank {} is void ({epoch})", peer.rank))
        })
    }

    /// Waits at most `CLAIM_WAIT` while the claim is above the limit. None: the claim is given up
    /// and the owner is notified.
    fn wait_in_line(
        &self,
        peer: &Peer,
        log: &PeerLog,
        claim: nkv_store::device_log::Claim,
        line: &mut ControlLine,
    ) -> Result<Option<ClaimStep>> {
        let mut next = claim.next(line.heap_limit());
        let mut waited = Duration::ZERO;
        while let ClaimStep::Wait(claim) = next {
            if waited >= CLAIM_WAIT {
                let given_up = claim.abandon();
                let abandoned = Abandoned { position: given_up.p, bytes: given_up.n };
                debug_assert!(log.geometry.is_claim(abandoned.position, abandoned.bytes));
                // If it is never reported, the claim is a hole that the owner asks about.
                if !peer.send(ClientToOwner::Abandoned(abandoned)) {
                    log.keep_given_up(abandoned);
                }
                log.bump.store(0, Ordering::Relaxed);
                Writes::count(&self.shared.writes.log_abandoned, 1);
                return Ok(None);
            }
            if waited > Duration::ZERO {
                self.shared.env.machine.rest(POLL_INTERVAL);
            }
            waited += POLL_INTERVAL;
            log.read_control_line(peer, line)?;
            next = claim.next(line.heap_limit());
        }
        Ok(Some(next))
    }

    /// Attaches to the owners whose logs take keys with these hashes, unless attached already. Only
    /// the first put of a handle to an owner waits for this.
    pub(super) async fn attach_log_owners(&self, hashes: &[u64], opts: &PutOptions) {
        let world = match self.shared.world() {
            0 => self.membership().await.map_or(0, |v| v.world_size),
            n => n,
        };
        if world == 0 {
            return;
        }
        let by_hash = |hash: &u64| (hash % u64::from(world)) as u32;
        let mut ranks: Vec<u32> = match opts.preferred_rank {
            Some(rank) => vec![rank],
            None => hashes.iter().map(by_hash).collect(),
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| self.shared.peers.first_of(*rank).is_none());
        if ranks.is_empty() {
            return;
        }
        let known = |rank: &u32| self.shared.first_with_log(*rank);
        let mut owners: Vec<u64> = ranks.iter().filter_map(known).collect();
        if owners.len() < ranks.len() && self.membership().await.is_ok() {
            owners = ranks.iter().filter_map(known).collect();
        }
        for owner in owners {
            if let Err(error) = self.peer(owner).await {
                tracing::debug!(%error, "a log that cannot be reached: puts take plans");
            }
        }
    }
}
