//! How long nothing was heard on a link while this process ran. One that was stopped heard nothing
//! of a master that may well have spoken: the time that it stood still does not count.

use crate::actor::STOOD_STILL_MS;
use nkv_store::clock::Clock;
use std::fmt;
use std::pin::pin;
use std::time::Duration;

/// Looks at the clock while nothing is heard for as long as is allowed.
const POLLS: u32 = 8;
/// The end of a link is put down to a process that stood still so shortly before it.
const RECENT_MS: u64 = 5_000;

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

    /// What is heard next; none if nothing was for as long as is allowed, of which this process ran
    /// all the time.
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

    /// Whether the process stood still in a look that began then.
    fn was_paused(&mut self, from_ms: u64, poll: Duration) -> bool {
        let until_ms = self.clock.now_ms();
        let ms = until_ms.saturating_sub(from_ms);
        let stood = ms > poll.as_millis() as u64 + STOOD_STILL_MS;
        if stood {
            self.stood = Some(Stood { ms, until_ms });
        }
        stood
    }

    /// What an error that ends the link is to say besides; nothing if this process ran.
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

    /// Nothing is ever heard; how often that was found, and what is said then. Each time the clock
    /// is found to have moved on so far.
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
