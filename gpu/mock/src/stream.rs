//! Streams: each is a thread that runs its operations in order, each after a delay, so that those
//! of two streams end in any order. Bytes move when an operation runs, not when it is queued.

use crate::calls::{driver_calls, give};
use crate::state::{next_number, state};
use crate::{Outcome, code, settings};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

type Operation = Box<dyn FnOnce() -> Outcome + Send>;

/// Counts up, and can be waited for: operations of a stream that ran, or recordings of an event.
#[derive(Default)]
pub struct Counter {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Counter {
    fn add_one(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, wanted: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.changed.wait_while(count, |count| *count < wanted);
        drop(reached.unwrap_or_else(PoisonError::into_inner));
    }

    fn now(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream: where its operations go, and how many were queued and have run.
pub struct Stream {
    queue: Mutex<(Sender<Operation>, u64)>,
    ran: Arc<Counter>,
    /// Error of the first operation that failed; 0: none did.
    failed: Arc<AtomicU32>,
}

/// An event: how often it was recorded, and how often that has run.
#[derive(Default)]
pub struct Event {
    queued: Mutex<u64>,
    ran: Counter,
    /// Error of its stream when it was recorded last; 0: none.
    failed: AtomicU32,
}

impl Event {
    fn outcome(&self) -> Outcome {
        match self.failed.load(Ordering::SeqCst) {
            0 => Ok(()),
            e => Err(e),
        }
    }
}

impl Stream {
    fn start(number: u64) -> Result<Self, u32> {
        let (sender, queue) = channel::<Operation>();
        let ran = Arc::new(Counter::default());
        let (done, mut delays) = (ran.clone(), Delays::of_stream(number));
        let failed = Arc::new(AtomicU32::new(0));
        let first = failed.clone();
        let body = move || {
            for operation in queue {
                std::thread::sleep(delays.next_delay());
                if let Err(e) = operation() {
                    let _ = first.compare_exchange(0, e, Ordering::SeqCst, Ordering::SeqCst);
                }
                done.add_one();
            }
        };
        let thread = std::thread::Builder::new().name("mock-stream".to_string());
        thread.spawn(body).map_err(|_| code::OPERATING_SYSTEM)?;
        Ok(Self { queue: Mutex::new((sender, 0)), ran, failed })
    }

    /// Queues an operation.
    pub fn push(&self, operation: impl FnOnce() + Send + 'static) -> Outcome {
        self.push_fallible(|| {
            operation();
            Ok(())
        })
    }

    /// Queues an operation whose error the next synchronisation returns, and each after it.
    pub fn push_fallible(&self, operation: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.0.send(Box::new(operation)).map_err(|_| code::INVALID_HANDLE)?;
        queue.1 += 1;
        Ok(())
    }

    /// What is queued now.
    fn queued(&self) -> Queued {
        let last = self.queue.lock().unwrap_or_else(PoisonError::into_inner).1;
        Queued { last, ran: self.ran.clone(), failed: self.failed.clone() }
    }
}

/// What was queued in a stream until some time. It outlives the stream.
#[derive(Clone)]
pub struct Queued {
    last: u64,
    ran: Arc<Counter>,
    failed: Arc<AtomicU32>,
}

impl Queued {
    /// Returns when it has run.
    fn wait(&self) -> Outcome {
        self.ran.wait_for(self.last);
        match self.failed.load(Ordering::SeqCst) {
            0 => Ok(()),
            e => Err(e),
        }
    }
}

/// Delays of one stream, a sequence of its seed.
struct Delays {
    word: u64,
    longest_us: u64,
}

impl Delays {
    fn of_stream(number: u64) -> Self {
        let seed: u64 = settings::number("MOCK_CUDA_SEED", 1);
        let word = (seed ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { word, longest_us: settings::number("MOCK_CUDA_DELAY_US", 300) }
    }

    fn next_delay(&mut self) -> Duration {
        self.word ^= self.word << 13;
        self.word ^= self.word >> 7;
        self.word ^= self.word << 17;
        Duration::from_micros(self.word % (self.longest_us + 1))
    }
}

/// The stream of a handle. The legacy default stream, 0 or 1, is a stream like others here: it
/// waits for none of them, nor they for it. That of a thread, 2, is the same.
pub fn stream(handle: u64) -> Result<Arc<Stream>, u32> {
    static DEFAULT: OnceLock<Result<Arc<Stream>, u32>> = OnceLock::new();
    if handle <= 2 {
        return DEFAULT.get_or_init(|| Stream::start(0).map(Arc::new)).clone();
    }
    state().streams.get(&handle).cloned().ok_or(code::INVALID_HANDLE)
}

fn event(handle: u64) -> Result<Arc<Event>, u32> {
    state().events.get(&handle).cloned().ok_or(code::INVALID_HANDLE)
}

/// Queues a copy. The device's sides were checked.
fn copy(handle: u64, into: u64, from: u64, bytes: usize) -> Outcome {
    stream(handle)?.push(move || {
        // SAFETY: the device's side was in a mapped range when the copy was queued, and the other
        // is the caller's; both stay valid until the stream was waited for.
        unsafe { (into as *mut u8).copy_from(from as *const u8, bytes) };
    })
}

driver_calls! {
    Context cuStreamCreate(into: *mut u64, flags: c_uint) {
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        let number = next_number();
        let stream = Stream::start(number)?;
        give(into, number)?;
        state().streams.insert(number, Arc::new(stream));
        Ok(())
    }
    Context cuStreamDestroy_v2(handle: u64) {
        // What is queued still runs, as with the real call.
        let mut state = state();
        let stream = state.streams.remove(&handle).ok_or(code::INVALID_HANDLE)?;
        state.ending.retain(|queued| queued.ran.now() < queued.last);
        state.ending.push(stream.queued());
        Ok(())
    }
    Context cuStreamSynchronize(handle: u64) {
        stream(handle)?.queued().wait()
    }
    Context cuCtxSynchronize() {
        let mut all = vec![stream(0)?.queued()];
        {
            let state = state();
            all.extend(state.streams.values().map(|stream| stream.queued()));
            all.extend(state.ending.iter().cloned());
        }
        all.iter().try_for_each(Queued::wait)
    }
    Context cuMemcpyHtoDAsync_v2(into: u64, from: *const c_void, bytes: usize, handle: u64) {
        state().check_device(into, bytes)?;
        copy(handle, into, from as u64, bytes)
    }
    Context cuMemcpyDtoHAsync_v2(into: *mut c_void, from: u64, bytes: usize, handle: u64) {
        state().check_device(from, bytes)?;
        copy(handle, into as u64, from, bytes)
    }
    Context cuMemcpyDtoDAsync_v2(into: u64, from: u64, bytes: usize, handle: u64) {
        state().check_device(into, bytes)?;
        state().check_device(from, bytes)?;
        copy(handle, into, from, bytes)
    }
    Context cuMemcpyAsync(into: u64, from: u64, bytes: usize, handle: u64) {
        let (into_device, from_device) = {
            let state = state();
            (state.check_device(into, bytes), state.check_device(from, bytes))
        };
        // The real driver takes pageable memory on one side; nkv never passes it.
        into_device.and(from_device)?;
        copy(handle, into, from, bytes)
    }
    Context cuMemcpyBatchAsync(
        into: *const u64, from: *const u64, sizes: *const usize, count: usize,
        _attributes: *const c_void, _indices: *const usize, _attribute_count: usize,
        failed: *mut usize, handle: u64
    ) {
        if handle == 0 {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes three lists of `count` elements.
        let lists = unsafe {
            let into = std::slice::from_raw_parts(into, count);
            let from = std::slice::from_raw_parts(from, count);
            (into, from, std::slice::from_raw_parts(sizes, count))
        };
        for at in 0..count {
            let (into, from, bytes) = (lists.0[at], lists.1[at], lists.2[at]);
            // One side at least is the device's; the other may be pageable.
            let checked = {
                let state = state();
                state.check_device(into, bytes).or_else(|_| state.check_device(from, bytes))
            };
            if let Err(e) = checked.and_then(|()| copy(handle, into, from, bytes)) {
                give(failed, at)?;
                return Err(e);
            }
        }
        Ok(())
    }
    Context cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        let known = target == 0 && (scope == 100 || scope == 200);
        if known { Ok(()) } else { Err(code::INVALID_VALUE) }
    }
    Context cuEventCreate(into: *mut u64, _flags: c_uint) {
        let number = next_number();
        give(into, number)?;
        state().events.insert(number, Arc::default());
        Ok(())
    }
    Context cuEventDestroy_v2(handle: u64) {
        state().events.remove(&handle).map(drop).ok_or(code::INVALID_HANDLE)
    }
    Context cuEventRecord(handle: u64, of: u64) {
        let (event, stream) = (event(handle)?, stream(of)?);
        *event.queued.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let failed = stream.failed.clone();
        stream.push(move || {
            event.failed.store(failed.load(Ordering::SeqCst), Ordering::SeqCst);
            event.ran.add_one();
        })
    }
    Context cuStreamIsCapturing(of: u64, status: *mut c_uint) {
        stream(of)?;
        // Graphs do not exist here; a test says that this one is being recorded.
        give(status, u32::from(settings::number("MOCK_CUDA_CAPTURING", u64::MAX) == of))
    }
    Context cuEventQuery(handle: u64) {
        let event = event(handle)?;
        let queued = *event.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if event.ran.now() >= queued { event.outcome() } else { Err(code::NOT_READY) }
    }
    Context cuEventSynchronize(handle: u64) {
        let event = event(handle)?;
        let queued = *event.queued.lock().unwrap_or_else(PoisonError::into_inner);
        event.ran.wait_for(queued);
        event.outcome()
    }
    Context cuStreamWaitEvent(waiting: u64, handle: u64, _flags: c_uint) {
        let (event, stream) = (event(handle)?, stream(waiting)?);
        let queued = *event.queued.lock().unwrap_or_else(PoisonError::into_inner);
        stream.push(move || event.ran.wait_for(queued))
    }
}
