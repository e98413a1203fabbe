//! Buffers for what `get` returns. The page faults of a fresh buffer cost several times the copy
//! itself, so a buffer that its reader has dropped is reused by a later get. The pool is bounded,
//! and no get waits for it: without a free buffer a fresh one is allocated.

use super::Client;
use crate::error::{Error, Result};
use bytes::Bytes;
use nkv_store::Buffer;
use nkv_store::fork::ProcessMark;
use nkv_transport::fabric::{Fabric, RegisteredBuffer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

impl Client {
    /// Registers a buffer with the RDMA devices of this handle: puts from it and gets into it
    /// through them need no extra copy. Takes seconds per GiB.
    ///
    /// # Errors
    /// Unsupported, if this process has no device, or the buffer exceeds what may be locked in
    /// memory.
    ///
    /// ```no_run
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("register", async |cache| {
    /// let buffer = cache.register(nkv_store::Buffer::new(4096)?)?;
    /// assert_eq!(buffer.len(), 4096);
    /// # Ok(())
    /// # });
    /// ```
    pub fn register(&self, buffer: Buffer) -> Result<RegisteredBuffer> {
        let registered = RegisteredBuffer::new(&*self.fabric()?, buffer);
        registered.map_err(|e| Error::unsupported(format!("this buffer cannot be registered: {e}")))
    }

    /// The RDMA devices of this handle: to register memory that nkv did not allocate, as the KV
    /// cache of an engine.
    ///
    /// # Errors
    /// Unsupported, if this process has no device.
    pub fn fabric(&self) -> Result<Arc<dyn Fabric>> {
        let fabric = self.shared.env.machine.fabric(&self.shared.config.fabric);
        fabric.map_err(|e| Error::unsupported(e.to_string()))
    }
}

/// Smaller objects use the allocator, which does not map their memory anew each time.
const FROM_BYTES: usize = 64 << 10;
/// Buffer sizes per power of two: a buffer is at most a quarter too large.
const CLASSES: usize = 4;

/// The idle buffers of one handle.
#[derive(Debug)]
pub(crate) struct Buffers {
    most_bytes: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    bytes: usize,
    // The last one given back is at the end: its memory is usually still in a cache.
    buffers: VecDeque<Buffer>,
}

/// Buffer for one object while it is read; goes back to the pool when dropped.
#[derive(Debug)]
pub(super) enum ReadBuffer {
    Plain(Vec<u8>),
    Pooled(PooledBuffer),
}

/// A buffer of the pool in use. Only its first `len` bytes are ever visible: the rest may hold
/// bytes of another object.
#[derive(Debug)]
pub(super) struct PooledBuffer {
    // Some until the drop.
    buffer: Option<Buffer>,
    len: usize,
    home: Weak<Buffers>,
    made: ProcessMark,
}

impl Buffers {
    /// Keeps idle buffers of at most `most_bytes` bytes in total; 0: none.
    pub(crate) fn new(most_bytes: u64) -> Arc<Self> {
        let most_bytes = usize::try_from(most_bytes).unwrap_or(usize::MAX);
        Arc::new(Self { most_bytes, idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes. Their content is undefined until an object is read into them.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> ReadBuffer {
        let class = class_of(len);
        if len < FROM_BYTES || class > self.most_bytes {
            return ReadBuffer::Plain(vec![0; len]);
        }
        let kept = {
            let mut idle = self.idle();
            let at = idle.buffers.iter().rposition(|buffer| buffer.len() == class);
            at.and_then(|at| idle.buffers.remove(at)).inspect(|kept| idle.bytes -= kept.len())
        };
        // The number of mappings of a process is limited: beyond it the allocator may still have
        // memory.
        match kept.or_else(|| Buffer::new(class).ok()) {
            Some(buffer) => {
                let (home, made) = (Arc::downgrade(self), ProcessMark::here());
                ReadBuffer::Pooled(PooledBuffer { buffer: Some(buffer), len, home, made })
            }
            None => ReadBuffer::Plain(vec![0; len]),
        }
    }

    fn give_back(&self, buffer: Buffer) {
        let mut idle = self.idle();
        idle.bytes += buffer.len();
        idle.buffers.push_back(buffer);
        let mut excess = Vec::new();
        while idle.bytes > self.most_bytes
            && let Some(oldest) = idle.buffers.pop_front()
        {
            idle.bytes -= oldest.len();
            excess.push(oldest);
        }
        drop(idle);
        // Unmapped once the lock is free.
        drop(excess);
    }
}

/// Bytes of the buffer for an object of `len` bytes: the next of four sizes in every power of two.
fn class_of(len: usize) -> usize {
    let step = (len.max(FROM_BYTES) - 1).ilog2() - CLASSES.ilog2();
    len.max(FROM_BYTES).next_multiple_of(1 << step)
}

impl ReadBuffer {
    /// The bytes to read into, exactly the object's length.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            ReadBuffer::Plain(bytes) => bytes,
            ReadBuffer::Pooled(pooled) => match &mut pooled.buffer {
                Some(buffer) => &mut buffer[..pooled.len],
                None => &mut [],
            },
        }
    }

    /// The bytes read, to return to the caller.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            ReadBuffer::Plain(bytes) => bytes.into(),
            ReadBuffer::Pooled(pooled) => Bytes::from_owner(pooled),
        }
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..self.len])
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that does not exist there.
        if !self.made.is_here() {
            return;
        }
        if let Some((buffer, home)) = self.buffer.take().zip(self.home.upgrade()) {
            home.give_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn get(pool: &Arc<Buffers>, len: usize, fill: u8) -> Bytes {
        let mut room = pool.take(len);
        assert_eq!(room.bytes_mut().len(), len);
        room.bytes_mut().fill(fill);
        room.into_bytes()
    }

    fn kept(pool: &Buffers) -> (usize, usize) {
        let idle = pool.idle();
        assert_eq!(idle.bytes, idle.buffers.iter().map(|b| b.len()).sum::<usize>());
        (idle.buffers.len(), idle.bytes)
    }

    #[test]
    fn a_class_is_at_most_a_quarter_larger_than_what_it_is_for() {
        let classes = [1, FROM_BYTES, FROM_BYTES + 1, MIB, MIB + 1, 16 * MIB, 20 * MIB - 1];
        let wanted = [FROM_BYTES, FROM_BYTES, 80 << 10, MIB, MIB + MIB / 4, 16 * MIB, 20 * MIB];
        assert_eq!(classes.map(class_of), wanted);
    }

    #[test]
    fn a_dropped_buffer_is_used_again_and_shows_no_byte_of_before() {
        let pool = Buffers::new(4 * MIB as u64);
        let first = get(&pool, MIB, 7);
        let (at, copy) = (first.as_ptr(), first.clone());
        drop(first);
        assert_eq!(kept(&pool).0, 0, "a clone still shows its bytes");
        assert!(copy.iter().all(|b| *b == 7));
        drop(copy);
        assert_eq!(kept(&pool), (1, MIB));
        let shorter = get(&pool, MIB - 100, 9);
        assert_eq!((shorter.as_ptr(), shorter.len(), kept(&pool).0), (at, MIB - 100, 0));
        assert!(shorter.iter().all(|b| *b == 9));
        let part = shorter.slice(5..10);
        drop(shorter);
        assert_eq!((kept(&pool).0, &part[..]), (0, &[9; 5][..]));
    }

    #[test]
    fn a_read_that_fails_gives_its_buffer_back() {
        let pool = Buffers::new(4 * MIB as u64);
        drop(pool.take(MIB));
        assert_eq!(kept(&pool), (1, MIB));
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_bound_and_drops_the_oldest() {
        let pool = Buffers::new(4 * MIB as u64);
        let all: Vec<_> = (0..6).map(|i| get(&pool, MIB, i)).collect();
        let places: Vec<_> = all.iter().map(|b| b.as_ptr()).collect();
        drop(all);
        assert_eq!(kept(&pool), (4, 4 * MIB));
        let again = get(&pool, MIB, 9);
        assert_eq!(again.as_ptr(), places[5]);
        drop(get(&pool, 3 * MIB, 1));
        assert_eq!(kept(&pool), (2, 4 * MIB));
        drop(get(&pool, 5 * MIB, 1));
        assert_eq!(kept(&pool), (2, 4 * MIB), "larger than the bound");
    }

    #[test]
    fn without_a_pool_nothing_is_kept_and_bytes_outlive_their_handle() {
        let none = Buffers::new(0);
        drop(get(&none, MIB, 1));
        assert_eq!(kept(&none), (0, 0));
        let pool = Buffers::new(MIB as u64);
        let bytes = get(&pool, MIB, 3);
        drop(pool);
        assert!(bytes.iter().all(|b| *b == 3));
    }

    proptest! {
        #[test]
        fn whoever_holds_bytes_holds_them_alone_and_unchanged(
            steps in proptest::collection::vec((0usize..6, 1usize..400_000), 1..60),
        ) {
            let pool = Buffers::new(MIB as u64);
            let mut held: [Option<(Bytes, u8)>; 6] = Default::default();
            for (turn, (place, len)) in steps.into_iter().enumerate() {
                let fill = turn as u8 + 1;
                held[place] = Some((get(&pool, len, fill), fill));
                for (bytes, fill) in held.iter().flatten() {
                    prop_assert!(bytes.iter().all(|b| b == fill));
                }
                prop_assert!(kept(&pool).1 <= MIB);
            }
        }
    }
}
