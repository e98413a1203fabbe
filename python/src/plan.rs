//! A plan in Python's hands: it is written page by page, then published or aborted.

use crate::devices::Part;
use crate::errors::exception_of;
use crate::handles::Handles;
use crate::reports::{Location, location};
use nkv::{ErrorKind, WritePlan};
use nkv_store::op::Source;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Permission to write one object. Dropped, it is aborted.
#[pyclass(frozen)]
pub(crate) struct Plan {
    /// None once finished. Writes share it, so that pages are written side by side.
    inner: RwLock<Option<WritePlan>>,
    /// One end at a time.
    ending: Mutex<()>,
    handles: Arc<Handles>,
    location: Location,
}

impl Plan {
    pub(crate) fn new(plan: WritePlan, handles: Arc<Handles>) -> nkv::Result<Self> {
        let desc = plan.desc().ok_or_else(finished)?;
        let location = location(&desc.meta);
        Ok(Self { inner: RwLock::new(Some(plan)), ending: Mutex::new(()), handles, location })
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
