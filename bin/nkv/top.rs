//! `nkv top`: a live view of a cluster on a terminal. One thread asks the master and every rank,
//! each with a limit of its own; another draws what is known by then and listens to keys. So a rank
//! that is gone is shown as gone and delays nothing. Without a terminal it prints one screen and
//! ends.

mod collect;
mod draw;
mod model;
mod status_page;
mod terminal;

use crate::cli_error::CliError;
use crate::{Cluster, output};
use clap::Args;
use collect::Collector;
use model::Model;
use nkv_programs::exit;
use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Seconds between two samples of the cluster.
const INTERVAL_S: RangeInclusive<f64> = 0.2..=60.0;

/// A live view of ranks, heaps, traffic and actors; without a terminal, one picture as text
///
/// It goes on while the master is down. It ends with q, with SIGINT, SIGTERM or SIGHUP, and
/// when its terminal is gone, and gives the terminal back as it was.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Top {
    /// Time between two samples, 0.2 to 60
    #[arg(short, long, value_name = "SECONDS", default_value = "1",
        allow_negative_numbers = true, value_parser = interval)]
    interval: Duration,
    /// Print one picture and end (so does --json)
    #[arg(long)]
    once: bool,
}

impl Top {
    /// Shows the cluster until the user or a signal ends it, or once: then from two samples, an
    /// interval apart, so that rates can be shown.
    pub(crate) fn run(&self, cluster: Cluster<'_>) -> Result<u8, CliError> {
        let client = cluster.client()?;
        let Cluster { flags, nodes, config, runtime, .. } = cluster;
        let mut model = Model::new(flags.job.clone());
        let mut collector = Collector::new(client, nodes, config);
        let live = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if live && !self.once && !flags.json {
            terminal::show(runtime, collector, model, self.interval)?;
            return Ok(exit::DONE);
        }
        let screen = runtime.block_on(async {
            model.update(collector.sample().await);
            tokio::time::sleep(self.interval).await;
            model.update(collector.sample().await)
        });
        output::show(flags.json, &screen, || draw::plain(&screen))
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('s').unwrap_or(text).parse::<f64>() {
        Ok(seconds) if INTERVAL_S.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("give {} to {} seconds", INTERVAL_S.start(), INTERVAL_S.end())),
    }
}
