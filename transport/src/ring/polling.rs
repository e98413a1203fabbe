//! Decides whether polling is useful: a wait that polls and still ends asleep has wasted a core,
//! possibly the very core that the other end needed. On which cores the two ends run is unknown, so
//! past waits decide.

/// After n waits in a row that ended asleep, the next wait polls only if n is 0, a power of two, or
/// a multiple of this.
const AGAIN: u32 = 64;

/// History of the waits of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Polling {
    in_vain: u32,
}

impl Polling {
    /// Whether the wait that begins should poll before it sleeps.
    pub fn should_poll(self) -> bool {
        let n = self.in_vain;
        n.is_power_of_two() || n.is_multiple_of(AGAIN)
    }

    /// Records how a wait ended: while polling, or asleep.
    pub fn ended(&mut self, asleep: bool) {
        self.in_vain = if asleep { self.in_vain.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_in_vain_becomes_rarer_and_resumes_at_once_after_a_success() {
        let mut polling = Polling::default();
        let mut polled = Vec::new();
        for wait in 0..300 {
            if polling.should_poll() {
                polled.push(wait);
            }
            polling.ended(true);
        }
        assert_eq!(polled, [0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256]);
        polling.ended(false);
        assert!(polling.should_poll());
        polling.ended(true);
        assert!(polling.should_poll(), "one slow answer among many is no reason to stop");
    }
}
