//! Whether looking has any sense: a wait that ends asleep has held a core for nothing, and perhaps
//! the very core that the other end needed. Only time tells on which cores the two run, so past
//! waits do.

/// Waits in a row that may look in vain before looking stops.
const VAIN_POLLS: u32 = 2;
/// From then on only the waits of a row whose number is a power of two look, and each so many-th.
const AGAIN: u32 = 64;

/// How past waits of one kind ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Polling {
    in_vain: u32,
}

impl Polling {
    /// Whether the wait that begins should look before it sleeps.
    pub fn should_poll(self) -> bool {
        let n = self.in_vain;
        n < VAIN_POLLS || n.is_power_of_two() || n.is_multiple_of(AGAIN)
    }

    /// How a wait ended: what it waited for came while it looked, or it slept.
    pub fn ended(&mut self, asleep: bool) {
        self.in_vain = if asleep { self.in_vain.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_ever_less_and_at_once_again_after_a_success() {
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
