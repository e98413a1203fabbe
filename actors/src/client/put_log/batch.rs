//! Batches of puts over tcp: for all that go to one owner one request claims, and one writes them,
//! where puts one after the other would take two round trips each. What does not go this way is put
//! alone.

use super::{Abandoned, ClientToOwner};
use crate::client::batch::in_one_request;
use crate::client::peer::Peer;
use crate::client::peer_log::PeerLog;
use crate::client::{Client, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use nkv_store::device_log::{ClaimStep, ClaimWrite, ControlLine, LogPut, OpenClaim, Skip};
use nkv_store::object::Publication;
use nkv_store::{Key, KeyId};
use nkv_transport::verbs::{Kind, Op};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Puts of one request: an agent allows so many open claims and more.
const PUTS_PER_REQUEST: usize = 48;
/// Payload bytes of one request; a larger object is put alone.
const BYTES_PER_REQUEST: u64 = 16 << 20;

/// One put of a batch.
struct Wanted<'a> {
    /// Its position in the caller's batch.
    index: usize,
    key: &'a [u8],
    value: &'a [u8],
    put: LogPut,
    done: Option<Result<()>>,
}

/// An owner, and the puts that go to it.
type OfOwner<'a> = (Arc<Peer>, Vec<Wanted<'a>>);

/// How many of these fit below the limit, first to last.
fn room_for(part: &[Wanted<'_>], line: &ControlLine) -> usize {
    let mut end = line.bump_ptr();
    let fits = part.iter().take_while(|wanted| {
        end = end.saturating_add(wanted.put.claim_bytes());
        end <= line.heap_limit()
    });
    fits.count()
}

/// A claim that is about to be written.
struct Placed<'c> {
    /// Its put's position in the request.
    at: usize,
    write: ClaimWrite,
    object: Publication,
    open: OpenClaim<'c>,
}

impl Client {
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
        // Looked up once for each rank: most batches go to mapped logs alone.
        let mut by_rank: BTreeMap<u32, Option<OfOwner<'_>>> = BTreeMap::new();
        for (index, ((key, value), hash)) in items.iter().zip(hashes).enumerate() {
            let Some(rank) = self.log_rank(*hash, opts) else { continue };
            let of_rank = by_rank.entry(rank);
            let of_rank = of_rank.or_insert_with(|| Some((self.log_by_tcp(rank)?, Vec::new())));
            let Some((peer, wanted)) = of_rank else { continue };
            if let Some(put) = self.put_by_tcp(peer, (key, *hash), value, opts) {
                wanted.push(Wanted { index, key, value, put, done: None });
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
        let bytes = value.len() as u64;
        Key::check(key).ok().filter(|()| bytes <= BYTES_PER_REQUEST)?;
        let id = KeyId { hash, check: peer.hasher.check(key) };
        LogPut::new(peer.open_log()?.layout, id, self.page_bytes(opts), bytes)
    }

    fn put_at(&self, peer: &Peer, mut rest: &mut [Wanted<'_>]) {
        let Some(log) = peer.open_log() else { return };
        while !rest.is_empty() {
            let sizes = rest.iter().map(|wanted| wanted.value.len() as u64);
            let n = in_one_request(sizes, PUTS_PER_REQUEST, BYTES_PER_REQUEST);
            // What it did not put is put alone, which waits for room and finds out what failed.
            let Some(n) = self.put_part(peer, log, &mut rest[..n]) else { return };
            rest = &mut rest[n..];
        }
    }

    /// One request that claims for the first of these, as far as there is room, and one that writes
    /// them. Returns how many these are; None: nothing was put.
    fn put_part(&self, peer: &Peer, log: &PeerLog, part: &mut [Wanted<'_>]) -> Option<usize> {
        let (mut line, _inside) = (ControlLine::unread(), log.gate.enter());
        let mut bound = log.room(&*peer.verbs, &part.first()?.put, &mut line).ok().flatten()?;
        if room_for(part, &line) < part.len() {
            // Those words may be old.
            log.read_control_line(&*peer.verbs, &mut line).ok()?;
            bound = part.first()?.put.room(&line)?;
        }
        let n = room_for(part, &line);
        let part = &mut part[..n];
        let mut entered = Vec::with_capacity(n);
        for _ in part.iter() {
            match log.open.enter(bound) {
                Some(open) => entered.push(open),
                None => {
                    entered.into_iter().for_each(OpenClaim::leave);
                    return None;
                }
            }
        }
        let puts: Vec<_> = part.iter().map(|wanted| wanted.put).collect();
        // If a claim is lost in flight, its slot stays in doubt until the data path is severed.
        let claimed = log.claim_all(&*peer.verbs, &puts, &mut line).ok()?;
        let (mut placed, mut skipped) = (Vec::new(), Vec::new());
        for (at, ((put, open), p)) in puts.iter().zip(entered).zip(claimed).enumerate() {
            open.note(p);
            match self.wait_in_line(peer, log, put.claimed(p), &mut line) {
                Ok(Some(ClaimStep::Write(write))) => {
                    placed.push(Placed { at, object: write.publication(), write, open });
                }
                Ok(Some(ClaimStep::Skip(skip))) => skipped.push((skip, open)),
                // Given up in line: it is put alone.
                Ok(None | Some(ClaimStep::Wait(_))) | Err(_) => open.leave(),
            }
        }
        self.place_all(peer, log, part, placed, skipped);
        Some(n)
    }

    /// A claim is given up, unwritten, and the owner is notified.
    pub(super) fn give_up_claim(&self, peer: &Peer, log: &PeerLog, abandoned: Abandoned) {
        debug_assert!(log.layout.is_claim(abandoned.position, abandoned.bytes));
        // If it is never reported, the claim is a hole that the owner asks about.
        if !peer.send(ClientToOwner::Abandoned(abandoned)) {
            log.keep_given_up(abandoned);
        }
        log.bump.store(0, Ordering::Relaxed);
        self.shared.writes.log_abandoned.one();
    }

    /// Writes what was claimed as one chain: each with header, pages and READY.
    fn place_all(
        &self,
        peer: &Peer,
        log: &PeerLog,
        part: &mut [Wanted<'_>],
        placed: Vec<Placed<'_>>,
        skipped: Vec<(Skip, OpenClaim<'_>)>,
    ) {
        let skips = skipped.iter().flat_map(|(skip, _)| skip.ops());
        let wholes = placed.iter().flat_map(|p| p.object.whole(part[p.at].value));
        let mut ops: Vec<Op<'_>> = skips.chain(wholes).collect();
        let written = peer.verbs.post(log.token, &mut ops).map_err(Error::from);
        if written.is_err() {
            // If this write fails too, the claims are holes: the owner voids them after it has
            // asked this process.
            for p in &placed {
                let _ = peer.verbs.post(log.token, &mut p.write.abort().ops());
            }
        }
        let each = placed.first().map_or(1, |p| p.object.whole(&[]).len());
        let first = ops.len() - placed.len() * each;
        let took: Vec<_> = placed
            .iter()
            .zip(ops[first..].chunks(each))
            .map(|(p, ops)| p.object.took(ops))
            .collect();
        drop(ops);
        skipped.into_iter().for_each(|(_, open)| open.leave());
        for (Placed { at, write, open, .. }, took) in placed.into_iter().zip(took) {
            open.leave();
            let done = match (&written, took) {
                // Refused: the owner revoked the token. Put alone, it takes a plan.
                (Err(e), _) if e.kind() == ErrorKind::Reclaimed => continue,
                (Err(e), _) => Err(e.clone()),
                (Ok(()), Err(found)) => Err(super::void_claim(peer, found)),
                (Ok(()), Ok(())) => {
                    log.name(write.position, part[at].key);
                    self.shared.writes.by_log.one();
                    Ok(())
                }
            };
            part[at].done = Some(done);
        }
        if written.is_ok() {
            log.was_served();
        }
    }
}
