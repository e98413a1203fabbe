//! Locks that a panic of another thread does not close: what they guard is whole between calls.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `work` returns; if it panics, `undo` runs before the panic goes on.
pub(crate) fn undone_by_panic<T>(work: impl FnOnce() -> T, undo: impl FnOnce()) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            undo();
            resume_unwind(panic)
        }
    }
}
