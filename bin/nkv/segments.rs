//! `nkv mount` and `nkv unmount`: a rank gains or loses a segment while it runs. The rank itself is
//! asked; here is only what is said about its answer.

use crate::output;
use crate::patience::Patience;
use crate::sizes::show_bytes;
use crate::trouble::{Answer, Trouble};
use nkv::Blocking;
use nkv::message::Seat;
use serde_json::json;
use std::time::Duration;

/// `nkv mount SIZE --rank N`.
pub(crate) fn mount(
    handle: &Blocking,
    patience: &Patience,
    (rank, bytes): (u32, u64),
    json: bool,
) -> Result<Answer, Trouble> {
    let segment = patience.call(|| handle.mount_segment(rank, bytes)).map_err(Trouble::segment)?;
    if json {
        output::json(&json!({ "rank": rank, "segment": segment, "bytes": bytes }))?;
    } else {
        let (seat, size) = (Seat { rank, segment }, show_bytes(bytes));
        output::write(format!("{seat}: {size} mounted\n").as_bytes())?;
    }
    Ok(Answer::Found)
}

/// `nkv unmount SEGMENT --rank N`.
pub(crate) fn unmount(
    handle: &Blocking,
    seat: Seat,
    limit_ms: u64,
    json: bool,
) -> Result<Answer, Trouble> {
    let limit = Duration::from_millis(limit_ms);
    let report =
        handle.unmount_segment(seat.rank, seat.segment, limit).map_err(Trouble::segment)?;
    if json {
        output::json(&json!({
            "rank": seat.rank,
            "segment": seat.segment,
            "objects": report.objects,
            "plans_left": report.plans_left,
            "waited_ms": report.waited_ms,
            "confirmed": report.confirmed,
        }))?;
        return Ok(Answer::Found);
    }
    let mut text = format!("{seat}: unmounted with {} objects", report.objects);
    if report.plans_left > 0 {
        text += &format!("; {} puts were still writing there and fail", report.plans_left);
    }
    if !report.confirmed {
        text += "; the master has not confirmed it: it says so of these keys for a TTL";
    }
    output::write(format!("{text}\n").as_bytes())?;
    Ok(Answer::Found)
}
