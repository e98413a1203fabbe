//! One connected pair, shared by callers: chains of requests are posted with one doorbell, and each
//! is waited for by the caller that posted it. A pair that failed is destroyed before anybody is
//! notified, so that no buffer is reused while the device may still write to it.

use super::pair::{Pair, REQUESTS};
use super::queue::Queue;
use crate::error::TransportError;
use crate::fabric::RemoteRange;
use nkv_store::clock::{BootClock, Clock};
use rdma_sys as sys;
use rdma_sys::{ibv_send_flags as send, ibv_wc_status as status, ibv_wr_opcode as opcode};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most requests of one chain: several chains share a pair.
pub(super) const CHAIN: usize = (REQUESTS / 4) as usize;
/// A pair with requests in flight and no completion for this long has failed [I18].
pub(super) const LIMIT: Duration = Duration::from_millis(1_500);
/// How long a waiting caller polls before it sleeps, in nanoseconds: longer than a small operation,
/// also on an emulated device (docs/notes/0012-2026-11-22-rdma.md).
const SPIN_NS: u64 = 2_000_000;
/// Fewest polls, each with a sleep, before the time limit applies.
const MIN_POLLS: u32 = 40;
/// Longest sleep between checks of the limit.
const SLEEP_BETWEEN: Duration = Duration::from_millis(10);

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    Write,
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
}

/// One request: between `len` bytes of a registered buffer and remote memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) does: Opcode,
    pub(super) local: *mut u8,
    pub(super) local_key: u32,
    pub(super) len: u32,
    pub(super) remote: u64,
    pub(super) remote_key: u32,
    /// Wait for every earlier read and atomic.
    pub(super) fence: bool,
}

/// Counters of a lane.
#[derive(Debug, Default)]
pub struct RdmaCounters {
    /// Chains posted, each with one doorbell and one signaled completion.
    pub chains: AtomicU64,
    /// Requests in these chains.
    pub requests: AtomicU64,
    /// Requests that wait for the reads and atomics before them.
    pub fenced: AtomicU64,
    /// Chains of which the device accepted only a part at first.
    pub split: AtomicU64,
    /// Batches and shares of long runs that used another pair than the first.
    pub spread: AtomicU64,
    /// How often a waiting caller slept until a completion event.
    pub slept: AtomicU64,
}

#[derive(Debug, Default)]
struct Progress {
    // The latest chain.
    last: u64,
    // Requests that the pair can still hold.
    free: u32,
    // Chains in flight: id -> number of requests.
    flying: BTreeMap<u64, u32>,
    // Chains that have ended, in total.
    ended: u64,
    // Status of ended chains that their callers have not read yet.
    done: BTreeMap<u64, u32>,
    // One waiting caller polls for all.
    polling: bool,
    // Why the pair is destroyed, if it is.
    broken: Option<String>,
}

/// One connected pair, shared by callers.
#[derive(Debug)]
pub(super) struct Lane {
    pair: Mutex<Option<Pair>>,
    queue: Arc<Queue>,
    pub(super) inline_bytes: usize,
    pub(super) ranges: Vec<RemoteRange>,
    progress: Mutex<Progress>,
    news: Condvar,
    pub(super) counters: Arc<RdmaCounters>,
}

impl Lane {
    pub(super) fn new(
        pair: Pair,
        queue: Arc<Queue>,
        ranges: Vec<RemoteRange>,
        counters: Arc<RdmaCounters>,
    ) -> Self {
        let progress = Progress { free: pair.requests.min(REQUESTS), ..Progress::default() };
        Self {
            inline_bytes: pair.inline_bytes as usize,
            pair: Mutex::new(Some(pair)),
            queue,
            ranges,
            progress: Mutex::new(progress),
            news: Condvar::new(),
            counters,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Destroys the pair: from here on the device accesses no buffer of this end for it, and sends
    /// nothing. All waiting callers are then notified. Idempotent.
    pub(super) fn break_off(&self, why: &str) {
        drop(self.pair.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut p = self.lock();
        p.broken.get_or_insert_with(|| why.to_string());
        drop(p);
        self.news.notify_all();
    }

    /// Posts a chain. The caller must keep its buffers until `wait` has returned its result.
    ///
    /// # Errors
    /// If the pair is broken, or breaks now; then nothing is in flight.
    pub(super) fn submit(&self, chain: &[Request], until_ns: u64) -> Result<u64, TransportError> {
        let cost = chain.len() as u32;
        debug_assert!(chain.len() <= CHAIN, "{} requests in one chain", chain.len());
        let id = self.await_that(until_ns, |p| {
            (p.free >= cost).then(|| {
                p.free -= cost;
                p.last += 1;
                p.flying.insert(p.last, cost);
                p.last
            })
        })?;
        self.post(id, chain, until_ns).inspect_err(|e| self.break_off(&e.to_string()))?;
        self.counters.chains.fetch_add(1, Ordering::Relaxed);
        self.counters.requests.fetch_add(cost.into(), Ordering::Relaxed);
        let fenced = chain.iter().filter(|r| r.fence).count() as u64;
        self.counters.fenced.fetch_add(fenced, Ordering::Relaxed);
        Ok(id)
    }

    fn post(&self, id: u64, chain: &[Request], until_ns: u64) -> Result<(), TransportError> {
        let mut ranges: Vec<sys::ibv_sge> = chain
            .iter()
            .map(|r| sys::ibv_sge { addr: r.local as u64, length: r.len, lkey: r.local_key })
            .collect();
        let mut requests: Vec<sys::ibv_send_wr> =
            chain.iter().zip(&mut ranges).map(|(r, s)| self.work(id, r, s)).collect();
        if let Some(last) = requests.last_mut() {
            last.send_flags |= send::IBV_SEND_SIGNALED.0;
        }
        let mut from = 0;
        while from < requests.len() {
            // After every change that may move the vector.
            for i in from..requests.len() - 1 {
                let next = &raw mut requests[i + 1];
                requests[i].next = next;
            }
            let mut bad: *mut sys::ibv_send_wr = std::ptr::null_mut();
            let errno = {
                let pair = self.pair.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(pair) = pair.as_ref() else { return Err(self.gone()) };
                let first = &raw mut requests[from];
                // SAFETY: the pair lives; the chain, its ranges and the buffers they name are valid
                // for the call, and the buffers until the chain has ended, by the contract of
                // `submit`.
                unsafe { sys::ibv_post_send(pair.raw(), first, &raw mut bad) }
            };
            match errno {
                0 => return Ok(()),
                e if e.abs() == libc::ENOMEM && !bad.is_null() => {
                    // The device accepted some of them: the rest is posted once others are done.
                    let base = requests.as_ptr() as usize;
                    from = (bad as usize - base) / size_of::<sys::ibv_send_wr>();
                    self.counters.split.fetch_add(1, Ordering::Relaxed);
                    let before = self.lock().ended;
                    self.await_that(until_ns, |p| (p.ended != before).then_some(()))?;
                }
                e => {
                    let target = format!("a chain of {} requests", chain.len());
                    super::error::check("ibv_post_send", || target, e)?;
                }
            }
        }
        Ok(())
    }

    fn work(&self, id: u64, r: &Request, range: &mut sys::ibv_sge) -> sys::ibv_send_wr {
        // SAFETY: a structure of plain numbers and pointers, all of which may be zero.
        let mut work: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        work.wr_id = id;
        work.sg_list = range;
        work.num_sge = i32::from(r.len > 0);
        let rdma = sys::rdma_t { remote_addr: r.remote, rkey: r.remote_key };
        let atomic = |compare_add, swap| sys::atomic_t {
            remote_addr: r.remote,
            compare_add,
            swap,
            rkey: r.remote_key,
        };
        match r.does {
            Opcode::Write => {
                work.opcode = opcode::IBV_WR_RDMA_WRITE;
                work.wr.rdma = rdma;
                if r.len as usize <= self.inline_bytes {
                    work.send_flags |= send::IBV_SEND_INLINE.0;
                }
            }
            Opcode::Read => {
                work.opcode = opcode::IBV_WR_RDMA_READ;
                work.wr.rdma = rdma;
            }
            Opcode::FetchAdd(add) => {
                work.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                work.wr.atomic = atomic(add, 0);
            }
            Opcode::CompareSwap(expect, new) => {
                work.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                work.wr.atomic = atomic(expect, new);
            }
        }
        if r.fence {
            work.send_flags |= send::IBV_SEND_FENCE.0;
        }
        work
    }

    /// Waits until a chain is done.
    ///
    /// # Errors
    /// If it failed, is not complete by `until_ns`, or nothing completed for [`LIMIT`]: the pair is
    /// then destroyed, and its buffers are free.
    pub(super) fn wait(&self, id: u64, until_ns: u64) -> Result<(), TransportError> {
        let ended = self.await_that(until_ns, |p| p.done.remove(&id));
        let done = ended.and_then(|status| if status == 0 { Ok(()) } else { Err(outcome(status)) });
        done.inspect_err(|e| self.break_off(&e.to_string()))
    }

    /// Whether `wait` returns without waiting.
    pub(super) fn has_ended(&self, id: u64) -> bool {
        let mut p = self.lock();
        if !p.polling && !p.done.contains_key(&id) && p.broken.is_none() {
            self.gather(&mut p);
        }
        p.done.contains_key(&id) || p.broken.is_some()
    }

    /// Takes the completions that are there now. Only if no other caller polls.
    fn gather(&self, p: &mut Progress) {
        // Keeps the lock: completions found must be recorded before anybody waits for them.
        let mut found = Vec::new();
        // An error is reported to the caller that polls next.
        let _ = self.queue.take(&mut found);
        found.iter().for_each(|c| p.record_completion(c));
        if !found.is_empty() {
            self.news.notify_all();
        }
    }

    fn gone(&self) -> TransportError {
        let why = self.lock().broken.clone();
        TransportError::Disconnected(why.unwrap_or_else(|| "the pair was severed".to_string()))
    }

    /// Waits until `ready` returns a value, until `until_ns`, and no longer than [`LIMIT`] without
    /// any progress; one of the waiting callers polls for all of them.
    fn await_that<T>(
        &self,
        until_ns: u64,
        mut ready: impl FnMut(&mut Progress) -> Option<T>,
    ) -> Result<T, TransportError> {
        let mut p = self.lock();
        let (mut ended, mut moved_ns, mut polls) = (p.ended, BootClock.now_ns(), 0);
        loop {
            if let Some(outcome) = ready(&mut p) {
                return Ok(outcome);
            }
            if p.broken.is_some() {
                drop(p);
                return Err(self.gone());
            }
            let now_ns = BootClock.now_ns();
            if p.ended != ended {
                (ended, moved_ns, polls) = (p.ended, now_ns, 0);
            }
            let long = now_ns.saturating_sub(moved_ns) >= LIMIT.as_nanos() as u64;
            // The whole machine may have been paused, with the device.
            let stuck = long && polls >= MIN_POLLS;
            polls += 1;
            if stuck || now_ns >= until_ns {
                // Only this process may have been paused, and not the device.
                if p.polling {
                    p = self.sleep_for_news(p);
                } else {
                    self.gather(&mut p);
                }
                return match ready(&mut p) {
                    Some(outcome) => Ok(outcome),
                    None if p.ended != ended && now_ns < until_ns => continue,
                    None => Err(late(stuck)),
                };
            }
            if p.polling {
                p = self.sleep_for_news(p);
                continue;
            }
            p.polling = true;
            drop(p);
            let mut found = Vec::new();
            let polled = self.poll_completions(&mut found);
            p = self.lock();
            p.polling = false;
            found.iter().for_each(|c| p.record_completion(c));
            self.news.notify_all();
            polled?;
        }
    }

    /// Sleeps until another waiting caller has recorded completions, for [`SLEEP_BETWEEN`] at most.
    fn sleep_for_news<'a>(&self, p: MutexGuard<'a, Progress>) -> MutexGuard<'a, Progress> {
        self.news.wait_timeout(p, SLEEP_BETWEEN).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Polls for completions, and sleeps for a while if there are none.
    fn poll_completions(&self, found: &mut Vec<sys::ibv_wc>) -> Result<(), TransportError> {
        let until_ns = BootClock.now_ns() + SPIN_NS;
        loop {
            if self.queue.take(found)? > 0 {
                return Ok(());
            }
            if BootClock.now_ns() >= until_ns {
                break;
            }
            std::hint::spin_loop();
        }
        self.queue.arm()?;
        // A completion between the last poll and the arming causes no event.
        if self.queue.take(found)? == 0 {
            self.counters.slept.fetch_add(1, Ordering::Relaxed);
            self.queue.sleep(SLEEP_BETWEEN);
        }
        Ok(())
    }
}

fn late(stuck: bool) -> TransportError {
    TransportError::Timeout(match stuck {
        true => format!("nothing came back through a queue pair for {} ms", LIMIT.as_millis()),
        false => "a post took longer than 10 s and 4 s for each MiB of it".to_string(),
    })
}

impl Progress {
    fn record_completion(&mut self, c: &sys::ibv_wc) {
        // Every request after a failed one fails, too: the first status counts.
        if let Some(cost) = self.flying.remove(&c.wr_id) {
            self.free += cost;
            self.ended += 1;
            self.done.insert(c.wr_id, c.status);
        }
    }
}

/// The error for a failed request.
fn outcome(s: u32) -> TransportError {
    let text = match s {
        status::IBV_WC_RETRY_EXC_ERR => "the other end does not answer: gone or unreachable",
        status::IBV_WC_WR_FLUSH_ERR => "the pair failed in a request before",
        status::IBV_WC_REM_ACCESS_ERR => {
            "the other end does not allow it: severed, unregistered, or out of bounds"
        }
        status::IBV_WC_REM_INV_REQ_ERR => "the other end rejects this kind of request",
        status::IBV_WC_REM_OP_ERR => "the other end failed to execute it",
        status::IBV_WC_LOC_PROT_ERR => "this end's buffer is not registered",
        _ => "the device reported an error",
    };
    TransportError::Disconnected(format!("a request failed with status {s}: {text}"))
}
