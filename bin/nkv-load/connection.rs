//! The target of the load: a cluster embedded in this process, or running nodes. Both provide
//! handles of the same type, each for one thread, so the runs are the same for both.

use crate::flags::Flags;
use crate::status::ended;
use anyhow::Context;
use nkv::message::{RankInfo, View};
use nkv::{Address, Blocking, ClientConfig, Cluster, MemoryChoice, NodeConfig, Secret};
use nkv_programs::endpoints::{connect, endpoint};
use nkv_programs::exit;
use nkv_programs::sizes::show_bytes;
use tokio::runtime::Runtime;

/// Does `work` with a cluster of `ranks` nodes in this process, then stops it. It is a job of its
/// own, apart from every other cluster of this machine.
///
/// # Errors
/// As [`Cluster::start`], and that of `work`.
pub(crate) fn with_embedded<T>(
    rt: &Runtime,
    ranks: u32,
    base: NodeConfig,
    work: impl FnOnce(&Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let job = format!("nkv-load-{}", std::process::id());
    // The default of real ranks.
    let memory = MemoryChoice::Shm;
    let cluster = rt.block_on(Cluster::start(ranks, NodeConfig { job, memory, ..base }))?;
    let done = work(&cluster);
    rt.block_on(cluster.stop());
    done
}

/// A handle of a running cluster, for one thread, through the first of the nodes that `--connect`
/// names, separated by commas, that reaches the master.
///
/// # Errors
/// If one of them is no address, or none answers, or they are of another job.
pub(crate) fn remote(flags: &Flags) -> anyhow::Result<Blocking> {
    let address = flags.connect.as_deref().context("--connect HOST:PORT is missing")?;
    let wrong = |e| ended(exit::USAGE, format!("--connect {address}: {e}"));
    let nodes: Vec<Address> =
        address.split(',').map(endpoint).collect::<Result<_, _>>().map_err(wrong)?;
    flags.fabric.find().map_err(anyhow::Error::msg)?;
    let secret = Secret::find(flags.secret_file.as_deref());
    let secret = match flags.secret_file {
        Some(_) => secret.context("--secret-file"),
        None => secret.map_err(anyhow::Error::from),
    }?;
    let config = ClientConfig {
        job: flags.job.clone(),
        transport: flags.transport.choice(),
        device_alloc: !flags.by_plan,
        data_stripes: usize::from(flags.data_stripes),
        get_pool_bytes: flags.get_pool_bytes,
        cache_on_read: flags.cache_on_read,
        fabric: flags.fabric.config(),
        secret,
        ..ClientConfig::default()
    };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = rt.block_on(connect(&nodes, &config));
    Ok(client.with_context(|| format!("--connect {address}"))?.blocking()?)
}

/// Bytes of the part of a segment that takes objects of this size: the device log, or what is left
/// to plans.
pub(crate) fn part_for(info: &RankInfo, flags: &Flags, bytes: u64) -> u64 {
    let log = info.layout.device_log().filter(|log| !flags.by_plan && bytes <= log.max_claim());
    log.map_or(info.layout.arena.len, |_| info.layout.log.len)
}

/// Refuses a run whose objects fit in no segment of the cluster: each put would fail.
///
/// # Errors
/// With the size, the largest heap, and what to change.
pub(crate) fn heap_takes(
    view: &View,
    flags: &Flags,
    (bytes, what): (u64, &str),
) -> anyhow::Result<()> {
    let most = |info: &RankInfo| {
        let log = if flags.by_plan { None } else { info.layout.device_log() };
        info.layout.arena.len.max(log.map_or(0, |log| log.max_claim()))
    };
    let Some((info, most)) =
        view.ranks.iter().map(|(info, _)| (info, most(info))).max_by_key(|(_, most)| *most)
    else {
        return Ok(());
    };
    if bytes <= most {
        return Ok(());
    }
    let why = format!(
        "{what} is {}, and the largest object that fits in a rank has {} (rank {}): nothing could \
         be put; take smaller objects, or start ranks with a larger --heap-bytes",
        show_bytes(bytes),
        show_bytes(most),
        info.rank
    );
    Err(ended(exit::NO_ROOM, why))
}
