//! A plan in the hands of its caller: it writes pages in any order, then publishes or aborts.

use super::{announce, one, publication};
use crate::client::Client;
use crate::client::plans::PlanState;
use crate::error::{Error, Result};
use crate::message::{PlanDesc, Request};
use nkv_transport::verbs::Source;
use std::sync::Arc;

/// Permission to write one object, page by page in any order, then publish it. A plan dropped
/// without `publish` is aborted in the background.
#[derive(Debug)]
pub struct WritePlan {
    pub(super) client: Client,
    pub(super) plan: Option<Arc<PlanState>>,
}

/// Why a plan was not published.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PublishError {
    /// The reason.
    #[source]
    pub error: Error,
    /// The plan, if it is still open: bytes are missing (`InvalidArgument`). Write them, then
    /// publish it. Dropped, it is aborted.
    pub plan: Option<WritePlan>,
}

impl From<Error> for PublishError {
    fn from(error: Error) -> Self {
        Self { error, plan: None }
    }
}

impl From<PublishError> for Error {
    fn from(e: PublishError) -> Self {
        e.error
    }
}

/// Why a plan was not published.
pub(super) struct Unpublished {
    pub error: Error,
    /// Bytes were never written: the plan is still open. Otherwise it is over, or what became of it
    /// is unknown.
    pub open: bool,
}

impl<E: Into<Error>> From<E> for Unpublished {
    fn from(error: E) -> Self {
        Self { error: error.into(), open: false }
    }
}

impl WritePlan {
    pub(super) fn new(client: Client, plan: Arc<PlanState>) -> Self {
        Self { client, plan: Some(plan) }
    }

    pub(super) fn state(&self) -> Result<&Arc<PlanState>> {
        self.client.check_usable()?;
        self.plan.as_ref().ok_or_else(|| Error::invalid("this plan is finished"))
    }

    /// The plan as the master granted it: rank, offsets, epoch, token. None once finished.
    pub fn desc(&self) -> Option<&PlanDesc> {
        self.plan.as_ref().map(|p| &p.desc)
    }

    /// The transport that the writes use. None once finished.
    pub fn transport(&self) -> Option<nkv_transport::verbs::Kind> {
        self.plan.as_ref().map(|p| p.peer.kind())
    }

    /// Number of pages.
    pub fn n_pages(&self) -> u32 {
        self.desc().map_or(0, |d| d.meta.object.n_pages())
    }

    /// Bytes per page; the last one may be shorter.
    pub fn page_bytes(&self) -> u32 {
        self.desc().map_or(0, |d| d.meta.object.page_bytes)
    }

    /// Writes one page. Pages may come in any order, from any thread.
    pub fn write_page(&self, index: u32, page: &[u8]) -> Result<()> {
        self.write_page_source(index, Source::Host(page))
    }

    /// As [`WritePlan::write_page`], of bytes that may be in a device.
    pub fn write_page_source(&self, index: u32, page: Source<'_>) -> Result<()> {
        let object = &self.state()?.desc.meta.object;
        if index >= object.n_pages() {
            return Err(Error::invalid(format!("page {index} of {}", object.n_pages())));
        }
        let offset = u64::from(index) * u64::from(object.page_bytes);
        let len = u64::from(object.page_bytes).min(object.bytes_total - offset);
        if page.len() as u64 != len {
            return Err(Error::invalid(format!(
                "page {index} has {len} bytes, {} were given",
                page.len()
            )));
        }
        self.write_source(offset, page)
    }

    /// Writes bytes at an offset of the object.
    pub fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_source(offset, Source::Host(bytes))
    }

    /// As [`WritePlan::write_from`], of bytes that may be in a device.
    pub fn write_source(&self, offset: u64, part: Source<'_>) -> Result<()> {
        let p = self.state()?;
        let total = p.desc.meta.object.bytes_total;
        let len = part.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > total) {
            return Err(Error::invalid(format!(
                "bytes {offset}..{} of an object of {total}",
                offset.saturating_add(len)
            )));
        }
        p.peer.run_blocking(|| {
            let _inside = p.enter(self.client.shared.env.clock.now_ns())?;
            p.check_whole()?;
            if p.first_write() {
                announce(p).inspect_err(|_| p.break_off())?;
            }
            let object = publication(&p.desc);
            let op = object.part(offset, part);
            p.peer.verbs.post(p.desc.token, &mut [op]).inspect_err(|_| p.break_off())?;
            p.cover(offset, len);
            Ok(())
        })
    }

    /// Sets READY and commits. Afterwards every client can find and read the object. If bytes are
    /// missing, the error holds the plan, which is still open.
    pub async fn publish(self) -> std::result::Result<(), PublishError> {
        let client = self.client.clone();
        self.publish_with(&client).await
    }

    /// Publishes over the connections of `client`, a clone of the handle that opened the plan.
    pub(in crate::client) async fn publish_with(
        mut self,
        client: &Client,
    ) -> std::result::Result<(), PublishError> {
        let plan = self.state()?.clone();
        match client.publish_and_commit(&plan).await {
            Ok(()) => {
                self.plan = None;
                client.shared.plans.forget(&plan);
                Ok(())
            }
            Err(Unpublished { error, open: true }) => Err(PublishError { error, plan: Some(self) }),
            Err(Unpublished { error, open: false }) => {
                self.plan = None;
                self.client.abandon(&[plan]);
                Err(error.into())
            }
        }
    }

    /// Aborts the plan; its object never becomes readable.
    ///
    /// # Errors
    /// `NotReady` if the master does not know yet what the plan's owner has: what a kernel has
    /// published may become readable.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("abort", async |cache| {
    /// let plan = cache.open_for_write(b"block/1", 4096, &PutOptions::default()).await?;
    /// plan.abort().await?;
    /// assert!(cache.get(b"block/1").await.is_err());
    /// # Ok(())
    /// # });
    /// ```
    pub async fn abort(self) -> Result<()> {
        let client = self.client.clone();
        self.abort_with(&client).await
    }

    pub(in crate::client) async fn abort_with(mut self, client: &Client) -> Result<()> {
        let Some(plan) = self.plan.take() else {
            return Ok(());
        };
        // If the handle is closed, its close has aborted the plan.
        client.check_usable()?;
        // A commit of what a kernel published may be on its way.
        let _one = plan.committing.lock().await;
        self.client.shared.plans.drop_plan(plan.desc.plan);
        self.client.shared.plans.close(&plan);
        self.client.shared.plans.forget(&plan);
        let answer = client.call(Request::Abort(vec![plan.reference()])).await;
        one(client.done("Abort", answer, 1))
    }
}

impl Drop for WritePlan {
    fn drop(&mut self) {
        if let Some(p) = self.plan.take() {
            // A plan committed through `commit(key)` is not held any more. Checked by plan id:
            // after the owner ended this plan, the key may have another one.
            self.client.shared.plans.forget(&p);
            if self.client.shared.plans.holds(p.desc.plan) {
                self.client.abandon(&[p]);
            }
        }
    }
}
