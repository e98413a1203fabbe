//! What one request of a trace does: match the longest prefix, read and compare it, put the missing
//! blocks. It uses only the trait [`Blocks`], so that tests can remove blocks between two calls.

use crate::content::Stream;
use crate::latency::OpTimes;
use crate::memcpy::{MemcpyBaseline, faulted};
use crate::report::Report;
use crate::stopwatch::{now_ns, timed};
use nkv::message::{Existence, Location, ObjMeta, Tier};
use nkv::{Blocking, ErrorKind, PutOptions};
use nkv_store::Buffer;
use std::collections::HashSet;

/// Bytes read or put by one call; also the size of the reused buffer.
const CALL_BYTES: usize = 64 << 20;
/// Memory of the buffers of plain copies.
const YARDSTICK_BYTES: usize = 64 << 20;
/// Most buffers of plain copies.
const YARDSTICK_BUFFERS: usize = 4096;
/// Keys asked for together.
const KEYS_PER_CALL: usize = 4096;
/// Plain copies timed after each call.
const COPIES_PER_CALL: usize = 16;
/// Blocks have one version: a trace never changes one.
const VERSION: u64 = 0;

/// The calls that a replay needs; each takes a batch.
pub(super) trait Blocks {
    /// The longest readable run from the first key.
    fn longest_prefix(&self, keys: &[&[u8]]) -> nkv::Result<Vec<Location>>;
    /// Reads objects by location.
    fn read(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<nkv::Result<usize>>;
    /// Reads the objects of keys.
    fn read_keys(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<nkv::Result<usize>>;
    /// Puts objects.
    fn put(&self, items: &[(&[u8], &[u8])]) -> Vec<nkv::Result<()>>;
}

impl Blocks for Blocking {
    fn longest_prefix(&self, keys: &[&[u8]]) -> nkv::Result<Vec<Location>> {
        self.match_prefix(keys)
    }

    fn read(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<nkv::Result<usize>> {
        self.read_many_into(items)
    }

    fn read_keys(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<nkv::Result<usize>> {
        self.get_many_into(items)
    }

    fn put(&self, items: &[(&[u8], &[u8])]) -> Vec<nkv::Result<()>> {
        self.put_many(items, &PutOptions::default())
    }
}

/// Outcome of a block of the matched prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Read.
    Read,
    /// Evicted between the match and the read: put again.
    Lost,
    /// Reading it failed; the failure is counted and nothing is put.
    Failed,
}

/// A replay in progress.
pub(super) struct Replay {
    block_bytes: usize,
    /// Blocks in one call.
    per_call: usize,
    buffer: Buffer,
    baseline: MemcpyBaseline,
    copies: usize,
    matches: OpTimes,
    /// Of the blocks read so far, whether they count as hits or come after a lost one.
    pub(super) gets: OpTimes,
    puts: OpTimes,
    requests: u64,
    /// Matched blocks that were on disk.
    on_disk: u64,
    /// When blocks were put, if that is asked for.
    put_at: Option<Vec<(Vec<u8>, u64)>>,
    report: Report,
}

impl Replay {
    /// A replay that has not begun; `block_bytes` is at least 1.
    pub(super) fn new(block_bytes: usize) -> Self {
        let bytes = block_bytes as u64;
        let ring = (YARDSTICK_BYTES / block_bytes).clamp(2, YARDSTICK_BUFFERS);
        Self {
            block_bytes,
            per_call: (CALL_BYTES / block_bytes).max(1),
            buffer: faulted(0),
            baseline: MemcpyBaseline::new(block_bytes, ring),
            copies: 0,
            matches: OpTimes::new("match_prefix", 0),
            gets: OpTimes::new("get", bytes),
            puts: OpTimes::new("put", bytes),
            requests: 0,
            on_disk: 0,
            put_at: None,
            report: Report::default(),
        }
    }

    /// Replays one request, given the ids of its blocks, first to last.
    pub(super) fn request<B: Blocks>(&mut self, blocks: &B, ids: &[u64]) {
        let keys: Vec<Vec<u8>> = ids.iter().map(|id| block_key(self.block_bytes, *id)).collect();
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.requests += 1;
        self.report.blocks += ids.len() as u64;
        if names.is_empty() {
            return;
        }
        let found = self.matched(blocks, &names);
        let fates = self.read_prefix(blocks, &names[..found.len()], &found);
        let run = fates.iter().take_while(|fate| **fate == Fate::Read).count();
        self.report.hit_blocks += run as u64;

        let lost = fates.iter().enumerate().filter(|(_, fate)| **fate == Fate::Lost);
        let missing = lost.map(|(at, _)| at).chain(found.len()..names.len());
        let mut seen = HashSet::new();
        let missing: Vec<&[u8]> =
            missing.map(|at| names[at]).filter(|name| seen.insert(*name)).collect();
        self.put_missing(blocks, &missing);
    }

    /// Remembers from now on when which block was put.
    pub(super) fn remember_puts(&mut self) {
        self.put_at = Some(Vec::new());
    }

    /// Prints how many of the blocks that were put are not there any more, and how long before
    /// `end_ns` the first of them was put.
    pub(super) fn print_lost(&mut self, handle: &Blocking, end_ns: u64) -> anyhow::Result<()> {
        let put = self.put_at.take().unwrap_or_default();
        let (mut lost, mut before_ns) = (0, 0);
        for part in put.chunks(KEYS_PER_CALL) {
            let names: Vec<&[u8]> = part.iter().map(|(name, _)| &name[..]).collect();
            for (found, (_, at_ns)) in handle.exists(&names)?.into_iter().zip(part) {
                if found == Existence::Absent {
                    lost += 1;
                    before_ns = u64::max(before_ns, end_ns.saturating_sub(*at_ns));
                }
            }
        }
        let of = put.len();
        eprintln!("nkv-load: {lost} of the {of} blocks put before that are gone");
        if lost > 0 {
            let ms = before_ns / 1_000_000;
            eprintln!("nkv-load: the first of them was put {ms} ms before the ranks were killed");
        }
        Ok(())
    }

    /// Blocks hit and asked for until now.
    pub(super) fn so_far(&self) -> (u64, u64) {
        (self.report.hit_blocks, self.report.blocks)
    }

    /// Ends the replay and returns its report.
    pub(super) fn into_report(mut self) -> Report {
        let all = [self.matches, self.gets, self.puts];
        all.into_iter().for_each(|times| self.report.measured(times));
        Report { requests: self.requests, disk_blocks: self.on_disk, ..self.report }
    }

    fn matched<B: Blocks>(&mut self, blocks: &B, names: &[&[u8]]) -> Vec<Location> {
        let (outcome, ns) = timed(|| blocks.longest_prefix(names));
        match outcome {
            Ok(mut found) => {
                self.matches.record(ns);
                found.truncate(names.len());
                self.on_disk += found.iter().filter(|at| at.tier() == Tier::Disk).count() as u64;
                found
            }
            Err(error) => {
                self.report.tally.failed("match_prefix", names[0], &error);
                Vec::new()
            }
        }
    }

    /// Reads and compares the matched blocks. Calls go from the end of the prefix to its start, as
    /// the touches within a call do: the head must end up the most recently used.
    fn read_prefix<B: Blocks>(
        &mut self,
        blocks: &B,
        names: &[&[u8]],
        found: &[Location],
    ) -> Vec<Fate> {
        let mut fates = vec![Fate::Failed; found.len()];
        self.grow_buffer(found.len());
        let calls = names.chunks(self.per_call).zip(found.chunks(self.per_call));
        for ((names, found), fates) in calls.zip(fates.chunks_mut(self.per_call)).rev() {
            self.read_call(blocks, names, found, fates);
        }
        fates
    }

    fn read_call<B: Blocks>(
        &mut self,
        blocks: &B,
        names: &[&[u8]],
        found: &[Location],
        fates: &mut [Fate],
    ) {
        let places = self.buffer.chunks_mut(self.block_bytes);
        let items: Vec<_> =
            names.iter().zip(found).zip(places).map(|((n, f), p)| (*n, f, p)).collect();
        let (outcomes, ns) = timed(|| read_or_follow(blocks, items));
        let mut read = 0;
        for (at, outcome) in outcomes.iter().enumerate().take(names.len()) {
            fates[at] = match outcome {
                Ok(bytes) => {
                    read += 1;
                    let block = &self.buffer[at * self.block_bytes..][..self.block_bytes];
                    let stream = Stream::of(names[at], VERSION);
                    let verdict = stream.verify(block, *bytes, self.block_bytes);
                    self.report.tally.compared(names[at], verdict);
                    Fate::Read
                }
                Err(error) if error.kind() == ErrorKind::NotFound => Fate::Lost,
                Err(error) => {
                    self.report.tally.failed("get", names[at], error);
                    Fate::Failed
                }
            };
        }
        self.gets.record_batch(ns, read);
        for at in 0..names.len().min(COPIES_PER_CALL) {
            let dst = &mut self.buffer[at * self.block_bytes..][..self.block_bytes];
            self.gets.record_memcpy(self.baseline.copy_out(self.copies, dst));
            self.copies += 1;
        }
    }

    /// Puts blocks; `AlreadyExists` is no failure, since another client may have put them.
    fn put_missing<B: Blocks>(&mut self, blocks: &B, names: &[&[u8]]) {
        self.grow_buffer(names.len());
        names.chunks(self.per_call).rev().for_each(|names| self.put_call(blocks, names));
    }

    fn put_call<B: Blocks>(&mut self, blocks: &B, names: &[&[u8]]) {
        for (name, block) in names.iter().zip(self.buffer.chunks_mut(self.block_bytes)) {
            Stream::of(name, VERSION).fill(block);
        }
        let contents = self.buffer.chunks(self.block_bytes);
        let items: Vec<(&[u8], &[u8])> = names.iter().copied().zip(contents).collect();
        let (outcomes, ns) = timed(|| blocks.put(&items));
        let mut put = 0;
        for (name, outcome) in names.iter().zip(&outcomes) {
            match outcome {
                Ok(()) => {
                    put += 1;
                    if let Some(put_at) = &mut self.put_at {
                        put_at.push((name.to_vec(), now_ns()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => self.report.tally.failed("put", name, error),
            }
        }
        self.puts.record_batch(ns, put);
        for at in 0..names.len().min(COPIES_PER_CALL) {
            let src = &self.buffer[at * self.block_bytes..][..self.block_bytes];
            self.puts.record_memcpy(self.baseline.copy_in(self.copies, src));
            self.copies += 1;
        }
    }

    /// Makes the reused buffer large enough for `blocks` blocks, up to one call.
    fn grow_buffer(&mut self, blocks: usize) {
        let bytes = blocks.min(self.per_call) * self.block_bytes;
        if self.buffer.len() < bytes {
            self.buffer = faulted(bytes);
        }
    }
}

/// Reads objects by location. Those on disk, and those that are not there any more, are read by
/// their keys: what is read often is copied elsewhere, and its key leads there.
fn read_or_follow<B: Blocks>(
    blocks: &B,
    items: Vec<(&[u8], &Location, &mut [u8])>,
) -> Vec<nkv::Result<usize>> {
    let (mut in_memory, mut by_key, mut order) = (Vec::new(), Vec::new(), Vec::new());
    for (name, found, dst) in items {
        order.push(found.in_memory().is_some());
        match found.in_memory() {
            Some(meta) => in_memory.push((name, (meta, dst))),
            None => by_key.push((name, dst)),
        }
    }
    let (names, mut in_memory): (Vec<_>, Vec<_>) = in_memory.into_iter().unzip();
    let mut read = blocks.read(&mut in_memory);
    for ((name, (_, dst)), outcome) in names.iter().zip(in_memory).zip(&mut read) {
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let again = blocks.read_keys(&mut [(*name, dst)]).pop();
            *outcome = again.unwrap_or_else(|| outcome.clone());
        }
    }
    let keyed = if by_key.is_empty() { Vec::new() } else { blocks.read_keys(&mut by_key) };
    let (mut read, mut keyed) = (read.into_iter(), keyed.into_iter());
    let next = order.into_iter().map(|memory| if memory { read.next() } else { keyed.next() });
    next.flatten().collect()
}

/// The key of a block. The block's size is part of it: replays with other sizes share no objects.
fn block_key(block_bytes: usize, id: u64) -> Vec<u8> {
    format!("trace/{block_bytes}/{id}").into_bytes()
}

#[cfg(test)]
mod tests;
