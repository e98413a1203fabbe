//! Puts through a device log, without a request to the master. One fetch-and-add claims space in
//! the owner's log; then header, pages and READY are written, all one-sided and on the caller's
//! thread. The key is reported to the owner later, in a batch, so that the object can be listed. A
//! put that the log cannot take uses a plan.

mod append;
mod replicas;

use super::Client;
use super::log_names::KeyNote;
use super::peer::Peer;
use super::peer_log::PeerLog;
use super::value::Value;
use crate::client::{IfExists, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Abandoned, ClientToOwner, Medium, Touch};
use nkv_store::KeyId;
use nkv_store::clock::Clock;
use nkv_store::device_log::{ClaimStep, ControlLine, LogPut, OpenClaim};
use nkv_store::key::key_hash;
use nkv_store::layout::epoch_of;
use nkv_transport::verbs::{Kind, Op};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a put waits for room before it claims, and a claim for room, and the pause between two
/// polls. Room is made within Q and a few milliseconds.
const ROOM_WAIT: Duration = Duration::from_millis(60);
const CLAIM_WAIT: Duration = Duration::from_millis(20);
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// From this size on, a put first looks whether the key is stored: that takes less time than a
/// twentieth of the copy.
const CHECKED_BYTES: usize = 64 << 10;
/// Most claims of one put: a claim across the end of the log is skipped, and made again.
const CLAIMS_PER_PUT: usize = 4;

/// A wait that polls. Over tcp a poll takes a round trip, and a clock may stand still in a test, so
/// both count.
struct Wait {
    began_ns: u64,
    polls: u32,
}

impl Wait {
    fn from(clock: &dyn Clock) -> Self {
        Self { began_ns: clock.now_ns(), polls: 0 }
    }

    fn lasted(&self, clock: &dyn Clock) -> Duration {
        let passed = Duration::from_nanos(clock.now_ns().saturating_sub(self.began_ns));
        passed.max(POLL_INTERVAL * self.polls)
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

/// Whether a mapped segment serves the key. Then the put counts as a use: somebody wants it.
fn is_there(peer: &Peer, id: KeyId) -> bool {
    let hit = peer.reader.as_ref().and_then(|reader| reader.find(id));
    let Some(hit) = hit.filter(|_| peer.is_alive()) else { return false };
    let touch = Touch { slot: hit.slot, epoch: hit.epoch(), bytes: 0, read: false };
    let _ = peer.note(None, touch);
    true
}

/// The error of a put whose claim has ended: its slot is at this epoch.
fn void_claim(peer: &Peer, epoch: u32) -> Error {
    Error::reclaimed(format!("a claim in the log of rank {} is void ({epoch})", peer.rank))
}

/// What a log did with an object.
enum Took {
    /// It is written and READY.
    Written,
    /// Its key is served already.
    There,
    /// The log has no room now, or the object can never fit.
    No,
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
        opts.wanted_replicas() <= 1 && self.allows_logs(opts)
    }

    fn allows_logs(&self, opts: &PutOptions) -> bool {
        let allowed = opts.device_alloc.unwrap_or(self.shared.config.device_alloc);
        let usual = opts.medium == Medium::Any && opts.retention.is_usual();
        allowed && usual && opts.if_exists == IfExists::Keep
    }

    /// The rank whose log a key belongs to.
    pub(super) fn log_rank(&self, hash: u64, opts: &PutOptions) -> Option<u32> {
        opts.preferred_rank.or_else(|| self.shared.rank_for(hash))
    }

    /// Puts through the device log of the key's owner, without a message. Parts are put so only
    /// into a mapped log and by RDMA.
    pub(crate) fn try_put(&self, key: &[u8], value: Value<'_>, opts: &PutOptions) -> TryPut {
        // Then the caller waits.
        if self.wants_logs(opts) || !opts.disks.is_empty() {
            return TryPut::NotAttached;
        }
        if !self.wants_log(opts) {
            return TryPut::NeedsPlan;
        }
        if let Err(e) = self.check_usable().and_then(|()| Self::check_new(key, opts)) {
            return TryPut::Done(Err(e));
        }
        if self.stripes_for(value.len(), opts) > 1 {
            return TryPut::NeedsPlan;
        }
        // The plan path returns the error of a node that is shutting down.
        if self.shared.draining.load(Ordering::Acquire) {
            return TryPut::NeedsPlan;
        }
        let hash = key_hash(key);
        let peer = self.log_rank(hash, opts).and_then(|rank| self.shared.peers.first_of(rank));
        let Some(peer) = peer else { return TryPut::NotAttached };
        // Part of the index and then the value are fetched into the cache while the claim is made.
        if let Some(reader) = peer.reader.as_ref().filter(|_| value.len() >= CHECKED_BYTES) {
            reader.expect(KeyId { hash, check: 0 });
        }
        nkv_store::streaming::fetch_source(value.start());
        let Some(peer) = self.shared.peers.claiming(peer) else { return TryPut::NeedsPlan };
        if peer.kind() == Kind::Tcp && !matches!(value, Value::Whole(_)) {
            return TryPut::NeedsPlan;
        }
        let clock = &*self.shared.env.clock;
        let claims = |log: &&PeerLog| log.layout.claims_by_hosts() && !log.is_refused(clock);
        let Some(log) = peer.open_log().filter(claims) else {
            return TryPut::NeedsPlan;
        };
        let put = self.log_put((&peer, log), (key, hash), value.len(), opts);
        let name = KeyNote { key, group: opts.group_at(&peer, key) };
        let put = || match &put {
            Some(put) => self.put_into((&peer, log), name, put, value),
            None => Ok(Took::No),
        };
        match peer.run_blocking(put) {
            Ok(Took::Written) => {
                log.was_served();
                self.shared.writes.by_log.one();
                TryPut::Done(Ok(()))
            }
            Ok(Took::There) => {
                self.shared.writes.there_already.one();
                TryPut::Done(Ok(()))
            }
            // Too many claims are open, or the owner revoked the token: puts use plans for a while.
            Err(e) if e.kind() == ErrorKind::Reclaimed && peer.kind() == Kind::Tcp => {
                tracing::debug!(error = %e, "puts to this log take plans for a while");
                log.was_refused(clock);
                TryPut::NeedsPlan
            }
            Ok(Took::No) => {
                self.shared.writes.log_full.one();
                TryPut::NeedsPlan
            }
            Err(e) => TryPut::Done(Err(e)),
        }
    }

    /// An object of so many bytes for this log; None if it can never fit.
    fn log_put(
        &self,
        (peer, log): (&Peer, &PeerLog),
        (key, hash): (&[u8], u64),
        bytes: usize,
        opts: &PutOptions,
    ) -> Option<LogPut> {
        // Hashed as the owner hashes: under another identity nobody could find the object in its
        // log.
        let id = KeyId { hash, check: peer.hasher.check(key) };
        LogPut::new(log.layout, id, self.page_bytes(opts), bytes as u64)
    }

    fn page_bytes(&self, opts: &PutOptions) -> u32 {
        match opts.page_bytes {
            0 => self.shared.settings.page_bytes,
            bytes => bytes,
        }
    }

    /// Puts into the log, unless the key is served there already.
    fn put_into(
        &self,
        (peer, log): (&Peer, &PeerLog),
        name: KeyNote<'_>,
        put: &LogPut,
        value: Value<'_>,
    ) -> Result<Took> {
        if let (Kind::Tcp, Value::Whole(bytes)) = (peer.kind(), value)
            && let Some(took) = self.append((peer, log), name, put, bytes)?
        {
            return Ok(took);
        }
        let checked = value.len() >= CHECKED_BYTES;
        let mut line = ControlLine::unread();
        let mut inside = log.gate.enter();
        let mut room = or_plan(peer, log.room(&*peer.verbs, put, &mut line))?.flatten();
        if checked && is_there(peer, put.key()) {
            return Ok(Took::There);
        }
        if room.is_none() {
            drop(inside);
            if !self.wait_for_room(peer, log, put, &mut line)? {
                return Ok(Took::No);
            }
            inside = log.gate.enter();
            room = or_plan(peer, log.room(&*peer.verbs, put, &mut line))?.flatten();
        }
        let _inside = inside;
        let Some(bound) = room else { return Ok(Took::No) };
        let Some(open) = log.open.enter(bound) else { return Ok(Took::No) };
        for _ in 0..CLAIMS_PER_PUT {
            // If a claim is lost in flight, its slot stays in doubt until the data path is severed.
            let Some(p) = or_plan(peer, log.claim(&*peer.verbs, put, &mut line))? else {
                return Ok(Took::No);
            };
            open.note(p);
            match self.wait_in_line(peer, log, put.claimed(p), &mut line)? {
                None => {
                    open.leave();
                    return Ok(Took::No);
                }
                Some(ClaimStep::Skip(skip)) => {
                    peer.verbs.post(log.token, &mut skip.ops())?;
                    log.read_control_line(&*peer.verbs, &mut line)?;
                    let Some(bound) = put.room(&line) else {
                        open.leave();
                        return Ok(Took::No);
                    };
                    open.note(bound);
                }
                Some(ClaimStep::Write(write)) => {
                    Self::place(peer, log, &write, value, open)?;
                    log.name(p, name);
                    return Ok(Took::Written);
                }
                Some(ClaimStep::Wait(_)) => break,
            }
        }
        open.leave();
        Ok(Took::No)
    }

    /// Writes header, pages and READY as one chain. After a failure it marks the claim DEAD [I13].
    fn place(
        peer: &Peer,
        log: &PeerLog,
        write: &nkv_store::device_log::ClaimWrite,
        value: Value<'_>,
        open: OpenClaim<'_>,
    ) -> Result<()> {
        let object = write.publication();
        let (mut whole, mut gathered);
        let ops: &mut [Op<'_>] = match value {
            Value::Whole(bytes) => {
                whole = object.whole(bytes);
                &mut whole
            }
            Value::Parts(parts) => {
                gathered = object.gathered(parts);
                &mut gathered
            }
            Value::Sources(parts) => {
                gathered = object.gathered(parts);
                &mut gathered
            }
        };
        peer.verbs.post(log.token, ops).inspect_err(|_| {
            // If this write fails too, the claim is a hole: the owner voids it after it has asked
            // this process.
            let _ = peer.verbs.post(log.token, &mut write.abort().ops());
        })?;
        let took = object.took(ops);
        open.leave();
        took.map_err(|found| void_claim(peer, epoch_of(found)))
    }

    /// Waits until the log has room: at most `ROOM_WAIT`, and not at all for a while after a wait
    /// in vain. False if it has none.
    fn wait_for_room(
        &self,
        peer: &Peer,
        log: &PeerLog,
        put: &LogPut,
        line: &mut ControlLine,
    ) -> Result<bool> {
        let clock = &*self.shared.env.clock;
        let mut wait = Wait::from(clock);
        while wait.lasted(clock) < ROOM_WAIT && !log.is_stuck(clock) {
            self.shared.env.machine.rest(POLL_INTERVAL);
            wait.polls += 1;
            let read = or_plan(peer, log.read_control_line(&*peer.verbs, line))?;
            if read.is_none() || put.room(line).is_some() {
                return Ok(read.is_some());
            }
        }
        if wait.lasted(clock) >= ROOM_WAIT {
            log.was_stuck(clock);
        }
        Ok(false)
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
        let clock = &*self.shared.env.clock;
        let mut next = claim.next(line.heap_limit());
        let mut wait = Wait::from(clock);
        while let ClaimStep::Wait(claim) = next {
            if wait.polls > 0 && wait.lasted(clock) >= CLAIM_WAIT {
                let given_up = claim.abandon();
                let abandoned = Abandoned { position: given_up.p, bytes: given_up.n };
                self.give_up_claim(peer, log, abandoned);
                return Ok(None);
            }
            if wait.polls > 0 {
                self.shared.env.machine.rest(POLL_INTERVAL);
            }
            wait.polls += 1;
            log.read_control_line(&*peer.verbs, line)?;
            next = claim.next(line.heap_limit());
        }
        Ok(Some(next))
    }

    /// Attaches to the owners whose logs take keys with these hashes, unless attached already. Only
    /// the first put of a handle to an owner waits for this.
    pub(super) async fn attach_log_owners(&self, hashes: &[u64], opts: &PutOptions) {
        if self.knows_members().await {
            let ranks = match opts.preferred_rank {
                Some(rank) => vec![rank],
                None => self.shared.ranks_for(hashes),
            };
            self.attach_logs_of(ranks).await;
        }
    }

    /// Whether this handle has a view of the membership, which it asks for if it has none.
    pub(super) async fn knows_members(&self) -> bool {
        self.shared.world.load(Ordering::Relaxed) > 0 || self.membership().await.is_ok()
    }

    /// Attaches to the owners of these ranks' logs, unless attached already.
    pub(super) async fn attach_logs_of(&self, mut ranks: Vec<u32>) {
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
        self.shared.tried_to_attach(&ranks);
    }
}
