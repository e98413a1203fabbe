//! The operating system's network: unix sockets for one user, stale files, tcp.

use super::*;
use crate::wire::{read_frame, write_frame};
use tokio::io::AsyncWriteExt;

fn block_on<F: Future>(f: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

async fn exchange(at: &Address) -> Peer {
    let mut listener = OsNet.listen(at).await.unwrap();
    let local = listener.local();
    let client = async {
        let mut c = OsNet.connect(&local).await.unwrap();
        write_frame(&mut c, &mut Vec::new(), 5, "hello").await.unwrap();
        let r: Option<(u64, String)> = read_frame(&mut c, &mut Vec::new(), 100).await.unwrap();
        assert_eq!(r, Some((5, "HELLO".to_string())));
    };
    let server = async {
        let (mut s, peer) = listener.accept().await.unwrap();
        let (id, text): (u64, String) =
            read_frame(&mut s, &mut Vec::new(), 100).await.unwrap().unwrap();
        write_frame(&mut s, &mut Vec::new(), id, &text.to_uppercase()).await.unwrap();
        s.shutdown().await.unwrap();
        peer
    };
    tokio::join!(client, server).1
}

#[test]
fn frames_travel_over_tcp_and_unix_sockets() {
    block_on(async {
        let peer = exchange(&Address::Tcp("127.0.0.1:0".to_string())).await;
        assert!(peer.unix.is_none() && peer.text.starts_with("tcp 127.0.0.1:"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let peer = exchange(&Address::Unix(path.clone())).await;
        let unix = peer.unix.unwrap();
        assert_eq!(unix.pid, std::process::id() as i32);
        assert_eq!(unix.uid, rustix::process::geteuid().as_raw());
        assert!(unix.process.unwrap().is_alive());
        assert!(!path.exists(), "the listener leaves its file behind");
    });
}

#[test]
fn i20_a_unix_socket_is_this_users_alone() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let _l = OsNet.listen(&Address::Unix(path.clone())).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // Frames over it are not encrypted: no other process can read it.
        let stream = OsNet.connect(&Address::Unix(path)).await.unwrap();
        assert!(stream.is_unix() && stream.is_private());
    });
    assert!(may_connect(1000, 1000) && may_connect(0, 1000));
    assert!(!may_connect(1001, 1000) && !may_connect(1000, 0));
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_living_or_foreign_one_is_not() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let at = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let alive = OsNet.listen(&at).await.unwrap();
        let second = OsNet.listen(&at).await.err().unwrap();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(alive);
        std::fs::write(&path, b"precious").unwrap();
        assert!(OsNet.listen(&at).await.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    });
}

/// True if the kernel runs the keepalive timer of the connection from one local port to another.
fn is_asked_after(from: u16, to: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |field: &str| u16::from_str_radix(field.rsplit(':').next().unwrap(), 16).unwrap();
    table.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (port(fields[1]), port(fields[2])) == (from, to) && fields[5].starts_with("02:")
    })
}

#[test]
fn both_ends_of_a_control_connection_ask_after_a_silent_peer() {
    block_on(async {
        let mut listener = OsNet.listen(&Address::Tcp("127.0.0.1:0".to_string())).await.unwrap();
        let local = listener.local();
        let (client, accepted) = tokio::join!(OsNet.connect(&local), listener.accept());
        let (_client, (_server, peer)) = (client.unwrap(), accepted.unwrap());
        let port = |text: &str| text.rsplit(':').next().unwrap().parse::<u16>().unwrap();
        let (ours, theirs) = (port(&local.to_string()), port(&peer.text));
        assert!(is_asked_after(ours, theirs), "the accepting end");
        assert!(is_asked_after(theirs, ours), "the connecting end");
    });
}
