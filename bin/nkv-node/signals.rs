//! SIGTERM and SIGINT: the first asks for a drain, another one ends the process at once. Launchers
//! send a signal to the process and to its group: the same signal again within [`ECHO_MS`] is
//! ignored. This module only reports signals; it drains nothing itself.

use nkv_store::clock::{BootClock, Clock};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Shells add this to a signal's number.
const SIGNAL_BASE: i32 = 128;
/// The same signal within this many milliseconds of the first is ignored.
const ECHO_MS: u64 = 500;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalAction {
    Drain,
    Nothing,
    End,
}

fn meant(first: Option<(&str, u64)>, (name, now_ms): (&str, u64)) -> SignalAction {
    match first {
        None => SignalAction::Drain,
        Some((named, at_ms)) if named == name && now_ms < at_ms + ECHO_MS => SignalAction::Nothing,
        Some(_) => SignalAction::End,
    }
}

/// The files that a process that ends at once still unlinks, without waiting.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleanupPaths(Arc<Mutex<Vec<PathBuf>>>);

impl CleanupPaths {
    /// Replaces the list of files.
    pub(crate) fn set(&self, files: Vec<PathBuf>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }

    fn unlink(&self) {
        // The lock is held only briefly, but a signal must not wait for it.
        if let Ok(files) = self.0.try_lock() {
            for file in files.iter() {
                let _ = std::fs::remove_file(file);
            }
        }
    }
}

/// Whether the process was asked to end.
#[derive(Debug, Clone)]
pub(crate) struct Signals(watch::Receiver<Option<&'static str>>);

impl Signals {
    /// Listens on the present runtime.
    ///
    /// # Errors
    /// If the operating system refuses the handlers.
    pub(crate) fn listen(cleanup: CleanupPaths) -> std::io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        let (mut term, mut int) = (signal(terminate)?, signal(interrupt)?);
        let (asked, signals) = watch::channel(None);
        tokio::spawn(async move {
            let mut first = None;
            loop {
                let (name, number) = tokio::select! {
                    _ = term.recv() => ("SIGTERM", terminate.as_raw_value()),
                    _ = int.recv() => ("SIGINT", interrupt.as_raw_value()),
                };
                let now_ms = BootClock.now_ms();
                match meant(first, (name, now_ms)) {
                    SignalAction::Drain => {
                        first = Some((name, now_ms));
                        asked.send_replace(Some(name));
                    }
                    SignalAction::Nothing => {
                        tracing::info!(
                            "{name} again at once: ignored as the launcher's second copy"
                        );
                    }
                    SignalAction::End => {
                        cleanup.unlink();
                        tracing::warn!("a second {name}: ending at once");
                        std::process::exit(SIGNAL_BASE + number);
                    }
                }
            }
        });
        Ok(Self(signals))
    }

    /// Waits for the first signal; returns its name.
    pub(crate) async fn asked(&mut self) -> &'static str {
        match self.0.wait_for(Option::is_some).await {
            Ok(name) => name.unwrap_or_default(),
            // The listener lives as long as the process.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ECHO_MS, SignalAction, meant};

    #[test]
    fn the_echo_of_a_signal_asks_for_nothing_and_a_second_one_ends() {
        let second = |name, after_ms| meant(Some(("SIGTERM", 70)), (name, 70 + after_ms));
        assert_eq!(meant(None, ("SIGINT", 70)), SignalAction::Drain);
        assert_eq!(second("SIGTERM", ECHO_MS - 1), SignalAction::Nothing);
        assert_eq!(second("SIGTERM", ECHO_MS), SignalAction::End);
        assert_eq!(second("SIGINT", 0), SignalAction::End);
    }
}
