//! The target of the load: a cluster embedded in this process, or running nodes. Both provide
//! handles of the same type, each for one thread, so the runs are the same for both.

use crate::flags::Flags;
use crate::status::ended;
use anyhow::Context;
use nkv::message::View;
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
        device_alloc: flags.device_alloc,
        data_stripes: usize::from(flags.data_stripes),
        get_pool_bytes: flags.get_pool_bytes,
        fabric: flags.fabric.config(),
        secret,
        ..ClientConfig::default()
    };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = rt.block_on(connect(&nodes, &config));
    Ok(client.with_context(|| format!("--connect {address}"))?.blocking()?)
}

/// Refuses a run whose objects fit in no heap of the cluster: each put would fail. Warns of
/// `--device-alloc` where no rank has a device log: each put would take a plan.
///
/// # Errors
/// With the size, the largest heap, and what to change.
pub(crate) fn heap_takes(
    view: &View,
    flags: &Flags,
    (bytes, what): (u64, &str),
) -> anyhow::Result<()> {
    if flags.device_alloc && !view.ranks.iter().any(|(info, _)| info.layout.log_slots > 0) {
        tracing::warn!(
            "--device-alloc, and no rank has a device log: every put takes a plan; start ranks \
             with --log-bytes"
        );
    }
    let largest = view.ranks.iter().max_by_key(|(info, _)| info.layout.arena.len);
    let Some((info, _)) = largest.filter(|(info, _)| info.layout.arena.len < bytes) else {
        return Ok(());
    };
    let why = format!(
        "{what} is {}, and the largest heap of the cluster has {} (rank {}): nothing could be put; \
         take smaller objects, or start ranks with a larger --heap-bytes",
        show_bytes(bytes),
        show_bytes(info.layout.arena.len),
        info.rank
    );
    Err(ended(exit::NO_ROOM, why))
}
