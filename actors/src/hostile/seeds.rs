//! Valid messages, one of each kind and shape, from which invalid ones are made.

use super::scene::{ARENA, LIAR, LOG_SLOTS, OWNED, TERM, info};
use super::{Kind, encode};
use crate::error::Error;
use crate::message::{
    Abandoned, AwaitReady, ClientToOwner, DiskAnswer, DiskQuestion, DiskSelection, EndCause,
    GroupNews, KeyBytes, KeyReport, LogObjectEntry, LogQuestion, MasterToOwner, MovedObject,
    ObjMeta, ObjectDesc, OftenRead, OpenItem, OwnerGauges, OwnerToMaster, PlanDesc, PlanId,
    PlanOpened, PlanRef, Purpose, ReadCounts, Readiness, ReplicaSet, Request, Response, SaveAt,
    SeenView, Selection, SlotContent, SlotEntry, SlotRef, Term, Touch, TouchBatch,
};
use nkv_store::KeyId;
use nkv_store::Retention;
use nkv_store::arena::Extent;

pub(super) const PLAN: PlanId = PlanId { term: TERM, seq: 1 };
pub(super) const KEY: KeyId = KeyId { hash: 1, check: 2 };

pub(super) fn key() -> KeyBytes {
    KeyBytes::from(&b"layer/0"[..])
}

/// Offset of the arena of the owner under test.
pub(super) fn owned_arena() -> u64 {
    super::scene::owned_config().segment_bytes() - u64::from(super::scene::SLOTS) * 4096
}

pub(super) fn at(incarnation: u64) -> SlotRef {
    SlotRef { incarnation, slot: LOG_SLOTS + 1, epoch: 1 }
}

pub(super) fn opened(incarnation: u64, extent_offset: u64) -> PlanOpened {
    PlanOpened {
        object: ObjectDesc {
            extent: Extent { offset: extent_offset, len: 4096 },
            bytes_total: 4096,
            page_bytes: 4096,
        },
        plan: PLAN,
        token: 9,
        at: at(incarnation),
        key: key(),
        producer: super::scene::PRODUCER,
        request: 1,
        item: 0,
        deadline_ms: 1_000,
        set: ReplicaSet::NONE,
        retention: Retention::HardPin,
    }
}

pub(super) fn logged() -> LogObjectEntry {
    LogObjectEntry {
        object: ObjectDesc::at(ARENA - u64::from(LOG_SLOTS) * 4096, 100, 4096),
        key: key(),
        id: KEY,
        slot: 0,
        epoch: 1,
        set: crate::message::ReplicaSet::NONE,
    }
}

fn report() -> Vec<SlotEntry> {
    let live = SlotContent::Live {
        object: ObjectDesc {
            extent: Extent { offset: ARENA, len: 4096 },
            bytes_total: 100,
            page_bytes: 4096,
        },
        key: key(),
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    };
    let held = SlotContent::Held(Extent { offset: ARENA + 8192, len: 4096 });
    let entry = |slot, epoch, what| SlotEntry { slot, epoch, what };
    vec![
        entry(LOG_SLOTS, 3, live),
        entry(LOG_SLOTS + 1, 1, SlotContent::Open(Box::new(opened(LIAR, ARENA + 4096)))),
        entry(LOG_SLOTS + 2, 2, held),
        entry(LOG_SLOTS + 3, 7, SlotContent::Free),
        entry(0, 1, SlotContent::Logged(Box::new(logged()))),
    ]
}

fn ups() -> Vec<OwnerToMaster> {
    let gauges = OwnerGauges { heap_used: 1, ..OwnerGauges::default() };
    vec![
        OwnerToMaster::Report { number: 0, slots: report(), last: true },
        OwnerToMaster::Report { number: 0, slots: report(), last: false },
        OwnerToMaster::Report { number: 0, slots: Vec::new(), last: true },
        OwnerToMaster::Heartbeat { gauges: Box::new(gauges), stamp_ms: 0 },
        OwnerToMaster::Retired(vec![at(LIAR)]),
        OwnerToMaster::Freed(vec![at(LIAR), SlotRef { epoch: 3, slot: LOG_SLOTS, ..at(LIAR) }]),
        OwnerToMaster::Adopted(PlanRef { plan: PLAN, at: at(LIAR), key: KEY }),
        OwnerToMaster::PlansRecorded { up_to: PLAN },
        OwnerToMaster::Announced(vec![logged()]),
        OwnerToMaster::Accepted(vec![logged()]),
        OwnerToMaster::Expired(vec![at(LIAR)]),
        OwnerToMaster::Groups(GroupNews { used: vec![KEY], lost: vec![KEY] }),
        OwnerToMaster::OftenRead(vec![OftenRead { slot: 1, epoch: 1, hot: true }]),
        OwnerToMaster::Moved(vec![MovedObject { slot: 1, epoch: 1, to: logged() }]),
        OwnerToMaster::LogAnswer {
            number: 1,
            served: vec![logged()],
            removed: vec![KEY],
            taken: 1,
        },
        OwnerToMaster::DiskAnswer {
            number: 1,
            answer: DiskAnswer {
                found: vec![(0, 4096)],
                not_done: vec![(0, Error::not_found("not on disk"))],
                removed: vec![KEY],
                count: 1,
                failed: Some(Error::not_ready("the disk is busy")),
            },
        },
        OwnerToMaster::ViewSeen { number: 1 },
        OwnerToMaster::Draining,
        OwnerToMaster::Leave,
    ]
}

fn requests() -> Vec<Request> {
    let item = OpenItem {
        key: b"layer/1".to_vec(),
        bytes_total: 4096,
        preferred_rank: Some(1),
        medium: Default::default(),
        further: Vec::new(),
        nearest: None,
        page_bytes: 4096,
        replicas: 2,
        replica_of: None,
        retention: Retention::Usual,
    };
    let of = Selection { pattern: Some("layer".to_string()), from: Some(KEY) };
    let plan = PlanRef { plan: PLAN, at: at(LIAR), key: KEY };
    vec![
        Request::OpenForWrite { request: 1, wait_ms: 100, items: vec![item] },
        Request::Commit(vec![plan]),
        Request::Abort(vec![plan]),
        Request::Withdraw { request: 1 },
        Request::GetLocation { keys: vec![key()], gone: Vec::new(), promote: Default::default() },
        Request::MatchPrefix(vec![key()]),
        Request::Exists { keys: vec![key()], promote: Default::default() },
        Request::Remove(vec![key()]),
        Request::RemoveAt(vec![(key(), at(OWNED))]),
        Request::EvictUntilBelow(0.5),
        Request::Stats,
        Request::View,
        Request::List { of: of.clone(), after: Some(key()), limit: 10 },
        Request::RemoveMatching(of),
        Request::Replicate { keys: vec![key()], wanted: 2 },
        Request::SaveToDisk {
            keys: vec![key()],
            at: vec![SaveAt { disks: vec![Some(1), None], but: vec![0] }],
        },
        Request::AwaitReady(AwaitReady {
            keys: vec![key()],
            wait_ms: 10,
            mapped: vec![LIAR, OWNED],
            watched: vec![at(LIAR)],
            gone: vec![at(OWNED)],
        }),
    ]
}

fn downs() -> Vec<MasterToOwner> {
    let plan = PlanRef { plan: PLAN, at: at(OWNED), key: KEY };
    let view = SeenView { term: TERM, number: 2, incarnations: vec![OWNED, LIAR] };
    let find = LogQuestion::Find(vec![KEY]);
    vec![
        MasterToOwner::PlanOpened(opened(OWNED, owned_arena())),
        MasterToOwner::Committed(vec![plan]),
        MasterToOwner::EndPlan { plan: PLAN, at: at(OWNED), cause: EndCause::Aborted },
        MasterToOwner::EndPlan { plan: PLAN, at: at(OWNED), cause: EndCause::Expired },
        MasterToOwner::Retire(vec![at(OWNED)]),
        MasterToOwner::FreedAck(vec![at(OWNED)]),
        MasterToOwner::MakeRoom { bytes: 4096, all: 8192, attempt: 1 },
        MasterToOwner::EvictTo { bytes: 4096 },
        MasterToOwner::View(view),
        MasterToOwner::AskLog { number: 1, question: find },
        MasterToOwner::AskLog { number: 2, question: LogQuestion::Remove(vec![KEY]) },
        MasterToOwner::AskLog { number: 3, question: LogQuestion::RemoveAll },
        MasterToOwner::AskLog {
            number: 4,
            question: LogQuestion::EndSets(vec![(KEY, 1 << 31 | 9)]),
        },
        MasterToOwner::AskLog { number: 5, question: LogQuestion::AnnounceAll },
        MasterToOwner::AskLog {
            number: u64::MAX,
            question: LogQuestion::Await { keys: vec![KEY], wait_ms: 10 },
        },
        MasterToOwner::AskDisk { number: 6, question: DiskQuestion::Find(vec![key()]) },
        MasterToOwner::AskDisk {
            number: 7,
            question: DiskQuestion::Promote { keys: vec![key()], rank: Some(1), find: true },
        },
        MasterToOwner::AskDisk {
            number: 8,
            question: DiskQuestion::Remove { removal: 8, which: DiskSelection::All },
        },
        MasterToOwner::AskDisk {
            number: 9,
            question: DiskQuestion::Remove {
                removal: 9,
                which: DiskSelection::Matching("layer".to_string()),
            },
        },
        MasterToOwner::AskDisk { number: 10, question: DiskQuestion::Save(vec![key()]) },
        MasterToOwner::RemovalOver { removal: 9, again: false },
        MasterToOwner::InSet(vec![(at(OWNED), ReplicaSet { id: 3, wanted: 2 })]),
        MasterToOwner::MakeReplicas(vec![key()]),
        MasterToOwner::Groups(GroupNews { used: vec![KEY], lost: vec![KEY] }),
        MasterToOwner::RequestReport { number: 4 },
        MasterToOwner::NoMorePlans,
    ]
}

fn to_owners() -> Vec<ClientToOwner> {
    let served = ReadCounts { by_index: 1, by_cache: 2, by_master: 3 };
    let list = vec![Touch { slot: 1, epoch: 1, bytes: 4096, read: false }];
    vec![
        ClientToOwner::Touched(TouchBatch { list, counts: served }),
        ClientToOwner::CheckPlan(PLAN),
        ClientToOwner::Dropped(PLAN),
        ClientToOwner::TermObeyed { term: TERM, held: vec![] },
        ClientToOwner::KeysReported(vec![KeyReport {
            slot: 0,
            epoch: 1,
            key: key(),
            group: Some(KEY),
        }]),
        ClientToOwner::Abandoned(Abandoned { position: 0, bytes: 4096 }),
        ClientToOwner::ClearBelow(4096),
        ClientToOwner::NamesSent(1),
        ClientToOwner::Detach,
    ]
}

/// A plan as its producer receives it.
pub(super) fn granted() -> PlanDesc {
    let meta = ObjMeta {
        object: ObjectDesc::at(owned_arena(), 4096, 4096),
        key: KEY,
        rank: 0,
        at: at(OWNED),
        header_off: 4096 + u64::from(LOG_SLOTS + 1) * 64,
    };
    PlanDesc { plan: PLAN, token: 9, meta, write_ttl_ms: 100, copies: Vec::new() }
}

fn responses() -> Vec<Response> {
    let granted = granted();
    let meta = granted.meta.clone();
    vec![
        Response::Plans(vec![Ok(granted)]),
        Response::Locations(vec![Ok(vec![meta.clone().into(), meta.clone().into()])]),
        Response::Readiness(vec![
            (0, Readiness::Ready(vec![meta.clone()])),
            (1, Readiness::Writing(meta.clone())),
            (2, Readiness::Ended(Error::reclaimed("its producer is gone"))),
        ]),
        Response::Prefix(vec![meta.into()]),
    ]
}

/// All valid messages, each as an input of its own.
pub fn seeds() -> Vec<Vec<u8>> {
    let seen =
        SeenView { term: Term { number: 1, master: 3 }, number: 1, incarnations: vec![LIAR] };
    let joins = Purpose::Rank {
        info: Box::new(info(1, LIAR)),
        obeyed: TERM,
        holds: true,
        seen,
        siblings: vec![(1, 0x201)],
    };
    let mut all = vec![encode(Kind::Hello, &joins)];
    all.extend(ups().iter().map(|up| encode(Kind::OwnerToMaster, up)));
    all.extend(requests().iter().map(|request| encode(Kind::Request, request)));
    all.extend(downs().iter().map(|down| encode(Kind::MasterToOwner, down)));
    all.extend(to_owners().iter().map(|message| encode(Kind::ClientToOwner, message)));
    all.extend(responses().iter().map(|response| encode(Kind::Response, response)));
    all.push([&[Kind::Later as u8, 200, 0][..], &[0; 200]].concat());
    all
}
