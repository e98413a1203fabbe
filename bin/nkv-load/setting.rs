//! The settings of a run as text: the flags that apply in its mode, the program and the machine. It
//! is for people who read a report later; no secret may appear here.

use crate::flags::{Flags, LoadTransport, Mode};
use crate::html::Setting;
use crate::stopwatch::now_ns;
use nkv_programs::sizes::show_bytes;
use std::time::SystemTime;

/// A run that begins now.
pub(crate) struct Beginning {
    start_ns: u64,
    started: String,
}

impl Beginning {
    /// Takes the time.
    pub(crate) fn now() -> Self {
        Self { start_ns: now_ns(), started: utc_now() }
    }

    /// The run's description; to be called when the run has ended.
    pub(crate) fn setting(self, flags: &Flags, mode: Mode) -> Setting {
        let rows = [
            of_mode(flags, mode),
            vec![
                ("started", self.started),
                ("program", format!("nkv-load {}", env!("CARGO_PKG_VERSION"))),
                ("machine", machine()),
            ],
        ];
        Setting {
            title: title(flags, mode),
            rows: rows
                .concat()
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
            wall_ns: now_ns().saturating_sub(self.start_ns),
        }
    }
}

fn title(flags: &Flags, mode: Mode) -> String {
    let at = match &flags.connect {
        Some(address) => format!("running nodes at {address}"),
        None => "an embedded cluster".to_string(),
    };
    match mode {
        Mode::Embedded => "objects of many sizes through an embedded cluster".to_string(),
        Mode::Mix => format!("a mix of operations against {at}"),
        Mode::Trace => format!("a trace of prefix-cache requests over {at}"),
        Mode::Bench => format!("single operations of one client, {at}"),
        Mode::Budgets => format!("operations that have budgets, {at}"),
        Mode::Lookups => format!("location lookups, {at}"),
        Mode::Pour => format!("puts back to back of one producer, {at}"),
    }
}

fn of_mode(flags: &Flags, mode: Mode) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(address) = &flags.connect {
        rows.push(("connected to", address.clone()));
        rows.push(("job", flags.job.clone()));
        rows.push(("transport", transport(flags.transport).to_string()));
    }
    if flags.pause_us > 0 {
        rows.push(("pause", format!("{} us between operations", flags.pause_us)));
    }
    match mode {
        Mode::Embedded => {
            rows.push(("duration", format!("{:?}", flags.run_length())));
            if flags.inject_corruption {
                rows.push(("corruption", "one stored byte is flipped on request".to_string()));
            }
        }
        Mode::Mix => {
            rows.push(("duration", format!("{:?}", flags.run_length())));
            rows.push(("clients", flags.clients.to_string()));
            rows.push(("object size", show_bytes(flags.size)));
            rows.push(("put : get : exists", flags.mix.to_string()));
        }
        Mode::Trace => rows.extend(of_trace(flags)),
        Mode::Bench | Mode::Pour => {}
        Mode::Budgets => rows.push(("ring", show_bytes(flags.ring()))),
        Mode::Lookups => rows.push(("objects", flags.lookups.unwrap_or(0).to_string())),
    }
    rows
}

fn of_trace(flags: &Flags) -> Vec<(&'static str, String)> {
    let file = flags.trace.as_deref().and_then(|path| path.file_name());
    let speed = match flags.speed {
        0.0 => "as fast as possible".to_string(),
        factor => format!("{factor} times the trace's own"),
    };
    let mut rows = vec![
        ("trace", file.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()),
        ("requests", flags.requests.map_or("all".to_string(), |n| format!("the first {n}"))),
        ("block size", show_bytes(flags.block_bytes)),
        ("speed", speed),
    ];
    if flags.connect.is_none() {
        rows.push(("eviction policy", flags.policy.to_string()));
        rows.push(("watermarks", format!("{}/{}%", flags.watermarks.hi, flags.watermarks.lo)));
        rows.push(("quarantine", format!("{} ms", flags.quarantine_ms)));
    }
    rows
}

fn transport(transport: LoadTransport) -> &'static str {
    match transport {
        LoadTransport::Auto => "auto",
        LoadTransport::Embedded => "embedded",
        LoadTransport::Shm => "shm",
        LoadTransport::Tcp => "tcp",
        LoadTransport::Rdma => "rdma",
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}, {cores} cores", std::env::consts::ARCH, ["Linux", kernel.trim()].join(" "))
}

#[expect(clippy::disallowed_methods, reason = "a date for people; nothing is computed from it")]
fn utc_now() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    utc(now.as_secs())
}

/// Seconds since 1970 as a date and time, by the civil calendar.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // In years that begin in March, and in eras of 400 of them, only the last day is irregular.
    let since_era_0 = days + 719_468;
    let (era, day) = (since_era_0 / 146_097, since_era_0 % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let date = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (rest / 3_600, rest % 3_600 / 60);
    format!("{year}-{month:02}-{date:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::{Beginning, utc};
    use crate::flags::Flags;
    use clap::Parser;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_setting_names_the_flags_that_count_in_its_mode() {
        let rows = |args: &[&str]| {
            let flags = Flags::parse_from([&["nkv-load"], args].concat());
            let setting = Beginning::now().setting(&flags, flags.mode().unwrap());
            setting
                .rows
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        let trace = rows(&["--trace", "/a/b.jsonl", "--policy", "lru2"]);
        assert!(trace.contains(&"trace=b.jsonl".to_string()), "{trace:?}");
        assert!(trace.contains(&"eviction policy=lru2".to_string()), "{trace:?}");
        let mix = rows(&["--connect", "h:1", "--clients", "4"]);
        assert!(mix.contains(&"clients=4".to_string()), "{mix:?}");
        assert!(!mix.iter().any(|row| row.starts_with("eviction")), "{mix:?}");
    }
}
