//! The spawning seam: where an actor or a control-plane task runs. In production a place is an
//! actix Arbiter (a thread with its own event loop); under a deterministic simulation it is the
//! thread one is already on, since an Arbiter's thread would break the order of events.

use crate::error::{Error, Result};
use actix::{Arbiter, ArbiterHandle, System};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A place to run on.
#[derive(Debug, Clone)]
pub enum Place {
    /// An arbiter of its own.
    Arbiter(ArbiterHandle),
    /// The current thread, which must be inside a tokio `LocalSet`.
    Here,
}

/// The process's actix System: only the anchor that arbiters need, it runs nothing itself.
fn system() -> Result<System> {
    static SYSTEM: OnceLock<Mutex<Option<System>>> = OnceLock::new();
    let slot = SYSTEM.get_or_init(|| Mutex::new(None));
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(s) = slot.as_ref() {
        return Ok(s.clone());
    }
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    nkv_store::threads::spawn_named("nkv-system", move || {
        let runner = System::new();
        let _ = tx.send(System::current());
        if let Err(e) = runner.run() {
            tracing::error!(error = %e, "the actor system ended");
        }
    })?;
    let s = rx.recv().map_err(|_| Error::internal("the actor system did not start"))?;
    *slot = Some(s.clone());
    Ok(s)
}

/// An arbiter that is stopped when dropped.
#[derive(Debug)]
pub struct OwnedPlace(Option<Arbiter>, Place);

impl OwnedPlace {
    /// Starts an arbiter thread.
    pub fn arbiter() -> Result<Self> {
        System::set_current(system()?);
        let arbiter = Arbiter::new();
        let place = Place::Arbiter(arbiter.handle());
        Ok(Self(Some(arbiter), place))
    }

    /// The current thread: for simulation.
    pub fn here() -> Self {
        Self(None, Place::Here)
    }

    /// The place itself.
    pub fn place(&self) -> &Place {
        &self.1
    }
}

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        if let Some(a) = &self.0 {
            a.stop();
        }
    }
}

impl Place {
    /// Runs `body` on the place's thread.
    pub fn run(&self, body: impl FnOnce() + Send + 'static) {
        match self {
            // A refused body is dropped; whoever waits for its result sees the sender gone.
            Self::Arbiter(a) => drop(a.spawn_fn(body)),
            Self::Here => body(),
        }
    }

    /// Starts a task on the place's thread, where it may use `spawn_local`.
    pub fn task(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Arbiter(a) => drop(a.spawn(work)),
            Self::Here => drop(tokio::task::spawn_local(work)),
        }
    }
}
