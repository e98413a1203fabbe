//! Prints the frames of control connections of a run, for people. It follows each stream past its
//! handshake, cuts it into frames, and decodes them by the connection's purpose. No run depends on
//! it.

use super::ConnId;
use nkv::message::{
    ClientToOwner, Hello, MasterToOwner, OwnerToClient, OwnerToMaster, Purpose, Request, Response,
    Welcome,
};
use nkv_transport::wire::auth::{ANSWER_BYTES, FINISH_BYTES, OPENING_BYTES};
use nkv_transport::wire::{WireError, decode_frame};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Most characters printed of a frame.
const SHOWN: usize = 700;

#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    past: usize,
}

#[derive(Debug, Default)]
struct ConnFrames {
    sides: [Stream; 2],
    purpose: Option<Purpose>,
    welcomed: bool,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct FrameTracer(BTreeMap<ConnId, ConnFrames>);

/// Bytes that each side sends in the handshake: the simulation's job has a secret.
const HANDSHAKE: [usize; 2] = [OPENING_BYTES + FINISH_BYTES, ANSWER_BYTES];

impl FrameTracer {
    /// Bytes arrived; returns the frames that are whole now.
    pub fn arrived(&mut self, conn: ConnId, side: usize, bytes: &[u8]) -> Vec<String> {
        let conn_frames = self.0.entry(conn).or_default();
        let stream = &mut conn_frames.sides[side];
        stream.bytes.extend_from_slice(bytes);
        if stream.past < HANDSHAKE[side] {
            let n = stream.bytes.len().min(HANDSHAKE[side] - stream.past);
            stream.bytes.drain(..n);
            stream.past += n;
        }
        let mut frames = Vec::new();
        while let Some(frame) = conn_frames.next(side) {
            frames.push(format!("{conn}.{side} {}", frame.chars().take(SHOWN).collect::<String>()));
        }
        frames
    }
}

impl ConnFrames {
    fn next(&mut self, side: usize) -> Option<String> {
        if self.sides[side].bytes.is_empty() {
            return None;
        }
        match (side, &self.purpose) {
            (0, None) => {
                let (text, hello) = self.frame::<Hello>(side)?;
                self.purpose = hello.map(|h| h.purpose);
                Some(text)
            }
            (1, _) if !self.welcomed => {
                self.welcomed = true;
                self.frame::<Welcome>(side).map(|(text, _)| text)
            }
            (0, Some(Purpose::Client { .. })) => self.frame::<Request>(side).map(|(t, _)| t),
            (_, Some(Purpose::Client { .. })) => self.frame::<Response>(side).map(|(t, _)| t),
            (0, Some(Purpose::Rank { .. })) => self.frame::<OwnerToMaster>(side).map(|(t, _)| t),
            (_, Some(Purpose::Rank { .. })) => self.frame::<MasterToOwner>(side).map(|(t, _)| t),
            (0, Some(Purpose::Attach { .. })) => self.frame::<ClientToOwner>(side).map(|(t, _)| t),
            (_, Some(Purpose::Attach { .. })) => self.frame::<OwnerToClient>(side).map(|(t, _)| t),
            _ => None,
        }
    }

    fn frame<T: serde::de::DeserializeOwned + Debug>(
        &mut self,
        side: usize,
    ) -> Option<(String, Option<T>)> {
        let stream = &mut self.sides[side];
        match decode_frame::<T>(&stream.bytes) {
            Ok((_, value, n)) => {
                stream.bytes.drain(..n);
                Some((format!("{value:?}"), Some(value)))
            }
            Err(WireError::Truncated { .. }) => None,
            Err(e) => {
                stream.bytes.clear();
                Some((format!("undecodable: {e}"), None))
            }
        }
    }
}
