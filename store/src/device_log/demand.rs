//! How much room the owner keeps claimable ahead of demand. What lies empty is lost to the cache,
//! and a put that finds no room takes a plan. So the room follows what producers claim.

use super::LogLayout;

/// The weight of one window in the average: 1/128, so that the last seconds count.
const AVERAGE_SHIFT: u32 = 7;
/// The part of the average that is added when a window ends without room: 1/8.
const STARVED_SHIFT: u32 = 3;
/// Time, on top of the quarantine, between a claim and the owner's answer to it: the poller's
/// pause, the actor's timer, a busy machine.
const REACTION_NS: u64 = 5_000_000;
/// Parts of the log that are kept claimable at least, and at most unless objects are larger: a
/// producer that finds no room waits for what is in quarantine.
const LEAST_PARTS: u64 = 128;
const MOST_PARTS: u64 = 32;

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
    /// The least room, if it is fixed.
    least: Option<u64>,
}

impl Demand {
    pub(super) fn new(quarantine_ns: u64, least: Option<u64>) -> Demand {
        Demand {
            window_ns: quarantine_ns.saturating_add(REACTION_NS),
            began_ns: 0,
            began_at: 0,
            average: 0,
            largest: 0,
            renewed_at: 0,
            least,
        }
    }

    /// `claimed` bytes were claimed at `now_ns`, and `left` more may be. `most` is the most that is
    /// ever kept free.
    pub(super) fn observe(&mut self, now_ns: u64, claimed: u64, left: u64, most: u64) {
        let windows = now_ns.saturating_sub(self.began_ns) / self.window_ns.max(1);
        if let Some(bytes) = claimed.saturating_sub(self.began_at).checked_div(windows) {
            for _ in 0..windows.min(1 << AVERAGE_SHIFT) {
                self.average -= self.average >> AVERAGE_SHIFT;
                self.average += bytes >> AVERAGE_SHIFT;
            }
            if left <= self.largest && bytes > 0 {
                // Producers found no room: in a flood the average rises too slowly.
                self.average += (self.average >> STARVED_SHIFT) + self.largest;
            }
            self.average = self.average.min(most);
            (self.began_ns, self.began_at) = (now_ns, claimed);
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

    /// The room to keep: half more than what a window takes, and two objects; at most a 32nd of the
    /// log, or two objects if that is more. What comes in a burst beyond that waits.
    pub(super) fn room(&self, layout: &LogLayout) -> u64 {
        let least = self.least.unwrap_or(layout.log_bytes() / LEAST_PARTS);
        let objects = 2 * self.largest;
        let most = (layout.log_bytes() / MOST_PARTS).max(objects);
        let wanted = (self.average + self.average / 2 + objects).min(most);
        let wanted = wanted.max(least).min(layout.max_claim());
        wanted - wanted % layout.unit()
    }
}
