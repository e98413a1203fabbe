//! A line as an ordinary stream with one time limit for all of the handshake that begins every
//! connection: a peer cannot extend the limit by sending single bytes.

use super::broken::Broken;
use super::line::Line;
use nkv_store::clock::{BootClock, Clock};
use std::io::{self, Read, Write};

/// A line with a deadline.
pub(super) struct DeadlineLine<'a> {
    line: &'a mut Line,
    until_ns: u64,
    limit_ms: u64,
}

impl<'a> DeadlineLine<'a> {
    pub(super) fn new(line: &'a mut Line, limit_ms: u64) -> Self {
        let until_ns = BootClock.now_ns().saturating_add(limit_ms.saturating_mul(1_000_000));
        Self { line, until_ns, limit_ms }
    }

    /// Limits the next call to the time that is left.
    fn wait_for_the_rest(&mut self) -> io::Result<()> {
        let left_ms = self.until_ns.saturating_sub(BootClock.now_ns()).div_ceil(1_000_000);
        if left_ms == 0 {
            return Err(self.late());
        }
        self.line.set_stall_ms(left_ms)
    }

    fn late(&self) -> io::Error {
        let why = format!("not done within {} ms", self.limit_ms);
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

impl Read for DeadlineLine<'_> {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        let ready = self.line.take_received(dst.len());
        if !ready.is_empty() {
            dst[..ready.len()].copy_from_slice(ready);
            return Ok(ready.len());
        }
        self.wait_for_the_rest()?;
        match self.line.fill(1) {
            Ok(()) => {}
            Err(Broken::Closed(_)) => return Ok(0),
            Err(Broken::Stalled(_) | Broken::Late(_)) => return Err(self.late()),
            Err(Broken::Io(e)) => return Err(e),
            Err(e @ Broken::Forged) => return Err(io::Error::other(e.to_string())),
        }
        let ready = self.line.take_received(dst.len());
        dst[..ready.len()].copy_from_slice(ready);
        Ok(ready.len())
    }
}

impl Write for DeadlineLine<'_> {
    fn write(&mut self, src: &[u8]) -> io::Result<usize> {
        self.wait_for_the_rest()?;
        match self.line.send(src) {
            Ok(()) => Ok(src.len()),
            Err(Broken::Closed(why)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, why)),
            Err(Broken::Stalled(_) | Broken::Late(_)) => Err(self.late()),
            Err(Broken::Io(e)) => Err(e),
            Err(e @ Broken::Forged) => Err(io::Error::other(e.to_string())),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
