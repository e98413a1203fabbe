//! How a ring is passed: a client accepts sealed memory of the announced size, and nothing else.

use super::ends::{LIMIT, runtime};
use crate::ring::{Offer, Waiting, take};
use crate::wire::{Address, BoxStream, Net, OsNet, read_frame, write_frame};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A connected pair as in production: client, node.
async fn connected() -> (BoxStream, BoxStream) {
    let dir = tempfile::tempdir().unwrap();
    let at = Address::Unix(dir.path().join("s"));
    let mut listener = OsNet.listen(&at).await.unwrap();
    let (client, node) = tokio::join!(OsNet.connect(&at), listener.accept());
    (client.unwrap(), node.unwrap().0)
}

#[test]
fn a_ring_that_was_passed_carries_frames() {
    runtime().block_on(async {
        let (client, node) = connected().await;
        let offer = Offer::new().unwrap();
        let lane_bytes = offer.lane_bytes();
        let (client, node) =
            tokio::join!(take(client, lane_bytes, Waiting::Task), offer.pass(node));
        let (mut client, mut node) = (client.unwrap(), node.unwrap());
        write_frame(&mut client, &mut Vec::new(), 1, "there").await.unwrap();
        let asked = read_frame::<_, String>(&mut node, &mut Vec::new(), 100).await.unwrap();
        assert_eq!(asked, Some((1, "there".to_string())));
        write_frame(&mut node, &mut Vec::new(), 1, "back").await.unwrap();
        let received = read_frame::<_, String>(&mut client, &mut Vec::new(), 100).await.unwrap();
        assert_eq!(received, Some((1, "back".to_string())));
    });
}

fn send(node: &tokio::net::UnixStream, byte: u8, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::empty();
    rustix::net::sendmsg(node.as_fd(), &[IoSlice::new(&[byte])], &mut control, flags).unwrap();
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn i19_a_client_takes_no_memory_that_could_shrink_and_nothing_else_either() {
    const LANE: u64 = 4096;
    let good = || memfd(4096 + 2 * LANE, ALL);
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let cases: Vec<(u8, Vec<OwnedFd>, bool)> = vec![
        (b'R', vec![good()], true),
        (b'R', vec![memfd(4096 + 2 * LANE, SealFlags::GROW)], false),
        (b'R', vec![memfd(4096, ALL)], false),
        (b'R', vec![pipe], false),
        (b'R', vec![], false),
        (b'R', vec![good(), good()], false),
        (b'r', vec![good()], false),
    ];
    for (byte, fds, taken) in cases {
        runtime().block_on(async {
            let (client, mut node) = connected().await;
            let serve = async {
                assert_eq!(node.read_u8().await.unwrap(), b'r');
                let node = node.into_unix().unwrap();
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                send(&node, byte, &fds);
                node
            };
            let (ring, _node) = tokio::join!(take(client, LANE, Waiting::Task), serve);
            assert_eq!(ring.is_ok(), taken, "{ring:?}");
        });
    }
}

#[test]
fn i19_lanes_of_no_use_are_refused_before_anything_is_said() {
    for lane_bytes in [0, 1, 4095, 5000, 1 << 21, u64::MAX] {
        runtime().block_on(async {
            let (client, mut node) = connected().await;
            take(client, lane_bytes, Waiting::Task).await.unwrap_err();
            assert_eq!(node.read(&mut [0; 8]).await.unwrap(), 0, "it hung up without a word");
        });
    }
}

#[test]
fn a_client_that_does_not_take_its_ring_gets_none() {
    runtime().block_on(async {
        let (mut client, node) = connected().await;
        client.write_all(b"x").await.unwrap();
        Offer::new().unwrap().pass(node).await.unwrap_err();
        let (client, node) = connected().await;
        drop(client);
        let pass = Offer::new().unwrap().pass(node);
        tokio::time::timeout(LIMIT, pass).await.unwrap().unwrap_err();
    });
}
