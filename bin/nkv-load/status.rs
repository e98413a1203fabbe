//! The exit status of a run that failed: the class of its error, by the table that all of nkv's
//! programs share.

use nkv::{Error, SecretError, StartError};
use nkv_programs::endpoints::NoneServes;
use nkv_programs::exit;
use std::io;

/// A run that ended with a status of its own.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct Ended {
    status: u8,
    why: String,
}

/// An error with that status.
pub(crate) fn ended(status: u8, why: impl Into<String>) -> anyhow::Error {
    Ended { status, why: why.into() }.into()
}

/// The exit status for this error. An error without a class counts as a wrong command line.
pub(crate) fn of(error: &anyhow::Error) -> u8 {
    let class = |e: &(dyn std::error::Error + 'static)| {
        let own = || e.downcast_ref::<Ended>().map(|e| e.status);
        let start = || e.downcast_ref::<StartError>().map(exit::of_start);
        let none = || e.downcast_ref::<NoneServes>().map(NoneServes::exit_status);
        let call = || e.downcast_ref::<Error>().map(|e| exit::of(e.kind()));
        let secret = || e.is::<SecretError>().then_some(exit::USAGE);
        let io = || e.is::<io::Error>().then_some(exit::LOCAL);
        own().or_else(start).or_else(none).or_else(call).or_else(secret).or_else(io)
    };
    error.chain().find_map(class).unwrap_or(exit::USAGE)
}

#[cfg(test)]
mod tests {
    use super::{ended, of};
    use anyhow::{Context, anyhow};
    use nkv::{Error, StartError};
    use nkv_programs::endpoints::NoneServes;
    use std::io;

    #[test]
    fn a_run_ends_with_the_class_of_what_it_met() {
        let none = |e| anyhow::Error::from(NoneServes(vec![("h:1".parse().unwrap(), e)]));
        for (error, status) in [
            (ended(6, "no room"), 6),
            (Err::<(), _>(ended(7, "x")).context("--json f").unwrap_err(), 7),
            (none(Error::disconnected("x")), 4),
            (none(Error::invalid("x")), 5),
            (Error::timeout("x").into(), 4),
            (StartError::HeapTooLarge("x".into()).into(), 6),
            (io::Error::from(io::ErrorKind::NotFound).into(), 7),
            (anyhow!("these flags make no sense"), 2),
        ] {
            assert_eq!(of(&error), status, "{error:#}");
        }
    }
}
