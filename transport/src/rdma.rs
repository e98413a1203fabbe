//! RDMA: one-sided verbs over reliable connected queue pairs, straight into memory that the other end
//! registered. libibverbs is loaded when it is first asked for, so a program that has this starts
//! anywhere, and a missing library or device is an error value.
//!
//! - [`open`] opens the devices of this host. An owner exports its segment, a client makes an offer; what
//!   they tell each other goes over the control plane ([`crate::fabric`]).
//! - Fencing [I10]: an owner severs a client's pairs. Once that returns its device executes nothing of that
//!   client any more, whatever the client does.
//! - [I1] No word that several parties modify is changed through here: of the words that a device's atomics
//!   change, the plan's producer is the only writer of that epoch.

mod batch;
mod context;
#[cfg(test)]
mod device_tests;
mod error;
mod flight;
mod lane;
mod loop_back;
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
use crate::fabric::{self, Answer, FabricConfig, MAX_PAIRS, Offer, RegisteredBuffer, RemoteRange};
use crate::verbs::{Alive, Verbs};
use batch::Path;
use context::Context;
use lane::Lane;
use nkv_store::{Buffer, Memory};
use pair::{Pair, Place, REQUESTS};
use queue::Queue;
use region::Domain;
use staging::Staging;
use std::sync::Arc;

/// Ranges of one way: headers and payload.
const MAX_RANGES: usize = 2;

/// One device of this host, as `nkv doctor` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub limits: Limits,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A device in use: one of its ports, by one of its addresses.
#[derive(Debug)]
pub(crate) struct Device {
    domain: Arc<Domain>,
    staging: Arc<Staging>,
    place: Place,
}

/// The devices that this process uses.
#[derive(Debug)]
struct Devices {
    each: Vec<Arc<Device>>,
    // Of one way; 0: one for each device.
    pairs: usize,
}

/// The devices of this host with their ports.
///
/// # Errors
/// If there is no libibverbs, or the kernel has no RDMA; with advice.
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
/// If one that was asked for is not there or cannot be used, or if there is none at all.
pub fn open(config: &FabricConfig) -> Result<Arc<dyn fabric::Fabric>, TransportError> {
    Ok(Arc::new(Devices::open(config)?))
}

impl Devices {
    fn open(config: &FabricConfig) -> Result<Self, TransportError> {
        let names = match config.devices.is_empty() {
            true => context::names()?,
            false => config.devices.clone(),
        };
        let mut devices = Vec::new();
        let mut unfit = Vec::new();
        for name in names.iter().take(MAX_PAIRS) {
            match Device::open(name, config.gid_index) {
                Ok(device) => devices.push(Arc::new(device)),
                Err(e) if config.devices.is_empty() => unfit.push(format!("{name}: {e}")),
                Err(e) => return Err(e),
            }
        }
        if devices.is_empty() {
            let why = if unfit.is_empty() { "none is there".to_string() } else { unfit.join("; ") };
            return Err(TransportError::Protocol(format!("no RDMA device can be used: {why}")));
        }
        Ok(Self { each: devices, pairs: config.pairs })
    }

    /// Pairs of the devices whose links are up.
    fn unconnected(&self) -> Result<Offering, TransportError> {
        let up: Vec<_> = self.each.iter().filter(|d| d.is_up()).collect();
        if up.is_empty() {
            let devices = fabric::Fabric::describe(self);
            return Err(TransportError::Protocol(format!(
                "the port of no device is active any more ({devices}): are their links up (ip link, rdma link)?"
            )));
        }
        let n = if self.pairs == 0 { up.len() } else { self.pairs };
        let pairs = up.iter().cycle().take(n.min(MAX_PAIRS)).map(|device| {
            let device = Arc::clone(device);
            let queue = Queue::new(device.context(), REQUESTS + queue::BATCH as u32)?;
            let pair = Pair::new(&device.domain, &queue, &device.place, false)?;
            Ok((device, queue, pair))
        });
        Ok(Offering { pairs: pairs.collect::<Result<_, TransportError>>()? })
    }
}

impl fabric::Fabric for Devices {
    fn describe(&self) -> String {
        let each = self.each.iter().map(|d| format!("{} at {}", d.name(), d.place.gid));
        each.collect::<Vec<_>>().join(", ")
    }

    fn export(
        &self,
        memory: Arc<dyn Memory>,
        payload_at: u64,
        counts: bool,
    ) -> Result<Arc<dyn fabric::Exported>, TransportError> {
        Ok(Arc::new(served::Exported::new(&self.each, memory, payload_at, counts)?))
    }

    fn offer(&self) -> Result<Box<dyn fabric::Offering>, TransportError> {
        Ok(Box::new(self.unconnected()?))
    }

    fn register(&self, buffer: Buffer) -> Result<RegisteredBuffer, TransportError> {
        let mut known = Vec::new();
        for device in &self.each {
            // SAFETY: both go into one value, which drops `known` first, also on an error here.
            known.extend(unsafe { device.staging.register(&buffer) }?);
        }
        Ok(RegisteredBuffer::new(buffer, Box::new(known)))
    }
}

impl Device {
    fn open(name: &str, gid_index: Option<u8>) -> Result<Self, TransportError> {
        let context = Context::open(name)?;
        let limits = context.limits()?;
        let place = Self::place(&context, limits, gid_index)?;
        if limits.requests < lane::CHAIN as u32 {
            let n = limits.requests;
            return Err(TransportError::Protocol(format!("device {name} takes {n} requests only")));
        }
        if !limits.atomics {
            return Err(TransportError::Protocol(format!("device {name} has no atomics")));
        }
        let domain = Domain::new(context)?;
        let staging = Staging::new(&domain);
        Ok(Self { domain, staging, place })
    }

    /// The first active port, by its preferred address.
    fn place(
        context: &Context,
        limits: Limits,
        gid_index: Option<u8>,
    ) -> Result<Place, TransportError> {
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
            return Ok(Place { port: number, lid, mtu_bytes, gid: *gid, limits });
        }
        Err(TransportError::Protocol(format!(
            "no port of {name} is active: is its link up (ip link, rdma link)?"
        )))
    }

    /// Whether its port is active at this moment.
    fn is_up(&self) -> bool {
        self.context().port(self.place.port).is_ok_and(|port| port.active)
    }

    fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    fn name(&self) -> &str {
        self.context().name()
    }
}

/// A client's pairs that are connected to nobody yet.
#[derive(Debug)]
struct Offering {
    pairs: Vec<(Arc<Device>, Arc<Queue>, Pair)>,
}

impl fabric::Offering for Offering {
    fn offer(&self) -> Offer {
        Offer { pairs: self.pairs.iter().map(|(_, _, pair)| pair.address()).collect() }
    }

    fn connect(
        self: Box<Self>,
        answer: &Answer,
        segment_len: u64,
        alive: Alive,
    ) -> Result<Arc<dyn Verbs>, TransportError> {
        Ok(Arc::new(self.join(answer, segment_len, alive)?))
    }
}

impl Offering {
    /// Connects each pair to the owner's, and tries it.
    fn join(
        self,
        answer: &Answer,
        segment_len: u64,
        alive: Alive,
    ) -> Result<RdmaVerbs, TransportError> {
        if answer.ways.len() != self.pairs.len() {
            return Err(TransportError::Protocol(format!(
                "{} pairs were offered and {} accepted",
                self.pairs.len(),
                answer.ways.len()
            )));
        }
        let counters = Arc::new(RdmaCounters::default());
        let mut tried = Vec::new();
        for ((device, queue, pair), way) in self.pairs.into_iter().zip(&answer.ways) {
            let fits = |end: u64, r: &RemoteRange| {
                let even = r.len > 0 && (r.len | r.address).is_multiple_of(8);
                let known = r.offset == end && even && r.address.checked_add(r.len).is_some();
                known.then(|| end.checked_add(r.len)).flatten()
            };
            let whole = way.ranges.iter().try_fold(0, fits);
            if whole != Some(segment_len) || way.ranges.len() > MAX_RANGES {
                return Err(TransportError::Protocol(format!(
                    "the ranges of a way do not make up a segment of {segment_len} bytes"
                )));
            }
            pair.connect(&way.pair)?;
            let lane = Lane::new(pair, queue, way.ranges.clone(), counters.clone());
            let staging = device.staging.clone();
            let path = Arc::new(Path { lane, staging });
            tried.push((way.counts, path.try_once().map(|()| path)));
        }
        let paths = in_use(tried)?;
        Ok(RdmaVerbs::new(paths, segment_len, alive, counters))
    }
}

/// The paths through which something came, the one that may be the first in front: where a device counts, its own.
fn in_use(
    tried: Vec<(bool, Result<Arc<Path>, TransportError>)>,
) -> Result<Vec<Arc<Path>>, TransportError> {
    let one_counts = tried.iter().any(|(counts, _)| *counts);
    let (mut paths, mut first, mut why) = (Vec::new(), None, None);
    for (n, (counts, path)) in tried.into_iter().enumerate() {
        match path {
            Ok(path) if first.is_none() && counts == one_counts => first = Some(path),
            Ok(path) => paths.push(path),
            Err(error) => {
                tracing::warn!(pair = n, %error, "nothing comes through this queue pair");
                why = why.or(Some(error));
            }
        }
    }
    let Some(first) = first else {
        let none = || TransportError::Protocol("no pair leads to a device that counts".to_string());
        return Err(why.unwrap_or_else(none));
    };
    paths.insert(0, first);
    Ok(paths)
}
