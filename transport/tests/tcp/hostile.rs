//! Peers that are broken, slow or malicious: each loses its own connection and nothing else [I19].

use super::raw::{FETCH_ADD, OK, OUT_OF_BOUNDS, READ, REFUSED, Raw, STORE, WRITE, hello, request};
use super::{INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually, rig_with};
use nkv_pace::timed;
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use nkv_transport::tcp::TCP_VERSION;
use nkv_transport::{AgentLimits, TcpOptions, TransportError, Verbs};
use std::net::Shutdown;
use std::sync::atomic::Ordering;

fn quick() -> AgentLimits {
    AgentLimits { stall_ms: 200, idle_ms: 600, ..AgentLimits::default() }
}

#[test]
fn i19_garbage_closes_its_own_connection_and_harms_no_other() {
    let rig = rig_with(AgentLimits::default(), true);
    let client = rig.client();
    client.write(TOKEN, 0, &[1; 8]).unwrap();
    let good = request(1, TOKEN, &[(STORE, 64, 1, 0)]);
    let mut wrong_sum = request(1, TOKEN, &[(WRITE, 64, 8, 0)]);
    wrong_sum[24] = 9;
    let mut too_many = good.clone();
    too_many[4..8].copy_from_slice(&5000u32.to_le_bytes());
    let mut too_large = good.clone();
    too_large[24..32].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let unknown_verb = request(1, TOKEN, &[(99, 64, 8, 0)]);
    let early = request(1, TOKEN, &[(READ, 0, 65_537, 0), (STORE, 64, 1, 0)]);
    let http = b"GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: x\r\n\r\n".to_vec();
    let after_hello = [wrong_sum, too_many, too_large, unknown_verb, early, http.clone()];
    for (before, bytes) in after_hello.iter().enumerate() {
        let mut peer = rig.raw();
        peer.send(bytes);
        assert!(peer.is_closed());
        let dropped = || rig.agent.counters().dropped.load(Ordering::Relaxed);
        eventually("the connection was counted", || dropped() == before as u64 + 1);
    }
    for bytes in [http, vec![0xff; 500], hello(TCP_VERSION, INCARNATION, &"x".repeat(300))] {
        let mut peer = Raw::dial(rig.agent.local_addr());
        peer.send(&bytes);
        assert!(peer.is_closed());
    }
    let mut now = [0; 72];
    client.read(0, &mut now).unwrap();
    assert_eq!((&now[..8], &now[64..]), (&[1; 8][..], &[0; 8][..]));
    eventually("only the client is left", || {
        rig.agent.counters().connections.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn i19_half_a_hello_or_half_a_request_is_a_closed_connection() {
    let rig = rig_with(AgentLimits::default(), true);
    let whole = request(1, TOKEN, &[(WRITE, 0, 100, 0)]);
    let first = hello(TCP_VERSION, INCARNATION, JOB);
    for cut in [1, 12, first.len() - 1] {
        let mut peer = Raw::dial(rig.agent.local_addr());
        peer.send(&first[..cut]);
        peer.0.shutdown(Shutdown::Write).unwrap();
        assert!(peer.is_closed());
    }
    for cut in [1, 39, 40, 60, whole.len()] {
        let mut peer = rig.raw();
        peer.send(&whole[..cut]);
        peer.0.shutdown(Shutdown::Write).unwrap();
        assert!(peer.is_closed());
    }
    assert!(rig.is_untouched());
    eventually("nobody is left", || rig.agent.counters().connections.load(Ordering::Relaxed) == 0);
}

#[test]
fn i19_the_agent_checks_bounds_and_tokens_itself() {
    let rig = rig_with(AgentLimits::default(), true);
    let mut peer = rig.raw();
    let cases = [
        (TOKEN, (WRITE, SEGMENT_BYTES - 4, 8, 0), OUT_OF_BOUNDS),
        (TOKEN, (WRITE, u64::MAX - 3, 8, 0), OUT_OF_BOUNDS),
        (TOKEN, (STORE, 4, 1, 0), OUT_OF_BOUNDS),
        (TOKEN, (FETCH_ADD, SEGMENT_BYTES, 1, 0), OUT_OF_BOUNDS),
        (0, (READ, SEGMENT_BYTES - 4, 8, 0), OUT_OF_BOUNDS),
        (0, (WRITE, 0, 8, 0), REFUSED),
        (0, (STORE, 0, 8, 0), REFUSED),
    ];
    for (id, (token, desc, status)) in cases.into_iter().enumerate() {
        let descs = [(READ, 0, 16, 0), (WRITE, 256, 0, 0), desc];
        peer.send(&request(id as u64, token, &descs));
        if desc.0 == WRITE {
            peer.send(&[9; 8]);
        }
        let a = peer.answer().unwrap();
        assert_eq!((a.status, a.id), (status, id as u64), "{desc:?}: {}", a.text);
        assert!(!a.text.is_empty() && !a.closing);
    }
    assert!(rig.is_untouched());
    peer.send(&request(9, TOKEN, &[(FETCH_ADD, 8, 5, 0), (FETCH_ADD, 8, 1, 0), (READ, 8, 8, 0)]));
    let a = peer.answer().unwrap();
    assert_eq!((a.status, a.results, a.payload), (OK, vec![0, 5], 6u64.to_le_bytes().to_vec()));
}

#[test]
fn a_peer_that_stalls_in_a_request_is_dropped_and_an_idle_one_is_closed() {
    let rig = rig_with(quick(), true);
    let mut stalled = rig.raw();
    stalled.send(&request(1, TOKEN, &[(WRITE, 0, 1000, 0)]));
    stalled.send(&[1; 999]);
    let ((), took) = timed(|| assert!(stalled.is_closed()));
    assert!(took.ms >= 100 && took.within(5_000), "{took}");
    eventually("it is counted", || rig.agent.counters().dropped.load(Ordering::Relaxed) == 1);
    let mut silent = Raw::dial(rig.agent.local_addr());
    assert!(silent.is_closed(), "a connection without a hello");
    let mut idle = rig.raw();
    let ((), took) = timed(|| assert!(idle.is_closed()));
    assert!(took.ms >= 500 && took.within(5_000), "{took}");
}

#[test]
fn i19_a_peer_that_dribbles_is_dropped_wherever_it_does() {
    let limits = AgentLimits { hello_ms: 400, ..quick() };
    let rig = rig_with(limits, false);
    let mut silent_for_long = rig.raw();
    let hello = hello(TCP_VERSION, INCARNATION, JOB);
    assert!(Raw::dial(rig.agent.local_addr()).is_closed_while_it_dribbles(&hello), "the hello");
    let header = request(1, TOKEN, &[(WRITE, 1 << 20, 100, 0); 3]);
    assert!(rig.raw().is_closed_while_it_dribbles(&header[..40]), "a header");
    let cases =
        [("descriptors", 50, TOKEN), ("a payload", 300, TOKEN), ("nobody's", 300, TOKEN + 1)];
    for (what, sent, token) in cases {
        let mut whole = request(1, token, &[(WRITE, 1 << 20, 100, 0); 3]);
        whole.extend([0; 300]);
        let mut peer = rig.raw();
        peer.send(&whole[..sent]);
        assert!(peer.is_closed_while_it_dribbles(&whole[sent..][..60]), "{what}");
    }
    eventually("each was counted", || rig.agent.counters().dropped.load(Ordering::Relaxed) == 5);
    assert!(rig.is_untouched());
    assert!(silent_for_long.is_closed(), "but for no more than its idle time");
}

#[test]
fn a_client_replaces_connections_that_the_agent_closed_while_they_were_idle() {
    let rig = rig_with(quick(), true);
    let client = rig.client();
    let clock = BootClock;
    let unused_since = clock.now_ms();
    eventually("the agent closed the idle connection", || {
        rig.agent.counters().connections.load(Ordering::Relaxed) == 0
    });
    // Only a connection unused for a second is checked before use.
    eventually("a second has passed", || clock.now_ms() > unused_since + 1_100);
    client.read(0, &mut [0; 8]).unwrap();
}

#[test]
fn beyond_the_limit_a_connection_is_turned_away_with_a_reason() {
    let limits = AgentLimits { max_connections: 2, ..AgentLimits::default() };
    let rig = rig_with(limits, true);
    let (one, _two) = (rig.client(), rig.raw());
    let (third, took) = timed(|| rig.client_with(TcpOptions::default()));
    match third {
        Err(TransportError::Timeout(why)) => {
            assert!(why.contains("all 2 data connections"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert!(took.within(900), "{took}");
    assert_eq!(rig.agent.counters().turned_away.load(Ordering::Relaxed), 1);
    one.write(TOKEN, 0, &[1; 8]).unwrap();
    drop(one);
    eventually("a place is free again", || rig.client_with(TcpOptions::default()).is_ok());
}

#[test]
fn a_client_of_another_job_incarnation_or_version_is_turned_away() {
    let rig = rig_with(AgentLimits::default(), true);
    let to = rig.agent.local_addr();
    let connect = |incarnation, job| {
        let r = nkv_transport::TcpVerbs::connect(
            &to.to_string(),
            incarnation,
            job,
            TcpOptions::default(),
        );
        match r {
            Err(TransportError::Disconnected(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let why = connect(INCARNATION + 1, JOB);
    assert!(why.contains("incarnation") && why.contains("0x123456789abcdef0"), "{why}");
    let why = connect(INCARNATION, "job-b");
    assert!(why.contains("job-a") && why.contains("job-b"), "{why}");
    let mut peer = Raw::dial(to);
    peer.send(&hello(TCP_VERSION + 1, INCARNATION, JOB));
    let (status, text) = peer.welcome();
    assert!(status != OK && text.contains(&format!("version {}", TCP_VERSION + 1)), "{text}");
    assert!(peer.is_closed());
    assert_eq!(rig.memory.load(0).unwrap(), 0);
}
