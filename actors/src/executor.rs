//! Executors: where an actor or a control-plane task runs, and which clock it uses. In production
//! an executor is an actix Arbiter (a thread with its own event loop). In a deterministic
//! simulation it is a set of tasks on the current thread, since another thread would break the
//! order of events. Its tasks end with it.

use crate::error::{Error, Result};
use actix::{Arbiter, ArbiterHandle, System};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::fork::ProcessMark;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

/// What an async function returns, boxed in a function that is never inlined. A program compiles
/// the body of every async function that it awaits, and of all that this one awaits, for itself;
/// behind this type they are compiled once, in this crate. For calls that are rare or send a
/// message: the box is an allocation.
pub(crate) type OnceCompiled<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an executor runs on.
#[derive(Debug, Clone)]
enum Backend {
    // An arbiter of its own.
    Arbiter(ArbiterHandle),
    // A set of tasks on the thread that made it.
    Here(mpsc::UnboundedSender<Job>),
}

/// A task for a set of tasks, or none to end the set. Few: only tasks that are started from
/// outside.
type Job = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Runs a set of tasks until its end; then they are dropped at whatever they wait for.
async fn run_here(mut jobs: mpsc::UnboundedReceiver<Job>) {
    let tasks = LocalSet::new();
    let work = async {
        while let Some(Some(task)) = jobs.recv().await {
            tokio::task::spawn_local(task);
        }
    };
    tasks.run_until(work).await;
}

/// A cloneable reference to an executor.
#[derive(Debug, Clone)]
pub struct Executor {
    backend: Backend,
    clock: Arc<dyn Clock>,
}

/// The process's actix System. Arbiters need one; it runs nothing itself.
fn system() -> Result<System> {
    static SYSTEM: OnceLock<Mutex<Option<(System, ProcessMark)>>> = OnceLock::new();
    let slot = SYSTEM.get_or_init(|| Mutex::new(None));
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    // After a fork, the parent's System has no thread here.
    if let Some((s, made)) = slot.as_ref()
        && made.is_here()
    {
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
    *slot = Some((s.clone(), ProcessMark::here()));
    Ok(s)
}

/// An executor that is stopped when dropped.
#[derive(Debug)]
pub struct OwnedExecutor(Executor, ProcessMark);

impl OwnedExecutor {
    /// Starts an arbiter thread.
    pub fn arbiter() -> Result<Self> {
        System::set_current(system()?);
        let backend = Backend::Arbiter(Arbiter::new().handle());
        Ok(Self(Executor { backend, clock: Arc::new(BootClock) }, ProcessMark::here()))
    }

    /// For simulations: a set of tasks on the current thread, with this clock. Must be called
    /// inside a tokio `LocalSet`.
    pub fn here(clock: Arc<dyn Clock>) -> Self {
        let (tx, jobs) = mpsc::unbounded_channel();
        tokio::task::spawn_local(run_here(jobs));
        Self(Executor { backend: Backend::Here(tx), clock }, ProcessMark::here())
    }

    /// A reference to it.
    pub fn executor(&self) -> &Executor {
        &self.0
    }
}

impl Drop for OwnedExecutor {
    fn drop(&mut self) {
        // In a forked child the thread is its parent's.
        if !self.1.is_here() {
            return;
        }
        match &self.0.backend {
            Backend::Arbiter(arbiter) => drop(arbiter.stop()),
            Backend::Here(tx) => drop(tx.send(None)),
        }
    }
}

impl Executor {
    /// Its clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Runs blocking work (files, a slow pattern, joining threads) outside the event loops; in a
    /// simulation inline, since nothing else may happen meanwhile. Internal if the work panics.
    pub async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        match &self.backend {
            Backend::Arbiter(_) => {
                let done = tokio::task::spawn_blocking(work).await;
                done.map_err(|e| Error::internal(format!("work beside the actors failed: {e}")))
            }
            Backend::Here(_) => Ok(work()),
        }
    }

    /// Starts a task on the executor's thread, where it may use `spawn_local`. A refused task is
    /// dropped: whoever waits for its result sees the sender dropped.
    pub fn task(&self, work: impl Future<Output = ()> + Send + 'static) {
        match &self.backend {
            Backend::Arbiter(a) => drop(a.spawn(work)),
            Backend::Here(tx) => drop(tx.send(Some(Box::pin(work)))),
        }
    }
}
