//! A plan in Python's hands: it is written page by page, then published or aborted.

use crate::devices::Part;
use crate::errors::exception_of;
use crate::handles::Handles;
use crate::kernel_access::KernelAccesses;
use crate::reports::{Location, in_memory};
use crate::tasks;
use nkv::{Client, ErrorKind, WritePlan};
use nkv_store::op::Source;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Permission to write one object. Dropped, it is aborted, unless a kernel has set READY.
#[pyclass(frozen)]
pub(crate) struct Plan {
    /// None once finished. Writes share it, so that pages are written side by side.
    inner: RwLock<Option<WritePlan>>,
    /// One end at a time.
    ending: Mutex<()>,
    handles: Arc<Handles>,
    accesses: Arc<KernelAccesses>,
    location: Location,
    /// Kernels may write, and its commit follows READY by itself.
    held: AtomicBool,
    /// Of calls that run beside the interpreter.
    beside: Client,
}

impl Plan {
    pub(crate) fn new(
        py: Python<'_>,
        plan: WritePlan,
        (handles, accesses): (Arc<Handles>, Arc<KernelAccesses>),
        beside: Client,
    ) -> PyResult<Self> {
        let desc = plan.desc().ok_or_else(finished);
        let location = desc.map_err(|error| exception_of(py, &error))?;
        let location = location.meta.clone();
        Ok(Self {
            inner: RwLock::new(Some(plan)),
            ending: Mutex::new(()),
            held: AtomicBool::new(false),
            handles,
            accesses,
            location: in_memory(&location),
            beside,
        })
    }

    fn take(&self) -> Option<WritePlan> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        write: impl FnOnce(&WritePlan, Source<'_>) -> nkv::Result<()> + Send,
    ) -> PyResult<()> {
        let data = Part::given(data, false)?;
        let done = py.detach(|| {
            let plan = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            write(plan.as_ref().ok_or_else(finished)?, data.source())
        });
        done.map_err(|error| exception_of(py, &error))
    }
}

/// Commits the plan, beside the interpreter, once a kernel has set READY.
fn commit_when_published(plan: &WritePlan, beside: &Client) -> nkv::Result<()> {
    let committing = plan.commit_when_published(beside.clone());
    let failed = |error: PyErr| nkv::Error::new(ErrorKind::Internal, error.to_string());
    // Its error is in the log; whoever uses the plan afterwards gets one, too.
    drop(tasks::runtime().map_err(failed)?.spawn(committing));
    Ok(())
}

impl Drop for Plan {
    fn drop(&mut self) {
        let plan = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // One that no kernel writes is given up.
        let plan = plan.filter(|_| self.held.load(Ordering::Acquire));
        let Some(plan) = plan.filter(WritePlan::is_published) else { return };
        // Its commit is under way: the plan is kept until it is done.
        let committing = plan.commit_when_published(self.beside.clone());
        if let Ok(runtime) = tasks::runtime() {
            runtime.spawn(async move {
                let _ = committing.await;
                drop(plan);
            });
        }
    }
}

fn finished() -> nkv::Error {
    nkv::Error::new(ErrorKind::InvalidArgument, "this plan is finished")
}

#[pymethods]
impl Plan {
    /// Where the object will lie: the fields of a location.
    #[getter]
    fn location(&self) -> Location {
        self.location
    }

    /// Lets kernels write from now on, where this process maps the memory.
    fn hold_for_kernels(&self, py: Python<'_>) -> PyResult<()> {
        let held = py.detach(|| {
            let plan = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            let Some(plan) = plan.as_ref() else { return Ok(()) };
            if self.held.load(Ordering::Acquire) || plan.is_committed() || !plan.announce()? {
                return Ok(());
            }
            if self.held.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
            commit_when_published(plan, &self.beside)
        });
        held.map_err(|error: nkv::Error| exception_of(py, &error))
    }

    /// The addresses of header and payload in this process, for kernels.
    fn addresses(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let found = py.detach(|| {
            let plan = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            let plan = plan.as_ref().ok_or_else(finished)?;
            let found = self.handles.with_handle(|handle| handle.addresses(plan))?;
            found.access.into_iter().for_each(|access| self.accesses.keep(access));
            Ok((found.header, found.payload))
        });
        found.map_err(|error: nkv::Error| exception_of(py, &error))
    }

    /// Writes one page. Pages may come in any order, from any thread.
    fn write_page(&self, py: Python<'_>, index: u32, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(py, data, |plan, part| plan.write_page_source(index, part))
    }

    /// Writes bytes at an offset of the object.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(py, data, |plan, part| plan.write_source(offset, part))
    }

    /// Sets READY and commits. If bytes are missing, the plan stays open.
    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        let done = py.detach(|| {
            let _one = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
            let plan = self.take().ok_or_else(finished)?;
            self.handles.with_handle(|handle| {
                handle.publish(plan).map_err(|refused| {
                    *self.inner.write().unwrap_or_else(PoisonError::into_inner) = refused.plan;
                    refused.error
                })
            })
        });
        done.map_err(|error| exception_of(py, &error))
    }

    /// Gives the object up. Does nothing if the plan is finished.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let done = py.detach(|| {
            let _one = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
            match self.take() {
                Some(plan) => self.handles.with_handle(|handle| handle.abort(plan)),
                None => Ok(()),
            }
        });
        done.map_err(|error| exception_of(py, &error))
    }
}
