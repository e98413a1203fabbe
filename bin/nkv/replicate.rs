//! `nkv replicate`: gives keys more replicas, or fewer, and waits until they have them.

use crate::Cluster;
use crate::cli_error::CliError;
use crate::keys::shown;
use crate::objects::ranks_of;
use crate::output;
use clap::Args;
use nkv::message::MAX_REPLICAS;
use nkv::{Blocking, ErrorKind};
use nkv_programs::exit;
use nkv_store::clock::{BootClock, Clock};
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// Pause between two looks at what is there.
const POLL: Duration = Duration::from_millis(20);

/// Gives keys so many replicas, or leaves them so many
///
/// The node of a replica makes those that are missing, on other hosts as far as there are any, and
/// makes lost ones again. Exit status 1 if a key is not in memory, or has another number of
/// replicas when the time is over: other ranks have no room, or there are too few.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Replicate {
    /// The keys
    #[arg(required = true)]
    keys: Vec<OsString>,
    /// Replicas of each
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_REPLICAS)))]
    replicas: u8,
    /// Seconds to wait for them; 0: only ask
    #[arg(long, value_name = "SECONDS", default_value_t = 10, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(0..=86_400))]
    wait: u32,
}

impl Replicate {
    /// One line per key; the command fails with the first error that is not "absent".
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let keys = cluster.keys(&self.keys)?;
        let handle = cluster.connect()?;
        let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let asked = handle.replicate(&bytes, self.replicas);
        let until_ms = BootClock.now_ms() + u64::from(self.wait) * 1_000;
        let (mut rows, mut text, mut failed, mut missing) =
            (Vec::new(), String::new(), None, false);
        for (key, asked) in keys.iter().zip(asked) {
            let absent = match asked {
                Ok(()) => false,
                Err(e) if e.kind() == ErrorKind::NotFound => true,
                Err(e) => {
                    failed.get_or_insert((key, e));
                    continue;
                }
            };
            missing |= absent;
            let (ranks, made) = match absent {
                true => (Vec::new(), 0),
                false => self.awaited(&handle, key, until_ms),
            };
            text += &match (absent, made) {
                (true, _) => format!("{}: absent\n", shown(key)),
                (_, n) => {
                    let (key, on) = (shown(key), output::numbers(&ranks, ", "));
                    format!("{key}: {n} of {} replicas, on ranks {on}\n", self.replicas)
                }
            };
            rows.push(json!({ "key": shown(key), "ranks": ranks, "replicas": made }));
        }
        let whole =
            |row: &serde_json::Value| row["replicas"].as_u64() == Some(u64::from(self.replicas));
        let all = !missing && (rows.iter().all(whole) || self.wait == 0);
        cluster.show(&json!({ "wanted": self.replicas, "keys": rows }), || text)?;
        let status = if all { exit::DONE } else { exit::ABSENT };
        failed.map_or(Ok(status), |(key, e)| Err(CliError::about(key, e, || None)))
    }

    /// The ranks that have a key, and how many replicas it has, once those are as many as wanted or
    /// the time is over.
    fn awaited(&self, handle: &Blocking, key: &[u8], until_ms: u64) -> (Vec<u32>, usize) {
        loop {
            let made = handle.count_replicas(key).unwrap_or_default();
            if made == usize::from(self.replicas) || BootClock.now_ms() >= until_ms {
                return (ranks_of(handle, key), made);
            }
            std::thread::sleep(POLL);
        }
    }
}
