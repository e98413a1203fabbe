//! The part of libtest's command line that `cargo test`, nextest and people use. This test needs
//! its own `main` because it starts its own binary again as the producer that is killed.

use nkv::store::clock::{BootClock, Clock};
use std::panic::catch_unwind;
use std::process::ExitCode;

/// What libtest exits with when a test failed.
const EXIT_FAILED: u8 = 101;

/// One test.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Panics if it does not hold.
    pub run: fn(),
}

/// What the command line asks for.
#[derive(Default)]
struct Wanted {
    list: bool,
    terse: bool,
    only_ignored: bool,
    exact: bool,
    filters: Vec<String>,
    skip: Vec<String>,
}

impl Wanted {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wanted = Self::default();
        let mut args = args;
        while let Some(arg) = args.next() {
            let (flag, mut value) = match arg.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_string())),
                _ => (arg.as_str(), None),
            };
            let mut value =
                || value.take().or_else(|| args.next()).ok_or(format!("{arg}: no value"));
            match flag {
                "--list" => wanted.list = true,
                "--exact" => wanted.exact = true,
                "--ignored" => wanted.only_ignored = true,
                "--format" => wanted.terse = value()? == "terse",
                "--skip" => wanted.skip.push(value()?),
                // Accepted without effect: cases run one at a time, uncaptured, without colours.
                "--test-threads" | "--color" | "-Z" => drop(value()?),
                "--include-ignored" | "--nocapture" | "--no-capture" | "--show-output" | "-q"
                | "--quiet" => {}
                _ if flag.starts_with('-') => return Err(format!("{arg} is not known here")),
                _ => wanted.filters.push(arg),
            }
        }
        Ok(wanted)
    }

    fn includes(&self, name: &str) -> bool {
        let hit = |f: &String| {
            if self.exact { name == f } else { name.contains(f.as_str()) }
        };
        let picked = self.filters.is_empty() || self.filters.iter().any(hit);
        // No case is ever ignored.
        picked && !self.skip.iter().any(hit) && !self.only_ignored
    }
}

/// Lists or runs what the command line asks for.
pub fn main(cases: &[Case]) -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let picked: Vec<_> = cases.iter().filter(|c| wanted.includes(c.name)).collect();
    if wanted.list {
        picked.iter().for_each(|c| println!("{}: test", c.name));
        if !wanted.terse {
            println!("\n{} tests, 0 benchmarks", picked.len());
        }
        return ExitCode::SUCCESS;
    }
    let started = BootClock.now_ms();
    println!("\nrunning {} tests", picked.len());
    let mut failed = 0;
    for case in &picked {
        let held = catch_unwind(case.run).is_ok();
        failed += u32::from(!held);
        println!("test {} ... {}", case.name, if held { "ok" } else { "FAILED" });
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        picked.len() as u32 - failed,
        cases.len() - picked.len(),
        (BootClock.now_ms() - started) as f64 / 1000.0,
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
}
