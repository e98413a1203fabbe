//! The command line. The values of settings stay text here: `settings` parses them and names the
//! source of a wrong one.

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Args, Command, FromArgMatches};
use nkv_programs::node_settings::{KEYS, NO_PREFAULT, SettingFlags, flag};
use nkv_programs::packaging::{self, PackagingFlags};
use nkv_programs::settings::Given;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// The parsed command line.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flags {
    /// Values of settings by key, as typed.
    #[arg(skip)]
    pub(crate) values: BTreeMap<&'static str, String>,
    /// Settings as TOML, such as nkv.toml (also NKV_CONFIG)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting as TOML, with where its value came from, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) packaging: PackagingFlags,
}

const LONG_ABOUT: &str = "\
Runs one rank of an nkv cluster.

Flags win over NKV_* variables over --config FILE over what torchrun, Open MPI or Slurm export over
defaults. Every flag has a variable (--heap-bytes: NKV_HEAP_BYTES) and a key in the file
(heap_bytes). --print-config shows every value with where it came from; --log nkv_node=debug does at
start.

Every connection is authenticated: by the job's secret, the same on every rank and client, or,
without one, by a file that only this user on this host can read. Listening on anything but loopback
needs a secret. It is never a flag, since other users can read the flags of a process.

SIGTERM or SIGINT: no new plans, open plans are finished within --drain-ms, the segment is
unlinked, exit 0. Another signal ends the process at once; the same one only after half a second:
launchers send one twice.";

/// The parser.
pub(crate) fn command() -> Command {
    let command = Command::new("nkv-node")
        .version(env!("NKV_BUILD_VERSION"))
        .after_long_help(packaging::statuses());
    // `augment_args` also sets a description: the program's own is set after it.
    let command = Flags::augment_args(SettingFlags::augment_args(command));
    command.about("Runs one rank of an nkv cluster").long_about(LONG_ABOUT)
}

/// The parser with the possible values of flags that take one of a few, for completions and the man
/// page. The command line is parsed without them: its values are checked later, with those of
/// variables and of the file.
pub(crate) fn with_choices() -> Command {
    command().mut_args(|arg| {
        let shown = arg.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
        let names: Vec<String> = shown.split('|').map(str::to_string).collect();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if names.len() > 1 && names.iter().all(|name| name.chars().all(is_name)) {
            arg.value_parser(PossibleValuesParser::new(names))
        } else {
            arg
        }
    })
}

impl Flags {
    /// The settings among them.
    pub(crate) fn given(&self) -> Given {
        Given { values: self.values.clone(), config: self.config.clone(), named: flag }
    }
}

/// Reads the command line.
///
/// # Errors
/// clap's error: help, version, or a wrong command line.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, clap::Error> {
    let matches = packaging::with_plain_usage(command()).try_get_matches_from(args)?;
    // A switch has the text of its value, too.
    let typed = |id: &str| {
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let text = matches.get_raw(id).filter(|_| given)?.next()?;
        Some(text.to_string_lossy().into_owned())
    };
    let mut values: BTreeMap<_, _> =
        KEYS.iter().filter_map(|key| Some((key.as_str(), typed(key)?))).collect();
    values.extend(typed(NO_PREFAULT).map(|text| ("prefault", text)));
    Ok(Flags { values, ..Flags::from_arg_matches(&matches)? })
}

#[cfg(test)]
mod tests {
    use super::{KEYS, command, parse, with_choices};
    use nkv_programs::node_settings::{SWITCHES, flag, variable};
    use std::ffi::OsString;

    fn flags(args: &[&str]) -> super::Flags {
        let args = [&["nkv-node"], args].concat();
        parse(args.iter().map(OsString::from)).unwrap()
    }

    #[test]
    fn the_parser_is_sound_and_every_setting_has_its_flag() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        assert!(help.starts_with("Runs one rank") && help.contains("Exit status:"), "{help}");
        let flags = flags(&["--heap-bytes", "64KiB", "--rank=2", "--print-config"]);
        assert_eq!(flags.values.get("heap_bytes").map(String::as_str), Some("64KiB"));
        assert_eq!(flags.values.get("rank").map(String::as_str), Some("2"));
        assert!(flags.print_config && flags.config.is_none());
        for flag in KEYS.iter().filter(|key| !SWITCHES.contains(&key.as_str())).map(|key| flag(key))
        {
            assert_eq!(self::flags(&[&flag, "x"]).values.len(), 1, "{flag}");
            assert_eq!(self::flags(&[&flag, "-1"]).values.len(), 1, "{flag}");
        }
    }

    #[test]
    fn of_prefault_and_no_prefault_the_last_wins() {
        let value = |args: &[&str]| flags(args).values.get("prefault").cloned();
        assert_eq!(value(&[]), None);
        assert_eq!(value(&["--prefault"]).as_deref(), Some("true"));
        assert_eq!(value(&["--no-prefault"]).as_deref(), Some("false"));
        assert_eq!(value(&["--no-prefault", "--prefault"]).as_deref(), Some("true"));
        assert_eq!(value(&["--prefault", "--no-prefault"]).as_deref(), Some("false"));
    }

    #[test]
    fn pinning_is_a_switch() {
        let value = |args: &[&str]| flags(args).values.get("pool_pinned").cloned();
        assert_eq!(value(&[]), None);
        assert_eq!(value(&["--pool-pinned"]).as_deref(), Some("true"));
    }

    #[test]
    fn flags_that_take_one_of_a_few_names_are_completed_and_the_program_is_what_it_is_about() {
        let command = with_choices();
        let names = |key: &str| {
            let arg = command.get_arguments().find(|a| a.get_id() == key).unwrap();
            arg.get_possible_values().iter().map(|v| v.get_name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("policy"), ["lru", "lru2", "prefix", "fifo"]);
        assert_eq!(names("log_format"), ["text", "json"]);
        assert_eq!(names("ssd_policy"), ["evict_only", "write_through"]);
        assert!(names("rdma_devices").is_empty() && names("heap_bytes").is_empty());
        assert_eq!(command.get_about().unwrap().to_string(), "Runs one rank of an nkv cluster");
    }

    #[test]
    fn names_follow_from_the_key() {
        assert!(KEYS.iter().any(|key| key == "heap_bytes"));
        assert_eq!(flag("heap_bytes"), "--heap-bytes");
        assert_eq!(variable("heap_bytes"), "NKV_HEAP_BYTES");
    }
}
