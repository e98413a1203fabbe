//! Errors of nkv as exceptions: one class for each kind, defined in `nkv.errors`.

use nkv::{Error, ErrorKind, StartError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The exception of an error, with its kind, key and rank.
pub(crate) fn exception_of(py: Python<'_>, error: &Error) -> PyErr {
    made(py, error.kind(), error.message(), error.key(), error.rank())
}

/// The exception of a kind with this message.
pub(crate) fn of_kind(py: Python<'_>, kind: ErrorKind, message: &str) -> PyErr {
    made(py, kind, message, None, None)
}

fn made(
    py: Python<'_>,
    kind: ErrorKind,
    message: &str,
    key: Option<&[u8]>,
    rank: Option<u32>,
) -> PyErr {
    let made = py.import("nkv.errors").and_then(|errors| {
        let key = key.map(|key| PyBytes::new(py, key));
        errors.getattr("of_kind")?.call1((kind.to_string(), message, key, rank))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The exception of a rank that could not start.
pub(crate) fn not_started(py: Python<'_>, error: &StartError) -> PyErr {
    let kind = match error {
        StartError::Config(_)
        | StartError::Disk(_)
        | StartError::WorldSize(_)
        | StartError::Refused(_) => ErrorKind::InvalidArgument,
        StartError::HeapTooLarge(_) => ErrorKind::OutOfMemory,
        StartError::RankAlive(_) | StartError::PortInUse(_) => ErrorKind::AlreadyExists,
        StartError::NoMaster(_) => ErrorKind::Disconnected,
        StartError::Internal(_) => ErrorKind::Internal,
    };
    of_kind(py, kind, &error.to_string())
}
