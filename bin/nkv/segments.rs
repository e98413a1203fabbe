//! `nkv mount` and `nkv unmount`: a rank gains or loses a segment while it runs. The request goes
//! to the rank itself; this module only prints its answer.

use crate::cli_error::{CliError, CommandOutcome};
use crate::output;
use crate::retry_policy::RetryPolicy;
use nkv::Blocking;
use nkv::message::SegmentId;
use nkv_programs::sizes::show_bytes;
use serde_json::json;
use std::time::Duration;

/// `nkv mount SIZE --rank N`.
pub(crate) fn mount(
    handle: &Blocking,
    retry: &RetryPolicy,
    (rank, bytes): (u32, u64),
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let segment = retry.call(|| handle.mount_segment(rank, bytes)).map_err(CliError::segment)?;
    if json {
        output::json(&json!({ "rank": rank, "segment": segment, "bytes": bytes }))?;
    } else {
        let (segment_id, size) = (SegmentId { rank, segment }, show_bytes(bytes));
        output::write(format!("{segment_id}: {size} mounted\n").as_bytes())?;
    }
    Ok(CommandOutcome::Found)
}

/// `nkv unmount SEGMENT --rank N`.
pub(crate) fn unmount(
    handle: &Blocking,
    segment_id: SegmentId,
    limit_ms: u64,
    json: bool,
) -> Result<CommandOutcome, CliError> {
    let limit = Duration::from_millis(limit_ms);
    let report = handle
        .unmount_segment(segment_id.rank, segment_id.segment, limit)
        .map_err(CliError::segment)?;
    if json {
        output::json(&json!({
            "rank": segment_id.rank,
            "segment": segment_id.segment,
            "objects": report.objects,
            "plans_left": report.plans_left,
            "waited_ms": report.waited_ms,
            "confirmed": report.confirmed,
        }))?;
        return Ok(CommandOutcome::Found);
    }
    let mut text = format!("{segment_id}: unmounted with {} objects", report.objects);
    if report.plans_left > 0 {
        text += &format!("; {} puts were still writing there and fail", report.plans_left);
    }
    if !report.confirmed {
        text += "; the master has not confirmed it: calls for these keys may fail for a TTL";
    }
    output::write(format!("{text}\n").as_bytes())?;
    Ok(CommandOutcome::Found)
}
