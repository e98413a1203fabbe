//! The command line, and the one table of settings from which flags, `NKV_*` variables and file
//! keys get their names. Values stay text here: whoever reads them says where a wrong one came from.

use crate::packaging::PackagingFlags;
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// One setting. Its flag is `--heap-bytes`, its variable `NKV_HEAP_BYTES`, its key `heap_bytes`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Key in the file; the other names follow from it.
    pub(crate) key: &'static str,
    value: &'static str,
    help: &'static str,
}

const fn setting(key: &'static str, value: &'static str, help: &'static str) -> Setting {
    Setting { key, value, help }
}

/// The switch that has two flags, `--prefault` and `--no-prefault`, and no value on the command line.
pub(crate) const PREFAULT: &str = "prefault";

/// Every setting, in the order in which they are shown.
pub(crate) const SETTINGS: [Setting; 34] = [
    setting(
        "job",
        "NAME",
        "Job id; part of joining and of every segment's name [default: torchrun's run id, Slurm's job and step, or nkv]",
    ),
    setting("rank", "N", "Number of this rank [default: the launcher's, or 0]"),
    setting("world_size", "N", "Ranks in the job [default: the launcher's, or 1]"),
    setting("master_addr", "HOST", "Where rank 0 is [default: the launcher's, or 127.0.0.1]"),
    setting(
        "port",
        "PORT",
        "Rank 0's control port, the same on every rank; 0 on rank 0 takes a free one",
    ),
    setting(
        "listen",
        "IP",
        "Address of this host to listen on and to be reached at [default: 127.0.0.1]",
    ),
    setting(
        "secret_file",
        "FILE|none",
        "File with the job's secret, its user's alone (or NKV_SECRET holds the secret itself) [default: none: this user's processes on this host connect]",
    ),
    setting(
        "http",
        "IP:PORT|off",
        "Where /healthz /readyz /status /metrics are served [default: 127.0.0.1:0]",
    ),
    setting(
        "heap_bytes",
        "BYTES",
        "Payload bytes of this rank (KiB, MiB, GiB) [default: a quarter of the memory there is, shared by the ranks of this host, at most 1GiB]",
    ),
    setting(
        "memory",
        "shm|private",
        "Shared memory, or memory of this process only [default: shm]",
    ),
    setting(
        PREFAULT,
        "BOOL",
        "Touch every page at start, so that memory is refused then or never [default: on]",
    ),
    setting("page_bytes", "BYTES", "Bytes per page where a put names none [default: 256KiB]"),
    setting(
        "log_bytes",
        "BYTES",
        "Device log beside the heap, for puts that ask nobody; 0: none [default: 0]",
    ),
    setting(
        "atomic_domain",
        "cpu|nic",
        "Who counts claims in the device log: processors of this host, or its RDMA device [default: cpu]",
    ),
    setting(
        "device_alloc",
        "BOOL",
        "Whether this node's own handle puts into device logs [default: off]",
    ),
    setting("policy", "lru|lru2|fifo", "Who is evicted first [default: lru]"),
    setting(
        "watermarks",
        "HI/LO",
        "Percent of the heap at which eviction starts and ends [default: 95/85]",
    ),
    setting(
        "quarantine_ms",
        "MS",
        "How long retired memory rests before it is used again [default: 50]",
    ),
    setting("write_ttl_ms", "MS", "How long a producer has from open to commit [default: 30000]"),
    setting(
        "log_claim_ttl_ms",
        "MS",
        "How long a claim in the device log may be open before everybody is asked [default: 5000]",
    ),
    setting("ttl_ms", "MS", "A rank not heard of for so long is gone [default: 10000]"),
    setting(
        "heartbeat_ms",
        "MS",
        "Pause between signs of life; 0: an eighth of the TTL, at most 250 [default: 0]",
    ),
    setting("join_timeout_ms", "MS", "How long to look for rank 0 [default: 120000]"),
    setting("call_timeout_ms", "MS", "Limit of one control call [default: 2000]"),
    setting(
        "full_wait_ms",
        "MS",
        "How long a put waits for room; 0: three times the quarantine, at least 250 [default: 0]",
    ),
    setting(
        "rdma_devices",
        "auto|none|NAME,...",
        "RDMA devices that reach this memory; auto: what can be used, named ones must be [default: auto]",
    ),
    setting(
        "rdma_gid_index",
        "auto|N",
        "Which address of theirs; auto: RoCE v2 over IPv4 first [default: auto]",
    ),
    setting(
        "rdma_pairs",
        "auto|N",
        "Queue pairs of one way; auto: one for each device, at most 8 [default: auto]",
    ),
    setting("data_connections", "N", "Most tcp data connections at once [default: 256]"),
    setting(
        "drain_ms",
        "MS",
        "After SIGTERM, how long plans in flight may take to finish [default: 5000]",
    ),
    setting(
        "rejoins",
        "N",
        "How often in a row this rank starts afresh after it was declared gone [default: 8]",
    ),
    setting("threads", "N", "Worker threads; 0: as many as there are cores, 2 to 8 [default: 0]"),
    setting(
        "log",
        "FILTER",
        "What is logged to stderr, as in nkv_actors=debug; nkv_node=debug: every setting, and what was found at start [default: info]",
    ),
    setting("log_format", "text|json", "Log lines for people, or JSON objects [default: text]"),
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
}

/// What the command line says.
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
defaults. Every flag has a variable (--heap-bytes: NKV_HEAP_BYTES) and a key in the file (heap_bytes).
--print-config shows every value with where it came from, and --log nkv_node=debug does at start.

Every connection is authenticated: by the job's secret, the same on every rank and client, or, without
one, by a file that only this user on this host can read. Listening on anything but loopback needs a
secret. It is never a flag, since others see those.

SIGTERM or SIGINT: no new plans, what is in flight is finished within --drain-ms, the segment is
unlinked, exit 0. Another signal ends the process at once; the same one only after half a second: launchers send
one twice.

Exit status: 0 stopped as asked; 2 wrong flags or configuration; 3 half a launcher environment;
4 wrong world size; 5 the rank number is in use; 6 the heap is too large; 7 no master in time;
8 a port is in use; 9 refused by the master (such as another secret); 70 internal error; 71 an actor failed for good.";

/// The parser.
pub(crate) fn command() -> Command {
    let settings = SETTINGS.iter().flat_map(|s| {
        let arg = Arg::new(s.key).long(s.flag());
        if s.key == PREFAULT {
            let off = format!("no-{}", s.flag());
            let not = Arg::new("no_prefault").long(off).action(ArgAction::SetTrue);
            let on = arg.action(ArgAction::SetTrue).overrides_with("no_prefault");
            vec![on.help(s.help), not.help("Leave pages to be touched when they are used")]
        } else {
            vec![arg.value_name(s.value).help(s.help).allow_hyphen_values(true)]
        }
    });
    let command = Command::new("nkv-node")
        .version(env!("NKV_BUILD_VERSION"))
        .about("Runs one rank of an nkv cluster")
        .long_about(LONG_ABOUT)
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
    PackagingFlags::augment_args(command)
}

/// Reads the command line.
///
/// # Errors
/// What clap says: help, version, or a wrong command line.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
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
    use super::{PREFAULT, SETTINGS, command, parse};
    use std::ffi::OsString;

    fn flags(args: &[&str]) -> super::Flags {
        let args = [&["nkv-node"], args].concat();
        parse(args.iter().map(OsString::from)).unwrap()
    }

    #[test]
    fn the_parser_is_sound_and_every_setting_has_its_flag() {
        command().debug_assert();
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
    fn names_follow_from_the_key() {
        let heap = SETTINGS.iter().find(|s| s.key == "heap_bytes").unwrap();
        assert_eq!((heap.flag(), heap.variable()), ("heap-bytes".into(), "NKV_HEAP_BYTES".into()));
    }
}
