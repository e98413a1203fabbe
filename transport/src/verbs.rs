//! The trait of the data plane: one-sided verbs over one remote segment. Every transport implements
//! it and passes the same conformance suite. A verb never waits for an actor. Plans do not appear
//! here, and keys only in what the owner's end does by itself: lookups and appends.

mod append;
mod find;

use crate::error::TransportError;
pub use append::{Append, Appended};
pub use find::{Find, Found};
use nkv_store::device_log::ControlLine;
pub use nkv_store::op::{DeviceBuffer, Fill, Op, Source, Target};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Checks a whole batch before its first byte moves: bounds, alignment, and a nonzero token for
/// verbs that change memory.
pub(crate) fn check_batch(
    ops: &[Op<'_>],
    token: u64,
    segment_len: u64,
) -> Result<(), TransportError> {
    for op in ops {
        let (offset, len) = op.range();
        check_range(offset, len, op.is_word(), segment_len).map_err(TransportError::OutOfBounds)?;
        if op.changes() && token == 0 {
            return Err(TransportError::Refused(
                "token 0 allows reads only; show the token of an open plan".to_string(),
            ));
        }
    }
    Ok(())
}

/// Checks bounds and alignment of one verb.
pub(crate) fn check_range(
    offset: u64,
    len: u64,
    is_word: bool,
    segment_len: u64,
) -> Result<(), String> {
    if offset.checked_add(len).is_none_or(|end| end > segment_len) {
        return Err(format!(
            "{len} bytes at offset {offset} are outside the segment of {segment_len} bytes"
        ));
    }
    if is_word && !offset.is_multiple_of(8) {
        return Err(format!("a word at offset {offset} is not 8-byte aligned"));
    }
    Ok(())
}

/// Which transport a handle uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Memory of this process.
    Local,
    /// Named shared memory of this host.
    Shm,
    /// A tcp agent beside the segment.
    Tcp,
    /// Queue pairs of RDMA devices.
    Rdma,
    /// Named shared memory of this host for control words, and payloads in a GPU that this process
    /// has mapped, too.
    #[serde(rename = "cuda_ipc")]
    CudaIpc,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Local => "local",
            Kind::Shm => "shm",
            Kind::Tcp => "tcp",
            Kind::Rdma => "rdma",
            Kind::CudaIpc => "cuda_ipc",
        })
    }
}

/// One batch of [`Verbs::post_many`].
#[derive(Debug)]
pub struct Post<'a, 'b> {
    /// Token that authorises the changes.
    pub token: u64,
    /// Its verbs, strictly in order.
    pub ops: &'a mut [Op<'b>],
}

/// Called around each batch of [`Verbs::post_many`]: just before it is sent, and once it is over.
/// So a fence waits for batches in flight and not for those still to be sent.
pub trait PostObserver {
    /// Batch `index` is about to be sent. An error is its result, and it is not sent. Called again
    /// if the batch is sent again because it was not executed.
    fn on_submit(&mut self, index: usize) -> Result<(), TransportError>;

    /// This end sends nothing more of batch `index` and waits for no answer to it. After an error
    /// its bytes may still be in a socket; the fence at the target handles those. Called once for
    /// each successful `on_submit`.
    fn on_complete(&mut self, index: usize);
}

/// Permits every batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl PostObserver for NoObserver {
    fn on_submit(&mut self, _: usize) -> Result<(), TransportError> {
        Ok(())
    }

    fn on_complete(&mut self, _: usize) {}
}

/// One-sided verbs over one remote segment. Blocking: call it only from a thread that may block.
pub trait Verbs: Send + Sync + fmt::Debug {
    /// Which transport this is.
    fn kind(&self) -> Kind;

    /// Executes the batch strictly in order [I4] and returns when all of it has happened in the
    /// target memory and every result is filled in. Adjacent writes within one line of 64 bytes may
    /// become visible in any order among themselves. A transport that does not reach a device's
    /// memory copies such buffers to the host and back. `token` authorises writes and atomics; 0
    /// permits reads only. The whole batch is checked before its first byte moves.
    ///
    /// Errors: see [`TransportError`]. After `Disconnected` and `Timeout` any prefix of the batch
    /// may have happened; after `OutOfBounds` nothing has. A tcp batch that needs several requests,
    /// such as one with large verbs in stripes, may be `Refused` after a prefix was executed.
    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError>;

    /// Posts one batch between its two observer calls.
    fn post_observed(
        &self,
        index: usize,
        post: &mut Post<'_, '_>,
        observer: &mut dyn PostObserver,
    ) -> Result<(), TransportError> {
        observer.on_submit(index)?;
        let done = self.post(post.token, post.ops);
        observer.on_complete(index);
        done
    }

    /// Executes independent batches, in any order; each as [`Verbs::post`] does, with its own
    /// result.
    fn post_many(
        &self,
        posts: &mut [Post<'_, '_>],
        observer: &mut dyn PostObserver,
    ) -> Vec<Result<(), TransportError>> {
        let one = |(i, post): (usize, &mut Post<'_, '_>)| self.post_observed(i, post, observer);
        posts.iter_mut().enumerate().map(one).collect()
    }

    /// Has the other end look up keys and read what it finds, in one round trip, where it can: the
    /// result of the whole batch. None: this transport cannot, or not so much at once; then nothing
    /// was sent.
    fn find(&self, _: &mut [Find<'_>]) -> Option<Result<(), TransportError>> {
        None
    }

    /// Has the other end put objects into its log, in order, in one round trip, where it can: it
    /// claims, writes and publishes each, as [`Verbs::post`] would under this token [I4] [I13].
    /// Then reads the control line. The result of the whole batch: after `Refused` none of them is
    /// READY nor will be, after another error any of them may. None: this transport cannot, or not
    /// so much at once; then nothing was sent.
    fn append(
        &self,
        _: u64,
        _: &mut [Append<'_>],
        _: &mut ControlLine,
    ) -> Option<Result<(), TransportError>> {
        None
    }

    /// Whether a payload of so many bytes is cut into stripes: then [`Verbs::append`] refuses it.
    fn cuts(&self, _bytes: u64) -> bool {
        false
    }

    /// Closes connections and buffers that were not used lately. Called periodically; must be
    /// quick.
    fn trim(&self) {}

    /// Whether the reads of a batch are executed one after the other: then an unchanged second
    /// header proves the bytes before it [I7], however long the batch took. A device may execute
    /// them in any order.
    fn reads_in_order(&self) -> bool {
        false
    }

    /// False once the owner of the segment is known to be gone; it never becomes true again.
    fn is_alive(&self) -> bool;

    /// Length of the segment in bytes.
    fn segment_len(&self) -> u64;

    /// The local devices in use, one for each queue pair.
    fn devices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reads `dst.len()` bytes at `offset`.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), TransportError> {
        self.post(0, &mut [Op::Read { offset, dst }])
    }

    /// Reads an aligned word (acquire).
    fn load(&self, offset: u64) -> Result<u64, TransportError> {
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes `src` at `offset`.
    fn write(&self, token: u64, offset: u64, src: &[u8]) -> Result<(), TransportError> {
        self.post(token, &mut [Op::Write { offset, src }])
    }

    /// Stores an aligned word (release).
    fn store(&self, token: u64, offset: u64, value: u64) -> Result<(), TransportError> {
        self.post(token, &mut [Op::Store { offset, value }])
    }

    /// Adds to an aligned word; returns the word before.
    fn fetch_add(&self, token: u64, offset: u64, add: u64) -> Result<u64, TransportError> {
        let mut ops = [Op::FetchAdd { offset, add, old: 0 }];
        self.post(token, &mut ops)?;
        Ok(ops[0].result().unwrap_or_default())
    }

    /// Compare-and-swap; returns the word found. Swapped iff it equals `expect`.
    fn compare_swap(
        &self,
        token: u64,
        offset: u64,
        expect: u64,
        new: u64,
    ) -> Result<u64, TransportError> {
        let mut ops = [Op::CompareSwap { offset, expect, new, old: 0 }];
        self.post(token, &mut ops)?;
        Ok(ops[0].result().unwrap_or_default())
    }

    /// Returns when everything this thread posted before has landed.
    fn flush(&self) -> Result<(), TransportError> {
        self.post(0, &mut [Op::Flush])
    }
}

type Hook = Box<dyn Fn() + Send>;

#[derive(Default)]
struct AliveInner {
    dead: AtomicBool,
    // Run once, by the caller of `mark_dead`: they interrupt posts that wait for a peer.
    hooks: Mutex<Vec<Hook>>,
}

/// Whether the owner of a segment is alive. Clones share one flag, which only changes from alive to
/// dead. Every verb checks it after its work and before it reports success (docs/PROTOCOL.md,
/// section 6).
#[derive(Clone, Default)]
pub struct Alive(Arc<AliveInner>);

impl Alive {
    /// A flag in the state alive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks the owner as gone: every post from now on, and every one in flight, ends
    /// `Disconnected`.
    pub fn mark_dead(&self) {
        if !self.0.dead.swap(true, Ordering::SeqCst) {
            self.run_hooks();
        }
    }

    /// True until `mark_dead`.
    pub fn is_alive(&self) -> bool {
        !self.0.dead.load(Ordering::SeqCst)
    }

    /// Runs `hook` when the owner is marked dead; at once if it already is. Hooks live as long as
    /// the flag, so register one per handle, not one per call.
    pub fn on_death(&self, hook: impl Fn() + Send + 'static) {
        self.hooks().push(Box::new(hook));
        // If it is dead, the call that marked it may have missed the hook just added.
        if !self.is_alive() {
            self.run_hooks();
        }
    }

    fn run_hooks(&self) {
        let hooks = std::mem::take(&mut *self.hooks());
        hooks.iter().for_each(|hook| hook());
    }

    pub(crate) fn check(&self, who: &dyn fmt::Display) -> Result<(), TransportError> {
        if self.is_alive() {
            return Ok(());
        }
        Err(TransportError::Disconnected(format!("the owner of {who} is gone")))
    }

    fn hooks(&self) -> std::sync::MutexGuard<'_, Vec<Hook>> {
        self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alive({})", self.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_kind_is_written_by_its_name() {
        let kinds = [Kind::Local, Kind::Shm, Kind::Tcp, Kind::Rdma, Kind::CudaIpc];
        let names = kinds.map(|kind| kind.to_string());
        assert_eq!(names, ["local", "shm", "tcp", "rdma", "cuda_ipc"]);
    }

    #[test]
    fn a_flag_marked_dead_stays_dead_and_runs_every_hook_once() {
        let (alive, runs) = (Alive::new(), Arc::new(AtomicUsize::new(0)));
        let count = |runs: &Arc<AtomicUsize>| {
            let runs = runs.clone();
            move || {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        };
        alive.on_death(count(&runs));
        alive.clone().mark_dead();
        alive.mark_dead();
        alive.on_death(count(&runs));
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        assert!(!alive.is_alive());
        assert!(matches!(alive.check(&"x"), Err(TransportError::Disconnected(_))));
    }
}
