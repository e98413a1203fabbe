//! What a node is told, and asked, over its control port by whoever is not in its process: to
//! mount, to unmount, to evict, and what it knows. It asks the node itself: the master learns of a
//! segment when it joins and when it leaves.

use super::contact::{refused, unanswered};
use super::{Client, ClientConfig};
use crate::control_hello::hello;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::message::{
    EvictReport, NodeReport, PER_MILLE, Purpose, RankInfo, SegmentCommand, SegmentDone,
    UnmountReport, Welcome,
};
use nkv_transport::wire::Address;
use nkv_transport::wire::auth::Credentials;
use std::time::Duration;

/// Taking pages is slow: a mount has so long for each GiB, besides the time to join.
const MS_PER_GIB: u64 = 5_000;
/// How long the segments of a rank may take to evict, each some seconds at most.
const EVICTING: Duration = Duration::from_secs(60);
/// For joining and leaving, whatever the size.
const BESIDES: Duration = Duration::from_secs(15);

impl Client {
    /// Has a rank contribute one more segment of `bytes` payload bytes; returns its number within
    /// the rank once objects may be placed on it. `OutOfMemory` if the machine has too little.
    pub async fn mount_segment(&self, rank: u32, bytes: u64) -> Result<u32> {
        let work =
            Duration::from_millis((bytes >> 30).saturating_add(1).saturating_mul(MS_PER_GIB));
        match self.send_to_node(rank, SegmentCommand::Mount { bytes }, work).await? {
            (_, SegmentDone::Mounted { segment, .. }) => Ok(segment),
            (whom, other) => Err(crossed(&whom, "a mount", &other)),
        }
    }

    /// Takes a mounted segment of a rank away, with the objects on it. Open plans have `limit` to
    /// end.
    pub async fn unmount_segment(
        &self,
        rank: u32,
        segment: u32,
        limit: Duration,
    ) -> Result<UnmountReport> {
        let limit_ms = limit.as_millis() as u64;
        match self.send_to_node(rank, SegmentCommand::Unmount { segment, limit_ms }, limit).await? {
            (_, SegmentDone::Unmounted(report)) => Ok(report),
            (whom, other) => Err(crossed(&whom, "an unmount", &other)),
        }
    }

    /// Has one rank evict from each of its segments until at most this ratio (0 to 1) of its heap
    /// is used, and waits, for a quarantine or two, until what went is free. Device logs make room
    /// by themselves, and are left alone.
    pub async fn evict_rank_until_below(
        &self,
        rank: u32,
        usage_ratio: f64,
    ) -> Result<Vec<EvictReport>> {
        if !(0.0..=1.0).contains(&usage_ratio) {
            return Err(Error::invalid(format!(
                "evict_rank_until_below takes a ratio from 0 to 1, not {usage_ratio}"
            )));
        }
        let until_per_mille = (usage_ratio * f64::from(PER_MILLE)) as u32;
        match self.send_to_node(rank, SegmentCommand::Evict { until_per_mille }, EVICTING).await? {
            (_, SegmentDone::Evicted(reports)) => Ok(reports),
            (whom, other) => Err(crossed(&whom, "an eviction", &other)),
        }
    }

    /// What the node at `node` knows of itself and of the cluster. No master is needed, and no
    /// handle: of `config` the job, the secret and the limit of a call are used.
    pub async fn report_of(node: &Address, config: &ClientConfig) -> Result<NodeReport> {
        let env = Environment::of_this_process();
        let credentials = Credentials::of_client(&config.job, config.secret.clone());
        let credentials = credentials.with_random(env.random.clone());
        let limit = Duration::from_millis(config.call_timeout_ms);
        let asking =
            hello(&*env.net, node, &credentials, Purpose::Segments(SegmentCommand::Report));
        let answer = tokio::time::timeout(limit, asking).await.map_err(|_| {
            let ms = limit.as_millis();
            Error::timeout(format!("{node} did not answer within {ms} ms"))
        })?;
        match answer.map_err(|e| unanswered(node, None, e))?.1 {
            Welcome::Segments(done) => match done? {
                SegmentDone::Report(report) => Ok(*report),
                other => Err(crossed(&node.to_string(), "a question about itself", &other)),
            },
            Welcome::Refused { why } => Err(refused(node, &why)),
            other => Err(Error::disconnected(format!("{node} answered {other}"))),
        }
    }

    async fn send_to_node(
        &self,
        rank: u32,
        command: SegmentCommand,
        work: Duration,
    ) -> Result<(String, SegmentDone)> {
        let view = self.membership().await?;
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

    /// What a node answers, and who it is, for errors.
    async fn ask_node(
        &self,
        node: &RankInfo,
        command: SegmentCommand,
    ) -> Result<(String, SegmentDone)> {
        // By the socket where there is one: that is the way that needs no secret.
        let local =
            node.local.as_ref().filter(|_| node.boot_id == self.shared.env.machine.boot_id());
        let address = local.unwrap_or(&node.control);
        let credentials = &self.shared.credentials;
        let purpose = Purpose::Segments(command);
        self.shared.waits();
        match hello(&*self.shared.env.net, address, credentials, purpose).await?.1 {
            Welcome::Segments(done) => Ok((format!("rank {} at {address}", node.rank), done?)),
            Welcome::Refused { why } => Err(Error::invalid(why.to_string())),
            other => Err(Error::disconnected(format!(
                "rank {} at {address} answered a command {other}",
                node.rank
            ))),
        }
    }
}

fn crossed(whom: &str, asked: &str, got: &SegmentDone) -> Error {
    Error::disconnected(format!(
        "{whom} answered {asked} with {got}: use one release of nkv in a job"
    ))
}
