//! Correct producers over real connections, and what their owner finds.

use super::*;
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

#[test]
fn i13_a_producer_over_tcp_claims_writes_and_publishes_and_its_owner_accepts() {
    let mut rig = rig(64, 4096, AgentLimits::default());
    let client = rig.client();
    for (name, bytes) in [(1, 4096), (2, 100), (3, 60_000)] {
        let write = place(&*client, ONE, &rig, name, bytes);
        let (publication, payload) = (write.publication(), fill(name, bytes));
        let mut ops = publication.whole(&payload);
        client.post(ONE, &mut ops).unwrap();
        assert_eq!(publication.took(&ops), Ok(()));
        assert!(rig.one.clear_below(u64::MAX));
        assert_eq!(rig.log.accept(0, &mut rig.index).unwrap(), 1);
        assert!(rig.payload_of(name) == payload);
    }
    let aborted = place(&*client, ONE, &rig, 4, 100);
    client.post(ONE, &mut aborted.publication().announce()).unwrap();
    client.post(ONE, &mut aborted.abort().ops()).unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    let counts = rig.log.counts();
    assert_eq!((counts.accepted.claims, counts.skipped.claims), (3, 1));
    assert_eq!(rig.log.unsettled_bytes().unwrap(), 0);
}

#[test]
fn i4_a_chain_that_is_split_into_many_requests_is_written_in_order_and_not_refused_midway() {
    // 50,000 is a multiple of nothing: header fields and pages are cut everywhere except inside.
    let limits = AgentLimits { max_request_bytes: 50_000, ..AgentLimits::default() };
    let mut rig = rig(1024, 4096, limits);
    let client = rig.client();
    let sizes = [1 << 20, 50_000 - 32, 50_000, 3 * 50_000 - 40, 99_990];
    let placings: Vec<_> =
        (0..).zip(sizes).map(|(name, bytes)| place(&*client, ONE, &rig, name, bytes)).collect();
    let publications: Vec<_> = placings.iter().map(ClaimWrite::publication).collect();
    let payloads: Vec<_> = (0..).zip(sizes).map(|(name, bytes)| fill(name, bytes)).collect();
    // All of them in one batch: where one ends, the next begins in the same request.
    let puts = publications.iter().zip(&payloads);
    let mut ops: Vec<_> = puts.flat_map(|(put, payload)| put.whole(payload)).collect();
    client.post(ONE, &mut ops).unwrap();
    for (publication, ops) in publications.iter().zip(ops.chunks(5)) {
        assert_eq!(publication.took(ops), Ok(()));
    }
    assert!(rig.agent.counters().requests.load(Ordering::Relaxed) > 25);
    assert_eq!(rig.log.accept(0, &mut rig.index).unwrap(), 5);
    for (name, payload) in (0..).zip(&payloads) {
        assert!(&rig.payload_of(name) == payload);
    }
    assert_eq!(rig.one.open(), (0, 0));
}

#[test]
fn i4_pages_over_several_connections_then_ready_over_one() {
    let mut rig = rig(1024, 4096, AgentLimits::default());
    let client = rig.client();
    let write = Arc::new(place(&*client, ONE, &rig, 1, 1 << 20));
    client.post(ONE, &mut write.publication().announce()).unwrap();
    let payload = Arc::new(fill(1, 1 << 20));
    let pages: Vec<_> = (0..4)
        .map(|i| {
            let (client, write, payload) = (client.clone(), write.clone(), payload.clone());
            spawn_named("page", move || {
                let from = i * (1 << 18);
                let page = write.publication().page(from, &payload[from as usize..][..1 << 18]);
                client.post(ONE, &mut [page]).unwrap();
            })
            .unwrap()
        })
        .collect();
    pages.into_iter().for_each(|page| page.join().unwrap());
    client.post(ONE, &mut write.publication().publish()).unwrap();
    rig.log.accept(0, &mut rig.index).unwrap();
    assert!(rig.payload_of(1) == *payload);
}

#[test]
fn i4_i13_a_claim_takes_the_stripes_of_its_payload_over_several_connections() {
    let mut rig = rig(1024, 4096, AgentLimits::default());
    let to = rig.agent.local_addr().to_string();
    let options = TcpOptions { stripes: Stripes::new(4, 256 << 10), ..TcpOptions::default() };
    let client = TcpVerbs::connect(&to, INCARNATION, JOB, options).unwrap();
    for (name, bytes) in [(1, 256 << 10), (2, (1 << 20) - 7), (3, 700_001)] {
        let write = place(&client, ONE, &rig, name, bytes);
        let (publication, payload) = (write.publication(), fill(name, bytes));
        let mut ops = publication.whole(&payload);
        client.post(ONE, &mut ops).unwrap();
        assert_eq!(publication.took(&ops), Ok(()));
        // No stripe's request is still inside the claim, or READY would have been refused.
        assert_eq!(rig.one.open(), (0, 0));
        assert_eq!(rig.log.accept(0, &mut rig.index).unwrap(), 1);
        assert!(rig.payload_of(name) == payload);
    }
    assert_eq!(rig.agent.counters().connections.load(Ordering::Relaxed), 4);
}

/// A producer's record of one of its claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Published,
    Skipped,
    Abandoned,
    /// Written in part or not at all, and left to its owner.
    Left,
}

struct Producer {
    client: Arc<TcpVerbs>,
    rights: Arc<LogRights>,
    token: u64,
    layout: LogLayout,
    abandons: std::sync::mpsc::Sender<Abandon>,
    waits: Arc<AtomicU64>,
    fates: Vec<(u64, u64, Fate)>,
}

impl Producer {
    /// One claim, of a size and an end that a counter chooses.
    fn one(&mut self, turn: u64) {
        let mix = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let bytes = 1 + mix % (5 * self.layout.unit());
        let name = self.token << 32 | turn;
        let put = LogPut::new(self.layout, key(name), 4096, bytes).unwrap();
        let n = put.claim_bytes();
        let p = self.client.fetch_add(self.token, BUMP_PTR_OFF, n).unwrap();
        let mut claim = put.claimed(p);
        let mut line = ControlLine::unread();
        for _ in 0..20_000 {
            self.client.post(0, &mut [line.read()]).unwrap();
            let next = claim.next(line.heap_limit());
            if matches!(next, ClaimStep::Wait(_)) {
                self.waits.fetch_add(1, Ordering::Relaxed);
            }
            claim = match next {
                ClaimStep::Wait(claim) if mix.is_multiple_of(7) => {
                    let abandon = claim.abandon();
                    assert!(self.rights.abandon(abandon));
                    self.abandons.send(abandon).unwrap();
                    return self.fates.push((p, n, Fate::Abandoned));
                }
                ClaimStep::Wait(claim) => claim,
                ClaimStep::Skip(skip) => {
                    self.client.post(self.token, &mut skip.ops()).unwrap();
                    return self.fates.push((p, n, Fate::Skipped));
                }
                ClaimStep::Write(write) => {
                    let fate = self.write(&write, (name, bytes), mix);
                    return self.fates.push((p, n, fate));
                }
            };
            std::thread::yield_now();
        }
        panic!("the limit never came to {p}");
    }

    fn write(&self, write: &ClaimWrite, (name, bytes): (u64, u64), mix: u64) -> Fate {
        let publication = write.publication();
        match mix % 23 {
            0 => {
                self.client.post(self.token, &mut publication.announce()).unwrap();
                self.client.post(self.token, &mut write.abort().ops()).unwrap();
                Fate::Skipped
            }
            _ => {
                let payload = fill(name, bytes);
                let mut ops = publication.whole(&payload);
                self.client.post(self.token, &mut ops).unwrap();
                assert_eq!(publication.took(&ops), Ok(()));
                Fate::Published
            }
        }
    }
}

const CLAIMS_EACH: u64 = 5_000;

/// Starts a producer of so many claims, of which the last few are left open.
fn start(
    rig: &Fixture,
    token: u64,
    (abandons, waits): (std::sync::mpsc::Sender<Abandon>, Arc<AtomicU64>),
) -> JoinHandle<Vec<(u64, u64, Fate)>> {
    let rights = if token == ONE { rig.one.clone() } else { rig.two.clone() };
    let (client, layout, fates) = (rig.client(), rig.layout, Vec::new());
    let mut producer = Producer { client, rights, token, layout, abandons, waits, fates };
    spawn_named("producer", move || {
        (0..CLAIMS_EACH - 10).for_each(|turn| producer.one(turn));
        // Then it dies: some claims without a header, some with one.
        for turn in 0..10 {
            let put = LogPut::new(layout, key(token << 40 | turn), 4096, 300).unwrap();
            let n = put.claim_bytes();
            let p = producer.client.fetch_add(token, BUMP_PTR_OFF, n).unwrap();
            producer.fates.push((p, n, Fate::Left));
            let mut line = ControlLine::unread();
            producer.client.post(0, &mut [line.read()]).unwrap();
            if let (0, ClaimStep::Write(write)) = (turn % 2, put.claimed(p).next(line.heap_limit()))
            {
                producer.client.post(token, &mut write.publication().announce()).unwrap();
            }
        }
        producer.fates
    })
    .unwrap()
}

/// The owner's steps while producers work: accept, record abandoned claims and, if requested, make
/// room.
fn own(rig: &mut Fixture, abandons: &std::sync::mpsc::Receiver<Abandon>, room: bool) {
    rig.log.accept(0, &mut rig.index).unwrap();
    while let Ok(claim) = abandons.try_recv() {
        rig.log.abandon(claim).unwrap();
    }
    if room {
        rig.log.retire_ahead(0, &mut rig.index).unwrap();
        rig.log.restart_quarantines(0);
        rig.log.advance(0, |_, _| true).unwrap();
    }
}

#[test]
fn i1_i13_i14_ten_thousand_claims_of_two_producers_are_settled_position_by_position() {
    let mut rig = rig(128, 256, AgentLimits::default());
    let (send, abandons) = std::sync::mpsc::channel();
    let waits = Arc::new(AtomicU64::new(0));
    let mut working: Vec<_> =
        [ONE, TWO].map(|token| (token, start(&rig, token, (send.clone(), waits.clone())))).into();
    let (mut fates, mut waited) = (Vec::new(), 0);
    while !working.is_empty() {
        // Room is made only once a producer waits for it, so that some always wait.
        let before = std::mem::replace(&mut waited, waits.load(Ordering::Relaxed));
        own(&mut rig, &abandons, waited > before);
        // Claims that a dead producer left open block the other.
        for (token, dead) in working.extract_if(.., |(_, thread)| thread.is_finished()) {
            fates.extend(dead.join().unwrap());
            rig.end(token);
        }
        std::thread::yield_now();
    }
    (0..20).for_each(|_| own(&mut rig, &abandons, true));
    fates.sort_by_key(|fate| fate.0);
    // Every position belongs to one claim, and every claim is counted once with its outcome.
    let end = fates.iter().fold(0, |end, (p, n, _)| {
        assert_eq!(*p, end, "a gap, or two claims of one position");
        p + n
    });
    assert_eq!(end, rig.memory.load(BUMP_PTR_OFF).unwrap());
    let sum = |fate| {
        let these = fates.iter().filter(|(_, _, f)| *f == fate);
        these.fold((0, 0), |(claims, bytes), (_, n, _)| (claims + 1, bytes + n))
    };
    let counts = rig.log.counts();
    let pair = |sum: nkv_store::device_log::Sum| (sum.claims, sum.bytes);
    let (skipped, left) = (sum(Fate::Skipped), sum(Fate::Left));
    let (abandoned, given_up) = (sum(Fate::Abandoned), pair(counts.abandoned));
    assert_eq!(pair(counts.accepted), sum(Fate::Published));
    assert_eq!(pair(counts.voided), (0, 0));
    assert_eq!(counts.duplicates.claims, 0);
    let settled = (pair(counts.skipped).0 + given_up.0, pair(counts.skipped).1 + given_up.1);
    let counted = (skipped.0 + left.0 + abandoned.0, skipped.1 + left.1 + abandoned.1);
    assert_eq!(settled, counted);
    assert!(given_up.0 >= abandoned.0 && pair(counts.skipped).0 >= skipped.0);
    assert!(skipped.0 > 100 && abandoned.0 > 10 && left.0 > 10, "{skipped:?} {abandoned:?}");
    assert_eq!(rig.log.unsettled_bytes().unwrap(), 0);
}
