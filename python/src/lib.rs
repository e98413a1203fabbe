//! `nkv._nkv`, the native part of the Python package: a rank in the interpreter's process or a
//! handle of a running cluster, and bytes that move between them and Python's buffers. Tensors,
//! shapes and the names of the public API are in `python/nkv`.

mod arguments;
mod batches;
mod buffers;
mod cache;
mod devices;
mod digest;
mod errors;
mod handles;
mod kernel_access;
mod memory;
mod plan;
mod pool;
mod reports;
mod tasks;

use pyo3::prelude::*;

/// The native part of nkv.
#[pymodule]
mod _nkv {
    #[pymodule_export]
    use crate::buffers::Registered;
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::devices::{Tensor, copy_to, device_of, register_device, unregister_device};
    #[pymodule_export]
    use crate::digest::{seal, unseal};
    #[pymodule_export]
    use crate::memory::{Bytes, View, ViewInDevice};
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::pool::{Pool, Slot};
    #[pymodule_export]
    use crate::tasks::Task;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
