//! Batches: one request for each owner. A batch returns one result for each item, in order: a
//! value, or the exception that a single call would raise.

use crate::arguments;
use crate::cache::{Cache, Wanted, options};
use crate::devices::Part;
use crate::errors::exception_of;
use crate::memory::Bytes;
use crate::reports::{Location, locations, readable};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PySequence;

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

/// The values of a batch, or the places for them: the parts of each one, behind those of the last.
struct Parts {
    all: Vec<Part>,
    /// Where the parts of each end.
    ends: Vec<usize>,
}

impl Parts {
    fn given(values: &[Vec<Bound<'_, PyAny>>], writable: bool) -> PyResult<Parts> {
        let mut parts = Parts { all: Vec::with_capacity(values.len()), ends: Vec::new() };
        for value in values {
            for part in value {
                parts.all.push(Part::given(part, writable)?);
            }
            parts.ends.push(parts.all.len());
        }
        Ok(parts)
    }

    /// The parts of each value.
    fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start..*end)
    }

    /// Memory at addresses, none of which may be 0.
    fn at(py: Python<'_>, addresses: Numbers, sizes: Numbers) -> PyResult<Parts> {
        match (addresses, sizes) {
            (Numbers::One(addresses), Numbers::One(sizes)) => {
                let all = places(&addresses, &sizes)?.into_iter();
                let all =
                    all.map(|(at, size)| Part::at(py, at, size)).collect::<PyResult<Vec<_>>>()?;
                Ok(Parts { ends: (1..=all.len()).collect(), all })
            }
            (addresses, sizes) => Parts::of_lists(py, &addresses.lists(), &sizes.lists()),
        }
    }

    fn of_lists(py: Python<'_>, addresses: &[Vec<usize>], sizes: &[Vec<usize>]) -> PyResult<Parts> {
        alike(addresses.len(), "sizes", sizes.len())?;
        let mut parts = Parts { all: Vec::new(), ends: Vec::new() };
        for (addresses, sizes) in addresses.iter().zip(sizes) {
            parts.all.extend(Part::list(py, &places(addresses, sizes)?)?);
            parts.ends.push(parts.all.len());
        }
        Ok(parts)
    }
}

/// Addresses, none of which may be 0, with their sizes.
fn places(addresses: &[usize], sizes: &[usize]) -> PyResult<Vec<(usize, usize)>> {
    alike(addresses.len(), "sizes", sizes.len())?;
    match addresses.contains(&0) {
        true => Err(PyValueError::new_err("address 0")),
        false => Ok(addresses.iter().copied().zip(sizes.iter().copied()).collect()),
    }
}

/// Cuts a slice at `ends`, which ascend to its end.
fn cut<'a, T>(mut rest: &'a mut [T], ends: &'a [usize]) -> impl Iterator<Item = &'a mut [T]> {
    let mut start = 0;
    ends.iter().map(move |end| {
        let (some, further) = std::mem::take(&mut rest).split_at_mut(end - start);
        (rest, start) = (further, *end);
        some
    })
}

/// Addresses or sizes: one for each value, or a list for each.
enum Numbers {
    One(Vec<usize>),
    Lists(Vec<Vec<usize>>),
}

impl Numbers {
    /// The first decides which, so that an error is that of one kind.
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        let is_list = match given.try_iter()?.next() {
            Some(first) => first?.cast::<PySequence>().is_ok(),
            None => false,
        };
        match is_list {
            true => Ok(Numbers::Lists(given.extract()?)),
            false => Ok(Numbers::One(given.extract()?)),
        }
    }

    fn lists(self) -> Vec<Vec<usize>> {
        match self {
            Numbers::One(numbers) => numbers.into_iter().map(|number| vec![number]).collect(),
            Numbers::Lists(lists) => lists,
        }
    }
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
        self.put_all(py, &keys, &Parts::given(&values, false)?, wanted)
    }

    /// The same; for each how many replicas were made.
    fn put_replicas<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        values: Vec<Vec<Bound<'py, PyAny>>>,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        let parts = Parts::given(&values, false)?;
        alike(keys.len(), "values", parts.ends.len())?;
        let keys = arguments::keys(&keys)?;
        let options = options(py, wanted, &keys)?;
        let done = self.handles.with(py, |handle| {
            let joined = parts.ranges().map(|range| {
                let mut whole = Vec::new();
                parts.all[range]
                    .iter()
                    .map(Part::source)
                    .try_for_each(|part| part.append_to(&mut whole))?;
                Ok(whole)
            });
            let wholes = joined.collect::<nkv::Result<Vec<_>>>()?;
            let items: Vec<_> =
                keys.iter().copied().zip(wholes.iter().map(Vec::as_slice)).collect();
            Ok(handle.put_replicas(&items, &options))
        })?;
        results(py, done, |made| made as usize)
    }

    /// The same, of values at addresses: those of its parts, and their sizes.
    fn put_many_at<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        addresses: Bound<'py, PyAny>,
        sizes: Bound<'py, PyAny>,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        self.put_all(
            py,
            &keys,
            &Parts::at(py, Numbers::of(&addresses)?, Numbers::of(&sizes)?)?,
            wanted,
        )
    }

    /// Reads objects, each into a list of buffers, one after another.
    fn get_many_into<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        places: Vec<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<Results<'py>> {
        self.get_all(py, &keys, Parts::given(&places, true)?)
    }

    /// The same, into places at addresses: those of its parts, and their sizes.
    fn get_many_at<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        addresses: Bound<'py, PyAny>,
        sizes: Bound<'py, PyAny>,
    ) -> PyResult<Results<'py>> {
        self.get_all(py, &keys, Parts::at(py, Numbers::of(&addresses)?, Numbers::of(&sizes)?)?)
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

    /// Whether each key can be read. With `prefetch`, what only a disk has is brought into memory;
    /// with `wait` too, before the answer.
    #[pyo3(signature = (keys, prefetch = false, wait = false))]
    fn exists(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        prefetch: bool,
        wait: bool,
    ) -> PyResult<Vec<bool>> {
        let keys = arguments::keys(&keys)?;
        let prefetch = arguments::prefetch(py, prefetch, wait)?;
        let found = self.handles.with(py, |handle| match prefetch {
            Some(wait) => handle.prefetch(&keys, wait),
            None => handle.exists(&keys),
        });
        Ok(readable(&found?))
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
        values: &Parts,
        wanted: Wanted,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "values", values.ends.len())?;
        let keys = arguments::keys(keys)?;
        let options = options(py, wanted, &keys)?;
        let done = self.handles.with(py, |handle| {
            let keyed = keys.iter().copied().zip(values.ranges());
            if let Some(parts) = Part::hosts(&values.all) {
                let items: Vec<_> = keyed.map(|(key, range)| (key, &parts[range])).collect();
                return Ok(handle.put_many_parts(&items, &options));
            }
            let parts: Vec<_> = values.all.iter().map(Part::source).collect();
            let items: Vec<_> = keyed.map(|(key, range)| (key, &parts[range])).collect();
            Ok(handle.put_many_sources(&items, &options))
        })?;
        results(py, done, |()| None::<usize>)
    }

    fn get_all<'py>(
        &self,
        py: Python<'py>,
        keys: &[Bound<'py, PyAny>],
        mut places: Parts,
    ) -> PyResult<Results<'py>> {
        alike(keys.len(), "places", places.ends.len())?;
        let keys = arguments::keys(keys)?;
        let Parts { all, ends } = &mut places;
        let apart = Part::apart(all.iter());
        if !apart {
            cut(all, ends).try_for_each(|parts| Part::check_apart(parts))?;
        }
        let done = self.handles.with(py, |handle| {
            let mut parts: Vec<_> = all.iter_mut().map(Part::target).collect();
            let of_each = keys.iter().copied().zip(cut(&mut parts, ends));
            if !apart {
                // One after another: the last that is read into a place stays there.
                return Ok(of_each.map(|(key, parts)| handle.get_into_parts(key, parts)).collect());
            }
            let mut items: Vec<_> = of_each.collect();
            Ok(handle.get_many_into_parts(&mut items))
        })?;
        results(py, done, |read| read)
    }
}
