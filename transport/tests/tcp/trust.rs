//! Who is let in by an agent with a guard, over real sockets [I20]; and that those who are not disturb
//! nobody who is.

use super::{INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually};
use nkv_pace::{HANGS, timed};
use nkv_store::AnonMemory;
use nkv_store::threads::spawn_named;
use nkv_transport::access::OpenAccess;
use nkv_transport::wire::auth::{
    CHALLENGE_BYTES, Credentials, Guard, OPENING_BYTES, PROOF_BYTES, Secret, VERDICT_BYTES,
};
use nkv_transport::{AgentLimits, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn knows(secret: &str) -> Credentials {
    knows_of(JOB, secret)
}

fn knows_of(job: &str, secret: &str) -> Credentials {
    Credentials::of_client(job, Some(Secret::new(secret.as_bytes(), "test").unwrap()))
}

struct Door {
    agent: TcpAgent,
    guard: Arc<Guard>,
}

fn door_with(limits: AgentLimits) -> Door {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let guard = Arc::new(Guard::new(knows("the right secret")));
    let at = "127.0.0.1:0".parse().unwrap();
    let (access, inside) = (Arc::new(OpenAccess), Some(guard.clone()));
    let agent = TcpAgent::start(at, memory, INCARNATION, JOB, access, inside, limits).unwrap();
    Door { agent, guard }
}

fn door() -> Door {
    door_with(AgentLimits::default())
}

fn connect(to: SocketAddr, who: Option<Credentials>) -> Result<TcpVerbs, TransportError> {
    let opts = TcpOptions { credentials: who, ..TcpOptions::default() };
    TcpVerbs::connect(&to.to_string(), INCARNATION, JOB, opts)
}

impl Door {
    fn connect(&self, who: Credentials) -> Result<TcpVerbs, TransportError> {
        connect(self.agent.local_addr(), Some(who))
    }

    fn dial(&self) -> TcpStream {
        let s = TcpStream::connect(self.agent.local_addr()).unwrap();
        s.set_read_timeout(Some(HANGS)).unwrap();
        s
    }

    fn refused(&self) -> u64 {
        let counted = self.agent.counters().auth_refused.load(Ordering::Relaxed);
        // The guard counts first; by the end both say the same.
        if counted == self.guard.refused() { counted } else { u64::MAX }
    }
}

/// Everything until the agent closes.
fn rest(mut s: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match s.read_to_end(&mut all) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "not closed"),
    }
    all
}

#[test]
fn i20_who_shares_the_secret_is_served_on_every_connection() {
    let door = door();
    let client = Arc::new(door.connect(knows("the right secret")).unwrap());
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let client = client.clone();
            spawn_named("posts", move || client.write(TOKEN, t * 4096, &[7; 4096]).unwrap())
                .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut back = [0; 8 * 4096];
    client.read(0, &mut back).unwrap();
    assert_eq!(back, [7; 8 * 4096]);
    assert_eq!(door.refused(), 0);
}

#[test]
fn i20_a_wrong_secret_none_and_an_unguarded_client_are_refused_and_others_are_not_disturbed() {
    let door = door();
    let healthy = door.connect(knows("the right secret")).unwrap();
    let (stop, to) = (Arc::new(AtomicBool::new(false)), door.agent.local_addr());
    let goes_on = {
        let stop = stop.clone();
        spawn_named("healthy", move || {
            let mut rounds = 0u64;
            while !stop.load(Ordering::Relaxed) {
                healthy.write(TOKEN, 0, &rounds.to_le_bytes()).unwrap();
                let mut now = [0; 8];
                healthy.read(0, &mut now).unwrap();
                assert_eq!(u64::from_le_bytes(now), rounds);
                rounds += 1;
            }
            rounds
        })
        .unwrap()
    };
    for round in 1..=20 {
        let wrong = door.connect(knows("the wrong secret"));
        match wrong {
            Err(TransportError::Unauthenticated(why)) => assert!(why.contains("differs"), "{why}"),
            other => panic!("{other:?}"),
        }
        let none = door.connect(Credentials::of_client(JOB, None));
        match none {
            Err(TransportError::Unauthenticated(why)) => {
                assert!(why.contains("NKV_SECRET"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        // One that begins as if there were no guard.
        let unguarded = connect(to, None);
        assert!(matches!(unguarded, Err(TransportError::Protocol(_))), "{unguarded:?}");
        eventually("all three were counted", || door.refused() == 3 * round);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(goes_on.join().unwrap() > 0);
    eventually("only the healthy client was left", || {
        door.agent.counters().connections.load(Ordering::Relaxed) == 0
    });
}

/// Passes a real client's first connection on to the agent, and keeps what was said each way.
fn overhear(to: SocketAddr) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let client =
        spawn_named("client", move || connect(at, Some(knows("the right secret")))).unwrap();
    let (mut client_end, _) = listener.accept().unwrap();
    let mut node_end = TcpStream::connect(to).unwrap();
    let hello = 24 + JOB.len();
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    for (out, back) in [(OPENING_BYTES, CHALLENGE_BYTES), (PROOF_BYTES, VERDICT_BYTES), (hello, 48)]
    {
        let mut bytes = vec![0; out];
        client_end.read_exact(&mut bytes).unwrap();
        node_end.write_all(&bytes).unwrap();
        said.extend(bytes);
        let mut bytes = vec![0; back];
        node_end.read_exact(&mut bytes).unwrap();
        client_end.write_all(&bytes).unwrap();
        answered.extend(bytes);
    }
    drop(client.join().unwrap().unwrap());
    (said, answered)
}

#[test]
fn i20_a_replayed_handshake_is_refused_by_the_agent_and_by_the_client() {
    let door = door();
    let (said, answered) = overhear(door.agent.local_addr());
    assert!(answered[CHALLENGE_BYTES + VERDICT_BYTES..].starts_with(b"nkvtcp-w"));
    let mut stranger = door.dial();
    stranger.write_all(&said).unwrap();
    let heard = rest(stranger);
    assert_eq!(heard.len(), CHALLENGE_BYTES + VERDICT_BYTES, "no welcome");
    assert_ne!(heard[..CHALLENGE_BYTES], answered[..CHALLENGE_BYTES]);
    eventually("it was counted", || door.refused() == 1);
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = impostor.local_addr().unwrap();
    spawn_named("impostor", move || {
        let (mut s, _) = impostor.accept().unwrap();
        s.write_all(&answered).unwrap();
        let _ = s.read_to_end(&mut Vec::new());
    })
    .unwrap();
    match connect(at, Some(knows("the right secret"))) {
        Err(TransportError::Unauthenticated(why)) => {
            assert!(why.contains("could not prove"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn i20_one_who_never_finishes_the_handshake_is_cut_off_within_its_limit() {
    let limits = AgentLimits { hello_ms: 300, stall_ms: 60_000, ..AgentLimits::default() };
    let door = door_with(limits);
    let (said, _) = overhear(door.agent.local_addr());
    let mut silent = door.dial();
    let ((), took) = timed(|| assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0));
    assert!(took.ms >= 200 && took.within(2_000), "{took}");
    // A byte now and then: each is progress, all of them together are too late.
    let mut slow = door.dial();
    let mut drip = slow.try_clone().unwrap();
    let drips = spawn_named("drips", move || {
        let mut alive = |b: &u8| {
            std::thread::sleep(Duration::from_millis(20));
            drip.write_all(&[*b]).is_ok()
        };
        said.iter().take_while(|b| alive(b)).count()
    })
    .unwrap();
    let ((), took) = timed(|| {
        let end = slow.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0)) || end.is_err(), "{end:?}");
    });
    assert!(took.ms >= 200 && took.within(2_000), "{took}");
    assert!(drips.join().unwrap() < OPENING_BYTES);
    eventually("both were counted", || door.refused() == 2);
    assert!(door.connect(knows("the right secret")).is_ok());
}

#[test]
fn i20_a_client_waits_for_an_agents_proof_no_longer_than_its_own_limit() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let credentials = Some(knows("the right secret"));
    let opts = TcpOptions { credentials, connect_ms: 400, ..TcpOptions::default() };
    let (r, took) = timed(|| TcpVerbs::connect(&to, INCARNATION, JOB, opts));
    assert!(matches!(r, Err(TransportError::Timeout(_))), "{r:?}");
    assert!(took.ms >= 300 && took.within(1_500), "{took}");
}

#[test]
fn a_guarded_agent_without_room_says_so_before_any_proof() {
    let door = door_with(AgentLimits { max_connections: 1, ..AgentLimits::default() });
    let first = door.connect(knows("the right secret")).unwrap();
    match door.connect(knows("the right secret")) {
        Err(TransportError::Timeout(why)) => assert!(why.contains("all 1 data"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((door.refused(), door.guard.refused()), (0, 0));
    drop(first);
    eventually("there is room again", || door.connect(knows("the right secret")).is_ok());
}

#[test]
fn i17_a_guarded_agent_of_another_job_or_incarnation_is_not_the_one_that_was_meant() {
    let door = door();
    let to = door.agent.local_addr().to_string();
    for (job, incarnation, says) in
        [("job-b", INCARNATION, "job-b"), (JOB, 5, "0x0000000000000005")]
    {
        let credentials = Some(knows_of(job, "the right secret"));
        let opts = TcpOptions { credentials, ..TcpOptions::default() };
        match TcpVerbs::connect(&to, incarnation, job, opts) {
            Err(TransportError::Disconnected(why)) => assert!(why.contains(says), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
