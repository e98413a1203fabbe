//! The command line: the options, their valid combinations, and their defaults. It starts nothing;
//! an invalid combination is refused here, and the error names the flag to change.

mod workload;

pub(crate) use workload::{TraceSource, Workload};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use nkv::TransportChoice;
use nkv::message::MAX_REPLICAS;
use nkv_programs::fabric::FabricFlags;
use nkv_programs::logging::LogFormat;
use nkv_programs::packaging::{self, PackagingFlags};
use nkv_programs::sizes::{bytes_up_to, parse_bytes};
use nkv_store::stripes::MAX_STRIPES;
use nkv_store::{PolicyKind, Watermarks};
use std::path::PathBuf;
use std::time::Duration;

/// Longest `--duration`: one day.
const LONGEST_RUN_S: f64 = 86_400.0;
/// Largest `--pause-us`: a second.
const LONGEST_PAUSE_US: i64 = 1_000_000;
/// Most clients of one run: each is a thread with connections of its own.
pub(crate) const MAX_CLIENTS: u16 = 256;
/// Largest object or block, in bytes.
const MAX_OBJECT_BYTES: u64 = 1 << 30;
/// How long a run with neither `--trace` nor `--bench` lasts unless `--duration` says otherwise.
const DEFAULT_RUN: Duration = Duration::from_secs(15);

/// The ring of `--budgets`: larger than the last-level cache of any machine this was run on.
const DEFAULT_RING: u64 = 768 << 20;

const LONG_ABOUT: &str = "\
Puts load on an nkv cluster and compares every byte that comes back.

  nkv-load                                an embedded cluster of three ranks, about 15 s
  nkv-load --connect HOST:PORT            a mix of puts, gets and exists against running nodes
  nkv-load --trace FILE [--connect ...]   the prefix-cache requests of a trace
  nkv-load --bench [--connect ...]        one client, one operation at a time, beside memcpy
  nkv-load --budgets --connect ...        warm, cold, busy, isolated and under load; puts a second
  nkv-load --lookups N --connect ...      location lookups a second among N live objects
  nkv-load --round-trips --connect ...    round trips over the network of each operation

Exit status 0: every byte was right and nothing failed; 1: not so; any other: the run could not be
done, or not one operation of it was.";

// clap does not enforce `requires` if the required flag conflicts with a given one. So the flags of
// one mode also name those of the other modes as conflicts.
const NOT_BY_THE_CLOCK: [&str; 6] = ["trace", "bench", "budgets", "lookups", "round_trips", "pour"];
const NOT_IN_A_MIX: [&str; 7] =
    ["trace", "bench", "budgets", "lookups", "round_trips", "pour", "inject_corruption"];
const NOT_IN_A_BENCH: [&str; 6] =
    ["trace", "budgets", "lookups", "round_trips", "pour", "inject_corruption"];
const NOT_IN_A_TRACE: [&str; 7] =
    ["bench", "budgets", "lookups", "round_trips", "pour", "duration", "inject_corruption"];
const NOT_IN_AN_EMBEDDED_TRACE: [&str; 8] = [
    "connect",
    "bench",
    "budgets",
    "lookups",
    "round_trips",
    "pour",
    "duration",
    "inject_corruption",
];

/// The flags.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "nkv-load",
    version = env!("NKV_BUILD_VERSION"),
    about = "The load generator of nkv",
    long_about = LONG_ABOUT,
    after_long_help = packaging::statuses()
)]
pub(crate) struct Flags {
    /// Control addresses of nodes of a running cluster, any will do; the first that reaches the
    /// master is used. Without a port: NKV_PORT, or 7400
    #[arg(long, value_name = "HOST:PORT,...")]
    pub(crate) connect: Option<String>,

    /// Job of that cluster
    #[arg(long, env = "NKV_JOB", default_value = "nkv")]
    pub(crate) job: String,

    /// File with the job's secret, if it has one; NKV_SECRET_FILE names it, too, or NKV_SECRET
    /// holds the secret itself
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Transport of payloads; `embedded` (in this process) goes with --bench only
    #[arg(long, value_enum, default_value_t = LoadTransport::Auto)]
    pub(crate) transport: LoadTransport,

    /// Devices, where it is rdma
    #[command(flatten)]
    pub(crate) fabric: FabricFlags,

    /// Take a plan for every put, instead of putting into the owners' device logs
    #[arg(long)]
    pub(crate) by_plan: bool,

    /// Also write the results as one JSON object to this file ("-": stdout); it is opened before
    /// the run
    #[arg(long, value_name = "FILE|-")]
    pub(crate) json: Option<PathBuf>,

    /// Also write a page with plots of latency and throughput to this file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// What is logged (RUST_LOG says how much) for people, or as JSON objects
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,

    /// Length of the embedded run or of the mix, in seconds; the other runs end when they are done
    /// [default: 15]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds,
        conflicts_with_all = NOT_BY_THE_CLOCK)]
    pub(crate) duration: Option<Duration>,

    /// Clients, each a thread with connections of its own
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, requires = "connect",
        conflicts_with_all = NOT_IN_A_MIX,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_CLIENTS)))]
    pub(crate) clients: u16,

    /// Size of an object of the mix (KiB, MiB, GiB)
    #[arg(long, allow_negative_numbers = true, default_value = "64KiB", requires = "connect",
        value_parser = object_bytes, conflicts_with_all = NOT_IN_A_MIX)]
    pub(crate) size: u64,

    /// Stripes into which an object of the mix is cut, each for another rank; 1: none
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1,
        requires = "connect", conflicts_with_all = NOT_IN_A_MIX,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(nkv::MAX_STRIPES)))]
    pub(crate) object_stripes: u8,

    /// Replicas of an object of the mix, each on another rank
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1,
        requires = "connect", conflicts_with_all = NOT_IN_A_MIX,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_REPLICAS)))]
    pub(crate) replicas: u8,

    /// Weights of put, get and exists
    #[arg(long, value_name = "PUT:GET:EXISTS", default_value = "1:4:1", requires = "connect",
        conflicts_with_all = NOT_IN_A_MIX)]
    pub(crate) mix: Weights,

    /// Pause between two operations of a client of the mix or of --bench, in microseconds: measures
    /// operations after threads have gone to sleep
    #[arg(long, allow_negative_numbers = true, value_name = "US", default_value_t = 0,
        conflicts_with_all = ["trace", "inject_corruption"],
        value_parser = clap::value_parser!(u32).range(0..=LONGEST_PAUSE_US))]
    pub(crate) pause_us: u32,

    /// Flip one stored byte of the embedded run, which must then be found
    #[arg(long, conflicts_with_all = ["connect", "trace", "bench", "budgets", "lookups", "pour"])]
    pub(crate) inject_corruption: bool,

    /// Measure single operations of one client from 4 KiB to 16 MiB
    #[arg(long, conflicts_with = "trace", group = "measured")]
    pub(crate) bench: bool,

    /// Gets of --bench return bytes of their own instead of filling one buffer
    #[arg(long, requires = "bench", conflicts_with_all = NOT_IN_A_BENCH)]
    pub(crate) to_bytes: bool,

    /// Bytes of buffers that such gets may use again once what they returned is dropped; 0: none
    #[arg(long, value_name = "BYTES", default_value = "64MiB", requires = "to_bytes",
        value_parser = parse_bytes, conflicts_with_all = NOT_IN_A_BENCH)]
    pub(crate) get_pool_bytes: u64,

    /// Keep what is read from another host at the rank of this host: see ClientConfig
    #[arg(long, requires = "connect")]
    pub(crate) cache_on_read: bool,

    /// Stripes into which one large read or write is cut, each with a thread, and over tcp a
    /// connection, of its own; 0: as the machine is, 1: none is cut
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(0..=MAX_STRIPES as i64))]
    pub(crate) data_stripes: u16,

    /// Measure the operations that have budgets: gets of one object and of a ring larger than the
    /// caches, with and without load; puts into the device log and by plans, busy and with a pause
    /// between; puts a second of one and two producer processes. With --transport tcp: copies of 1
    /// MiB and more, one at a time and in batches. The node needs --log-bytes 1GiB or more
    #[arg(long, requires = "connect", group = "measured",
        conflicts_with_all = ["trace", "inject_corruption"])]
    pub(crate) budgets: bool,

    /// Bytes of the ring that --budgets reads and writes: more than the last-level cache has (KiB,
    /// MiB, GiB) [default: 768MiB]
    #[arg(long, value_name = "BYTES", requires = "budgets", value_parser = parse_bytes,
        conflicts_with_all = ["bench", "lookups", "round_trips", "pour", "trace"])]
    pub(crate) ring_bytes: Option<u64>,

    /// Put N objects of 8 bytes with keys of 32 bytes into the device log and look them up in
    /// batches of 128, hashing included: first all there, then none. An object takes 4 KiB of the
    /// node's --log-bytes
    #[arg(long, allow_negative_numbers = true, value_name = "N", requires = "connect",
        group = "measured", conflicts_with_all = ["trace", "inject_corruption"],
        value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) lookups: Option<u32>,

    /// Measure how many round trips over the network each operation takes, of 4 KiB where it moves
    /// bytes: its time over that of a new tcp connection to the first node of --connect
    #[arg(long, requires = "connect", group = "measured",
        conflicts_with_all = ["trace", "inject_corruption"])]
    pub(crate) round_trips: bool,

    /// Wait for a line on standard input, then put objects of 4 KiB into the device log back to
    /// back for so long: --budgets starts its producers with this
    #[arg(long, value_name = "SECONDS", requires = "connect", group = "measured",
        value_parser = seconds, conflicts_with_all = ["trace", "inject_corruption"])]
    pub(crate) pour: Option<Duration>,

    /// Replay a trace: lines of {"timestamp": ms, "hash_ids": [...]}; or sessions that are made up:
    /// generated:chat (system prompts, questions that follow each other), generated:agents (quick
    /// turns, long prompts) or generated:documents (questions about documents), each followed by
    /// numbers to change, as in generated:chat,seed=7,sessions=500. Numbers: seed, sessions, per-s
    /// (sessions that begin in a second), turns, think-s, prompts, zipf (exponent of their choice),
    /// prompt, first, question, answer (tokens, of which a block has 512), partial (1: a last block
    /// that is not full is stored)
    #[arg(long, value_name = "FILE|generated:KIND", value_parser = str::parse::<TraceSource>)]
    pub(crate) trace: Option<TraceSource>,

    /// Bytes of one block of the trace (KiB, MiB, GiB)
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value = "256KiB",
        requires = "trace", value_parser = object_bytes, conflicts_with_all = NOT_IN_A_TRACE)]
    pub(crate) block_bytes: u64,

    /// Payload bytes of each embedded rank; headers and index come on top [default: what the trace
    /// needs, at most half of MemAvailable for all ranks]
    #[arg(long, value_name = "BYTES", requires = "trace", value_parser = parse_bytes,
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) heap_bytes: Option<u64>,

    /// The same as a percentage of the trace's unique blocks, for all ranks together
    #[arg(long, value_name = "PERCENT", requires = "trace", conflicts_with = "heap_bytes",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE, value_parser = percent)]
    pub(crate) heap_percent: Option<f64>,

    /// Of these, bytes of the device log; 0: every put takes a plan, and the policy decides what
    /// stays [default: as of nkv-node]
    #[arg(long, value_name = "BYTES", requires = "trace", value_parser = parse_bytes,
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) log_bytes: Option<u64>,

    /// Empty directory on an SSD for blocks that leave memory; a rank uses rank-N below it
    #[arg(long, value_name = "DIR", requires = "trace",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) ssd_dir: Option<PathBuf>,

    /// Bytes there of each rank [default: room for every block of the trace]
    #[arg(long, value_name = "BYTES", requires = "ssd_dir", value_parser = parse_bytes,
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) ssd_bytes: Option<u64>,

    /// Which blocks are saved there: those that leave memory, or all
    #[arg(long, value_enum, default_value_t = LoadSsdPolicy::EvictOnly, requires = "ssd_dir",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) ssd_policy: LoadSsdPolicy,

    /// What a save survives: its process, or power loss
    #[arg(long, value_enum, default_value_t = LoadDurability::BestEffort, requires = "ssd_dir",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) ssd_durability: LoadDurability,

    /// Kill every rank after this many requests, and start them again; the ranks are processes of
    /// their own then
    #[arg(long, allow_negative_numbers = true, value_name = "N", requires = "trace",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE)]
    pub(crate) restart_at: Option<usize>,

    /// One rank of such a trace; the program starts itself with this
    #[arg(long, value_name = "JSON", hide = true)]
    pub(crate) serve: Option<String>,

    /// Percentages of a heap at which eviction starts and ends; auto: 95/85 beside a log; without
    /// one room for two objects of the largest size lately, 1 % of it at least and 15 % at most
    #[arg(
        long,
        value_name = "HI/LO",
        default_value = "auto",
        requires = "trace",
        value_parser = watermarks,
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE
    )]
    pub(crate) watermarks: Watermarks,

    /// Milliseconds before retired memory is used again
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 10,
        requires = "trace",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE
    )]
    pub(crate) quarantine_ms: u32,

    /// Eviction policy: lru, lru2 (two-segment), prefix (the same, last blocks of batches
    /// first) or fifo
    #[arg(long, default_value = "lru", requires = "trace",
        conflicts_with_all = NOT_IN_AN_EMBEDDED_TRACE,
        value_parser = PossibleValuesParser::new(["lru", "lru2", "prefix", "fifo"])
            .try_map(|name| name.parse::<PolicyKind>()))]
    pub(crate) policy: PolicyKind,

    /// 0: as fast as possible; else a factor of the trace's own time
    #[arg(long, allow_negative_numbers = true, default_value = "0", requires = "trace",
        value_parser = speed, conflicts_with_all = NOT_IN_A_TRACE)]
    pub(crate) speed: f64,

    /// Replay only the first N requests
    #[arg(long, allow_negative_numbers = true, value_name = "N", requires = "trace",
        conflicts_with_all = NOT_IN_A_TRACE)]
    pub(crate) requests: Option<usize>,

    /// Completions and man page
    #[command(flatten)]
    pub(crate) packaging: PackagingFlags,
}

/// The mode that a command line selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The run without an argument.
    Embedded,
    /// A mix against running nodes.
    Mix,
    /// A trace, embedded or against running nodes.
    Trace,
    /// Single operations beside memcpy.
    Bench,
    /// The operations that have budgets.
    Budgets,
    /// Location lookups.
    Lookups,
    /// Round trips of each operation.
    RoundTrips,
    /// Puts of one producer.
    Pour,
    /// One rank.
    Serve,
}

/// Which blocks are saved on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum LoadSsdPolicy {
    /// Those that leave memory.
    EvictOnly,
    /// All.
    WriteThrough,
}

/// What a save on disk survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum LoadDurability {
    /// The end of the process.
    BestEffort,
    /// Power loss.
    Persistent,
}

/// Transport of payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadTransport {
    /// The fastest available.
    Auto,
    /// A node inside this process.
    Embedded,
    /// Shared memory of nodes on this host.
    Shm,
    /// Sockets.
    Tcp,
    /// RDMA devices of both ends.
    Rdma,
}

impl LoadTransport {
    /// The client's setting for it.
    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Self::Auto | Self::Embedded => TransportChoice::Auto,
            Self::Shm => TransportChoice::Shm,
            Self::Tcp => TransportChoice::Tcp,
            Self::Rdma => TransportChoice::Rdma,
        }
    }
}

/// Relative frequencies of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weights {
    /// Of puts.
    pub(crate) put: u32,
    /// Of gets.
    pub(crate) get: u32,
    /// Of exists.
    pub(crate) exists: u32,
}

impl Flags {
    /// The mode that the flags select.
    ///
    /// # Errors
    /// One sentence if the flags do not fit together.
    pub(crate) fn mode(&self) -> Result<Mode, String> {
        let mode = match (&self.trace, self.bench, &self.connect) {
            _ if self.serve.is_some() => Mode::Serve,
            (Some(_), _, _) => Mode::Trace,
            (_, true, _) => Mode::Bench,
            _ if self.budgets => Mode::Budgets,
            _ if self.lookups.is_some() => Mode::Lookups,
            _ if self.round_trips => Mode::RoundTrips,
            _ if self.pour.is_some() => Mode::Pour,
            (_, _, Some(_)) => Mode::Mix,
            _ => Mode::Embedded,
        };
        if mode == Mode::Embedded && self.pause_us > 0 {
            return Err("--pause-us goes with --bench or with --connect".to_string());
        }
        let connected = self.connect.is_some();
        if self.data_stripes > 0 && mode != Mode::Bench && !connected {
            return Err("--data-stripes goes with --bench or with --connect".to_string());
        }
        self.fabric.check(self.transport.choice())?;
        if self.fabric != FabricFlags::default() && !connected {
            return Err(
                "--rdma-devices, --rdma-gid-index and --rdma-pairs go with --connect".to_string()
            );
        }
        match self.transport {
            LoadTransport::Embedded if mode != Mode::Bench || connected => {
                Err("--transport embedded goes with --bench and without --connect".to_string())
            }
            LoadTransport::Shm | LoadTransport::Tcp | LoadTransport::Rdma if !connected => {
                Err("--transport shm, tcp and rdma need a running node: give --connect HOST:PORT"
                    .to_string())
            }
            LoadTransport::Tcp | LoadTransport::Rdma
                if matches!(mode, Mode::Lookups | Mode::Pour) =>
            {
                Err("lookups and --pour are about shared memory: leave --transport out".to_string())
            }
            _ => Ok(mode),
        }
    }

    /// Bytes of the ring of `--budgets`.
    pub(crate) fn ring(&self) -> u64 {
        self.ring_bytes.unwrap_or(DEFAULT_RING)
    }

    /// Pause between two operations.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_micros(u64::from(self.pause_us))
    }

    /// How long the run lasts.
    pub(crate) fn run_length(&self) -> Duration {
        self.duration.unwrap_or(DEFAULT_RUN)
    }
}

impl std::str::FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        match parts.as_deref() {
            Ok(&[put, get, exists]) if (1..=1_000_000).contains(&put.max(get).max(exists)) => {
                Ok(Self { put, get, exists })
            }
            _ => Err("write three weights up to 1000000, not all 0, such as 1:4:1".to_string()),
        }
    }
}

fn watermarks(text: &str) -> Result<Watermarks, String> {
    let wanted = "write auto, or two whole percentages of 1 to 100 without a sign, the first not \
                  below the second, such as 95/85";
    text.parse().map_err(|_| wanted.to_string())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>();
    match number {
        Ok(s) if s > 0.0 && s <= LONGEST_RUN_S => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("write a number of seconds above 0 and up to {LONGEST_RUN_S}")),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(factor),
        _ => Err("write 0 (as fast as possible) or a factor such as 1 or 100".to_string()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    match percent {
        Ok(part) if (0.1..=200.0).contains(&part) => Ok(part),
        _ => Err("write a percentage from 0.1 to 200".to_string()),
    }
}

fn object_bytes(text: &str) -> Result<u64, String> {
    bytes_up_to(text, MAX_OBJECT_BYTES)
}

#[cfg(test)]
mod tests;
