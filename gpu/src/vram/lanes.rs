//! The lanes of a device: one for each thread that copies, kept for later copies.

use super::lane::Lane;
use crate::driver::{Device, DriverError};
use nkv_store::StoreError;
use std::sync::{Arc, Mutex, PoisonError};

/// Lanes kept; more are made while more threads copy.
const KEPT: usize = 32;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Lanes {
    device: Arc<Device>,
    free: Mutex<Vec<Lane>>,
}

impl Lanes {
    /// With the first lane, so that what cannot copy fails at once.
    ///
    /// # Errors
    /// Those of the driver, for a stream and pinned host memory.
    pub fn new(device: &Arc<Device>) -> Result<Self, DriverError> {
        Ok(Self { device: device.clone(), free: Mutex::new(vec![Lane::new(device)?]) })
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Runs copies on a lane that nobody else uses meanwhile.
    pub(super) fn run(
        &self,
        copies: impl FnOnce(&Lane) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lane = match free {
            Some(lane) => lane,
            None => Lane::new(&self.device)?,
        };
        // After an error the lane is dropped, which waits for its stream.
        copies(&lane)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(lane);
        }
        Ok(())
    }
}
