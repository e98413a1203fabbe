//! The owner's end: its segment registered once with every device, and the pairs through which clients
//! reach it, until they are severed.

use super::Device;
use super::pair::Pair;
use super::queue::Queue;
use super::region::{Place, Registration, Rights};
use crate::error::TransportError;
use crate::fabric::{self, Answer, MAX_PAIRS, Offer, RemoteRange, Way};
use nkv_store::Memory;
use std::sync::{Arc, Mutex, PoisonError};

/// A part of a segment, registered.
#[derive(Debug)]
struct Part {
    offset: u64,
    len: u64,
    address: u64,
    registered: Registration,
}

/// A segment as one device knows it.
#[derive(Debug)]
struct Window {
    device: Arc<Device>,
    queue: Arc<Queue>,
    // Headers and words, then payload.
    parts: Vec<Part>,
}

/// A segment that other hosts may reach through this host's devices.
#[derive(Debug)]
pub(super) struct Exported {
    // Registrations go before the memory.
    windows: Vec<Window>,
    // The first device, and no other, changes words that several parties count.
    counts: bool,
    memory: Arc<dyn Memory>,
}

impl Exported {
    /// Registers a segment with every device.
    pub(super) fn new(
        devices: &[Arc<Device>],
        memory: Arc<dyn Memory>,
        payload_at: u64,
        counts: bool,
    ) -> Result<Self, TransportError> {
        let place = Place::of(&*memory).ok_or_else(|| {
            TransportError::Protocol(
                "this memory has neither an address nor a dma-buf to register".to_string(),
            )
        })?;
        let len = memory.len();
        let payload_at = payload_at.min(len);
        let parts =
            [(0, payload_at, Rights::Words), (payload_at, len - payload_at, Rights::Payload)];
        let mut windows = Vec::new();
        for device in devices {
            let mut known = Vec::new();
            for (offset, bytes, rights) in parts.into_iter().filter(|p| p.1 > 0) {
                let place = place.at(offset);
                // SAFETY: inside the memory, which `memory` keeps for longer than the registration; others
                // write there as the protocol allows.
                let registered =
                    unsafe { Registration::new(&device.domain, place, bytes as usize, rights) }?;
                known.push(Part { offset, len: bytes, address: place.address(), registered });
            }
            // Nothing is ever posted on a served pair: its queue stays empty.
            let queue = Queue::new(device.context(), 1)?;
            windows.push(Window { device: device.clone(), queue, parts: known });
        }
        Ok(Self { windows, counts, memory })
    }
}

impl fabric::Exported for Exported {
    fn accept(&self, offer: &Offer) -> Result<(Arc<dyn fabric::Served>, Answer), TransportError> {
        if offer.pairs.is_empty() || offer.pairs.len() > MAX_PAIRS {
            return Err(TransportError::Protocol(format!(
                "an offer has 1 to {MAX_PAIRS} pairs, not {}",
                offer.pairs.len()
            )));
        }
        let (mut pairs, mut ways) = (Vec::new(), Vec::new());
        let up: Vec<_> =
            self.windows.iter().enumerate().filter(|(_, w)| w.device.is_up()).collect();
        let down = |name: &str| {
            TransportError::Protocol(format!(
                "the port of {name} at the owner is not active: is its link up (ip link, rdma link)?"
            ))
        };
        if self.counts && up.first().is_none_or(|(n, _)| *n > 0) {
            return Err(down(self.windows[0].device.name()));
        }
        if up.is_empty() {
            return Err(down("every device"));
        }
        for (peer, (n, window)) in offer.pairs.iter().zip(up.into_iter().cycle()) {
            let device = &window.device;
            let pair = Pair::new(&device.domain, &window.queue, &device.place, true)?;
            pair.accept(peer)?;
            let range = |part: &Part| {
                let Part { offset, len, address, ref registered } = *part;
                RemoteRange { offset, len, address, key: registered.remote_key() }
            };
            ways.push(Way {
                pair: pair.address(),
                ranges: window.parts.iter().map(range).collect(),
                counts: self.counts && n == 0,
            });
            pairs.push(pair);
        }
        let numbers = pairs.iter().map(|pair| pair.address().number).collect();
        let (pairs, _memory) = (Mutex::new(Some(pairs)), self.memory.clone());
        let served = ServedPairs { numbers, pairs, _memory };
        Ok((Arc::new(served), Answer { ways }))
    }
}

/// The owner's ends of a client's pairs.
#[derive(Debug)]
struct ServedPairs {
    numbers: Vec<u32>,
    pairs: Mutex<Option<Vec<Pair>>>,
    _memory: Arc<dyn Memory>,
}

impl fabric::Served for ServedPairs {
    fn sever(&self) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(severed) = pairs.take() {
            drop(severed);
            // Said before anybody can act on it: the log shows the order.
            tracing::debug!(pairs = ?self.numbers, "severed");
        }
    }

    fn is_severed(&self) -> bool {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn pairs(&self) -> &[u32] {
        &self.numbers
    }
}
