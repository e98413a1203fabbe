//! Which clients an agent with a guard admits, over real sockets [I20]; refused ones do not affect
//! admitted ones.

mod payload;

use super::{INCARNATION, JOB, SEGMENT_BYTES, TOKEN, eventually, raw};
use nkv_pace::{HANGS, timed};
use nkv_store::AnonMemory;
use nkv_store::threads::spawn_named;
use nkv_transport::access::{Access, OpenAccess};
use nkv_transport::wire::auth::{
    ANSWER_BYTES, Credentials, FINISH_BYTES, Guard, OPENING_BYTES, Secret,
};
use nkv_transport::{AgentLimits, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a tag, of a welcome without text, and of a hello with its tag.
const TAG: usize = 16;
const WELCOME: usize = 48 + TAG;
const HELLO: usize = 24 + JOB.len() + TAG;
/// The bytes that each end sends until a connection may carry requests.
const SENT: [usize; 2] = [OPENING_BYTES, FINISH_BYTES + HELLO];
const ANSWERED: [usize; 2] = [ANSWER_BYTES, WELCOME];

fn knows(secret: &str) -> Credentials {
    knows_of(JOB, secret)
}

fn knows_of(job: &str, secret: &str) -> Credentials {
    Credentials::of_client(job, Some(Secret::new(secret.as_bytes(), "test").unwrap()))
}

struct GuardedAgent {
    agent: TcpAgent,
    guard: Arc<Guard>,
}

fn guarded_with(limits: AgentLimits) -> GuardedAgent {
    guarded_with_access(limits, Arc::new(OpenAccess))
}

fn guarded_with_access(limits: AgentLimits, access: Arc<dyn Access>) -> GuardedAgent {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let guard = Arc::new(Guard::new(knows("the right secret")));
    let at = "127.0.0.1:0".parse().unwrap();
    let inside = Some(guard.clone());
    let agent = TcpAgent::start(at, memory, INCARNATION, JOB, access, inside, limits).unwrap();
    GuardedAgent { agent, guard }
}

fn guarded() -> GuardedAgent {
    guarded_with(AgentLimits::default())
}

fn connect(to: SocketAddr, who: Option<Credentials>) -> Result<TcpVerbs, TransportError> {
    let opts = TcpOptions { credentials: who, ..TcpOptions::default() };
    TcpVerbs::connect(&to.to_string(), INCARNATION, JOB, opts)
}

impl GuardedAgent {
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
        // The guard counts first; at the end both counts are equal.
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
    let guarded = guarded();
    let client = Arc::new(guarded.connect(knows("the right secret")).unwrap());
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
    assert_eq!(guarded.refused(), 0);
}

#[test]
fn i20_a_wrong_secret_none_and_an_unguarded_client_are_refused_and_others_are_not_disturbed() {
    let guarded = guarded();
    let healthy = guarded.connect(knows("the right secret")).unwrap();
    let (stop, to) = (Arc::new(AtomicBool::new(false)), guarded.agent.local_addr());
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
        let wrong = guarded.connect(knows("the wrong secret"));
        match wrong {
            Err(TransportError::Unauthenticated(why)) => assert!(why.contains("differs"), "{why}"),
            other => panic!("{other:?}"),
        }
        let none = guarded.connect(Credentials::of_client(JOB, None));
        match none {
            Err(TransportError::Unauthenticated(why)) => {
                assert!(why.contains("NKV_SECRET"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        // A peer that begins as if there were no guard.
        let unguarded = connect(to, None);
        assert!(matches!(unguarded, Err(TransportError::Protocol(_))), "{unguarded:?}");
        eventually("all three were counted", || guarded.refused() == 3 * round);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(goes_on.join().unwrap() > 0);
    eventually("only the healthy client was left", || {
        guarded.agent.counters().connections.load(Ordering::Relaxed) == 0
    });
}

/// Relays a real client's first connection to the agent, and records the bytes of each direction.
fn overhear(to: SocketAddr) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let client =
        spawn_named("client", move || connect(at, Some(knows("the right secret")))).unwrap();
    let (mut client_end, _) = listener.accept().unwrap();
    let mut node_end = TcpStream::connect(to).unwrap();
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    for (out, back) in SENT.into_iter().zip(ANSWERED) {
        let mut bytes = vec![0; out];
        client_end.read_exact(&mut bytes).unwrap();
        node_end.write_all(&bytes).unwrap();
        sent.extend(bytes);
        let mut bytes = vec![0; back];
        node_end.read_exact(&mut bytes).unwrap();
        client_end.write_all(&bytes).unwrap();
        answered.extend(bytes);
    }
    drop(client.join().unwrap().unwrap());
    (sent, answered)
}

#[test]
fn i20_a_replayed_handshake_is_refused_by_the_agent_and_by_the_client() {
    let guarded = guarded();
    let (sent, answered) = overhear(guarded.agent.local_addr());
    assert!(answered[ANSWER_BYTES..].starts_with(b"nkvtcp-w"));
    let mut peer = guarded.dial();
    peer.write_all(&sent).unwrap();
    let heard = rest(peer);
    assert_eq!(heard.len(), ANSWER_BYTES, "no welcome");
    assert_ne!(heard, answered[..ANSWER_BYTES]);
    eventually("it was counted", || guarded.refused() == 1);
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
    let guarded = guarded_with(limits);
    let (sent, _) = overhear(guarded.agent.local_addr());
    let mut silent = guarded.dial();
    let ((), took) = timed(|| assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0));
    assert!(took.ms >= 200 && took.within(2_000), "{took}");
    // Single bytes: each is progress, but all of them together are too late.
    let mut slow = guarded.dial();
    let mut drip = slow.try_clone().unwrap();
    let drips = spawn_named("drips", move || {
        let mut alive = |b: &u8| {
            std::thread::sleep(Duration::from_millis(20));
            drip.write_all(&[*b]).is_ok()
        };
        sent.iter().take_while(|b| alive(b)).count()
    })
    .unwrap();
    let ((), took) = timed(|| {
        let end = slow.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0)) || end.is_err(), "{end:?}");
    });
    assert!(took.ms >= 200 && took.within(2_000), "{took}");
    assert!(drips.join().unwrap() < OPENING_BYTES);
    eventually("both were counted", || guarded.refused() == 2);
    assert!(guarded.connect(knows("the right secret")).is_ok());
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
    let guarded = guarded_with(AgentLimits { max_connections: 1, ..AgentLimits::default() });
    let first = guarded.connect(knows("the right secret")).unwrap();
    match guarded.connect(knows("the right secret")) {
        Err(TransportError::Timeout(why)) => assert!(why.contains("all 1 data"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((guarded.refused(), guarded.guard.refused()), (0, 0));
    drop(first);
    eventually("there is room again", || guarded.connect(knows("the right secret")).is_ok());
}

#[test]
fn i17_a_guarded_agent_of_another_job_or_incarnation_is_not_the_one_that_was_meant() {
    let guarded = guarded();
    let to = guarded.agent.local_addr().to_string();
    for (job, incarnation, expected) in
        [("job-b", INCARNATION, "job-b"), (JOB, 5, "0x0000000000000005")]
    {
        let credentials = Some(knows_of(job, "the right secret"));
        let opts = TcpOptions { credentials, ..TcpOptions::default() };
        match TcpVerbs::connect(&to, incarnation, job, opts) {
            Err(TransportError::Disconnected(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A relay between one client and the agent, past the welcome: the connection is established. The
/// client waits for a signal to continue.
struct Relay {
    from_client: TcpStream,
    to_node: TcpStream,
}

impl Relay {
    fn between<T: Send + 'static>(
        guarded: &GuardedAgent,
        then: impl FnOnce(TcpVerbs) -> T + Send + 'static,
    ) -> (Self, std::thread::JoinHandle<T>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = spawn_named("client", move || {
            then(connect(at, Some(knows("the right secret"))).unwrap())
        });
        let (from_client, _) = listener.accept().unwrap();
        let mut relay = Self { from_client, to_node: guarded.dial() };
        for (out, back) in SENT.into_iter().zip(ANSWERED) {
            relay.pass_on(out, |_| ());
            relay.pass_back(back, |_| ());
        }
        (relay, client.unwrap())
    }

    fn pass_on(&mut self, bytes: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut passed = vec![0; bytes];
        self.from_client.read_exact(&mut passed).unwrap();
        change(&mut passed);
        self.to_node.write_all(&passed).unwrap();
        passed
    }

    fn pass_back(&mut self, bytes: usize, change: impl FnOnce(&mut [u8])) {
        let mut passed = vec![0; bytes];
        self.to_node.read_exact(&mut passed).unwrap();
        change(&mut passed);
        self.from_client.write_all(&passed).unwrap();
    }
}

const SECRET_BYTES: &[u8; 24] = b"prompt of another tenant";

fn guarded_with_a_prompt() -> (GuardedAgent, TcpVerbs) {
    let guarded = guarded();
    let healthy = guarded.connect(knows("the right secret")).unwrap();
    healthy.write(TOKEN, 4096, SECRET_BYTES).unwrap();
    (guarded, healthy)
}

#[test]
fn i20_a_relay_that_passed_a_whole_handshake_on_can_issue_no_request() {
    let (guarded, healthy) = guarded_with_a_prompt();
    let read = raw::request(1, 0, &[(raw::READ, 4096, 24, 0)]);
    let store = raw::request(1, TOKEN, &[(raw::STORE, 4096, 0x2121_2121_2121_2121, 0)]);
    for (number, request) in [read, store].into_iter().enumerate() {
        // Without a tag, and with an invented one.
        for tag in [&[][..], &[7; TAG]] {
            let before = guarded.refused();
            let (relay, client) = Relay::between(&guarded, drop);
            let mut node = relay.to_node;
            node.write_all(&request).unwrap();
            node.write_all(tag).unwrap();
            node.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(rest(node), b"", "request {number} was answered");
            if !tag.is_empty() {
                eventually("it was counted", || guarded.refused() == before + 1);
            }
            drop(relay.from_client);
            client.join().unwrap();
        }
    }
    let mut now = [0; 24];
    healthy.read(4096, &mut now).unwrap();
    assert_eq!(&now, SECRET_BYTES);
}

#[test]
fn i20_a_relay_can_neither_change_nor_repeat_a_request() {
    let (guarded, healthy) = guarded_with_a_prompt();
    // A store is header, one descriptor and its tag.
    const STORE: usize = 40 + 32 + TAG;
    for byte in [4, 8, 16, 24, 40, 48, 56, 72] {
        let (mut relay, client) = Relay::between(&guarded, |verbs| verbs.store(TOKEN, 4096, 5));
        relay.pass_on(STORE, |bytes| bytes[byte] ^= 1);
        let answer = relay.to_node.read(&mut [0; 1]);
        assert!(matches!(answer, Ok(0)) || answer.is_err(), "byte {byte}: {answer:?}");
        drop(relay);
        assert!(client.join().unwrap().is_err(), "byte {byte}");
    }
    let mut now = [0; 24];
    healthy.read(4096, &mut now).unwrap();
    assert_eq!(&now, SECRET_BYTES, "not one of them was executed");
    let (mut relay, client) = Relay::between(&guarded, |verbs| verbs.fetch_add(TOKEN, 8192, 1));
    let sent = relay.pass_on(STORE, |_| ());
    relay.pass_back(40 + 8 + TAG, |_| ());
    relay.to_node.write_all(&sent).unwrap();
    let answer = relay.to_node.read(&mut [0; 1]);
    assert!(matches!(answer, Ok(0)) || answer.is_err(), "{answer:?}");
    assert_eq!(client.join().unwrap().unwrap(), 0);
    healthy.read(8192, &mut now).unwrap();
    assert_eq!(now[0], 1, "added once");
}

#[test]
fn i20_a_client_takes_no_result_that_its_agent_did_not_say() {
    let (guarded, _healthy) = guarded_with_a_prompt();
    const ADD: usize = 40 + 32 + TAG;
    const ANSWER: usize = 40 + 8 + TAG;
    // Status, id, counts, the closing flag, the result, the tag.
    for byte in [4, 8, 20, 32, 40, 47, 48, ANSWER - 1] {
        let (mut relay, client) = Relay::between(&guarded, |verbs| verbs.fetch_add(TOKEN, 8192, 1));
        relay.pass_on(ADD, |_| ());
        relay.pass_back(ANSWER, |bytes| bytes[byte] ^= 1);
        // A peer that waits for more than there is sees the end of stream.
        drop(relay);
        let error = client.join().unwrap().unwrap_err();
        if byte >= 40 {
            assert!(matches!(error, TransportError::Unauthenticated(_)), "byte {byte}: {error}");
        }
    }
}

#[test]
fn i20_a_client_without_a_cookie_believes_no_listener() {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let at = "127.0.0.1:0".parse().unwrap();
    let limits = AgentLimits::default();
    let access = Arc::new(OpenAccess);
    // The server behind the impostor requires no proof.
    let behind = TcpAgent::start(at, memory, INCARNATION, JOB, access, None, limits).unwrap();
    let to = behind.local_addr();
    for needs in [0u32, 3] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let impostor = spawn_named("impostor", move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; OPENING_BYTES]).unwrap();
            let mut welcome = b"nkv-chal".to_vec();
            for word in [2, 0, needs] {
                welcome.extend(word.to_le_bytes());
            }
            welcome.resize(ANSWER_BYTES, 0);
            client.write_all(&welcome).unwrap();
            let mut node = TcpStream::connect(to).unwrap();
            let mut back = (node.try_clone().unwrap(), client.try_clone().unwrap());
            spawn_named("back", move || std::io::copy(&mut back.0, &mut back.1)).unwrap();
            // The client's bytes to a peer that proved nothing.
            std::io::copy(&mut client, &mut node).unwrap()
        });
        let got = connect(at, Some(Credentials::of_client(JOB, None)));
        let refused =
            matches!(got, Err(TransportError::Unauthenticated(_) | TransportError::Protocol(_)));
        assert!(refused, "{got:?}");
        assert_eq!(impostor.unwrap().join().unwrap(), 0, "not a byte of a hello");
    }
}

/// Runs `work` in a forked child, which then ends normally; returns its status.
#[expect(unsafe_code, reason = "a fork is what is tested")]
fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work`, which takes no lock that another thread may have held at the
    // fork (that is what is tested), and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        work();
        // SAFETY: ends this process; what it has registered to run then is what is tested.
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn a_forked_child_that_drops_an_agent_and_a_connection_takes_nothing_from_its_parent() {
    let guarded = guarded();
    let before = guarded.connect(knows("the right secret")).unwrap();
    before.write(TOKEN, 0, &[7; 8]).unwrap();
    // What the child has belongs to the parent as well: it drops copies of it at its end.
    let at = guarded.agent.local_addr();
    let (mut guarded, mut before) = (Some(guarded), Some(before));
    let status = in_child(|| {
        drop(before.take());
        drop(guarded.take());
    });
    assert_eq!(status, 0, "the child hung, or died");
    before.as_ref().unwrap().read(0, &mut [0; 8]).unwrap();
    connect(at, Some(knows("the right secret"))).unwrap();
}

#[test]
fn a_forked_child_that_drops_a_cookie_leaves_its_parents() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let cookie = nkv_transport::wire::auth::CookieFile::hold_in(dir.path(), "job").unwrap();
    let path = cookie.path();
    assert_eq!(in_child(|| cookie.let_go()), 0);
    assert!(path.exists(), "a forked child removed the cookie of its living parent");
    drop(cookie);
    assert!(!path.exists(), "and its own it removes");
}

/// More connections than there may be unauthenticated ones.
const PLACES: usize = 256;
const SILENT: usize = 300;

#[test]
fn i20_silent_strangers_have_no_thread_and_keep_nobody_out() {
    // Only the arrival of another connection closes one of them.
    let limits = AgentLimits { hello_ms: 600_000, ..AgentLimits::default() };
    let guarded = guarded_with(limits);
    let at_once = || guarded.agent.counters().unauthenticated.load(Ordering::Relaxed) as usize;
    let mut silent: Vec<_> = (0..SILENT).map(|_| guarded.dial()).collect();
    eventually("the first of them gave way", || guarded.refused() >= 1 && at_once() < SILENT);
    assert_eq!(silent[0].read(&mut [0; 1]).unwrap(), 0, "the oldest gave way");
    for _ in 0..20 {
        let client = guarded.connect(knows("the right secret")).unwrap();
        client.write(TOKEN, 0, &[7; 8]).unwrap();
        silent.push(guarded.dial());
    }
    assert!(at_once() <= PLACES);
    eventually("only those that were let in ever had a thread", || {
        guarded.agent.counters().connections.load(Ordering::Relaxed) == 0
    });
    // Those that were closed were counted, and no others.
    eventually("the others are still there", || {
        guarded.refused() as usize + at_once() == SILENT + 20
    });
    // When the agent ends, all of them end.
    let youngest = silent.pop().unwrap();
    drop(guarded);
    assert_eq!(rest(youngest), b"");
}

#[test]
fn i20_a_peer_that_has_shown_the_secret_outlasts_silent_unauthenticated_peers() {
    let limits = AgentLimits { hello_ms: 600_000, ..AgentLimits::default() };
    let guarded = guarded_with(limits);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let client = spawn_named("client", move || {
        let credentials = Some(knows("the right secret"));
        let connect_ms = nkv_pace::HANGS_MS;
        let opts = TcpOptions { credentials, connect_ms, ..TcpOptions::default() };
        TcpVerbs::connect(&at, INCARNATION, JOB, opts).map(drop)
    });
    let mut relay = Relay { from_client: listener.accept().unwrap().0, to_node: guarded.dial() };
    relay.pass_on(SENT[0], |_| ());
    relay.pass_back(ANSWERED[0], |_| ());
    // It came first. Between its two messages more connections arrive than there may be.
    let silent: Vec<_> = (0..SILENT).map(|_| guarded.dial()).collect();
    let one_each = (SILENT + 1 - PLACES) as u64;
    eventually("the oldest of them gave way", || guarded.refused() == one_each);
    relay.pass_on(SENT[1], |_| ());
    relay.pass_back(ANSWERED[1], |_| ());
    client.unwrap().join().unwrap().unwrap();
    drop(silent);
}

#[test]
fn i20_a_handshake_goes_on_in_whatever_pieces_it_comes() {
    let guarded = guarded();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let client = spawn_named("client", move || {
        let verbs = connect(at, Some(knows("the right secret"))).unwrap();
        verbs.write(TOKEN, 0, &[5; 8]).unwrap();
    });
    let (mut from_client, _) = listener.accept().unwrap();
    let mut to_node = guarded.dial();
    let (mut back, mut forth) = (to_node.try_clone().unwrap(), from_client.try_clone().unwrap());
    spawn_named("answers", move || std::io::copy(&mut back, &mut forth)).unwrap();
    to_node.set_nodelay(true).unwrap();
    let mut piece = [0; 1];
    while let Ok(1) = from_client.read(&mut piece) {
        to_node.write_all(&piece).unwrap();
    }
    client.unwrap().join().unwrap();
    assert_eq!(guarded.refused(), 0);
}
