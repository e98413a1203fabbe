//! `nkv top`: a live view of a cluster on a terminal. One thread asks the master and every rank,
//! each with a limit of its own; another draws what is known by then and listens to keys. So a rank
//! that is gone is shown as gone and delays nothing. Without a terminal it prints one screen and
//! ends.

mod collect;
mod draw;
mod model;
mod status_page;
mod terminal;
mod text;

use crate::cli_error::{CliError, CommandOutcome};
use crate::output;
use crate::retry_policy::{RetryPolicy, is_starting};
use collect::Collector;
use model::{Model, Screen};
use nkv::{Address, ClientConfig};
use nkv_programs::endpoints::{self, NoneServes};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The options of `nkv top`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Top {
    /// Time between two samples.
    pub(crate) interval: Duration,
    /// Print one screen, then end.
    pub(crate) once: bool,
    /// Print that screen as JSON.
    pub(crate) json: bool,
}

impl Top {
    /// Shows the cluster of `nodes` until the user or a signal ends it.
    pub(crate) fn run(
        self,
        runtime: Runtime,
        nodes: Vec<Address>,
        config: ClientConfig,
        retry: &RetryPolicy,
    ) -> Result<CommandOutcome, CliError> {
        let job = config.job.clone();
        let starting = |none: &NoneServes| none.all(is_starting);
        let client =
            retry.retry(starting, || runtime.block_on(endpoints::connect(&nodes, &config)))?;
        let collector = Collector::new(client, nodes, config);
        let model = Model::new(job);
        let live = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if self.once || self.json || !live {
            return self.print(&runtime, collector, model);
        }
        terminal::show(runtime, collector, model, self.interval)?;
        Ok(CommandOutcome::Found)
    }

    /// Takes two samples, an interval apart, so that rates can be shown.
    fn print(
        self,
        runtime: &Runtime,
        mut collector: Collector,
        mut model: Model,
    ) -> Result<CommandOutcome, CliError> {
        let screen: Screen = runtime.block_on(async {
            model.update(collector.sample().await);
            tokio::time::sleep(self.interval).await;
            model.update(collector.sample().await)
        });
        if self.json {
            output::json(&screen)?;
        } else {
            output::write(text::plain(&screen).as_bytes())?;
        }
        Ok(CommandOutcome::Found)
    }
}
