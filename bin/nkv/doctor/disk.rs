//! The disk on which a rank would keep objects: what its engine reaches there, in a directory of
//! its own that is removed afterwards.

use nkv_programs::sizes::show_bytes;
use nkv_ssd::slab::SlabOptions;
use nkv_ssd::{Disk, Durability, Engine, Object, Payload, Saved, SlabEngine, Storage};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::{AnonMemory, Key, Memory};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Objects of 1 MiB that are written, and read.
const OBJECTS: u64 = 128;
/// In a call: as many as the writer gives the engine at a time.
const AT_ONCE: usize = 32;
/// Room for them, their headers, and those of the other measurement.
const CAPACITY: u64 = 192 * MIB;
/// Saves of 4 KiB, each for good before the next.
const SYNCED: u64 = 16;

/// What was measured; `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct DiskFindings {
    directory: String,
    /// Why there are no figures, if there are none.
    failed: Option<String>,
    free_bytes: u64,
    /// Whether the page cache is bypassed.
    direct: bool,
    /// `io_uring` or `preadv`.
    reads_by: &'static str,
    /// Objects of 1 MiB with checksums, and a sync at the end.
    write_mib_per_s: f64,
    read_mib_per_s: f64,
    /// Of a save of 4 KiB that survives a loss of power; the median.
    persistent_save_ms: f64,
}

impl DiskFindings {
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn text(&self) -> String {
        let head = format!("SSD directory        {}", self.directory);
        if let Some(why) = &self.failed {
            return format!("{head}: {why}");
        }
        format!(
            "{head}: {} free, {}, reads by {}
                     objects of 1 MiB: write {:.0} MiB/s, read {:.0} MiB/s; a persistent save of \
             4 KiB takes {:.2} ms",
            show_bytes(self.free_bytes),
            if self.direct { "direct I/O" } else { "no direct I/O: through the page cache" },
            self.reads_by,
            self.write_mib_per_s,
            self.read_mib_per_s,
            self.persistent_save_ms
        )
    }
}

/// Measures a directory, which must be there.
pub(super) fn found(dir: &Path) -> DiskFindings {
    let mut findings = DiskFindings {
        directory: dir.display().to_string(),
        failed: None,
        free_bytes: 0,
        direct: false,
        reads_by: "",
        write_mib_per_s: 0.0,
        read_mib_per_s: 0.0,
        persistent_save_ms: 0.0,
    };
    findings.failed = measure(dir, &mut findings).err();
    findings
}

fn measure(dir: &Path, findings: &mut DiskFindings) -> Result<(), String> {
    let shown = |e: &dyn std::fmt::Display| e.to_string();
    let own = tempfile::Builder::new().prefix("nkv-doctor-").tempdir_in(dir);
    let own = own.map_err(|e| shown(&e))?;
    let disk = Disk::open(own.path()).map_err(|e| shown(&e))?;
    findings.free_bytes = disk.free_bytes().map_err(|e| shown(&e))?;
    findings.direct = disk.is_direct();
    findings.reads_by = disk.reads_by();
    let options = SlabOptions {
        capacity_bytes: CAPACITY,
        slab_bytes: CAPACITY,
        durability: Durability::BestEffort,
        ttl_s: u64::MAX,
        clock: Arc::new(|| 0),
    };
    let storage: Arc<dyn Storage> = Arc::new(disk);
    let engine = SlabEngine::open(storage.clone(), options.clone()).map_err(|e| shown(&e))?;
    let memory = AnonMemory::huge(AT_ONCE as u64 * MIB).map_err(|e| shown(&e))?;
    memory.write(0, &vec![0x5a; AT_ONCE << 20]).map_err(|e| shown(&e))?;
    // The first write to each range of a new file is slower: a rank meets it once.
    save_all(&engine, &memory)?;
    engine.remove_all().and_then(|_| engine.maintain()).map_err(|e| shown(&e))?;
    let mib = OBJECTS as f64;
    findings.write_mib_per_s = mib / seconds(|| save_all(&engine, &memory))?;
    findings.read_mib_per_s = mib / seconds(|| load_all(&engine, &memory))?;
    drop(engine);
    let options = SlabOptions { durability: Durability::Persistent, ..options };
    let engine = SlabEngine::open(storage, options).map_err(|e| shown(&e))?;
    let mut each: Vec<f64> = (0..SYNCED)
        .map(|n| seconds(|| save(&engine, &memory, &[key(&format!("synced/{n}"))?], 4096)))
        .collect::<Result<_, _>>()?;
    each.sort_by(f64::total_cmp);
    findings.persistent_save_ms = each[each.len() / 2] * 1e3;
    Ok(())
}

fn seconds(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let began_ns = BootClock.now_ns();
    work()?;
    Ok((BootClock.now_ns() - began_ns).max(1) as f64 / 1e9)
}

fn key(text: &str) -> Result<Key, String> {
    Key::new(text.as_bytes()).map_err(|e| e.to_string())
}

fn keys() -> Result<Vec<Key>, String> {
    (0..OBJECTS).map(|n| key(&n.to_string())).collect()
}

fn save(engine: &dyn Engine, memory: &AnonMemory, keys: &[Key], len: u64) -> Result<(), String> {
    let payload = |at: usize| Payload { memory, offset: at as u64 * MIB, len };
    let object = |(at, key)| Object { key, layout: 0, payload: payload(at) };
    let objects: Vec<Object<'_>> = keys.iter().enumerate().map(object).collect();
    for saved in engine.save(&objects) {
        match saved {
            Saved::Saved => {}
            Saved::Error(error) => return Err(error.to_string()),
            other => return Err(format!("{other:?}")),
        }
    }
    Ok(())
}

fn save_all(engine: &dyn Engine, memory: &AnonMemory) -> Result<(), String> {
    for some in keys()?.chunks(AT_ONCE) {
        save(engine, memory, some, MIB)?;
    }
    engine.maintain().and_then(|()| engine.sync()).map_err(|e| e.to_string())
}

fn load_all(engine: &dyn Engine, memory: &AnonMemory) -> Result<(), String> {
    for key in keys()? {
        let into = Payload { memory, offset: 0, len: MIB };
        engine.load(&key, into).map_err(|e| e.to_string())?;
    }
    Ok(())
}
