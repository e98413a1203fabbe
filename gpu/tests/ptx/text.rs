//! The text of the PTX: which instructions order memory, one after the other. What weak memory on a
//! processor cannot show is held here.

use crate::mutate::{lines, ordering, unguarded};
use nkv_gpu::kernels::{GATHER_BULK, GATHER_PUBLISH, LOG_PUT, PTX_SM80, PTX_SM90, WAIT_SCATTER};

const GATHER_ORDER: &[&str] = &[
    "bar.sync 0",
    "atom.acq_rel.gpu.global.add.u64",
    "ld.acquire.sys.global.u64",
    "st.release.sys.global.u64",
];
const SCATTER_ORDER: &[&str] = &[
    // Publish word, owner word, and the four fields.
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "bar.sync 0",
    "bar.sync 0",
    "atom.acq_rel.gpu.global.add.u64",
    "fence.acq_rel.sys",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "ld.acquire.sys.global.u64",
];
const LOG_ORDER: &[&str] = &[
    // Limit, bump, claim, limit again.
    "ld.acquire.sys.global.u64",
    "ld.relaxed.sys.global.u64",
    "atom.relaxed.sys.global.add.u64",
    "ld.acquire.sys.global.u64",
    // A skip: fields, DEAD.
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.release.sys.global.u64",
    // Fields, WRITING.
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    "st.relaxed.sys.global.u64",
    // Payload, READY.
    "bar.sync 0",
    "bar.sync 0",
    "st.release.sys.global.u64",
];
const BULK_ORDER: &[&str] = &[
    "mbarrier.init.shared::cta.b64",
    "mbarrier.init.shared::cta.b64",
    "mbarrier.init.shared::cta.b64",
    "fence.proxy.async.shared::cta",
    "cp.async.bulk.wait_group.read 2",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
    "mbarrier.try_wait.parity.shared::cta.b64",
    "cp.async.bulk.global.shared::cta.bulk_group",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group 0",
    "fence.proxy.async.global",
    "atom.acq_rel.gpu.global.add.u64",
    "ld.acquire.sys.global.u64",
    "st.release.sys.global.u64",
];

pub fn kernels(text: &str) -> &'static [(&'static str, &'static [&'static str])] {
    const ALL: &[(&str, &[&str])] = &[
        (GATHER_PUBLISH, GATHER_ORDER),
        (WAIT_SCATTER, SCATTER_ORDER),
        (LOG_PUT, LOG_ORDER),
        (GATHER_BULK, BULK_ORDER),
    ];
    if text.contains(GATHER_BULK) { ALL } else { &ALL[..3] }
}

/// What is wrong with a text, if anything.
pub fn check(text: &str) -> Result<(), String> {
    version(text)?;
    for (kernel, expected) in kernels(text) {
        let lines = lines(text, kernel);
        let found: Vec<String> = lines
            .iter()
            .filter_map(|(_, line)| ordering(line))
            .map(|found| found.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        if found != *expected {
            return Err(format!("{kernel} orders memory by {found:#?}"));
        }
        accesses(kernel, &lines)?;
        if *kernel != GATHER_BULK {
            copies(kernel, &lines)?;
        }
    }
    Ok(())
}

/// A driver of CUDA 13.0 takes PTX 9.0 and no later.
fn version(text: &str) -> Result<(), String> {
    let version = text.lines().find_map(|line| line.strip_prefix(".version "));
    let (major, minor) = version.and_then(|v| v.split_once('.')).ok_or("no version")?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|e| e.to_string());
    if (number(major)?, number(minor)?) > (9, 0) {
        return Err(format!("version {major}.{minor}"));
    }
    Ok(())
}

/// Every access names its space, no register spills, and payload is not read through the cache
/// for constants.
pub fn accesses(kernel: &str, lines: &[(usize, &str)]) -> Result<(), String> {
    for (number, line) in lines {
        let opcode = unguarded(line).split_whitespace().next().unwrap_or_default();
        let access = opcode.starts_with("ld.") || opcode.starts_with("st.");
        let space = [".global", ".shared", ".param"].iter().any(|space| opcode.contains(space));
        let payload = opcode.contains(".v4") || opcode.contains(".u8");
        if access && !space || line.contains(".local") || payload && opcode.contains(".nc") {
            return Err(format!("{kernel}, line {}: {line}", number + 1));
        }
    }
    Ok(())
}

/// Four loads of 16 bytes in flight, then four stores; and a barrier between the last store of
/// payload and what publishes it.
fn copies(kernel: &str, lines: &[(usize, &str)]) -> Result<(), String> {
    let is = |line: &str, names: &[&str]| names.iter().any(|name| line.starts_with(name));
    let vectors = ["ld.global.v4.u32", "st.global.v4.u32"];
    let order: Vec<bool> = lines
        .iter()
        .filter(|(_, line)| is(line, &vectors))
        .map(|(_, line)| line.starts_with("ld"))
        .collect();
    if order != [true, true, true, true, false, false, false, false, true, false] {
        return Err(format!("{kernel} copies in another way"));
    }
    let last = |names: &[&str]| lines.iter().rposition(|(_, line)| is(line, names));
    let stored = last(&["st.global.v4", "st.global.u8"]);
    let barrier = last(&["bar.sync"]);
    let published = last(&["atom.acq_rel", "st.release"]);
    if !(stored < barrier && barrier < published) {
        return Err(format!("{kernel} has no barrier between payload and what publishes it"));
    }
    Ok(())
}

#[test]
fn the_texts_order_memory_as_expected() {
    for text in [PTX_SM80, PTX_SM90] {
        check(text).unwrap();
    }
    assert!(!PTX_SM80.contains(GATHER_BULK) && PTX_SM90.contains(GATHER_BULK));
}

#[test]
fn other_texts_are_refused() {
    let changes = [
        (".version 9.0", ".version 9.1"),
        ("ld.global.v4.u32", "ld.v4.u32"),
        ("ld.global.v4.u32", "ld.global.nc.v4.u32"),
        ("st.global.v4.u32", "st.local.v4.u32"),
        ("bar.sync", "bar.warp.sync"),
        ("ld.acquire.sys", "ld.acquire.gpu"),
        ("st.global.v4.u32", "st.global.v2.u32"),
    ];
    for (from, to) in changes {
        let changed = PTX_SM80.replacen(from, to, 1);
        assert!(changed != PTX_SM80 && check(&changed).is_err(), "{from} became {to}");
    }
}
