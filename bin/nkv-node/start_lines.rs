//! What a rank prints when it starts: two log lines with its identity and addresses; at debug level
//! its configuration with sources and what it found on this machine; and one line for programs on
//! stdout.

use nkv::message::{ExportedMemory, RankInfo};
use nkv::{Address, Node, NodeConfig};
use nkv_programs::settings::{Line, Settings};
use nkv_programs::sizes::show_bytes;
use nkv_store::shm::pages;
use std::io::Write;
use std::net::SocketAddr;

/// Width of the column of keys.
const KEY_WIDTH: usize = 16;
/// Width of the column of values, unless one is longer.
const VALUE_WIDTH: usize = 18;

/// The effective configuration: valid TOML, each value with its source in a comment.
pub(crate) fn configuration(lines: &[Line]) -> String {
    let row =
        |l: &Line| format!("{:KEY_WIDTH$} = {:VALUE_WIDTH$} # {}\n", l.key, l.value, l.source);
    lines.iter().map(row).collect()
}

/// Logs the lines before joining.
pub(crate) fn before(settings: &Settings) {
    let node = &settings.node;
    // Rank 0 runs the master: the second line shows its address.
    let master = (node.rank > 0 && !node.election.is_any_rank())
        .then(|| format!("{}:{}", node.master_host, node.port));
    tracing::info!(
        version = env!("NKV_BUILD_VERSION"),
        pid = std::process::id(),
        job = %node.job,
        rank = node.rank,
        world_size = node.world_size,
        master,
        heap = %show_bytes(node.heap_bytes),
        log = %show_bytes(node.parts().1),
        policy = %node.policy,
        "starting"
    );
    for Line { key, value, source } in &settings.lines {
        tracing::debug!(%value, %source, "setting {key}");
    }
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
}

/// The memory pages of a segment.
fn pages_shown(node: &NodeConfig, segment: &str) -> String {
    let shown = pages(segment).map_or("pages that are not known".to_string(), |p| p.to_string());
    let asked = if node.prefault { "" } else { " (2 MiB come with --prefault)" };
    format!("{shown}{asked}")
}

/// Logs the lines after joining: every address, what was found here, and why other choices were not
/// taken.
pub(crate) fn joined(node: &Node, http: Option<SocketAddr>) {
    let (info, trusted) = (node.info(), node.credentials().shown());
    tracing::info!(
        control = %info.control,
        unix = %shown(info.local.as_ref().map(Address::to_string)),
        data = %shown(info.data.clone()),
        http = %shown(http.map(|h| format!("http://{h}"))),
        who_may_connect = %trusted,
        "joined"
    );
    for (name, text) in found(node.config(), info) {
        tracing::debug!("{name}: {text}");
    }
}

fn found(node: &NodeConfig, info: &RankInfo) -> [(&'static str, String); 6] {
    let (memory, other, transports, unused) = match &info.memory {
        ExportedMemory::Shared { .. } => (
            format!(
                "shm, /dev/shm/{} of {}, {}",
                info.memory.name().unwrap_or_default(),
                show_bytes(info.layout.segment_bytes),
                pages_shown(node, info.memory.name().unwrap_or_default())
            ),
            "cuda, private (dram was chosen)",
            "local, shm",
            "",
        ),
        ExportedMemory::Private => (
            format!("private, {}", show_bytes(info.layout.segment_bytes)),
            "dram, cuda (private was chosen)",
            "local",
            "shm (the memory is private); ",
        ),
        ExportedMemory::Device { .. } => (
            format!("{} of a GPU", show_bytes(info.layout.payloads().len)),
            "dram, private (cuda was chosen)",
            "local, cuda_ipc",
            "shm (the payloads are in a GPU); ",
        ),
    };
    let ranks = match info.world_size {
        1 => "this one".to_string(),
        n => format!(
            "{n}: puts wait until all have joined, a TTL at most (/readyz of rank 0 says who is \
             missing)"
        ),
    };
    let by_devices = info.fabric.as_ref().map(|devices| format!("rdma ({devices}), "));
    let by_devices = by_devices.unwrap_or_default();
    let rdma = match &info.fabric {
        Some(_) => "",
        None if !cfg!(feature = "rdma") => "rdma (this build is without the feature), ",
        None if node.fabric.is_none() => "rdma (rdma_devices none), ",
        None => "rdma (reason in the log above), ",
    };
    let no_gpu = match &info.memory {
        ExportedMemory::Device { .. } => "",
        _ => "cuda_ipc (the payloads are in no GPU)",
    };
    [
        ("ranks", ranks),
        ("memory", memory),
        ("memory not chosen", other.to_string()),
        ("transports", format!("{transports}, {by_devices}tcp")),
        ("transports not chosen", format!("{unused}{rdma}{no_gpu}")),
        ("incarnation", format!("{:016x}", info.incarnation)),
    ]
}

/// Writes the line for programs: fields are `name=value` without blanks, `-` for an absent value. A
/// closed stdout is no error.
pub(crate) fn print_ready(settings: &Settings, info: &RankInfo, http: Option<SocketAddr>) {
    let mut out = std::io::stdout();
    let _ = writeln!(
        out,
        "nkv-node ready rank={} world={} control={} http={} data={} unix={} segment={} pid={} \
         job={}",
        info.rank,
        info.world_size,
        info.control.bare(),
        shown(http.map(|h| h.to_string())),
        shown(info.data.clone()),
        shown(info.local.as_ref().map(Address::bare)),
        shown(info.memory.name().map(str::to_string)),
        std::process::id(),
        settings.node.job,
    )
    .and_then(|()| out.flush());
}

fn shown(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_string())
}

#[cfg(test)]
mod tests {
    use super::configuration;
    use nkv_programs::settings::Line;

    #[test]
    fn the_configuration_is_toml_with_sources_as_comments() {
        let line = |key, value: &str| Line { key, value: value.into(), source: "--x".into() };
        let text = configuration(&[line("rank", "3"), line("job", "\"a b\"")]);
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["rank"].as_integer(), Some(3));
        assert_eq!(table["job"].as_str(), Some("a b"));
        assert!(text.lines().all(|l| l.ends_with("# --x")), "{text}");
    }
}
