//! One direction of a connection: bytes in flight, then bytes that are ready to read, then the end.
//! In order, as in tcp; the network decides when each part arrives.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::task::Waker;
use tokio::time::Instant;

/// Bytes that may be on their way or wait to be read: a socket buffer or two.
const CAPACITY: usize = 256 << 10;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Pipe {
    flight: VecDeque<(Instant, Vec<u8>)>,
    flight_bytes: usize,
    ready: VecDeque<u8>,
    // Set when the sender closed; the end arrives after the last byte.
    fin_due: Option<Instant>,
    ended: bool,
    // If set, no more bytes are taken, and the reader gets this error after the last byte.
    broken: Option<ErrorKind>,
    // Sent while nothing could be acknowledged.
    pub unacknowledged: bool,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
}

impl Pipe {
    /// Room for more.
    pub fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.flight_bytes + self.ready.len())
    }

    pub fn broken(&self) -> Option<ErrorKind> {
        self.broken
    }

    pub fn is_idle(&self) -> bool {
        self.flight.is_empty() && self.fin_due.is_none()
    }

    pub fn has_unread(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes bytes that arrive at `due`, or later if those before them do. Returns when.
    pub fn send(&mut self, bytes: &[u8], due: Instant) -> Instant {
        let due = self.flight.back().map_or(due, |(before, _)| due.max(*before));
        self.flight_bytes += bytes.len();
        self.flight.push_back((due, bytes.to_vec()));
        due
    }

    /// The sender closes; the reader sees it after the bytes in flight.
    pub fn finish(&mut self, due: Instant) -> Instant {
        let due = self.flight.back().map_or(due, |(before, _)| due.max(*before));
        self.fin_due.get_or_insert(due);
        due
    }

    /// Lets arrive what is due; returns the bytes, and whether the end came with them.
    pub fn arrive(&mut self, now: Instant) -> (Vec<u8>, bool) {
        let mut arrived = Vec::new();
        while let Some((_, bytes)) = self.flight.pop_front_if(|(due, _)| *due <= now) {
            self.flight_bytes -= bytes.len();
            arrived.extend_from_slice(&bytes);
        }
        self.ready.extend(&arrived);
        let ended = self.flight.is_empty() && self.fin_due.is_some_and(|due| due <= now);
        if ended {
            self.fin_due = None;
            self.ended = true;
        }
        if !arrived.is_empty() || ended {
            self.wake_reader();
        }
        (arrived, ended)
    }

    /// When the next part arrives.
    pub fn next_due(&self) -> Option<Instant> {
        self.flight.front().map(|(due, _)| *due).or(self.fin_due)
    }

    /// The cut path is restored: waiting bytes arrive from `due` on.
    pub fn resume(&mut self, due: Instant) {
        for (at, _) in &mut self.flight {
            *at = (*at).max(due);
        }
        self.fin_due = self.fin_due.map(|at| at.max(due));
    }

    /// What is in flight is lost.
    pub fn lose_flight(&mut self) {
        self.flight.clear();
        self.flight_bytes = 0;
    }

    /// No more bytes are taken; the reader gets the ready bytes, then the error.
    pub fn fail(&mut self, why: ErrorKind) {
        self.broken.get_or_insert(why);
        self.wake_reader();
        self.wake_writer();
    }

    /// Bytes for the reader: some, none at the end, or an error. None: not yet.
    pub fn take(&mut self, most: usize) -> Option<Result<Vec<u8>, ErrorKind>> {
        if !self.ready.is_empty() {
            let n = most.min(self.ready.len());
            let bytes = self.ready.drain(..n).collect();
            self.wake_writer();
            return Some(Ok(bytes));
        }
        if self.ended {
            return Some(Ok(Vec::new()));
        }
        self.broken.map(Err)
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}
