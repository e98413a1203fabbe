//! The bodies of control frames, each as the message that its connection expects. The frame's
//! header is written here, so that every input reaches the decoder; [`super::stream`] tests
//! headers.

use crate::heap;
use nkv_actors::message::{
    ClientToOwner, Hello, MasterToOwner, OwnerToClient, OwnerToMaster, Request, Response, Welcome,
};
use nkv_transport::wire::{FRAME_HEADER_BYTES, WIRE_VERSION, decode_frame, encode_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value may take so many times its encoded bytes. The worst are entries of a report: 12 bytes of
/// a frame are a free slot, which takes 136, the room of the largest kind of slot; and a vector
/// that grows is there up to three times.
pub const GROWTH: usize = 40;
/// Memory is reserved for up to 1 MiB of a claimed number of elements, once per level of nesting.
pub const CLAIMED_BYTES: usize = 4 << 20;

pub fn hello(body: &[u8]) -> bool {
    framed::<Hello>(body)
}

pub fn welcome(body: &[u8]) -> bool {
    framed::<Welcome>(body)
}

pub fn request(body: &[u8]) -> bool {
    framed::<Request>(body)
}

pub fn response(body: &[u8]) -> bool {
    framed::<Response>(body)
}

pub fn up(body: &[u8]) -> bool {
    framed::<OwnerToMaster>(body)
}

pub fn down(body: &[u8]) -> bool {
    framed::<MasterToOwner>(body)
}

pub fn to_owner(body: &[u8]) -> bool {
    framed::<ClientToOwner>(body)
}

pub fn to_client(body: &[u8]) -> bool {
    framed::<OwnerToClient>(body)
}

/// Decodes `body` as a `T`; what is accepted must be exactly what would be written.
fn framed<T: Serialize + DeserializeOwned>(body: &[u8]) -> bool {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&WIRE_VERSION.to_le_bytes());
    frame.extend_from_slice(&[0; 10]);
    frame.extend_from_slice(body);
    let (decoded, held) = heap::peak_of(|| decode_frame::<T>(&frame));
    let allowed = CLAIMED_BYTES + GROWTH * frame.len();
    assert!(held <= allowed, "{held} bytes held for a frame of {}", frame.len());
    let Ok((id, value, used)) = decoded else {
        return false;
    };
    assert_eq!(again(id, &value), frame[..used], "accepted, but it would be written otherwise");
    true
}

/// The frame that `value` is written as.
pub fn again<T: Serialize>(id: u64, value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, id, value).expect("what was decoded can be encoded");
    bytes
}
