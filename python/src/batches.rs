//! Batches: one request for each owner. A batch returns one result for each item, in order: a
//! value, or the exception that a single call would raise.

use crate::arguments;
use crate::buffers::Memory;
use crate::cache::{Cache, Wanted, options};
use crate::errors::exception_of;
use crate::memory::Bytes;
use crate::reports::{Location, locations, readable};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Values and exceptions.
pub(crate) type Results<'py> = Vec<Bound<'py, PyAny>>;

pub(crate) fn results<'py, T, P: IntoPyObject<'py>>(
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

fn parts_of(values: &[Vec<Bound<'_, PyAny>>], writable: bool) -> PyResult<Vec<Vec<Memory>>> {
    values.iter().map(|parts| Memory::all(parts, writable)).collect()
}

fn slices(parts: &mut [Memory]) -> Vec<&mut [u8]> {
    parts.iter_mut().map(Memory::bytes_mut).collect()
}

/// Memory at addresses, none of which may be 0.
fn parts_at(addresses: &[Vec<usize>], sizes: &[Vec<usize>]) -> PyResult<Vec<Vec<Memory>>> {
    alike(addresses.len(), "sizes", sizes.len())?;
    let parts = |(at, sizes): (&Vec<usize>, &Vec<usize>)| {
        alike(at.len(), "sizes", sizes.len())?;
        let memory = |(at, size): (&usize, &usize)| match at {
            0 => Err(PyValueError::new_err("address 0")),
            at => Memory::at(*at, *size),
        };
        at.iter().zip(sizes).map(memory).collect()
    };
    addresses.iter().zip(sizes).map(parts).collect()
}

#[pymethods]
impl Cache {
    /// Stores many; each value is a list of parts.
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        values: Vec<Vec<Bound<'py, PyAny>>>,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        self.put_all(py, &keys, &parts_of(&values, false)?, wanted)
    }

    /// The same, of values at addresses: those of its parts, and their sizes.
    fn put_many_at<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        addresses: Vec<Vec<usize>>,
        sizes: Vec<Vec<usize>>,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        self.put_all(py, &keys, &parts_at(&addresses, &sizes)?, wanted)
    }

    /// Reads objects, each into a list of buffers, one after another.
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        places: Vec<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<Results<'py>> {
        self.get_all(py, &keys, parts_of(&places, true)?)
    }

    /// The same, into places at addresses: those of its parts, and their sizes.
    fn get_many_at<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        addresses: Vec<Vec<usize>>,
        sizes: Vec<Vec<usize>>,
    ) -> PyResult<Results<'py>> {
        self.get_all(py, &keys, parts_at(&addresses, &sizes)?)
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
        Ok(readable(&found))
    }

    /// Locations of the longest run of keys from the first one that can all be read.
    fn match_prefix(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Location>> {
        let keys = arguments::keys(&keys)?;
        let found = self.handles.with(py, |handle| handle.match_prefix(&keys))?;
        Ok(locations(&found))
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

impl Cache {
    fn put_all<'py>(
        &self,
        py: Python<'py>,
        keys: &[Bound<'py, PyAny>],
        values: &[Vec<Memory>],
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "values", values.len())?;
        let (keys, options) = (arguments::keys(keys)?, options(wanted));
        let done = self.handles.with(py, |handle| {
            let parts: Vec<Vec<&[u8]>> =
                values.iter().map(|parts| parts.iter().map(Memory::bytes).collect()).collect();
            let items: Vec<_> = keys.iter().copied().zip(parts.iter().map(|p| &p[..])).collect();
            Ok(handle.put_many_parts(&items, &options))
        })?;
        results(py, done, |()| None::<usize>)
    }

    fn get_all<'py>(
        &self,
        py: Python<'py>,
        keys: &[Bound<'py, PyAny>],
        mut places: Vec<Vec<Memory>>,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "places", places.len())?;
        let keys = arguments::keys(keys)?;
        places.iter().try_for_each(|parts| Memory::check_apart(parts))?;
        let apart = Memory::apart(places.iter().flatten());
        let done = self.handles.with(py, |handle| {
            if !apart {
                // One after another: the last that is read into a place stays there.
                let mut read = Vec::new();
                for (key, parts) in keys.iter().zip(&mut places) {
                    read.push(handle.get_into_parts(key, &mut slices(parts)));
                }
                return Ok(read);
            }
            let mut parts: Vec<Vec<&mut [u8]>> =
                places.iter_mut().map(|parts| slices(parts)).collect();
            let mut items: Vec<_> =
                keys.iter().copied().zip(parts.iter_mut().map(|parts| &mut parts[..])).collect();
            Ok(handle.get_many_into_parts(&mut items))
        })?;
        results(py, done, |read| read)
    }
}
