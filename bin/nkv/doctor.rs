//! `nkv doctor`: what this host offers for nkv, and whether it works. It connects to no cluster.

mod disk;
mod gpu;

use crate::cli_error::CliError;
use crate::output;
use nkv_programs::exit;
use nkv_programs::sizes::show_bytes;
use nkv_store::shm;
use nkv_transport::fabric::FabricConfig;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::path::Path;

/// What was found; `--json` prints it.
#[derive(Debug, Serialize)]
struct Findings {
    shm_free_bytes: u64,
    /// `None`: no limit.
    locked_memory_limit_bytes: Option<u64>,
    rdma: Rdma,
    gpus: gpu::Gpus,
    /// Of the directory that was named.
    ssd: Option<disk::DiskFindings>,
}

#[derive(Debug, Default, Serialize)]
struct Rdma {
    /// Why there is none, if there is none.
    none: Option<String>,
    devices: Vec<Device>,
    /// Results of a write from each device to itself, for the wanted devices, else for all with an
    /// active port.
    loop_back: Vec<LoopBack>,
}

#[derive(Debug, Serialize)]
struct Device {
    name: String,
    max_pairs: u32,
    max_region_bytes: u64,
    atomics: bool,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Port {
    number: u8,
    active: bool,
    mtu_bytes: u32,
    gids: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LoopBack {
    through: String,
    /// Why it failed; `None`: every byte and word came back.
    failed: Option<String>,
    /// Microseconds of a write of 4 KiB.
    write_us: f64,
}

/// Inspects the host, tries each wanted device, and prints the results. Status 1 if an
/// RDMA device does not work, or none is there although one is wanted, or the SSD directory does
/// not work.
pub(crate) fn run(
    wanted: &FabricConfig,
    ssd_dir: Option<&Path>,
    json: bool,
) -> Result<u8, CliError> {
    let findings = Findings {
        shm_free_bytes: shm::available_bytes(),
        locked_memory_limit_bytes: getrlimit(Resource::Memlock).current,
        rdma: rdma(wanted).unwrap_or_else(|why| Rdma { none: Some(why), ..Rdma::default() }),
        gpus: gpu::found(),
        ssd: ssd_dir.map(disk::found),
    };
    output::show(json, &findings, || text(&findings))?;
    let asked_for = wanted.is_particular() && findings.rdma.none.is_some();
    let broken = findings.rdma.loop_back.iter().any(|tried| tried.failed.is_some()) || asked_for;
    let broken = broken || findings.ssd.as_ref().is_some_and(disk::DiskFindings::has_failed);
    Ok(if broken { exit::ABSENT } else { exit::DONE })
}

#[cfg(not(feature = "rdma"))]
fn rdma(_: &FabricConfig) -> Result<Rdma, String> {
    Err("this program was built without the feature rdma (cargo build --features rdma)".to_string())
}

#[cfg(feature = "rdma")]
fn rdma(wanted: &FabricConfig) -> Result<Rdma, String> {
    use nkv_transport::rdma;
    let devices = rdma::devices().map_err(|e| e.to_string())?;
    if devices.is_empty() {
        let none = "the kernel lists no RDMA device (rdma link; is the driver loaded?)";
        return Err(none.to_string());
    }
    let port = |p: rdma::Port| Port {
        number: p.number,
        active: p.active,
        mtu_bytes: p.mtu_bytes,
        gids: p.gids.iter().map(ToString::to_string).collect(),
    };
    let device = |d: rdma::DeviceReport| Device {
        name: d.name,
        max_pairs: d.limits.pairs,
        max_region_bytes: d.limits.region_bytes,
        atomics: d.limits.atomics,
        ports: d.ports.into_iter().map(port).collect(),
    };
    let works = |d: &&rdma::DeviceReport| d.ports.iter().any(|port| port.active);
    let all = || devices.iter().filter(works).map(|d| d.name.clone()).collect();
    let to_try = if wanted.devices.is_empty() { all() } else { wanted.devices.clone() };
    let loop_back = |name: String| match rdma::loop_back(&name, wanted.gid_index) {
        Ok(t) => LoopBack { through: t.through, failed: None, write_us: t.write_us },
        Err(e) => LoopBack { through: name, failed: Some(e.to_string()), write_us: 0.0 },
    };
    let loop_back = to_try.into_iter().map(loop_back).collect();
    let devices = devices.into_iter().map(device).collect();
    Ok(Rdma { none: None, devices, loop_back })
}

fn text(f: &Findings) -> String {
    let mut lines = vec![
        format!("shared memory free   {}", show_bytes(f.shm_free_bytes)),
        format!(
            "locked memory        {}",
            f.locked_memory_limit_bytes.map_or("no limit".to_string(), |bytes| format!(
                "at most {}: RDMA registers whole heaps (ulimit -l unlimited)",
                show_bytes(bytes)
            ))
        ),
    ];
    if let Some(why) = &f.rdma.none {
        lines.push(format!("RDMA                 none: {why}"));
    }
    for d in &f.rdma.devices {
        let atomics = if d.atomics { "atomics" } else { "no atomics: nkv cannot use it" };
        lines.push(format!("RDMA device          {}: {} pairs, {atomics}", d.name, d.max_pairs));
        for p in &d.ports {
            let state = if p.active { "active" } else { "not active" };
            lines.push(format!("  port {}             {state}, MTU {}", p.number, p.mtu_bytes));
            lines.extend(p.gids.iter().map(|gid| format!("    {gid}")));
        }
    }
    for tried in &f.rdma.loop_back {
        lines.push(match &tried.failed {
            Some(why) => format!("loop back            {} FAILED: {why}", tried.through),
            None => format!(
                "loop back            works through {}: {:.1} µs to write 4 KiB",
                tried.through, tried.write_us
            ),
        });
    }
    lines.extend(gpu::lines(&f.gpus));
    lines.extend(f.ssd.iter().map(disk::DiskFindings::text));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{Findings, LoopBack, Rdma, text};

    fn findings(rdma: Rdma) -> Findings {
        let gpus = super::gpu::Gpus { none: Some("no driver".to_string()), ..Default::default() };
        Findings {
            shm_free_bytes: 1 << 30,
            locked_memory_limit_bytes: Some(8 << 20),
            rdma,
            gpus,
            ssd: None,
        }
    }

    #[test]
    fn missing_parts_are_shown_with_the_remedy() {
        let none = Rdma { none: Some("no library".to_string()), ..Rdma::default() };
        let printed = text(&findings(none));
        assert!(printed.contains("none: no driver"), "{printed}");
        assert!(printed.contains("none: no library") && printed.contains("ulimit -l"), "{printed}");
        let failed = Some("no way".to_string());
        let through = "rxe0".to_string();
        let tried = LoopBack { through, failed, write_us: 0.0 };
        let printed = text(&findings(Rdma { loop_back: vec![tried], ..Rdma::default() }));
        assert!(printed.contains("rxe0 FAILED: no way"), "{printed}");
    }
}
