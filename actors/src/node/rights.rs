//! The access rights of other hosts, through RDMA devices, to each part of a segment: no more than
//! producers and readers need [I1]. Devices enforce them, but know nothing of plans and claims
//! (docs/reference/limits.md).

use nkv_store::device_log::BUMP_PTR_OFF;
use nkv_store::heap::Heap;
use nkv_store::layout::HEADER_BYTES;
use nkv_transport::fabric::{Access, Part};

/// The parts of a segment, in order from its beginning, with the rights of other hosts. They may
/// change only headers and payload, and the claim counter if a device counts claims (`by_nic`).
pub(super) fn of_others(heap: &Heap, by_nic: bool) -> Vec<Part> {
    let g = heap.layout();
    let headers_end = g.header_base + u64::from(g.slots) * HEADER_BYTES;
    let word = u64::from(by_nic) * size_of::<u64>() as u64;
    let ends = [
        (BUMP_PTR_OFF, Access::Read),
        (BUMP_PTR_OFF + word, Access::Count),
        (g.header_base, Access::Read),
        (headers_end, Access::Words),
        (g.payloads().offset, Access::Read),
        (heap.memory().len(), Access::Payload),
    ];
    let mut begin = 0;
    let part = |(end, access)| Part { len: end - std::mem::replace(&mut begin, end), access };
    let mut parts: Vec<Part> = ends.into_iter().map(part).collect();
    parts.retain(|p| p.len > 0);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::AnonMemory;
    use nkv_store::heap::HeapConfig;
    use std::ops::Range;
    use std::sync::Arc;

    /// The byte ranges with such an access.
    fn ranges(parts: &[Part], which: impl Fn(Access) -> bool) -> Vec<Range<u64>> {
        let mut end = 0;
        let each = parts.iter().map(|p| {
            end += p.len;
            (end - p.len..end, p.access)
        });
        each.filter(|(_, access)| which(*access)).map(|(range, _)| range).collect()
    }

    #[test]
    fn i1_other_hosts_may_change_headers_and_payload_and_the_word_that_a_device_counts_in() {
        for (log_bytes, by_nic) in [(0, false), (1 << 20, false), (1 << 20, true)] {
            let config = HeapConfig { log_bytes, arena_bytes: 1 << 20, ..HeapConfig::default() };
            let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
            let heap = Heap::format(memory, &config).unwrap();
            let (g, parts) = (heap.layout(), of_others(&heap, by_nic));
            let headers = g.header_base..g.header_off(g.slots - 1) + HEADER_BYTES;
            let payloads = g.payloads();
            let payload = payloads.offset..payloads.offset + payloads.len;
            assert_eq!(ranges(&parts, Access::writes), [headers.clone(), payload.clone()]);
            assert_eq!(ranges(&parts, |a| a == Access::Words), [headers]);
            assert_eq!(ranges(&parts, |a| a == Access::Payload), [payload]);
            let word = BUMP_PTR_OFF..BUMP_PTR_OFF + 8;
            let counted = if by_nic { vec![word] } else { vec![] };
            assert_eq!(ranges(&parts, |a| a == Access::Count), counted);
            assert_eq!(parts.iter().map(|p| p.len).sum::<u64>(), heap.memory().len());
            assert!(parts.iter().all(|p| p.len % 8 == 0));
        }
    }
}
