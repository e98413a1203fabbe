//! Room for connections to the control port that have not proven yet that they belong to the job: so much
//! for those over tcp and so much for those of this host, and one goes when another wants in [I20]: see
//! [`gives_way`]. Whoever has proven it is no concern of this.

use nkv_transport::wire::auth::gives_way;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Connections over tcp that have proven nothing yet.
const MAX_BY_TCP: usize = 256;
/// The same over the unix socket, which others of this host cannot reach.
const MAX_BY_UNIX: usize = 64;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Strangers {
    by_tcp: Waiting,
    by_unix: Waiting,
}

#[derive(Debug)]
struct Waiting {
    most: usize,
    // By number, so by age.
    by_age: Mutex<(u64, BTreeMap<u64, Stranger>)>,
}

#[derive(Debug)]
struct Stranger {
    gives_way: Arc<Notify>,
    // That it knows the secret, or repeats one who does.
    has_shown: bool,
}

/// One that waits; its place is free when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    strangers: Arc<Strangers>,
    unix: bool,
    number: u64,
    gives_way: Arc<Notify>,
}

impl Waiting {
    fn new(most: usize) -> Self {
        Self { most, by_age: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Stranger>)> {
        self.by_age.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, gives_way: Arc<Notify>) -> u64 {
        let mut all = self.lock();
        if all.1.len() >= self.most {
            give_way(&mut all.1, 1);
        }
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, Stranger { gives_way, has_shown: false });
        number
    }
}

fn give_way(by_age: &mut BTreeMap<u64, Stranger>, how_many: usize) {
    for _ in 0..how_many {
        let one = gives_way(by_age.iter().map(|(number, s)| (*number, s.has_shown)));
        if let Some(stranger) = one.and_then(|number| by_age.remove(&number)) {
            // Kept for it if it is not waiting this moment.
            stranger.gives_way.notify_one();
        }
    }
}

impl Strangers {
    pub(crate) fn new() -> Arc<Self> {
        let (by_tcp, by_unix) = (Waiting::new(MAX_BY_TCP), Waiting::new(MAX_BY_UNIX));
        Arc::new(Self { by_tcp, by_unix })
    }

    fn of(&self, unix: bool) -> &Waiting {
        if unix { &self.by_unix } else { &self.by_tcp }
    }

    /// A place for one more, at the cost of another of its kind if there is none free.
    pub(super) fn enter(self: &Arc<Self>, unix: bool) -> Place {
        let gives_way = Arc::new(Notify::new());
        let number = self.of(unix).enter(gives_way.clone());
        Place { strangers: self.clone(), unix, number, gives_way }
    }

    /// There are no more descriptors: half of those over tcp go.
    pub(super) fn thin_out(&self) {
        let mut all = self.by_tcp.lock();
        let half = all.1.len().div_ceil(2);
        give_way(&mut all.1, half);
    }
}

impl Place {
    /// It has shown that it knows the secret, or repeats one who does.
    pub(super) fn has_shown(&self) {
        let mut all = self.strangers.of(self.unix).lock();
        if let Some(stranger) = all.1.get_mut(&self.number) {
            stranger.has_shown = true;
        }
    }

    /// Resolves once it must give way to another.
    pub(super) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.strangers.of(self.unix).lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn must_go(place: &Place) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(place.gives_way()).poll(&mut cx) == Poll::Ready(())
    }

    #[test]
    fn i20_the_oldest_of_its_kind_gives_way_and_nobody_else() {
        let strangers = Strangers::new();
        let by_unix = strangers.enter(true);
        let mut by_tcp: Vec<_> = (0..MAX_BY_TCP).map(|_| strangers.enter(false)).collect();
        assert!(!by_tcp.iter().any(must_go));
        // Some were let in, or left: there is room again.
        by_tcp.truncate(MAX_BY_TCP - 2);
        by_tcp.extend((0..2).map(|_| strangers.enter(false)));
        assert!(!by_tcp.iter().any(must_go));
        by_tcp.extend((0..3).map(|_| strangers.enter(false)));
        let gone: Vec<_> = by_tcp.iter().map(must_go).collect();
        assert_eq!(gone[..3], [true; 3]);
        assert!(!gone[3..].contains(&true));
        // Who has shown something stays while there are others.
        by_tcp[3].has_shown();
        by_tcp.push(strangers.enter(false));
        assert!(must_go(&by_tcp[4]) && !must_go(&by_tcp[3]));
        assert!(!must_go(&by_unix));
        strangers.thin_out();
        assert_eq!(by_tcp.iter().filter(|p| must_go(p)).count(), MAX_BY_TCP / 2);
        drop(by_tcp);
        assert_eq!(strangers.by_tcp.lock().1.len(), 0);
        assert!(!must_go(&by_unix));
    }
}
