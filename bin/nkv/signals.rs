//! The signals that ask a program to end.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    /// From here on these signals do not end the process by themselves. To be called on a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let caught = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = caught.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    /// Waits for one of them; returns its number.
    pub(crate) async fn any(self) -> i32 {
        let Self([mut interrupt, mut terminate, mut hangup]) = self;
        let came = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hangup.recv() => SignalKind::hangup(),
        };
        came.as_raw_value()
    }
}
