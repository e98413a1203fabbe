//! Addresses of segments in this process, for kernels and for programs that go past this library.

use super::Client;
use super::peer::Peer;
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
    /// Offset of the first payload byte.
    pub payloads: u64,
    /// Length of the segment.
    pub bytes: u64,
}

impl Client {
    /// Segments whose payloads this process maps; of each rank the first. They stay mapped while
    /// this handle is attached to their owners.
    pub fn mapped_segments(&self) -> Vec<MappedSegment> {
        let mapped = self.shared.peers.mapped();
        let of = |peer: &Arc<Peer>| {
            let memory = peer.reader.as_ref()?.memory();
            let control = memory.words().base().expose_provenance().get() as u64;
            let payloads = peer.layout.payloads();
            let device = memory.memory().device_address(payloads.offset, payloads.len);
            let maps = peer.reader.as_ref().is_some_and(Reader::maps_payloads);
            let payload = device.map(|at| at.wrapping_sub(payloads.offset));
            Some(MappedSegment {
                rank: peer.rank,
                control,
                payload: payload.or_else(|| maps.then_some(control))?,
                bytes: peer.layout.segment_bytes,
                payloads: payloads.offset,
            })
        };
        mapped.iter().filter(|peer| peer.first && peer.is_alive()).filter_map(of).collect()
    }
}
