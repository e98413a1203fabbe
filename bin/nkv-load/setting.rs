//! The settings of a run as text: the flags that apply in its mode, the program and the machine. It
//! is for people who read a report later; no secret may appear here.

use crate::flags::{Flags, Mode, Weights};
use clap::ValueEnum;
use nkv_programs::sizes::show_bytes;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Description of a run, for the head of its report and the last table there.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// What kind of run it was, in one sentence.
    pub(crate) title: String,
    /// Name and value of each setting of the run.
    pub(crate) rows: Vec<(&'static str, String)>,
}

impl Setting {
    /// Of a run that begins now.
    pub(crate) fn of(flags: &Flags, mode: Mode) -> Self {
        let mut rows = of_mode(flags, mode);
        rows.extend([
            ("started", utc_now()),
            ("program", format!("nkv-load {}", env!("CARGO_PKG_VERSION"))),
            ("machine", machine()),
        ]);
        Self { title: title(flags, mode), rows }
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
        Mode::RoundTrips => format!("round trips of single operations, {at}"),
        Mode::Pour => format!("puts back to back of one producer, {at}"),
        Mode::Serve => "one rank".to_string(),
    }
}

fn of_mode(flags: &Flags, mode: Mode) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(address) = &flags.connect {
        rows.push(("connected to", address.clone()));
        rows.push(("job", flags.job.clone()));
        let name = flags.transport.to_possible_value();
        rows.extend(name.map(|name| ("transport", name.get_name().to_string())));
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
            let Weights { put, get, exists } = flags.mix;
            rows.push(("put : get : exists", format!("{put}:{get}:{exists}")));
        }
        Mode::Trace => rows.extend(of_trace(flags)),
        Mode::Bench | Mode::RoundTrips | Mode::Pour | Mode::Serve => {}
        Mode::Budgets => rows.push(("ring", show_bytes(flags.ring()))),
        Mode::Lookups => rows.push(("objects", flags.lookups.unwrap_or(0).to_string())),
    }
    rows
}

fn of_trace(flags: &Flags) -> Vec<(&'static str, String)> {
    let speed = match flags.speed {
        0.0 => "as fast as possible".to_string(),
        factor => format!("{factor} times the trace's own"),
    };
    let mut rows = vec![
        ("trace", flags.trace.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("requests", flags.requests.map_or("all".to_string(), |n| format!("the first {n}"))),
        ("block size", show_bytes(flags.block_bytes)),
        ("speed", speed),
    ];
    if flags.connect.is_none() {
        rows.push(("eviction policy", flags.policy.to_string()));
        rows.push(("watermarks", flags.watermarks.to_string()));
        rows.push(("quarantine", format!("{} ms", flags.quarantine_ms)));
        if let Some(dir) = &flags.ssd_dir {
            let of = |value: Option<clap::builder::PossibleValue>| {
                value.map(|value| value.get_name().to_string()).unwrap_or_default()
            };
            let (policy, durability) = (&flags.ssd_policy, &flags.ssd_durability);
            rows.push(("SSD directory", dir.display().to_string()));
            rows.push(("SSD policy", of(policy.to_possible_value())));
            rows.push(("SSD durability", of(durability.to_possible_value())));
        }
        rows.extend(flags.restart_at.map(|n| ("killed and restarted", format!("after {n}"))));
    }
    rows
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}, {cores} cores", std::env::consts::ARCH, ["Linux", kernel.trim()].join(" "))
}

/// The date and time, to the minute.
fn utc_now() -> String {
    let mut now = String::new();
    // As 2026-11-24T05:48:43.123456Z; a string takes all that is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut now));
    now.get(..16).unwrap_or_default().replace('T', " ") + " UTC"
}

#[cfg(test)]
mod tests {
    use super::{Setting, utc_now};
    use crate::flags::Flags;
    use clap::Parser;

    #[test]
    fn a_date_has_a_day_and_a_minute() {
        let now = utc_now();
        let digits = now.replace(|c: char| c.is_ascii_digit(), "9");
        assert_eq!(digits, "9999-99-99 99:99 UTC", "{now}");
    }

    #[test]
    fn a_setting_names_the_flags_that_count_in_its_mode() {
        let rows = |args: &[&str]| {
            let flags = Flags::parse_from([&["nkv-load"], args].concat());
            let setting = Setting::of(&flags, flags.mode().unwrap());
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
