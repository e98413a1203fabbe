//! A device log as kernels of this process put into it, without unsafe code of the caller: what a
//! launch uses is kept until it has ended.

use super::check::{LogAddresses, refuse};
use super::launch::{Launch, LaunchOptions, LaunchStream};
use super::loaded::{Kernels, LogPutOutcome};
use super::{LOG_PUT, LogPutObject};
use crate::driver::{Device, DriverError};
use crate::registered::RegisteredHost;
use crate::vram::DeviceRange;
use crate::vram::Span;
use nkv_store::Memory;
use nkv_store::device_log::{HEAP_LIMIT_OFF, LogLayout};
use std::sync::Arc;

/// The log of a segment that this process maps: control words registered, payload in VRAM.
#[derive(Debug)]
pub struct LogMemory {
    // Unregistered before the memory is unmapped.
    _registered: Arc<RegisteredHost>,
    memory: Arc<dyn Memory>,
    ordinal: u32,
    addresses: LogAddresses,
}

impl LogMemory {
    /// Registers the control words of a segment with the GPU that its payloads lie in.
    ///
    /// # Errors
    /// If the claim word or the payload lies in no GPU, and those of the driver.
    pub fn new(
        device: &Arc<Device>,
        memory: Arc<dyn Memory>,
        log: &LogLayout,
    ) -> Result<Self, DriverError> {
        let region = log.region();
        let bump = memory.device_address(log.claim_word(), 8);
        let payload = memory.device_address(region.offset, region.len);
        let (Some(bump), Some(payload)) = (bump, payload) else {
            let why = "the log's payload or its claim word is not in the memory of a GPU";
            return refuse(LOG_PUT, why);
        };
        let registered = Arc::new(RegisteredHost::new(device, memory.clone())?);
        let headers = log.header_off(0);
        if headers + u64::from(log.slots()) * 64 > registered.bytes() {
            return refuse(LOG_PUT, "the log's headers are not in memory of the host");
        }
        let addresses = LogAddresses {
            bump,
            limit: registered.address() + HEAP_LIMIT_OFF,
            headers: registered.address() + headers,
            payload,
            offset: region.offset,
            log_bytes: log.log_bytes(),
        };
        Ok(Self { _registered: registered, memory, ordinal: device.ordinal(), addresses })
    }

    /// What `nkv_log_put` needs; valid in this process as long as this value lives.
    pub fn addresses(&self) -> &LogAddresses {
        &self.addresses
    }

    /// The segment.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }
}

/// Ranges of the device from which objects are put.
#[derive(Debug, Clone)]
pub struct Source {
    spans: Vec<Span>,
    kept: Option<Arc<dyn DeviceRange>>,
}

impl Source {
    /// A range that stays mapped until every launch has ended. Bytes that are written meanwhile may
    /// be put in part.
    pub fn of(range: Arc<dyn DeviceRange>) -> Self {
        Self { spans: vec![Span::of(&*range)], kept: Some(range) }
    }

    /// Ranges of others, such as tensors.
    ///
    /// # Safety
    /// They stay mapped until every launch that reads them has ended.
    pub unsafe fn unchecked(spans: Vec<Span>) -> Self {
        Self { spans, kept: None }
    }
}

impl Kernels {
    /// Queues puts into a log. The caller is entered in its table of open claims [I14].
    ///
    /// # Errors
    /// As [`Kernels::log_put`].
    pub fn put(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        log: &Arc<LogMemory>,
        spins: u64,
        objects: &[LogPutObject],
        source: &Source,
    ) -> Result<Launch<Vec<LogPutOutcome>>, DriverError> {
        let here = self.device().ordinal();
        let of = source.kept.as_ref().map_or(here, |range| range.device().ordinal());
        if (of, log.ordinal) != (here, here) {
            let why =
                format!("kernels of GPU {here}, a source on GPU {of}, a log on {}", log.ordinal);
            return refuse(LOG_PUT, &why);
        }
        // SAFETY: the launch keeps the log and its source until it has ended, and `Source` promises
        // the same of ranges that it does not keep.
        let launch = unsafe {
            self.log_put(stream, options, &log.addresses, spins, objects, &source.spans)?
        };
        let launch = launch.keep(log.clone());
        Ok(match &source.kept {
            Some(range) => launch.keep(Arc::new(range.clone())),
            None => launch,
        })
    }
}
