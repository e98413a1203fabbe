//! Feeds actors with any messages that decode: a master with those of a member and of clients, an
//! owner with those of a master and of an attached process. Every number in them may be wrong. None
//! of them may make an actor panic, take more memory than valid messages do, or keep others from
//! being served [I19]. The fuzzer runs this, and so does a test, from the same seeds. Mutated bytes
//! alone do not find a missing check, since most mutated messages are refused by another check. So
//! a second test sends each impossible value by itself (`lies.rs`), expects it to be refused, and
//! then checks that the state of master and owner has not changed (`whole.rs`).

mod scene;
mod seeds;

pub use seeds::seeds;

use crate::message::{ClientToOwner, MasterToOwner, OwnerToMaster, Purpose, Request, Response};
use nkv_transport::wire::{FRAME_HEADER_BYTES, WIRE_VERSION, decode_frame, encode_frame};
use scene::TestCluster;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Messages in one input, at most.
const MAX_MESSAGES: usize = 64;
/// Bytes before each message: its kind and its length.
const MESSAGE_HEADER: usize = 3;

/// Which message, and who receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A member joins.
    Hello = 0,
    /// A member's owner to the master.
    OwnerToMaster = 1,
    /// A client to the master.
    Request = 2,
    /// The master to an owner.
    MasterToOwner = 3,
    /// An attached process to an owner.
    ClientToOwner = 4,
    /// The master to a client.
    Response = 5,
    /// Time passes.
    Later = 6,
}

const KINDS: [Kind; 7] = [
    Kind::Hello,
    Kind::OwnerToMaster,
    Kind::Request,
    Kind::MasterToOwner,
    Kind::ClientToOwner,
    Kind::Response,
    Kind::Later,
];

/// Encodes a message as part of an input.
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    let mut frame = Vec::new();
    // A message that cannot be encoded becomes an empty one.
    let _ = encode_frame(&mut frame, 0, value);
    let body = frame.get(FRAME_HEADER_BYTES..).unwrap_or_default();
    let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
    [&[kind as u8], &len.to_le_bytes()[..], &body[..usize::from(len)]].concat()
}

fn decoded<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&WIRE_VERSION.to_le_bytes());
    frame.extend_from_slice(&[0; 10]);
    frame.extend_from_slice(body);
    decode_frame(&frame).ok().map(|(_, value, _)| value)
}

/// Delivers the messages of an input one after the other; true if all of them decoded. Panics if an
/// actor panicked, or does not serve others any more.
pub fn run(input: &[u8]) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return false };
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let mut scene = TestCluster::new().await;
        let mut understood = true;
        let mut rest = input;
        for _ in 0..MAX_MESSAGES {
            let Some((header, body)) = rest.split_at_checked(MESSAGE_HEADER) else { break };
            let len = usize::from(u16::from_le_bytes([header[1], header[2]])).min(body.len());
            let (body, later) = body.split_at(len);
            rest = later;
            understood &=
                deliver(&mut scene, KINDS[usize::from(header[0]) % KINDS.len()], body).await;
            scene.honest_stays().await;
        }
        scene.others_are_served().await;
        understood
    })
}

async fn deliver(scene: &mut TestCluster, kind: Kind, body: &[u8]) -> bool {
    match kind {
        Kind::Hello => match decoded::<Purpose>(body) {
            Some(purpose) => scene.joins(purpose).await,
            None => return false,
        },
        Kind::OwnerToMaster => match decoded::<OwnerToMaster>(body) {
            Some(up) => drop(scene.receive_from_member(up).await),
            None => return false,
        },
        Kind::Request => match decoded::<Request>(body) {
            Some(request) => scene.client_asks(request).await,
            None => return false,
        },
        Kind::MasterToOwner => match decoded::<MasterToOwner>(body) {
            Some(down) => drop(scene.receive_from_master(down).await),
            None => return false,
        },
        Kind::ClientToOwner => match decoded::<ClientToOwner>(body) {
            Some(message) => drop(scene.receive_from_process(message).await),
            None => return false,
        },
        Kind::Response => match decoded::<Response>(body) {
            Some(response) => drop(scene.to_client(&response)),
            None => return false,
        },
        Kind::Later => scene.time_passes(body.len() as u64).await,
    }
    true
}

#[cfg(test)]
mod lies;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole;
