//! Executes commands about a node's segments that come over its control port, and sends signs of
//! life until each is done.

use super::{ACTOR_LIMIT, Server};
use crate::error::Error;
use crate::message::{SegmentCommand, SegmentDone, WORKING, Welcome};
use nkv_transport::wire::{BoxStream, write_frame};
use std::pin::Pin;
use std::sync::Arc;

/// A node's segments, as its control port commands them.
pub(crate) trait SegmentCommands: Send + Sync {
    /// Executes a command to its end.
    fn execute(self: Arc<Self>, command: SegmentCommand) -> Executing;
}

/// A command in progress.
pub(crate) type Executing = Pin<Box<dyn Future<Output = crate::Result<SegmentDone>>>>;

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
        self.segments.upgrade().ok_or_else(ending)?.execute(command).await
    }
}
