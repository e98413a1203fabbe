//! A line against peers that send single bytes now and then.

use super::*;
use nkv_pace::HANGS;
use nkv_store::threads::spawn_named;
use std::net::{TcpListener, TcpStream};

/// Both limits for these tests: no stall, but little time in total.
const STALL_MS: u64 = 10_000;
const LIMIT_MS: u64 = 200;
/// Pause of a peer before its next byte.
const PACE: Duration = Duration::from_millis(20);
/// After so many bytes a peer gives up: then the line had no limit.
const MAX_BYTES: usize = 250;

/// A line and its peer, with as little buffer between them as the kernel allows.
fn pair() -> (Line, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let least = |s: SockRef<'_>| s.set_recv_buffer_size(1).unwrap();
    least(SockRef::from(&listener));
    let at = listener.local_addr().unwrap();
    let line = Line::new(dial(at, HANGS).unwrap(), STALL_MS).unwrap();
    line.shared.socket.set_send_buffer_size(1).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PACE)).unwrap();
    (line, peer)
}

/// Waits for one pace; false if the line ended meanwhile.
fn paced(peer: &mut TcpStream) -> bool {
    match peer.read(&mut [0; 1]) {
        Ok(n) => n > 0,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}

#[test]
fn what_arrives_byte_by_byte_is_too_late_in_the_end() {
    let (mut line, mut peer) = pair();
    let dribble = spawn_named("dribble", move || {
        (0..MAX_BYTES).take_while(|_| peer.write_all(&[1]).is_ok() && paced(&mut peer)).count()
    });
    line.limits.deadline = Deadline::after_ms(LIMIT_MS);
    let r = Line::take(&mut line, &mut [0; 2 * MAX_BYTES]);
    assert!(matches!(r, Err(Broken::Late(LIMIT_MS))), "{r:?}");
    drop(line);
    assert!(dribble.unwrap().join().unwrap() < MAX_BYTES);
}

#[test]
fn what_the_peer_reads_little_by_little_is_too_late_in_the_end() {
    let (mut line, mut peer) = pair();
    let sip = spawn_named("sip", move || {
        let pause = std::sync::Condvar::new();
        let never = std::sync::Mutex::new(());
        let mut sips = 0;
        while sips < MAX_BYTES && matches!(peer.read(&mut [0; 4096]), Ok(1..)) {
            sips += 1;
            drop(pause.wait_timeout(never.lock().unwrap(), PACE).unwrap());
        }
        sips
    });
    line.limits.deadline = Deadline::after_ms(LIMIT_MS);
    let r = line.send([&*vec![1; 2 * MAX_BYTES * 4096]]);
    assert!(matches!(r, Err(Broken::Late(LIMIT_MS))), "{r:?}");
    line.shared.shut();
    sip.unwrap().join().unwrap();
}

#[test]
fn a_payload_has_time_in_proportion_and_a_request_has_none_to_share_with_the_next() {
    let limit = |bytes| Deadline::for_bytes(200, bytes).limit_ms;
    assert_eq!((limit(0), limit(4096), limit(3 << 20)), (200, 204, 200 + 3072));
    let (mut line, mut peer) = pair();
    line.limits.deadline = Deadline::after_ms(0);
    peer.write_all(&[1]).unwrap();
    assert!(matches!(line.fill(1), Err(Broken::Late(0))));
    assert!(line.wait_begin(HANGS).unwrap(), "idle time is no part of a request");
}

#[test]
fn both_ends_of_a_data_connection_ask_after_a_silent_peer() {
    let (line, peer) = pair();
    let accepted = Line::new(Socket::from(peer), STALL_MS).unwrap();
    for end in [line, accepted] {
        let socket = &end.shared.socket;
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(15)));
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(5));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
    }
}
