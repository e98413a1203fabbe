//! Connections to the control port that have not authenticated yet. Their number is limited,
//! separately for tcp and for the unix socket; beyond it a new connection evicts another [I20]: see
//! [`next_to_evict`]. Authenticated connections are not counted here.

use nkv_transport::wire::auth::next_to_evict;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Most unauthenticated connections over tcp.
const MAX_BY_TCP: usize = 256;
/// The same over the unix socket, which other users of this host cannot reach.
const MAX_BY_UNIX: usize = 64;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct UnauthenticatedPeers {
    by_tcp: Arc<Waiting>,
    by_unix: Arc<Waiting>,
}

/// The number of the last one, and all ordered by number, so by age.
#[derive(Debug, Default)]
struct Waiting(Mutex<(u64, BTreeMap<u64, UnauthenticatedConnection>)>);

#[derive(Debug)]
struct UnauthenticatedConnection {
    evicted: Arc<Notify>,
    // It sent a proof that only a peer with the secret can make, or a replay of one.
    has_shown: bool,
}

/// The slot of one such connection; free again when this is dropped.
#[derive(Debug)]
pub(super) struct PeerSlot {
    waiting: Arc<Waiting>,
    number: u64,
    evicted: Arc<Notify>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, UnauthenticatedConnection>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn evict_oldest(by_age: &mut BTreeMap<u64, UnauthenticatedConnection>, how_many: usize) {
    for _ in 0..how_many {
        let one = next_to_evict(by_age.iter().map(|(number, s)| (*number, s.has_shown)));
        if let Some(connection) = one.and_then(|number| by_age.remove(&number)) {
            // `notify_one` stores the permit if the connection is not waiting right now.
            connection.evicted.notify_one();
        }
    }
}

impl UnauthenticatedPeers {
    /// A slot for one more; evicts another of its kind if none is free.
    pub(super) fn enter(&self, unix: bool) -> PeerSlot {
        let (waiting, most) = match unix {
            true => (&self.by_unix, MAX_BY_UNIX),
            false => (&self.by_tcp, MAX_BY_TCP),
        };
        let evicted = Arc::new(Notify::new());
        let connection = UnauthenticatedConnection { evicted: evicted.clone(), has_shown: false };
        let mut all = waiting.lock();
        if all.1.len() >= most {
            evict_oldest(&mut all.1, 1);
        }
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, connection);
        PeerSlot { waiting: waiting.clone(), number, evicted }
    }

    /// Evicts half of those over tcp, when the process has no file descriptors left.
    pub(super) fn evict_half(&self) {
        let mut all = self.by_tcp.lock();
        let half = all.1.len().div_ceil(2);
        evict_oldest(&mut all.1, half);
    }
}

impl PeerSlot {
    /// Records that the peer sent a proof that needs the secret, or a replay of one.
    pub(super) fn has_shown(&self) {
        if let Some(connection) = self.waiting.lock().1.get_mut(&self.number) {
            connection.has_shown = true;
        }
    }

    /// Resolves once it is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        self.waiting.lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_evicted(slot: &PeerSlot) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(slot.evicted()).poll(&mut cx) == Poll::Ready(())
    }

    #[test]
    fn i20_the_oldest_of_its_kind_gives_way_and_nobody_else() {
        let unauthenticated = UnauthenticatedPeers::default();
        let by_unix = unauthenticated.enter(true);
        let mut by_tcp: Vec<_> = (0..MAX_BY_TCP).map(|_| unauthenticated.enter(false)).collect();
        assert!(!by_tcp.iter().any(is_evicted));
        // Some authenticated or left: there is room again.
        by_tcp.truncate(MAX_BY_TCP - 2);
        by_tcp.extend((0..2).map(|_| unauthenticated.enter(false)));
        assert!(!by_tcp.iter().any(is_evicted));
        by_tcp.extend((0..3).map(|_| unauthenticated.enter(false)));
        let gone: Vec<_> = by_tcp.iter().map(is_evicted).collect();
        assert_eq!(gone[..3], [true; 3]);
        assert!(!gone[3..].contains(&true));
        // A connection that has shown a proof stays while there are others.
        by_tcp[3].has_shown();
        by_tcp.push(unauthenticated.enter(false));
        assert!(is_evicted(&by_tcp[4]) && !is_evicted(&by_tcp[3]));
        assert!(!is_evicted(&by_unix));
        unauthenticated.evict_half();
        assert_eq!(by_tcp.iter().filter(|p| is_evicted(p)).count(), MAX_BY_TCP / 2);
        drop(by_tcp);
        assert_eq!(unauthenticated.by_tcp.lock().1.len(), 0);
        assert!(!is_evicted(&by_unix));
    }
}
