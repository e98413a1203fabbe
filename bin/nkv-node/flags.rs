//! The command line, and the one table of settings from which flags, `NKV_*` variables and file
//! keys get their names. Values stay text here: `settings` parses them and names the source of a
//! wrong one.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use nkv_programs::packaging::{self, PackagingFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// One setting. Its flag is `--heap-bytes`, its variable `NKV_HEAP_BYTES`, its key `heap_bytes`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Key in the file; the other names follow from it.
    pub(crate) key: &'static str,
    value: &'static str,
    // Empty: as the value's name implies. bin/tests/system/reference/settings.rs tries both ends.
    range: &'static str,
    default: &'static str,
    help: &'static str,
}

const fn setting(
    key: &'static str,
    value: &'static str,
    range: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, range, default, help }
}

/// The switch that has two flags, `--prefault` and `--no-prefault`, and no value on the command
/// line.
pub(crate) const PREFAULT: &str = "prefault";

/// Every setting, in the order in which they are shown: key, value, range, default, help.
pub(crate) const SETTINGS: [Setting; 34] = [
    setting(
        "job",
        "NAME",
        "1 to 128 bytes without blanks",
        "torchrun's run id, Slurm's job and step, or nkv",
        "Job id; part of joining and of every segment's name",
    ),
    setting("rank", "N", "0 to world_size less one", "the launcher's, or 0", "Number of this rank"),
    setting("world_size", "N", "1 or more", "the launcher's, or 1", "Ranks in the job"),
    setting("master_addr", "HOST", "", "the launcher's, or 127.0.0.1", "Where rank 0 is"),
    setting(
        "port",
        "PORT",
        "0 to 65535",
        "7400",
        "Rank 0's control port, the same on every rank; 0 on rank 0 takes a free one",
    ),
    setting(
        "listen",
        "IP",
        "",
        "127.0.0.1",
        "Address of this host to listen on and to be reached at",
    ),
    setting(
        "secret_file",
        "FILE|none",
        "",
        "none: this user's processes on this host connect",
        "File with the job's secret, its user's alone (or NKV_SECRET holds the secret itself)",
    ),
    setting(
        "http",
        "IP:PORT|off",
        "",
        "127.0.0.1:0",
        "Where /healthz /readyz /status /metrics are served",
    ),
    setting(
        "heap_bytes",
        "BYTES",
        "1 to 8TiB",
        "a quarter of the memory there is, shared by the ranks of this host, at most 1GiB",
        "Payload bytes of this rank (KiB, MiB, GiB)",
    ),
    setting("memory", "shm|private", "", "shm", "Shared memory, or memory of this process only"),
    setting(
        PREFAULT,
        "BOOL",
        "",
        "true",
        "Touch every page at start, so that memory is refused then or never",
    ),
    setting(
        "page_bytes",
        "BYTES",
        "1 to 4294967295",
        "256KiB",
        "Bytes per page where a put names none; that of rank 0 counts",
    ),
    setting(
        "log_bytes",
        "BYTES",
        "0, or 16KiB to 8TiB less the heap",
        "0",
        "Device log beside the heap, for puts without a message; 0: none",
    ),
    setting(
        "atomic_domain",
        "cpu|nic",
        "",
        "cpu",
        "Who executes claims in the device log: processors of this host, or its RDMA device",
    ),
    setting(
        "device_alloc",
        "BOOL",
        "",
        "false",
        "Whether this node's own handle puts into device logs",
    ),
    setting("policy", "lru|lru2|fifo", "", "lru", "Which objects are evicted first"),
    setting(
        "watermarks",
        "HI/LO",
        "1 to 100, the higher first",
        "95/85",
        "Percent of the heap at which eviction starts and ends",
    ),
    setting(
        "quarantine_ms",
        "MS",
        "1 to 60000",
        "50",
        "How long retired memory is held before it is used again",
    ),
    setting(
        "write_ttl_ms",
        "MS",
        "1 to 86400000",
        "30000",
        "How long a producer has from open to commit",
    ),
    setting(
        "log_claim_ttl_ms",
        "MS",
        "1 to 86400000",
        "5000",
        "How long a claim in the device log may be open before all producers are asked",
    ),
    setting("ttl_ms", "MS", "400 to 86400000", "10000", "A rank not heard of for so long is gone"),
    setting(
        "heartbeat_ms",
        "MS",
        "0 to half of ttl_ms",
        "0",
        "Pause between heartbeats; 0: an eighth of the TTL, at most 250",
    ),
    setting("join_timeout_ms", "MS", "1 to 86400000", "120000", "How long to try to reach rank 0"),
    setting("call_timeout_ms", "MS", "1 to 86400000", "2000", "Limit of one control call"),
    setting(
        "full_wait_ms",
        "MS",
        "0 or more",
        "0",
        "How long a put waits for room; 0: three times the quarantine, at least 1000",
    ),
    setting(
        "rdma_devices",
        "auto|none|NAME,...",
        "",
        "auto",
        "RDMA devices that reach this memory; auto: what can be used, named ones must be",
    ),
    setting(
        "rdma_gid_index",
        "auto|N",
        "0 to 255",
        "auto",
        "Index in their GID tables; auto: RoCE v2 over IPv4 first",
    ),
    setting(
        "rdma_pairs",
        "auto|N",
        "1 to 8",
        "auto",
        "Queue pairs of one data path; auto: one for each device, at most 8",
    ),
    setting("data_connections", "N", "1 or more", "256", "Most tcp data connections at once"),
    setting(
        "drain_ms",
        "MS",
        "0 or more",
        "5000",
        "After SIGTERM, how long plans in flight may take to finish",
    ),
    setting(
        "rejoins",
        "N",
        "0 or more",
        "8",
        "How often in a row this rank restarts with a new incarnation after it was declared gone",
    ),
    setting(
        "threads",
        "N",
        "0 to 256",
        "0",
        "Worker threads; 0: as many as there are cores, 2 to 8",
    ),
    setting(
        "log",
        "FILTER",
        "",
        "info",
        "What is logged to stderr, as in nkv_actors=debug; nkv_node=debug: every setting, and what \
         was found at start",
    ),
    setting("log_format", "text|json", "", "text", "Log lines for people, or JSON objects"),
];

impl Setting {
    /// Name of the flag, without the dashes.
    pub(crate) fn flag(self) -> String {
        self.key.replace('_', "-")
    }

    /// Name of the environment variable.
    pub(crate) fn variable(self) -> String {
        format!("NKV_{}", self.key.to_ascii_uppercase())
    }

    /// Its text in `--help`.
    fn help(self) -> String {
        let range = match self.range {
            "" => String::new(),
            range => format!(" [range: {range}]"),
        };
        format!("{}{range} [default: {}]", self.help, self.default)
    }
}

/// The parsed command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// Values by key, as typed.
    pub(crate) values: BTreeMap<&'static str, String>,
    /// The file to read.
    pub(crate) config: Option<PathBuf>,
    /// Print the effective configuration and end.
    pub(crate) print_config: bool,
    /// Print completions or the man page and end.
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
    let settings = SETTINGS.iter().flat_map(|s| {
        let arg = Arg::new(s.key).long(s.flag());
        if s.key == PREFAULT {
            let off = format!("no-{}", s.flag());
            let not = Arg::new("no_prefault").long(off).action(ArgAction::SetTrue);
            let on = arg.action(ArgAction::SetTrue).overrides_with("no_prefault");
            vec![on.help(s.help()), not.help("Leave pages to be touched when they are used")]
        } else {
            vec![arg.value_name(s.value).help(s.help()).allow_hyphen_values(true)]
        }
    });
    let command = Command::new("nkv-node")
        .version(env!("NKV_BUILD_VERSION"))
        .after_long_help(packaging::statuses())
        .args(settings)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Settings as TOML, such as nkv.toml (also NKV_CONFIG)"),
        )
        .arg(
            Arg::new("print_config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print every setting as TOML, with where its value came from, and end"),
        );
    // `augment_args` also sets a description: the program's own is set after it.
    let command = PackagingFlags::augment_args(command);
    command.about("Runs one rank of an nkv cluster").long_about(LONG_ABOUT)
}

/// The parser with the possible values of flags that take one of a few, for completions and the man
/// page. The command line is parsed without them: its values are checked later, with those of
/// variables and of the file.
pub(crate) fn with_choices() -> Command {
    let few = SETTINGS.iter().filter(|s| {
        let names = s.value.split('|');
        names.clone().count() > 1
            && names
                .clone()
                .all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
    });
    few.fold(command(), |command, s| {
        let names = PossibleValuesParser::new(s.value.split('|'));
        command.mut_arg(s.key, |arg| arg.value_parser(names))
    })
}

/// Reads the command line.
///
/// # Errors
/// clap's error: help, version, or a wrong command line.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, clap::Error> {
    let matches = packaging::with_plain_usage(command()).try_get_matches_from(args)?;
    let mut values = BTreeMap::new();
    for s in &SETTINGS {
        if s.key == PREFAULT {
            for (id, value) in [(PREFAULT, "true"), ("no_prefault", "false")] {
                if matches.get_flag(id) {
                    values.insert(s.key, value.to_string());
                }
            }
        } else if let Some(value) = matches.get_one::<String>(s.key) {
            values.insert(s.key, value.clone());
        }
    }
    Ok(Flags {
        values,
        config: matches.get_one::<PathBuf>("config").cloned(),
        print_config: matches.get_flag("print_config"),
        packaging: PackagingFlags::from_arg_matches(&matches)?,
    })
}

#[cfg(test)]
mod tests {
    use super::{PREFAULT, SETTINGS, command, parse, with_choices};
    use nkv_programs::variables;
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
        for s in SETTINGS.iter().filter(|s| s.key != PREFAULT) {
            let flag = format!("--{}", s.flag());
            assert_eq!(self::flags(&[&flag, "x"]).values.len(), 1, "{flag}");
        }
    }

    #[test]
    fn of_prefault_and_no_prefault_the_last_wins() {
        let value = |args: &[&str]| flags(args).values.get(PREFAULT).cloned();
        assert_eq!(value(&[]), None);
        assert_eq!(value(&["--prefault"]).as_deref(), Some("true"));
        assert_eq!(value(&["--no-prefault"]).as_deref(), Some("false"));
        assert_eq!(value(&["--no-prefault", "--prefault"]).as_deref(), Some("true"));
        assert_eq!(value(&["--prefault", "--no-prefault"]).as_deref(), Some("false"));
    }

    #[test]
    fn every_setting_has_a_variable_that_all_programs_know() {
        for s in &SETTINGS {
            assert!(variables::KNOWN.contains(&s.variable().as_str()), "{}", s.variable());
        }
    }

    #[test]
    fn flags_that_take_one_of_a_few_names_are_completed_and_the_program_is_what_it_is_about() {
        let command = with_choices();
        let names = |key: &str| {
            let arg = command.get_arguments().find(|a| a.get_id() == key).unwrap();
            arg.get_possible_values().iter().map(|v| v.get_name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("policy"), ["lru", "lru2", "fifo"]);
        assert_eq!(names("log_format"), ["text", "json"]);
        assert!(names("rdma_devices").is_empty() && names("heap_bytes").is_empty());
        assert_eq!(command.get_about().unwrap().to_string(), "Runs one rank of an nkv cluster");
    }

    #[test]
    fn names_follow_from_the_key() {
        let heap = SETTINGS.iter().find(|s| s.key == "heap_bytes").unwrap();
        assert_eq!((heap.flag(), heap.variable()), ("heap-bytes".into(), "NKV_HEAP_BYTES".into()));
    }
}
