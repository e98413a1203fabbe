//! Puts of several replicas into the logs of as many ranks, over tcp side by side. Each replica is
//! claimed, written and published like an object that is alone; by a mark in their headers owners
//! and master know that they belong together.

use super::append::{OfOwner, Wanted, goes_alone};
use super::{LogPut, Took};
use crate::client::log_names::KeyNote;
use crate::client::peer::Peer;
use crate::client::value::Value;
use crate::client::{Client, PutOptions};
use crate::error::{ErrorKind, Result};
use crate::message::MAX_REPLICAS;
use nkv_store::object::SetMark;
use nkv_transport::verbs::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The hash of a key, and the ranks for its replicas; None: plans.
type Chosen = (u64, Option<Vec<u32>>);

impl Client {
    /// Whether replicas of a put may go into logs.
    pub(in crate::client) fn wants_logs(&self, opts: &PutOptions) -> bool {
        (2..=MAX_REPLICAS).contains(&opts.wanted_replicas()) && self.allows_logs(opts)
    }

    /// Puts each item into as many logs as it is to have replicas; for each, how many took it.
    /// None: it needs plans, because fewer logs could take it, or none did.
    pub(in crate::client) async fn put_in_logs(
        &self,
        items: &[(&[u8], &[u8])],
        hashes: &[u64],
        opts: &PutOptions,
    ) -> Vec<Option<Result<u32>>> {
        if !self.knows_members().await {
            return vec![None; items.len()];
        }
        // Where room counts it must be known of all logs.
        self.attach_logs_of(self.shared.logs_to_compare()).await;
        let ranks = self.shared.ranks_for_replicas(hashes, opts);
        self.attach_logs_of(ranks.iter().flatten().flatten().copied().collect()).await;
        let chosen = hashes.iter().copied().zip(ranks).collect();
        self.put_at_chosen(items, chosen, opts)
    }

    fn put_at_chosen(
        &self,
        items: &[(&[u8], &[u8])],
        chosen: Vec<Chosen>,
        opts: &PutOptions,
    ) -> Vec<Option<Result<u32>>> {
        let mut done: Vec<Option<Result<u32>>> = vec![None; items.len()];
        // The plan path returns the error of a node that is shutting down.
        if self.shared.draining.load(Ordering::Acquire) {
            return done;
        }
        let mut by_owner: BTreeMap<u64, OfOwner<'_>> = BTreeMap::new();
        let items = items.iter().zip(chosen);
        for (index, ((key, value), (hash, ranks))) in items.enumerate() {
            if let Err(e) = Self::check_new(key, opts) {
                done[index] = Some(Err(e));
                continue;
            }
            let replicas = ranks.and_then(|r| self.replicas_in_logs((key, hash), value, r, opts));
            for (peer, put) in replicas.unwrap_or_default() {
                let group = opts.group_at(&peer, key);
                let of_owner = by_owner.entry(peer.incarnation);
                let of_owner = of_owner.or_insert_with(|| (peer, Vec::new()));
                of_owner.1.push(Wanted {
                    index,
                    name: KeyNote { key, group },
                    value,
                    put,
                    done: None,
                });
            }
        }
        let mut all: Vec<_> = by_owner.into_values().collect();
        self.at_owners(&mut all, |peer, wanted| self.put_replicas_at(peer, wanted));
        let mut results: Vec<Vec<Option<Result<()>>>> = vec![Vec::new(); done.len()];
        for put in all.into_iter().flat_map(|(_, wanted)| wanted) {
            results[put.index].push(put.done);
        }
        for (done, results) in done.iter_mut().zip(results).filter(|(done, _)| done.is_none()) {
            *done = self.taken(results, opts.wanted_replicas());
        }
        done
    }

    /// The logs for the replicas of one object, and what each is to take. None if not all of them
    /// can be written now.
    fn replicas_in_logs(
        &self,
        (key, hash): (&[u8], u64),
        value: &[u8],
        ranks: Vec<u32>,
        opts: &PutOptions,
    ) -> Option<Vec<(Arc<Peer>, LogPut)>> {
        if self.stripes_for(value.len(), opts) > 1 {
            return None;
        }
        let mark = SetMark::new(self.shared.env.random.u64(), opts.wanted_replicas());
        let clock = &*self.shared.env.clock;
        let replica = |rank: u32| {
            let peer = self.shared.peers.claiming(self.shared.peers.first_of(rank)?)?;
            let log = peer.open_log().filter(|log| log.takes_puts(clock))?;
            let put = self.log_put((&peer, log), (key, hash), value.len(), opts)?;
            Some((peer, put.in_set(mark)))
        };
        ranks.into_iter().map(replica).collect()
    }

    /// Puts what one owner is to take: by tcp together, and else, and what that left, one by one.
    fn put_replicas_at(&self, peer: &Arc<Peer>, wanted: &mut [Wanted<'_>]) {
        let Some(log) = peer.open_log() else { return };
        if peer.kind() == Kind::Tcp {
            wanted.sort_by_key(|put| goes_alone(peer, put.value.len() as u64));
            let together = wanted.partition_point(|p| !goes_alone(peer, p.value.len() as u64));
            self.put_at(peer, &mut wanted[..together]);
        }
        for put in wanted.iter_mut().filter(|put| put.done.is_none()) {
            // Refused for one of them, or before: it may be for long.
            if log.is_refused(&*self.shared.env.clock) {
                return;
            }
            match self.put_into((peer, log), put.name, &put.put, Value::Whole(put.value)) {
                Ok(Took::Written) => {
                    log.was_served();
                    self.shared.writes.by_log.one();
                    put.done = Some(Ok(()));
                }
                Ok(Took::There) => {
                    self.shared.writes.there_already.one();
                    put.done = Some(Ok(()));
                }
                Ok(Took::No) => self.shared.writes.log_full.one(),
                Err(e) if e.kind() == ErrorKind::Reclaimed && peer.kind() == Kind::Tcp => {
                    log.was_refused(&*self.shared.env.clock);
                }
                Err(e) => put.done = Some(Err(e)),
            }
        }
    }

    /// What became of one object. The master has those replicas made that its logs did not take.
    fn taken(&self, results: Vec<Option<Result<()>>>, asked_for: u8) -> Option<Result<u32>> {
        let made = results.iter().filter(|done| matches!(done, Some(Ok(())))).count() as u32;
        if made == 0 {
            // Where a log took nothing, plans may store it.
            let failed: Option<Vec<_>> = results.into_iter().collect();
            return failed?.pop().map(|failed| failed.map(|()| 0));
        }
        let short = u32::from(asked_for).saturating_sub(made);
        self.shared.writes.replicas_short.add(short as usize);
        Some(Ok(made))
    }
}
