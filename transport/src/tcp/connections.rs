//! The threads of authenticated connections: started, counted, and reported when they end.

use super::agent_state::{AgentState, Open};
use super::broken::End;
use super::frame::Status;
use super::line::Line;
use super::serve::Connection;
use crate::error::TransportError;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Answers that all connections are in use, and closes.
pub(super) fn turn_away(shared: &AgentState, line: &mut Line, from: &str) {
    shared.counters.turned_away.fetch_add(1, Ordering::Relaxed);
    let max = shared.limits.max_connections;
    let why = format!("all {max} data connections of this agent are in use; try again later");
    shared.log_rejected(from, &why);
    // A few bytes into an empty socket buffer: this does not block the accepting thread.
    let _ = match &shared.guard {
        Some(guard) if line.tags.0.is_none() => line.send([&*guard.busy(&why)]),
        _ => shared.send_welcome(line, Status::Busy, &why),
    };
    line.finish_sending();
}

/// Starts a thread for an authenticated connection.
pub(super) fn hand_over(
    shared: &Arc<AgentState>,
    mut line: Line,
    from: &str,
) -> Result<(), TransportError> {
    // Held until the thread is in the table, from which it removes itself when it ends.
    let mut open = shared.open();
    if open.len() >= shared.limits.max_connections {
        drop(open);
        turn_away(shared, &mut line, from);
        return Ok(());
    }
    let id = shared.last.fetch_add(1, Ordering::Relaxed) + 1;
    let interrupt = line.shared.clone();
    let (shared2, from) = (shared.clone(), from.to_string());
    let thread = spawn_named(&format!("nkv-tcp-{id}"), move || {
        shared2.counters.connections.fetch_add(1, Ordering::Relaxed);
        let ended = serve(&shared2, line);
        shared2.counters.connections.fetch_sub(1, Ordering::Relaxed);
        report(&shared2, &from, &ended);
        // Dropping the thread's own handle detaches it; `stop` may have taken the handle already.
        let own = shared2.open().remove(&id);
        drop(own);
    })?;
    open.insert(id, Open { interrupt, thread });
    Ok(())
}

fn serve(shared: &AgentState, line: Line) -> End {
    let mut connection = Connection::new(shared, line);
    // A panic here is a defect of nkv; it must not leave the connection in the table.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| connection.serve()));
    let ended = ended.unwrap_or_else(|_| End::Broken("a panic in the agent".to_string()));
    connection.line.shared.shut();
    ended
}

fn report(shared: &AgentState, from: &str, ended: &End) {
    if shared.stopping.load(Ordering::SeqCst) {
        return;
    }
    let counters = &shared.counters;
    match ended {
        End::Left => tracing::debug!(%from, "data connection ended"),
        End::Fenced => tracing::info!(%from, "data connection cut by a fence"),
        End::TurnedAway(why) => {
            counters.turned_away.fetch_add(1, Ordering::Relaxed);
            shared.log_rejected(from, why);
        }
        End::Forged => {
            counters.auth_refused.fetch_add(1, Ordering::Relaxed);
            if let Some(guard) = &shared.guard {
                guard.refuse(from, "a message with a wrong tag");
            }
        }
        End::Unfit(why) | End::Broken(why) => {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            if let Some(before) = shared.lines.next(BootClock.now_ms()) {
                tracing::warn!(%from, %why, before, "dropped a data connection");
            }
        }
    }
}
