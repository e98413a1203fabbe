//! The one place that starts operating-system threads, so that every thread has a name.

use crate::error::StoreError;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Starts a named thread. The name is cut at 15 bytes, the kernel's limit.
pub fn spawn_named<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StoreError> {
    named(name).spawn(body).map_err(|e| StoreError::os("thread spawn", name, e))
}

/// From now on the calling thread's sleeps end within a microsecond of their time, where the kernel
/// otherwise adds 50 to wake fewer threads. Where it refuses they are longer, and no less correct.
pub fn short_sleeps() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
}

/// Sleeps for so short a time, which else the kernel prolongs by 50 microseconds.
pub fn sleep_shortly(pause: std::time::Duration) {
    let before = rustix::thread::current_timer_slack();
    short_sleeps();
    std::thread::sleep(pause);
    // The thread is the caller's.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(before.unwrap_or(0)));
}

fn named(name: &str) -> Builder {
    Builder::new().name(name.chars().take(15).collect())
}

/// Executes every piece of `work`, `own` in the calling thread and each of `helpers` in its own
/// thread, and returns when all of these threads have ended. A free thread takes the next piece.
/// After an error no further piece is started, started pieces are completed, and the first error is
/// returned. A helper whose thread cannot be started is left out.
pub fn side_by_side<W: Send, H: Send, E: Send>(
    name: &str,
    work: Vec<W>,
    own: H,
    helpers: impl IntoIterator<Item = H>,
    each: impl Fn(&mut H, W) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let queue = Mutex::new((work.into_iter(), None));
    let locked = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || {
        let (rest, failed) = &mut *locked();
        if failed.is_some() { None } else { rest.next() }
    };
    let run = |mut helper: H| {
        while let Some(piece) = next() {
            if let Err(e) = each(&mut helper, piece) {
                locked().1.get_or_insert(e);
            }
        }
    };
    std::thread::scope(|scope| {
        for helper in helpers {
            let started = named(name).spawn_scoped(scope, || run(helper));
            if let Err(error) = started {
                tracing::debug!(%error, "a large copy uses fewer threads");
                break;
            }
        }
        run(own);
    });
    let failed = locked().1.take();
    failed.map_or(Ok(()), Err)
}

/// The results of `each` for every item, in order, computed concurrently.
pub fn all_at_once<T: Send, R: Send>(
    name: &str,
    items: Vec<T>,
    each: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let done: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let work: Vec<_> = items.into_iter().zip(&done).collect();
    let helpers = std::iter::repeat_n((), work.len().saturating_sub(1));
    let one = |(): &mut (), (item, place): (T, &Mutex<Option<R>>)| {
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(each(item));
        Ok::<(), std::convert::Infallible>(())
    };
    // Infallible.
    let _ = side_by_side(name, work, (), helpers, one);
    done.into_iter()
        .filter_map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_piece_is_done_once_by_as_many_threads_as_there_are_helpers_and_one() {
        let together = Barrier::new(3);
        let done: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        let each = |_: &mut (), i: usize| {
            // Passed only if three threads are in here at a time.
            together.wait();
            done[i].fetch_add(1, Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        side_by_side("pieces", vec![0, 1, 2], (), [(), ()], each).unwrap();
        assert!(done.iter().all(|n| n.load(Ordering::SeqCst) == 1));
    }

    #[test]
    fn after_an_error_nothing_is_begun_and_what_was_begun_has_ended() {
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let both = Barrier::new(2);
        let each = |_: &mut (), i: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            both.wait();
            if i == 0 {
                return Err(i);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let failed = side_by_side("pieces", (0..100).collect(), (), [()], each);
        assert_eq!(failed, Err(0));
        assert_eq!((begun.into_inner(), ended.into_inner()), (2, 1));
    }

    #[test]
    fn what_is_made_at_once_comes_back_in_order() {
        let together = Barrier::new(3);
        let made = all_at_once("pieces", vec![3, 1, 2], |i| {
            together.wait();
            i * 10
        });
        assert_eq!(made, [30, 10, 20]);
        assert!(all_at_once("pieces", Vec::<u8>::new(), |i| i).is_empty());
    }
}
