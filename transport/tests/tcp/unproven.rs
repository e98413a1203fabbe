//! What an unauthenticated peer sends ends the connection on which it was sent, and nothing else
//! [I17] [I20].

use super::{INCARNATION, JOB, SEGMENT_BYTES};
use nkv_store::AnonMemory;
use nkv_store::threads::spawn_named;
use nkv_transport::access::OpenAccess;
use nkv_transport::wire::auth::{Credentials, Guard, Secret};
use nkv_transport::{AgentLimits, TcpAgent, TcpOptions, TcpVerbs, Verbs};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Which connection is refused, of those that are made.
const REFUSED: usize = 1;
/// Calls until the handle works again: one finds its connection closed, one is refused.
const CALLS: usize = 8;

fn knows(job: &str) -> Credentials {
    Credentials::of_client(job, Some(Secret::new(b"the right secret", "test").unwrap()))
}

fn agent(job: &str) -> TcpAgent {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).unwrap());
    let (at, access) = ("127.0.0.1:0".parse().unwrap(), Arc::new(OpenAccess));
    let guard = Some(Arc::new(Guard::new(knows(job))));
    let limits = AgentLimits::default();
    TcpAgent::start(at, memory, INCARNATION, job, access, guard, limits).unwrap()
}

/// Relays bytes: one connection to a peer that refuses it, the others to a peer that serves them.
fn between(serves: SocketAddr, refuses: SocketAddr, made: Sender<TcpStream>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        spawn_named("pass", move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        })
        .unwrap();
    };
    spawn_named("between", move || {
        for (n, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            let node = TcpStream::connect(if n == REFUSED { refuses } else { serves }).unwrap();
            pass(client.try_clone().unwrap(), node.try_clone().unwrap());
            pass(node, client.try_clone().unwrap());
            let _ = made.send(client);
        }
    })
    .unwrap();
    at
}

#[test]
fn i17_a_refusal_that_nobody_proved_ends_one_connection_and_not_the_handle() {
    let (ours, theirs) = (agent(JOB), agent("job-b"));
    let (made, connections) = channel();
    let at = between(ours.local_addr(), theirs.local_addr(), made);
    let opts = TcpOptions { credentials: Some(knows(JOB)), ..TcpOptions::default() };
    let verbs = TcpVerbs::connect(&at.to_string(), INCARNATION, JOB, opts).unwrap();
    verbs.read(0, &mut [0; 8]).unwrap();
    let first = connections.recv().unwrap();
    first.shutdown(Shutdown::Both).unwrap();
    let mut failed = Vec::new();
    for _ in 0..CALLS {
        match verbs.read(0, &mut [0; 8]) {
            Ok(()) => break,
            Err(e) => failed.push(e.to_string()),
        }
    }
    assert!(failed.iter().any(|why| why.contains("job-b")), "never refused: {failed:?}");
    assert!(failed.len() < CALLS, "the handle never works again: {failed:?}");
}
