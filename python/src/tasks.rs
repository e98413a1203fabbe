//! Calls that run beside the interpreter: what `nkv.aio` awaits. One runtime for the process, with
//! two threads; a call has none of its own.

use crate::arguments;
use crate::batches::results;
use crate::cache::{Cache, Wanted, duration, options};
use crate::devices::Part;
use crate::errors::{exception_of, of_kind};
use crate::memory::Bytes;
use crate::reports::{locations, readable};
use nkv::ErrorKind;
use nkv_store::fork::ProcessMark;
use nkv_store::op::Source;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

/// Threads that run calls.
const THREADS: usize = 2;

/// Pause between two looks for a signal (Ctrl-C) during a long wait.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// The runtime of the process that made it: a child made by fork has none of its threads, and makes
/// another.
static RUNTIME: Mutex<Option<(ProcessMark, &Runtime)>> = Mutex::new(None);

pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    let mut kept = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((made, runtime)) = *kept
        && made.is_here()
    {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("nkv-async")
        .enable_all()
        .build()?;
    let runtime: &Runtime = Box::leak(Box::new(made));
    *kept = Some((ProcessMark::here(), runtime));
    Ok(runtime)
}

/// Waits for a call that may take long, on this runtime. A signal ends it.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let mut task = runtime.spawn(work);
    loop {
        let waited = py
            .detach(|| runtime.block_on(async { tokio::time::timeout(SIGNALS, &mut task).await }));
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
        let client = self.beside().clone();
        let options = options(key.py(), wanted, &[arguments::key(key)?])?;
        let (key, data) = (arguments::key(key)?.to_vec(), Part::given(data, false)?);
        let work = async move {
            data.settled().await?;
            match (data.host(), &trailer[..]) {
                (Some(bytes), []) => client.put(&key, bytes, &options).await,
                (Some(bytes), trailer) => client.put_parts(&key, &[bytes, trailer], &options).await,
                (None, trailer) => {
                    let parts = [data.source(), Source::Host(trailer)];
                    client.put_sources(&key, &parts, &options).await
                }
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
        let (key, mut memory) = (arguments::key(key)?.to_vec(), Part::all(&parts, true)?);
        let client = self.beside().clone();
        let work = async move {
            for part in &memory {
                part.settled().await?;
            }
            let mut parts: Vec<_> = memory.iter_mut().map(Part::target).collect();
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

    #[pyo3(signature = (keys, done, prefetch = false, wait = false))]
    fn start_exists(
        &self,
        py: Python<'_>,
        keys: Vec<Bound<'_, PyAny>>,
        done: &Done<'_>,
        prefetch: bool,
        wait: bool,
    ) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let prefetch = arguments::prefetch(py, prefetch, wait)?;
        let work = async move {
            match prefetch {
                Some(wait) => client.prefetch(&borrowed(&keys), wait).await,
                None => client.exists(&borrowed(&keys)).await,
            }
        };
        spawn(done, None, work, |py, found| readable(&found).into_py_any(py))
    }

    fn start_match_prefix(&self, keys: Vec<Bound<'_, PyAny>>, done: &Done<'_>) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let work = async move { client.match_prefix(&borrowed(&keys)).await };
        spawn(done, None, work, |py, found| locations(&found).into_py_any(py))
    }

    fn start_get_many(&self, keys: Vec<Bound<'_, PyAny>>, done: &Done<'_>) -> PyResult<Task> {
        let (keys, client) = (owned(&keys)?, self.beside().clone());
        let work = async move { Ok(client.get_many(&borrowed(&keys)).await) };
        spawn(done, None, work, |py, found| results(py, found, Bytes::new)?.into_py_any(py))
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
