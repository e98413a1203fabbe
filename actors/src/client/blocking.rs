//! The same operations for plain threads: a small runtime that the calling thread drives, with its
//! own control connections, so that a reply wakes only the caller.

use super::put_log::TryPut;
use super::value::Value;
use super::{
    Client, ClientConfig, DeviceLog, DeviceView, KernelAccess, ObjectView, PlanAddresses,
    PoolOptions, PublishError, ReadSlot, SavedOn, ShmPool, StoreSlot, WhenReady, WritePlan, one,
    spread,
};
use crate::client::PutOptions;
use crate::error::{Error, Result};
use crate::message::{
    ClusterStats, EvictReport, Existence, Listed, Location, ObjMeta, Removed, UnmountReport, View,
};
use bytes::Bytes;
use nkv_store::fork::OwnProcessOnly;
use nkv_transport::verbs::{Fill, Source};
use nkv_transport::wire::Address;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A synchronous handle for one thread at a time. Must not be used inside an async runtime.
#[derive(Debug)]
pub struct Blocking {
    client: Client,
    runtime: OwnProcessOnly<Runtime>,
}

/// A runtime that one thread drives.
pub(super) fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|e| Error::internal(format!("cannot start a runtime: {e}")))
}

impl Blocking {
    pub(crate) fn new(client: &Client) -> Result<Self> {
        let runtime = OwnProcessOnly::new(runtime()?);
        Ok(Self { client: client.for_a_thread(), runtime })
    }

    /// Connects through any node of the cluster.
    pub fn connect(node: &Address, config: ClientConfig) -> Result<Self> {
        Self::new(&runtime()?.block_on(Client::connect(node, config))?)
    }

    fn wait<T, E: From<Error>>(
        &self,
        work: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        // Checked before the runtime is used: a forked child has none of its threads.
        self.client.check_usable()?;
        self.runtime.block_on(work)
    }

    fn wait_all<T>(&self, n: usize, work: impl Future<Output = Vec<Result<T>>>) -> Vec<Result<T>> {
        match self.client.check_usable() {
            Ok(()) => self.runtime.block_on(work),
            Err(e) => spread(n, e),
        }
    }

    /// The async handle behind it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// See [`Client::put`].
    pub fn put(&self, key: &[u8], value: &[u8], opts: &PutOptions) -> Result<()> {
        match self.client.try_put(key, Value::Whole(value), opts) {
            TryPut::Done(done) => done,
            TryPut::NeedsPlan => self.wait(self.client.put_by_plan(key, value, opts)),
            TryPut::NotAttached => self.wait(self.client.put(key, value, opts)),
        }
    }

    /// Puts into a log, without waiting for room elsewhere. None: no log takes it now.
    pub(crate) fn put_by_log(
        &self,
        key: &[u8],
        value: &[u8],
        opts: &PutOptions,
    ) -> Option<Result<()>> {
        let put = || self.client.try_put(key, Value::Whole(value), opts);
        let done = match put() {
            TryPut::NotAttached => {
                let hash = nkv_store::key::key_hash(key);
                self.runtime.block_on(self.client.attach_log_owners(&[hash], opts));
                put()
            }
            done => done,
        };
        match done {
            TryPut::Done(done) => Some(done),
            TryPut::NeedsPlan | TryPut::NotAttached => None,
        }
    }

    /// See [`Client::device_log`].
    pub fn device_log(&self, rank: u32) -> Result<DeviceLog> {
        self.wait(self.client.device_log(rank))
    }

    /// See [`Client::put_parts`].
    pub fn put_parts(&self, key: &[u8], parts: &[&[u8]], opts: &PutOptions) -> Result<()> {
        let done = self.client.try_put_parts(key, parts, opts);
        done.unwrap_or_else(|| self.put(key, &parts.concat(), opts))
    }

    /// See [`Client::put_sources`].
    pub fn put_sources(&self, key: &[u8], parts: &[Source<'_>], opts: &PutOptions) -> Result<()> {
        let done = self.client.try_put_sources(key, parts, opts);
        done.unwrap_or_else(|| self.wait(self.client.put_sources(key, parts, opts)))
    }

    /// See [`Client::put_many_sources`].
    pub fn put_many_sources(
        &self,
        items: &[(&[u8], &[Source<'_>])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        self.wait_all(items.len(), self.client.put_many_sources(items, opts))
    }

    /// See [`Client::put_many`].
    pub fn put_many(&self, items: &[(&[u8], &[u8])], opts: &PutOptions) -> Vec<Result<()>> {
        self.wait_all(items.len(), self.client.put_many(items, opts))
    }

    /// See [`Client::put_replicas`].
    pub fn put_replicas(&self, items: &[(&[u8], &[u8])], opts: &PutOptions) -> Vec<Result<u32>> {
        self.wait_all(items.len(), self.client.put_replicas(items, opts))
    }

    pub(crate) fn add_replicas(&self, key: &[u8]) -> Result<u32> {
        self.wait(self.client.add_replicas(key))
    }

    pub(crate) fn stored_in_place(&self, key: &[u8]) -> Result<super::view::StoredView> {
        self.wait(self.client.stored_in_place(key))
    }

    pub(crate) fn stored_uncounted(&self, key: &[u8]) -> Result<(Bytes, u32)> {
        self.wait(self.client.stored_uncounted(key))
    }

    /// See [`Client::save_to_disk`].
    pub fn save_to_disk(&self, keys: &[&[u8]], disks: &[Option<u32>]) -> Vec<Result<SavedOn>> {
        self.wait_all(keys.len(), self.client.save_to_disk(keys, disks))
    }

    /// See [`Client::replicate`].
    pub fn replicate(&self, keys: &[&[u8]], wanted: u8) -> Vec<Result<()>> {
        self.wait_all(keys.len(), self.client.replicate(keys, wanted))
    }

    /// See [`Client::get_replicas`].
    pub fn get_replicas(&self, key: &[u8]) -> Result<Vec<Location>> {
        self.wait(self.client.get_replicas(key))
    }

    /// See [`Client::put_many_parts`].
    pub fn put_many_parts(
        &self,
        items: &[(&[u8], &[&[u8]])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        self.wait_all(items.len(), self.client.put_many_parts(items, opts))
    }

    /// See [`Client::get`].
    pub fn get(&self, key: &[u8]) -> Result<Bytes> {
        let done = self.client.get_now(key);
        done.unwrap_or_else(|| self.wait(self.client.get_further(key)))
    }

    /// See [`Client::get_many`].
    pub fn get_many(&self, keys: &[&[u8]]) -> Vec<Result<Bytes>> {
        self.wait_all(keys.len(), self.client.get_many(keys))
    }

    /// See [`Client::get_into`].
    pub fn get_into(&self, key: &[u8], dst: &mut [u8]) -> Result<usize> {
        let done = self.client.read_now(key, dst);
        done.unwrap_or_else(|| one(self.wait_all(1, self.client.read_further(&mut [(key, dst)]))))
    }

    /// See [`Client::get_into_parts`].
    pub fn get_into_parts<P: Fill>(&self, key: &[u8], parts: &mut [P]) -> Result<usize> {
        match self.client.read_parts_now(key, parts) {
            Some(done) => done,
            None => self.wait(self.client.get_into_parts(key, parts)),
        }
    }

    /// See [`Client::get_many_into`].
    pub fn get_many_into(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<Result<usize>> {
        self.wait_all(items.len(), self.client.get_many_into(items))
    }

    /// See [`Client::get_many_into_parts`].
    pub fn get_many_into_parts<P: Fill>(
        &self,
        items: &mut [(&[u8], &mut [P])],
    ) -> Vec<Result<usize>> {
        self.wait_all(items.len(), self.client.get_many_into_parts(items))
    }

    /// See [`Client::get_when_ready`].
    pub fn get_when_ready(&self, key: &[u8], limit: Duration) -> Result<Bytes> {
        self.wait(self.client.get_when_ready(key, limit))
    }

    /// See [`Client::get_many_when_ready_into`].
    pub fn get_many_when_ready_into(
        &self,
        items: &mut [(&[u8], &mut [u8])],
        limit: Duration,
    ) -> Vec<Result<usize>> {
        self.wait_all(items.len(), self.client.get_many_when_ready_into(items, limit))
    }

    /// See [`Client::when_ready`]. Each call of `next` waits.
    pub fn when_ready(&self, keys: &[&[u8]], limit: Duration) -> Result<BlockingWhenReady<'_>> {
        Ok(BlockingWhenReady { ready: self.client.when_ready(keys, limit)?, handle: self })
    }

    /// See [`Client::register_control`].
    pub fn register_control(&self, rank: u32) -> Result<KernelAccess> {
        self.wait(self.client.register_control(rank))
    }

    /// See [`Client::get_device_view`].
    pub fn get_device_view(&self, key: &[u8]) -> Result<DeviceView> {
        self.wait(self.client.get_device_view(key))
    }

    /// See [`Client::get_view`].
    pub fn get_view(&self, key: &[u8]) -> Result<ObjectView> {
        self.client.check_usable()?;
        let view = self.client.view_now(key);
        let view = view.unwrap_or_else(|| self.wait(self.client.view_further(key)))?;
        self.client.whole_view(key, view)
    }

    /// See [`Client::lookup_mapped`].
    pub fn lookup_mapped(&self, keys: &[&[u8]], found: &mut [bool]) -> Result<usize> {
        self.client.lookup_mapped(keys, found)
    }

    /// See [`Client::read_into`].
    pub fn read_into(&self, meta: &ObjMeta, dst: &mut [u8]) -> Result<usize> {
        self.wait(self.client.read_into(meta, dst))
    }

    /// See [`Client::read_many_into`].
    pub fn read_many_into(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<Result<usize>> {
        self.wait_all(items.len(), self.client.read_many_into(items))
    }

    /// See [`Client::remove`].
    pub fn remove(&self, key: &[u8]) -> Result<()> {
        self.wait(self.client.remove(key))
    }

    /// See [`Client::remove_many`].
    pub fn remove_many(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.wait_all(keys.len(), self.client.remove_many(keys))
    }

    /// See [`Client::remove_matching`].
    pub fn remove_matching(&self, pattern: &str) -> Result<Removed> {
        self.wait(self.client.remove_matching(pattern))
    }

    /// See [`Client::remove_all`].
    pub fn remove_all(&self) -> Result<Removed> {
        self.wait(self.client.remove_all())
    }

    /// See [`Client::list`].
    pub fn list(
        &self,
        pattern: Option<&str>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.wait(self.client.list(pattern, after, limit))
    }

    /// See [`Client::exists`].
    pub fn exists(&self, keys: &[&[u8]]) -> Result<Vec<Existence>> {
        self.wait(self.client.exists(keys))
    }

    /// See [`Client::prefetch`].
    pub fn prefetch(&self, keys: &[&[u8]], wait: bool) -> Result<Vec<Existence>> {
        self.wait(self.client.prefetch(keys, wait))
    }

    /// See [`Client::match_prefix`].
    pub fn match_prefix(&self, keys: &[&[u8]]) -> Result<Vec<Location>> {
        self.wait(self.client.match_prefix(keys))
    }

    /// See [`Client::get_location`].
    pub fn get_location(&self, key: &[u8]) -> Result<Location> {
        self.wait(self.client.get_location(key))
    }

    /// See [`Client::count_replicas`].
    pub fn count_replicas(&self, key: &[u8]) -> Result<usize> {
        self.wait(self.client.count_replicas(key))
    }

    /// See [`Client::get_size`].
    pub fn get_size(&self, key: &[u8]) -> Result<u64> {
        self.wait(self.client.get_size(key))
    }

    /// See [`Client::open_for_write`]. Finish the plan with [`Blocking::publish`] or
    /// [`Blocking::abort`].
    pub fn open_for_write(&self, key: &[u8], bytes: u64, opts: &PutOptions) -> Result<WritePlan> {
        self.wait(self.client.open_for_write(key, bytes, opts))
    }

    /// See [`WritePlan::publish`].
    pub fn publish(&self, plan: WritePlan) -> std::result::Result<(), PublishError> {
        self.wait(plan.publish_with(&self.client))
    }

    /// See [`WritePlan::addresses`].
    pub fn addresses(&self, plan: &WritePlan) -> Result<PlanAddresses> {
        self.wait(plan.addresses_with(&self.client))
    }

    /// See [`WritePlan::abort`].
    pub fn abort(&self, plan: WritePlan) -> Result<()> {
        self.wait(plan.abort_with(&self.client))
    }

    /// See [`Client::attach_pool`].
    pub fn attach_pool(&self, options: PoolOptions) -> Result<ShmPool> {
        self.wait(self.client.attach_pool(options))
    }

    /// See [`ShmPool::prepare_store`].
    pub fn prepare_store(
        &self,
        pool: &ShmPool,
        keys: &[&[u8]],
        bytes: u64,
    ) -> Result<Vec<StoreSlot>> {
        self.wait(pool.prepare_store_by(&self.client, keys, bytes))
    }

    /// See [`ShmPool::commit_store`].
    pub fn commit_store(&self, pool: &ShmPool, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.wait_all(keys.len(), pool.commit_store_by(&self.client, keys))
    }

    /// See [`ShmPool::prepare_retrieve`].
    pub fn prepare_retrieve(
        &self,
        pool: &ShmPool,
        keys: &[&[u8]],
    ) -> Result<Option<Vec<ReadSlot>>> {
        self.wait(pool.prepare_retrieve_by(&self.client, keys))
    }

    /// See [`Client::commit`].
    pub fn commit(&self, key: &[u8]) -> Result<()> {
        self.wait(self.client.commit(key))
    }

    /// See [`Client::stats`].
    pub fn stats(&self) -> Result<ClusterStats> {
        self.wait(self.client.stats())
    }

    /// See [`Client::membership`].
    pub fn membership(&self) -> Result<View> {
        self.wait(self.client.membership())
    }

    /// See [`Client::mount_segment`].
    pub fn mount_segment(&self, rank: u32, bytes: u64) -> Result<u32> {
        self.wait(self.client.mount_segment(rank, bytes))
    }

    /// See [`Client::unmount_segment`].
    pub fn unmount_segment(
        &self,
        rank: u32,
        segment: u32,
        limit: Duration,
    ) -> Result<UnmountReport> {
        self.wait(self.client.unmount_segment(rank, segment, limit))
    }

    /// See [`Client::evict_rank_until_below`].
    pub fn evict_rank_until_below(&self, rank: u32, usage_ratio: f64) -> Result<Vec<EvictReport>> {
        self.wait(self.client.evict_rank_until_below(rank, usage_ratio))
    }

    /// See [`Client::evict_ranks_until_below`].
    pub fn evict_ranks_until_below(
        &self,
        ranks: &[u32],
        usage_ratio: f64,
    ) -> Vec<Result<Vec<EvictReport>>> {
        self.wait_all(ranks.len(), self.client.evict_ranks_until_below(ranks, usage_ratio))
    }

    /// See [`Client::evict_until_below`].
    pub fn evict_until_below(&self, usage_ratio: f64) -> Result<()> {
        self.wait(self.client.evict_until_below(usage_ratio))
    }

    /// See [`Client::flush`].
    pub fn flush(&self) -> Result<()> {
        self.wait(self.client.flush())
    }

    /// See [`Client::close`].
    pub fn close(&self) {
        if self.client.check_usable().is_ok() {
            self.runtime.block_on(self.client.close());
        }
    }
}

/// Keys in the order in which they become readable. Made by [`Blocking::when_ready`].
#[derive(Debug)]
pub struct BlockingWhenReady<'a> {
    ready: WhenReady,
    handle: &'a Blocking,
}

impl Iterator for BlockingWhenReady<'_> {
    type Item = (usize, Result<Bytes>);

    /// See [`WhenReady::next`].
    fn next(&mut self) -> Option<Self::Item> {
        match self.handle.client.check_usable() {
            Ok(()) => self.handle.runtime.block_on(self.ready.next()),
            Err(e) => self.ready.failed(&e),
        }
    }
}
