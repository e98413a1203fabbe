//! RDMA: one-sided verbs over reliable connected queue pairs, directly into memory that the other
//! end registered. libibverbs is loaded on first use, so a program with this feature starts on any
//! host, and a missing library or device is an error value.
//!
//! - [`open`] opens the devices of this host. An owner exports its segment, a client makes an
//!   offer; both are exchanged over the control plane ([`crate::fabric`]).
//! - Fencing [I10]: an owner severs a client's pairs. After that call has returned its device
//!   executes nothing more of that client, whatever the client does.
//! - [I1] No word with several writers is changed here, except the claim counter by its one
//!   device: of all other words that a device's atomics change, the plan's producer is the only
//!   writer of that epoch.

mod batch;
mod context;
#[cfg(test)]
mod device_tests;
mod error;
mod in_flight;
mod lane;
mod loop_back;
mod offering;
mod pair;
mod queue;
mod region;
mod served;
mod staging;
mod verbs;

pub use context::{Gid, GidKind, Limits, Port};
pub use lane::RdmaCounters;
pub use loop_back::{LoopBack, loop_back};
pub use verbs::RdmaVerbs;

use crate::error::TransportError;
use crate::fabric::{self, FabricConfig, MAX_PAIRS, RegisteredRange};
use context::Context;
use nkv_store::Memory;
use offering::{Offering, UnconnectedPair};
use pair::{Pair, PortAddress, REQUESTS};
use queue::Queue;
use region::Domain;
use staging::Staging;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// One device of this host, as shown by `nkv doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Its capabilities.
    pub limits: Limits,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A device in use: one of its ports, with one of its addresses.
#[derive(Debug)]
pub(crate) struct Device {
    domain: Arc<Domain>,
    staging: Arc<Staging>,
    port: PortAddress,
}

/// The devices that this process uses, by name; some cannot be used, or not yet.
#[derive(Debug)]
struct Devices {
    // In the order of the host's device list; the index is the rail number.
    slots: Mutex<Vec<(String, Option<Arc<Device>>)>>,
    config: FabricConfig,
}

/// The devices of this host with their ports.
///
/// # Errors
/// If libibverbs is missing, or the kernel has no RDMA; the text says what to do.
pub fn devices() -> Result<Vec<DeviceReport>, TransportError> {
    let report = |name: String| {
        let context = Context::open(&name)?;
        let limits = context.limits()?;
        let ports = (1..=limits.ports).map(|n| context.port(n)).collect::<Result<_, _>>()?;
        Ok(DeviceReport { name, limits, ports })
    };
    context::names()?.into_iter().map(report).collect()
}

/// Opens the devices of this host.
///
/// # Errors
/// If a requested device is missing or cannot be used, or if there is no device at all.
pub fn open(config: &FabricConfig) -> Result<Arc<dyn fabric::Fabric>, TransportError> {
    Ok(Arc::new(Devices::open(config)?))
}

impl Devices {
    fn open(config: &FabricConfig) -> Result<Self, TransportError> {
        let named = config.devices.len();
        if named > MAX_PAIRS {
            return Err(TransportError::Protocol(format!(
                "{named} RDMA devices are named; at most {MAX_PAIRS} are used"
            )));
        }
        let names = if named == 0 { context::names()? } else { config.devices.clone() };
        let (mut slots, mut unfit) = (Vec::new(), Vec::new());
        for name in names {
            match Device::open(&name, config.gid_index) {
                Ok(device) => slots.push((name, Some(Arc::new(device)))),
                Err(e) if named > 0 => return Err(e),
                Err(error) => {
                    tracing::info!(device = name, %error, "an RDMA device is not used");
                    unfit.push(format!("{name}: {error}"));
                    slots.push((name, None));
                }
            }
        }
        if slots.iter().all(|(_, device)| device.is_none()) {
            let why = if unfit.is_empty() { "none is there".to_string() } else { unfit.join("; ") };
            return Err(TransportError::Protocol(format!("no RDMA device can be used: {why}")));
        }
        if slots.len() > MAX_PAIRS {
            slots.retain(|(_, device)| device.is_some());
            slots.truncate(MAX_PAIRS);
        }
        Ok(Self { slots: Mutex::new(slots), config: config.clone() })
    }

    /// The usable devices, with their rails. With `again` one that could not be used before is
    /// tried again: its link may be up now.
    fn each(&self, again: bool) -> Vec<(u8, Arc<Device>)> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if again {
            for (name, device) in slots.iter_mut().filter(|(_, device)| device.is_none()) {
                *device = Device::open(name, self.config.gid_index).ok().map(Arc::new);
            }
        }
        let rails = (0..).zip(slots.iter());
        rails.filter_map(|(rail, (_, device))| Some((rail, device.clone()?))).collect()
    }

    /// Unconnected pairs of the devices whose links are up.
    fn unconnected(&self) -> Result<Offering, TransportError> {
        let up: Vec<_> = self.each(true).into_iter().filter(|(_, d)| d.is_up()).collect();
        if up.is_empty() {
            let devices = fabric::Fabric::describe(self);
            return Err(TransportError::Protocol(format!(
                "the port of no device is active any more ({devices}): are their links up (ip \
                 link, rdma link)?"
            )));
        }
        let n = if self.config.pairs == 0 { up.len() } else { self.config.pairs };
        let pairs = up.iter().cycle().take(n.min(MAX_PAIRS)).map(|(rail, device)| {
            let (rail, device) = (*rail, device.clone());
            let queue = Queue::new(device.context(), REQUESTS + queue::BATCH as u32)?;
            let pair = Pair::new(&device.domain, &queue, &device.port, false)?;
            Ok(UnconnectedPair { rail, device, queue, pair })
        });
        Ok(Offering { pairs: pairs.collect::<Result<_, TransportError>>()? })
    }
}

impl fabric::Fabric for Devices {
    fn describe(&self) -> String {
        let each = self.each(false);
        let each = each.iter().map(|(_, d)| format!("{} at {}", d.name(), d.port.gid));
        each.collect::<Vec<_>>().join(", ")
    }

    fn export(
        &self,
        memory: Arc<dyn Memory>,
        parts: &[fabric::Part],
        counts: bool,
    ) -> Result<Arc<dyn fabric::Exported>, TransportError> {
        let how = (counts, !self.config.devices.is_empty());
        Ok(Arc::new(served::Exported::new(&self.each(false), memory, parts, how)?))
    }

    fn offer(&self) -> Result<Box<dyn fabric::Offering>, TransportError> {
        Ok(Box::new(self.unconnected()?))
    }

    unsafe fn register_range(
        &self,
        at: NonNull<u8>,
        len: usize,
    ) -> Result<RegisteredRange, TransportError> {
        let mut known = Vec::new();
        for (_, device) in self.each(false).into_iter().filter(|_| len > 0) {
            // SAFETY: mapped for longer, by the caller's promise.
            known.push(unsafe { device.staging.register(at, len) }?);
        }
        Ok(RegisteredRange::new(Box::new(known)))
    }
}

impl Device {
    fn open(name: &str, gid_index: Option<u8>) -> Result<Self, TransportError> {
        let context = Context::open(name)?;
        let limits = context.limits()?;
        let port = Self::port_address(&context, limits, gid_index)?;
        if limits.requests < lane::CHAIN as u32 {
            let n = limits.requests;
            return Err(TransportError::Protocol(format!("device {name} holds only {n} requests")));
        }
        if !limits.atomics {
            return Err(TransportError::Protocol(format!("device {name} has no atomics")));
        }
        let domain = Domain::new(context)?;
        let staging = Staging::new(&domain);
        Ok(Self { domain, staging, port })
    }

    /// The first active port, with its preferred address.
    fn port_address(
        context: &Context,
        limits: Limits,
        gid_index: Option<u8>,
    ) -> Result<PortAddress, TransportError> {
        let name = context.name();
        for number in 1..=limits.ports {
            let port = context.port(number)?;
            if !port.active {
                continue;
            }
            let wanted = |g: &&Gid| gid_index.is_none_or(|index| g.index == index);
            let Some(gid) = port.gids.iter().find(wanted) else {
                let there: Vec<String> = port.gids.iter().map(Gid::to_string).collect();
                let which = gid_index.map_or("any".to_string(), |i| i.to_string());
                return Err(TransportError::Protocol(format!(
                    "port {number} of {name} has no GID {which}; it has {}",
                    if there.is_empty() { "none".to_string() } else { there.join(", ") }
                )));
            };
            let Port { lid, mtu_bytes, .. } = port;
            return Ok(PortAddress { port: number, lid, mtu_bytes, gid: *gid, limits });
        }
        Err(TransportError::Protocol(format!(
            "no port of {name} is active: is its link up (ip link, rdma link)?"
        )))
    }

    /// Whether its port is active now.
    fn is_up(&self) -> bool {
        self.context().is_active(self.port.port)
    }

    fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    fn name(&self) -> &str {
        self.context().name()
    }
}
