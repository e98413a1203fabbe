//! How a client's posts end if the agent is gone, stopped, or another one [I18].

use super::{INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually, rig_with};
use nkv_pace::{HANGS_MS, Took, timed};
use nkv_store::AnonMemory;
use nkv_store::Stripes;
use nkv_store::threads::spawn_named;
use nkv_transport::access::OpenAccess;
use nkv_transport::verbs::{NoObserver, Post};
use nkv_transport::{AgentLimits, Op, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An agent that completes the handshake and then runs `then`.
fn impostor(then: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    spawn_named("impostor", move || {
        let mut s = after_hello(&listener);
        s.write_all(&welcome()).unwrap();
        then(s);
    })
    .unwrap();
    at
}

/// The next connection, after its hello.
fn after_hello(listener: &TcpListener) -> TcpStream {
    let (mut s, _) = listener.accept().unwrap();
    s.read_exact(&mut vec![0; 24 + JOB.len()]).unwrap();
    s
}

/// An agent's answer to a hello.
fn welcome() -> Vec<u8> {
    let mut welcome = b"nkvtcp-w".to_vec();
    for word in [nkv_transport::tcp::TCP_VERSION, 0] {
        welcome.extend(word.to_le_bytes());
    }
    for word in [INCARNATION, SEGMENT_BYTES, 1 << 30] {
        welcome.extend(word.to_le_bytes());
    }
    welcome.extend([0; 4]);
    welcome.extend(4096u32.to_le_bytes());
    welcome
}

/// Waits for so long or until the peer leaves.
fn pause(s: &TcpStream, ms: i64) {
    let limit = Timespec { tv_sec: ms / 1_000, tv_nsec: ms % 1_000 * 1_000_000 };
    poll(&mut [PollFd::new(s, PollFlags::RDHUP)], Some(&limit)).unwrap();
}

/// Keeps a connection open without sending until the peer leaves.
fn freeze(s: TcpStream) {
    pause(&s, HANGS_MS as i64);
}

/// Sends everything, one byte at a time.
fn dribble(mut s: TcpStream, bytes: &[u8]) {
    for b in bytes {
        if s.write_all(&[*b]).is_err() {
            return;
        }
        pause(&s, 50);
    }
}

/// A call has a limit of 1.5 s and ends by it, so within 2 s; not because the peer leaves.
fn assert_in_time(took: Took) {
    assert!(took.ms >= 1_400 && took.within(2_000), "{took}");
}

fn connect(to: SocketAddr, opts: TcpOptions) -> Result<TcpVerbs, TransportError> {
    TcpVerbs::connect(&to.to_string(), INCARNATION, JOB, opts)
}

#[test]
fn i18_a_frozen_agent_ends_a_post_by_timeout_within_two_seconds() {
    let client = connect(impostor(freeze), TcpOptions::default()).unwrap();
    let (r, took) = timed(|| client.read(0, &mut [0; 100]));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert_in_time(took);
    assert!(client.is_alive(), "a timeout proves no death");
}

#[test]
fn i18_a_large_write_to_a_frozen_agent_ends_within_two_seconds() {
    let client = connect(impostor(freeze), TcpOptions::default()).unwrap();
    let big = vec![1; SEGMENT_BYTES as usize];
    let (r, took) = timed(|| client.post(TOKEN, &mut [Op::Write { offset: 0, src: &big }; 1]));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert_in_time(took);
}

#[test]
fn i18_batches_of_one_call_to_a_frozen_agent_end_together_within_two_seconds() {
    let client = connect(impostor(freeze), TcpOptions::default()).unwrap();
    let bytes = [1; 100];
    let mut chains: Vec<_> = (0..20).map(|_| [Op::Write { offset: 0, src: &bytes }]).collect();
    let mut posts: Vec<_> = chains.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
    let (results, took) = timed(|| client.post_many(&mut posts, &mut NoObserver));
    assert_eq!(results.len(), 20);
    let late = |r: &Result<_, _>| matches!(r, Err(TransportError::Timeout(_)));
    assert!(results.iter().all(late), "{results:?}");
    assert_in_time(took);
}

#[test]
fn i18_batches_beyond_what_sockets_hold_to_a_frozen_agent_end_within_two_seconds() {
    let client = connect(impostor(freeze), TcpOptions::default()).unwrap();
    let bytes = vec![1; 1 << 20];
    let mut chains: Vec<_> = (0..24).map(|_| [Op::Write { offset: 0, src: &bytes }]).collect();
    let mut posts: Vec<_> = chains.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
    let (results, took) = timed(|| client.post_many(&mut posts, &mut NoObserver));
    assert!(results.iter().all(|r| matches!(r, Err(TransportError::Timeout(_)))), "{results:?}");
    assert_in_time(took);
}

#[test]
fn i18_a_striped_write_to_a_frozen_agent_ends_within_two_seconds_too() {
    // It accepts one connection: those for further stripes are never answered.
    let stripes = Stripes::new(4, 64 << 10);
    let client =
        connect(impostor(freeze), TcpOptions { stripes, ..TcpOptions::default() }).unwrap();
    let big = vec![1; SEGMENT_BYTES as usize];
    let (r, took) = timed(|| client.post(TOKEN, &mut [Op::Write { offset: 0, src: &big }; 1]));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert_in_time(took);
}

#[test]
fn i18_a_listener_that_never_shakes_hands_ends_connect_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let opts = TcpOptions { connect_ms: 400, ..TcpOptions::default() };
    let (r, took) = timed(|| connect(to, opts.clone()));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert!(took.ms >= 300 && took.within(1_000), "{took}");
    drop(listener);
    let (r, took) = timed(|| connect(to, opts));
    assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    assert!(took.within(300), "{took}");
}

#[test]
fn i18_a_welcome_that_dribbles_ends_connect_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    spawn_named("dribbler", move || dribble(after_hello(&listener), &welcome())).unwrap();
    let opts = TcpOptions { connect_ms: 400, ..TcpOptions::default() };
    let (r, took) = timed(|| connect(to, opts));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert!(took.ms >= 300 && took.within(1_000), "{took}");
}

#[test]
fn i18_an_answer_that_dribbles_ends_a_post_within_two_seconds() {
    let at = impostor(|mut s| {
        s.read_exact(&mut [0; 72]).unwrap();
        let mut answer = b"nkvr".to_vec();
        answer.extend(0u32.to_le_bytes());
        for word in [1u64, 0, 100, 0] {
            answer.extend(word.to_le_bytes());
        }
        s.write_all(&answer).unwrap();
        dribble(s, &[1; 100]);
    });
    let client = connect(at, TcpOptions::default()).unwrap();
    let (r, took) = timed(|| client.read(0, &mut [0; 100]));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert_in_time(took);
}

#[test]
fn i18_connecting_again_is_part_of_a_posts_two_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    spawn_named("impostor", move || {
        let mut first = after_hello(&listener);
        first.write_all(&welcome()).unwrap();
        drop(first);
        let mut second = after_hello(&listener);
        pause(&second, 800);
        second.write_all(&welcome()).unwrap();
        freeze(second);
    })
    .unwrap();
    let client = connect(to, TcpOptions::default()).unwrap();
    let r = client.read(0, &mut [0; 100]);
    assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    let (r, took) = timed(|| client.read(0, &mut [0; 100]));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert_in_time(took);
}

#[test]
fn what_listens_there_may_be_something_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    spawn_named("http", move || {
        let (mut s, _) = listener.accept().unwrap();
        let _ = s.write_all(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    })
    .unwrap();
    let r = connect(to, TcpOptions::default());
    assert!(matches!(r, Err(TransportError::Protocol(_))), "{r:?}");
}

#[test]
fn marking_the_owner_dead_interrupts_a_post_in_flight() {
    let opts = TcpOptions { stall_ms: 60_000, ..TcpOptions::default() };
    let (tx, rx) = std::sync::mpsc::channel();
    let at = impostor(move |mut s| {
        s.read_exact(&mut [0; 40]).unwrap();
        tx.send(()).unwrap();
        freeze(s);
    });
    let client = connect(at, opts).unwrap();
    let alive = client.alive();
    let post = spawn_named("post", move || client.read(0, &mut [0; 100])).unwrap();
    rx.recv().unwrap();
    let (r, took) = timed(|| {
        alive.mark_dead();
        post.join().unwrap()
    });
    assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    assert!(took.within(1_000), "{took}");
}

#[test]
fn an_answer_that_is_none_is_a_protocol_error() {
    let at = impostor(|mut s| {
        s.read_exact(&mut [0; 72]).unwrap();
        s.write_all(&[0x55; 40]).unwrap();
        let _ = s.read(&mut [0; 1]);
    });
    let r = connect(at, TcpOptions::default()).unwrap().read(0, &mut [0; 100]);
    assert!(matches!(r, Err(TransportError::Protocol(_))), "{r:?}");
}

#[test]
fn i17_a_restarted_owner_is_another_one_and_the_handle_stays_dead() {
    let rig = rig_with(AgentLimits::default(), true);
    let (client, at) = (rig.client(), rig.agent.local_addr());
    client.write(TOKEN, 0, &[1; 8]).unwrap();
    rig.agent.stop();
    let r = client.read(0, &mut [0; 8]);
    assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    assert!(client.is_alive(), "a broken connection alone proves no death");
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let access = Arc::new(OpenAccess);
    let successor =
        TcpAgent::start(at, memory, INCARNATION + 1, JOB, access, None, AgentLimits::default())
            .unwrap();
    let r = client.read(0, &mut [0; 8]);
    assert!(matches!(r, Err(TransportError::Disconnected(_))), "{r:?}");
    assert!(!client.is_alive());
    drop(successor);
}

#[test]
fn the_pool_is_bounded_and_a_waiter_waits_bounded() {
    let rig = rig_with(AgentLimits::default(), true);
    let opts = TcpOptions { max_connections: 2, ..TcpOptions::default() };
    let client = Arc::new(rig.client_with(opts).unwrap());
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let client = client.clone();
            spawn_named("poster", move || {
                for _ in 0..50 {
                    client.write(TOKEN, t * 4096, &[t as u8; 4096]).unwrap();
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(rig.agent.counters().connections.load(Ordering::Relaxed) <= 2);

    let opts = TcpOptions { max_connections: 1, stall_ms: 60_000, ..TcpOptions::default() };
    let (tx, rx) = std::sync::mpsc::channel();
    let at = impostor(move |mut s| {
        s.read_exact(&mut [0; 40]).unwrap();
        tx.send(()).unwrap();
        freeze(s);
    });
    let busy = Arc::new(connect(at, opts).unwrap());
    let (b2, b3) = (busy.clone(), busy.clone());
    let first = spawn_named("first", move || b2.read(0, &mut [0; 8])).unwrap();
    rx.recv().unwrap();
    let second = spawn_named("second", move || b3.read(0, &mut [0; 8])).unwrap();
    busy.alive().mark_dead();
    for t in [first, second] {
        assert!(matches!(t.join().unwrap(), Err(TransportError::Disconnected(_))));
    }
}

#[test]
fn a_stopped_agent_has_no_thread_left_and_its_port_is_free() {
    let rig = rig_with(AgentLimits::default(), true);
    let at = rig.agent.local_addr();
    let clients: Vec<_> = (0..5).map(|_| rig.client()).collect();
    let counters = rig.agent.counters();
    eventually("all are served", || counters.connections.load(Ordering::Relaxed) == 5);
    let ((), took) = timed(|| rig.agent.stop());
    assert!(took.within(2_000), "{took}");
    assert_eq!(counters.connections.load(Ordering::Relaxed), 0);
    rig.agent.stop();
    assert!(TcpStream::connect(at).is_err());
    assert!(clients[0].read(0, &mut [0; 8]).is_err());
}
