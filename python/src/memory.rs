//! Memory of nkv in Python's hands. Both classes name an address and a length; `nkv.arrays` makes
//! memoryviews, arrays and tensors of it, which keep the object alive.

use crate::errors::of_kind;
use nkv::{DeviceView, ErrorKind, ObjectView};
use nkv_store::fork::{self, ProcessMark};
use pyo3::prelude::*;

/// An object's bytes in a buffer of their own.
#[pyclass(frozen)]
pub(crate) struct Bytes {
    /// Unique: nobody else has a clone of it.
    inner: nkv::Bytes,
}

impl Bytes {
    pub(crate) fn new(inner: nkv::Bytes) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Bytes {
    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.inner.as_ptr().expose_provenance()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}

/// An object in its owner's memory. Its bytes do not change while this lives.
#[pyclass(frozen)]
pub(crate) struct View {
    inner: ObjectView,
    made: ProcessMark,
}

impl View {
    pub(crate) fn new(inner: ObjectView) -> Self {
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
impl View {
    /// Where it begins. Nobody may write there.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        self.here(py)?;
        Ok(self.inner.as_ptr().expose_provenance())
    }

    /// The rank in whose memory it lies.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.here(py)?;
        Ok(self.inner.len())
    }
}

/// An object in its owner's memory, which is in a GPU. Its bytes do not change while this lives.
#[pyclass(frozen)]
pub(crate) struct ViewInDevice {
    inner: DeviceView,
}

impl ViewInDevice {
    pub(crate) fn new(inner: DeviceView) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl ViewInDevice {
    /// Where it begins, in the GPU. Nobody may write there.
    #[getter]
    fn address(&self) -> u64 {
        self.inner.address()
    }

    /// The rank in whose memory it lies.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn __len__(&self) -> usize {
        self.inner.bytes() as usize
    }
}
