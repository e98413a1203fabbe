//! Tokens: what they cover, and that after a fence not a byte of the old plan arrives.

use super::raw::{FETCH_ADD, OK, READ, REFUSED, Raw, STORE, WRITE, request};
use super::{GRANT, INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually, granted};
use nkv_pace::{HANGS, timed};
use nkv_store::layout::{state, word};
use nkv_store::threads::spawn_named;
use nkv_store::{AnonMemory, Memory, random_u64};
use nkv_transport::access::{Access, Cut, Intent, Permit};
use nkv_transport::verbs::{NoObserver, Post, PostObserver};
use nkv_transport::{AgentLimits, Op, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PUBLISH: u64 = GRANT.header_off + 40;

fn refused<T: std::fmt::Debug>(r: Result<T, TransportError>) -> String {
    match r {
        Err(TransportError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_plan_writes_its_object_and_publishes_it() {
    let rig = granted();
    let client = rig.client();
    let payload = vec![7u8; GRANT.extent.len as usize];
    let mut ops = [
        Op::Write { offset: GRANT.header_off, src: &[1; 40] },
        Op::Store { offset: PUBLISH, value: word(state::WRITING, 7) },
        Op::Write { offset: GRANT.extent.offset, src: &payload },
        Op::CompareSwap {
            offset: PUBLISH,
            expect: word(state::WRITING, 7),
            new: word(state::READY, 7),
            old: 0,
        },
    ];
    client.post(TOKEN, &mut ops).unwrap();
    assert!(matches!(ops[3], Op::CompareSwap { old, .. } if old == word(state::WRITING, 7)));
    assert_eq!(rig.memory.load(PUBLISH).unwrap(), word(state::READY, 7));
    let counters = rig.agent.counters();
    assert_eq!(counters.bytes_in.load(Ordering::Relaxed), GRANT.extent.len + 40);
    assert_eq!(counters.requests.load(Ordering::Relaxed), 1);
    eventually("the permit is given back", || {
        rig.grants.revoke(TOKEN);
        rig.grants.is_drained(TOKEN)
    });
}

#[test]
fn i10_a_batch_with_one_verb_outside_its_grant_places_no_byte() {
    let rig = granted();
    let client = rig.client();
    let big = vec![7u8; 3 << 20];
    for bad in [
        Op::Write { offset: GRANT.extent.offset + GRANT.extent.len - 1, src: &[1, 1] },
        Op::Write { offset: GRANT.header_off + 48, src: &[1; 8] },
        Op::Write { offset: PUBLISH, src: &[1; 8] },
        Op::Store { offset: PUBLISH, value: word(state::READY, 7) },
        Op::FetchAdd { offset: 16, add: 1, old: 0 },
    ] {
        let mut ops = [
            Op::Write { offset: GRANT.header_off, src: &[1; 40] },
            Op::Write { offset: GRANT.extent.offset, src: &big },
            bad,
        ];
        let why = refused(client.post(TOKEN, &mut ops));
        assert!(why.contains("epoch 7"), "{why}");
    }
    assert!(rig.is_untouched());
    assert_eq!(rig.agent.counters().refused.load(Ordering::Relaxed), 5);
    // The connection stayed in step, payload and all.
    client.write(TOKEN, GRANT.extent.offset, &big).unwrap();
    assert_eq!(rig.agent.counters().connections.load(Ordering::Relaxed), 1);
}

#[test]
fn an_unknown_token_is_refused_after_a_moment_and_a_late_one_is_waited_for() {
    let rig = granted();
    let client = rig.client();
    let (r, took) = timed(|| client.write(TOKEN + 1, GRANT.extent.offset, &[1; 100]));
    assert!(refused(r).contains("no open plan"));
    assert!(took.ms >= 400 && took.within(1_500), "{took}");
    let late = spawn_named("late", move || {
        client.write(TOKEN + 2, GRANT.extent.offset, &[1; 100]).map(|()| client)
    })
    .unwrap();
    eventually("the agent has the request", || {
        rig.agent.counters().requests.load(Ordering::Relaxed) == 2
    });
    rig.grants.open(TOKEN + 2, GRANT);
    late.join().unwrap().unwrap();
}

#[test]
fn i10_a_revoked_token_is_refused_at_once_and_forever() {
    let rig = granted();
    let client = rig.client();
    client.write(TOKEN, GRANT.extent.offset, &[1; 100]).unwrap();
    assert!(rig.grants.revoke(TOKEN));
    assert!(rig.grants.wait_drained(TOKEN, HANGS));
    for _ in 0..2 {
        let (r, took) = timed(|| client.write(TOKEN, GRANT.extent.offset, &[2; 100]));
        assert!(refused(r).contains("ended") && took.within(400), "{took}");
    }
    rig.grants.forget(TOKEN);
    assert!(client.write(TOKEN, GRANT.extent.offset, &[2; 100]).is_err());
    let mut now = [0; 100];
    client.read(GRANT.extent.offset, &mut now).unwrap();
    assert_eq!(now, [1; 100]);
}

/// A peer sends half of a payload and stalls; the fence must not wait for it.
#[test]
fn i10_revoking_frees_the_gate_from_a_stalled_write_and_later_bytes_change_nothing() {
    const HALF: usize = 1 << 20;
    let rig = granted();
    let mut peer = rig.raw();
    let write = (WRITE, GRANT.extent.offset, 2 * HALF as u64, 0);
    let ready = (STORE, PUBLISH, word(state::WRITING, 7), 0);
    peer.send(&request(3, TOKEN, &[write, ready]));
    peer.send(&vec![0xaa; HALF]);
    let last = GRANT.extent.offset + HALF as u64 - 8;
    eventually("the first half has landed", || {
        rig.memory.load(last).unwrap() == u64::from_ne_bytes([0xaa; 8])
    });
    assert!(!rig.grants.is_drained(TOKEN));
    assert!(rig.grants.revoke(TOKEN));
    let (out, took) = timed(|| rig.grants.wait_drained(TOKEN, HANGS));
    assert!(out && took.within(1_000), "the fence took {took}");
    let before = rig.bytes();
    // It continues as if nothing had happened; at some point it gets the answer.
    let _ = peer.0.write_all(&vec![0xbb; HALF]);
    let answer = peer.answer().unwrap();
    assert_eq!((answer.status, answer.id, answer.closing), (REFUSED, 3, true));
    assert!(answer.text.contains("ended"), "{}", answer.text);
    assert!(peer.is_closed());
    let after = rig.bytes();
    assert!(before == after, "a byte arrived after the fence");
    assert_eq!(rig.memory.load(PUBLISH).unwrap(), 0);
}

#[test]
fn i10_no_byte_arrives_after_a_fence_among_busy_writers() {
    for _ in 0..30 {
        let rig = granted();
        let token = random_u64();
        rig.grants.open(token, GRANT);
        let client = Arc::new(rig.client());
        let writers: Vec<_> = (0..2u8)
            .map(|t| {
                let client = client.clone();
                spawn_named("writer", move || {
                    for round in 1u8.. {
                        let at = GRANT.extent.offset + (u64::from(t) << 20);
                        let r = client.write(token, at, &vec![round; 700_000]);
                        if let Err(e) = r {
                            return e;
                        }
                    }
                    panic!("256 writes and no fence");
                })
                .unwrap()
            })
            .collect();
        eventually("both write", || {
            rig.memory.load(GRANT.extent.offset).unwrap() != 0
                && rig.memory.load(GRANT.extent.offset + (1 << 20)).unwrap() != 0
        });
        rig.grants.revoke(token);
        assert!(rig.grants.wait_drained(token, HANGS));
        let before = rig.bytes();
        for w in writers {
            let e = w.join().unwrap();
            assert!(matches!(e, TransportError::Refused(_)), "{e:?}");
        }
        assert!(before == rig.bytes());
    }
}

#[test]
fn a_fence_of_one_plan_leaves_other_plans_and_reads_alone() {
    let rig = granted();
    rig.grants.open(TOKEN + 1, GRANT);
    let mut stalled = rig.raw();
    stalled.send(&request(1, TOKEN, &[(WRITE, GRANT.extent.offset, 1000, 0)]));
    stalled.send(&[1; 500]);
    let mut other = rig.raw();
    other.send(&request(1, TOKEN + 1, &[(WRITE, GRANT.extent.offset + 4096, 1000, 0)]));
    other.send(&[2; 500]);
    eventually("both are inside", || {
        rig.memory.load(GRANT.extent.offset + 488).unwrap() != 0
            && rig.memory.load(GRANT.extent.offset + 4096 + 488).unwrap() != 0
    });
    rig.grants.revoke(TOKEN);
    assert!(rig.grants.wait_drained(TOKEN, HANGS));
    other.send(&[2; 500]);
    assert_eq!(other.answer().unwrap().status, OK);
    other.send(&request(2, 0, &[(READ, GRANT.extent.offset + 4096, 1000, 0)]));
    assert_eq!(other.answer().unwrap().payload, [2; 1000]);
    let answer = stalled.answer().unwrap();
    assert_eq!((answer.status, answer.closing), (REFUSED, true));
    assert!(stalled.is_closed());
}

#[test]
fn a_peer_that_does_not_read_its_answer_holds_no_gate() {
    let rig = granted();
    let mut peer = rig.raw();
    // The answer is larger than any socket buffer and is not read.
    let mut descs = vec![(WRITE, GRANT.extent.offset, 8, 0)];
    descs.extend([(READ, 0, SEGMENT_BYTES, 0); 8]);
    peer.send(&request(1, TOKEN, &descs));
    peer.send(&[5; 8]);
    eventually("the write has landed", || rig.memory.load(GRANT.extent.offset).unwrap() != 0);
    rig.grants.revoke(TOKEN);
    assert!(rig.grants.wait_drained(TOKEN, HANGS));
    let answer = peer.answer().unwrap();
    assert_eq!((answer.status, answer.payload.len()), (OK, 64 << 20));
}

#[test]
fn i1_no_atomic_addition_is_granted_by_a_plan() {
    let rig = granted();
    let mut peer = rig.raw();
    peer.send(&request(1, TOKEN, &[(FETCH_ADD, 16, 1, 0)]));
    assert_eq!(peer.answer().unwrap().status, REFUSED);
    assert!(rig.is_untouched());
}

/// A fence that comes just when the last byte of a request was written.
#[derive(Debug)]
struct CutsWhileInside;

impl Access for CutsWhileInside {
    fn admit<'a>(&'a self, _: u64, cut: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String> {
        Ok(Box::new(CutOnCheck(cut.clone())))
    }
}

struct CutOnCheck(Arc<dyn Cut>);

impl Permit for CutOnCheck {
    fn check(&self, _: &Intent) -> Result<(), String> {
        self.0.cut();
        Ok(())
    }

    fn is_revoked(&self) -> bool {
        false
    }
}

/// An agent that behaves so for every request.
fn cutting() -> (Arc<AnonMemory>, TcpAgent) {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let (at, limits) = ("127.0.0.1:0".parse().unwrap(), AgentLimits::default());
    let access = Arc::new(CutsWhileInside);
    let agent = TcpAgent::start(at, memory.clone(), INCARNATION, JOB, access, None, limits);
    (memory, agent.unwrap())
}

#[test]
fn a_request_done_in_spite_of_a_cut_is_answered_and_its_connection_not_used_again() {
    let (memory, agent) = cutting();
    let to = agent.local_addr();
    let mut peer = Raw::connect(to, INCARNATION, JOB);
    let mut bytes = request(1, TOKEN, &[(WRITE, 0, 100, 0)]);
    bytes.extend([7; 100]);
    peer.send(&bytes);
    let answer = peer.answer().unwrap();
    assert_eq!((answer.status, answer.closing), (OK, true));
    assert!(peer.is_closed());
    let client = TcpVerbs::connect(&to.to_string(), INCARNATION, JOB, TcpOptions::default());
    let client = client.unwrap();
    for round in 1..10u8 {
        client.write(TOKEN, 8, &[round; 64]).unwrap();
        assert_eq!(memory.load(8).unwrap(), u64::from_ne_bytes([round; 8]));
    }
}

/// How often each batch was submitted and completed.
struct Pairs(Vec<(u32, u32)>);

impl PostObserver for Pairs {
    fn on_submit(&mut self, index: usize) -> Result<(), TransportError> {
        let (left, over) = &mut self.0[index];
        assert_eq!(left, over, "batch {index} is still on its way");
        *left += 1;
        Ok(())
    }

    fn on_complete(&mut self, index: usize) {
        self.0[index].1 += 1;
    }
}

/// A request behind one whose connection is closed was not executed, and is sent again; it is
/// executed once.
#[test]
fn i1_batches_of_one_call_happen_once_though_every_answer_closes_its_connection() {
    let (memory, agent) = cutting();
    let to = agent.local_addr().to_string();
    let client = TcpVerbs::connect(&to, INCARNATION, JOB, TcpOptions::default()).unwrap();
    // The small ones come with the request before them, into one buffer of the agent; the large
    // ones do not fit it, but into one segment, which has come whole when the cut ends the
    // reception.
    let payload = vec![3; 30_000];
    let sizes = [8, 8, 30_000, 8, 8, 30_000, 30_000, 8];
    let mut chains: Vec<_> = sizes
        .iter()
        .map(|n| {
            let write = Op::Write { offset: 4096, src: &payload[..*n] };
            [write, Op::FetchAdd { offset: 64, add: 1, old: 99 }]
        })
        .collect();
    let mut posts: Vec<_> = chains.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
    let mut pairs = Pairs(vec![(0, 0); sizes.len()]);
    for (i, result) in client.post_many(&mut posts, &mut pairs).into_iter().enumerate() {
        result.unwrap_or_else(|e| panic!("batch {i}: {e}"));
    }
    assert!(pairs.0.iter().all(|(left, over)| left == over && *left > 0), "{:?}", pairs.0);
    assert!(pairs.0.iter().any(|(left, _)| *left > 1), "one at least had to leave again");
    assert_eq!(memory.load(64).unwrap(), sizes.len() as u64);
    let found = |ops: &[Op<'_>; 2]| match ops[1] {
        Op::FetchAdd { old, .. } => old,
        _ => unreachable!(),
    };
    let mut olds: Vec<u64> = chains.iter().map(found).collect();
    olds.sort_unstable();
    assert_eq!(olds, (0..sizes.len() as u64).collect::<Vec<_>>());
}

/// A batch that is refused with a complete answer does not affect others.
#[test]
fn i10_batches_of_one_call_are_refused_each_for_itself() {
    let rig = granted();
    let client = rig.client();
    // The agent waits half a second for each unknown token: in total more than one batch's limit.
    let payload = vec![3; 2_000];
    let tokens = [TOKEN, 1, 2, TOKEN, 3, 4, 5, TOKEN];
    let mut chains: Vec<_> = (0..tokens.len() as u64)
        .map(|i| [Op::Write { offset: (1 << 20) + 2_000 * i, src: &payload }])
        .collect();
    let mut posts: Vec<_> =
        tokens.iter().zip(&mut chains).map(|(token, ops)| Post { token: *token, ops }).collect();
    for (token, result) in tokens.iter().zip(client.post_many(&mut posts, &mut NoObserver)) {
        match *token {
            TOKEN => result.unwrap(),
            _ => drop(refused(result)),
        }
    }
    let bytes = rig.bytes();
    for (i, token) in tokens.iter().enumerate() {
        let at = (1 << 20) + 2_000 * i;
        let want = if *token == TOKEN { 3 } else { 0 };
        assert!(bytes[at..at + 2_000].iter().all(|b| *b == want), "batch {i}");
    }
}
