//! Handles for Python's threads: each call borrows one of its own, so that calls of several threads
//! run side by side.

use crate::errors::exception_of;
use nkv::{Blocking, Client};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Unused handles that are kept.
const KEPT: usize = 32;

/// Handles of one client. No more are open than calls run at a time.
pub(crate) struct Handles {
    client: Client,
    unused: Mutex<Vec<Blocking>>,
}

impl Handles {
    pub(crate) fn of(client: Client) -> Self {
        Self { client, unused: Mutex::new(Vec::new()) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn unused(&self) -> std::sync::MutexGuard<'_, Vec<Blocking>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` with a handle, while other Python threads run.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Blocking) -> nkv::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.with_handle(work)).map_err(|error| exception_of(py, &error))
    }

    /// Does `work` with a handle.
    pub(crate) fn with_handle<T>(
        &self,
        work: impl FnOnce(&Blocking) -> nkv::Result<T>,
    ) -> nkv::Result<T> {
        let unused = self.unused().pop();
        let handle = match unused {
            Some(handle) => handle,
            None => self.client.blocking()?,
        };
        let done = work(&handle);
        let mut unused = self.unused();
        if unused.len() < KEPT {
            unused.push(handle);
        }
        done
    }

    /// Closes the client: every later call fails.
    pub(crate) fn close(&self) {
        let closed = self.with_handle(|handle| {
            handle.close();
            Ok(())
        });
        // A handle that cannot be made has nothing to close.
        let _ = closed;
        self.unused().clear();
    }
}
