//! Runs a rank: it joins, serves, and ends in one of three ways. On a signal it drains and leaves.
//! Declared gone, it starts again with a new incarnation. When an actor has failed finally it
//! exits, so that the supervisor of the process restarts it.

use crate::ready::{Phase, Readiness};
use crate::signals::{CleanupPaths, Signals};
use crate::{http, start_lines};
use nkv::message::RankInfo;
use nkv::{Address, Ended, Node};
use nkv_programs::exit;
use nkv_programs::settings::Settings;
use nkv_store::clock::{BootClock, Clock};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// How long leaving the cluster may take after the drain.
/// The SSD tier may take five seconds of it.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Pause before a fresh start, doubled with each further one in a row, up to [`REJOIN_PAUSE_MAX`].
const REJOIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a fresh start.
const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Least time between two log lines about fresh starts.
const AFRESH_LINES_MS: u64 = 60_000;
/// A node that ran for this long ends a row of fresh starts.
const STEADY_MS: u64 = 60_000;

/// Why the process ends without being asked to.
#[derive(Debug)]
pub(crate) struct End {
    /// Exit code.
    pub(crate) code: u8,
    /// One clear sentence.
    pub(crate) why: String,
}

impl End {
    fn new(code: u8, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

/// Runs until asked to end.
///
/// # Errors
/// [`End`] with the exit code and the reason.
pub(crate) async fn run(mut settings: Settings) -> Result<(), End> {
    start_lines::before(&settings);
    listens_here(settings.node.listen)?;
    let cleanup = CleanupPaths::default();
    let mut signals = Signals::listen(cleanup.clone())
        .map_err(|e| End::new(exit::LOCAL, format!("signals cannot be handled: {e}")))?;
    let readiness = Readiness::joining();
    let http = serve_http(&settings, &readiness).await?;
    settings.node.http = http.map(|at| reachable(at, settings.node.listen).to_string());
    let (mut row, mut afresh) = (0, AfreshLines::default());
    loop {
        readiness.set(Phase::Joining);
        let node = tokio::select! {
            name = signals.asked() => {
                tracing::info!("{name} before joining: nothing to drain");
                return Ok(());
            }
            started = Node::start(settings.node.clone()) => {
                Arc::new(started.map_err(|e| End::new(exit::of_start(&e), e.to_string()))?)
            }
        };
        let since = BootClock.now_ms();
        cleanup.set(node.files());
        // Before the ready line: its reader may send a request at once.
        readiness.set(Phase::Running(node.clone()));
        start_lines::joined(&node, http);
        start_lines::print_ready(&settings, node.info(), http);
        keep_port(&mut settings, node.info());
        let outcome = serve(&node, &settings, (&readiness, &cleanup), &mut signals).await;
        readiness.set(Phase::Without("stopping"));
        stop(node).await;
        cleanup.set(Vec::new());
        let Some(why) = outcome? else { return Ok(()) };
        let steady = BootClock.now_ms().saturating_sub(since) >= STEADY_MS;
        row = if steady { 1 } else { row + 1 };
        if row > settings.rejoins {
            let why = format!("{why}; {row} times in a row: give --rejoins to try more often");
            return Err(End::new(exit::UNREACHED, why));
        }
        afresh.log(&why, (row, settings.rejoins));
        tokio::select! {
            _ = signals.asked() => return Ok(()),
            () = tokio::time::sleep(pause_before(row)) => {}
        }
    }
}

/// Checks that `--listen` is an address of this host: later it would be a bind error without a
/// remedy.
fn listens_here(listen: IpAddr) -> Result<(), End> {
    match TcpListener::bind((listen, 0)) {
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
            let why = format!("--listen {listen} is no address of this host (see ip addr)");
            Err(End::new(exit::USAGE, why))
        }
        // Other errors are reported by the node when it binds its own port.
        _ => Ok(()),
    }
}

/// The address at which others reach a server bound to `at`: a wildcard address is replaced by
/// `listen`.
fn reachable(at: SocketAddr, listen: IpAddr) -> SocketAddr {
    if at.ip().is_unspecified() { SocketAddr::new(listen, at.port()) } else { at }
}

async fn serve_http(settings: &Settings, readiness: &Readiness) -> Result<Option<SocketAddr>, End> {
    let Some(address) = settings.http else {
        return Ok(None);
    };
    match http::serve(address, readiness.clone()).await {
        Ok(local) => Ok(Some(local)),
        Err(e) => {
            let in_use = e.kind() == std::io::ErrorKind::AddrInUse;
            let code = if in_use { exit::LOCAL } else { exit::USAGE };
            Err(End::new(code, format!("--http {address}: {e}; give another address, or off")))
        }
    }
}

/// Serves until a signal or the node's own end: then the reason if a new incarnation can go on.
async fn serve(
    node: &Arc<Node>,
    settings: &Settings,
    (readiness, cleanup): (&Readiness, &CleanupPaths),
    signals: &mut Signals,
) -> Result<Option<String>, End> {
    tokio::select! {
        name = signals.asked() => {
            // Includes segments mounted since; none is mounted from here on.
            cleanup.set(node.files());
            readiness.set(Phase::Draining(node.clone()));
            drain(node, settings, name).await;
            Ok(None)
        }
        ended = node.ended() => match ended {
            Ended::Gone => Ok(Some("this rank was declared gone".to_string())),
            Ended::ActorFailed(what) => {
                Err(End::new(exit::BROKEN, format!("{what}: start this rank again")))
            }
        },
    }
}

async fn drain(node: &Node, settings: &Settings, name: &str) {
    let limit = Duration::from_millis(settings.drain_ms);
    tracing::info!("{name}: no new plans; finishing open plans within {} ms", settings.drain_ms);
    let report = node.drain(limit).await;
    tracing::info!(
        "drained in {} ms: {} plans finished, {} given up",
        report.waited_ms,
        report.plans_finished,
        report.plans_left
    );
}

/// Leaves the cluster and unlinks. A node that does not finish in time is dropped, which unlinks
/// too.
async fn stop(node: Arc<Node>) {
    // HTTP handlers use the node only under the lock, and the last phase has removed it.
    let Some(node) = Arc::into_inner(node) else {
        return;
    };
    if tokio::time::timeout(STOP_LIMIT, node.stop()).await.is_err() {
        tracing::warn!("leaving took more than {} ms", STOP_LIMIT.as_millis());
    }
}

/// Others look for a restarted rank at its old address. Rank 0 must keep its port; another rank
/// takes a new one if its old port is in use by then.
fn keep_port(settings: &mut Settings, info: &RankInfo) {
    if let Address::Tcp(host_port) = &info.control
        && let Some(port) = host_port.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
    {
        match settings.node.rank {
            0 => settings.node.port = port,
            _ => settings.node.control_port = port,
        }
    }
}

/// Log lines about fresh starts: the first at once, further ones once a minute with the number that
/// was not logged.
#[derive(Debug, Default)]
struct AfreshLines {
    logged_ms: Option<u64>,
    untold: u32,
}

impl AfreshLines {
    fn log(&mut self, why: &str, (row, most): (u32, u32)) {
        if let Some(before) = self.next(BootClock.now_ms()) {
            tracing::warn!(before, "{why}; starting afresh ({row} of {most})");
        }
    }

    /// Number of fresh starts not logged before this one; `None`: this one is not logged either.
    fn next(&mut self, now_ms: u64) -> Option<u32> {
        if self.logged_ms.is_some_and(|at| now_ms < at + AFRESH_LINES_MS) {
            self.untold += 1;
            return None;
        }
        self.logged_ms = Some(now_ms);
        Some(std::mem::take(&mut self.untold))
    }
}

fn pause_before(row: u32) -> Duration {
    REJOIN_PAUSE.saturating_mul(1 << (row - 1).min(16)).min(REJOIN_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        AFRESH_LINES_MS, AfreshLines, REJOIN_PAUSE, REJOIN_PAUSE_MAX, pause_before, reachable,
    };

    #[test]
    fn fresh_starts_are_logged_at_once_and_then_once_a_minute() {
        let mut lines = AfreshLines::default();
        let reachable_at: Vec<_> =
            [0, 1, 2, AFRESH_LINES_MS, AFRESH_LINES_MS + 1].map(|ms| lines.next(ms)).into();
        assert_eq!(reachable_at, [Some(0), None, None, Some(2), None]);
    }

    #[test]
    fn a_server_at_a_wildcard_address_is_shown_with_a_reachable_one() {
        let reachable_at =
            |at: &str| reachable(at.parse().unwrap(), [10, 0, 0, 7].into()).to_string();
        assert_eq!(reachable_at("0.0.0.0:80"), "10.0.0.7:80");
        assert_eq!(reachable_at("127.0.0.1:80"), "127.0.0.1:80");
    }

    #[test]
    fn the_pause_before_a_fresh_start_grows_to_a_bound() {
        assert_eq!(pause_before(1), REJOIN_PAUSE);
        assert_eq!(pause_before(3), REJOIN_PAUSE * 4);
        assert_eq!(pause_before(u32::MAX), REJOIN_PAUSE_MAX);
    }
}
