//! One run of one seed, from an empty cluster to the verdict.

use crate::cluster::Cluster;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::plan::{OPS, Plan};
use crate::trace::Trace;
use crate::{ending, faults};
use std::sync::Once;
use std::time::Duration;
use tokio::task::LocalSet;

/// Purpose of the faults' stream of choices.
const FAULTS: u64 = 5;
/// Limit of the virtual time of all calls: much more than they need.
const WORK: Duration = Duration::from_secs(600);
/// Pause between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub ranks: usize,
    pub ops: u64,
    pub faults: u64,
    pub virtual_ms: u64,
    /// Hash of everything that happened, and of how many events it is.
    pub trace: (u64, u64),
    pub wrong: Vec<String>,
    pub coverage: Coverage,
}

/// Suppresses the messages of panics that a run injects.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let injected = info.payload().downcast_ref::<&str>() == Some(&"injected panic");
            if !injected {
                default_hook(info);
            }
        }));
    });
}

/// Runs a seed. `verbose`: every event is printed.
pub fn run(seed: u64, verbose: bool) -> Outcome {
    keep_quiet();
    if verbose {
        // The program's own log, if requested.
        let filter = tracing_subscriber::EnvFilter::from_env("NKV_SIM_LOG");
        let _ = tracing_subscriber::fmt().with_env_filter(filter).without_time().try_init();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs nothing that could be missing");
    let set = LocalSet::new();
    let outcome = runtime.block_on(set.run_until(play(seed, verbose)));
    // Its tasks end before the runtime whose timers they hold.
    drop(set);
    outcome
}

async fn play(seed: u64, verbose: bool) -> Outcome {
    let (plan, trace) = (Plan::of(seed), Trace::new(verbose));
    trace.note("plan", format!("{plan:?}"));
    let cluster = Cluster::new(plan, trace.clone());
    cluster.start();
    let work = async {
        faults::all(cluster.clone(), Dice::new(seed, FAULTS)).await;
        while cluster.ops.get() < OPS {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(WORK, work).await.is_err() {
        let n = cluster.ops.get();
        cluster.ledger.wrong(format!("only {n} of {OPS} calls ended within {WORK:?}"));
    }
    let placed = cluster.plan.placement.split(':').next().unwrap_or_default();
    cluster.coverage.borrow_mut().count(&format!("placed: {placed}"));
    trace.note("closing", cluster.ops.get());
    ending::check(cluster.clone()).await;
    let coverage = cluster.coverage.borrow().clone();
    let faults = coverage.0.get("faults").copied().unwrap_or_default();
    Outcome {
        seed,
        ranks: cluster.plan.ranks.len(),
        ops: cluster.ops.get(),
        faults,
        virtual_ms: trace.now_ms(),
        trace: trace.sum(),
        wrong: cluster.ledger.verdict(),
        coverage,
    }
}
