//! Impossible values, one at a time.

use crate::message::*;
use nkv_store::Retention;
use nkv_store::arena::Extent;
use nkv_store::heap::{Heap, HeapConfig};
use nkv_store::key::MAX_KEY_BYTES;
use nkv_store::{AnonMemory, SegmentLayout};
use std::sync::Arc;

const INCARNATION: u64 = 5;
const PLAN: PlanId = PlanId { term: Term { number: 1, master: 2 }, seq: 3 };
const KEY: KeyId = KeyId { hash: 1, check: 2 };

fn layout() -> SegmentLayout {
    let config = HeapConfig {
        incarnation: INCARNATION,
        arena_bytes: 8 * 4096,
        log_bytes: 4 * 4096,
        ..HeapConfig::default()
    };
    let memory = Arc::new(AnonMemory::new(config.segment_bytes()).unwrap());
    *Heap::format(memory, &config).unwrap().layout()
}

/// A node's description of such a segment.
fn info() -> RankInfo {
    RankInfo {
        rank: 0,
        segment_id: 0,
        world_size: 2,
        incarnation: INCARNATION,
        boot_id: 1,
        numa_node: None,
        rack: Default::default(),
        pid: 1,
        control: "127.0.0.1:1".parse().unwrap(),
        local: None,
        data: None,
        fabric: None,
        http: None,
        memory: Some("nkv.a.0.1".to_string()).into(),
        layout: layout(),
        key_fingerprint: nkv_store::KeyHasher::new([7; 16]).fingerprint(),
        prefault: false,
        disk: false,
    }
}

fn opened() -> PlanOpened {
    let g = layout();
    PlanOpened {
        object: ObjectDesc {
            extent: Extent { offset: g.arena.offset, len: 4096 },
            bytes_total: 4096,
            page_bytes: 4096,
        },
        plan: PLAN,
        token: 1,
        at: SlotRef { incarnation: INCARNATION, slot: g.log_slots, epoch: 1 },
        key: KeyBytes::from(&b"k"[..]),
        producer: 1,
        request: 1,
        item: 0,
        deadline_ms: 1_000,
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    }
}

#[test]
fn i19_a_segment_is_believed_as_its_owner_made_it() {
    info().check().unwrap();
}

#[test]
fn i19_an_owner_takes_no_plan_that_cannot_be() {
    let info = info();
    info.check_to_owner(&MasterToOwner::PlanOpened(opened())).unwrap();
    let lies: [fn(&mut PlanOpened); 9] = [
        |p| p.at.slot = u32::MAX,
        |p| p.at.slot = 0,
        |p| p.at.epoch = 0,
        |p| p.object.extent.offset = 0,
        |p| p.object.extent.offset = u64::MAX - 4095,
        |p| p.object.extent.len = u64::MAX,
        |p| p.object.bytes_total = 4097,
        |p| p.deadline_ms = u64::MAX,
        |p| p.key = KeyBytes::from(vec![1; MAX_KEY_BYTES + 1]),
    ];
    for (n, lie) in lies.into_iter().enumerate() {
        let mut p = opened();
        lie(&mut p);
        assert!(info.check_to_owner(&MasterToOwner::PlanOpened(p)).is_err(), "lie {n}");
    }
    let view = |n| SeenView { incarnations: vec![1; n], ..SeenView::default() };
    let most = 2 * MAX_SEGMENTS as usize;
    info.check_to_owner(&MasterToOwner::View(view(most))).unwrap();
    assert!(info.check_to_owner(&MasterToOwner::View(view(most + 1))).is_err());
    let keys = vec![KEY; MAX_BATCH + 1];
    let asked = MasterToOwner::AskLog { number: 1, question: LogQuestion::Find(keys) };
    assert!(info.check_to_owner(&asked).is_err());
}

#[test]
fn i19_an_owner_takes_no_read_and_no_key_that_cannot_be() {
    let g = layout();
    let touched = |slot, epoch, bytes, served| {
        ClientToOwner::Touched(TouchBatch {
            list: vec![Touch { slot, epoch, bytes, read: true }],
            counts: served,
        })
    };
    let none = ReadCounts::default();
    touched(0, 1, g.payloads().len, none).check(&g).unwrap();
    for lie in [
        touched(g.slots, 1, 1, none),
        touched(0, 0, 1, none),
        touched(0, 1, u64::MAX, none),
        touched(0, 1, 1, ReadCounts { by_master: u64::MAX, ..none }),
        ClientToOwner::Touched(TouchBatch {
            list: vec![Touch { slot: 0, epoch: 1, bytes: 1, read: true }; MAX_BATCH + 1],
            counts: none,
        }),
        ClientToOwner::KeysReported(vec![KeyReport {
            slot: u32::MAX,
            epoch: 1,
            key: KeyBytes::default(),
            group: None,
        }]),
        ClientToOwner::KeysReported(vec![KeyReport {
            slot: 0,
            epoch: 1,
            key: vec![1; MAX_KEY_BYTES + 1].into(),
            group: None,
        }]),
    ] {
        assert!(lie.check(&g).is_err(), "{lie:?}");
    }
}

#[test]
fn i19_a_client_takes_no_location_and_no_plan_that_cannot_be() {
    let g = layout();
    let at = SlotRef { incarnation: INCARNATION, slot: 5, epoch: 1 };
    let honest = ObjMeta {
        object: ObjectDesc::at(g.arena.offset, 4097, 4096),
        key: KEY,
        rank: 0,
        at,
        header_off: g.header_off(5),
    };
    let check = |meta: &ObjMeta| meta.check(&g);
    check(&honest).unwrap();
    let lies: [fn(&mut ObjMeta); 5] = [
        |m| m.at.slot = u32::MAX,
        |m| m.header_off = 0,
        |m| m.object.extent.offset = 0,
        |m| m.object.extent.offset = u64::MAX,
        |m| m.object.bytes_total = u64::MAX,
    ];
    for (n, lie) in lies.into_iter().enumerate() {
        let mut meta = honest.clone();
        lie(&mut meta);
        assert!(check(&meta).is_err(), "lie {n}");
    }
    let mut far = honest.clone();
    far.object.bytes_total = u64::MAX;
    assert!(Response::Locations(vec![Ok(vec![far.clone().into()])]).check().is_err());
    assert!(Response::Prefix(vec![honest.clone().into(), far.into()]).check().is_err());
    let plan = |meta: &ObjMeta, extent_len, write_ttl_ms| {
        let mut meta = meta.clone();
        meta.object.extent.len = extent_len;
        PlanDesc { plan: PLAN, token: 1, meta, write_ttl_ms, copies: Vec::new() }
    };
    plan(&honest, 8192, 100).check(4097).unwrap();
    assert!(plan(&honest, 8192, 100).check(4096).is_err(), "of another size");
    assert!(plan(&honest, 4096, 100).check(4097).is_err(), "in too short an extent");
    assert!(plan(&honest, 8192, u64::MAX).check(4097).is_err(), "for ever");
}

#[test]
fn i19_settings_that_cannot_be_are_not_taken_over() {
    let honest = Settings {
        page_bytes: 4096,
        write_ttl_ms: 1,
        ttl_ms: 1,
        call_timeout_ms: 1,
        master_lease_ms: 0,
    };
    honest.check().unwrap();
    for lie in [
        Settings { page_bytes: 0, ..honest.clone() },
        Settings { ttl_ms: 0, ..honest.clone() },
        Settings { write_ttl_ms: u64::MAX, ..honest.clone() },
        Settings { ttl_ms: u64::MAX, ..honest.clone() },
        Settings { call_timeout_ms: u64::MAX, ..honest },
    ] {
        assert!(lie.check().is_err(), "{lie:?}");
    }
}
