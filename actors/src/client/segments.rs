//! Mounting and unmounting over a node's control port, for whoever is not in that node's process. It
//! asks the node itself: the master learns of a segment when it joins and when it leaves.

use super::Client;
use crate::error::{Error, Result};
use crate::greeting::hello;
use crate::message::{Purpose, RankInfo, SegmentCommand, SegmentDone, UnmountReport, Welcome};
use std::time::Duration;

/// Taking pages is slow: a mount has so long for each GiB, besides the time to join.
const MS_PER_GIB: u64 = 5_000;
/// For joining and leaving, whatever the size.
const BESIDES: Duration = Duration::from_secs(15);

impl Client {
    /// Has a rank contribute one more segment of `bytes` payload bytes; returns its number within the
    /// rank once objects may be placed on it. `OutOfMemory` if the machine has too little.
    pub async fn mount_segment(&self, rank: u32, bytes: u64) -> Result<u32> {
        let work =
            Duration::from_millis((bytes >> 30).saturating_add(1).saturating_mul(MS_PER_GIB));
        match self.tell_node(rank, SegmentCommand::Mount { bytes }, work).await? {
            SegmentDone::Mounted { segment, .. } => Ok(segment),
            other => Err(Error::internal(format!("rank {rank} answered a mount with {other:?}"))),
        }
    }

    /// Takes a mounted segment of a rank away, with the objects on it. Open plans have `limit` to end.
    pub async fn unmount_segment(
        &self,
        rank: u32,
        segment: u32,
        limit: Duration,
    ) -> Result<UnmountReport> {
        let limit_ms = limit.as_millis() as u64;
        match self.tell_node(rank, SegmentCommand::Unmount { segment, limit_ms }, limit).await? {
            SegmentDone::Unmounted(report) => Ok(report),
            other => {
                Err(Error::internal(format!("rank {rank} answered an unmount with {other:?}")))
            }
        }
    }

    async fn tell_node(
        &self,
        rank: u32,
        command: SegmentCommand,
        work: Duration,
    ) -> Result<SegmentDone> {
        let view = self.view().await?;
        let node = view.nodes().find(|(info, _)| info.rank == rank).map(|(info, _)| info);
        let node = node.ok_or_else(|| {
            Error::disconnected(format!("rank {rank} is no member of the cluster now"))
        })?;
        let limit = work + BESIDES;
        let answer = tokio::time::timeout(limit, self.ask_node(node, command)).await;
        answer.unwrap_or_else(|_| {
            Err(Error::timeout(format!("rank {rank} did not answer within {limit:?}")))
        })
    }

    async fn ask_node(&self, node: &RankInfo, command: SegmentCommand) -> Result<SegmentDone> {
        // By the socket where there is one: that is the way that needs no secret.
        let near =
            node.local.as_ref().filter(|_| node.boot_id == self.shared.env.machine.boot_id());
        let address = near.unwrap_or(&node.control);
        let credentials = &self.shared.credentials;
        let purpose = Purpose::Segments(command);
        self.shared.waits();
        match hello(&*self.shared.env.net, address, credentials, purpose).await?.1 {
            Welcome::Segments(done) => done,
            Welcome::Refused { why } => Err(Error::invalid(why.to_string())),
            other => Err(Error::internal(format!("{address} answered a command with {other:?}"))),
        }
    }
}
