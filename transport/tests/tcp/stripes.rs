//! Large reads and writes over several connections: whole, in order, and with the same checks as
//! over one connection when something fails in the middle.

use super::between::{Between, Interference};
use super::{
    Fixture, GRANT, INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually, granted, rig_with,
};
use nkv_pace::{HANGS, timed};
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, Region, flag, state, word};
use nkv_store::object::{ObjectDesc, Publication, Reading};
use nkv_store::threads::spawn_named;
use nkv_store::{AnonMemory, Expect, KeyHasher, KeyId, Memory, Stripes, Unreadable};
use nkv_transport::access::{Access, Cut, Intent, OpenAccess, Permit};
use nkv_transport::{AgentLimits, Op, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PUBLISH: u64 = GRANT.header_off + PUBLISH_OFF;
/// What an agent does for another client while one stripe is held back.
const BESIDE: usize = 50;
/// Payload of an object that fills its extent.
const WHOLE: usize = GRANT.extent.len as usize;
/// Offset in the extent at which its stripes begin.
const STRIPE: usize = WHOLE / 4;

fn options(from_bytes: u64) -> TcpOptions {
    TcpOptions { stripes: Stripes::new(4, from_bytes), ..TcpOptions::default() }
}

fn connect(to: SocketAddr) -> TcpVerbs {
    TcpVerbs::connect(&to.to_string(), INCARNATION, JOB, options(1 << 20)).unwrap()
}

fn key() -> KeyId {
    KeyHasher::new([7; 16]).id(b"striped")
}

fn publication() -> Publication {
    let slot = (GRANT.header_off, GRANT.epoch);
    Publication::new(
        slot,
        key(),
        &ObjectDesc::at(GRANT.extent.offset, GRANT.extent.len, WHOLE as u32),
    )
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i.wrapping_mul(2_654_435_761)) >> 11) as u8 ^ seed as u8).collect()
}

fn payload_in(memory: &AnonMemory) -> Vec<u8> {
    let mut now = vec![0; WHOLE];
    memory.read(GRANT.extent.offset, &mut now).unwrap();
    now
}

fn connections(rig: &Fixture) -> u64 {
    rig.agent.counters().connections.load(Ordering::Relaxed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn i4_stripes_of_any_length_and_place_arrive_whole_and_touch_nothing_else(
        len in 0usize..1_000_000,
        at in 0u64..100_000,
        shift in 0usize..70,
        from_bytes in 0u64..600_000,
    ) {
        let rig = rig_with(AgentLimits::default(), true);
        let client = rig.client_with(options(from_bytes)).unwrap();
        let bytes = pattern(len + shift, len);
        let src = &bytes[shift..];
        client.write(TOKEN, at, src).unwrap();
        let all = rig.bytes();
        let (before, rest) = all.split_at(at as usize);
        prop_assert!(&rest[..len] == src);
        prop_assert!(before.iter().chain(&rest[len..]).all(|b| *b == 0));
        let mut back = vec![0xee; len + shift];
        client.read(at, &mut back[shift..]).unwrap();
        prop_assert!(&back[shift..] == src && back[..shift].iter().all(|b| *b == 0xee));
    }
}

#[test]
fn a_large_write_takes_several_connections_and_a_small_one_does_not() {
    let rig = granted();
    let client = rig.client_with(options(1 << 20)).unwrap();
    client.write(TOKEN, GRANT.extent.offset, &pattern((1 << 20) - 1, 1)).unwrap();
    assert_eq!(connections(&rig), 1);
    let payload = pattern(WHOLE, 2);
    let (object, mut dst) = (publication(), vec![0; WHOLE]);
    let mut ops = object.whole(&payload);
    client.post(TOKEN, &mut ops).unwrap();
    assert_eq!(object.took(&ops), Ok(()));
    let ((), took) = timed(|| {
        client.read(GRANT.extent.offset, &mut dst).unwrap();
        assert!(dst == payload && connections(&rig) == 4);
        // Others need connections too: those unused for two seconds are closed, except the last.
        client.trim();
        assert_eq!(connections(&rig), 4);
        eventually("they are closed", || {
            client.trim();
            connections(&rig) == 1
        });
    });
    assert!(took.ms >= 1_900, "used {took} ago at most");
    client.read(GRANT.extent.offset, &mut dst).unwrap();
    assert!(dst == payload);
}

#[test]
fn stripes_do_with_the_connections_that_there_are() {
    let rig = rig_with(AgentLimits { max_connections: 2, ..AgentLimits::default() }, true);
    let client = rig.client_with(options(1 << 20)).unwrap();
    let payload = pattern(WHOLE, 3);
    let (done, took) =
        timed(|| (0..3).try_for_each(|_| client.write(TOKEN, GRANT.extent.offset, &payload)));
    done.unwrap();
    assert!(payload_in(&rig.memory) == payload && took.within(5_000), "{took}");
    assert_eq!(connections(&rig), 2);
    // The agent was not asked without success each time.
    assert_eq!(rig.agent.counters().turned_away.load(Ordering::Relaxed), 1);
}

/// Each holds one connection and wants more: no post may wait for another one that does the same.
#[test]
fn many_large_posts_at_a_time_on_few_connections_all_end() {
    let rig = rig_with(AgentLimits::default(), true);
    let options = TcpOptions { max_connections: 3, ..options(256 << 10) };
    let client = Arc::new(rig.client_with(options).unwrap());
    let writers: Vec<_> = (0..8u64)
        .map(|i| {
            let client = client.clone();
            spawn_named("writer", move || {
                let src = pattern(700_000, i as usize);
                (0..10).try_for_each(|_| client.write(TOKEN, i * 1_000_000, &src))
            })
            .unwrap()
        })
        .collect();
    writers.into_iter().for_each(|w| w.join().unwrap().unwrap());
    let all = rig.bytes();
    for i in 0..8 {
        assert!(all[i * 1_000_000..][..700_000] == pattern(700_000, i));
    }
    assert!(connections(&rig) <= 3);
}

/// Holds one stripe back before its first byte.
#[derive(Debug)]
struct Holding {
    at: u64,
    held: Arc<AtomicBool>,
}

impl Access for Holding {
    fn admit<'a>(&'a self, _: u64, _: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String> {
        Ok(Box::new(HeldPermit(self)))
    }
}

struct HeldPermit<'a>(&'a Holding);

impl Permit for HeldPermit<'_> {
    fn check(&self, intent: &Intent) -> Result<(), String> {
        OpenAccess.check(intent)
    }

    fn is_revoked(&self) -> bool {
        false
    }

    fn starts(&self, intent: &Intent, _: &[u8]) -> Result<(), String> {
        let mine = matches!(intent, Intent::Write { offset, .. } if *offset == self.0.at);
        while mine && self.0.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Releases the stripe however a test ends: an agent waits for its threads.
struct LetGo(Arc<AtomicBool>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn i4_ready_is_not_seen_while_one_stripe_is_still_to_be_placed() {
    for late in 0..4 {
        let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
        let held = Arc::new(AtomicBool::new(true));
        let at = GRANT.extent.offset + (late * STRIPE) as u64;
        let access = Arc::new(Holding { at, held: held.clone() });
        let (any, limits) = ("127.0.0.1:0".parse().unwrap(), AgentLimits::default());
        let agent =
            TcpAgent::start(any, memory.clone(), INCARNATION, JOB, access, None, limits).unwrap();
        let let_go = LetGo(held);
        let client = connect(agent.local_addr());
        let payload = pattern(WHOLE, late);
        let src = payload.clone();
        let put = spawn_named("put", move || {
            let object = publication();
            let mut ops = object.whole(&src);
            client.post(TOKEN, &mut ops).map(|()| object.took(&ops))
        })
        .unwrap();
        eventually("the other stripes have landed", || {
            let now = payload_in(&memory);
            (0..4).all(|i| {
                i == late || now[i * STRIPE..][..STRIPE] == payload[i * STRIPE..][..STRIPE]
            })
        });
        // However often the agent does other work meanwhile.
        let beside = connect(agent.local_addr());
        for _ in 0..BESIDE {
            assert_eq!(memory.load(PUBLISH).unwrap(), word(state::WRITING, GRANT.epoch));
            beside.read(0, &mut [0; 8]).unwrap();
        }
        drop(let_go);
        assert_eq!(put.join().unwrap().unwrap(), Ok(()));
        assert_eq!(memory.load(PUBLISH).unwrap(), word(state::READY, GRANT.epoch));
        assert!(payload_in(&memory) == payload);
    }
}

#[test]
fn i10_a_stripe_whose_connection_breaks_fails_the_call_and_writes_nothing_after_the_fence() {
    let rig = granted();
    let between = Between::start(rig.agent.local_addr(), Interference::ClosesClient(300_000));
    let client = connect(between.at);
    let payload = pattern(WHOLE, 9);
    let object = publication();
    let mut ops = object.whole(&payload);
    let failed = client.post(TOKEN, &mut ops);
    assert!(matches!(failed, Err(TransportError::Disconnected(_))), "{failed:?}");
    assert!(between.met() && between.connections() == 4);
    assert_eq!(rig.memory.load(PUBLISH).unwrap(), word(state::WRITING, GRANT.epoch));
    // The others did not stay in flight: completed, or never begun.
    let now = payload_in(&rig.memory);
    let stripe = |of: &[u8], i: usize| of[i * STRIPE..][..STRIPE].to_vec();
    let in_part = |i: &usize| {
        let there = stripe(&now, *i);
        there != stripe(&payload, *i) && there.iter().any(|b| *b != 0)
    };
    assert_eq!((0..4).filter(in_part).count(), 1);
    // The agent still has the broken one's connection open, inside the plan: a fence cuts it.
    assert!(!rig.grants.is_drained(TOKEN));
    assert!(rig.grants.revoke(TOKEN));
    assert!(rig.grants.wait_drained(TOKEN, HANGS));
    let fenced = rig.bytes();
    between.release();
    assert!(matches!(client.post(TOKEN, &mut object.publish()), Err(TransportError::Refused(_))));
    eventually("the rest of that stripe was sent", || between.sent_the_rest());
    drop(client);
    eventually("nobody is left who could place it", || connections(&rig) == 0);
    assert!(fenced == rig.bytes(), "a byte arrived after the fence");
}

/// A striped read with one stripe held back, and what a reader may accept of it.
fn read_meanwhile(meanwhile: impl FnOnce(&AnonMemory)) -> (Vec<u8>, Result<(), Unreadable>) {
    let rig = rig_with(AgentLimits::default(), true);
    let object = publication();
    let payload = pattern(WHOLE, 5);
    for op in object.whole(&payload).iter_mut() {
        let reserved = matches!(op, Op::CompareSwap { .. });
        op.run(rig.memory.as_ref()).unwrap();
        assert!(!reserved || rig.memory.load(PUBLISH).unwrap() == word(state::READY, GRANT.epoch));
    }
    let live = word(flag::LIVE, GRANT.epoch);
    rig.memory.store(GRANT.header_off + OWNER_OFF, live).unwrap();
    let between = Between::start(rig.agent.local_addr(), Interference::HoldsAnswer(200_000));
    let client = connect(between.at);
    let expect = Expect {
        key: Some(key()),
        epoch: Some(GRANT.epoch),
        payload_base: GRANT.extent.offset,
        bytes_total: GRANT.extent.len,
    };
    let (between, arena) = (Arc::new(between), GRANT.extent);
    let holds = between.clone();
    let reader = spawn_named("reader", move || {
        // Again, where a busy machine left the read to one connection, which is not held.
        loop {
            let (mut reading, mut dst) = (Reading::new(GRANT.header_off, expect), vec![0; WHOLE]);
            client.post(0, &mut reading.chain(&mut dst)).unwrap();
            if holds.met() {
                let arena = Region { offset: arena.offset, len: arena.len };
                return (dst, reading.judge(&arena));
            }
        }
    })
    .unwrap();
    eventually("a stripe is held back", || between.met());
    // Everything that does not wait for it makes progress.
    let beside = rig.client();
    (0..BESIDE).for_each(|_| beside.read(0, &mut [0; 8]).unwrap());
    meanwhile(&rig.memory);
    between.release();
    reader.join().unwrap()
}

#[test]
fn i7_a_striped_read_is_not_believed_if_the_object_is_retired_before_its_last_stripe() {
    let (bytes, judged) = read_meanwhile(|_| ());
    assert!(bytes == pattern(WHOLE, 5) && judged.is_ok(), "{judged:?}");
    let (_, judged) = read_meanwhile(|memory| {
        memory.store(GRANT.header_off + OWNER_OFF, word(0, GRANT.epoch)).unwrap();
        memory.write(GRANT.extent.offset, &vec![0xdd; WHOLE]).unwrap();
    });
    assert_eq!(judged, Err(Unreadable::Gone));
}
