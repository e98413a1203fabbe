//! Messages that decode and contain one impossible value: each field of each kind that
//! `message/bounds.rs` checks, one at a time, at limits. A receiver that accepts one lacks a check.

use super::scene::{ARENA, LIAR, LOG_SLOTS, OWNED, SLOTS, WORLD, info};
use super::seeds;
use crate::Error;
use crate::message::*;
use nkv_store::Retention;
use nkv_store::arena::Extent;
use nkv_store::key::MAX_KEY_BYTES;

/// An invalid message.
#[derive(Debug, Clone)]
pub(super) enum HostileInput {
    Hello(Box<RankInfo>, SeenView, Vec<(u32, u64)>),
    Settings(Settings),
    OwnerToMaster(OwnerToMaster),
    Request(Request),
    MasterToOwner(MasterToOwner),
    ClientToOwner(ClientToOwner),
    Response(Response),
}

/// An invalid message with a name for it.
pub(super) type Lie = (String, HostileInput);
type Change<T> = fn(&mut T);

const UNIT: u64 = 4096;
/// The slot behind the last one.
const PAST: u32 = SLOTS + LOG_SLOTS;

/// One invalid message for each change of a valid one.
fn each<T: Clone>(
    all: &mut Vec<Lie>,
    what: &str,
    honest: &T,
    changes: &[Change<T>],
    make: impl Fn(T) -> HostileInput,
) {
    for (n, change) in changes.iter().enumerate() {
        let mut lie = honest.clone();
        change(&mut lie);
        all.push((format!("{what}, lie {n}"), make(lie)));
    }
}

fn long_key() -> KeyBytes {
    KeyBytes::from(vec![7; MAX_KEY_BYTES + 1])
}

const AT: [Change<SlotRef>; 4] = [
    |at| at.slot = PAST,
    |at| at.slot = u32::MAX,
    |at| at.epoch = 0,
    |at| (at.slot, at.epoch) = (u32::MAX - 1, u32::MAX),
];

const PLAN: [Change<PlanOpened>; 14] = [
    |p| p.at.slot = PAST,
    |p| p.at.slot = u32::MAX,
    |p| p.at.slot = LOG_SLOTS - 1,
    |p| p.at.epoch = 0,
    |p| p.object.extent.offset = 0,
    |p| p.object.extent.offset -= u64::from(SLOTS) * UNIT,
    |p| p.object.extent.offset += u64::from(SLOTS) * UNIT,
    |p| p.object.extent.offset = u64::MAX - (UNIT - 1),
    |p| p.object.extent.offset += 1,
    |p| p.object.extent.len = u64::MAX - (UNIT - 1),
    |p| (p.object.extent.len, p.object.bytes_total) = (0, 0),
    |p| p.object.bytes_total = p.object.extent.len + 1,
    |p| p.deadline_ms = u64::MAX,
    |p| p.key = long_key(),
];

const LOGGED: [Change<LogObjectEntry>; 7] = [
    |o| o.slot = LOG_SLOTS,
    |o| o.slot = u32::MAX,
    |o| o.epoch = 0,
    |o| o.object.extent.offset = ARENA,
    |o| o.object.extent.offset -= u64::from(LOG_SLOTS) * UNIT,
    |o| o.object.bytes_total = u64::MAX,
    |o| o.key = long_key(),
];

/// Extents that are not in an arena of `SLOTS` units.
const EXTENTS: [(u64, u64); 6] = [
    (ARENA - UNIT, UNIT),
    (ARENA + SLOTS as u64 * UNIT, UNIT),
    (ARENA, (SLOTS as u64 + 1) * UNIT),
    (ARENA, u64::MAX - (UNIT - 1)),
    (u64::MAX - (UNIT - 1), 2 * UNIT),
    (ARENA + UNIT / 2, UNIT),
];

fn slots_report(slots: Vec<SlotEntry>) -> HostileInput {
    // The scene inserts the number of the requested report.
    HostileInput::OwnerToMaster(OwnerToMaster::Report { number: 0, slots, last: true })
}

fn reports(all: &mut Vec<Lie>) {
    let free = SlotEntry { slot: LOG_SLOTS + 3, epoch: 1, what: SlotContent::Free };
    let entries: [Change<SlotEntry>; 4] =
        [|e| e.slot = PAST, |e| e.slot = u32::MAX, |e| e.slot = 0, |e| e.epoch = 0];
    each(all, "a free slot", &free, &entries, |e| slots_report(vec![e]));
    let held = |offset, len| SlotContent::Held(Extent { offset, len });
    let live = |key: KeyBytes, offset, len| SlotContent::Live {
        object: ObjectDesc { extent: Extent { offset, len }, bytes_total: 1, page_bytes: 1 },
        key,
        set: ReplicaSet::NONE,
        retention: Retention::Usual,
    };
    let slot = |n: u32, what| SlotEntry { slot: LOG_SLOTS + n, epoch: 1, what };
    for (offset, len) in EXTENTS {
        let name = format!("an extent of {len} at {offset}");
        all.push((format!("{name}, held"), slots_report(vec![slot(1, held(offset, len))])));
        let input = vec![slot(1, live(seeds::key(), offset, len))];
        all.push((format!("{name}, live"), slots_report(input)));
    }
    let long = vec![slot(1, live(long_key(), ARENA + 3 * UNIT, UNIT))];
    all.push(("a live object of too long a key".into(), slots_report(long)));
    let plan = seeds::opened(LIAR, ARENA + UNIT);
    let open = |p: PlanOpened| (p.at.slot, p.at.epoch, SlotContent::Open(Box::new(p)));
    each(all, "an open plan", &plan, &PLAN, |p| {
        let (slot, epoch, what) = open(p);
        slots_report(vec![SlotEntry { slot, epoch, what }])
    });
    let others: [Change<PlanOpened>; 4] = [
        |p| p.at.slot += 1,
        |p| p.at.epoch += 1,
        |p| p.at.incarnation = OWNED,
        |p| p.plan.seq = u64::MAX,
    ];
    each(all, "another's plan", &plan, &others, |p| {
        slots_report(vec![SlotEntry { slot: plan.at.slot, epoch: plan.at.epoch, what: open(p).2 }])
    });
    each(all, "an object of the log", &seeds::logged(), &LOGGED, |o| {
        let (slot, epoch) = (o.slot, o.epoch);
        slots_report(vec![SlotEntry { slot, epoch, what: SlotContent::Logged(Box::new(o)) }])
    });
    let twice = vec![slot(1, held(ARENA + 3 * UNIT, UNIT)), slot(1, SlotContent::Free)];
    all.push(("a slot twice".into(), slots_report(twice)));
    let shared =
        vec![slot(1, held(ARENA + 2 * UNIT, 2 * UNIT)), slot(2, held(ARENA + 3 * UNIT, UNIT))];
    all.push(("an extent that overlaps".into(), slots_report(shared)));
    all.push(("more slots than there are".into(), slots_report(vec![free; PAST as usize + 1])));
}

fn ups(all: &mut Vec<Lie>) {
    let at = seeds::at(LIAR);
    let slots = [&AT[..], &[|at| at.incarnation = OWNED]].concat();
    each(all, "a retired slot", &at, &slots, |lie| {
        HostileInput::OwnerToMaster(OwnerToMaster::Retired(vec![at, lie]))
    });
    each(all, "a freed slot", &at, &slots, |lie| {
        HostileInput::OwnerToMaster(OwnerToMaster::Freed(vec![at, lie]))
    });
    let plan = PlanRef { plan: seeds::PLAN, at, key: seeds::KEY };
    each(all, "an adopted plan", &at, &slots, |at| {
        HostileInput::OwnerToMaster(OwnerToMaster::Adopted(PlanRef { at, ..plan }))
    });
    all.push((
        "too many retired".into(),
        HostileInput::OwnerToMaster(OwnerToMaster::Retired(vec![at; MAX_BATCH + 1])),
    ));
    let logged = seeds::logged();
    each(all, "an announced object", &logged, &LOGGED, |o| {
        HostileInput::OwnerToMaster(OwnerToMaster::Announced(vec![o]))
    });
    each(all, "an accepted object", &logged, &LOGGED, |o| {
        HostileInput::OwnerToMaster(OwnerToMaster::Accepted(vec![o]))
    });
    let moved = |slot, epoch, to| {
        let list = vec![MovedObject { slot, epoch, to }];
        HostileInput::OwnerToMaster(OwnerToMaster::Moved(list))
    };
    each(all, "a moved object", &logged, &LOGGED, |to| moved(1, 1, to));
    all.push(("moved from a slot that is not there".into(), moved(u32::MAX, 1, logged.clone())));
    let often = |slot, n| {
        let list = vec![OftenRead { slot, epoch: 1, hot: true }; n];
        HostileInput::OwnerToMaster(OwnerToMaster::OftenRead(list))
    };
    all.push(("often read in a slot that is not there".into(), often(u32::MAX, 1)));
    all.push(("too many often read".into(), often(1, MAX_BATCH + 1)));
    let groups =
        |used, lost| HostileInput::OwnerToMaster(OwnerToMaster::Groups(GroupNews { used, lost }));
    let many = vec![seeds::KEY; MAX_GROUPS + 1];
    all.push(("too many groups used".into(), groups(many.clone(), Vec::new())));
    all.push(("too many groups lost".into(), groups(Vec::new(), many)));
    let answer = |served, removed, taken| {
        HostileInput::OwnerToMaster(OwnerToMaster::LogAnswer { number: 1, served, removed, taken })
    };
    each(all, "a served object", &logged, &LOGGED, |o| answer(vec![o], Vec::new(), 0));
    let most = u64::from(LOG_SLOTS);
    all.push(("too many taken".into(), answer(Vec::new(), Vec::new(), most + 1)));
    let many = vec![seeds::KEY; MAX_BATCH + 1];
    all.push(("too many removed".into(), answer(Vec::new(), many, 0)));
    let on_disk =
        |answer| HostileInput::OwnerToMaster(OwnerToMaster::DiskAnswer { number: 1, answer });
    let found = |found| on_disk(DiskAnswer { found, ..DiskAnswer::default() });
    all.push(("too many on disk".into(), found(vec![(0, 1); MAX_BATCH + 1])));
    all.push(("too large on disk".into(), found(vec![(0, u64::MAX)])));
    let not_done = vec![(0, Error::not_found("not on disk")); MAX_BATCH + 1];
    let not_done = on_disk(DiskAnswer { not_done, ..DiskAnswer::default() });
    all.push(("too many not on disk".into(), not_done));
    let removed = vec![seeds::KEY; MAX_BATCH + 1];
    let removed = on_disk(DiskAnswer { removed, ..DiskAnswer::default() });
    all.push(("too many removed from disk".into(), removed));
}

fn downs(all: &mut Vec<Lie>) {
    let opened = seeds::opened(OWNED, seeds::owned_arena());
    each(all, "a plan to an owner", &opened, &PLAN, |p| {
        HostileInput::MasterToOwner(MasterToOwner::PlanOpened(p))
    });
    let elsewhere: [Change<PlanOpened>; 1] = [|p| (p.at.incarnation, p.key) = (1, long_key())];
    each(all, "a plan of before", &opened, &elsewhere, |p| {
        HostileInput::MasterToOwner(MasterToOwner::PlanOpened(p))
    });
    let (at, many) = (seeds::at(OWNED), MAX_BATCH + 1);
    let plan = PlanRef { plan: seeds::PLAN, at, key: seeds::KEY };
    let view =
        SeenView { incarnations: vec![1; 2 * MAX_SEGMENTS as usize + 1], ..SeenView::default() };
    let asked = |question| MasterToOwner::AskLog { number: 1, question };
    let on_disk = |question| MasterToOwner::AskDisk { number: 1, question };
    let removed = |which| on_disk(DiskQuestion::Remove { removal: 1, which });
    let lists = [
        MasterToOwner::Committed(vec![plan; many]),
        MasterToOwner::Retire(vec![at; many]),
        MasterToOwner::InSet(vec![(at, ReplicaSet::NONE); many]),
        MasterToOwner::MakeReplicas(vec![seeds::key(); many]),
        MasterToOwner::InSet(vec![(at, ReplicaSet { id: 1, wanted: MAX_REPLICAS + 1 })]),
        MasterToOwner::InSet(vec![(at, ReplicaSet { id: 0, wanted: 2 })]),
        MasterToOwner::FreedAck(vec![at; many]),
        MasterToOwner::View(view),
        asked(LogQuestion::Find(vec![seeds::KEY; many])),
        asked(LogQuestion::Remove(vec![seeds::KEY; many])),
        asked(LogQuestion::EndSets(vec![(seeds::KEY, 9); 4 * many])),
        asked(LogQuestion::Await { keys: vec![seeds::KEY; many], wait_ms: 1 }),
        asked(LogQuestion::Await { keys: Vec::new(), wait_ms: u64::MAX }),
        on_disk(DiskQuestion::Find(vec![seeds::key(); many])),
        on_disk(DiskQuestion::Save(vec![seeds::key(); many])),
        on_disk(DiskQuestion::Save(vec![long_key()])),
        on_disk(DiskQuestion::Promote { keys: vec![long_key()], rank: None, find: false }),
        removed(DiskSelection::Matching("x".repeat(MAX_PATTERN_BYTES + 1))),
        removed(DiskSelection::Keys(vec![seeds::key(); many])),
        MasterToOwner::Refused("x".repeat(MAX_TEXT_BYTES + 1)),
    ];
    for (n, down) in lists.into_iter().enumerate() {
        all.push((format!("too long a list to an owner, {n}"), HostileInput::MasterToOwner(down)));
    }
}

fn to_owners(all: &mut Vec<Lie>) {
    let touch = TouchBatch {
        list: vec![Touch { slot: 1, epoch: 1, bytes: 1, read: true }],
        counts: ReadCounts::default(),
    };
    let touches: [Change<TouchBatch>; 7] = [
        |t| t.list[0].slot = PAST,
        |t| t.list[0].slot = u32::MAX,
        |t| t.list[0].epoch = 0,
        |t| t.list[0].bytes = u64::MAX,
        |t| t.counts.by_index = u64::MAX,
        |t| t.counts.by_cache = u64::MAX,
        |t| t.counts.by_master = u64::MAX,
    ];
    each(all, "a read", &touch, &touches, |t| {
        HostileInput::ClientToOwner(ClientToOwner::Touched(t))
    });
    let name = KeyReport { slot: 0, epoch: 1, key: seeds::key(), group: Some(seeds::KEY) };
    let names: [Change<KeyReport>; 3] =
        [|n| n.slot = PAST, |n| n.epoch = 0, |n| n.key = long_key()];
    each(all, "a name", &name, &names, |n| {
        HostileInput::ClientToOwner(ClientToOwner::KeysReported(vec![n]))
    });
}

fn hellos(all: &mut Vec<Lie>) {
    let none = || (SeenView::default(), Vec::new());
    let infos: [Change<RankInfo>; 18] = [
        |i| i.rank = u32::MAX,
        |i| i.world_size = u32::MAX,
        |i| i.segment_id = MAX_SEGMENTS,
        |i| i.key_fingerprint ^= 1,
        |i| i.incarnation = 0,
        |i| i.layout.slots = u32::MAX,
        |i| i.layout.slots = PAST + 1,
        |i| i.layout.log_slots = u32::MAX,
        |i| i.layout.header_base = u64::MAX - 63,
        |i| i.layout.index.len = u64::MAX,
        |i| i.layout.arena.len = !(UNIT - 1),
        |i| i.layout.arena.len += UNIT,
        |i| i.layout.arena.offset = u64::MAX - (UNIT - 1),
        |i| i.layout.quarantine_ms = u32::MAX,
        |i| i.memory = Some("x".repeat(MAX_TEXT_BYTES + 1)).into(),
        |i| i.http = Some("x".repeat(MAX_TEXT_BYTES + 1)),
        |i| i.data = Some("x".repeat(MAX_TEXT_BYTES + 1)),
        |i| i.fabric = Some("x".repeat(MAX_TEXT_BYTES + 1)),
    ];
    each(all, "a hello", &info(1, LIAR), &infos, |i| {
        HostileInput::Hello(Box::new(i), none().0, none().1)
    });
    let seen =
        SeenView { incarnations: vec![1; 2 * MAX_SEGMENTS as usize + 1], ..SeenView::default() };
    let honest = || Box::new(info(1, LIAR));
    all.push(("too long a view".into(), HostileInput::Hello(honest(), seen, Vec::new())));
    let siblings = [vec![(1, 5); MAX_SEGMENTS as usize], vec![(0, 5)], vec![(MAX_SEGMENTS, 5)]];
    for siblings in siblings {
        let name = format!("{} siblings", siblings.len());
        all.push((name, HostileInput::Hello(honest(), SeenView::default(), siblings)));
    }
}

/// Answers to clients.
fn answers(all: &mut Vec<Lie>) {
    let plan = seeds::granted();
    let metas: [Change<ObjMeta>; 6] = [
        |m| m.at.slot = PAST,
        |m| m.header_off = u64::MAX - 1,
        |m| m.object.extent.offset = u64::MAX,
        |m| m.object.extent.offset = 0,
        |m| m.object.extent.offset += u64::from(SLOTS) * UNIT,
        |m| m.object.bytes_total = u64::MAX,
    ];
    each(all, "a location", &plan.meta, &metas, |meta| {
        HostileInput::Response(Response::Locations(vec![Ok(vec![meta.into()])]))
    });
    each(all, "a run of locations", &plan.meta, &metas, |meta| {
        HostileInput::Response(Response::Prefix(vec![meta.into()]))
    });
    for of in [|meta| Readiness::Ready(vec![meta]), Readiness::Writing] {
        each(all, "an awaited object", &plan.meta, &metas, |meta| {
            HostileInput::Response(Response::Readiness(vec![(0, of(meta))]))
        });
    }
    let plans: [Change<PlanDesc>; 4] = [
        |p| p.meta.object.extent.len = 1,
        |p| p.write_ttl_ms = u64::MAX,
        |p| p.meta.object.bytes_total += 1,
        |p| p.meta.object.extent.offset = u64::MAX - 1,
    ];
    each(all, "a plan", &plan, &plans, |p| HostileInput::Response(Response::Plans(vec![Ok(p)])));
    let settings = Settings {
        page_bytes: 4096,
        write_ttl_ms: 1,
        ttl_ms: 1,
        call_timeout_ms: 1,
        master_lease_ms: 0,
    };
    let changes: [Change<Settings>; 5] = [
        |s| s.page_bytes = 0,
        |s| s.ttl_ms = 0,
        |s| s.write_ttl_ms = u64::MAX,
        |s| s.ttl_ms = u64::MAX,
        |s| s.call_timeout_ms = u64::MAX,
    ];
    each(all, "settings", &settings, &changes, HostileInput::Settings);
}

fn requests(all: &mut Vec<Lie>) {
    let item = OpenItem {
        key: b"layer/1".to_vec(),
        bytes_total: UNIT,
        preferred_rank: None,
        medium: Default::default(),
        further: Vec::new(),
        nearest: Some(Nearest { rank: 1, distance: 0 }),
        page_bytes: 4096,
        replicas: 1,
        replica_of: None,
        retention: Retention::Usual,
    };
    let items: [Change<OpenItem>; 6] = [
        |i| i.nearest = Some(Nearest { rank: WORLD, distance: 0 }),
        |i| i.nearest = Some(Nearest { rank: 0, distance: u8::MAX }),
        |i| i.bytes_total = u64::MAX,
        |i| i.bytes_total = (SLOTS as u64 + 1) * UNIT,
        |i| i.key = vec![7; MAX_KEY_BYTES + 1],
        |i| i.key = Vec::new(),
    ];
    let open =
        |items| HostileInput::Request(Request::OpenForWrite { request: 77, wait_ms: 0, items });
    each(all, "an open", &item, &items, |i| open(vec![i]));
    let (many, at) = (MAX_BATCH + 1, seeds::at(LIAR));
    let plan = PlanRef { plan: seeds::PLAN, at, key: seeds::KEY };
    let future = PlanRef { plan: PlanId { seq: u64::MAX, ..plan.plan }, ..plan };
    let keys = || vec![seeds::key(); many];
    let awaits = AwaitReady {
        keys: vec![seeds::key()],
        wait_ms: 0,
        mapped: Vec::new(),
        watched: Vec::new(),
        gone: Vec::new(),
    };
    let of = Selection { pattern: None, from: None };
    let anywhere = SaveAt { disks: vec![None], but: Vec::new() };
    let save = |at| Request::SaveToDisk { keys: vec![seeds::key()], at: vec![at] };
    let asked = [
        Request::Commit(vec![future]),
        Request::Commit(vec![plan; many]),
        Request::Abort(vec![plan; many]),
        Request::GetLocation { keys: keys(), gone: Vec::new(), promote: Default::default() },
        Request::GetLocation {
            keys: Vec::new(),
            gone: vec![at; many * MAX_PLACES],
            promote: Default::default(),
        },
        Request::AwaitReady(AwaitReady { keys: keys(), ..awaits.clone() }),
        Request::AwaitReady(AwaitReady { wait_ms: MAX_AWAIT_MS + 1, ..awaits.clone() }),
        Request::AwaitReady(AwaitReady { mapped: vec![1; many], ..awaits.clone() }),
        Request::AwaitReady(AwaitReady { watched: vec![at; many * MAX_PLACES], ..awaits.clone() }),
        Request::AwaitReady(AwaitReady { gone: vec![at; many * MAX_PLACES], ..awaits }),
        Request::MatchPrefix(keys()),
        Request::SaveToDisk { keys: keys(), at: vec![anywhere.clone(); many] },
        Request::SaveToDisk { keys: vec![seeds::key(); 2], at: vec![anywhere] },
        save(SaveAt::default()),
        save(SaveAt { disks: vec![None; 9], but: Vec::new() }),
        save(SaveAt { disks: vec![Some(1), None, Some(1)], but: Vec::new() }),
        save(SaveAt { disks: vec![None], but: vec![1; 4 * MAX_PLACES + 1] }),
        Request::Exists { keys: keys(), promote: Default::default() },
        Request::Remove(keys()),
        Request::RemoveAt(vec![(long_key(), at)]),
        Request::EvictUntilBelow(f64::NAN),
        Request::EvictUntilBelow(f64::INFINITY),
        Request::List { of, after: Some(long_key()), limit: 10 },
    ];
    for (n, request) in asked.into_iter().enumerate() {
        all.push((format!("a request, lie {n}"), HostileInput::Request(request)));
    }
}

/// All invalid messages; each of them must be refused.
pub(super) fn all() -> Vec<Lie> {
    let mut all = Vec::new();
    hellos(&mut all);
    reports(&mut all);
    ups(&mut all);
    downs(&mut all);
    to_owners(&mut all);
    answers(&mut all);
    requests(&mut all);
    all
}

/// Messages that are possible, but late, of another epoch or incarnation, or out of order. `again`
/// gives numbered messages another number.
pub(super) fn stale(granted: &PlanDesc, again: bool) -> Vec<Lie> {
    let mut all: Vec<Lie> = Vec::new();
    let number = if again { u64::MAX } else { u64::MAX - 1 };
    let plan = granted.plan;
    let later = SlotRef { epoch: granted.meta.at.epoch + 1, ..granted.meta.at };
    let last = SlotRef { epoch: u32::MAX, ..granted.meta.at };
    let adopted = PlanRef { plan, at: later, key: granted.meta.key };
    let gauges =
        OwnerGauges { heap_used: u64::MAX, bytes_read: u64::MAX, ..OwnerGauges::default() };
    let mut ups = vec![
        OwnerToMaster::Freed(vec![later, last]),
        OwnerToMaster::Retired(vec![later, last]),
        OwnerToMaster::Adopted(adopted),
        OwnerToMaster::PlansRecorded { up_to: PlanId { seq: u64::MAX, ..plan } },
        OwnerToMaster::ViewSeen { number },
        OwnerToMaster::Heartbeat { gauges: Box::new(gauges), stamp_ms: 0 },
        OwnerToMaster::LogAnswer {
            number,
            served: Vec::new(),
            removed: vec![seeds::KEY],
            taken: 1,
        },
    ];
    all.extend(ups.drain(..).map(|up| (format!("{up:?}"), HostileInput::OwnerToMaster(up))));
    let kept = SlotRef { slot: LOG_SLOTS + 5, ..seeds::at(OWNED) };
    let (before, after) =
        (SlotRef { incarnation: OWNED - 1, ..kept }, SlotRef { epoch: 2, ..kept });
    let of_none = PlanId { seq: number, ..seeds::PLAN };
    let cause = EndCause::Removed;
    let opened = seeds::opened(OWNED, seeds::owned_arena());
    let over_kept = seeds::opened(OWNED, seeds::owned_arena() + 5 * UNIT);
    let in_kept = PlanOpened { at: kept, ..opened.clone() };
    let committed =
        |at| MasterToOwner::Committed(vec![PlanRef { plan: of_none, at, key: seeds::KEY }]);
    let mut downs = vec![
        MasterToOwner::Retire(vec![before, after]),
        MasterToOwner::EndPlan { plan: of_none, at: before, cause },
        MasterToOwner::EndPlan { plan: PlanId { seq: 0, ..seeds::PLAN }, at: after, cause },
        committed(kept),
        committed(before),
        // The slot is written, but the commit is for an earlier incarnation.
        committed(SlotRef { slot: LOG_SLOTS + 6, ..before }),
        committed(after),
        committed(SlotRef { slot: u32::MAX, ..kept }),
        MasterToOwner::FreedAck(vec![kept, after, SlotRef { slot: u32::MAX, ..kept }]),
        MasterToOwner::MakeRoom { bytes: u64::MAX, all: u64::MAX, attempt: u32::MAX },
        MasterToOwner::AskLog { number, question: LogQuestion::RemoveAll },
        MasterToOwner::PlanOpened(opened),
        MasterToOwner::PlanOpened(over_kept),
        MasterToOwner::PlanOpened(PlanOpened {
            at: SlotRef { epoch: u32::MAX, ..kept },
            ..in_kept.clone()
        }),
        MasterToOwner::PlanOpened(PlanOpened { at: after, ..in_kept.clone() }),
        MasterToOwner::PlanOpened(in_kept),
    ];
    all.extend(
        downs.drain(..).map(|down| (format!("{down:?}"), HostileInput::MasterToOwner(down))),
    );
    let touch = Touch { slot: kept.slot, epoch: 2, bytes: 1, read: true };
    let name = KeyReport { slot: kept.slot, epoch: 1, key: seeds::key(), group: Some(seeds::KEY) };
    let counts = ReadCounts::default();
    let mut words = vec![
        ClientToOwner::Touched(TouchBatch { list: vec![touch], counts }),
        ClientToOwner::KeysReported(vec![name]),
        ClientToOwner::Dropped(of_none),
        ClientToOwner::TermObeyed { term: Term { number, master: number }, held: vec![] },
        ClientToOwner::Abandoned(Abandoned { position: u64::MAX, bytes: u64::MAX }),
        ClientToOwner::ClearBelow(u64::MAX),
        ClientToOwner::NamesSent(u64::MAX),
    ];
    all.extend(
        words
            .drain(..)
            .map(|message| (format!("{message:?}"), HostileInput::ClientToOwner(message))),
    );
    let stale = PlanRef { plan, at: later, key: granted.meta.key };
    let other = PlanRef { plan: of_none, at: granted.meta.at, key: granted.meta.key };
    let mut requests = vec![
        Request::Commit(vec![stale, other]),
        Request::Abort(vec![other]),
        Request::Withdraw { request: number },
    ];
    all.extend(requests.drain(..).map(|r| (format!("{r:?}"), HostileInput::Request(r))));
    all
}
