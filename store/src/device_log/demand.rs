//! How much room the owner keeps claimable ahead of demand. What lies empty is lost to the cache,
//! and a put that finds no room waits. So the room follows what producers claim.

use super::LogLayout;

/// The weight of one window in the average: 1/128, so that the last seconds count.
const AVERAGE_SHIFT: u32 = 7;
/// The part of the average that is added when a window ends without room: 1/8.
const STARVED_SHIFT: u32 = 3;
/// Time, on top of the quarantine, between a claim and the owner's answer to it: the poller's
/// pause, the actor's timer, a busy machine.
const REACTION_NS: u64 = 2_000_000;
/// Parts of the log that are kept claimable at least, and at most unless objects are larger: a
/// producer that finds no room waits for what is in quarantine. Much more where hardly anything is
/// read, or a disk has what is retired: then what is kept is worth less than the time of producers.
const LEAST_PARTS: u64 = 128;
const MOST_PARTS: u64 = 64;
const MOST_PARTS_CHEAP: u64 = 8;
/// Hardly anything is read if it is less than this part of what producers claim.
const READ_PART: u64 = 16;
/// The weight of one window in these averages: 1/32.
const READ_SHIFT: u32 = 5;

/// What producers claimed lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    window_ns: u64,
    began_ns: u64,
    began_at: u64,
    /// Bytes claimed in a window, on average.
    average: u64,
    /// The largest claim, decaying by laps: position at which `largest` was last renewed.
    largest: u64,
    renewed_at: u64,
    /// Bytes claimed and bytes read in a window, on average over the same windows.
    claims: u64,
    reads: u64,
    read_at: u64,
    /// The least room, if it is fixed.
    least: Option<u64>,
    on_disk: bool,
}

impl Demand {
    pub(super) fn new(quarantine_ns: u64, least: Option<u64>, on_disk: bool) -> Demand {
        Demand {
            window_ns: quarantine_ns.saturating_add(REACTION_NS),
            began_ns: 0,
            began_at: 0,
            average: 0,
            largest: 0,
            renewed_at: 0,
            claims: 0,
            reads: 0,
            read_at: 0,
            least,
            on_disk,
        }
    }

    /// `claimed` bytes were claimed at `now_ns`, and `left` more may be; `read` bytes were read.
    /// `most` is the most that is ever kept free.
    pub(super) fn observe(&mut self, now_ns: u64, claimed: u64, left: u64, most: u64, read: u64) {
        let windows = now_ns.saturating_sub(self.began_ns) / self.window_ns.max(1);
        if let Some(bytes) = claimed.saturating_sub(self.began_at).checked_div(windows) {
            let reads = read.saturating_sub(self.read_at) / windows;
            for _ in 0..windows.min(1 << AVERAGE_SHIFT) {
                for (average, bytes, shift) in [
                    (&mut self.average, bytes, AVERAGE_SHIFT),
                    (&mut self.claims, bytes, READ_SHIFT),
                    (&mut self.reads, reads, READ_SHIFT),
                ] {
                    *average -= *average >> shift;
                    *average += bytes >> shift;
                }
            }
            if left <= self.largest && bytes > 0 {
                // Producers found no room: in a flood the average rises too slowly.
                self.average += (self.average >> STARVED_SHIFT) + self.largest;
            }
            self.average = self.average.min(most);
            (self.began_ns, self.began_at, self.read_at) = (now_ns, claimed, read);
        }
    }

    /// An object of `bytes` was put, at about position `at` of a log of `log_bytes`.
    pub(super) fn object(&mut self, bytes: u64, at: u64, log_bytes: u64) {
        if bytes >= self.largest || at.saturating_sub(self.renewed_at) > log_bytes {
            (self.largest, self.renewed_at) = (bytes, at);
        }
    }

    /// The largest object that producers put lately.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    /// The room to keep: a quarter more than what a window takes, and two objects; at most a part
    /// of the log, or two objects if that is more. What comes in a burst beyond that waits.
    pub(super) fn room(&self, layout: &LogLayout) -> u64 {
        let least = self.least.unwrap_or(layout.log_bytes() / LEAST_PARTS);
        let objects = 2 * self.largest;
        let is_read = self.reads.saturating_mul(READ_PART) >= self.claims;
        let parts = if is_read && !self.on_disk { MOST_PARTS } else { MOST_PARTS_CHEAP };
        let most = (layout.log_bytes() / parts).max(objects);
        let wanted = (self.average + self.average / 4 + objects).min(most);
        let wanted = wanted.max(least).min(layout.max_claim());
        wanted - wanted % layout.unit()
    }
}
