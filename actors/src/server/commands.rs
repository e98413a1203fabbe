//! Executes commands about a node's segments that come over its control port, and sends signs of
//! life until each is done.

use super::{ACTOR_LIMIT, Server};
use crate::error::Error;
use crate::message::{SegmentCommand, SegmentDone, WORKING, Welcome};
use nkv_transport::wire::{BoxStream, write_frame};
use std::time::Duration;

impl Server {
    /// Executes a command, and sends `Working` every [`WORKING`] meanwhile, so that the client can
    /// tell a long command from a stopped process. The command runs to its end even if the client
    /// is gone.
    pub(super) async fn command_with_signs(
        &self,
        command: SegmentCommand,
        stream: &mut BoxStream,
    ) -> crate::Result<SegmentDone> {
        let mut work = std::pin::pin!(self.command(command));
        let mut buf = Vec::new();
        loop {
            if let Ok(done) = tokio::time::timeout(WORKING, work.as_mut()).await {
                return done;
            }
            let sign = Welcome::Segments(Ok(SegmentDone::Working));
            let sent = tokio::time::timeout(ACTOR_LIMIT, write_frame(stream, &mut buf, 0, &sign));
            if !matches!(sent.await, Ok(Ok(()))) {
                return work.await;
            }
        }
    }

    async fn command(&self, command: SegmentCommand) -> crate::Result<SegmentDone> {
        let ending = || Error::disconnected(format!("rank {} is shutting down", self.rank));
        let segments = self.segments.upgrade().ok_or_else(ending)?;
        match command {
            SegmentCommand::Mount { bytes } => {
                let info = segments.mount(bytes).await?;
                let (segment, incarnation) = (info.segment_id, info.incarnation);
                Ok(SegmentDone::Mounted { segment, incarnation, bytes: info.arena_bytes })
            }
            SegmentCommand::Unmount { segment, limit_ms } => {
                let limit = Duration::from_millis(limit_ms);
                segments.unmount(segment, limit).await.map(SegmentDone::Unmounted)
            }
            SegmentCommand::Evict { until_per_mille } => {
                segments.evict(until_per_mille).await.map(SegmentDone::Evicted)
            }
            SegmentCommand::Report => {
                segments.report().map(|report| SegmentDone::Report(Box::new(report)))
            }
        }
    }
}
