//! Lookups that the agent makes: what is found is the object and nothing else, in one request.

use super::*;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::key::HASHER_KEY_BYTES;
use nkv_store::layout::{OWNER_OFF, flag, word};
use nkv_store::object::{ObjectDesc, Publication, Slots};
use nkv_store::{KeyHasher, KeyId};
use nkv_transport::verbs::{Find, Found, Verbs};
use std::sync::atomic::Ordering;

const ARENA: u64 = 1 << 20;

/// An agent beside a segment with objects.
struct SegmentAgent {
    agent: TcpAgent,
    heap: Heap,
    slots: Slots,
}

fn beside_a_segment() -> SegmentAgent {
    let config =
        HeapConfig { arena_bytes: ARENA, incarnation: INCARNATION, ..HeapConfig::default() };
    let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
    let heap = Heap::format(memory, &config).unwrap();
    let (at, access) = ("127.0.0.1:0".parse().unwrap(), Arc::new(Grants::new()));
    let limits = AgentLimits::default();
    let memory = heap.memory().clone();
    let agent = TcpAgent::start(at, memory, INCARNATION, JOB, access, None, limits).unwrap();
    SegmentAgent { agent, slots: Slots::fresh(heap.clone()), heap }
}

impl SegmentAgent {
    fn client(&self) -> TcpVerbs {
        let (at, opts) = (self.agent.local_addr().to_string(), TcpOptions::default());
        TcpVerbs::connect(&at, INCARNATION, JOB, opts).unwrap()
    }

    /// An object at this offset of the arena, live in this slot.
    fn put(&mut self, key: KeyId, slot: u32, at: u64, value: &[u8]) {
        let len = value.len().max(1).next_multiple_of(4096) as u64;
        let extent = Extent { offset: self.heap.layout().arena.offset + at, len };
        self.slots.open(slot, 1, extent).unwrap();
        let object = ObjectDesc { extent, bytes_total: value.len() as u64, page_bytes: 4096 };
        let header_off = self.heap.layout().header_off(slot);
        let publication = Publication::new((header_off, 1), key, &object);
        for op in &mut publication.whole(value) {
            op.run(self.heap.memory().as_ref()).unwrap();
        }
        self.slots.commit(slot, 1).unwrap();
    }

    /// What a find says of its object, judged as a reader judges it.
    fn judged(&self, find: &Find<'_>) -> Option<Vec<u8>> {
        let hit = find.hit(self.heap.layout())?;
        find.payload.get(..hit.header.bytes_total as usize).map(<[u8]>::to_vec)
    }
}

fn key(name: u8) -> KeyId {
    KeyHasher::new([7; HASHER_KEY_BYTES]).id(&[name])
}

fn value(name: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| name.wrapping_add(i as u8)).collect()
}

#[test]
fn many_keys_are_found_and_read_by_one_request() {
    let mut s = beside_a_segment();
    for (i, len) in [0usize, 1, 4096, 70_000].into_iter().enumerate() {
        s.put(key(i as u8), i as u32, i as u64 * 128 * 1024, &value(i as u8, len));
    }
    let client = s.client();
    let requests = || s.agent.counters().requests.load(Ordering::Relaxed);
    let mut rooms = vec![vec![0xAA; 80_000]; 6];
    // Two keys that are not there, one of them between those that are.
    let names = [0u8, 99, 1, 2, 3, 98];
    let mut finds: Vec<_> =
        names.iter().zip(&mut rooms).map(|(name, room)| Find::new(key(*name), room)).collect();
    let before = requests();
    client.find(&mut finds).unwrap().unwrap();
    assert_eq!(requests(), before + 1);
    let lens = [Some(0usize), None, Some(1), Some(4096), Some(70_000), None];
    for ((find, name), len) in finds.iter().zip(names).zip(lens) {
        assert_eq!(s.judged(find), len.map(|len| value(name, len)), "{name}");
    }
    // Without room for payload the headers come alone.
    let mut alone = [Find::new(key(3), &mut []), Find::new(key(99), &mut [])];
    client.find(&mut alone).unwrap().unwrap();
    assert_eq!((alone[0].found, alone[1].found), (Found::At(3, 1), Found::Nothing));
    assert_eq!(alone[0].headers[0].bytes_total, 70_000);
    // The connection is in step: an ordinary batch follows.
    assert_eq!(client.load(0).unwrap(), s.heap.memory().load(0).unwrap());
}

#[test]
fn what_has_lost_live_is_not_found_and_what_reaches_beyond_the_segment_is_left_to_others() {
    let mut s = beside_a_segment();
    let end = ARENA - 4096;
    s.put(key(1), 0, 0, &value(1, 100));
    s.put(key(2), 1, end, &value(2, 4096));
    let client = s.client();
    let mut room = vec![0; 8192];
    let mut find = [Find::new(key(2), &mut room[..4096])];
    client.find(&mut find).unwrap().unwrap();
    assert_eq!(s.judged(&find[0]), Some(value(2, 4096)));
    let mut find = [Find::new(key(2), &mut room)];
    client.find(&mut find).unwrap().unwrap();
    assert_eq!(find[0].found, Found::NotRead, "8192 bytes do not lie there");
    let owner = s.heap.layout().header_off(0) + OWNER_OFF;
    assert_eq!(s.heap.memory().load(owner).unwrap(), word(flag::LIVE, 1));
    s.heap.memory().store(owner, word(0, 1)).unwrap();
    let mut find = [Find::new(key(1), &mut room)];
    client.find(&mut find).unwrap().unwrap();
    assert_eq!(find[0].found, Found::Nothing);
}

#[test]
fn memory_that_is_no_segment_has_no_key_and_a_request_that_is_too_large_is_not_sent() {
    let fixture = granted();
    let client = fixture.client();
    let mut room = [0; 64];
    let mut find = [Find::new(key(1), &mut room)];
    client.find(&mut find).unwrap().unwrap();
    assert_eq!(find[0].found, Found::Nothing);
    let sent = || fixture.agent.counters().requests.load(Ordering::Relaxed);
    let before = sent();
    let mut many: Vec<_> = (0..2000).map(|_| Find::new(key(1), &mut [])).collect();
    assert!(client.find(&mut many).is_none());
    assert_eq!(sent(), before);
    assert_eq!(client.load(0).unwrap(), 0);
}

#[test]
fn i3_what_was_read_where_another_epoch_of_the_slot_lay_is_not_believed() {
    let mut s = beside_a_segment();
    s.put(key(1), 0, 0, &value(1, 100));
    let mut room = vec![0; 4096];
    let mut find = [Find::new(key(1), &mut room)];
    s.client().find(&mut find).unwrap().unwrap();
    let [mut find] = find;
    assert_eq!(s.judged(&find), Some(value(1, 100)));
    // The agent looked it up, and then the slot was used again: both headers are those of a later
    // epoch, whose object lies elsewhere.
    find.found = Found::At(0, 2);
    assert_eq!(s.judged(&find), None);
    find.found = Found::At(0, 1);
    find.headers[1].publish += 1;
    assert_eq!(s.judged(&find), None);
}
