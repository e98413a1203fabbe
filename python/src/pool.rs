//! The memory of a rank as a pool of worker processes: places to write, and objects in place.

use crate::arguments;
use crate::batches::{Results, results};
use crate::errors::of_kind;
use crate::handles::Handles;
use nkv::{ErrorKind, PoolInfo, ReadSlot, ShmPool, StoreSlot};
use nkv_store::fork::{self, ProcessMark};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// A slot in memory that this process maps: to write until its commit, or to read.
#[pyclass(frozen)]
pub(crate) struct Slot {
    inner: Given,
    made: ProcessMark,
}

enum Given {
    Store(StoreSlot),
    Read(ReadSlot),
}

impl Slot {
    fn new(inner: Given) -> Self {
        Self { inner, made: ProcessMark::here() }
    }

    /// A child made by fork has no such memory.
    fn here(&self, py: Python<'_>) -> PyResult<()> {
        match self.made.is_here() {
            true => Ok(()),
            false => Err(of_kind(py, ErrorKind::Disconnected, fork::MESSAGE)),
        }
    }
}

#[pymethods]
impl Slot {
    /// Where it begins in this process.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        self.here(py)?;
        Ok(match &self.inner {
            Given::Store(slot) => slot.address() as usize,
            Given::Read(slot) => slot.bytes().as_ptr().expose_provenance(),
        })
    }

    /// File in /dev/shm, and offset there.
    #[getter]
    fn place(&self) -> (String, u64) {
        match &self.inner {
            Given::Store(slot) => (slot.shm_name.to_string(), slot.offset),
            Given::Read(slot) => (slot.shm_name.to_string(), slot.offset),
        }
    }

    #[getter]
    fn key(&self) -> Vec<u8> {
        match &self.inner {
            Given::Store(slot) => slot.key.clone(),
            Given::Read(slot) => slot.key.clone(),
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.here(py)?;
        Ok(match &self.inner {
            Given::Store(slot) => slot.len as usize,
            Given::Read(slot) => slot.bytes().len(),
        })
    }
}

/// An attachment to a rank's memory.
#[pyclass(frozen)]
pub(crate) struct Pool {
    pool: ShmPool,
    handles: Arc<Handles>,
    made: ProcessMark,
}

impl Pool {
    pub(crate) fn new(pool: ShmPool, handles: Arc<Handles>) -> Self {
        Self { pool, handles, made: ProcessMark::here() }
    }

    /// The pool; a child made by fork has none.
    fn here(&self, py: Python<'_>) -> PyResult<&ShmPool> {
        match self.made.is_here() {
            true => Ok(&self.pool),
            false => Err(of_kind(py, ErrorKind::Disconnected, fork::MESSAGE)),
        }
    }

    fn attached(&self, py: Python<'_>) -> PyResult<PoolInfo> {
        let info = self.here(py)?.info();
        info.ok_or_else(|| of_kind(py, ErrorKind::Disconnected, "the pool is not attached"))
    }
}

#[pymethods]
impl Pool {
    /// Rank, file in /dev/shm, bytes, bytes for slots to write, incarnation.
    fn info(&self, py: Python<'_>) -> PyResult<(u32, String, u64, u64, u64)> {
        let i = self.attached(py)?;
        Ok((i.rank, i.shm_name, i.bytes, i.store_bytes, i.incarnation))
    }

    /// Whether the rank's log leaves slots to write little room.
    fn has_little_room(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.attached(py)?.has_little_room())
    }

    /// Places of so many bytes for keys.
    fn prepare_store(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        bytes: u64,
    ) -> PyResult<Vec<Slot>> {
        let keys = arguments::keys(&keys)?;
        let slots =
            self.handles.with(py, |handle| handle.prepare_store(&self.pool, &keys, bytes))?;
        Ok(slots.into_iter().map(|slot| Slot::new(Given::Store(slot))).collect())
    }

    /// For each None, or its error.
    fn commit_store<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Results<'py>> {
        let keys = arguments::keys(&keys)?;
        let done = self.handles.with(py, |handle| Ok(handle.commit_store(&self.pool, &keys)))?;
        results(py, done, |()| py.None())
    }

    fn abort_store(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let keys = arguments::keys(&keys)?;
        let pool = self.here(py)?;
        py.detach(|| pool.abort_store(&keys));
        Ok(())
    }

    /// All objects, or None.
    fn prepare_retrieve(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Option<Vec<Slot>>> {
        let keys = arguments::keys(&keys)?;
        let slots = self.handles.with(py, |handle| handle.prepare_retrieve(&self.pool, &keys))?;
        let slot = |slot| Slot::new(Given::Read(slot));
        Ok(slots.map(|slots| slots.into_iter().map(slot).collect()))
    }

    /// How many of them had been given.
    fn finish_read(&self, py: Python<'_>, keys: Vec<Bound<'_, PyAny>>) -> PyResult<usize> {
        let keys = arguments::keys(&keys)?;
        let pool = self.here(py)?;
        Ok(py.detach(|| pool.finish_read(&keys)))
    }

    /// These slots, and no others of their keys.
    fn finish_slots(&self, py: Python<'_>, slots: Vec<PyRef<'_, Slot>>) -> PyResult<usize> {
        let read = |slot: &PyRef<'_, Slot>| match &slot.inner {
            Given::Read(slot) => Some(slot.clone()),
            Given::Store(_) => None,
        };
        let slots: Vec<ReadSlot> = slots.iter().filter_map(read).collect();
        let pool = self.here(py)?;
        Ok(py.detach(|| pool.finish_slots(&slots)))
    }

    /// Slots to write and to read that were given and are not ended.
    fn outstanding(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        Ok(self.here(py)?.outstanding())
    }

    fn figures(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        Ok(self.here(py)?.figures().all().into_iter().collect())
    }
}
