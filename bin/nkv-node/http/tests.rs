//! Silent, slow or greedy peers do not keep a probe from its answer.

use super::connections::MAX_CONNECTIONS;
use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Short enough for a test.
const STEP: Duration = Duration::from_millis(300);
/// A wait longer than this is a hang.
const LIMIT: Duration = nkv_pace::HANGS;
const GET_HEALTHZ: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n";

async fn served() -> SocketAddr {
    let at = "127.0.0.1:0".parse().unwrap();
    serve_within(at, routes(Readiness::joining()), STEP).await.unwrap()
}

/// What the server sends until it closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    // A reset is an end, too.
    let _ = read.expect("the server keeps the connection open");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_probe_is_answered_though_silent_peers_hold_every_place() {
    // Only the probe's connection ends one of them.
    let at = "127.0.0.1:0".parse().unwrap();
    let at =
        serve_within(at, routes(Readiness::joining()), Duration::from_secs(600)).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS + 50 {
        silent.push(TcpStream::connect(at).await.unwrap());
    }
    let mut probe = TcpStream::connect(at).await.unwrap();
    probe.write_all(GET_HEALTHZ).await.unwrap();
    let answer = rest(probe).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    drop(silent);
}

#[tokio::test]
async fn a_head_that_dribbles_is_cut_off() {
    let mut stream = TcpStream::connect(served().await).await.unwrap();
    let mut sent = 0;
    for byte in GET_HEALTHZ.iter().cycle().take(1000) {
        let pace = tokio::time::timeout(Duration::from_millis(20), stream.readable());
        if pace.await.is_ok() || stream.write_all(&[*byte | 0x40]).await.is_err() {
            break;
        }
        sent += 1;
    }
    assert!(sent < 200, "{sent} bytes were waited for");
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let at = "127.0.0.1:0".parse().unwrap();
    // Beyond what the buffers of both ends hold; one copy for all.
    let body = axum::body::Bytes::from(vec![b'x'; 16 << 20]);
    let app = Router::new().route("/healthz", get(async move || body));
    let at = serve_within(at, app, STEP).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(GET_HEALTHZ).await.unwrap();
        unread.push(stream);
    }
    let mut probe = TcpStream::connect(at).await.unwrap();
    probe.write_all(GET_HEALTHZ).await.unwrap();
    let first = tokio::time::timeout(LIMIT, probe.read_u8()).await;
    assert_eq!(first.expect("nobody was given up").unwrap(), b'H');
    drop(unread);
}

#[tokio::test]
async fn a_connection_is_for_one_request() {
    let mut stream = TcpStream::connect(served().await).await.unwrap();
    stream.write_all(GET_HEALTHZ).await.unwrap();
    let answer = rest(stream).await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
}
