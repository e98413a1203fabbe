//! The one place that starts an operating-system thread: every thread has a name and is found again.

use crate::error::StoreError;
use std::thread::JoinHandle;

/// Starts a named thread. The name is cut at 15 bytes, the kernel's limit.
pub fn spawn_named<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StoreError> {
    let short: String = name.chars().take(15).collect();
    std::thread::Builder::new()
        .name(short.clone())
        .spawn(body)
        .map_err(|e| StoreError::os("thread spawn", short, e))
}
