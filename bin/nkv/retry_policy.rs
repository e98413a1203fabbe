//! Retries while a cluster is starting: a command given right after its nodes finds nothing that
//! listens yet, or ranks that have not joined. No other error is retried here.

use nkv::{Error, ErrorKind};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

/// Shortest time that a starting cluster is given, in milliseconds.
const AT_LEAST_MS: u64 = 5_000;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// How long one command waits for a cluster that is starting, over all its calls.
pub(crate) struct RetryPolicy {
    until_ms: u64,
}

impl RetryPolicy {
    /// Waits from now on for the limit of one call, or [`AT_LEAST_MS`] if that is more.
    pub(crate) fn starting(timeout_ms: u64) -> Self {
        Self { until_ms: BootClock.now_ms().saturating_add(timeout_ms.max(AT_LEAST_MS)) }
    }

    /// Repeats the call while it fails because the cluster is starting, until the time is over.
    pub(crate) fn call<T>(&self, work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.retry(is_starting, work)
    }

    /// The same for a request to several nodes; `starting` classifies its error.
    pub(crate) fn retry<T, E>(
        &self,
        starting: impl Fn(&E) -> bool,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match work() {
                Err(e) if starting(&e) && BootClock.now_ms() < self.until_ms => {
                    std::thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }
}

/// True if nothing listens yet, or not all ranks have joined yet; false for a key that is being
/// written.
pub(crate) fn is_starting(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NotReady => error.message().starts_with("the cluster is starting"),
        ErrorKind::Disconnected => {
            error.message().starts_with("cannot connect to")
                && error.message().contains("Connection refused")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::RetryPolicy;
    use nkv::{Blocking, ClientConfig, Error};

    /// The library's error where nothing listens.
    fn nobody_listens() -> Error {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let secret = Some(nkv::Secret::new(b"a secret of this test alone", "a test").unwrap());
        let config = ClientConfig { secret, ..ClientConfig::default() };
        Blocking::connect(&free.to_string().parse().unwrap(), config).unwrap_err()
    }

    #[test]
    fn a_starting_cluster_is_asked_again_and_other_refusals_are_final() {
        for (first, tries) in [
            (nobody_listens(), 2),
            (Error::not_ready("the cluster is starting: put waits for ranks [1]"), 2),
            (Error::not_ready("key a is being written to rank 1"), 1),
            (Error::disconnected("hello to h:1: closed without an answer"), 1),
            (Error::not_found("no key a"), 1),
        ] {
            let mut calls = 0;
            let outcome = RetryPolicy::starting(1).call(|| {
                calls += 1;
                if calls == 1 { Err(first.clone()) } else { Ok(()) }
            });
            assert_eq!((calls, outcome.is_ok()), (tries, tries == 2), "{first}");
        }
    }

    #[test]
    fn a_retry_policy_ends() {
        let mut calls = 0;
        let over = RetryPolicy { until_ms: 0 };
        let outcome: Result<(), _> = over.call(|| {
            calls += 1;
            Err(Error::not_ready("the cluster is starting"))
        });
        assert!(outcome.is_err() && calls == 1);
    }
}
