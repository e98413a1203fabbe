//! Memory of nkv in Python's hands. Both classes name an address and a length; `nkv.arrays` makes
//! memoryviews, arrays and tensors of it, which keep the object alive.

use nkv::ObjectView;
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
}

impl View {
    pub(crate) fn new(inner: ObjectView) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl View {
    /// Where it begins. Nobody may write there.
    #[getter]
    fn address(&self) -> usize {
        self.inner.as_ptr().expose_provenance()
    }

    /// The rank in whose memory it lies.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}
