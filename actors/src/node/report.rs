//! Commands to a node over its control port: a report of itself and the cluster, with or without a
//! master, and eviction. It decides nothing: evictors choose victims, owners retire them.

use super::mount::{First, Segments, until};
use super::segment::SegmentHandle;
use super::status::shown;
use crate::current_master::MasterPath;
use crate::error::{Error, Result};
use crate::evictor::EvictTo;
use crate::message::{
    EvictReport, NodeReport, PER_MILLE, SegmentCommand, SegmentDone, SegmentReport,
};
use crate::owner::GetGauges;
use crate::server::{Executing, SegmentCommands};
use std::sync::Arc;
use std::time::Duration;

/// How long an evictor, or an owner, may take to answer.
const ACTOR_LIMIT: Duration = Duration::from_secs(5);
/// Evicted space is free after a quarantine. An evict waits at most for this many quarantines, and
/// this much longer.
const QUARANTINES: u64 = 2;
const SETTLE_MS: u64 = 1_000;

impl SegmentCommands for Segments {
    fn execute(self: Arc<Self>, command: SegmentCommand) -> Executing {
        Box::pin(async move {
            match command {
                SegmentCommand::Mount { bytes } => {
                    let info = self.mount(bytes).await?;
                    let (segment, incarnation) = (info.segment_id, info.incarnation);
                    Ok(SegmentDone::Mounted { segment, incarnation, bytes: info.layout.arena.len })
                }
                SegmentCommand::Unmount { segment, limit_ms } => {
                    let limit = Duration::from_millis(limit_ms);
                    self.unmount(segment, limit).await.map(SegmentDone::Unmounted)
                }
                SegmentCommand::Evict { until_per_mille } => {
                    self.evict(until_per_mille).await.map(SegmentDone::Evicted)
                }
                SegmentCommand::Report => {
                    self.report().map(|report| SegmentDone::Report(Box::new(report)))
                }
            }
        })
    }
}

impl Segments {
    fn first(&self) -> Result<&First> {
        self.first.get().ok_or_else(|| Error::not_ready("this rank is starting"))
    }

    fn every(&self) -> Result<Vec<SegmentHandle>> {
        Ok(std::iter::once(self.first()?.segment_handle.clone()).chain(self.all()).collect())
    }

    /// Evicts from each heap until at most this many thousandths of it are used; one report per
    /// segment. InvalidArgument above [`PER_MILLE`].
    pub(crate) async fn evict(&self, until_per_mille: u32) -> Result<Vec<EvictReport>> {
        if until_per_mille > PER_MILLE {
            return Err(Error::invalid(format!(
                "evict until {until_per_mille} thousandths of a heap are used: {PER_MILLE} at most"
            )));
        }
        let mut reports = Vec::new();
        for segment_handle in self.every()? {
            reports.push(self.evict_from(&segment_handle, until_per_mille).await?);
        }
        Ok(reports)
    }

    async fn evict_from(
        &self,
        segment_handle: &SegmentHandle,
        until_per_mille: u32,
    ) -> Result<EvictReport> {
        let total = segment_handle.tables.gauges.snapshot().heap_total;
        let share = u128::from(total) * u128::from(until_per_mille) / u128::from(PER_MILLE);
        let target = share as u64;
        let gone = segment_handle.roles.evictor.call(EvictTo(target), ACTOR_LIMIT).await?;
        // Queued behind the evictor's messages: when it is answered, the victims are retired.
        let mut owner = segment_handle.roles.owner.call(GetGauges, ACTOR_LIMIT).await?;
        if gone.objects > 0 {
            let clock = &*self.common.env.clock;
            let quarantine_ms = u64::from(self.common.config.quarantine_ms);
            let end_ms = clock.now_ms() + QUARANTINES * quarantine_ms + SETTLE_MS;
            let below = || segment_handle.tables.gauges.snapshot().heap_used <= target;
            until(below, end_ms, clock).await;
            owner = segment_handle.tables.gauges.snapshot();
        }
        let segment_id = segment_handle.info.id();
        tracing::info!(%segment_id, objects = gone.objects, bytes = gone.bytes, "evicted");
        Ok(EvictReport {
            segment: segment_id.segment,
            objects: gone.objects,
            bytes: gone.bytes,
            heap_used: owner.heap_used,
            heap_total: owner.heap_total,
        })
    }

    /// This node's report. It waits for no actor, so it answers even if actors or the master are
    /// stuck. NotReady while the node starts.
    pub(crate) fn report(&self) -> Result<NodeReport> {
        let every = self.every()?;
        let first = self.first()?;
        let now_ms = self.common.env.clock.now_ms();
        let (term, _, seen) = first.segment_handle.tables.memory();
        let view = first.handle.upgrade().map(|handle| handle.view()).unwrap_or_default();
        let config = &self.common.config;
        let segment = |segment_handle: &SegmentHandle| SegmentReport {
            segment: segment_handle.info.segment_id,
            incarnation: segment_handle.info.incarnation,
            link: shown(&segment_handle.link.borrow()),
            link_ms: now_ms
                .saturating_sub(segment_handle.uplink.changed_ms().max(first.started_ms)),
            owner: segment_handle.tables.gauges.snapshot(),
        };
        Ok(NodeReport {
            rank: config.rank,
            world_size: config.world_size,
            pid: self.common.env.machine.pid(),
            uptime_ms: now_ms.saturating_sub(first.started_ms),
            draining: first.segment_handle.is_draining(),
            master: match self.common.master.path() {
                MasterPath::Local(_) => None,
                MasterPath::Remote(at) => at.first().cloned(),
            },
            term,
            seen,
            view,
            segments: every.iter().map(segment).collect(),
        })
    }
}
