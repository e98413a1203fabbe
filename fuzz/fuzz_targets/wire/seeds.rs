//! Valid inputs for every decoder, made by the real encoders: the fuzzer starts from them. They are
//! generated before each run, so that they follow changes of the messages.

use crate::agent::{self, GRANT, TOKEN};
use crate::answers;
use crate::bodies::again;
use crate::handshake::{self, CLIENT, NODE};
use nkv_actors::message::{
    Abandoned, AttachBy, Ballot, ClientToOwner, ClusterStats, CopyPlan, DiskAnswer, DiskQuestion,
    DiskSelection, EndCause, EvictReport, Existence, GroupNews, HasherKey, Hello, KeyBytes,
    KeyReport, LogObjectEntry, LogQuestion, MESSAGES_VERSION, MasterToOwner, Medium, ObjMeta,
    OpenItem, OwnerGauges, OwnerToClient, OwnerToMaster, PlanDesc, PlanId, PlanOpened, PlanRef,
    Preferred, Purpose, RankInfo, RankState, RankStats, ReadCounts, Refusal, ReplicaSet, Request,
    Response, SaveAt, SeenView, SegmentCommand, SegmentDone, Settings, SlotContent, SlotEntry,
    SlotRef, Standing, Term, Touch, TouchBatch, View, Welcome,
};
use nkv_actors::{Error, ErrorKind};
use nkv_store::KeyId;
use nkv_store::Retention;
use nkv_store::SegmentLayout;
use nkv_store::arena::Extent;
use nkv_store::layout::Region;
use nkv_store::object::ObjectDesc;
use nkv_transport::fabric::{Access, Answer, DataPath, Offer, PairAddress, RemoteRange};
use nkv_transport::wire::auth::FINISH_BYTES;
use nkv_transport::wire::{Address, FRAME_HEADER_BYTES, MAX_FRAME_BYTES};
use serde::Serialize;
use std::path::Path;

/// Inputs, each with the name of its decoder.
#[derive(Default)]
struct Seeds(Vec<(&'static str, Vec<u8>)>);

impl Seeds {
    fn add(&mut self, decoder: &'static str, rest: &[u8]) {
        let first = crate::DECODERS.iter().position(|(name, _)| *name == decoder);
        let first = first.expect("a decoder of that name") as u8;
        self.0.push((decoder, [&[first], rest].concat()));
    }

    fn bodies<T: Serialize>(&mut self, decoder: &'static str, values: &[T]) {
        for value in values {
            self.add(decoder, &again(0, value)[FRAME_HEADER_BYTES..]);
        }
    }
}

/// Writes all seeds into `folder`, one file each; returns how many. Panics if a decoder refuses
/// one.
pub fn write(folder: &Path) -> usize {
    let mut seeds = Seeds::default();
    first_frames(&mut seeds);
    seeds.bodies("request", &requests());
    seeds.bodies("response", &responses());
    link(&mut seeds);
    streams(&mut seeds);
    data(&mut seeds);
    handshakes(&mut seeds);
    for text in ["tcp://node-3:7400", "[::1]:7400", "unix:///run/nkv.sock"] {
        seeds.add("address", text.as_bytes());
    }
    for input in nkv_actors::hostile::seeds() {
        seeds.add("actors", &input);
    }
    for (n, (decoder, input)) in seeds.0.iter().enumerate() {
        assert!(crate::run(input), "seed {n} for {decoder} is not understood");
    }
    refused(&mut seeds);
    std::fs::create_dir_all(folder).expect("a folder for the seeds");
    for (n, (decoder, input)) in seeds.0.iter().enumerate() {
        std::fs::write(folder.join(format!("{n:02}-{decoder}")), input).expect("a file of a seed");
    }
    seeds.0.len()
}

const TERM: Term = Term { number: 3, master: 0xabcd };
const PLAN: PlanId = PlanId { term: TERM, seq: 9 };
const AT: SlotRef = SlotRef { incarnation: 0x1111, slot: 5, epoch: 7 };
const KEY: KeyId = KeyId { hash: 1, check: 2 };
const PLAN_REF: PlanRef = PlanRef { plan: PLAN, at: AT, key: KEY };

fn key() -> KeyBytes {
    KeyBytes::from(&b"layer/0"[..])
}

fn meta() -> ObjMeta {
    let extent = Extent { offset: 65_536, len: 4096 };
    let object = ObjectDesc { extent, bytes_total: 1000, page_bytes: 256 };
    ObjMeta { key: KEY, rank: 1, at: AT, header_off: 4096, object }
}

fn opened() -> PlanOpened {
    PlanOpened {
        object: ObjectDesc {
            extent: Extent { offset: 65_536, len: 4096 },
            bytes_total: 1000,
            page_bytes: 256,
        },
        plan: PLAN,
        token: TOKEN,
        at: AT,
        key: key(),
        producer: 1,
        request: 2,
        item: 0,
        deadline_ms: 30_000,
        set: ReplicaSet { id: 3, wanted: 2 },
        retention: Retention::SoftPin(std::time::Duration::from_secs(60)),
    }
}

fn rank() -> RankInfo {
    RankInfo {
        rank: 1,
        segment_id: 0,
        world_size: 3,
        incarnation: 0x1111,
        boot_id: 4,
        numa_node: Some(1),
        rack: "/dc1/row3/rack7".parse().expect("a path"),
        pid: 100,
        control: Address::Tcp("node-1:7400".to_string()),
        local: Some(Address::Unix("/run/nkv.sock".into())),
        data: Some("node-1:7401".to_string()),
        fabric: Some("mlx5_0".to_string()),
        http: Some("node-1:7402".to_string()),
        memory: Some("nkv.job.1.2".to_string()).into(),
        key_fingerprint: 0xf1,
        prefault: false,
        disk: false,
        layout: SegmentLayout {
            segment_bytes: 1 << 26,
            slots: 1024,
            header_base: 4096,
            arena: Region { offset: 1 << 20, len: 1 << 25 },
            quarantine_ms: 50,
            ..SegmentLayout::default()
        },
    }
}

fn seen() -> SeenView {
    SeenView { term: TERM, number: 4, incarnations: vec![0x1111, 0x2222] }
}

fn hello(purpose: Purpose) -> Hello {
    Hello { version: MESSAGES_VERSION, job: "fuzz".to_string(), purpose }
}

fn pair() -> PairAddress {
    let (gid, mtu_bytes) = ([7; 16], 4096);
    PairAddress {
        rail: 1,
        gid,
        lid: 0,
        number: 17,
        serial: 99,
        mtu_bytes,
        reads_in: 16,
        reads_out: 16,
    }
}

fn offer() -> Offer {
    Offer { pairs: vec![pair(), pair()] }
}

fn answer() -> Answer {
    let access = Access::Words;
    let words = RemoteRange { offset: 0, len: 1 << 20, address: 1 << 40, key: 5, access };
    let access = Access::PayloadReadBack;
    let payload = RemoteRange { offset: 1 << 20, len: 1 << 21, address: 1 << 46, key: 6, access };
    let path = DataPath { pair: pair(), ranges: vec![words, payload], counts: true };
    Answer { paths: vec![Ok(path), Err("no way".to_string())], one_counts: true }
}

fn first_frames(seeds: &mut Seeds) {
    let (producer, incarnation) = (1, 0x1111);
    seeds.bodies(
        "hello",
        &[
            hello(Purpose::Client { producer, ring: true }),
            hello(Purpose::Rank {
                info: Box::new(rank()),
                obeyed: TERM,
                holds: true,
                seen: seen(),
                siblings: vec![(1, 0x2222)],
            }),
            hello(Purpose::Segments(SegmentCommand::Mount { bytes: 1 << 20 })),
            hello(Purpose::Segments(SegmentCommand::Unmount { segment: 1, limit_ms: 5 })),
            hello(Purpose::Segments(SegmentCommand::Evict { until_per_mille: 500 })),
            hello(Purpose::Segments(SegmentCommand::Report)),
            hello(Purpose::Elect(Ballot {
                rank: 2,
                control: rank().control,
                world_size: 3,
                stands: true,
                knows: 1,
            })),
            hello(Purpose::Descriptor { incarnation }),
            hello(Purpose::Payload { incarnation }),
            hello(Purpose::Attach { producer, incarnation, by: AttachBy::Map }),
            hello(Purpose::Attach { producer, incarnation, by: AttachBy::Agent }),
            hello(Purpose::Attach { producer, incarnation, by: AttachBy::Fabric(offer()) }),
        ],
    );
    let settings = Settings {
        page_bytes: 4096,
        write_ttl_ms: 1,
        ttl_ms: 2,
        call_timeout_ms: 3,
        master_lease_ms: 4,
    };
    let view = View {
        placement: nkv_actors::placement::Placement::Random(9),
        master: 0,
        number: 1,
        term: TERM,
        world_size: 3,
        settled: true,
        ranks: vec![(rank(), RankState::Alive)],
    };
    let refusal = Refusal::Job { ours: "a".to_string(), theirs: "b".to_string() };
    let keys = Refusal::Keys { who: "rank 1".to_string(), ours: 1, theirs: 2 };
    seeds.bodies(
        "welcome",
        &[
            Welcome::Client {
                master: Some(rank().control),
                view,
                settings: settings.clone(),
                hasher: HasherKey([3; 16]),
                ring: Some(1 << 16),
            },
            Welcome::Rank { term: TERM, settings, confirm: true, stamp_ms: 6 },
            Welcome::Attached { term: TERM, pins: Some(3), log_token: Some(TOKEN), fabric: None },
            Welcome::Attached {
                term: TERM,
                pins: None,
                log_token: None,
                fabric: Some(Ok(answer())),
            },
            Welcome::Attached {
                term: TERM,
                pins: None,
                log_token: None,
                fabric: Some(Err("no".to_string())),
            },
            Welcome::Descriptor,
            Welcome::Elect(Standing {
                rank: 1,
                world_size: 3,
                obeyed: TERM,
                master: Some((TERM, rank().control)),
                free: false,
                granted: true,
                others: vec![(2, rank().control)],
            }),
            Welcome::Refused { why: refusal },
            Welcome::Refused { why: keys },
            Welcome::Refused { why: Refusal::Invalid("0 slots".to_string()) },
            Welcome::Refused { why: Refusal::NoProof { peer: "pid 0".to_string() } },
            Welcome::Segments(Ok(SegmentDone::Evicted(vec![EvictReport {
                segment: 0,
                objects: 1,
                bytes: 4096,
                heap_used: 4096,
                heap_total: 1 << 20,
            }]))),
            Welcome::Segments(Ok(SegmentDone::Working)),
        ],
    );
}

fn requests() -> Vec<Request> {
    let item = OpenItem {
        key: key().into(),
        bytes_total: 1000,
        preferred_rank: Some(1),
        medium: Medium::Device,
        further: vec![Preferred { rank: Some(2), medium: Medium::Host }],
        nearest: Some(nkv_actors::placement::Nearest { rank: 2, distance: 3 }),
        page_bytes: 256,
        replicas: 2,
        replica_of: None,
        retention: Retention::Usual,
    };
    vec![
        Request::OpenForWrite { request: 1, wait_ms: 100, items: vec![item.clone(), item] },
        Request::Commit(vec![PLAN_REF]),
        Request::Abort(vec![PLAN_REF]),
        Request::Withdraw { request: 1 },
        Request::GetLocation {
            keys: vec![key(), key()],
            gone: Vec::new(),
            promote: Default::default(),
        },
        Request::MatchPrefix(vec![key()]),
        Request::SaveToDisk {
            keys: vec![key()],
            at: vec![SaveAt { disks: vec![None, Some(1)], but: vec![2] }],
        },
        Request::Exists { keys: vec![key()], promote: Default::default() },
        Request::Remove(vec![key()]),
        Request::RemoveAt(vec![(key(), AT)]),
        Request::EvictUntilBelow(0.5),
        Request::Stats,
        Request::View,
        Request::Watch { term: TERM, number: 4 },
    ]
}

fn responses() -> Vec<Response> {
    let copies = vec![CopyPlan { plan: PLAN, token: TOKEN, meta: meta() }];
    let plan = PlanDesc { plan: PLAN, token: TOKEN, meta: meta(), write_ttl_ms: 9, copies };
    let error = Error::new(ErrorKind::NotFound, "no such key");
    let row = RankStats { rank: 1, state: "alive".to_string(), ..RankStats::default() };
    vec![
        Response::Plans(vec![Ok(plan), Err(error.clone())]),
        Response::Done(vec![Ok(()), Err(error.clone())]),
        Response::Locations(vec![Ok(vec![meta().into(), meta().into()]), Err(error.clone())]),
        Response::Prefix(vec![meta().into()]),
        Response::Existence {
            list: vec![
                Existence::Absent,
                Existence::Writing,
                Existence::Ready,
                Existence::Unreachable,
            ],
            owners: vec![7],
        },
        Response::Stats(ClusterStats { ranks: vec![row], ..ClusterStats::default() }),
        Response::View(View::default()),
        Response::Failed(error),
    ]
}

fn logged() -> LogObjectEntry {
    LogObjectEntry {
        object: ObjectDesc::at(4096, 1000, 256),
        key: key(),
        id: meta().key,
        slot: 5,
        epoch: 7,
        set: ReplicaSet { id: 3, wanted: 2 },
    }
}

fn link(seeds: &mut Seeds) {
    let content = [
        SlotContent::Free,
        SlotContent::Live {
            object: ObjectDesc {
                extent: Extent { offset: 0, len: 4096 },
                bytes_total: 1000,
                page_bytes: 256,
            },
            set: ReplicaSet { id: 3, wanted: 2 },
            key: key(),
            retention: Retention::Extra,
        },
        SlotContent::Open(Box::new(opened())),
        SlotContent::Held(Extent { offset: 0, len: 4096 }),
        SlotContent::Logged(Box::new(logged())),
    ];
    let entry = |what| SlotEntry { slot: 5, epoch: 7, what };
    seeds.bodies(
        "up",
        &[
            OwnerToMaster::Heartbeat { gauges: Box::<OwnerGauges>::default(), stamp_ms: 5 },
            OwnerToMaster::Retired(vec![AT]),
            OwnerToMaster::Freed(vec![AT, AT]),
            OwnerToMaster::Adopted(PLAN_REF),
            OwnerToMaster::PlansRecorded { up_to: PLAN_REF.plan },
            OwnerToMaster::Report { number: 1, slots: content.map(entry).to_vec(), last: true },
            OwnerToMaster::Announced(vec![logged(), logged()]),
            OwnerToMaster::LogAnswer {
                number: 1,
                served: vec![logged()],
                removed: vec![logged().id],
                taken: 1,
            },
            OwnerToMaster::DiskAnswer {
                number: 1,
                answer: DiskAnswer { found: vec![(0, 4096)], ..DiskAnswer::default() },
            },
            OwnerToMaster::ViewSeen { number: 4 },
            OwnerToMaster::Groups(GroupNews { used: Vec::new(), lost: vec![KEY] }),
            OwnerToMaster::Draining,
            OwnerToMaster::Leave,
        ],
    );
    seeds.bodies(
        "down",
        &[
            MasterToOwner::PlanOpened(opened()),
            MasterToOwner::Committed(vec![PLAN_REF]),
            MasterToOwner::EndPlan { plan: PLAN, at: AT, cause: EndCause::Expired },
            MasterToOwner::Retire(vec![AT]),
            MasterToOwner::FreedAck(vec![AT]),
            MasterToOwner::MakeRoom { bytes: 4096, all: 8192, attempt: 1 },
            MasterToOwner::EvictTo { bytes: 4096 },
            MasterToOwner::ReportTaken,
            MasterToOwner::RequestReport { number: 1 },
            MasterToOwner::AskLog { number: 1, question: LogQuestion::Find(vec![logged().id]) },
            MasterToOwner::AskLog { number: 2, question: LogQuestion::Remove(vec![logged().id]) },
            MasterToOwner::AskLog { number: 3, question: LogQuestion::RemoveAll },
            MasterToOwner::AskLog {
                number: 5,
                question: LogQuestion::EndSets(vec![(logged().id, 1 << 31 | 9)]),
            },
            MasterToOwner::AskLog { number: 4, question: LogQuestion::AnnounceAll },
            MasterToOwner::AskDisk { number: 5, question: DiskQuestion::Find(vec![key()]) },
            MasterToOwner::AskDisk {
                number: 6,
                question: DiskQuestion::Remove {
                    removal: 9,
                    which: DiskSelection::Matching("layer".to_string()),
                },
            },
            MasterToOwner::AskDisk { number: 7, question: DiskQuestion::Save(vec![key()]) },
            MasterToOwner::RemovalOver { removal: 9, again: true },
            MasterToOwner::InSet(vec![(AT, ReplicaSet { id: 3, wanted: 2 })]),
            MasterToOwner::MakeReplicas(vec![key()]),
            MasterToOwner::Groups(GroupNews { used: vec![KEY], lost: Vec::new() }),
            MasterToOwner::View(seen()),
            MasterToOwner::Heartbeat { stamp_ms: 5 },
            MasterToOwner::Refused("slot 9 of 8".to_string()),
        ],
    );
    attachment(seeds);
}

/// Between a handle and an owner.
fn attachment(seeds: &mut Seeds) {
    let touch = Touch { slot: 5, epoch: 7, bytes: 1000, read: true };
    seeds.bodies(
        "to-owner",
        &[
            ClientToOwner::Touched(TouchBatch {
                list: vec![touch, touch],
                counts: ReadCounts::default(),
            }),
            ClientToOwner::CheckPlan(PLAN),
            ClientToOwner::Dropped(PLAN),
            ClientToOwner::TermObeyed { term: TERM, held: vec![] },
            ClientToOwner::KeysReported(vec![KeyReport {
                slot: 5,
                epoch: 7,
                key: key(),
                group: Some(KEY),
            }]),
            ClientToOwner::Abandoned(Abandoned { position: 4096, bytes: 8192 }),
            ClientToOwner::ClearBelow(1 << 40),
            ClientToOwner::NamesSent(3),
            ClientToOwner::Detach,
        ],
    );
    let to_client = [
        OwnerToClient::Drop(PLAN),
        OwnerToClient::Refused("a read of 0 slots".to_string()),
        OwnerToClient::Plan { plan: PLAN, open: true },
        OwnerToClient::Term(TERM),
        OwnerToClient::ClearBelow(1 << 40),
        OwnerToClient::SendNames(3),
    ];
    seeds.bodies("to-client", &to_client);
}

/// Whole connections: kind, limit, end and seed of the pieces before the frames.
fn streams(seeds: &mut Seeds) {
    let mut add = |head: [u8; 4], frames: &[Vec<u8>]| {
        seeds.add("stream", &[&head[..], &frames.concat()].concat());
    };
    let client = hello(Purpose::Client { producer: 1, ring: false });
    add([0, 0, 0, 1], &[again(0, &client), again(1, &client)]);
    let frames: Vec<_> = requests().iter().zip(1..).map(|(r, id)| again(id, r)).collect();
    add([1, 1, 0, 7], &frames);
    let frames: Vec<_> = responses().iter().zip(1..).map(|(r, id)| again(id, r)).collect();
    add([2, 1, 0, 9], &frames);
    add(
        [3, 0, 0, 3],
        &[again(0, &OwnerToMaster::Freed(vec![AT])), again(0, &OwnerToMaster::Leave)],
    );
    add(
        [4, 1, 0, 5],
        &[again(0, &ClientToOwner::CheckPlan(PLAN)), again(0, &ClientToOwner::Detach)],
    );
    add([0, 2, 0, 2], &[again(1, &key()), again(2, &KeyBytes::from(vec![7; 300]))]);
}

/// One request to an agent: verbs as (code, offset, a, b), where the code's high half is the second
/// word; then the payload of the writes.
fn asked(token: u64, verbs: &[(u64, u64, u64, u64)], payload: &[u8]) -> Vec<u8> {
    let sum = |code| verbs.iter().filter(|v| v.0 as u32 == code).map(|v| v.2).sum::<u64>();
    let mut bytes = b"nkvq".to_vec();
    bytes.extend((verbs.len() as u32).to_le_bytes());
    for word in [1, token, sum(2), sum(1)] {
        bytes.extend(word.to_le_bytes());
    }
    for (code, offset, a, b) in verbs {
        bytes.extend(code.to_le_bytes());
        for word in [offset, a, b] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// The tcp data protocol, both ends. Verbs: 1 read, 2 write, 3 store, 4 add, 5 swap, 6 flush,
/// 7 find, 8 append.
fn data(seeds: &mut Seeds) {
    let (header, extent) = (GRANT.header_off, GRANT.extent.offset);
    let word = |state: u64| state | u64::from(GRANT.epoch) << 32;
    let put = [
        (2, header, 32, 0),
        (3, header + 32, word(1), 0),
        (2, extent, 100, 0),
        (6, 0, 0, 0),
        (5, header + 32, word(1), word(2)),
        (1, header, 64, 0),
    ];
    let put = asked(TOKEN, &put, &[9; 132]);
    let get = asked(0, &[(1, 0, 64, 0), (1, extent, 5000, 0)], &[]);
    let denied = asked(TOKEN, &[(4, 0, 1, 0)], &[]);
    let outside = asked(TOKEN, &[(2, agent::SEGMENT_BYTES - 4, 8, 0)], &[1; 8]);
    // Second words: a page size, "of what was appended", "of what was found".
    const RELATIVE: u64 = 1 << 32;
    let append = [(8 | 4096 << 32, 11, 200, 12), (2 | RELATIVE, 0, 200, 0), (1, 0, 64, 0)];
    let append = asked(agent::LOG_TOKEN, &append, &[9; 200]);
    let find = [(7, 11, 0, 12), (1 | RELATIVE, 0, 64, 0), (1 | RELATIVE, 64, 100, 0)];
    let find = asked(0, &find, &[]);
    let in_a_row = [&denied[..], &append, &outside, &find, &get, &put].concat();
    for requests in [put, get, append, find, in_a_row] {
        seeds.add("agent", &[&[1, 3], &requests[..]].concat());
        seeds.add("agent", &[&[0, 255], &agent::hello()[..], &requests].concat());
    }
    let mut answer = b"nkvr".to_vec();
    answer.extend(0u32.to_le_bytes());
    answer.extend(1u64.to_le_bytes());
    for n in [0u32, 2] {
        answer.extend(n.to_le_bytes());
    }
    answer.extend((8 + answers::LARGE_BYTES as u64).to_le_bytes());
    answer.extend([0; 8]);
    answer.extend([5; 2 * 8 + 8 + answers::LARGE_BYTES]);
    seeds.add("answers", &[&[1], &answer[..]].concat());
    seeds.add("answers", &[&[0], &answers::welcome()[..], &answer].concat());
}

/// Both ends of a handshake where nothing is asked for: with a secret no prepared word passes.
fn handshakes(seeds: &mut Seeds) {
    let opening = handshake::talk(CLIENT[1], 1, &[]).1;
    seeds.add("handshake", &[&[NODE[1], 1], &opening[..]].concat());
    let answer = handshake::talk(NODE[1], 1, &opening).1;
    seeds.add("handshake", &[&[CLIENT[1], 1], &answer[..]].concat());
}

/// Both ends of a handshake with a secret, up to what was made for another's key.
fn forged_handshakes(seeds: &mut Seeds) {
    let opening = handshake::talk(CLIENT[0], 1, &[]).1;
    let repeated = [&opening[..], &[7; FINISH_BYTES]].concat();
    seeds.add("handshake", &[&[NODE[0], 1], &repeated[..]].concat());
    let answer = handshake::talk(NODE[0], 1, &opening).1;
    seeds.add("handshake", &[&[CLIENT[0], 1], &answer[..]].concat());
}

/// What must be refused: more than every limit, announced and sent.
fn refused(seeds: &mut Seeds) {
    forged_handshakes(seeds);
    for (limit, claim) in [(0, 1 << 20), (1, MAX_FRAME_BYTES as u32), (2, u32::MAX)] {
        let mut input = vec![1, limit, 1, 1];
        input.extend(claim.to_le_bytes());
        input.extend(nkv_transport::wire::WIRE_VERSION.to_le_bytes());
        input.extend([0; 10]);
        seeds.add("stream", &input);
    }
    let mut too_large = asked(TOKEN, &[(2, GRANT.extent.offset, 1 << 40, 0)], &[]);
    too_large.extend([7; 64]);
    seeds.add("agent", &[&[1, 3], &too_large[..]].concat());
}
