//! SIGTERM and SIGINT: the first asks for a drain, a second ends the process at once. It drains
//! nothing itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Shells add this to a signal's number.
const SIGNAL_BASE: i32 = 128;

/// What a process that ends at once still unlinks: two names, no waiting.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leftovers(Arc<Mutex<Vec<PathBuf>>>);

impl Leftovers {
    /// These files, and no others.
    pub(crate) fn set(&self, files: Vec<PathBuf>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }

    fn unlink(&self) {
        // The lock is only ever held for a moment, but a signal waits for nobody.
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
    pub(crate) fn listen(leftovers: Leftovers) -> std::io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        let (mut term, mut int) = (signal(terminate)?, signal(interrupt)?);
        let (asked, signals) = watch::channel(None);
        tokio::spawn(async move {
            loop {
                let (name, number) = tokio::select! {
                    _ = term.recv() => ("SIGTERM", terminate.as_raw_value()),
                    _ = int.recv() => ("SIGINT", interrupt.as_raw_value()),
                };
                if asked.borrow().is_some() {
                    leftovers.unlink();
                    crate::say(&format!("nkv-node: a second {name}: ending at once"));
                    std::process::exit(SIGNAL_BASE + number);
                }
                asked.send_replace(Some(name));
            }
        });
        Ok(Self(signals))
    }

    /// Waits for the first signal; its name.
    pub(crate) async fn asked(&mut self) -> &'static str {
        match self.0.wait_for(Option::is_some).await {
            Ok(name) => name.unwrap_or_default(),
            // The listener ends with the process only.
            Err(_) => std::future::pending().await,
        }
    }
}
