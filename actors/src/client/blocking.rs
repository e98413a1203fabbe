//! The same verbs for plain threads: one small runtime that this thread drives itself, with control
//! connections of its own, so that a reply wakes nobody but the caller.

use super::{Client, ClientConfig, WritePlan};
use crate::error::{Error, Result};
use crate::message::{ClusterStats, Existence, Listed, ObjMeta, PutOptions, UnmountReport, View};
use nkv_transport::wire::Address;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A synchronous handle for one thread at a time. Must not be used inside an async runtime.
#[derive(Debug)]
pub struct Blocking {
    client: Client,
    runtime: Runtime,
}

impl Blocking {
    pub(crate) fn new(client: &Client) -> Result<Self> {
        let client = client.for_a_thread();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::internal(format!("cannot start a runtime: {e}")))?;
        Ok(Self { client, runtime })
    }

    /// Connects through any node of the cluster.
    pub fn connect(node: &Address, config: ClientConfig) -> Result<Self> {
        let bare = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::internal(format!("cannot start a runtime: {e}")))?;
        let client = bare.block_on(Client::connect(node, config))?;
        Self::new(&client)
    }

    /// The async handle behind it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// See [`Client::put`].
    pub fn put(&self, key: &[u8], value: &[u8], opts: &PutOptions) -> Result<()> {
        self.runtime.block_on(self.client.put(key, value, opts))
    }

    /// See [`Client::put_many`].
    pub fn put_many(&self, items: &[(&[u8], &[u8])], opts: &PutOptions) -> Vec<Result<()>> {
        self.runtime.block_on(self.client.put_many(items, opts))
    }

    /// See [`Client::get`].
    pub fn get(&self, key: &[u8]) -> Result<Vec<u8>> {
        self.runtime.block_on(self.client.get(key))
    }

    /// See [`Client::get_into`].
    pub fn get_into(&self, key: &[u8], dst: &mut [u8]) -> Result<usize> {
        self.runtime.block_on(self.client.get_into(key, dst))
    }

    /// See [`Client::get_many_into`].
    pub fn get_many_into(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<Result<usize>> {
        self.runtime.block_on(self.client.get_many_into(items))
    }

    /// See [`Client::read_into`].
    pub fn read_into(&self, meta: &ObjMeta, dst: &mut [u8]) -> Result<usize> {
        self.runtime.block_on(self.client.read_into(meta, dst))
    }

    /// See [`Client::read_many_into`].
    pub fn read_many_into(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<Result<usize>> {
        self.runtime.block_on(self.client.read_many_into(items))
    }

    /// See [`Client::remove`].
    pub fn remove(&self, key: &[u8]) -> Result<()> {
        self.runtime.block_on(self.client.remove(key))
    }

    /// See [`Client::remove_many`].
    pub fn remove_many(&self, keys: &[&[u8]]) -> Vec<Result<()>> {
        self.runtime.block_on(self.client.remove_many(keys))
    }

    /// See [`Client::remove_matching`].
    pub fn remove_matching(&self, pattern: &str) -> Result<u64> {
        self.runtime.block_on(self.client.remove_matching(pattern))
    }

    /// See [`Client::remove_all`].
    pub fn remove_all(&self) -> Result<u64> {
        self.runtime.block_on(self.client.remove_all())
    }

    /// See [`Client::list`].
    pub fn list(
        &self,
        pattern: Option<&str>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.runtime.block_on(self.client.list(pattern, after, limit))
    }

    /// See [`Client::exists`].
    pub fn exists(&self, keys: &[&[u8]], prefetch: bool) -> Result<Vec<Existence>> {
        self.runtime.block_on(self.client.exists(keys, prefetch))
    }

    /// See [`Client::match_prefix`].
    pub fn match_prefix(&self, keys: &[&[u8]]) -> Result<Vec<ObjMeta>> {
        self.runtime.block_on(self.client.match_prefix(keys))
    }

    /// See [`Client::get_location`].
    pub fn get_location(&self, key: &[u8]) -> Result<ObjMeta> {
        self.runtime.block_on(self.client.get_location(key))
    }

    /// See [`Client::open_for_write`]. Finish the plan with [`Blocking::publish`] or
    /// [`Blocking::abort`].
    pub fn open_for_write(&self, key: &[u8], bytes: u64, opts: &PutOptions) -> Result<WritePlan> {
        self.runtime.block_on(self.client.open_for_write(key, bytes, opts))
    }

    /// See [`WritePlan::publish`].
    pub fn publish(&self, plan: WritePlan) -> Result<()> {
        self.runtime.block_on(plan.publish_with(&self.client))
    }

    /// See [`WritePlan::abort`].
    pub fn abort(&self, plan: WritePlan) -> Result<()> {
        self.runtime.block_on(plan.abort_with(&self.client))
    }

    /// See [`Client::commit`].
    pub fn commit(&self, key: &[u8]) -> Result<()> {
        self.runtime.block_on(self.client.commit(key))
    }

    /// See [`Client::stats`].
    pub fn stats(&self) -> Result<ClusterStats> {
        self.runtime.block_on(self.client.stats())
    }

    /// See [`Client::view`].
    pub fn view(&self) -> Result<View> {
        self.runtime.block_on(self.client.view())
    }

    /// See [`Client::mount_segment`].
    pub fn mount_segment(&self, rank: u32, bytes: u64) -> Result<u32> {
        self.runtime.block_on(self.client.mount_segment(rank, bytes))
    }

    /// See [`Client::unmount_segment`].
    pub fn unmount_segment(
        &self,
        rank: u32,
        segment: u32,
        limit: Duration,
    ) -> Result<UnmountReport> {
        self.runtime.block_on(self.client.unmount_segment(rank, segment, limit))
    }

    /// See [`Client::evict_until_below`].
    pub fn evict_until_below(&self, usage_ratio: f64) -> Result<()> {
        self.runtime.block_on(self.client.evict_until_below(usage_ratio))
    }

    /// See [`Client::flush`].
    pub fn flush(&self) -> Result<()> {
        self.runtime.block_on(self.client.flush())
    }

    /// See [`Client::close`].
    pub fn close(&self) {
        self.runtime.block_on(self.client.close());
    }
}
