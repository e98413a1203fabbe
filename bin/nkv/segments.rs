//! `nkv mount` and `nkv unmount`: a rank gains or loses a segment while it runs. The request goes
//! to the rank itself; this module only prints its answer.

use crate::Cluster;
use crate::cli_error::CliError;
use clap::Args;
use nkv::message::SegmentId;
use nkv_programs::sizes::{parse_bytes, show_bytes};
use serde_json::json;
use std::time::Duration;

/// Longest wait of an unmount for open plans: ten minutes.
const MAX_UNMOUNT_MS: u64 = 600_000;

/// Makes a rank contribute one more segment of memory; prints its number
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Mount {
    /// Payload bytes (MiB, GiB)
    #[arg(value_name = "SIZE", allow_negative_numbers = true, value_parser = parse_bytes)]
    bytes: u64,
    /// Which rank
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rank: u32,
}

impl Mount {
    /// Mounts.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let (handle, Self { rank, bytes }) = (cluster.connect()?, *self);
        let mounted = cluster.retry.call(|| handle.mount_segment(rank, bytes));
        let segment = mounted.map_err(CliError::segment)?;
        cluster.show(&json!({ "rank": rank, "segment": segment, "bytes": bytes }), || {
            format!("{}: {} mounted\n", SegmentId { rank, segment }, show_bytes(bytes))
        })
    }
}

/// Removes a mounted segment, with the objects on it
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Unmount {
    /// Its number, as mount and status print it
    #[arg(allow_negative_numbers = true)]
    segment: u32,
    /// Which rank
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rank: u32,
    /// How long puts that write there may take to finish
    #[arg(long, value_name = "MS", default_value_t = 5_000,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(0..=MAX_UNMOUNT_MS))]
    wait_ms: u64,
}

impl Unmount {
    /// Unmounts.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let Self { rank, segment, wait_ms } = *self;
        let limit = Duration::from_millis(wait_ms);
        let report = cluster.connect()?.unmount_segment(rank, segment, limit);
        let report = report.map_err(CliError::segment)?;
        let mut object = json!(report);
        (object["rank"], object["segment"]) = (rank.into(), segment.into());
        cluster.show(&object, || {
            let segment_id = SegmentId { rank, segment };
            let mut text = format!("{segment_id}: unmounted with {} objects", report.objects);
            if report.plans_left > 0 {
                text += &format!("; {} puts were still writing there and fail", report.plans_left);
            }
            if !report.confirmed {
                text +=
                    "; the master has not confirmed it: calls for these keys may fail for a TTL";
            }
            text + "\n"
        })
    }
}
