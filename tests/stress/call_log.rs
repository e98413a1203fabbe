//! What a stressed process did, as it tells its parent on stdout: sums now and then, faults at
//! once. One line, one write, so that a kill cuts none in two.

use nkv::store::clock::{BootClock, Clock};
use nkv::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::io::Write;

/// Between two lines of sums.
const PRINT_MS: u64 = 100;

/// How many calls ended how, by verb and outcome.
pub type Sums = BTreeMap<String, u64>;

/// See the file's first paragraph.
#[derive(Default)]
pub struct CallLog {
    sums: Sums,
    printed_ms: u64,
}

/// How a call may end while processes die and memory is short; never otherwise.
fn is_excused(e: &Error) -> bool {
    matches!(
        e.kind,
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
    // If nobody reads any more, stdin has ended too.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

impl CallLog {
    /// A call ended.
    pub fn count(&mut self, verb: &str, end: &str) {
        *self.sums.entry(format!("{verb}:{end}")).or_default() += 1;
        let now_ms = BootClock.now_ms();
        if now_ms >= self.printed_ms + PRINT_MS {
            self.printed_ms = now_ms;
            self.print_sums();
        }
    }

    /// A call failed: excused, or a fault.
    pub fn failed(&mut self, verb: &str, what: &[u8], e: &Error) {
        if !is_excused(e) {
            self.fault(&format!("{verb} {}: {e}", String::from_utf8_lossy(what)));
        }
        self.count(verb, &e.kind.to_string());
    }

    /// Something that may not happen.
    pub fn fault(&mut self, what: &str) {
        print_line(&format!("fault {what}"));
    }

    /// The sums so far.
    pub fn print_sums(&self) {
        let all: Vec<String> = self.sums.iter().map(|(what, n)| format!("{what}={n}")).collect();
        print_line(&format!("sums {}", all.join(" ")));
    }
}

/// What a line of sums says.
pub fn parse(line: &str) -> Sums {
    let pairs = line.split(' ').filter_map(|pair| {
        let (what, n) = pair.split_once('=')?;
        Some((what.to_string(), n.parse().ok()?))
    });
    pairs.collect()
}
