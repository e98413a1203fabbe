//! Memory of Python's objects, used in place: objects with the buffer protocol, and addresses.
//! Nothing is copied here.

#![expect(unsafe_code, reason = "Python's memory is reached by raw pointers here")]

use crate::devices::{Tensor, is_device};
use nkv_store::fork::OwnProcessOnly;
use nkv_transport::TransportError;
use nkv_transport::fabric::{Fabric, RegisteredRange};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::NonNull;

/// `Py_buffer` of Python 3.10 and later: part of the stable ABI since 3.11, and the same in 3.10
/// (PEP 3118; Include/cpython/object.h).
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

const PYBUF_SIMPLE: c_int = 0;
const PYBUF_WRITABLE: c_int = 1;
const PYBUF_C_CONTIGUOUS: c_int = 0x20 | 0x10 | 0x08;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
}

/// Why memory of a GPU is refused.
const OF_HOST: &str = "memory of a GPU: this call takes memory of the host; copy it there first, \
                       such as by tensor.cpu()";

/// Memory of a Python object, which neither moves nor ends while this lives.
pub(crate) struct Memory {
    at: *mut u8,
    len: usize,
    /// The export of the buffer protocol; None for memory that is named by its address.
    export: Option<Box<RawBuffer>>,
}

// SAFETY: only an address and a length are used without the interpreter; the export is released
// with it, in `drop`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// What Python gives: an address and a size, as a tuple, or an object with the buffer protocol.
    pub(crate) fn given(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Memory> {
        match object.cast::<PyTuple>() {
            Ok(pair) => {
                let (address, size) = pair.extract()?;
                if is_device(address) {
                    return Err(PyTypeError::new_err(OF_HOST));
                }
                Memory::at(address, size)
            }
            Err(_) if object.is_instance_of::<Tensor>() => Err(PyTypeError::new_err(OF_HOST)),
            Err(_) => Memory::of(object, writable),
        }
    }

    /// The same for many.
    pub(crate) fn all(objects: &[Bound<'_, PyAny>], writable: bool) -> PyResult<Vec<Memory>> {
        objects.iter().map(|object| Memory::given(object, writable)).collect()
    }

    /// Whether no two of these places overlap: then all may be written at a time.
    pub(crate) fn apart<'a>(all: impl Iterator<Item = &'a Memory>) -> bool {
        let mut ranges: Vec<_> =
            all.filter(|m| m.len > 0).map(|m| (m.at.addr(), m.at.addr() + m.len)).collect();
        ranges.sort_unstable();
        ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }

    /// The bytes of an object with the buffer protocol, which must be contiguous.
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Memory> {
        // SAFETY: a valid object, with the interpreter attached.
        if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Err(PyTypeError::new_err(format!(
                "{} has no buffer: give bytes, a numpy array, a tensor, or anything with the \
                 buffer protocol, DLPack or __array_interface__",
                object.get_type().name()?
            )));
        }
        let flags = if writable { PYBUF_WRITABLE } else { PYBUF_SIMPLE } | PYBUF_C_CONTIGUOUS;
        let mut export = Box::new(RawBuffer {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: `export` is a valid place that does not move (a box) until it is released.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *export, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let (at, len) = (export.buf.cast::<u8>(), usize::try_from(export.len)?);
        Ok(Memory { at, len, export: Some(export) })
    }

    /// Memory at an address, which the caller keeps alive and, if `dst`, writes to by nobody else.
    pub(crate) fn at(address: usize, len: usize) -> PyResult<Memory> {
        if address == 0 && len > 0 {
            return Err(PyValueError::new_err(format!("{len} bytes at address 0")));
        }
        if isize::try_from(len).is_err() || address.checked_add(len).is_none() {
            return Err(PyValueError::new_err(format!("{len} bytes at address {address:#x}")));
        }
        Ok(Memory { at: std::ptr::with_exposed_provenance_mut(address), len, export: None })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `len` bytes that the exporter, or the caller of `at`, keeps alive. Another thread
        // that writes there meanwhile is the Python program's race: then any bytes are stored.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as above, exported as writable.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

/// Memory registered with the RDMA devices, until this is dropped.
#[pyclass(frozen)]
pub(crate) struct Registered {
    // Declared first: the registration ends before the memory may.
    _range: OwnProcessOnly<RegisteredRange>,
    _memory: Memory,
}

impl Registered {
    /// Registers memory with all devices of a handle.
    pub(crate) fn new(fabric: &dyn Fabric, memory: Memory) -> Result<Self, TransportError> {
        let at = NonNull::new(memory.at).unwrap_or(NonNull::dangling());
        // SAFETY: mapped as long as its exporter, or the caller of `at`, keeps it; `self` keeps the
        // export for longer than the registration.
        let range = unsafe { fabric.register_range(at, memory.len) }?;
        Ok(Self { _range: OwnProcessOnly::new(range), _memory: memory })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(mut export) = self.export.take() {
            Python::attach(|_| {
                // SAFETY: exported once by `of`, and released once.
                unsafe { PyBuffer_Release(&raw mut *export) };
            });
        }
    }
}
