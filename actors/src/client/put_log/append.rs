//! Puts over tcp in one round trip: the owner's end claims, writes and publishes. All puts of a
//! batch that go to one owner share a request.

use super::{Abandoned, ClientToOwner, Took, void_claim};
use crate::client::batch::in_one_request;
use crate::client::log_names::KeyNote;
use crate::client::peer::Peer;
use crate::client::peer_log::PeerLog;
use crate::client::value::Value;
use crate::client::{Client, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use nkv_store::device_log::{ClaimStep, ControlLine, LogPut};
use nkv_transport::verbs::{Append, Appended, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Puts of one request.
const PUTS_PER_REQUEST: usize = 256;
/// Payload bytes of one request; a larger object is put alone. A claim that waits in line stays
/// open until all of it has arrived.
const BYTES_PER_REQUEST: u64 = 8 << 20;

/// One put of a batch.
pub(super) struct Wanted<'a> {
    /// Its position in the caller's batch.
    pub index: usize,
    pub name: KeyNote<'a>,
    pub value: &'a [u8],
    pub put: LogPut,
    pub done: Option<Result<()>>,
}

/// An owner, and the puts that go to it.
pub(super) type OfOwner<'a> = (Arc<Peer>, Vec<Wanted<'a>>);

/// The put as the owner's end makes it.
fn appended_by<'a>(put: &LogPut, value: &'a [u8]) -> Append<'a> {
    Append::new(put.key(), put.page_bytes(), value).in_set(put.mark())
}

/// Whether a value is brought by a request of its own.
pub(super) fn goes_alone(peer: &Peer, bytes: u64) -> bool {
    bytes > BYTES_PER_REQUEST || peer.verbs.cuts(bytes)
}

/// How many of these fit below the limit, first to last.
fn room_for(part: &[Wanted<'_>], line: &ControlLine) -> usize {
    let mut end = line.bump_ptr();
    let fits = part.iter().take_while(|wanted| {
        end = end.saturating_add(wanted.put.claim_bytes());
        end <= line.heap_limit()
    });
    fits.count()
}

impl Client {
    /// Puts one object. None: the other end cannot do it, or not with so much at once.
    pub(super) fn append(
        &self,
        (peer, log): (&Peer, &PeerLog),
        name: KeyNote<'_>,
        put: &LogPut,
        value: &[u8],
    ) -> Result<Option<Took>> {
        let mut line = ControlLine::unread();
        let mut waited = false;
        loop {
            // Without room the payload would be sent in vain.
            let mut full = log.known_line().is_some_and(|known| put.room(&known).is_none());
            if full {
                log.read_control_line(&*peer.verbs, &mut line)?;
                full = put.room(&line).is_none();
            }
            if !full {
                let inside = log.gate.enter();
                let mut append = [appended_by(put, value)];
                let Some(done) = log.append(&*peer.verbs, &mut append, &mut line) else {
                    return Ok(None);
                };
                done?;
                let [Append { outcome, .. }] = append;
                if let Some(took) = self.appended((peer, log), (name, value), put, outcome)? {
                    return Ok(Some(took));
                }
                drop(inside);
            }
            if waited || !self.wait_for_room(peer, log, put, &mut line)? {
                return Ok(Some(Took::No));
            }
            waited = true;
        }
    }

    /// What became of one append. None: there was no room for it.
    fn appended(
        &self,
        (peer, log): (&Peer, &PeerLog),
        (name, value): (KeyNote<'_>, &[u8]),
        put: &LogPut,
        outcome: Appended,
    ) -> Result<Option<Took>> {
        match outcome {
            Appended::Ready(p) => {
                log.name(p, name);
                Ok(Some(Took::Written))
            }
            Appended::Waits(p) => self.write_waiting((peer, log), (name, value), put, p),
            Appended::NoRoom => Ok(None),
            Appended::Void(p) => Err(void_claim(peer, log.layout.epoch(p).unwrap_or_default())),
            Appended::Refused => {
                Err(Error::reclaimed(format!("rank {} refuses claims in its log", peer.rank)))
            }
        }
    }

    /// Writes a claim that was made while the log filled, once it is below the limit. None: it
    /// crosses the log's end, and has to be made again.
    fn write_waiting(
        &self,
        (peer, log): (&Peer, &PeerLog),
        (name, value): (KeyNote<'_>, &[u8]),
        put: &LogPut,
        p: u64,
    ) -> Result<Option<Took>> {
        let Some(open) = log.open.enter(p) else {
            let abandoned = Abandoned { position: p, bytes: put.claim_bytes() };
            self.give_up_claim(peer, log, abandoned);
            return Ok(Some(Took::No));
        };
        let mut line = ControlLine::unread();
        match self.wait_in_line(peer, log, put.claimed(p), &mut line)? {
            Some(ClaimStep::Write(write)) => {
                Self::place(peer, log, &write, Value::Whole(value), open)?;
                log.name(p, name);
                return Ok(Some(Took::Written));
            }
            Some(ClaimStep::Skip(skip)) => peer.verbs.post(log.token, &mut skip.ops())?,
            None | Some(ClaimStep::Wait(_)) => {
                open.leave();
                return Ok(Some(Took::No));
            }
        }
        open.leave();
        Ok(None)
    }

    /// A claim is given up, unwritten, and the owner is notified.
    pub(in crate::client) fn give_up_claim(
        &self,
        peer: &Peer,
        log: &PeerLog,
        abandoned: Abandoned,
    ) {
        debug_assert!(log.layout.is_claim(abandoned.position, abandoned.bytes));
        // If it is never reported, the claim is a hole that the owner asks about.
        if !peer.send(ClientToOwner::Abandoned(abandoned)) {
            log.keep_given_up(abandoned);
        }
        log.bump.store(0, Ordering::Relaxed);
        self.shared.writes.log_abandoned.one();
    }

    /// Puts those items that go to logs reached by tcp, together. None: to be put alone.
    pub(in crate::client) fn put_together(
        &self,
        items: &[(&[u8], &[u8])],
        hashes: &[u64],
        opts: &PutOptions,
    ) -> Vec<Option<Result<()>>> {
        let mut done: Vec<_> = items.iter().map(|_| None).collect();
        if items.len() < 2 || self.shared.draining.load(Ordering::Acquire) {
            return done;
        }
        // Found once for each rank: most batches go to mapped logs alone.
        let mut by_rank: BTreeMap<u32, Option<OfOwner<'_>>> = BTreeMap::new();
        for (index, ((key, value), hash)) in items.iter().zip(hashes).enumerate() {
            let Some(rank) = self.log_rank(*hash, opts) else { continue };
            let of_rank = by_rank.entry(rank);
            let of_rank = of_rank.or_insert_with(|| Some((self.log_by_tcp(rank)?, Vec::new())));
            let Some((peer, wanted)) = of_rank else { continue };
            if let Some(put) = self.put_by_tcp(peer, (key, *hash), value, opts) {
                let name = KeyNote { key, group: opts.group_at(peer, key) };
                wanted.push(Wanted { index, name, value, put, done: None });
            }
        }
        let mut all: Vec<_> = by_rank.into_values().flatten().collect();
        self.at_owners(&mut all, |peer, wanted| self.put_at(peer, wanted));
        for put in all.into_iter().flat_map(|(_, wanted)| wanted) {
            done[put.index] = put.done;
        }
        done
    }

    /// The owner of a rank, if its log takes puts by tcp now.
    fn log_by_tcp(&self, rank: u32) -> Option<Arc<Peer>> {
        let peer = self.shared.peers.claiming(self.shared.peers.first_of(rank)?)?;
        let log = peer.open_log().filter(|_| peer.kind() == Kind::Tcp)?;
        let refused = log.is_refused(&*self.shared.env.clock);
        (!refused).then_some(peer)
    }

    fn put_by_tcp(
        &self,
        peer: &Peer,
        (key, hash): (&[u8], u64),
        value: &[u8],
        opts: &PutOptions,
    ) -> Option<LogPut> {
        let alone = goes_alone(peer, value.len() as u64) || self.stripes_for(value.len(), opts) > 1;
        Self::check_new(key, opts).ok().filter(|()| !alone)?;
        self.log_put((peer, peer.open_log()?), (key, hash), value.len(), opts)
    }

    pub(super) fn put_at(&self, peer: &Peer, mut rest: &mut [Wanted<'_>]) {
        let Some(log) = peer.open_log() else { return };
        while !rest.is_empty() {
            let sizes = rest.iter().map(|wanted| wanted.value.len() as u64);
            let n = in_one_request(sizes, PUTS_PER_REQUEST, BYTES_PER_REQUEST);
            // What it did not put is put alone, which waits for room and finds out what failed.
            let Some(n) = self.put_part(peer, log, &mut rest[..n]) else { return };
            rest = &mut rest[n..];
        }
    }

    /// One request with the first of these, as far as there is room. Returns how many these are;
    /// None: the rest is put alone.
    fn put_part(&self, peer: &Peer, log: &PeerLog, part: &mut [Wanted<'_>]) -> Option<usize> {
        let (mut line, _inside) = (ControlLine::unread(), log.gate.enter());
        let mut n = log.known_line().map_or(part.len(), |known| room_for(part, &known));
        if n < part.len() {
            // Those words may be old.
            log.read_control_line(&*peer.verbs, &mut line).ok()?;
            n = room_for(part, &line);
        }
        let part = &mut part[..n];
        part.first()?;
        let mut appends: Vec<_> = part.iter().map(|w| appended_by(&w.put, w.value)).collect();
        if let Err(e) = log.append(&*peer.verbs, &mut appends, &mut line)? {
            // Refused: the owner revoked the token. Put alone, they take plans.
            if e.kind() == ErrorKind::Reclaimed {
                return None;
            }
            part.iter_mut().for_each(|wanted| wanted.done = Some(Err(e.clone())));
            return Some(n);
        }
        let outcomes: Vec<_> = appends.into_iter().map(|append| append.outcome).collect();
        if outcomes.iter().any(|outcome| *outcome != Appended::Refused) {
            log.was_served();
        }
        for (wanted, outcome) in part.iter_mut().zip(outcomes) {
            let item = (wanted.name, wanted.value);
            match self.appended((peer, log), item, &wanted.put, outcome) {
                Ok(Some(Took::Written)) => {
                    self.shared.writes.by_log.one();
                    wanted.done = Some(Ok(()));
                }
                Ok(_) => {}
                Err(_) if outcome == Appended::Refused => {}
                Err(e) => wanted.done = Some(Err(e)),
            }
        }
        Some(n)
    }
}
