//! Batches: one request for each owner. A batch returns one result for each item, in order: a
//! value, or the exception that a single call would raise.

use crate::arguments;
use crate::buffers::Memory;
use crate::cache::{Cache, Wanted, options};
use crate::errors::exception_of;
use crate::memory::Bytes;
use crate::reports::{Location, location};
use nkv::message::Existence;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Values and exceptions.
type Results<'py> = Vec<Bound<'py, PyAny>>;

fn results<'py, T, P: IntoPyObject<'py>>(
    py: Python<'py>,
    all: Vec<nkv::Result<T>>,
    value: impl Fn(T) -> P,
) -> PyResult<Results<'py>> {
    let result = |done: nkv::Result<T>| match done {
        Ok(done) => value(done).into_bound_py_any(py),
        Err(error) => exception_of(py, &error).into_value(py).into_bound_py_any(py),
    };
    all.into_iter().map(result).collect()
}

/// Checks that there are as many of the others as keys.
fn alike(keys: usize, name: &str, others: usize) -> PyResult<()> {
    match keys == others {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("{keys} keys and {others} {name}"))),
    }
}

#[pymethods]
impl Cache {
    /// Stores many; `trailers`: what follows each.
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        data: Vec<Bound<'py, PyAny>>,
        trailers: Vec<Bound<'py, PyBytes>>,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "values", data.len())?;
        alike(keys.len(), "trailers", trailers.len())?;
        let (keys, data) = (arguments::keys(&keys)?, Memory::all(&data, false)?);
        let trailers: Vec<&[u8]> = trailers.iter().map(|bytes| bytes.as_bytes()).collect();
        let options = options(wanted);
        let done = self.handles.with(py, |handle| {
            let parts: Vec<[&[u8]; 2]> =
                data.iter().map(Memory::bytes).zip(trailers).map(<[_; 2]>::from).collect();
            let items: Vec<_> = keys.iter().copied().zip(parts.iter().map(|p| &p[..])).collect();
            Ok(handle.put_many_parts(&items, &options))
        })?;
        results(py, done, |()| None::<usize>)
    }

    /// Reads objects, each into a buffer.
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        data: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "buffers", data.len())?;
        let (keys, mut data) = (arguments::keys(&keys)?, Memory::all(&data, true)?);
        let done = self.handles.with(py, |handle| {
            let places = data.iter_mut().map(Memory::bytes_mut);
            let mut items: Vec<(&[u8], &mut [u8])> = keys.iter().copied().zip(places).collect();
            Ok(handle.get_many_into(&mut items))
        })?;
        results(py, done, |read| read)
    }

    /// Bytes of objects, each in a buffer of its own.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Results<'py>> {
        let keys = arguments::keys(&keys)?;
        let done = self.handles.with(py, |handle| Ok(handle.get_many(&keys)))?;
        results(py, done, Bytes::new)
    }

    /// Whether each key can be read.
    fn exists(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<bool>> {
        let keys = arguments::keys(&keys)?;
        let found = self.handles.with(py, |handle| handle.exists(&keys))?;
        Ok(found.into_iter().map(|found| found == Existence::Ready).collect())
    }

    /// Locations of the longest run of keys from the first one that can all be read.
    fn match_prefix(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Location>> {
        let keys = arguments::keys(&keys)?;
        let found = self.handles.with(py, |handle| handle.match_prefix(&keys))?;
        Ok(found.iter().map(location).collect())
    }

    fn remove_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Results<'py>> {
        let keys = arguments::keys(&keys)?;
        let done = self.handles.with(py, |handle| Ok(handle.remove_many(&keys)))?;
        results(py, done, |()| None::<usize>)
    }
}
