//! A test from a device to itself, for `nkv doctor`.

use super::open;
use crate::error::TransportError;
use crate::fabric::{FabricConfig, Part, SegmentBounds};
use crate::verbs::Alive;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::{AnonMemory, Memory};
use std::sync::Arc;

const SEGMENT: u64 = 1 << 20;
const WRITES: u64 = 100;

/// The result.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopBack {
    /// The device and its address.
    pub through: String,
    /// Average microseconds of a write of 4 KiB.
    pub write_us: f64,
}

/// Tests writes, reads and counts in memory of this process through one of its devices.
///
/// # Errors
/// If the device cannot be used, or wrong data came back.
pub fn loop_back(device: &str, gid_index: Option<u8>) -> Result<LoopBack, TransportError> {
    let devices = vec![device.to_string()];
    let fabric = open(&FabricConfig { devices, gid_index, pairs: 1 })?;
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT)?);
    let exported = fabric.export(memory, &Part::halves(SEGMENT), false)?;
    let offering = fabric.offer()?;
    let (_served, answer) = exported.accept(&offering.offer())?;
    let verbs = offering.connect(&answer, SegmentBounds::halves(SEGMENT), Alive::new())?;
    let wrong = |what: &str| TransportError::Protocol(format!("{what} came back wrong"));
    let (written, mut read) = ([0xa5; 4096], [0; 4096]);
    let start = BootClock.now_ns();
    for _ in 0..WRITES {
        verbs.write(1, SEGMENT / 2, &written)?;
    }
    let write_us = (BootClock.now_ns() - start) as f64 / 1e3 / WRITES as f64;
    verbs.read(SEGMENT / 2, &mut read)?;
    if read != written {
        return Err(wrong("4 KiB"));
    }
    if verbs.fetch_add(1, 64, 5)? != 0 || verbs.compare_swap(1, 64, 5, 9)? != 5 {
        return Err(wrong("an atomic"));
    }
    if verbs.load(64)? != 9 {
        return Err(wrong("a word"));
    }
    Ok(LoopBack { through: fabric.describe(), write_us })
}
