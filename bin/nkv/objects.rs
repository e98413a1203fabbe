//! `nkv put`, `get`, `exists`: single values. `transfer` reads and writes the bytes; this
//! module sends the requests and prints the answers.

use crate::Cluster;
use crate::cli_error::CliError;
use crate::keys::shown;
use crate::save::saved_on;
use crate::{output, transfer};
use clap::Args;
use nkv::message::{Existence, Location, MAX_REPLICAS, Medium, Preferred};
use nkv::{Blocking, Error, ErrorKind, IfExists, MAX_STRIPES, PutOptions, Retention};
use nkv_programs::exit;
use nkv_programs::sizes::{bytes_up_to, show_bytes};
use serde_json::json;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Stores a value; a key that is there already keeps its value
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// 1 to 1024 bytes of anything
    key: OsString,
    /// File to store; - is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Rank that should own the value [default: by the job's placement]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    rank: Option<u32>,
    /// Where each replica goes: ranks, kinds of memory (host, device, of a GPU, or disk) or both,
    /// such as 1,2:device,host. As many replicas are made at least; a disk, such as 2:disk, is one
    /// more copy, on the SSD of that rank
    #[arg(
        long,
        value_name = "RANK[:MEMORY],...",
        value_delimiter = ',',
        conflicts_with = "rank",
        allow_hyphen_values = true
    )]
    at: Vec<Preferred>,
    /// Replicas, each on another rank, on other hosts as far as there are any
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_REPLICAS)))]
    replicas: u8,
    /// Stripes into which the value is cut, each for another rank; 1: none
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_STRIPES)))]
    stripes: u8,
    /// Bytes per page (KiB, MiB) [default: rank 0's --page-bytes]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true,
        value_parser = |text: &str| bytes_up_to(text, u32::MAX.into()).map(|bytes| bytes as u32))]
    page_bytes: Option<u32>,
    /// If the key has a value: fail, or keep that value and succeed; keep needs no message to the
    /// master
    #[arg(long, value_name = "fail|keep", default_value = "fail", value_parser = if_exists)]
    if_exists: IfExists,
    /// Name of the group that it belongs to: a read of one object of a group counts as a read of
    /// all, and when one is evicted, the others are among the first to follow
    #[arg(long, value_name = "NAME")]
    group: Option<OsString>,
    #[command(flatten)]
    kept: Kept,
}

/// What the evictor is to do with the value: one of these at most.
#[derive(Debug, Clone, clap::Args)]
#[group(multiple = false)]
struct Kept {
    /// Evict it before all others
    #[arg(long)]
    evict_first: bool,
    /// For so many seconds after its last use, evict it only where nothing else is left
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=Retention::LONGEST.as_secs()))]
    soft_pin: Option<u64>,
    /// Never evict it; such values have half of a heap at most
    #[arg(long)]
    hard_pin: bool,
    /// Remove it so many seconds after its first read
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=Retention::LONGEST.as_secs()))]
    until_read: Option<u64>,
}

impl Kept {
    fn retention(&self) -> Retention {
        if let Some(seconds) = self.until_read {
            return Retention::UntilRead(Duration::from_secs(seconds));
        }
        match self.soft_pin {
            Some(seconds) => Retention::SoftPin(Duration::from_secs(seconds)),
            None if self.hard_pin => Retention::HardPin,
            None if self.evict_first => Retention::EvictFirst,
            None => Retention::Usual,
        }
    }
}

fn if_exists(text: &str) -> Result<IfExists, String> {
    match text {
        "fail" => Ok(IfExists::Fail),
        "keep" => Ok(IfExists::Keep),
        _ => Err("fail or keep is expected".to_string()),
    }
}

impl Put {
    /// Stores the value.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let key = &cluster.key(&self.key)?;
        let handle = cluster.connect()?;
        let (largest, ranks) = cluster.retry.call(|| largest_value(&handle, self.by_log()))?;
        let of_disks = self.at.iter().filter(|at| at.medium == Medium::Disk).count();
        for (what, n) in [("replicas", self.at.len() - of_disks), ("disks", of_disks)] {
            if n > usize::from(MAX_REPLICAS) {
                let why = format!("--at names {n} {what}: at most {MAX_REPLICAS}");
                return Err(CliError::usage(why));
            }
        }
        let named = self.at.iter().filter_map(|at| at.rank).chain(self.rank);
        if let Some(rank) = named.into_iter().find(|rank| *rank >= ranks) {
            let last = ranks.saturating_sub(1);
            let why = format!("there is no rank {rank}; ranks are 0 to {last}");
            return Err(CliError::usage(why));
        }
        let value = transfer::read(
            &self.file,
            largest.saturating_mul(ranks.min(self.stripes.into()).into()),
        )?;
        let first = Preferred { rank: self.rank, ..Preferred::default() };
        let (disks, named): (Vec<Preferred>, Vec<_>) =
            self.at.iter().partition(|at| at.medium == Medium::Disk);
        let disks: Vec<_> = disks.into_iter().map(|at| at.rank).collect();
        if !disks.is_empty() {
            handle.client().check_disks(&disks).map_err(CliError::Plain)?;
        }
        let named = if named.is_empty() { vec![first] } else { named };
        let mut opts = PutOptions::default()
            .at(named)
            .page_bytes(self.page_bytes.unwrap_or(0))
            .replicas(self.replicas)
            .stripes(self.stripes)
            .if_exists(self.if_exists)
            .retention(self.kept.retention());
        if let Some(name) = &self.group {
            let wrong = |e: Error| CliError::usage(format!("--group: {}", e.message()));
            opts = opts.group(name.as_encoded_bytes()).map_err(wrong)?;
        }
        // None if it is already gone: the put was a success all the same.
        let place = || handle.get_location(key).ok().map(|location| location.rank());
        if self.replicas() > 1 {
            return self.run_replicas(cluster, &handle, (key, &value), (&opts, &disks));
        }
        let put = cluster.retry.call(|| handle.put(key, &value, &opts));
        put.map_err(|e| CliError::about(key, e, place))?;
        let rank = place();
        let disks = on_disks(&handle, key, &disks)?;
        let (key, bytes, saved) = (shown(key), value.len(), also_on(&disks));
        let stripes = handle.client().stripes_for(bytes, &opts);
        let json = json!({
            "key": key, "bytes": bytes, "rank": rank, "stripes": stripes, "disks": disks
        });
        cluster.show(&json, || {
            let at = match (rank, self.rank) {
                _ if stripes > 1 => self.in_stripes(stripes),
                (Some(rank), Some(asked)) if rank != asked => {
                    format!(" on rank {rank}: rank {asked} is down or has no room")
                }
                (Some(rank), _) => format!(" on rank {rank}"),
                (None, _) => String::new(),
            };
            format!("{key}: {} stored{at}{saved}\n", show_bytes(bytes as u64))
        })
    }
}

impl Put {
    /// Whether a log may take the value.
    fn by_log(&self) -> bool {
        let usual = self.kept.retention() == Retention::Usual;
        let somewhere = self.at.iter().all(|at| matches!(at.medium, Medium::Any | Medium::Disk));
        let one = self.stripes == 1 && self.replicas() == 1;
        self.if_exists == IfExists::Keep && one && usual && somewhere
    }

    fn replicas(&self) -> u8 {
        let named = self.at.iter().filter(|at| at.medium != Medium::Disk).count();
        self.replicas.max(named as u8)
    }

    fn in_stripes(&self, made: u8) -> String {
        match made {
            made if made < self.stripes => format!(
                " in {made} stripes, not {}: so many ranks are there, or so large is the value",
                self.stripes
            ),
            made => format!(" in {made} stripes"),
        }
    }

    fn run_replicas(
        &self,
        cluster: &Cluster<'_>,
        handle: &Blocking,
        (key, value): (&[u8], &[u8]),
        (opts, disks): (&PutOptions, &[Option<u32>]),
    ) -> Result<u8, CliError> {
        let none = || Err(Error::internal("a put without a result"));
        let put = || handle.put_replicas(&[(key, value)], opts).pop().unwrap_or_else(none);
        let made = cluster.retry.call(put).map_err(|e| CliError::about(key, e, || None))?;
        let (ranks, asked) = (ranks_of(handle, key), u32::from(self.replicas()));
        let disks = on_disks(handle, key, disks)?;
        let (key, bytes) = (shown(key), value.len());
        let stripes = handle.client().stripes_for(bytes, opts);
        let json = json!({
            "key": key, "bytes": bytes, "replicas": made, "ranks": ranks, "stripes": stripes,
            "disks": disks
        });
        cluster.show(&json, || {
            let size = show_bytes(bytes as u64);
            let on = output::numbers(&ranks, ", ") + &also_on(&disks);
            match made {
                0 => format!("{key}: stored before, on ranks {on}\n"),
                made if stripes > 1 => {
                    let cut = self.in_stripes(stripes);
                    let saved = also_on(&disks);
                    format!(
                        "{key}: {size} stored{cut}, each with {made} of {asked} replicas{saved}\n"
                    )
                }
                made if made < asked => format!(
                    "{key}: {size} stored on ranks {on}: {made} of {asked} replicas, no other rank \
                     could take one\n"
                ),
                _ => format!("{key}: {size} stored on ranks {on}\n"),
            }
        })
    }
}

/// Has a value that was stored saved on these disks; the ranks whose disks have it.
fn on_disks(handle: &Blocking, key: &[u8], disks: &[Option<u32>]) -> Result<Vec<u32>, CliError> {
    if disks.is_empty() {
        return Ok(Vec::new());
    }
    let saved = saved_on(handle, key, disks).and_then(|saved| match saved.missing {
        None => Ok(saved.ranks),
        Some(why) => Err(why),
    });
    saved.map_err(|e| {
        let key = shown(key);
        let why = match e.kind() {
            ErrorKind::NotFound => format!("{key} was stored, and removed or evicted meanwhile"),
            _ => format!(
                "{key} is stored in memory, but not on all of these disks: {}; nkv save writes it \
                 there",
                e.message()
            ),
        };
        CliError::Plain(Error::new(e.kind(), why))
    })
}

fn also_on(disks: &[u32]) -> String {
    match disks {
        [] => String::new(),
        disks => format!("; on disk at ranks {}", output::numbers(disks, ", ")),
    }
}

/// The ranks that have a replica of a key; none if it is gone.
pub(crate) fn ranks_of(handle: &Blocking, key: &[u8]) -> Vec<u32> {
    handle.get_replicas(key).unwrap_or_default().iter().map(Location::rank).collect()
}

/// Payload bytes of the largest heap, which no value can exceed, and the number of ranks of the
/// job.
fn largest_value(handle: &Blocking, log_takes: bool) -> Result<(u64, u32), Error> {
    let view = handle.membership()?;
    let layouts = || view.ranks.iter().map(|(info, _)| &info.layout);
    let by_plan = layouts().map(|layout| layout.arena.len).max();
    let logs = layouts().filter_map(|layout| layout.device_log());
    let by_log = logs.map(|log| log.max_claim()).max().filter(|_| log_takes);
    let largest = by_plan.max(by_log);
    let early = || Error::not_ready("the cluster is starting: no rank has joined yet");
    Ok((largest.ok_or_else(early)?, view.world_size))
}

/// Reads a value
///
/// To a terminal only text is written; with --force, or -o -, any bytes.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Get {
    /// The key
    key: OsString,
    /// File to write; - is stdout. It appears whole or not at all
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write to a terminal also what is no text (so does -o -)
    #[arg(short, long)]
    force: bool,
}

impl Get {
    /// Reads the value and writes it.
    pub(crate) fn run(&self, cluster: &Cluster<'_>) -> Result<u8, CliError> {
        let key = &cluster.key(&self.key)?;
        let handle = cluster.connect()?;
        let to = self.output.as_deref().filter(|path| *path != Path::new("-"));
        if cluster.flags.json && to.is_none() {
            return Err(CliError::usage(
                "get --json would mix JSON with the value: give -o FILE for the value",
            ));
        }
        let value = cluster.retry.call(|| handle.get(key));
        let value = value.map_err(|e| CliError::about(key, e, || None))?;
        let (key, size) = (shown(key), show_bytes(value.len() as u64));
        let Some(path) = to else {
            // `-o -` names stdout, so any bytes are written to it.
            let force = self.force || self.output.is_some();
            if !force && std::io::stdout().is_terminal() && !is_text(&value) {
                return Err(CliError::usage(format!(
                    "the {size} of key {key} are no text and could upset the terminal: give -o \
                     FILE, pipe them on, or write them all the same with --force"
                )));
            }
            output::write(&value)?;
            return Ok(exit::DONE);
        };
        transfer::write(path, &value)?;
        let file = path.display().to_string();
        cluster.show(&json!({ "key": key, "bytes": value.len(), "file": file }), || {
            format!("{key}: {size} to {file}\n")
        })
    }
}

/// True if it is UTF-8 without control characters but line feeds, carriage returns and tabs.
fn is_text(value: &[u8]) -> bool {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    std::str::from_utf8(value).is_ok_and(|text| text.chars().all(harmless))
}

/// `nkv exists`: one line per key.
pub(crate) fn exists(keys: &[OsString], cluster: &Cluster<'_>) -> Result<u8, CliError> {
    let keys = cluster.keys(keys)?;
    let bytes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = cluster.connect()?.exists(&bytes)?;
    let state = |existence: &Existence| match existence {
        Existence::Absent => "absent",
        Existence::Writing => "writing",
        Existence::Ready => "ready",
        Existence::OnDisk => "on disk",
        Existence::Unreachable => "unreachable",
    };
    let states = found.iter().map(state);
    report(&keys.iter().zip(states).collect::<Vec<_>>(), cluster)?;
    Ok(match &found {
        all if all.iter().all(|e| matches!(e, Existence::Ready | Existence::OnDisk)) => exit::DONE,
        some if some.contains(&Existence::Absent) => exit::ABSENT,
        // It is being written, or its rank is down.
        _ => exit::UNREACHED,
    })
}

/// What happened to each key.
pub(crate) fn report(rows: &[(&Vec<u8>, &str)], cluster: &Cluster<'_>) -> Result<u8, CliError> {
    let object = |(key, state): &(&Vec<u8>, &str)| json!({ "key": shown(key), "state": state });
    let keys: Vec<_> = rows.iter().map(object).collect();
    cluster.show(&json!({ "keys": keys }), || {
        rows.iter().map(|(key, state)| format!("{}: {state}\n", shown(key))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::is_text;
    use crate::flags::{Command, Flags};
    use clap::Parser;
    use std::path::Path;

    #[test]
    fn stdin_is_the_default_of_put_and_stdout_of_get() {
        let command = |name| Flags::parse_from(["nkv", name, "k"]).command;
        let Command::Put(put) = command("put") else { panic!() };
        assert_eq!(put.file, Path::new("-"));
        let Command::Get(get) = command("get") else { panic!() };
        assert_eq!(get.output, None);
    }

    #[test]
    fn text_is_what_leaves_a_terminal_as_it_is() {
        assert!(is_text(b"") && is_text("a\tü\r\n".as_bytes()));
        for harmful in [&b"\0"[..], b"\x1b[2J", b"\xff", b"\x07", "\u{9b}".as_bytes()] {
            assert!(!is_text(harmful), "{harmful:?}");
        }
    }
}
