//! Time limits in tests, on a machine that is busy with something else. Two kinds:
//!
//! - What must happen eventually has the limit [`HANGS`]: a slow machine needs a part of it, a hang
//!   all of it.
//! - A limit that the system promises is measured by [`timed`] or a [`Stopwatch`]. During every
//!   measurement a thread works and sleeps. The limit is extended by how much longer its work takes
//!   than on a processor of its own, and by how late it is woken. On an idle machine that is
//!   nothing.
//!
//! That something does not happen is shown by other progress meanwhile, not by waiting a time.

use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// Limit for what must happen eventually. It measures no speed: what takes longer has hung.
pub const HANGS: Duration = Duration::from_secs(60);

/// [`HANGS`] in milliseconds.
pub const HANGS_MS: u64 = HANGS.as_millis() as u64;

/// How long the watch sleeps each time.
const POLL_NS: u64 = 5_000_000;

/// A wake-up later than this counts as late: an idle machine wakes a thread sooner.
const LATE_NS: u64 = 1_000_000;

/// A call waits for about so many wake-ups in sequence: of its timer, of its peer's threads, of
/// threads that it joins. Each may take the longest delay that was measured.
const WAITS: u64 = 20;

/// Processor time of one piece of work: longer than a scheduler lets a thread run that just woke.
const WORK_NS: u64 = 10_000_000;

/// Polls between two pieces of work: the watch takes a twentieth of one processor.
const POLLS: u64 = 40;

/// Most entries kept of each kind: the last minute, if the machine is late each time.
const KEPT: usize = 8_192;

/// Measurements of this process's watch thread.
#[derive(Debug)]
struct Seen {
    /// Since when it sleeps.
    asleep_ns: u64,
    /// When it was woken late, and how late.
    late: VecDeque<(u64, u64)>,
    /// When it had done a piece of work, and how long that took.
    work: VecDeque<(u64, u64)>,
}

static SEEN: Mutex<Seen> =
    Mutex::new(Seen { asleep_ns: 0, late: VecDeque::new(), work: VecDeque::new() });
static STARTED: Once = Once::new();

fn seen() -> MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(list: &mut VecDeque<(u64, u64)>, entry: (u64, u64)) {
    if list.len() == KEPT {
        list.pop_front();
    }
    list.push_back(entry);
}

/// Works and sleeps in turns, and records both, until the process ends.
fn watch() {
    loop {
        let began_ns = BootClock.now_ns();
        work();
        let now_ns = BootClock.now_ns();
        let mut noted = seen();
        keep(&mut noted.work, (now_ns, now_ns - began_ns));
        noted.asleep_ns = now_ns;
        drop(noted);
        (0..POLLS).for_each(|_| measure());
    }
}

/// Uses [`WORK_NS`] of processor time.
fn work() {
    let cpu_ns = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let until_ns = cpu_ns() + WORK_NS;
    while cpu_ns() < until_ns {
        std::hint::spin_loop();
    }
}

fn measure() {
    std::thread::sleep(Duration::from_nanos(POLL_NS));
    let mut seen = seen();
    let now_ns = BootClock.now_ns();
    let late_ns = now_ns.saturating_sub(seen.asleep_ns + POLL_NS);
    if late_ns > LATE_NS {
        keep(&mut seen.late, (now_ns, late_ns));
    }
    seen.asleep_ns = now_ns;
}

/// Measures one call, and the machine's load meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    began_ns: u64,
}

impl Stopwatch {
    /// Begins now.
    pub fn start() -> Stopwatch {
        STARTED.call_once(|| {
            seen().asleep_ns = BootClock.now_ns() + WORK_NS;
            if let Err(error) = spawn_named("pace", watch) {
                panic!("no thread to watch this machine's pace: {error}");
            }
        });
        Stopwatch { began_ns: BootClock.now_ns() }
    }

    /// Time until now.
    pub fn took(&self) -> Took {
        let seen = seen();
        let now_ns = BootClock.now_ns();
        // A wake-up that is overdue now counts as late too.
        let asleep = (now_ns, now_ns.saturating_sub(seen.asleep_ns + POLL_NS));
        let (mut worst_ns, mut lost_ns) = (0, 0);
        for &(woken_ns, late_ns) in seen.late.iter().chain([&asleep]) {
            if woken_ns >= self.began_ns {
                worst_ns = late_ns.max(worst_ns);
                lost_ns += late_ns;
            }
        }
        // For a short call the last piece of work before it counts.
        let mut work: Vec<u64> =
            seen.work.iter().filter(|w| w.0 >= self.began_ns).map(|w| w.1).collect();
        if work.is_empty() {
            work.extend(seen.work.back().map(|w| w.1));
        }
        Took {
            ms: (now_ns - self.began_ns) / 1_000_000,
            percent: percent(&work),
            spare_ms: spare_ms(worst_ns, lost_ns),
        }
    }
}

/// How long work took, in percent of what it takes on a processor of its own.
fn percent(work_ns: &[u64]) -> u64 {
    let alone_ns = work_ns.len() as u64 * WORK_NS;
    (work_ns.iter().sum::<u64>() * 100).checked_div(alone_ns).unwrap_or(100).max(100)
}

fn spare_ms(worst_ns: u64, lost_ns: u64) -> u64 {
    if worst_ns <= LATE_NS { 0 } else { (WAITS * worst_ns + lost_ns) / 1_000_000 }
}

/// How long something took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took {
    /// By the clock.
    pub ms: u64,
    /// How long work took on this machine meanwhile, in percent of what it takes on an idle one.
    pub percent: u64,
    /// Milliseconds that late wake-ups may have added.
    pub spare_ms: u64,
}

impl Took {
    /// True if it took at most `limit_ms`, extended for this machine's load.
    pub fn within(&self, limit_ms: u64) -> bool {
        let stretched_ms = u128::from(limit_ms) * u128::from(self.percent) / 100;
        u128::from(self.ms) <= stretched_ms + u128::from(self.spare_ms)
    }
}

/// Parses MS/PERCENT/SPARE, printed by a process that measured.
impl std::str::FromStr for Took {
    type Err = String;

    fn from_str(text: &str) -> Result<Took, String> {
        let number = |part: &str| part.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
        let parts: Vec<u64> = text.split('/').map(number).collect::<Result<_, _>>()?;
        match parts[..] {
            [ms, percent, spare_ms] => Ok(Took { ms, percent, spare_ms }),
            _ => Err(format!("{text:?} is no MS/PERCENT/SPARE")),
        }
    }
}

impl Took {
    /// MS/PERCENT/SPARE, for another process.
    pub fn to_line(&self) -> String {
        format!("{}/{}/{}", self.ms, self.percent, self.spare_ms)
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Took { ms, percent, spare_ms } = self;
        write!(f, "{ms} ms (the machine at {percent}% of an idle one's time, and {spare_ms} ms)")
    }
}

/// Runs `f` and measures it.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, Took) {
    let watch = Stopwatch::start();
    let result = f();
    (result, watch.took())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_adds_nothing_and_a_busy_one_what_it_needs_more() {
        assert_eq!((percent(&[]), percent(&[WORK_NS - 1])), (100, 100));
        assert_eq!(percent(&[WORK_NS, 4 * WORK_NS]), 250);
        assert_eq!(spare_ms(LATE_NS, 40 * LATE_NS), 0);
        assert_eq!(spare_ms(30_000_000, 100_000_000), 700);
        let took = Took { ms: 5_700, percent: 250, spare_ms: 700 };
        assert!(took.within(2_000) && !took.within(1_999) && took.within(u64::MAX));
        assert_eq!(took.to_line().parse(), Ok(took));
        assert!("5/1".parse::<Took>().is_err() && "a/b/c".parse::<Took>().is_err());
    }

    #[test]
    fn what_the_watch_sleeps_through_counts_before_it_wakes() {
        Stopwatch::start();
        // Waits until the watch has done its first piece of work.
        while seen().work.is_empty() {
            std::thread::yield_now();
        }
        let began = Stopwatch::start();
        let held = seen();
        let until = BootClock.now_ns() + 40 * POLL_NS;
        while BootClock.now_ns() < until {
            std::thread::yield_now();
        }
        drop(held);
        let took = began.took();
        assert!(took.ms >= 200 && took.spare_ms >= WAITS * 180, "{took}");
    }
}
