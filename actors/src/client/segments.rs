//! Commands from other processes to a node's control port: mount, unmount, evict, and report its
//! state. They go to the node itself; the master only sees a segment join and leave.

use super::contact::{refused, unanswered};
use super::{Client, ClientConfig};
use crate::control_hello::hello;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::message::{
    EvictReport, NodeReport, PER_MILLE, Purpose, RankInfo, RankState, SegmentCommand, SegmentDone,
    UnmountReport, View, Welcome,
};
use crate::race::race;
use futures_util::future::join_all;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, BoxStream, MAX_FRAME_BYTES, read_frame};
use std::time::Duration;
use tokio::time::error::Elapsed;

/// Allocating pages is slow: a mount has this long per GiB, plus the time to join.
const MS_PER_GIB: u64 = 5_000;
/// How long all segments of a rank may take to evict; each takes some seconds at most.
const EVICTING: Duration = Duration::from_secs(60);
/// Time for joining and leaving, independent of the size.
const BESIDES: Duration = Duration::from_secs(15);
/// Between two checks whether the node that this call waits for is still a member.
const MEMBERS_POLL: Duration = Duration::from_millis(100);

impl Client {
    /// Mounts one more segment of `bytes` payload bytes at a rank. Returns its number within the
    /// rank, once objects may be placed on it. `OutOfMemory` if the machine has too little memory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("mount", async |cache| {
    /// let segment = cache.mount_segment(0, 16 << 20).await?;
    /// let limit = std::time::Duration::from_secs(5);
    /// let report = cache.unmount_segment(0, segment, limit).await?;
    /// assert_eq!(report.plans_left, 0);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn mount_segment(&self, rank: u32, bytes: u64) -> Result<u32> {
        let work =
            Duration::from_millis((bytes >> 30).saturating_add(1).saturating_mul(MS_PER_GIB));
        match self.send_to_node(rank, SegmentCommand::Mount { bytes }, work).await? {
            (_, SegmentDone::Mounted { segment, .. }) => Ok(segment),
            (whom, other) => Err(crossed(&whom, "a mount", &other)),
        }
    }

    /// Unmounts a segment of a rank, with the objects on it. Open plans have `limit` to end.
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

    /// Makes one rank evict from each of its segments until at most this ratio (0 to 1) of its heap
    /// is used. Waits for at most two quarantines and a second until the evicted space is free.
    /// Device logs reclaim space by themselves and are not touched.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("evict-rank", async |cache| {
    /// let reports = cache.evict_rank_until_below(0, 0.5).await?;
    /// assert_eq!(reports.len(), 1, "one segment");
    /// # Ok(())
    /// # });
    /// ```
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

    /// [`Client::evict_rank_until_below`] for several ranks concurrently; one result per rank, in
    /// their order. A rank that does not answer does not delay the others.
    pub async fn evict_ranks_until_below(
        &self,
        ranks: &[u32],
        usage_ratio: f64,
    ) -> Vec<Result<Vec<EvictReport>>> {
        join_all(ranks.iter().map(|rank| self.evict_rank_until_below(*rank, usage_ratio))).await
    }

    /// The report of the node at `node` about itself and the cluster. Needs neither the master nor
    /// a handle. Uses only job, secret and call limit of `config`.
    pub async fn report_of(node: &Address, config: &ClientConfig) -> Result<NodeReport> {
        let env = Environment::of_this_process();
        let credentials = Credentials::of_client(&config.job, config.secret.clone());
        let credentials = credentials.with_random(env.random.clone());
        let limit = Duration::from_millis(config.call_timeout_ms);
        let late = |_| {
            let ms = limit.as_millis();
            Error::timeout(format!("{node} did not answer within {ms} ms"))
        };
        let asking = async {
            let report = Purpose::Segments(SegmentCommand::Report);
            let answered = hello(&*env.net, node, &credentials, report).await;
            let (stream, first) = answered.map_err(|e| unanswered(node, None, e))?;
            at_last(stream, first, (&node.to_string(), limit)).await.map_err(late)?
        };
        match tokio::time::timeout(limit, asking).await.map_err(late)?? {
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
        if rank >= view.world_size {
            let last = view.world_size.saturating_sub(1);
            return Err(Error::invalid(format!("there is no rank {rank}; ranks are 0 to {last}")));
        }
        let (node, _) = view.node(rank).ok_or_else(|| {
            Error::disconnected(format!("rank {rank} is no member of the cluster now"))
        })?;
        if let Some(why) = out_of_reach(&view, node) {
            return Err(why);
        }
        let limit = work + BESIDES;
        let gone = async { Err(self.until_out_of_reach(node).await) };
        let asked = race(self.ask_node(node, command), gone);
        tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
            let ms = limit.as_millis();
            Err(Error::timeout(format!("rank {rank} was still at work after {ms} ms")))
        })
    }

    /// Sends a command to a node; returns its answer, and its name for errors. The node may take
    /// long if it sends signs of life.
    async fn ask_node(
        &self,
        node: &RankInfo,
        command: SegmentCommand,
    ) -> Result<(String, SegmentDone)> {
        // By the unix socket where there is one: it needs no secret.
        let local =
            node.local.as_ref().filter(|_| node.boot_id == self.shared.env.machine.boot_id());
        let address = local.unwrap_or(&node.control);
        let credentials = &self.shared.credentials;
        let clock = &self.shared.env.clock;
        let (limit, asked_ms) = (self.limit(), clock.now_ms());
        let silent = |_| {
            let (ms, since) = (limit.as_millis(), clock.now_ms().saturating_sub(asked_ms));
            Error::timeout(format!(
                "rank {} (pid {}) gave no sign of life for {ms} ms, {since} ms after it was asked; \
                 is it stopped?",
                node.rank, node.pid
            ))
        };
        self.shared.messages.waited.one();
        let asking = hello(&*self.shared.env.net, address, credentials, Purpose::Segments(command));
        let (stream, first) = tokio::time::timeout(limit, asking).await.map_err(silent)??;
        let whom = format!("rank {} at {address}", node.rank);
        match at_last(stream, first, (&whom, limit)).await.map_err(silent)?? {
            Welcome::Segments(done) => Ok((whom, done?)),
            Welcome::Refused { why } => Err(Error::invalid(why.to_string())),
            other => Err(Error::disconnected(format!("{whom} answered a command {other}"))),
        }
    }

    /// Resolves when the master reports that this node is gone or its link is down: the caller then
    /// stops waiting.
    async fn until_out_of_reach(&self, node: &RankInfo) -> Error {
        loop {
            tokio::time::sleep(MEMBERS_POLL).await;
            if let Ok(view) = self.membership().await
                && let Some(why) = out_of_reach(&view, node)
            {
                return why;
            }
        }
    }
}

/// Why the caller must not wait for a node that was a member.
fn out_of_reach(view: &View, node: &RankInfo) -> Option<Error> {
    let (rank, pid) = (node.rank, node.pid);
    match view.member(node.incarnation) {
        Some((_, RankState::Suspect)) => Some(Error::disconnected(format!(
            "the link of rank {rank} (pid {pid}) to the master is down"
        ))),
        Some(_) => None,
        // Not every rank has joined a master that has just started.
        None if !view.settled => None,
        None => Some(Error::disconnected(format!("rank {rank} (pid {pid}) was declared gone"))),
    }
}

/// The answer that follows the signs of life; `Elapsed` if nothing comes for `silence`.
async fn at_last(
    mut stream: BoxStream,
    first: Welcome,
    (whom, silence): (&str, Duration),
) -> std::result::Result<Result<Welcome>, Elapsed> {
    let (mut welcome, mut buf) = (first, Vec::new());
    while welcome == Welcome::Segments(Ok(SegmentDone::Working)) {
        let next = read_frame::<_, Welcome>(&mut stream, &mut buf, MAX_FRAME_BYTES);
        welcome = match tokio::time::timeout(silence, next).await? {
            Ok(Some((_, welcome))) => welcome,
            Ok(None) => {
                let text = format!("{whom} closed the connection before it was done");
                return Ok(Err(Error::disconnected(text)));
            }
            Err(e) => return Ok(Err(Error::disconnected(format!("{whom}: {e}")))),
        };
    }
    Ok(Ok(welcome))
}

fn crossed(whom: &str, asked: &str, got: &SegmentDone) -> Error {
    Error::disconnected(format!(
        "{whom} answered {asked} with {got}: use one release of nkv in a job"
    ))
}
