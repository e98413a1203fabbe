//! The smallest HTTP client that can read what a node serves: one GET, one answer, every wait
//! bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long connecting, and each read and write, may take.
const LIMIT: Duration = nkv_pace::HANGS;
/// Largest answer read.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// GETs a path: status and body. A server that is not there, or breaks off, is status 0.
pub fn http_get(address: &str, path: &str) -> (u16, String) {
    match exchange(address, path) {
        Ok(answer) => answer,
        Err(error) => (0, error.to_string()),
    }
}

fn exchange(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let address = address.parse().map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    Ok((code.unwrap_or(0), body.to_string()))
}
