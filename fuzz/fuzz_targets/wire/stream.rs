//! A whole connection through the real reader of frames: split into pieces, cancelled and resumed
//! at every wait, ended anywhere or never. It must read exactly what `decode_frame` finds in the
//! same bytes, and take and hold no more than its limit allows. An input is: kind, limit, end, seed
//! of the pieces, then the bytes of the stream.

use crate::bodies::{CLAIMED_BYTES, GROWTH, again};
use crate::feed::Feed;
use crate::heap;
use nkv_actors::message::{ClientToOwner, Hello, KeyBytes, OwnerToMaster, Request, Response};
use nkv_transport::wire::{
    FRAME_HEADER_BYTES, MAX_FRAME_BYTES, WireError, decode_frame, read_frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::mem::discriminant;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The limit of a first frame.
const SMALL_LIMIT: usize = 64 << 10;
/// A limit between that and the largest.
const MIDDLE_LIMIT: usize = 1 << 20;
/// A reader's buffer between frames.
const KEPT_BYTES: usize = 1 << 20;
/// What the reader may hold beside the frame's bytes: one step of its buffer's growth, doubled.
const STEP_BYTES: usize = 256 << 10;

/// Reads a stream of one kind of frame.
type Reader = fn(&mut Feed<'_>, usize) -> bool;

const READERS: [Reader; 5] = [
    frames::<Hello>,
    frames::<Request>,
    frames::<Response>,
    frames::<OwnerToMaster>,
    frames::<ClientToOwner>,
];

pub fn run(input: &[u8]) -> bool {
    let Some(([kind, limit, end, seed], bytes)) = input.split_first_chunk() else {
        return false;
    };
    // An even value ends the stream; after an odd one that byte is repeated without end.
    let filler = (end & 1 == 1).then_some(*end);
    let mut feed = Feed::new(bytes, filler, u64::from(*seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    match limit % 3 {
        0 => READERS[usize::from(*kind) % READERS.len()](&mut feed, SMALL_LIMIT),
        1 => READERS[usize::from(*kind) % READERS.len()](&mut feed, MIDDLE_LIMIT),
        // The largest frame as plain bytes, to save time. There is no larger limit.
        _ => frames::<KeyBytes>(&mut feed, usize::MAX),
    }
}

/// Reads until the stream ends or errs; true if it ended well after at least one frame.
fn frames<T: Serialize + DeserializeOwned>(feed: &mut Feed<'_>, limit: usize) -> bool {
    let mut buf = Vec::new();
    let mut read_well = false;
    loop {
        let (rest, before) = (feed.rest(), feed.taken());
        let (result, held) = heap::peak_of(|| resumed::<T>(feed, &mut buf, limit));
        let taken = feed.taken() - before;
        let most = FRAME_HEADER_BYTES + limit.min(MAX_FRAME_BYTES);
        assert!(taken <= most, "{taken} bytes taken under a limit of {limit}");
        let allowed = STEP_BYTES + CLAIMED_BYTES + GROWTH * taken;
        assert!(held <= allowed, "{held} bytes held after {taken} arrived");
        // If filler bytes were read, there is nothing to compare with.
        let known = taken <= rest.len();
        match result {
            Ok(Some((id, value))) => {
                assert!(buf.is_empty() && buf.capacity() <= KEPT_BYTES);
                assert!(!known || again(id, &value) == rest[..taken], "frame {id} as if rewritten");
                read_well = true;
            }
            Ok(None) => {
                assert!(rest.is_empty() && taken == 0, "an end inside a frame");
                return read_well;
            }
            Err(WireError::TooLarge { claimed, limit }) => {
                assert!(taken == FRAME_HEADER_BYTES && claimed > limit as u64);
                return false;
            }
            Err(why) => {
                let whole = decode_frame::<T>(rest).err().map(|e| discriminant(&e));
                assert!(!known || whole == Some(discriminant(&why)), "only in pieces: {why}");
                return false;
            }
        }
    }
}

/// One frame by the reader, which is dropped at every wait and started again on the same buffer, as
/// a `select!` does.
fn resumed<T: DeserializeOwned>(
    feed: &mut Feed<'_>,
    buf: &mut Vec<u8>,
    limit: usize,
) -> Result<Option<(u64, T)>, WireError> {
    let mut context = Context::from_waker(Waker::noop());
    // The reader sets timers; nothing here waits long enough for one to end.
    let _timers = super::handshake::RUNTIME.enter();
    loop {
        let reading = pin!(read_frame(feed, buf, limit));
        if let Poll::Ready(result) = reading.poll(&mut context) {
            return result;
        }
    }
}
