//! Memory of launches, kept for later ones. It is bounded: in bytes, and in launches in flight.

use super::parts::LaunchMemory;
use crate::driver::{Device, DriverError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of one launch: descriptors, or objects and their results.
pub const MAX_LAUNCH_BYTES: usize = 64 << 20;
/// Most bytes of all of them.
const MAX_BYTES: usize = 256 << 20;
/// Most launches in flight.
pub const MAX_IN_FLIGHT: usize = 256;
/// Fewest bytes that are allocated.
const LEAST: usize = 4096;
/// Bytes and number of what is allocated when kernels are loaded.
const AHEAD_BYTES: usize = 256 << 10;
const AHEAD: usize = 4;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct LaunchPool(Mutex<State>, AtomicBool);

#[derive(Debug, Default)]
struct State {
    free: Vec<LaunchMemory>,
    /// Launches in them may be in flight, and nobody waits for those.
    left: Vec<LaunchMemory>,
    /// How many launches hold.
    held: usize,
    /// Bytes of all of it.
    bytes: usize,
}

impl LaunchPool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With memory for some launches: the driver may begin no kernel beside those that run while
    /// it allocates, so that one which waits for another would wait in vain.
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        let pool = Self::default();
        let ahead: Vec<_> =
            (0..AHEAD).map(|_| pool.take(device, AHEAD_BYTES)).collect::<Result<_, _>>()?;
        ahead.into_iter().for_each(|memory| pool.give_back(memory));
        Ok(pool)
    }

    /// Memory of `bytes` or more for one launch.
    pub fn take(&self, device: &Arc<Device>, bytes: usize) -> Result<LaunchMemory, DriverError> {
        if bytes > MAX_LAUNCH_BYTES {
            return Err(DriverError::Invalid(format!(
                "a launch with {bytes} bytes of descriptors or objects: at most \
                 {MAX_LAUNCH_BYTES} fit; make several launches"
            )));
        }
        let rounded = bytes.next_power_of_two().max(LEAST);
        let mut dropped = Vec::new();
        {
            let mut state = self.lock();
            state.collect();
            let in_flight = state.held + state.left.len();
            let fitting = state.free.iter().enumerate().filter(|(_, m)| m.bytes() >= rounded);
            let fitting = fitting.min_by_key(|(_, memory)| memory.bytes());
            if let Some((at, _)) = fitting.filter(|_| in_flight < MAX_IN_FLIGHT) {
                state.held += 1;
                return Ok(state.free.swap_remove(at));
            }
            // Smaller ones go if there are too many bytes.
            while state.bytes + rounded > MAX_BYTES
                && let Some(memory) = state.free.pop()
            {
                state.bytes -= memory.bytes();
                dropped.push(memory);
            }
            if state.bytes + rounded > MAX_BYTES || in_flight >= MAX_IN_FLIGHT {
                return Err(DriverError::Invalid(format!(
                    "{in_flight} launches are in flight with {} bytes of descriptors and objects, \
                     at most {MAX_IN_FLIGHT} and {MAX_BYTES} may be: wait for one of them",
                    state.bytes
                )));
            }
            state.held += 1;
            state.bytes += rounded;
        }
        drop(dropped);
        LaunchMemory::new(device, rounded).inspect_err(|_| self.lost(rounded))
    }

    /// A launch has ended.
    pub fn give_back(&self, memory: LaunchMemory) {
        // What it kept is dropped without the lock: that may wait for the driver.
        let memory = released(memory);
        let mut state = self.lock();
        state.held -= 1;
        state.free.push(memory);
    }

    /// A launch failed, and may run on.
    pub fn mark_unknown(&self) {
        self.1.store(true, Ordering::Release);
    }

    /// Whether there was one.
    pub fn has_unknown(&self) -> bool {
        self.1.load(Ordering::Acquire)
    }

    /// A launch may be in flight, and nobody waits for it.
    pub fn leave(&self, memory: LaunchMemory) {
        let mut state = self.lock();
        state.held -= 1;
        state.left.push(memory);
    }

    /// Memory that was taken does not come back.
    pub fn lost(&self, bytes: usize) {
        let mut state = self.lock();
        state.held -= 1;
        state.bytes -= bytes;
    }
}

impl State {
    /// Finds what launches that have ended leave free. After an error that is not known.
    fn collect(&mut self) {
        let ended = self.left.extract_if(.., |memory| memory.is_done().unwrap_or(false));
        self.free.extend(ended.map(released));
    }
}

/// After its launch has ended.
fn released(mut memory: LaunchMemory) -> LaunchMemory {
    memory.kept.clear();
    memory
}

impl Drop for LaunchPool {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for memory in &state.left {
            let waited = memory.wait(|| "for a launch that nobody waited for".to_string());
            // A context that cannot be waited for either is lost, and runs nothing any more.
            let waited = waited.or_else(|_| memory.wait_for_device());
            waited.unwrap_or_else(|e| tracing::debug!("{e}"));
        }
    }
}
