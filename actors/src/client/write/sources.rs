//! Puts of values of which some bytes are in a device, such as VRAM. Into mapped memory the
//! device's driver copies them; else they go through host memory.

use super::super::value::{MOST_PARTS, Value};
use super::super::{Client, filled};
use crate::client::put_log::TryPut;
use crate::client::{IfExists, PutOptions};
use crate::error::{Error, ErrorKind, Result};
use nkv_store::key::key_hash;
use nkv_transport::verbs::{Kind, Source};

/// Bytes that are joined in host memory at a time, and that a plan is given at a time.
const JOINED: usize = 16 << 20;

impl Client {
    /// Stores a value in parts, one after another, each in memory of the host or of a device. What
    /// is in a device must not change until it returns.
    pub async fn put_sources(
        &self,
        key: &[u8],
        parts: &[Source<'_>],
        opts: &PutOptions,
    ) -> Result<()> {
        let mut done = self.put_many_sources(&[(key, parts)], opts).await;
        done.pop().unwrap_or_else(|| Err(Error::internal("a put has no result")))
    }

    /// As [`Client::put_sources`] for many values; one result for each, in order.
    pub async fn put_many_sources(
        &self,
        items: &[(&[u8], &[Source<'_>])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        if !opts.disks.is_empty() {
            let (keys, in_memory) = (items.iter().map(|(key, _)| *key), opts.in_memory());
            let put = Box::pin(self.put_many_sources(items, &in_memory));
            return self.put_and_save(keys.collect(), opts, put).await;
        }
        let of_host = |i: &usize| items[*i].1.iter().all(Source::is_host);
        let (host, device): (Vec<usize>, Vec<usize>) = (0..items.len()).partition(of_host);
        let mut done = vec![None; items.len()];
        if !host.is_empty() {
            let parts: Vec<Vec<&[u8]>> = host.iter().map(|i| bytes_of(items[*i].1)).collect();
            let of_host: Vec<(&[u8], &[&[u8]])> =
                host.iter().zip(&parts).map(|(i, parts)| (items[*i].0, &parts[..])).collect();
            let put = self.put_many_parts(&of_host, opts).await;
            host.into_iter().zip(put).for_each(|(i, put)| done[i] = Some(put));
        }
        if self.wants_log(opts) && self.check_usable().is_ok() {
            let hashes: Vec<_> = device.iter().map(|i| key_hash(items[*i].0)).collect();
            self.attach_log_owners(&hashes, opts).await;
        }
        let mut left: Vec<(&[u8], &[Source<'_>])> = Vec::new();
        for i in device {
            let (key, parts) = items[i];
            done[i] = self.try_put_sources(key, parts, opts);
            left.extend(done[i].is_none().then_some((key, parts)));
        }
        filled(done, self.put_left(&left, opts).await)
    }

    /// Puts those that a log did not take.
    async fn put_left(
        &self,
        left: &[(&[u8], &[Source<'_>])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        let (mut put, mut rest) = (Vec::new(), left);
        while let [(key, parts), later @ ..] = rest {
            let together = self.joined_together(rest, opts);
            if together == 0 {
                put.push(self.put_sources_by_plan(key, parts, opts).await);
                rest = later;
            } else {
                let (some, later) = rest.split_at(together);
                put.extend(self.put_joined(some, opts).await);
                rest = later;
            }
        }
        put
    }

    /// How many of these, first to last, are read into host memory and share requests.
    fn joined_together(&self, items: &[(&[u8], &[Source<'_>])], opts: &PutOptions) -> usize {
        let mut bytes = 0;
        let fits = items.iter().take_while(|(key, parts)| {
            bytes += Value::Sources(parts).len();
            bytes <= JOINED && self.joins(key, opts)
        });
        fits.count()
    }

    /// None: it needs a plan, or goes through host memory.
    pub(in crate::client) fn try_put_sources(
        &self,
        key: &[u8],
        parts: &[Source<'_>],
        opts: &PutOptions,
    ) -> Option<Result<()>> {
        if parts.len() > MOST_PARTS {
            return None;
        }
        // Not within a claim, which others would wait for.
        if let Err(e) = parts.iter().try_for_each(Source::wait) {
            return Some(Err(Error::from(e).about(key)));
        }
        match self.try_put(key, Value::Sources(parts), opts) {
            TryPut::Done(done) => Some(done),
            TryPut::NeedsPlan | TryPut::NotAttached => None,
        }
    }

    /// Whether it is read into host memory first: over tcp that saves a plan.
    fn joins(&self, key: &[u8], opts: &PutOptions) -> bool {
        let log = self.log_rank(key_hash(key), opts);
        let peer = log.and_then(|rank| self.shared.peers.first_of(rank));
        peer.is_some_and(|peer| peer.kind() == Kind::Tcp)
    }

    async fn put_joined(
        &self,
        items: &[(&[u8], &[Source<'_>])],
        opts: &PutOptions,
    ) -> Vec<Result<()>> {
        let (mut values, mut done) = (Vec::new(), Vec::new());
        for (key, parts) in items {
            match join(parts) {
                Ok(value) => {
                    values.push((*key, value));
                    done.push(None);
                }
                Err(e) => done.push(Some(Err(e.about(key)))),
            }
        }
        let values: Vec<(&[u8], &[u8])> = values.iter().map(|(key, v)| (*key, &v[..])).collect();
        filled(done, self.put_many(&values, opts).await)
    }

    async fn put_sources_by_plan(
        &self,
        key: &[u8],
        parts: &[Source<'_>],
        opts: &PutOptions,
    ) -> Result<()> {
        let done = self.place_sources(key, parts, opts).await;
        match done {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && opts.if_exists == IfExists::Keep => {
                Ok(())
            }
            done => done.map_err(|e| e.about(key)),
        }
    }

    async fn place_sources(
        &self,
        key: &[u8],
        parts: &[Source<'_>],
        opts: &PutOptions,
    ) -> Result<()> {
        parts.iter().try_for_each(Source::wait)?;
        let bytes = Value::Sources(parts).len() as u64;
        let short = opts.replicas.saturating_sub(1);
        let plan = self.open_for_write(key, bytes, &opts.clone().replicas(1)).await?;
        self.shared.writes.replicas_short.add(short.into());
        let mut offset = 0;
        for part in parts {
            let pieces: Vec<Source<'_>> = match part {
                Source::Host(bytes) => bytes.chunks(JOINED).map(Source::Host).collect(),
                Source::Device(buffer) => buffer.chunks(JOINED).map(Source::Device).collect(),
            };
            for piece in pieces {
                plan.write_source(offset, piece)?;
                offset += piece.len() as u64;
            }
        }
        plan.publish().await?;
        self.shared.writes.by_plan.one();
        Ok(())
    }
}

/// The parts that the host has.
fn bytes_of<'a>(parts: &[Source<'a>]) -> Vec<&'a [u8]> {
    let bytes = |part: &Source<'a>| match part {
        Source::Host(bytes) => Some(*bytes),
        Source::Device(_) => None,
    };
    parts.iter().filter_map(bytes).collect()
}

fn join(parts: &[Source<'_>]) -> Result<Vec<u8>> {
    let mut all = Vec::with_capacity(Value::Sources(parts).len());
    parts.iter().try_for_each(|part| part.append_to(&mut all))?;
    Ok(all)
}
