//! Runs two futures, such as the two halves of a connection, together. They are polled alternately,
//! so that neither starves, and in the same order in every run of a simulation: `select!` polls in
//! random order.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// How long a connection is still read whose other end takes no more frames.
const LAST_FRAMES_LIMIT: Duration = Duration::from_millis(500);

/// The output of the first of the two that ends; the other is dropped.
pub(crate) async fn race<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> T {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let mut a_first = false;
    poll_fn(move |cx| {
        a_first = !a_first;
        if a_first && let Poll::Ready(output) = a.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        if let Poll::Ready(output) = b.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        if a_first {
            return Poll::Pending;
        }
        a.as_mut().poll(cx)
    })
    .await
}

/// Both halves of a connection, until one of them ends. If writing fails, what has arrived is still
/// read, for half a second at most: before it closed, the other end may have sent frames that
/// nothing replaces. The error is that of writing.
pub(crate) async fn read_and_write<T, E>(
    read: impl Future<Output = Result<T, E>>,
    write: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut read = pin!(read);
    let first = race(async { Ok(read.as_mut().await) }, async { Err(write.await) }).await;
    match first {
        Ok(ended) | Err(ended @ Ok(_)) => ended,
        Err(failed) => match tokio::time::timeout(LAST_FRAMES_LIMIT, read).await {
            Ok(Ok(done)) => Ok(done),
            _ => failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::pending;

    #[tokio::test]
    async fn halves_are_polled_in_turns_and_the_first_to_end_ends_both() {
        let polled = RefCell::new(String::new());
        let half = |name: char, turns: usize| {
            let (polled, mut left) = (&polled, turns);
            poll_fn(move |cx| {
                polled.borrow_mut().push(name);
                cx.waker().wake_by_ref();
                left -= 1;
                if left == 0 { Poll::Ready(name) } else { Poll::Pending }
            })
        };
        assert_eq!(race(half('a', 4), half('b', 3)).await, 'b');
        assert_eq!(polled.borrow().as_str(), "abbaab");
        assert_eq!(race(pending(), async { 1 }).await, 1);
        assert_eq!(race(async { 1 }, pending()).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_arrived_is_read_when_writing_fails_and_for_a_bounded_time() {
        let arrived = || async {
            tokio::task::yield_now().await;
            Ok(())
        };
        assert_eq!(read_and_write(arrived(), async { Err(1) }).await, Ok(()));
        let broken = async {
            tokio::task::yield_now().await;
            Err::<(), _>(2)
        };
        assert_eq!(read_and_write(broken, async { Err(1) }).await, Err(1), "the first cause");
        assert_eq!(read_and_write::<(), _>(pending(), async { Err(1) }).await, Err(1));
        // Whoever ends writing on purpose ends both.
        assert_eq!(read_and_write::<_, u8>(pending(), async { Ok(()) }).await, Ok(()));
        assert_eq!(read_and_write::<_, u8>(async { Ok(()) }, pending()).await, Ok(()));
    }
}
