//! A real tcp agent beside a real segment, over loopback, with a hostile peer: the input is what
//! the peer sends before it closes its half. Whatever it sends, only bytes that its plan or its log
//! covers may change, every answer is whole, no claim stays open, and an honest client is still
//! served. The first byte decides
//! whether a valid hello is sent first; the second gives the size of the pieces.

use nkv_store::arena::Extent;
use nkv_store::device_log::{BUMP_PTR_OFF, HEAP_LIMIT_OFF, LogLayout};
use nkv_store::{AnonMemory, Memory};
use nkv_transport::access::{Access, Cut, Permit};
use nkv_transport::grants::{Grant, Grants};
use nkv_transport::log_rights::LogRights;
use nkv_transport::{AgentLimits, TcpAgent, TcpOptions, TcpVerbs, Verbs};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub const JOB: &str = "fuzz";
pub const INCARNATION: u64 = 0x1234_5678_9abc_def0;
pub const TOKEN: u64 = 0x10_c0de;
pub const GRANT: Grant =
    Grant { header_off: 4096, epoch: 7, extent: Extent { offset: 16 << 10, len: 8 << 10 } };
/// Of a producer with rights in the log.
pub const LOG_TOKEN: u64 = 0x10_c0df;
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// Headers and bytes of the log: four units.
const LOG_HEADERS: u64 = 8 << 10;
const LOG_BASE: u64 = 32 << 10;
const LOG_UNIT: u64 = 4 << 10;
const LOG_BYTES: u64 = 4 * LOG_UNIT;
/// So much can be claimed in one input.
const LOG_LIMIT: u64 = 64 * LOG_BYTES;
/// An agent that sends nothing for this long hangs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What an agent may answer to one input: its requests are few, and each returns little.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Offsets and lengths that the plan and the log cover; all other bytes must not change.
const GRANTED: [(u64, u64); 5] = [
    (GRANT.header_off, 64),
    (GRANT.extent.offset, GRANT.extent.len),
    (BUMP_PTR_OFF, 8),
    (LOG_HEADERS, LOG_BYTES / LOG_UNIT * 64),
    (LOG_BASE, LOG_BYTES),
];

/// Production's grants, but without waiting for an unknown token.
#[derive(Debug)]
struct AtOnce(Arc<Grants>);

impl Access for AtOnce {
    fn admit<'a>(&'a self, token: u64, cut: &Arc<dyn Cut>) -> Result<Box<dyn Permit + 'a>, String> {
        Ok(Box::new(self.0.enter(token, Duration::ZERO, cut)?))
    }
}

struct Fixture {
    agent: TcpAgent,
    memory: Arc<AnonMemory>,
    grants: Arc<Grants>,
    layout: LogLayout,
    honest: TcpVerbs,
}

static RIG: LazyLock<Fixture> = LazyLock::new(|| {
    let memory = Arc::new(AnonMemory::new(SEGMENT_BYTES).expect("64 KiB of memory"));
    memory.store(HEAP_LIMIT_OFF, LOG_LIMIT).expect("inside the segment");
    let layout = LogLayout::new(LOG_BASE, LOG_BYTES, LOG_UNIT, LOG_HEADERS).expect("a layout");
    let grants = Arc::new(Grants::new());
    grants.open(TOKEN, GRANT);
    let at = "127.0.0.1:0".parse().expect("an address");
    let limits = AgentLimits { max_request_bytes: 64 << 10, ..AgentLimits::default() };
    let access = Arc::new(AtOnce(grants.clone()));
    let agent = TcpAgent::start(at, memory.clone(), INCARNATION, JOB, access, None, limits)
        .expect("an agent on loopback");
    let to = agent.local_addr().to_string();
    let honest = TcpVerbs::connect(&to, INCARNATION, JOB, TcpOptions::default())
        .expect("an honest client is served");
    Fixture { agent, memory, grants, layout, honest }
});

/// A hello that the agent welcomes.
pub fn hello() -> Vec<u8> {
    let mut bytes = b"nkvtcp-h".to_vec();
    bytes.extend(nkv_transport::tcp::TCP_VERSION.to_le_bytes());
    bytes.extend((JOB.len() as u32).to_le_bytes());
    bytes.extend(INCARNATION.to_le_bytes());
    bytes.extend(JOB.as_bytes());
    bytes
}

pub fn run(input: &[u8]) -> bool {
    let Some(([with_hello, piece], bytes)) = input.split_first_chunk() else {
        return false;
    };
    let rig = &*RIG;
    let mut sent = if with_hello & 1 == 1 { hello() } else { Vec::new() };
    sent.extend_from_slice(bytes);
    let rights = Arc::new(LogRights::new(rig.layout, rig.memory.clone()));
    rig.grants.open_log(LOG_TOKEN, rights.clone());
    let (answer, whole) = converse(rig, &sent, 1 + 16 * usize::from(*piece));
    end(rig, &rights);
    let answers = count_answers(&answer);
    // After a reset its end may be lost on the way.
    assert!(!whole || answers.is_some(), "the agent broke off inside an answer");
    check_segment(&rig.memory);
    rig.honest.read(0, &mut [0; 8]).expect("an honest client is served beside any other");
    answers.is_some_and(|n| n > 0)
}

/// Fences the producer and settles what it left, as an owner does.
fn end(rig: &Fixture, rights: &LogRights) {
    rig.grants.revoke(LOG_TOKEN);
    assert!(rig.grants.wait_drained(LOG_TOKEN, TIMEOUT), "a request does not end");
    let ended = rights.finish().expect("the log is in memory");
    assert_eq!((ended.in_flight, rights.open()), (0, (0, 0)), "a claim stays open");
    // The next input gets rights of its own.
    rig.grants.forget(LOG_TOKEN);
}

/// Sends everything, closes its half, and returns all that the agent sent; with false if the agent
/// reset the connection, which it does if it did not read everything.
fn converse(rig: &Fixture, sent: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut peer = TcpStream::connect(rig.agent.local_addr()).expect("the agent accepts");
    peer.set_nodelay(true).expect("an option of a socket");
    peer.set_read_timeout(Some(TIMEOUT)).expect("an option of a socket");
    peer.set_write_timeout(Some(TIMEOUT)).expect("an option of a socket");
    // The agent may close the connection at any byte.
    let _ = sent.chunks(piece).try_for_each(|part| peer.write_all(part));
    let _ = peer.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let read = (&mut peer).take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    if let Err(e) = &read {
        let waits = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
        assert!(!waits.contains(&e.kind()), "the agent hangs: {e}");
    }
    (answer, read.is_ok())
}

/// A structure of the agent with its magic in front: its words of 32 bits, and what follows it.
fn head<'a>(answer: &'a [u8], magic: &[u8], len: usize) -> Option<(Vec<u64>, &'a [u8])> {
    let (head, rest) = answer.split_at_checked(len)?;
    let words = head.chunks(4).map(|w| w.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    head.starts_with(magic).then(|| (words.collect(), rest))
}

/// Responses after the welcome; none at all is fine. `None` if anything is not whole.
fn count_answers(answer: &[u8]) -> Option<usize> {
    if answer.is_empty() {
        return Some(0);
    }
    // Status is word 3, the length of the text word 10.
    let (welcome, rest) = head(answer, b"nkvtcp-w", 48)?;
    let mut rest = rest.get(welcome[10] as usize..)?;
    if welcome[3] != 0 {
        return rest.is_empty().then_some(0);
    }
    let mut answers = 0;
    while !rest.is_empty() {
        // Length of the text is word 4, number of results 5, bytes read 6 and 7.
        let (response, after) = head(rest, b"nkvr", 40)?;
        let follows = response[4] + 8 * response[5] + (response[6] | response[7] << 32);
        rest = after.get(follows as usize..)?;
        answers += 1;
    }
    Some(answers)
}

/// Everything outside plan and log is as it was; what is inside becomes so again.
fn check_segment(memory: &AnonMemory) {
    let zeros = vec![0; LOG_BYTES as usize];
    for (offset, len) in GRANTED {
        memory.write(offset, &zeros[..len as usize]).expect("inside the segment");
    }
    let mut all = vec![0; SEGMENT_BYTES as usize];
    memory.read(0, &mut all).expect("the whole segment");
    let limit = HEAP_LIMIT_OFF as usize;
    assert_eq!(all[limit..limit + 8], LOG_LIMIT.to_ne_bytes(), "the limit was changed");
    all[limit..limit + 8].fill(0);
    let changed = all.iter().position(|b| *b != 0);
    assert_eq!(changed, None, "a byte outside plan and log was changed");
}
