//! Connections for requests that the master answers late.

use crate::client::control::ControlPool;
use crate::error::Result;
use crate::message::{Request, Response};
use nkv_store::fork::OwnProcessOnly;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// Requests that are still open when nobody waits for them any more, at most; the connections of
/// older ones are closed.
const MAX_PARKED: usize = 8;

/// An answer that is still to come.
pub(super) type Answer = Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

/// One caller's connections for such requests. When a caller has seen for itself what it asked
/// about, its request is parked: its answer usually follows at once, and then its connection is
/// free for the next one.
pub(in crate::client) struct Waits {
    pool: Arc<ControlPool>,
    // Closing a socket removes it from an event loop that a forked child shares with its parent.
    parked: OwnProcessOnly<Mutex<Vec<Answer>>>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waits({:?})", self.pool)
    }
}

impl Waits {
    /// To the same master as this pool, without rings: a ring polls, which does not pay here.
    pub(in crate::client) fn beside(pool: &ControlPool) -> Self {
        let pool = Arc::new(pool.another().without_rings());
        Self { pool, parked: OwnProcessOnly::new(Mutex::default()) }
    }

    /// Asks, once the answers to parked requests that have arrived are taken.
    pub(super) fn ask(self: &Arc<Self>, request: Request, limit: Duration) -> Answer {
        let (pool, parked) = (self.pool.clone(), std::mem::take(&mut *self.lock()));
        let waits = Arc::downgrade(self);
        Box::pin(async move {
            let mut parked = parked;
            poll_fn(|cx| {
                parked.retain_mut(|answer| answer.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            if let Some(waits) = waits.upgrade() {
                parked.into_iter().for_each(|answer| waits.park(answer));
            }
            pool.call(request, limit).await
        })
    }

    /// Nobody waits for this answer any more.
    pub(super) fn park(&self, answer: Answer) {
        let mut parked = self.lock();
        if parked.len() >= MAX_PARKED {
            drop(parked.remove(0));
        }
        parked.push(answer);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Answer>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
