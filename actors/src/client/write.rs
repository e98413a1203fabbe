//! Writing: open, place bytes one-sided, publish by one compare-and-swap, commit. Every write
//! enters the plan's gate, so an owner that ends the plan can find out when no write is in flight
//! [I10].

mod commit;
mod for_kernels;
mod holding;
mod in_place;
mod repeated;
mod replicas;
mod sources;
mod whole_object;
mod write_plan;

use super::peer::Peer;
use super::put_log::TryPut;
use super::value::{MOST_PARTS, Value};
use super::{Client, about_keys, continued, filled, one, spread};
use crate::client::plans::PlanState;
use crate::client::{IfExists, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    Existence, MAX_REPLICAS, OpenItem, PlanDesc, PlanRef, Request, Response, SlotRef,
};
use crate::striping::{check_new, is_stripe};
pub use for_kernels::PlanAddresses;
use futures_util::future::join_all;
use holding::{Asked, Granted, Unfinished};
pub(in crate::client) use in_place::InPlace;
use nkv_store::key::key_hash;
use nkv_store::object::Publication;
use nkv_store::{Key, Retention};
use repeated::name_repeated;
use replicas::{Plans, any_of, each};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
pub use write_plan::{PublishError, WritePlan};

/// What plans are asked for with.
#[derive(Clone, Copy)]
struct Asking<'a> {
    opts: &'a PutOptions,
    /// For replicas that a stored object lacks: one that it has.
    replica_of: Option<SlotRef>,
    /// The preferred rank of each item, instead of that of `opts`.
    ranks: &'a [u32],
}

impl<'a> Asking<'a> {
    /// For new objects, where `opts` wants them.
    fn of(opts: &'a PutOptions) -> Self {
        Self { opts, replica_of: None, ranks: &[] }
    }
}

/// Owners by incarnation, in an order that does not depend on the map: they may end with it.
type Peers = BTreeMap<u64, Result<Arc<Peer>>>;

impl Client {
    /// Stores a value under a new key; returns once it is committed.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("put", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// assert_eq!(cache.get(b"block/1").await?, &b"kv bytes"[..]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn put(&self, key: &[u8], value: &[u8], opts: &PutOptions) -> Result<()> {
        match self.try_put(key, Value::Whole(value), opts) {
            TryPut::Done(done) => done,
            TryPut::NeedsPlan => self.put_by_plan(key, value, opts).await,
            TryPut::NotAttached => one(self.put_many(&[(key, value)], opts).await),
        }
    }

    /// Stores a value that lies in several buffers, one part after another. Into a mapped log and
    /// by RDMA up to 64 parts go without being joined first.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("put-parts", async |cache| {
    /// cache.put_parts(b"block/1", &[b"keys", b"values"], &PutOptions::default()).await?;
    /// assert_eq!(cache.get(b"block/1").await?, &b"keysvalues"[..]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn put_parts(&self, key: &[u8], parts: &[&[u8]], opts: &PutOptions) -> Result<()> {
        match self.try_put_parts(key, parts, opts) {
            Some(done) => done,
            None => self.put(key, &parts.concat(), opts).await,
        }
    }

    /// As [`Client::put_many`] and [`Client::put_parts`]. What has to be joined is one batch.
    pub async fn put_many_parts<'a>(
        &self,
        items: &[(&'a [u8], &[&'a [u8]])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        let whole = |(key, parts): &(&'a [u8], &[&'a [u8]])| match parts {
            [whole] => Some((*key, *whole)),
            _ => None,
        };
        if let Some(wholes) = items.iter().map(whole).collect::<Option<Vec<_>>>() {
            return self.put_many(&wholes, opts).await;
        }
        let now = |(key, parts): &(&[u8], &[&[u8]])| self.try_put_parts(key, parts, opts);
        let done: Vec<_> = items.iter().map(now).collect();
        let left = items.iter().zip(&done).filter(|(_, done)| done.is_none());
        let joined: Vec<_> = left.map(|((key, parts), _)| (*key, parts.concat())).collect();
        let joined: Vec<(&[u8], &[u8])> = joined.iter().map(|(k, v)| (*k, &v[..])).collect();
        let put = match joined.is_empty() {
            true => Vec::new(),
            false => self.put_many(&joined, opts).await,
        };
        filled(done, put)
    }

    /// None: the parts must be joined first.
    pub(super) fn try_put_parts(
        &self,
        key: &[u8],
        parts: &[&[u8]],
        opts: &PutOptions,
    ) -> Option<Result<()>> {
        if parts.len() > MOST_PARTS {
            return None;
        }
        match self.try_put(key, Value::Parts(parts), opts) {
            TryPut::Done(done) => Some(done),
            TryPut::NeedsPlan | TryPut::NotAttached => None,
        }
    }

    /// Stores a value by a plan, not through a device log.
    pub(crate) async fn put_by_plan(
        &self,
        key: &[u8],
        value: &[u8],
        opts: &PutOptions,
    ) -> Result<()> {
        self.check_usable()?;
        one(self.put_planned(&[(key, value)], &[0], opts).await).map(drop)
    }

    /// Stores many values: through the device logs of their owners where that is wanted and there
    /// is room, else with one round trip to open, one-sided writes, and one round trip to commit.
    /// One result per item, in order.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("put-many", async |cache| {
    /// let items: [(&[u8], &[u8]); 2] = [(b"block/1", b"first"), (b"block/2", b"second")];
    /// for stored in cache.put_many(&items, &PutOptions::default()).await {
    ///     stored?;
    /// }
    /// # Ok(())
    /// # });
    /// ```
    pub async fn put_many(&self, items: &[(&[u8], &[u8])], opts: &PutOptions) -> Vec<Result<()>> {
        if let Err(e) = self.check_usable() {
            return spread(items.len(), e);
        }
        if !opts.disks.is_empty() {
            let (keys, in_memory) = (items.iter().map(|(key, _)| *key), opts.in_memory());
            let put = Box::pin(self.put_many(items, &in_memory));
            return self.put_and_save(keys.collect(), opts, put).await;
        }
        let several = self.wants_logs(opts);
        if !several && !self.wants_log(opts) {
            let planned = self.put_all_planned(items, opts).await;
            return planned.into_iter().map(|done| done.map(drop)).collect();
        }
        let hashes: Vec<_> = items.iter().map(|(key, _)| key_hash(key)).collect();
        let done: Vec<_> = match several {
            true => {
                let made = self.put_in_logs(items, &hashes, opts).await.into_iter();
                made.map(|done| done.map(|made| made.map(drop))).collect()
            }
            false => {
                self.attach_log_owners(&hashes, opts).await;
                self.put_in_log(items, &hashes, opts)
            }
        };
        let at: Vec<usize> = (0..items.len()).filter(|i| done[*i].is_none()).collect();
        let left: Vec<_> = at.iter().map(|i| items[*i]).collect();
        let planned = match left.is_empty() {
            true => Vec::new(),
            false => self.put_planned(&left, &at, opts).await,
        };
        filled(done, planned.into_iter().map(|done| done.map(drop)).collect())
    }

    /// Puts each item into its owner's log. None: it needs a plan.
    fn put_in_log(
        &self,
        items: &[(&[u8], &[u8])],
        hashes: &[u64],
        opts: &PutOptions,
    ) -> Vec<Option<Result<()>>> {
        let now = |(key, value): &(&[u8], &[u8])| match self.try_put(key, Value::Whole(value), opts)
        {
            TryPut::Done(done) => Some(done),
            TryPut::NeedsPlan | TryPut::NotAttached => None,
        };
        let together = self.put_together(items, hashes, opts).into_iter();
        together.zip(items).map(|(done, item)| done.or_else(|| now(item))).collect()
    }

    /// As [`Client::put_many`], with as many replicas as the options ask for. For each item: how
    /// many were made, and can be read; 0 if the key was stored before. Fewer than asked for are no
    /// error, as long as there is one: other ranks may have no room, or be gone. Copies on disks
    /// are not among them: without them it is an error.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("put-replicas", async |cache| {
    /// let opts = PutOptions::default().replicas(2);
    /// let made = cache.put_replicas(&[(b"block/1", b"kv bytes")], &opts).await;
    /// assert_eq!(made, [Ok(1)], "there is no second rank");
    /// # Ok(())
    /// # });
    /// ```
    pub async fn put_replicas(
        &self,
        items: &[(&[u8], &[u8])],
        opts: &PutOptions,
    ) -> Vec<Result<u32>> {
        if let Err(e) = self.check_usable() {
            return spread(items.len(), e);
        }
        if opts.wanted_replicas() > MAX_REPLICAS {
            let text = format!("{} replicas: at most {MAX_REPLICAS}", opts.wanted_replicas());
            return spread(items.len(), Error::invalid(text));
        }
        if opts.disks.is_empty() {
            return self.put_all_planned(items, opts).await;
        }
        let (keys, in_memory) = (items.iter().map(|(key, _)| *key), opts.in_memory());
        self.put_and_save(keys.collect(), opts, self.put_all_planned(items, &in_memory)).await
    }

    async fn put_all_planned(
        &self,
        items: &[(&[u8], &[u8])],
        opts: &PutOptions,
    ) -> Vec<Result<u32>> {
        let all: Vec<usize> = (0..items.len()).collect();
        self.put_planned(items, &all, opts).await
    }

    /// Stores values by plans, in stripes where that is wanted; for each the number of its
    /// replicas. `at` holds the position of each item in the caller's batch.
    #[tracing::instrument(level = "debug", name = "put", skip_all, fields(keys = items.len()))]
    async fn put_planned(
        &self,
        items: &[(&[u8], &[u8])],
        at: &[usize],
        opts: &PutOptions,
    ) -> Vec<Result<u32>> {
        let mut done = vec![None; items.len()];
        for (done, (key, value)) in done.iter_mut().zip(items) {
            let stripes = self.stripes_for(value.len(), opts);
            let put = match Self::check_new(key, opts) {
                Ok(()) if stripes == 1 => continue,
                Ok(()) => self.put_striped(key, value, (stripes, opts)).await,
                Err(e) => Err(e),
            };
            *done = Some(put.map_err(|e| e.about(key)));
        }
        let left = (0..items.len()).filter(|i| done[*i].is_none()).map(|i| (items[i], at[i]));
        let (wholes, places): (Vec<_>, Vec<_>) = left.unzip();
        filled(done, self.put_whole(&wholes, &places, Asking::of(opts)).await)
    }

    /// Stores the parts of a striped object, each at its rank if that can hold it.
    pub(super) async fn put_unstriped(
        &self,
        items: &[(&[u8], &[u8])],
        (opts, ranks): (&PutOptions, &[u32]),
    ) -> Vec<Result<u32>> {
        let all: Vec<usize> = (0..items.len()).collect();
        self.put_whole(items, &all, Asking { ranks, ..Asking::of(opts) }).await
    }

    /// As `put_planned`, each value as one object.
    async fn put_whole(
        &self,
        items: &[(&[u8], &[u8])],
        at: &[usize],
        asking: Asking<'_>,
    ) -> Vec<Result<u32>> {
        if items.is_empty() {
            return Vec::new();
        }
        let Asking { opts, replica_of, .. } = asking;
        let began_ns = self.shared.env.clock.now_ns();
        let asked_for = if replica_of.is_some() { 0 } else { opts.wanted_replicas() };
        let open: Vec<(&[u8], u64)> = items.iter().map(|(k, v)| (*k, v.len() as u64)).collect();
        let opened = self.open_replicas(&open, asking).await;
        let mut plans = opened.unwrap_or_else(|e| spread(items.len(), e));
        let repeated = name_repeated(&mut plans, &open, at);
        let granted = plans.iter().flatten().flatten().cloned().collect();
        let mut unfinished = Unfinished { client: self, plans: granted };
        let values = plans.iter().zip(items).filter_map(|(plans, (_, value))| {
            Some(std::iter::repeat_n(*value, plans.as_ref().ok()?.len()))
        });
        let wholes: Vec<_> = unfinished.plans.iter().cloned().zip(values.flatten()).collect();
        let placed = self.place_wholes(&wholes);
        let written = wholes.into_iter().zip(&placed).filter(|(_, placed)| placed.is_ok());
        let written: Vec<_> = written.map(|((plan, _), _)| plan).collect();
        let committed = self.commit_plans(&written).await;
        // What was not placed is given up; the commits were answered and handled.
        let mut placed_too = placed.iter();
        unfinished.plans.retain(|_| placed_too.next().is_none_or(Result::is_err));
        let mut results = self.made(plans, continued(placed, committed), asked_for);
        let took_ns = self.shared.env.clock.now_ns().saturating_sub(began_ns);
        self.shared.times.puts.record(took_ns);
        let stored = results.iter().filter(|r| r.is_ok()).count();
        self.shared.writes.by_plan.add(stored);
        if opts.if_exists == IfExists::Keep {
            let there =
                |r: &&mut Result<u32>| matches!(r, Err(e) if e.kind() == ErrorKind::AlreadyExists);
            results.iter_mut().filter(there).for_each(|r| *r = Ok(0));
            repeated.iter().for_each(|&(first, again)| results[again] = results[first].clone());
        }
        about_keys(results, items.iter().map(|(key, _)| *key))
    }

    /// Opens a plan to write one object page by page, directly into its owner's memory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("open", async |cache| {
    /// let opts = PutOptions::default().page_bytes(4096);
    /// let plan = cache.open_for_write(b"block/1", 8192, &opts).await?;
    /// plan.write_page(1, &[1; 4096])?;
    /// plan.write_page(0, &[0; 4096])?;
    /// plan.publish().await?;
    /// assert_eq!(cache.get(b"block/1").await?.len(), 8192);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn open_for_write(
        &self,
        key: &[u8],
        bytes_total: u64,
        opts: &PutOptions,
    ) -> Result<WritePlan> {
        if opts.wanted_replicas() > 1 {
            let text = "a plan writes one replica: put the whole object for several";
            return Err(Error::invalid(text).about(key));
        }
        if !opts.disks.is_empty() {
            let text = "a plan writes into memory: call save_to_disk once it is committed";
            return Err(Error::invalid(text).about(key));
        }
        let plan = self.open_many(&[(key, bytes_total)], opts).await.and_then(one);
        let plan = plan.map_err(|e| e.about(key))?;
        Ok(WritePlan::new(self.clone(), plan))
    }

    /// Publishes (if the writer has not) and commits the open plan of a key. NotFound if this
    /// handle has no open plan for it.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("commit", async |cache| {
    /// let plan = cache.open_for_write(b"block/1", 4, &PutOptions::default()).await?;
    /// plan.write_from(0, b"page")?;
    /// cache.commit(b"block/1").await?;
    /// assert_eq!(cache.get(b"block/1").await?, &b"page"[..]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn commit(&self, key: &[u8]) -> Result<()> {
        self.check_usable()?;
        let (key, plans) = (Key::new(key)?, &self.shared.plans);
        let Some(plan) = plans.of_key(&key) else {
            if plans.take_committed(&key) {
                return Ok(());
            }
            let none = format!("this handle has no open plan for key {key}");
            return Err(Error::not_found(none).about(key.as_bytes()));
        };
        let done = self.publish_and_commit(&plan).await;
        // Bytes are missing: the plan stays open.
        if !done.as_ref().is_err_and(|e| e.open) {
            plans.forget(&plan);
        }
        done.map_err(|e| e.error.about(key.as_bytes()))
    }

    /// One plan for each item.
    async fn open_many(
        &self,
        items: &[(&[u8], u64)],
        opts: &PutOptions,
    ) -> Result<Vec<Result<Arc<PlanState>>>> {
        let opts = PutOptions { further: Vec::new(), ..opts.clone().replicas(1) };
        items.iter().try_for_each(|(key, _)| check_new(key))?;
        let opened = self.open_replicas(items, Asking::of(&opts)).await?;
        let only = |mut plans: Plans| {
            plans.pop().ok_or_else(|| Error::internal("an item without a plan and an error"))
        };
        Ok(opened.into_iter().map(|plans| plans.and_then(only)).collect())
    }

    /// The plans of each item: one for each replica.
    async fn open_replicas(
        &self,
        items: &[(&[u8], u64)],
        asking: Asking<'_>,
    ) -> Result<Vec<Result<Plans>>> {
        if asking.opts.if_exists == IfExists::Keep {
            return self.granted_plans(items, asking).await;
        }
        // The master may not have listed yet what a log serves.
        let valid = |i: &usize| Key::check(items[*i].0).is_ok();
        let asked: Vec<usize> = (0..items.len()).filter(valid).collect();
        let keys: Vec<&[u8]> = asked.iter().map(|i| items[*i].0).collect();
        let mut done: Vec<_> = items.iter().map(|_| None).collect();
        // Where the logs cannot be asked, the master's list alone decides.
        let found = self.exists(&keys).await.unwrap_or_default();
        for (i, found) in asked.into_iter().zip(found) {
            if matches!(found, Existence::Ready | Existence::OnDisk) {
                done[i] = Some(Err(Error::already_exists(
                    "the key is stored; values are immutable, remove it first",
                )));
            }
        }
        let left = items.iter().zip(&done).filter(|(_, done)| done.is_none());
        let left: Vec<_> = left.map(|(item, _)| *item).collect();
        let opened =
            if left.is_empty() { Vec::new() } else { self.granted_plans(&left, asking).await? };
        Ok(filled(done, opened))
    }

    async fn granted_plans(
        &self,
        items: &[(&[u8], u64)],
        Asking { opts, replica_of, ranks }: Asking<'_>,
    ) -> Result<Vec<Result<Plans>>> {
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(Error::disconnected("this node is shutting down and opens no new plans"));
        }
        let asked_ns = self.shared.env.clock.now_ns();
        let opening = self.shared.plans.opening()?;
        let nearest = self.shared.nearest();
        let ends_at = if items.len() > 1 && replica_of.is_none() { items.len() } else { 0 };
        let wire = items.iter().enumerate().map(|(i, (key, bytes_total))| OpenItem {
            key: key.to_vec(),
            bytes_total: *bytes_total,
            preferred_rank: ranks.get(i).copied().or(opts.preferred_rank),
            medium: opts.medium,
            further: opts.further.clone(),
            nearest,
            page_bytes: opts.page_bytes,
            replicas: opts.wanted_replicas(),
            replica_of,
            retention: match opts.retention {
                // A group, or an object in stripes, would end with it.
                Retention::Usual if i + 1 == ends_at && !opts.has_group(key) && !is_stripe(key) => {
                    Retention::LastOfBatch
                }
                asked => asked,
            },
        });
        let number = self.shared.next_request.fetch_add(1, Ordering::Relaxed);
        let mut asked = Asked { client: self, request: Some(number) };
        let request = Request::OpenForWrite {
            request: number,
            // A quarter of the call's limit is left for the round trip.
            wait_ms: self.shared.config.call_timeout_ms / 4 * 3,
            items: wire.collect(),
        };
        let answer = match self.call(request).await? {
            Response::Plans(list) if list.len() == items.len() => list,
            other => return Err(self.pool.unexpected("OpenForWrite", &other)),
        };
        // An answer that cannot be ends the call, which withdraws all plans of the request.
        let answer: Vec<Result<Vec<PlanDesc>>> = answer
            .into_iter()
            .map(|granted| match granted {
                Ok(granted) => each(granted).map(Ok),
                Err(e) => Ok(Err(e)),
            })
            .collect::<Result<_>>()?;
        // Attached once per owner: if each plan of a first batch looked up its owner, each lookup
        // would open its own connection.
        let owners: BTreeSet<u64> =
            answer.iter().flatten().flatten().map(|desc| desc.meta.at.incarnation).collect();
        let attaching =
            owners.into_iter().map(|owner| async move { (owner, self.peer(owner).await) });
        let peers: &Peers = &join_all(attaching).await.into_iter().collect();
        asked.request = None;
        // Concurrently: a slow owner delays only its own plans, and all of them by one limit.
        let taking = answer.into_iter().zip(items).map(|(granted, (key, bytes))| async move {
            let one = |desc| self.take_in((desc, opts), peers, (key, *bytes), asked_ns);
            any_of(join_all(granted?.into_iter().map(one)).await)
        });
        let granted = join_all(taking).await;
        drop(opening);
        let kept = |granted: Vec<Granted<'_>>| granted.into_iter().map(Granted::keep).collect();
        Ok(granted.into_iter().map(|g| g.and_then(kept)).collect())
    }

    /// Attaches a granted plan to its owner and registers it with this handle; gives it back if
    /// that fails.
    async fn take_in(
        &self,
        (desc, opts): (PlanDesc, &PutOptions),
        peers: &Peers,
        (key, bytes): (&[u8], u64),
        asked_ns: u64,
    ) -> Result<Granted<'_>> {
        let reference = PlanRef { plan: desc.plan, at: desc.meta.at, key: desc.meta.key };
        let mut granted = Granted { client: self, reference: Some(reference), plan: None };
        let unattached = || Error::internal("no attachment was tried to the owner of a plan");
        let peer = peers.get(&desc.meta.at.incarnation).cloned().ok_or_else(unattached)??;
        // Attached after the plan was requested: the owner may have ended the plan before it knew
        // this handle.
        let unsure = peer.attached_ns >= asked_ns;
        desc.check(bytes).and_then(|()| peer.check(&desc.meta))?;
        let deadline = asked_ns.saturating_add(desc.write_ttl_ms.saturating_mul(1_000_000));
        let plan_id = desc.plan;
        let state = PlanState::new(desc, Key::new(key)?, peer.clone(), deadline);
        let state = state.in_group(opts.group_at(&peer, key));
        let registered = self.shared.plans.register(state);
        if registered.is_err() {
            self.shared.slow_path.refused_at_once.one();
        }
        granted.plan = Some(registered?);
        if unsure {
            peer.check_plan(plan_id, self.limit()).await?;
        }
        Ok(granted)
    }
}

/// The header and payload writes by which a producer publishes the object of a plan.
fn publication(desc: &PlanDesc) -> Publication {
    let m = &desc.meta;
    Publication::new((m.header_off, m.at.epoch), m.key, &m.object)
}

/// Writes the header fields, then WRITING.
fn announce(p: &PlanState) -> Result<()> {
    Ok(p.peer.verbs.post(p.desc.token, &mut publication(&p.desc).announce())?)
}
