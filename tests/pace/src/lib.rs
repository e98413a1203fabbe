//! Time limits in tests, on a machine that is busy with something else. Two kinds:
//!
//! - What must come true at all has [`HANGS`]: a slow machine needs a part of it, a hang all of it.
//! - A limit that the system promises is measured by [`timed`] or a [`Stopwatch`]. Beside every
//!   measurement a thread notes how late this machine wakes it, and what is allowed grows with
//!   that: by nothing where the machine is idle.
//!
//! That something does not happen is shown by what happens meanwhile, not by time.

use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// For what must come true in the end. No measure of speed: what takes as long has hung.
pub const HANGS: Duration = Duration::from_secs(60);

/// [`HANGS`] in milliseconds.
pub const HANGS_MS: u64 = HANGS.as_millis() as u64;

/// How long the watch sleeps each time.
const LOOK_NS: u64 = 5_000_000;

/// Later than this is late: an idle machine wakes a thread sooner.
const LATE_NS: u64 = 1_000_000;

/// A call waits to be woken about so often, one time after the other: for its timer, for its peer's
/// threads, for those it joins; and each may meet the longest wait there was.
const WAITS: u64 = 20;

/// Late wakes kept: those of the last minute, if each is late.
const KEPT: usize = 8_192;

/// What the watch of this process has seen.
#[derive(Debug)]
struct Seen {
    /// Since when it sleeps.
    asleep_ns: u64,
    /// When it was woken late, and how late.
    late: VecDeque<(u64, u64)>,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { asleep_ns: 0, late: VecDeque::new() });
static STARTED: Once = Once::new();

fn seen() -> MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps and looks how late it was woken, until the process ends.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_nanos(LOOK_NS));
        let mut seen = seen();
        let now_ns = BootClock.now_ns();
        let late_ns = now_ns.saturating_sub(seen.asleep_ns + LOOK_NS);
        if late_ns > LATE_NS {
            if seen.late.len() == KEPT {
                seen.late.pop_front();
            }
            seen.late.push_back((now_ns, late_ns));
        }
        seen.asleep_ns = now_ns;
    }
}

/// Measures one call, and how late this machine was meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    began_ns: u64,
}

impl Stopwatch {
    /// Begins now.
    pub fn start() -> Stopwatch {
        STARTED.call_once(|| {
            seen().asleep_ns = BootClock.now_ns();
            if let Err(error) = spawn_named("pace", watch) {
                panic!("no thread to watch this machine's pace: {error}");
            }
        });
        Stopwatch { began_ns: BootClock.now_ns() }
    }

    /// What it took until now.
    pub fn took(&self) -> Took {
        let now_ns = BootClock.now_ns();
        let (mut worst_ns, mut lost_ns) = (0, 0);
        let seen = seen();
        // What it sleeps through just now is late, too.
        let asleep = (now_ns, now_ns.saturating_sub(seen.asleep_ns + LOOK_NS));
        for &(woken_ns, late_ns) in seen.late.iter().chain([&asleep]) {
            if woken_ns >= self.began_ns {
                worst_ns = late_ns.max(worst_ns);
                lost_ns += late_ns;
            }
        }
        Took { ms: (now_ns - self.began_ns) / 1_000_000, spare_ms: spare_ms(worst_ns, lost_ns) }
    }
}

fn spare_ms(worst_ns: u64, lost_ns: u64) -> u64 {
    if worst_ns <= LATE_NS { 0 } else { (WAITS * worst_ns + lost_ns) / 1_000_000 }
}

/// How long something took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took {
    /// By the clock.
    pub ms: u64,
    /// What this machine may have added to it.
    pub spare_ms: u64,
}

impl Took {
    /// True if it kept its limit, as far as this machine let it.
    pub fn within(&self, limit_ms: u64) -> bool {
        self.ms <= limit_ms.saturating_add(self.spare_ms)
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms, of which this busy machine may have added {}", self.ms, self.spare_ms)
    }
}

/// Does it, and measures it.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, Took) {
    let watch = Stopwatch::start();
    let result = f();
    (result, watch.took())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_adds_nothing_and_a_late_one_a_multiple_of_its_longest_wait() {
        assert_eq!(spare_ms(LATE_NS, 40 * LATE_NS), 0);
        assert_eq!(spare_ms(30_000_000, 100_000_000), 700);
        let took = Took { ms: 2_700, spare_ms: 700 };
        assert!(took.within(2_000) && !took.within(1_999));
        assert!(took.within(u64::MAX));
    }

    #[test]
    fn what_the_watch_sleeps_through_counts_before_it_wakes() {
        let began = Stopwatch::start();
        let held = seen();
        let until = BootClock.now_ns() + 40 * LOOK_NS;
        while BootClock.now_ns() < until {
            std::thread::yield_now();
        }
        drop(held);
        let took = began.took();
        assert!(took.ms >= 200 && took.spare_ms >= WAITS * 190, "{took}");
    }
}
