//! Two ends of a handshake on sockets, and a relay between them that reads everything and may
//! change one bit of it.

use super::super::handshake::{HandshakeStep, ServerHandshake};
use super::super::*;
use super::JOB;
use nkv_store::OsRandom;
use nkv_store::threads::spawn_named;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of the frames in their order: opening, answer, finish.
pub const FRAMES: [usize; 3] = [OPENING_BYTES, ANSWER_BYTES, FINISH_BYTES];
/// Time limit of every wait here.
const TIMEOUT: Duration = nkv_pace::HANGS;

/// Which bit of which frame is changed on the way.
pub struct Tamper(Option<(usize, usize)>);

impl Tamper {
    pub const NONE: Self = Self(None);

    pub fn flip(frame: usize, bit: usize) -> Self {
        Self(Some((frame, bit)))
    }
}

/// The bytes that both ends sent.
pub struct Record {
    pub client: Vec<u8>,
    pub node: Vec<u8>,
}

type Outcome = Result<Session, AuthError>;

pub fn verify(mut node: UnixStream, means: AuthMeans, channel: Channel) -> Outcome {
    node.set_read_timeout(Some(TIMEOUT)).unwrap();
    let credentials = Credentials::of_client(JOB, None);
    let mut entrance = ServerHandshake::new(means, channel, credentials);
    let mut buf = [0; OPENING_BYTES];
    loop {
        let wants = entrance.wants();
        match node.read(&mut buf[..wants]) {
            Ok(0) | Err(_) => return Err(AuthError::Closed(entrance.got())),
            Ok(n) => match entrance.take(&buf[..n]) {
                HandshakeStep::More => {}
                HandshakeStep::Send(answer) => node.write_all(&answer).map_err(AuthError::Io)?,
                HandshakeStep::Over(answer, outcome) => {
                    let sent = answer.map_or(Ok(()), |answer| node.write_all(&answer));
                    return sent.map_err(AuthError::Io).and(outcome);
                }
            },
        }
    }
}

pub fn prove(mut client: UnixStream, means: AuthMeans) -> Outcome {
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    prove_blocking(&mut client, means, Channel::Control, JOB, &OsRandom)
}

pub fn proving(client: UnixStream, means: AuthMeans) -> JoinHandle<Outcome> {
    spawn_named("client", move || prove(client, means)).unwrap()
}

/// Exactly `n` bytes.
pub fn take(stream: &mut UnixStream, n: usize) -> Vec<u8> {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A whole handshake through the relay; ends when either end does.
pub fn converse(client: AuthMeans, node: AuthMeans, tamper: &Tamper) -> (Outcome, Outcome) {
    let (outcomes, _) = overheard(client, node, tamper);
    outcomes
}

/// The bytes of a successful handshake.
pub fn recorded(means: AuthMeans) -> Record {
    let ((client, node), record) = overheard(means.clone(), means, &Tamper::NONE);
    client.unwrap();
    node.unwrap();
    record
}

fn overheard(client: AuthMeans, node: AuthMeans, tamper: &Tamper) -> ((Outcome, Outcome), Record) {
    let (a, mut to_client) = UnixStream::pair().unwrap();
    let (b, mut to_node) = UnixStream::pair().unwrap();
    let (client, node) = (
        proving(a, client),
        spawn_named("node", move || verify(b, node, Channel::Control)).unwrap(),
    );
    let mut record = Record { client: Vec::new(), node: Vec::new() };
    for (number, len) in FRAMES.into_iter().enumerate() {
        let from_client = number % 2 == 0;
        let (from, to, sent) = if from_client {
            (&mut to_client, &mut to_node, &mut record.client)
        } else {
            (&mut to_node, &mut to_client, &mut record.node)
        };
        from.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut frame = vec![0; len];
        if from.read_exact(&mut frame).is_err() {
            break;
        }
        sent.extend_from_slice(&frame);
        if let Tamper(Some((changed, bit))) = tamper
            && *changed == number
        {
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    drop((to_client, to_node));
    ((client.join().unwrap(), node.join().unwrap()), record)
}
