//! Runs two futures, such as the two halves of a connection, until the first one ends. They are
//! polled alternately, so that neither starves, and in the same order in every run of a simulation:
//! `select!` polls in random order.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

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
}
