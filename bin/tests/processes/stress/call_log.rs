//! The calls of a stressed process, printed to its parent on stdout: sums from time to time, faults
//! at once. Each line is one write, so that a kill never splits a line.

use nkv::{Error, ErrorKind};
use nkv_store::clock::{BootClock, Clock};
use std::collections::BTreeMap;
use std::io::Write;

/// Between two lines of sums.
const PRINT_MS: u64 = 100;

/// Number of calls by verb and outcome.
pub type Sums = BTreeMap<String, u64>;

/// See the file's first paragraph.
#[derive(Default)]
pub struct CallLog {
    sums: Sums,
    printed_ms: u64,
}

/// True for errors that a call may end with while processes die and memory is short.
fn is_excused(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound
            | ErrorKind::Disconnected
            | ErrorKind::Timeout
            | ErrorKind::NotReady
            | ErrorKind::Reclaimed
            | ErrorKind::OutOfMemory
    )
}

/// One line to the parent.
pub fn print_line(line: &str) {
    let text = format!("{}\n", line.replace('\n', " "));
    // If the parent no longer reads, stdin has ended too.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

impl CallLog {
    /// Counts a call that ended.
    pub fn count(&mut self, verb: &str, end: &str) {
        *self.sums.entry(format!("{verb}:{end}")).or_default() += 1;
        let now_ms = BootClock.now_ms();
        if now_ms >= self.printed_ms + PRINT_MS {
            self.printed_ms = now_ms;
            self.print_sums();
        }
    }

    /// Counts a failed call, or records a fault.
    pub fn failed(&mut self, verb: &str, what: &[u8], e: &Error) {
        if !is_excused(e) {
            self.fault(&format!("{verb} {}: {e}", String::from_utf8_lossy(what)));
        }
        self.count(verb, &e.kind().to_string());
    }

    /// Prints a fault.
    pub fn fault(&mut self, what: &str) {
        print_line(&format!("fault {what}"));
    }

    /// The sums so far.
    pub fn print_sums(&self) {
        let all: Vec<String> = self.sums.iter().map(|(what, n)| format!("{what}={n}")).collect();
        print_line(&format!("sums {}", all.join(" ")));
    }
}

/// Parses a line of sums.
pub fn parse(line: &str) -> Sums {
    let pairs = line.split(' ').filter_map(|pair| {
        let (what, n) = pair.split_once('=')?;
        Some((what.to_string(), n.parse().ok()?))
    });
    pairs.collect()
}
