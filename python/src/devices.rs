//! Memory of Python's objects that is in a GPU: tensors, and ranges of addresses that an engine has
//! registered.

use crate::buffers::Memory;
use crate::errors::of_kind;
use nkv::ErrorKind;
use nkv_gpu::driver::{Driver, DriverError};
use nkv_gpu::vram::{Span, TensorDevices, TensorMemory};
use nkv_store::Memory as _;
use nkv_store::memory::DeviceMemory as _;
use nkv_store::op::{DeviceBuffer, Fill as _, Source, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// `CU_STREAM_LEGACY`: what names no stream was written on it, or on a blocking one.
const LEGACY_STREAM: u64 = 1;

/// Registered ranges that are in a GPU: first byte, length, and how often.
static RANGES: RwLock<Vec<(usize, usize, usize)>> = RwLock::new(Vec::new());
/// There was one: most processes have none, and do not look.
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
        match py.detach(|| tensor(spans, stream)) {
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

/// The number of the GPU that has the memory at an address.
#[pyfunction]
pub(crate) fn device_of(py: Python<'_>, address: u64) -> PyResult<u32> {
    let found = py.detach(|| TensorDevices::of_process()?.device_of(address));
    found.map_err(|error| failed(py, &error))
}

/// Registers a range of addresses if it is in a GPU, until it is unregistered as often; returns
/// whether it is. A process that uses no GPU does not begin to.
#[pyfunction]
pub(crate) fn register_device(py: Python<'_>, address: usize, size: usize) -> PyResult<bool> {
    if size == 0 || address.checked_add(size).is_none() || !Driver::is_in_use() {
        return Ok(false);
    }
    let found = py.detach(|| TensorDevices::of_process()?.device_of(address as u64));
    match found {
        Ok(_) => {}
        Err(DriverError::Invalid(_)) => return Ok(false),
        Err(error) => return Err(failed(py, &error)),
    }
    let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
    match ranges.iter_mut().find(|known| (known.0, known.1) == (address, size)) {
        Some(known) => known.2 += 1,
        None => ranges.push((address, size, 1)),
    }
    ANY.store(true, Ordering::Relaxed);
    Ok(true)
}

/// Takes one registration back.
#[pyfunction]
pub(crate) fn unregister_device(address: usize, size: usize) {
    let mut ranges = RANGES.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = ranges.iter_mut().find(|known| (known.0, known.1) == (address, size)) {
        known.2 -= 1;
    }
    ranges.retain(|(.., times)| *times > 0);
}

/// Bytes from an address to the end of the registered range of a GPU that it is in. None: in none.
fn room_at(address: usize) -> Option<usize> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let ranges = RANGES.read().unwrap_or_else(PoisonError::into_inner);
    let within = |(start, size, _): &(usize, usize, usize)| {
        address.checked_sub(*start).filter(|at| at < size).map(|at| size - at)
    };
    ranges.iter().filter_map(within).max()
}

/// Whether an address is in a registered range of a GPU.
pub(crate) fn is_device(address: usize) -> bool {
    room_at(address).is_some()
}

/// Copies bytes of the host to an address of it or of a registered range of a GPU.
#[pyfunction]
pub(crate) fn copy_to(py: Python<'_>, into: usize, from: usize, size: usize) -> PyResult<()> {
    let (mut into, from) = (Part::at(py, into, size)?, Memory::at(from, size)?);
    py.detach(|| into.target().fill(from.bytes()))
        .map_err(|error| of_kind(py, ErrorKind::Internal, &error.to_string()))
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
        match room_at(address) {
            None => Memory::at(address, size).map(Part::Host),
            Some(_) => Part::device(py, &[(address, size)]),
        }
    }

    /// Ranges of addresses that are in registered ranges of a GPU, as one part.
    fn device(py: Python<'_>, places: &[(usize, usize)]) -> PyResult<Part> {
        if let Some((at, size)) = places.iter().find(|(at, size)| room_at(*at) < Some(*size)) {
            return Err(PyValueError::new_err(format!(
                "{size} bytes at address {at:#x} exceed the registered range of a GPU"
            )));
        }
        let spans = places.iter().map(|(address, size)| (*address as u64, *size)).collect();
        let memory = py.detach(|| tensor(spans, Some(LEGACY_STREAM)));
        memory.map(|memory| Part::Device(Arc::new(memory))).map_err(|error| failed(py, &error))
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
                parts.push(Part::device(py, some)?);
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

    /// Returns once it may be read and written: what is in its stream is over.
    pub(crate) async fn settled(&self) -> nkv::Result<()> {
        let Part::Device(memory) = self else { return Ok(()) };
        let memory = memory.clone();
        let waited = tokio::task::spawn_blocking(move || memory.wait()).await;
        Ok(waited.map_err(|e| nkv::Error::new(ErrorKind::Internal, e.to_string()))??)
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
