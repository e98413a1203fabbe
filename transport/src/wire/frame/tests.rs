//! Frames with valid, incomplete and hostile input.

use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    Ping,
    Put { key: Vec<u8>, sizes: Vec<u64>, name: Option<String> },
}

fn message() -> impl Strategy<Value = Message> {
    let put = (
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(any::<u64>(), 0..40),
        proptest::option::of(".{0,20}"),
    );
    prop_oneof![
        Just(Message::Ping),
        put.prop_map(|(key, sizes, name)| Message::Put { key, sizes, name })
    ]
}

fn block_on<F: Future>(f: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

/// Yields its bytes in pieces and counts how much was taken and how large the requests were.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    largest_request: usize,
}

impl Pieces {
    fn new(bytes: Vec<u8>, piece: usize) -> Self {
        Self { bytes, at: 0, piece, largest_request: 0 }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.largest_request = self.largest_request.max(buf.remaining());
        let n = self.piece.min(buf.remaining()).min(self.bytes.len() - self.at);
        let at = self.at;
        buf.put_slice(&self.bytes[at..at + n]);
        self.at += n;
        Poll::Ready(Ok(()))
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        messages in proptest::collection::vec(message(), 1..8),
        piece in 1usize..200,
    ) {
        let mut bytes = Vec::new();
        for (i, m) in messages.iter().enumerate() {
            encode_frame(&mut bytes, i as u64 * 0x1_0000_0001, m).unwrap();
        }
        let mut rest = &bytes[..];
        for (i, m) in messages.iter().enumerate() {
            let (id, got, used) = decode_frame::<Message>(rest).unwrap();
            prop_assert_eq!((id, &got), (i as u64 * 0x1_0000_0001, m));
            rest = &rest[used..];
        }
        let mut stream = Pieces::new(bytes, piece);
        let mut buf = Vec::new();
        block_on(async {
            for m in &messages {
                let got = read_frame::<_, Message>(&mut stream, &mut buf, MAX_FRAME_BYTES).await;
                assert_eq!(&got.unwrap().unwrap().1, m);
            }
            let end = read_frame::<_, Message>(&mut stream, &mut buf, MAX_FRAME_BYTES).await;
            assert!(end.unwrap().is_none());
        });
    }

    #[test]
    fn i19_a_torn_frame_is_truncated_wherever_it_is_cut(
        m in message(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, 7, &m).unwrap();
        let cut = cut.index(bytes.len() - 1) + 1;
        let missing = bytes.len() - cut;
        bytes.truncate(cut);
        if missing > 0 {
            let r = decode_frame::<Message>(&bytes);
            prop_assert!(matches!(r, Err(WireError::Truncated { .. })), "{:?}", r);
            let (mut stream, mut buf) = (Pieces::new(bytes, 3), Vec::new());
            let r = block_on(read_frame::<_, Message>(&mut stream, &mut buf, 4096));
            prop_assert!(matches!(r, Err(WireError::Truncated { .. })), "{:?}", r);
        }
    }

    #[test]
    fn i19_garbage_is_an_error_and_never_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decode_frame::<Message>(&bytes);
        // The same under a valid header, so that the decoder itself is reached.
        let mut framed = Vec::new();
        framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        framed.extend_from_slice(&WIRE_VERSION.to_le_bytes());
        framed.extend_from_slice(&[0; 10]);
        framed.extend_from_slice(&bytes);
        if let Ok((_, m, used)) = decode_frame::<Message>(&framed) {
            let mut again = Vec::new();
            encode_frame(&mut again, 0, &m).unwrap();
            prop_assert_eq!(again.len(), used);
        }
    }
}

fn header(body: u32, version: u16, flags: u16) -> Vec<u8> {
    let mut h = body.to_le_bytes().to_vec();
    h.extend_from_slice(&version.to_le_bytes());
    h.extend_from_slice(&flags.to_le_bytes());
    h.extend_from_slice(&[0; 8]);
    h
}

#[test]
fn i19_an_oversize_claim_is_refused_before_anything_is_allocated() {
    let mut buf = Vec::new();
    let mut stream = Pieces::new(header(5000, WIRE_VERSION, 0), 64);
    let r = block_on(read_frame::<_, Message>(&mut stream, &mut buf, 4096));
    assert!(matches!(r, Err(WireError::TooLarge { claimed: 5000, limit: 4096 })), "{r:?}");
    let r = decode_frame::<Message>(&header(u32::MAX, WIRE_VERSION, 0));
    assert!(matches!(r, Err(WireError::TooLarge { .. })));
}

#[test]
fn i19_a_claimed_length_alone_allocates_little() {
    let mut bytes = header(MAX_FRAME_BYTES as u32, WIRE_VERSION, 0);
    bytes.extend_from_slice(&[0; 1000]);
    let mut buf = Vec::new();
    let mut stream = Pieces::new(bytes, usize::MAX);
    let r = block_on(read_frame::<_, Message>(&mut stream, &mut buf, MAX_FRAME_BYTES));
    assert!(matches!(r, Err(WireError::Truncated { .. })));
    assert!(buf.capacity() <= 4 * GROW_BYTES, "{} bytes for a claim", buf.capacity());
    assert!(stream.largest_request <= 2 * GROW_BYTES);
}

#[test]
fn i19_a_length_inside_the_body_cannot_allocate_more_than_arrived() {
    // Put { key: a vector that states 2^40 bytes }.
    let mut bytes = header(12, WIRE_VERSION, 0);
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.extend_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(matches!(decode_frame::<Message>(&bytes), Err(WireError::Decode { .. })));
}

#[test]
fn i19_another_version_unknown_flags_and_trailing_bytes_are_errors() {
    let r = decode_frame::<Message>(&header(0, WIRE_VERSION + 1, 0));
    assert!(matches!(r, Err(WireError::Version { got }) if got == WIRE_VERSION + 1));
    let r = decode_frame::<Message>(&header(0, WIRE_VERSION, 1));
    assert!(matches!(r, Err(WireError::Flags { flags: 1 })));
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, 0, &Message::Ping).unwrap();
    bytes[0] += 1;
    bytes.push(0);
    assert!(matches!(decode_frame::<Message>(&bytes), Err(WireError::Decode { .. })));
}

#[test]
fn a_value_above_the_limit_is_not_sent() {
    let mut out = vec![1, 2, 3];
    let big = vec![0u8; MAX_FRAME_BYTES];
    let r = encode_frame(&mut out, 0, &big);
    assert!(matches!(r, Err(WireError::TooLarge { .. })), "{r:?}");
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn a_cancelled_read_goes_on_where_it_stopped() {
    block_on(async {
        let (mut a, mut b) = tokio::io::duplex(1 << 16);
        let mut bytes = Vec::new();
        let m = Message::Put { key: vec![7; 100], sizes: vec![1], name: None };
        encode_frame(&mut bytes, 9, &m).unwrap();
        let mut buf = Vec::new();
        for chunk in bytes.chunks(11) {
            tokio::select! {
                biased;
                r = read_frame::<_, Message>(&mut b, &mut buf, 4096) => panic!("too early: {r:?}"),
                () = tokio::task::yield_now() => {}
            }
            a.write_all(chunk).await.unwrap();
        }
        let got = read_frame::<_, Message>(&mut b, &mut buf, 4096).await.unwrap();
        assert_eq!(got, Some((9, m)));
    });
}

#[test]
fn a_frame_is_one_write() {
    struct Count(Vec<usize>);
    impl AsyncWrite for Count {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.0.push(buf.len());
            Poll::Ready(Ok(buf.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    let mut w = Count(Vec::new());
    let mut buf = Vec::new();
    block_on(write_frame(&mut w, &mut buf, 1, &vec![7u8; 3 << 20])).unwrap();
    assert_eq!(w.0, [FRAME_HEADER_BYTES + 8 + (3 << 20)]);
    assert!(buf.is_empty() && buf.capacity() <= KEEP_BYTES);
}

/// Time passes when all tasks wait.
fn block_on_paused<F: Future>(f: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(f)
}

#[test]
fn i19_a_frame_that_trickles_in_is_given_up_and_silence_between_frames_is_not() {
    block_on_paused(async {
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        let mut frame = Vec::new();
        encode_frame(&mut frame, 7, &Message::Ping).unwrap();
        let sender = tokio::spawn(async move {
            tokio::time::sleep(FRAME_LIMIT * 100).await;
            theirs.write_all(&frame).await.unwrap();
            // The next one byte by byte.
            for byte in frame {
                tokio::time::sleep(FRAME_LIMIT / 4).await;
                if theirs.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        });
        let mut buf = Vec::new();
        let first = read_frame::<_, Message>(&mut ours, &mut buf, 4096).await;
        assert!(matches!(first, Ok(Some((7, Message::Ping)))), "{first:?}");
        let second = read_frame::<_, Message>(&mut ours, &mut buf, 4096).await;
        assert!(matches!(second, Err(WireError::Late { .. })), "{second:?}");
        drop(ours);
        sender.await.unwrap();
    });
}

#[test]
fn i19_a_frame_that_nobody_takes_is_given_up() {
    block_on_paused(async {
        let (_theirs, mut ours) = tokio::io::duplex(16);
        let key = vec![1; 1000];
        let put = Message::Put { key, sizes: Vec::new(), name: None };
        let written = write_frame(&mut ours, &mut Vec::new(), 1, &put).await;
        assert!(matches!(written, Err(WireError::Late { .. })), "{written:?}");
    });
}

#[test]
fn i19_large_frames_share_a_bound_and_give_it_back() {
    static OF: AtomicUsize = AtomicUsize::new(0);
    let (mut first, mut late) = (ReceiveQuota::none(&OF), ReceiveQuota::none(&OF));
    first.grow_to(MAX_IN_FLIGHT_BYTES / 2).unwrap();
    first.grow_to(MAX_IN_FLIGHT_BYTES).unwrap();
    let second = late.grow_to(MAX_FRAME_BYTES).err();
    drop(late);
    assert!(matches!(second, Some(WireError::Busy { .. })), "{second:?}");
    drop(first);
    assert!(ReceiveQuota::none(&OF).grow_to(MAX_FRAME_BYTES).is_ok());
    assert_eq!(OF.load(Ordering::Relaxed), 0);
}
