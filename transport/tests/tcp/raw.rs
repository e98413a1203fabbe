//! A peer that sends the tcp data protocol byte by byte, so that it can also violate it. The
//! numbers are written out on purpose: they pin the format.

use nkv_transport::tcp::TCP_VERSION;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const STORE: u32 = 3;
pub const FETCH_ADD: u32 = 4;
pub const APPEND: u32 = 8;

pub const OK: u32 = 0;
pub const REFUSED: u32 = 1;
pub const OUT_OF_BOUNDS: u32 = 2;

pub struct Raw(pub TcpStream);

/// Pause of a slow peer before its next byte.
pub const PACE: Duration = Duration::from_millis(40);

/// One descriptor: verb, offset, a, b.
pub type Desc = (u32, u64, u64, u64);

pub fn hello(version: u32, incarnation: u64, job: &str) -> Vec<u8> {
    let mut b = b"nkvtcp-h".to_vec();
    b.extend(version.to_le_bytes());
    b.extend((job.len() as u32).to_le_bytes());
    b.extend(incarnation.to_le_bytes());
    b.extend(job.as_bytes());
    b
}

/// An append of `len` bytes.
pub fn append(id: u64, token: u64, len: u64) -> Vec<u8> {
    request_of(id, token, &[(APPEND, 4096, 11, len, 12), (WRITE, 1, 0, len, 0)])
}

pub fn request(id: u64, token: u64, descs: &[Desc]) -> Vec<u8> {
    let descs: Vec<_> = descs.iter().map(|&(code, offset, a, b)| (code, 0, offset, a, b)).collect();
    request_of(id, token, &descs)
}

/// Descriptors with their second word.
pub fn request_of(id: u64, token: u64, descs: &[(u32, u32, u64, u64, u64)]) -> Vec<u8> {
    let sum = |code| descs.iter().filter(|d| d.0 == code).map(|d| d.3).sum::<u64>();
    let mut b = b"nkvq".to_vec();
    b.extend((descs.len() as u32).to_le_bytes());
    for word in [id, token, sum(WRITE), sum(READ)] {
        b.extend(word.to_le_bytes());
    }
    for (code, second, offset, a, c) in descs {
        b.extend(code.to_le_bytes());
        b.extend(second.to_le_bytes());
        for word in [offset, a, c] {
            b.extend(word.to_le_bytes());
        }
    }
    b
}

pub struct Answer {
    pub status: u32,
    pub id: u64,
    pub text: String,
    pub results: Vec<u64>,
    pub payload: Vec<u8>,
    pub closing: bool,
}

impl Raw {
    /// Connects without sending anything.
    pub fn dial(to: SocketAddr) -> Self {
        let s = TcpStream::connect(to).unwrap();
        s.set_read_timeout(Some(nkv_pace::HANGS)).unwrap();
        Self(s)
    }

    /// Connects and completes the handshake.
    pub fn connect(to: SocketAddr, incarnation: u64, job: &str) -> Self {
        let mut r = Self::dial(to);
        r.send(&hello(TCP_VERSION, incarnation, job));
        let (status, text) = r.welcome();
        assert_eq!(status, OK, "{text}");
        r
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn take(&mut self, n: usize) -> std::io::Result<Vec<u8>> {
        let mut b = vec![0; n];
        self.0.read_exact(&mut b)?;
        Ok(b)
    }

    pub fn welcome(&mut self) -> (u32, String) {
        let b = self.take(48).unwrap();
        assert_eq!(&b[..8], b"nkvtcp-w");
        let text = self.take(u32_at(&b, 40) as usize).unwrap();
        (u32_at(&b, 12), String::from_utf8(text).unwrap())
    }

    pub fn answer(&mut self) -> std::io::Result<Answer> {
        let b = self.take(40)?;
        assert_eq!(&b[..4], b"nkvr");
        let text = self.take(u32_at(&b, 16) as usize)?;
        let results = self.take(8 * u32_at(&b, 20) as usize)?;
        let payload = self.take(u64_at(&b, 24) as usize)?;
        Ok(Answer {
            status: u32_at(&b, 4),
            id: u64_at(&b, 8),
            text: String::from_utf8(text).unwrap(),
            results: results.chunks(8).map(|c| u64_at(c, 0)).collect(),
            payload,
            closing: u32_at(&b, 32) == 1,
        })
    }

    /// Sends byte by byte; true if the agent closed the connection before it had them all.
    pub fn is_closed_while_it_dribbles(&mut self, bytes: &[u8]) -> bool {
        self.0.set_read_timeout(Some(PACE)).unwrap();
        bytes.iter().any(|b| {
            if self.0.write_all(&[*b]).is_err() {
                return true;
            }
            match self.0.read(&mut [0; 1]) {
                Ok(n) => n == 0,
                Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
            }
        })
    }

    /// True if the agent closed the connection (within the read timeout).
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn u32_at(b: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(b[i..i + 4].try_into().unwrap())
}

fn u64_at(b: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(b[i..i + 8].try_into().unwrap())
}
