//! The command line: the commands, and the options that all of them share.

use crate::evict::Evict;
use crate::keys;
use crate::listing::Ls;
use crate::objects::{Get, Put};
use crate::remove::Rm;
use crate::replicate::Replicate;
use crate::save::Save;
use crate::segments::{Mount, Unmount};
use crate::ssd::SsdCommand;
use crate::top::Top;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use nkv::{Address, TransportChoice};
use nkv_programs::endpoints::{endpoint, here};
use nkv_programs::fabric::FabricFlags;
use nkv_programs::packaging;
use std::ffi::OsString;
use std::path::PathBuf;

/// Largest `--timeout-ms`: an hour.
const MAX_TIMEOUT_MS: u64 = 3_600_000;

/// Heading of the options that every command takes.
const SHARED: &str = "Options of every command";

/// For `--help`.
const JSON_ERRORS: &str = "\
A reader that closes the pipe (nkv ls | head) is no failure. A stdout that is full, or that was
closed before the start, is a failure (7), and so is a stdin that was closed.

With --json a command prints one JSON object to stdout. If it fails, also for a wrong command line,
it prints one to stderr:
  {\"error\":{\"kind\":\"AlreadyExists\",\"message\":\"a exists on rank 2; ...\",\"key\":\"a\"}}
kind is one of the library's error kinds, Refused for a node that does not take this client, or Io
for a file or stream. key is there if the error is about one key, written as below.";

const LONG_ABOUT: &str = "\
Looks at a running nkv cluster and moves single values in and out of it.

  nkv status                      the members, their heaps and addresses
  nkv top                         the same and more, live; q quits
  nkv put KEY FILE                (or - for stdin)
  nkv get KEY -o FILE             (or - for stdout)
  nkv ls '^run-1/'                the keys that a regular expression matches, or all
  nkv save KEY                    a copy on the SSD of a rank, which outlives all of them
  nkv evict --until-below 50%     make room in every heap, before a put needs it
  nkv mount 1GiB --rank 1         more memory for a rank, while it runs

Where the cluster is:
  nothing                         127.0.0.1, port NKV_PORT, or 7400
  --connect HOST, or NKV_CONNECT  that host, port NKV_PORT, or 7400
  --connect HOST:PORT             that node; also unix:///PATH
  --connect A,B, or twice         A, then B: the first that leads to the master serves
Any node can be named: it knows the address of the master. Several nodes share the limit of one call
(--timeout-ms): each gets an equal part of what is left. A command that finds nothing listening at
any of them waits up to 5 s for a cluster that is just starting. Name several ranks, so that nkv
status can ask one that is up while rank 0 is down; the ready line of a rank, and nkv status, show
its port.

An NKV_PORT that is no port is refused. The command warns once of each variable that begins with
NKV_ and that no program reads.

evict, mount and unmount may take long. They go on as long as the rank reports that it is at work.
They end when it gives no sign of life for --timeout-ms, and at once when the master declares it
gone or loses its link.";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "nkv",
    version = env!("NKV_BUILD_VERSION"),
    about = "Looks at an nkv cluster",
    long_about = LONG_ABOUT,
    next_help_heading = SHARED,
    after_long_help = format!("{}\n\n{}\n\n{}", packaging::statuses(), JSON_ERRORS, keys::SYNTAX)
)]
pub(crate) struct Flags {
    /// Control addresses of nodes, any will do: HOST, HOST:PORT or unix:///PATH [default:
    /// 127.0.0.1, and port NKV_PORT or 7400]
    #[arg(long, global = true, env = "NKV_CONNECT", value_name = "HOST:PORT,...",
        value_delimiter = ',', num_args = 1, value_parser = endpoint)]
    connect: Vec<Address>,

    /// Job of that cluster
    #[arg(long, global = true, env = "NKV_JOB", default_value = "nkv")]
    pub(crate) job: String,

    /// File with the job's secret, if it has one; NKV_SECRET_FILE names it, too, or NKV_SECRET
    /// holds the secret itself
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,

    /// One JSON object instead of text, also for an error (on stderr)
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Take keys as they are typed, also those that begin with a double quote
    #[arg(long, global = true)]
    pub(crate) literal_keys: bool,

    /// Data path of the bytes: auto, shm, tcp or rdma
    #[arg(long, global = true, default_value = "auto",
        value_parser = PossibleValuesParser::new(["auto", "shm", "tcp", "rdma"])
            .try_map(|name| name.parse::<TransportChoice>()))]
    pub(crate) transport: TransportChoice,

    /// Devices, where it is rdma
    #[command(flatten)]
    pub(crate) fabric: FabricFlags,

    /// Limit of one call to the cluster, but for save; of evict, mount and unmount: of the time in
    /// which a rank gives no sign of life
    #[arg(long, global = true, value_name = "MS", default_value_t = 2_000,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT_MS))]
    pub(crate) timeout_ms: u64,

    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What this host has for nkv, RDMA devices and GPUs above all, and whether it works; asks no
    /// cluster
    Doctor {
        /// A directory on the disk on which ranks would keep objects: what they reach there is
        /// measured, with 192 MiB that are removed again
        #[arg(long, value_name = "DIR")]
        ssd_dir: Option<PathBuf>,
    },
    /// The members: state, addresses, heap, objects
    ///
    /// While the master is down it asks each node that --connect names what it knows by itself,
    /// prints that, and exits with 4:
    ///   - its rank, process and uptime, and its link to the master: up or lost, why, for how long
    ///   - each of its segments: heap, objects, open plans
    ///   - the term whose orders it takes, and its view of the membership
    ///   - the members of the last view that it received; they may have changed since
    #[command(verbatim_doc_comment)]
    Status,
    /// The counters of the master and of every rank; a rank's are those of its last heartbeat
    Stats,
    // The texts of these are with their options.
    Top(Top),
    Put(Put),
    Get(Get),
    Rm(Rm),
    Ls(Ls),
    Evict(Evict),
    Replicate(Replicate),
    Save(Save),
    Mount(Mount),
    Unmount(Unmount),
    /// Looks at the SSD directory of a rank that does not run; asks no cluster
    Ssd {
        /// What to do with it
        #[command(subcommand)]
        command: SsdCommand,
    },
    /// Prints which keys are there; exit status 1 if one is not, 4 if one cannot be read now
    Exists {
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Prints completions for a shell
    ///
    ///   nkv completions bash > nkv.bash
    ///   nkv-node --completions bash > nkv-node.bash
    ///   nkv-load --completions bash > nkv-load.bash
    #[command(verbatim_doc_comment)]
    Completions {
        /// Which one
        shell: Shell,
    },
    /// Prints the man page, or writes one for each command
    ///
    ///   nkv man man1                            a folder: nkv.1, nkv-get.1, ...
    ///   nkv-node --man > man1/nkv-node.1
    ///   nkv-load --man > man1/nkv-load.1
    #[command(verbatim_doc_comment)]
    Man {
        /// Folder for the pages; it is made if it is not there
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}

impl Flags {
    /// Nodes to connect through, in this order.
    pub(crate) fn nodes(&self) -> Vec<Address> {
        if self.connect.is_empty() { vec![here()] } else { self.connect.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::Flags;
    use clap::{CommandFactory, Parser};

    fn flags(text: &str) -> Result<Flags, clap::Error> {
        Flags::try_parse_from(["nkv"].into_iter().chain(text.split_whitespace()))
    }

    #[test]
    fn the_parser_is_sound() {
        Flags::command().debug_assert();
    }

    #[test]
    fn shared_options_stand_before_or_after_the_command() {
        for text in ["--connect h:1 --json get k", "get --connect h:1 k --json"] {
            let flags = flags(text).unwrap();
            assert!(flags.json, "{text}");
            assert_eq!(flags.nodes(), ["tcp://h:1".parse().unwrap()]);
        }
    }

    #[test]
    fn several_nodes_are_named_with_commas_or_one_by_one() {
        for text in ["--connect h:1,g:2 status", "--connect h:1 --connect g:2 status"] {
            let nodes = flags(text).unwrap().nodes();
            assert_eq!(nodes, ["h:1".parse().unwrap(), "g:2".parse().unwrap()], "{text}");
        }
    }

    #[test]
    fn a_number_below_its_range_is_no_unknown_flag() {
        for text in [
            "put k f --rank -1",
            "put k f --page-bytes -1",
            "evict --until-below -1%",
            "mount -1 --rank 1",
            "mount 1MiB --rank -1",
            "unmount -1 --rank 1",
            "unmount 1 --rank 1 --wait-ms -1",
            "ls --limit -1",
            "save k --ranks -1",
            "top --interval -1",
            "--timeout-ms -1 status",
        ] {
            let text = flags(text).unwrap_err().to_string();
            assert!(!text.contains("unexpected argument"), "{text}: {text}");
            assert!(text.contains("invalid value '-1"), "{text}: {text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "rm",
            "exists",
            "put",
            "get",
            "ls a b",
            "ls --limit 0",
            "rm a --all",
            "rm a --matching b",
            "rm --matching a --all",
            "rm a --yes",
            "rm --yes",
            "rm --matching a --yes",
            "--connect http://h status",
            "--connect h:1,7400 status",
            "evict",
            "evict --rank 1",
            "evict --until-below 0.5",
            "completions",
            "completions dos",
            "--transport carrier-pigeon status",
            "--timeout-ms 0 status",
            "put k f --page-bytes 4GiB",
            "mount 1GiB",
            "mount --rank 1",
            "mount lots --rank 1",
            "save",
            "save k --disks 0",
            "save k --disks 1 --ranks 1",
            "unmount --rank 1",
            "unmount 1",
            "top --interval 0",
            "top --interval 61",
            "top --interval nan",
            "put k f g",
        ] {
            assert!(flags(text).is_err(), "{text}");
        }
    }
}
