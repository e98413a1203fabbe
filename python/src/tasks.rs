//! Calls that run beside the interpreter: what `nkv.aio` awaits. One runtime for the process, with
//! two threads; a call has none of its own.

use crate::arguments;
use crate::buffers::Memory;
use crate::cache::{Cache, SIGNALS, Wanted, duration, options};
use crate::errors::{exception_of, of_kind};
use crate::memory::Bytes;
use crate::reports::location;
use nkv::ErrorKind;
use nkv::message::Existence;
use nkv_store::fork::OwnProcessOnly;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

/// Threads that run calls.
const THREADS: usize = 2;

/// The runtime of this process.
static RUNTIME: OnceLock<OwnProcessOnly<Runtime>> = OnceLock::new();

fn runtime() -> PyResult<&'static Runtime> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("nkv-async")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| OwnProcessOnly::new(made)))
}

/// Waits for a call that may take long. A signal ends it.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let mut task = runtime()?.spawn(work);
    loop {
        let waited = py.detach(|| {
            runtime().map(|r| r.block_on(async { tokio::time::timeout(SIGNALS, &mut task).await }))
        })?;
        match waited {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => {
                return Err(of_kind(py, ErrorKind::Internal, &format!("a call ended: {error}")));
            }
            Err(_) => py.check_signals().inspect_err(|_| task.abort())?,
        }
    }
}

/// A call in progress.
#[pyclass(frozen)]
pub(crate) struct Task(AbortHandle);

#[pymethods]
impl Task {
    /// Gives the call up. What it did so far stands: a put is whole or absent.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// A function to call with the result.
type Done<'py> = Bound<'py, PyAny>;

/// Runs `work`, then calls `done` with its value, or its exception. `kept` lives as long as it.
fn spawn<T: Send + 'static>(
    done: &Done<'_>,
    kept: Option<Py<PyAny>>,
    work: impl Future<Output = nkv::Result<T>> + Send + 'static,
    value: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Task> {
    if !done.is_callable() {
        return Err(PyTypeError::new_err("done is no function"));
    }
    let done = done.clone().unbind();
    let task = runtime()?.spawn(async move {
        // Dropped last, also if the task is aborted: its memory is in use until then.
        let _kept = kept;
        let result = work.await;
        Python::attach(|py| {
            let result = match result {
                Ok(found) => value(py, found),
                Err(error) => Err(exception_of(py, &error)),
            };
            let result = result.or_else(|error| error.into_value(py).into_py_any(py));
            if let Err(error) = result.and_then(|result| done.call1(py, (result,))) {
                // The loop is closed: nobody waits.
                error.write_unraisable(py, None);
            }
        });
    });
    Ok(Task(task.abort_handle()))
}

#[pymethods]
impl Cache {
    fn start_put(
        &self,
        key: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        kept: Py<PyAny>,
        trailer: Vec<u8>,
        wanted: Wanted,
        done: &Done<'_>,
    ) -> PyResult<Task> {
        let (key, data) = (arguments::key(key)?.to_vec(), Memory::given(data, false)?);
        let (client, options) = (self.beside().clone(), options(wanted));
        let work = async move {
            match &trailer[..] {
                [] => client.put(&key, data.bytes(), &options).await,
                trailer => client.put_parts(&key, &[data.bytes(), trailer], &options).await,
            }
        };
        spawn(done, Some(kept), work, |py, ()| Ok(py.None()))
    }

    fn start_get(&self, key: &Bound<'_, PyAny>, done: &Done<'_>) -> PyResult<Task> {
        let (key, client) = (arguments::key(key)?.to_vec(), self.beside().clone());
        let work = async move { client.get(&key).await };
        spawn(done, None, work, |py, found| Bytes::new(found).into_py_any(py))
    }

    fn start_get_into(
        &self,
        key: &Bound<'_, PyAny>,
        parts: Vec<Bound<'_, PyAny>>,
        kept: Py<PyAny>,
        done: &Done<'_>,
    ) -> PyResult<Task> {
        let (key, mut memory) = (arguments::key(key)?.to_vec(), Memory::all(&parts, true)?);
        let client = self.beside().clone();
        let work = async move {
            let mut parts: Vec<&mut [u8]> = memory.iter_mut().map(Memory::bytes_mut).collect();
            client.get_into_parts(&key, &mut parts).await
        };
        spawn(done, Some(kept), work, |py, read| read.into_py_any(py))
    }

    fn start_get_when_ready(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        seconds: f64,
        done: &Done<'_>,
    ) -> PyResult<Task> {
        let limit: Duration = duration(py, seconds)?;
        let (key, client) = (arguments::key(key)?.to_vec(), self.beside().clone());
        let work = async move { client.get_when_ready(&key, limit).await };
        spawn(done, None, work, |py, found| Bytes::new(found).into_py_any(py))
    }

    fn start_exists(&self, keys: Vec<Bound<'_, PyAny>>, done: &Done<'_>) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let work = async move { client.exists(&borrowed(&keys)).await };
        spawn(done, None, work, |py, found| {
            let found: Vec<bool> = found.into_iter().map(|e| e == Existence::Ready).collect();
            found.into_py_any(py)
        })
    }

    fn start_match_prefix(&self, keys: Vec<Bound<'_, PyAny>>, done: &Done<'_>) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let work = async move { client.match_prefix(&borrowed(&keys)).await };
        spawn(done, None, work, |py, found| {
            found.iter().map(location).collect::<Vec<_>>().into_py_any(py)
        })
    }

    fn start_get_many(&self, keys: Vec<Bound<'_, PyAny>>, done: &Done<'_>) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let work = async move { Ok(client.get_many(&borrowed(&keys)).await) };
        spawn(done, None, work, |py, found| {
            let one = |found: nkv::Result<nkv::Bytes>| match found {
                Ok(bytes) => Bytes::new(bytes).into_py_any(py),
                Err(error) => exception_of(py, &error).into_value(py).into_py_any(py),
            };
            found.into_iter().map(one).collect::<PyResult<Vec<_>>>()?.into_py_any(py)
        })
    }

    fn start_remove(&self, key: &Bound<'_, PyAny>, done: &Done<'_>) -> PyResult<Task> {
        let (key, client) = (arguments::key(key)?.to_vec(), self.beside().clone());
        let work = async move { client.remove(&key).await };
        spawn(done, None, work, |py, ()| Ok(py.None()))
    }
}

fn owned(keys: &[Bound<'_, PyAny>]) -> PyResult<Vec<Vec<u8>>> {
    keys.iter().map(|key| arguments::key(key).map(<[u8]>::to_vec)).collect()
}

fn borrowed(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}
