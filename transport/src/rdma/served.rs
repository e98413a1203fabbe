//! The owner's end: its segment, registered once with every device, and the pairs of its clients,
//! until they are severed.

use super::Device;
use super::pair::Pair;
use super::queue::Queue;
use super::region::{MemoryLocation, Registration};
use crate::error::TransportError;
use crate::fabric::{
    self, Access, Answer, DataPath, MAX_PAIRS, Offer, PairAddress, Part, RemoteRange,
};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::all_at_once;
use std::sync::{Arc, Mutex, PoisonError};

/// How long a pair may try devices of this host before no further one is tried. An attaching client
/// waits for 1.5 s.
const MEET_LIMIT_NS: u64 = 300_000_000;

/// Bytes at the beginning of a device's payload that are registered without relaxed ordering, to be
/// read back: a page of a GPU.
const READ_BACK_BYTES: u64 = 64 << 10;

/// A part of a segment, registered.
#[derive(Debug)]
struct Known {
    offset: u64,
    part: Part,
    address: u64,
    registered: Registration,
}

/// A part of a segment, and where it lies.
#[derive(Debug, Clone, Copy)]
struct LocatedPart {
    offset: u64,
    part: Part,
    location: MemoryLocation,
}

fn locate(memory: &dyn Memory, offset: u64, len: u64) -> Result<MemoryLocation, TransportError> {
    MemoryLocation::of(memory, offset, len).ok_or_else(|| {
        TransportError::Protocol(format!(
            "{len} bytes at offset {offset} have no one address to register, nor a dma-buf"
        ))
    })
}

/// Where each part lies. Payload in memory of a device begins with a part that is read back, unless
/// that device orders what RDMA devices write there with all else that they write.
fn located(memory: &dyn Memory, parts: &[Part]) -> Result<Vec<LocatedPart>, TransportError> {
    let len = memory.len();
    if parts.iter().try_fold(0u64, |end, p| end.checked_add(p.len)) != Some(len) {
        return Err(TransportError::Protocol(format!("{parts:?} are not the {len} bytes of it")));
    }
    let (mut end, mut found) = (0, Vec::new());
    for part in parts.iter().filter(|p| p.len > 0) {
        let behind = locate(memory, end, part.len)?.needs_reading_back();
        let first = match behind && part.access == Access::Payload {
            true => part.len.min(READ_BACK_BYTES),
            false => 0,
        };
        for (len, access) in [(first, Access::PayloadReadBack), (part.len - first, part.access)] {
            if len > 0 {
                let location = locate(memory, end, len)?;
                found.push(LocatedPart { offset: end, part: Part { len, access }, location });
                end += len;
            }
        }
    }
    Ok(found)
}

/// A segment as registered with one device.
#[derive(Debug)]
struct Window {
    rail: u8,
    device: Arc<Device>,
    queue: Arc<Queue>,
    // In order, without gaps.
    parts: Vec<Known>,
}

/// A segment that remote hosts can access through this host's devices.
#[derive(Debug)]
pub(super) struct Exported {
    // Declared first: registrations are dropped before the memory.
    windows: Vec<Window>,
    // Only the first device changes words with several writers.
    counts: bool,
    memory: Arc<dyn Memory>,
}

impl Exported {
    /// Registers a segment with every device that can. `all`: a failure of any device is an error.
    pub(super) fn new(
        devices: &[(u8, Arc<Device>)],
        memory: Arc<dyn Memory>,
        parts: &[Part],
        (counts, all): (bool, bool),
    ) -> Result<Self, TransportError> {
        let located = located(&*memory, parts)?;
        let (mut windows, mut failed) = (Vec::new(), None);
        for (rail, device) in devices {
            let register = |located: &LocatedPart| {
                let LocatedPart { offset, part, location } = *located;
                // SAFETY: inside the memory, by `located`, which `memory` keeps for longer than the
                // registration; remote hosts write there as the protocol permits.
                let registered = unsafe {
                    let (domain, remote) = (&device.domain, Some(part.access));
                    Registration::new(domain, location, part.len as usize, remote)
                }?;
                Ok(Known { offset, part, address: location.address(), registered })
            };
            let registered: Result<Vec<Known>, _> = located.iter().map(register).collect();
            // A served pair posts nothing: its queue stays empty.
            let both = registered.and_then(|known| Ok((known, Queue::new(device.context(), 1)?)));
            match both {
                Ok((parts, queue)) => {
                    let (rail, device) = (*rail, device.clone());
                    windows.push(Window { rail, device, queue, parts });
                }
                Err(e) if all => return Err(e),
                Err(error) => {
                    let device = device.name();
                    tracing::warn!(device, %error, "a device cannot register this memory");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(e) if windows.is_empty() => Err(e),
            _ => Ok(Self { windows, counts, memory }),
        }
    }

    /// The devices to which a pair may be connected, the best first. `first`: the first pair of a
    /// client, if a device counts, prefers that device.
    fn for_pair(&self, up: &[usize], peer: &PairAddress, first: bool) -> Vec<usize> {
        let network = |n: &usize| (self.windows[*n].rail, self.windows[*n].device.port.gid.raw);
        let mut choice = up.to_vec();
        choice.sort_by_cached_key(|n| (!(first && *n == 0), distance(network(n), peer)));
        choice
    }

    /// A pair connected to `peer`, by the first of these devices that reaches it.
    fn meet(&self, peer: &PairAddress, choice: &[usize]) -> Result<(usize, Pair), String> {
        let until_ns = BootClock.now_ns() + MEET_LIMIT_NS;
        let mut why = String::new();
        for n in choice {
            let Window { device, queue, .. } = &self.windows[*n];
            let met = Pair::new(&device.domain, queue, &device.port, true)
                .and_then(|pair| pair.accept(peer).map(|()| pair));
            match met {
                Ok(pair) => return Ok((*n, pair)),
                Err(e) if why.is_empty() => why = e.to_string(),
                Err(_) => {}
            }
            if BootClock.now_ns() > until_ns {
                break;
            }
        }
        Err(why)
    }

    fn path(&self, n: usize, pair: &Pair) -> DataPath {
        let range = |known: &Known| {
            let Known { offset, part: Part { len, access }, address, ref registered } = *known;
            RemoteRange { offset, len, address, key: registered.remote_key(), access }
        };
        let window = &self.windows[n];
        DataPath {
            pair: pair.address(window.rail),
            ranges: window.parts.iter().map(range).collect(),
            counts: self.counts && n == 0,
        }
    }

    /// The devices whose links are up.
    fn up(&self) -> Result<Vec<usize>, TransportError> {
        let up: Vec<usize> =
            (0..self.windows.len()).filter(|n| self.windows[*n].device.is_up()).collect();
        let down = |name: &str| {
            TransportError::Protocol(format!(
                "the port of {name} at the owner is not active: is its link up (ip link, rdma \
                 link)?"
            ))
        };
        match up.first() {
            None => Err(down("every device")),
            // Only device 0 counts, as long as this memory lives [I1].
            Some(n) if self.counts && *n > 0 => Err(down(self.windows[0].device.name())),
            Some(_) => Ok(up),
        }
    }
}

/// How badly a device of this host matches one of another host: prefers the longest common address
/// prefix (rails are separate networks, in whatever order), then the same rail number.
fn distance((rail, gid): (u8, [u8; 16]), peer: &PairAddress) -> (usize, bool) {
    let alike = gid.iter().zip(&peer.gid).take(15).take_while(|(a, b)| a == b).count();
    (15 - alike, rail != peer.rail)
}

impl fabric::Exported for Exported {
    fn accept(
        &self,
        offer: &Offer,
    ) -> Result<(Arc<dyn fabric::RemoteAccess>, Answer), TransportError> {
        if offer.pairs.is_empty() || offer.pairs.len() > MAX_PAIRS {
            return Err(TransportError::Protocol(format!(
                "an offer has 1 to {MAX_PAIRS} pairs, not {}",
                offer.pairs.len()
            )));
        }
        let up = self.up()?;
        let choices = offer
            .pairs
            .iter()
            .enumerate()
            .map(|(i, peer)| (peer, self.for_pair(&up, peer, self.counts && i == 0)));
        // The kernel may need a second to resolve an address.
        let met =
            all_at_once("nkv-accept", choices.collect(), |(peer, choice)| self.meet(peer, &choice));
        let (mut pairs, mut paths) = (Vec::new(), Vec::new());
        for met in met {
            paths.push(met.map(|(n, pair)| {
                let path = self.path(n, &pair);
                pairs.push(pair);
                path
            }));
        }
        if pairs.is_empty() {
            let why = paths.into_iter().find_map(Result::err).unwrap_or_default();
            return Err(TransportError::Protocol(format!("no pair can be connected: {why}")));
        }
        let numbers = pairs.iter().map(Pair::number).collect();
        let (pairs, _memory) = (Mutex::new(Some(pairs)), self.memory.clone());
        let served = AccessedPairs { numbers, pairs, _memory };
        Ok((Arc::new(served), Answer { paths, one_counts: self.counts }))
    }
}

/// The owner's queue pairs for one client.
#[derive(Debug)]
struct AccessedPairs {
    numbers: Vec<u32>,
    pairs: Mutex<Option<Vec<Pair>>>,
    _memory: Arc<dyn Memory>,
}

impl fabric::RemoteAccess for AccessedPairs {
    fn sever(&self) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(severed) = pairs.take() {
            drop(severed);
            // Logged before any process can act on it, so that the log shows the order.
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

#[cfg(test)]
mod tests {
    use super::super::region::tests::{CONTROL, PAYLOAD, segment};
    use super::*;

    /// Length and right of each part of such a segment.
    fn parts_of(memory: &dyn Memory, payload: Access) -> Vec<(u64, Access)> {
        let part = |len, access| Part { len, access };
        let parts = [part(CONTROL, Access::Words), part(PAYLOAD, payload)];
        let located = located(memory, &parts).unwrap();
        let mut end = 0;
        for part in &located {
            assert_eq!(part.offset, end);
            end += part.part.len;
        }
        assert_eq!(end, CONTROL + PAYLOAD);
        located.iter().map(|l| (l.part.len, l.part.access)).collect()
    }

    #[test]
    fn i4_the_first_page_of_payload_in_a_device_is_read_back_unless_that_orders_all_writes() {
        let (words, head) = ((CONTROL, Access::Words), READ_BACK_BYTES);
        let whole = [words, (PAYLOAD, Access::Payload)];
        let cut = [words, (head, Access::PayloadReadBack), (PAYLOAD - head, Access::Payload)];
        assert_eq!(parts_of(&segment(None, false).unwrap(), Access::Payload), cut);
        assert_eq!(parts_of(&segment(None, true).unwrap(), Access::Payload), whole);
        let host = nkv_store::AnonMemory::new(CONTROL + PAYLOAD).unwrap();
        assert_eq!(parts_of(&host, Access::Payload), whole);
        let read = [words, (PAYLOAD, Access::Read)];
        assert_eq!(parts_of(&segment(None, false).unwrap(), Access::Read), read);
    }

    #[test]
    fn parts_that_are_no_segment_or_lie_in_two_memories_are_refused() {
        let memory = segment(None, false).unwrap();
        let refused = |lengths: [u64; 2]| {
            let parts = lengths.map(|len| Part { len, access: Access::Words });
            located(&memory, &parts).map(drop).unwrap_err().to_string()
        };
        assert!(refused([CONTROL, PAYLOAD - 8]).contains("1056768 bytes"));
        assert!(refused([u64::MAX, PAYLOAD]).contains("1056768 bytes"));
        assert!(refused([CONTROL + 8, PAYLOAD - 8]).contains("8200 bytes at offset 0 have no one"));
    }

    #[test]
    fn a_pair_meets_the_device_of_its_network_else_that_of_its_number() {
        let gid = |v4: [u8; 4]| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets();
        let best = |here: [[u8; 4]; 2], rail: u8, peer: [u8; 4]| {
            let (lid, number, serial) = (0, 1, 1);
            let (mtu_bytes, reads_in, reads_out) = (4096, 16, 16);
            let gid_there = gid(peer);
            let peer = PairAddress {
                rail,
                gid: gid_there,
                lid,
                number,
                serial,
                mtu_bytes,
                reads_in,
                reads_out,
            };
            (0..2).min_by_key(|n| distance((*n, gid(here[usize::from(*n)])), &peer)).unwrap()
        };
        let rails = [[10, 0, 9, 3], [10, 1, 9, 3]];
        assert_eq!((best(rails, 0, [10, 0, 5, 7]), best(rails, 1, [10, 1, 5, 7])), (0, 1));
        assert_eq!(
            (best(rails, 0, [10, 1, 5, 7]), best(rails, 1, [10, 0, 5, 7])),
            (1, 0),
            "turned"
        );
        let flat = [[10, 0, 0, 3], [10, 0, 0, 4]];
        assert_eq!((best(flat, 0, [10, 0, 0, 8]), best(flat, 1, [10, 0, 0, 7])), (0, 1));
        assert_eq!((best(flat, 0, [10, 2, 0, 8]), best(flat, 1, [10, 2, 0, 7])), (0, 1));
    }
}
