//! An encrypted stream against readers and writers of any size, and against a relay.

use super::*;
use crate::wire::auth::{Channel, Credentials, Guard, Secret, Session, prove};
use crate::wire::{Peer, read_frame, write_frame};
use nkv_store::OsRandom;
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const LIMIT: Duration = Duration::from_secs(60);

fn block_on<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, work).await.expect("it ends") })
}

async fn sessions() -> (Session, Session) {
    let secret = Secret::new(b"the right secret", "test").unwrap();
    let credentials = Credentials::of_client("job", Some(secret));
    let (guard, means) = (Guard::new(credentials.clone()), credentials.on_tcp().unwrap());
    let (mut client, mut node) = duplex(1024);
    let peer = Peer { unix: None, text: "tcp".to_string() };
    let (client, node) = tokio::join!(
        prove(&mut client, means, Channel::Control, "job", &OsRandom),
        guard.admit(&mut node, &peer, LIMIT, &|| ())
    );
    (client.unwrap(), node.unwrap())
}

/// Two sealed ends over pipes of so many bytes.
async fn pair(bytes: usize) -> (BoxStream, BoxStream) {
    let ((client, node), (a, b)) = (sessions().await, duplex(bytes));
    (client.seal(Box::new(a)), node.seal(Box::new(b)))
}

/// A sealed client, and the bare pipe at the other end of it with the node's session.
async fn tapped() -> (BoxStream, DuplexStream, Session) {
    let ((client, node), (a, b)) = (sessions().await, duplex(1 << 20));
    (client.seal(Box::new(a)), b, node)
}

/// What the node reads of bytes that a relay passes on.
async fn heard(node: Session, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (mut wire, end) = duplex(1 << 20);
    wire.write_all(bytes).await?;
    drop(wire);
    let mut heard = Vec::new();
    node.seal(Box::new(end)).read_to_end(&mut heard).await.map(|_| heard)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn i20_a_sealed_stream_carries_bytes_in_order_whatever_the_pieces(
        pieces in prop::collection::vec((0usize..90_000, any::<u8>(), any::<bool>()), 1..8),
        pipe in 1usize..40_000,
        reads in 1usize..40_000,
    ) {
        block_on(async {
            let (mut client, mut node) = pair(pipe).await;
            let all: Vec<u8> = pieces.iter().flat_map(|(n, b, _)| vec![*b; *n]).collect();
            let writes = async {
                for (n, byte, flushed) in &pieces {
                    client.write_all(&vec![*byte; *n]).await.unwrap();
                    if *flushed {
                        client.flush().await.unwrap();
                    }
                }
                client.shutdown().await.unwrap();
            };
            let heard = async {
                let (mut heard, mut buf) = (Vec::new(), vec![0; reads]);
                while let n @ 1.. = node.read(&mut buf).await.unwrap() {
                    heard.extend_from_slice(&buf[..n]);
                }
                heard
            };
            let ((), heard) = tokio::join!(writes, heard);
            assert!(heard == all, "{} bytes of {}", heard.len(), all.len());
        });
    }

    #[test]
    fn i20_a_bit_changed_in_a_sealed_stream_ends_it(at in 0usize..2_000, bit in 0u8..8) {
        block_on(async {
            let (mut client, mut wire, node) = tapped().await;
            client.write_all(&[7; 500]).await.unwrap();
            client.write_all(&[8; 500]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut bytes = Vec::new();
            wire.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes.len(), 2 * (500 + HEAD_BYTES + TAG_BYTES));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            assert!(heard(node, &bytes).await.is_err());
        });
    }
}

#[test]
fn i20_records_that_are_repeated_dropped_swapped_or_torn_end_the_stream() {
    block_on(async {
        const LEN: usize = 100 + HEAD_BYTES + TAG_BYTES;
        for order in [&[0, 0][..], &[1], &[1, 0], &[0, 2]] {
            let (mut client, mut wire, node) = tapped().await;
            for byte in 0..3 {
                client.write_all(&[byte; 100]).await.unwrap();
            }
            let mut bytes = [0; 3 * LEN];
            wire.read_exact(&mut bytes).await.unwrap();
            let records: Vec<_> = bytes.chunks(LEN).collect();
            let passed: Vec<u8> = order.iter().flat_map(|i| records[*i]).copied().collect();
            let error = heard(node, &passed).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{order:?}");
        }
        let (mut client, mut wire, node) = tapped().await;
        client.write_all(&[1; 100]).await.unwrap();
        let mut bytes = [0; LEN];
        wire.read_exact(&mut bytes).await.unwrap();
        let error = heard(node, &bytes[..LEN - 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn i20_a_record_longer_than_any_or_without_content_is_refused_by_its_head() {
    block_on(async {
        for claim in [0, TAG_BYTES, RECORD_BYTES + TAG_BYTES + 1, usize::from(u16::MAX)] {
            let (_, node) = sessions().await;
            let (mut wire, end) = duplex(64);
            wire.write_all(&(claim as u16).to_le_bytes()).await.unwrap();
            // Nothing more is expected.
            let error = node.seal(Box::new(end)).read_u8().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{claim}");
        }
    });
}

#[test]
fn i20_what_goes_over_a_sealed_stream_cannot_be_read_on_the_way() {
    block_on(async {
        let (mut client, mut wire, _node) = tapped().await;
        write_frame(&mut client, &mut Vec::new(), 7, &"prompt of a tenant").await.unwrap();
        drop(client);
        let mut bytes = Vec::new();
        wire.read_to_end(&mut bytes).await.unwrap();
        assert!(bytes.len() > 18 && !bytes.windows(6).any(|w| w == b"tenant"));
    });
}

#[test]
fn frames_of_any_size_go_over_a_sealed_stream_and_buffers_stay_small() {
    block_on(async {
        let (mut client, mut node) = pair(4 << 10).await;
        for len in [0, 1, RECORD_BYTES - 16, RECORD_BYTES, 3 << 20] {
            let frame = vec![9u8; len];
            let (mut buf, mut back) = (Vec::new(), Vec::new());
            let writes = write_frame(&mut client, &mut buf, 1, &frame);
            let reads = read_frame::<_, Vec<u8>>(&mut node, &mut back, 8 << 20);
            let (wrote, read) = tokio::join!(writes, reads);
            wrote.unwrap();
            assert_eq!(read.unwrap().unwrap(), (1, frame));
        }
    });
    block_on(async {
        let (session, _) = sessions().await;
        let (inner, mut wire) = duplex(1);
        let mut sealed = match session.keyed() {
            Some(transport) => Sealed::new(Box::new(inner), transport),
            None => panic!("a session with a key"),
        };
        // Nobody reads: it accepts one write, and then waits.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let frame = vec![1; 1 << 20];
        assert!(matches!(
            Pin::new(&mut sealed).poll_write(&mut cx, &frame),
            Poll::Ready(Ok(WRITE_BYTES))
        ));
        assert!(Pin::new(&mut sealed).poll_write(&mut cx, &frame).is_pending());
        assert!(sealed.out.len() <= WRITE_BYTES + 4 * (HEAD_BYTES + TAG_BYTES));
        wire.shutdown().await.unwrap();
    });
}
