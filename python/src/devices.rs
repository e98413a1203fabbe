//! Memory of Python's objects that is in a GPU: tensors, and ranges of addresses that an engine has
//! registered.

use crate::buffers::Memory;
use crate::errors::of_kind;
use nkv::ErrorKind;
use nkv_gpu::driver::DriverError;
use nkv_gpu::vram::{Span, TensorDevices, TensorMemory};
use nkv_store::Memory as _;
use nkv_store::op::{DeviceBuffer, Source, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// `CU_STREAM_LEGACY`: what names no stream was written on it, or on one that it waits for.
const LEGACY_STREAM: u64 = 1;

/// Registered ranges that are in a GPU: first byte and length.
static RANGES: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());
/// There is one: most processes have none, and do not look.
static ANY: AtomicBool = AtomicBool::new(false);

/// Ranges of a GPU's memory, one after another, as the place of a value.
#[pyclass(frozen)]
pub(crate) struct Tensor {
    memory: Arc<TensorMemory>,
}

fn failed(py: Python<'_>, error: &DriverError) -> PyErr {
    of_kind(py, ErrorKind::Unsupported, &error.to_string())
}

fn tensor(spans: Vec<(u64, usize)>, stream: Option<u64>) -> Result<TensorMemory, DriverError> {
    let spans =
        spans.into_iter().map(|(address, bytes)| Span { address, bytes: bytes as u64 }).collect();
    TensorDevices::of_process()?.tensor(spans, stream)
}

#[pymethods]
impl Tensor {
    /// Of addresses and sizes. Copies wait for what is in `stream` (a handle of CUDA; 1: the legacy
    /// default stream). None: nothing is in progress.
    #[new]
    fn new(py: Python<'_>, spans: Vec<(u64, usize)>, stream: Option<u64>) -> PyResult<Self> {
        match tensor(spans, stream) {
            Ok(memory) => Ok(Self { memory: Arc::new(memory) }),
            Err(error) => Err(failed(py, &error)),
        }
    }

    fn __len__(&self) -> usize {
        self.memory.len() as usize
    }

    /// Some of its bytes, on the host.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut read = vec![0; bytes];
        py.detach(|| self.memory.read(offset, &mut read))
            .map_err(|error| of_kind(py, ErrorKind::Unsupported, &error.to_string()))?;
        Ok(PyBytes::new(py, &read))
    }
}

/// Registers a range of addresses if it is in a GPU, until it is unregistered; returns whether it
/// is.
#[pyfunction]
pub(crate) fn register_device(address: usize, size: usize) -> PyResult<bool> {
    if address.checked_add(size).is_none() {
        return Err(PyValueError::new_err(format!("{size} bytes at address {address:#x}")));
    }
    let is_there = |at: usize| {
        TensorDevices::of_process().is_ok_and(|devices| devices.device_of(at as u64).is_ok())
    };
    if size == 0 || !is_there(address) || !is_there(address + size - 1) {
        return Ok(false);
    }
    let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
    if !ranges.contains(&(address, size)) {
        ranges.push((address, size));
    }
    ANY.store(true, Ordering::Relaxed);
    Ok(true)
}

/// Forgets the ranges that begin at an address.
#[pyfunction]
pub(crate) fn unregister_device(address: usize) {
    let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
    ranges.retain(|(start, _)| *start != address);
}

/// Whether an address is in a registered range of a GPU.
pub(crate) fn is_device(address: usize) -> bool {
    ANY.load(Ordering::Relaxed) && {
        let ranges = RANGES.read().unwrap_or_else(PoisonError::into_inner);
        ranges.iter().any(|(start, size)| (*start..start + size).contains(&address))
    }
}

/// A part of a value, or of the place for one.
pub(crate) enum Part {
    Host(Memory),
    Device(Arc<TensorMemory>),
}

impl Part {
    /// What Python gives: an address and a size, as a tuple, a [`Tensor`], or an object with the
    /// buffer protocol.
    pub(crate) fn given(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Part> {
        if let Ok(pair) = object.cast::<PyTuple>() {
            let (address, size) = pair.extract()?;
            return Part::at(object.py(), address, size);
        }
        match object.cast::<Tensor>() {
            Ok(tensor) => Ok(Part::Device(tensor.get().memory.clone())),
            Err(_) => Memory::given(object, writable).map(Part::Host),
        }
    }

    /// The same for many.
    pub(crate) fn all(objects: &[Bound<'_, PyAny>], writable: bool) -> PyResult<Vec<Part>> {
        objects.iter().map(|object| Part::given(object, writable)).collect()
    }

    /// Memory at an address, as [`Memory::at`].
    pub(crate) fn at(py: Python<'_>, address: usize, size: usize) -> PyResult<Part> {
        if !is_device(address) {
            return Memory::at(address, size).map(Part::Host);
        }
        let spans = vec![(address as u64, size)];
        let memory = tensor(spans, Some(LEGACY_STREAM)).map_err(|error| failed(py, &error))?;
        Ok(Part::Device(Arc::new(memory)))
    }

    /// Memory at addresses, one part after another. Parts in a GPU that follow one another are one.
    pub(crate) fn list(py: Python<'_>, places: &[(usize, usize)]) -> PyResult<Vec<Part>> {
        let mut parts = Vec::with_capacity(places.len());
        let mut rest = places;
        while let [(address, size), later @ ..] = rest {
            let together = rest.iter().take_while(|(address, _)| is_device(*address)).count();
            if together < 2 {
                parts.push(Part::at(py, *address, *size)?);
                rest = later;
            } else {
                let (some, later) = rest.split_at(together);
                let spans = some.iter().map(|(address, size)| (*address as u64, *size)).collect();
                let memory = tensor(spans, Some(LEGACY_STREAM)).map_err(|e| failed(py, &e))?;
                parts.push(Part::Device(Arc::new(memory)));
                rest = later;
            }
        }
        Ok(parts)
    }

    /// The bytes, if the host has them.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        match self {
            Part::Host(memory) => Some(memory.bytes()),
            Part::Device(_) => None,
        }
    }

    /// Those of all parts, if the host has them all.
    pub(crate) fn hosts(all: &[Part]) -> Option<Vec<&[u8]>> {
        all.iter().map(Part::host).collect()
    }

    /// As what a put takes.
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Part::Host(memory) => Source::Host(memory.bytes()),
            Part::Device(memory) => Source::Device(DeviceBuffer::all(&**memory)),
        }
    }

    /// As what a get fills.
    pub(crate) fn target(&mut self) -> Target<'_> {
        match self {
            Part::Host(memory) => Target::Host(memory.bytes_mut()),
            Part::Device(memory) => Target::Device(DeviceBuffer::all(&**memory)),
        }
    }

    /// Whether no two places of the host overlap: then all may be written at a time.
    pub(crate) fn apart<'a>(all: impl Iterator<Item = &'a Part>) -> bool {
        Memory::apart(all.filter_map(|part| match part {
            Part::Host(memory) => Some(memory),
            Part::Device(_) => None,
        }))
    }

    /// Refuses parts of one place that overlap.
    pub(crate) fn check_apart(parts: &[Part]) -> PyResult<()> {
        match Part::apart(parts.iter()) {
            true => Ok(()),
            false => Err(PyValueError::new_err("the parts to read an object into overlap")),
        }
    }
}
