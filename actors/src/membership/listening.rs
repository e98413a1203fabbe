//! Measures how long a link received nothing while this process ran. The time that the process was
//! paused does not count: it could not receive what the master may have sent.

use crate::actor::STOOD_STILL_MS;
use nkv_store::clock::Clock;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

/// Clock checks during the longest silence allowed.
const POLLS: u32 = 8;
/// The error of a link mentions a pause of this process if the pause ended less than this long ago.
const RECENT_MS: u64 = 1_000;

/// See the file's first paragraph.
pub(super) struct Listening<'a> {
    clock: &'a dyn Clock,
    silence: Duration,
    stood: Option<Stood>,
}

#[derive(Debug, Clone, Copy)]
struct Stood {
    ms: u64,
    until_ms: u64,
}

impl<'a> Listening<'a> {
    pub(super) fn new(clock: &'a dyn Clock, silence: Duration) -> Self {
        Self { clock, silence, stood: None }
    }

    /// The output of `next`; None if it does not come for the allowed silence, during which this
    /// process ran all the time.
    pub(super) async fn hear<T>(&mut self, next: impl Future<Output = T>) -> Option<T> {
        let mut next = pin!(next);
        let poll = (self.silence / POLLS).max(Duration::from_millis(1));
        let mut silent = Duration::ZERO;
        while silent < self.silence {
            let from_ms = self.clock.now_ms();
            let heard = tokio::time::timeout(poll, next.as_mut()).await;
            if self.was_paused(from_ms, poll) {
                silent = Duration::ZERO;
            } else {
                silent += poll;
            }
            if let Ok(heard) = heard {
                return Some(heard);
            }
        }
        None
    }

    /// Whether the process was paused during a poll that began at `from_ms`.
    fn was_paused(&mut self, from_ms: u64, poll: Duration) -> bool {
        let until_ms = self.clock.now_ms();
        let ms = until_ms.saturating_sub(from_ms);
        let stood = ms > poll.as_millis() as u64 + STOOD_STILL_MS;
        if stood {
            self.stood = Some(Stood { ms, until_ms });
        }
        stood
    }

    /// Text to append to the error that ends the link; empty if this process was not paused
    /// recently.
    pub(super) fn stood(&self) -> impl fmt::Display + use<> {
        let now = self.clock.now_ms();
        let recent = self.stood.filter(|s| now.saturating_sub(s.until_ms) < RECENT_MS);
        recent.map_or_else(String::new, |s| {
            format!("; just before, this process did not run for {} ms", s.ms)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::clock::ManualClock;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::Poll;

    const SILENCE: Duration = Duration::from_millis(80);

    /// Listens to a link that receives nothing; returns the number of polls and the text for the
    /// error. Each poll advances the clock by `passes` milliseconds.
    async fn polls(passes: impl Fn(u32) -> u64) -> (u32, String) {
        let (clock, polls) = (ManualClock::default(), Cell::new(0));
        let mut listening = Listening::new(&clock, SILENCE);
        let nothing = poll_fn(|_| {
            clock.advance_ms(passes(polls.get()));
            polls.set(polls.get() + 1);
            Poll::<()>::Pending
        });
        assert_eq!(listening.hear(nothing).await, None);
        (polls.get(), listening.stood().to_string())
    }

    #[tokio::test]
    async fn a_time_in_which_this_process_did_not_run_is_no_silence_of_the_master() {
        let (running, text) = polls(|_| 1).await;
        assert_eq!(text, "");
        let (stood, text) = polls(|poll| if poll == 8 { 9_000 } else { 1 }).await;
        assert!(stood >= running + 4, "{stood} polls, {running} without");
        assert!(text.starts_with("; just before, this process did not run for 900"), "{text}");
    }
}
