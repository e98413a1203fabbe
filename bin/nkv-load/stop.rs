//! SIGINT and SIGTERM end a run cleanly: loops check one flag between operations, and the table is
//! printed for the finished operations. A second signal ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Exit status after a second signal: 128 + SIGINT, as in shells.
const INTERRUPTED: i32 = 130;

/// The flag; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the run should end.
    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks the run to end.
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Listens for signals on the present runtime.
    ///
    /// # Errors
    /// If the operating system refuses the handlers.
    pub(crate) fn on_signals(&self) -> std::io::Result<()> {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let stop = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if stop.asked() {
                    std::process::exit(INTERRUPTED);
                }
                stop.ask();
                eprintln!("nkv-load: ending the run; once more to end at once");
            }
        });
        Ok(())
    }
}
