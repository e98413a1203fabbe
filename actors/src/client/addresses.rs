//! Addresses of segments in this process, for kernels and for programs that go past this library.

use super::Client;
use super::peer::{Peer, beside_driver};
use crate::error::{Error, Result};
use crate::message::ExportedMemory;
use nkv_gpu::driver::{Device, Driver};
use nkv_gpu::registered::RegisteredHost;
use nkv_store::StoreError;
use nkv_store::reader::Reader;
use std::sync::Arc;

/// A segment whose payloads this process maps. The address of a segment offset is its base plus
/// the offset: `control` for what precedes the payloads, `payload` for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedSegment {
    /// The rank that owns it.
    pub rank: u32,
    /// Base of the control words: an address of the host.
    pub control: u64,
    /// Base of the payloads: the same, or an address of the device that they are in.
    pub payload: u64,
    /// Offset of the first byte that `payload` is the base of.
    pub payloads: u64,
    /// Length of the segment.
    pub bytes: u64,
}

/// The control words of a segment, registered with the GPU that its payloads are in: kernels of
/// this process may access them as long as this lives.
#[derive(Debug, Clone)]
pub struct KernelAccess {
    registered: Arc<RegisteredHost>,
    // The mapping stays as long as the registration.
    peer: Arc<Peer>,
}

impl KernelAccess {
    /// The base of control words, for kernels.
    pub fn control(&self) -> u64 {
        self.registered.address()
    }

    /// Whether its rank is still there. If not, drop this: it keeps the rank's memory.
    pub fn is_alive(&self) -> bool {
        self.peer.is_alive()
    }
}

impl Client {
    /// Registers the control words of a rank's first segment with the GPU of its payloads. Blocks
    /// for a moment: it pins memory.
    ///
    /// # Errors
    /// `Unsupported` if they are in no GPU, or this process does not map them.
    pub async fn register_control(&self, rank: u32) -> Result<KernelAccess> {
        self.check_usable()?;
        let peer = self.shared.peers.first_of(rank).ok_or_else(|| lacks(rank))?;
        self.control_of(peer).await
    }

    /// The same, of any segment.
    pub(super) async fn control_of(&self, peer: Arc<Peer>) -> Result<KernelAccess> {
        let lacks = || lacks(peer.rank);
        let ExportedMemory::Device { uuid, .. } = self.rank_info(peer.incarnation).await?.memory
        else {
            return Err(lacks());
        };
        let memory = peer.reader.as_ref().ok_or_else(lacks)?.memory().memory().clone();
        let payloads = peer.layout.payloads();
        memory.device_address(payloads.offset, payloads.len).ok_or_else(lacks)?;
        let register = move || {
            let device = Device::of_uuid(&Driver::open()?, uuid)?;
            RegisteredHost::new(&device, memory).map(Arc::new)
        };
        let registered = beside_driver(move || register().map_err(StoreError::from)).await?;
        Ok(KernelAccess { registered, peer })
    }

    /// Segments whose payloads this process maps; of each rank the first. They stay mapped while
    /// this handle is attached to their owners.
    pub fn mapped_segments(&self) -> Vec<MappedSegment> {
        let mapped = self.shared.peers.mapped();
        let of = |peer: &Arc<Peer>| MappedSegment::of(peer);
        mapped.iter().filter(|peer| peer.first && peer.is_alive()).filter_map(of).collect()
    }
}

impl MappedSegment {
    /// None if this process does not map the payloads.
    pub(super) fn of(peer: &Peer) -> Option<Self> {
        let memory = peer.reader.as_ref()?.memory();
        let control = memory.words().base().expose_provenance().get() as u64;
        let payloads = peer.layout.device_part();
        let device = memory.memory().device_address(payloads.offset, payloads.len);
        let maps = peer.reader.as_ref().is_some_and(Reader::maps_payloads);
        let payload = device.map(|at| at.wrapping_sub(payloads.offset));
        Some(Self {
            rank: peer.rank,
            control,
            payload: payload.or_else(|| maps.then_some(control))?,
            bytes: peer.layout.segment_bytes,
            payloads: payloads.offset,
        })
    }
}

fn lacks(rank: u32) -> Error {
    Error::unsupported(format!(
        "this process maps no payloads of rank {rank} in a GPU: start its node with --memory cuda, \
         and use it on its host with that GPU visible"
    ))
}
