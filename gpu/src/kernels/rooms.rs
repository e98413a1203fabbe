//! Memory of launches, kept for later ones. It is bounded: in bytes, and in launches in flight.

use super::parts::Room;
use crate::driver::{Device, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of one launch: descriptors, or objects and their results.
pub const MAX_LAUNCH_BYTES: usize = 64 << 20;
/// Most bytes of all of them.
const MAX_BYTES: usize = 256 << 20;
/// Most launches in flight.
pub const MAX_IN_FLIGHT: usize = 256;
/// Bytes of the smallest room.
const LEAST: usize = 4096;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    free: Vec<Room>,
    /// Launches in them may be in flight, and nobody waits for those.
    left: Vec<Room>,
    /// Rooms that launches hold.
    held: usize,
    /// Bytes of all rooms.
    bytes: usize,
}

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A room of `bytes` or more for one launch.
    pub fn take(&self, device: &Arc<Device>, bytes: usize) -> Result<Room, DriverError> {
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
            if let Some(at) = state.free.iter().position(|room| room.bytes() == rounded) {
                state.held += 1;
                return Ok(state.free.swap_remove(at));
            }
            // Rooms of other sizes go if there are too many bytes.
            while state.bytes + rounded > MAX_BYTES
                && let Some(room) = state.free.pop()
            {
                state.bytes -= room.bytes();
                dropped.push(room);
            }
            let in_flight = state.held + state.left.len();
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
        Room::new(device, rounded).inspect_err(|_| self.lost(rounded))
    }

    /// A launch has ended.
    pub fn give_back(&self, room: Room) {
        let mut state = self.lock();
        state.held -= 1;
        state.free.push(room);
    }

    /// A launch may be in flight, and nobody waits for it.
    pub fn leave(&self, room: Room) {
        let mut state = self.lock();
        state.held -= 1;
        state.left.push(room);
    }

    /// A room that was taken does not come back.
    pub fn lost(&self, bytes: usize) {
        let mut state = self.lock();
        state.held -= 1;
        state.bytes -= bytes;
    }
}

impl State {
    /// Finds the rooms whose launches have ended. After an error that is not known.
    fn collect(&mut self) {
        let ended = self.left.extract_if(.., |room| room.is_done().unwrap_or(false));
        self.free.extend(ended);
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for room in &state.left {
            let waited = room.wait(|| "for a launch that nobody waited for".to_string());
            // What a lost context used is lost with it.
            waited.unwrap_or_else(|e| tracing::debug!("{e}"));
        }
    }
}
