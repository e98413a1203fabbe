//! Keys, as Python's programs name them.

use crate::errors::of_kind;
use nkv::ErrorKind;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// A key: text, as UTF-8, or bytes.
pub(crate) fn key<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = key.cast::<PyString>() {
        return text.to_str().map(str::as_bytes);
    }
    match key.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "a key is a str or bytes, not {}",
            key.get_type().name()?
        ))),
    }
}

/// Keys of a batch.
pub(crate) fn keys<'a>(keys: &'a [Bound<'_, PyAny>]) -> PyResult<Vec<&'a [u8]>> {
    keys.iter().map(key).collect()
}

/// Whether a lookup brings back what only a disk has, and then whether it waits for that.
pub(crate) fn prefetch(py: Python<'_>, prefetch: bool, wait: bool) -> PyResult<Option<bool>> {
    if wait && !prefetch {
        let text = "prefetch_wait without prefetch: give both, or neither";
        return Err(of_kind(py, ErrorKind::InvalidArgument, text));
    }
    Ok(prefetch.then_some(wait))
}
