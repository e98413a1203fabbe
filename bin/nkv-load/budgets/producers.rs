//! Producers in processes of their own: this program started again with `--pour`. They start on a
//! line that all of them are sent at once, and each ends by itself.

use crate::flags::Flags;
use crate::report::{Rate, Report};
use crate::stop::Stop;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long the producers put.
pub(super) const LENGTH: Duration = Duration::from_millis(1500);

#[derive(Deserialize)]
struct ProducerOutcome {
    failed: u64,
    rates: Vec<Rate>,
}

/// Starts the producers, runs `meanwhile` at the same time, and adds up the rates that they print.
///
/// # Errors
/// If one cannot be started or prints no result.
pub(super) fn rates(
    flags: &Flags,
    processes: u32,
    stop: &Stop,
    meanwhile: impl FnOnce(),
    report: &mut Report,
) -> anyhow::Result<Vec<Rate>> {
    if stop.asked() {
        return Ok(Vec::new());
    }
    let mut started =
        (0..processes).map(|_| Producer::start(flags)).collect::<Result<Vec<_>, _>>()?;
    for producer in &mut started {
        producer.wait_until_ready()?;
    }
    for producer in &mut started {
        let pipe = producer.child.stdin.as_mut().context("a producer without a standard input")?;
        pipe.write_all(b"go\n").context("a producer ended before it started")?;
    }
    meanwhile();
    let none = |op: &'static str| Rate { op: op.into(), processes, per_s: 0.0 };
    let mut rates = ["put log", "put plan"].map(none);
    for producer in started {
        let outcome = producer.outcome()?;
        report.tally.failed_elsewhere(
            "puts of a producer (run nkv-load --pour 1 by hand to see why)",
            outcome.failed,
        );
        if outcome.failed > 0 {
            // The run was stopped: there are no rates.
            return Ok(Vec::new());
        }
        for rate in &mut rates {
            let same = outcome.rates.iter().filter(|outcome| outcome.op == rate.op);
            rate.per_s += same.map(|outcome| outcome.per_s).sum::<f64>();
        }
    }
    Ok(rates.into())
}

/// A producer process; dropping it ends the process.
struct Producer {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Producer {
    fn start(flags: &Flags) -> anyhow::Result<Self> {
        let address = flags.connect.as_deref().context("--connect")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--connect", address, "--job", &flags.job, "--json", "-", "--pour"]);
        command.arg(LENGTH.as_secs_f64().to_string());
        if let Some(file) = &flags.secret_file {
            command.arg("--secret-file").arg(file);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("a producer process")?;
        let stdout = child.stdout.take().context("a producer without a standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// Waits for its line "ready"; an error if another line comes or the process ends.
    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let line = line.trim();
        if line != "ready" {
            bail!(
                "a producer printed {line:?} instead of \"ready\": run nkv-load --pour 1 by hand"
            );
        }
        Ok(())
    }

    fn outcome(mut self) -> anyhow::Result<ProducerOutcome> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("a producer printed {line:?}"))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // It has ended already, unless something failed here.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
