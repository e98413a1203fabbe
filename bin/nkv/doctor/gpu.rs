//! The GPUs of this host, and whether bytes come back from each.

use nkv_gpu::driver::{Device, Driver, DriverError};
use nkv_gpu::vram::{Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use serde::Serialize;
use std::sync::Arc;

/// Bytes copied there and back.
const BYTES: usize = 64 << 20;

#[derive(Debug, Default, Serialize)]
pub(super) struct Gpus {
    /// Why there is none, if there is none.
    pub none: Option<String>,
    pub devices: Vec<Gpu>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    pub number: u32,
    /// Name, memory, and what it can do; or why it cannot be used.
    pub what: String,
    /// Why bytes did not come back; None: they did.
    pub failed: Option<String>,
    /// GB/s of a copy from ordinary memory, and of one back.
    pub write_gb_per_s: f64,
    pub read_gb_per_s: f64,
}

pub(super) fn found() -> Gpus {
    match Driver::open() {
        Err(why) => Gpus { none: Some(why.to_string()), ..Gpus::default() },
        Ok(driver) => {
            let devices = (0..driver.devices()).map(|number| gpu(&driver, number)).collect();
            Gpus { none: None, devices }
        }
    }
}

fn gpu(driver: &Arc<Driver>, number: u32) -> Gpu {
    let none = |what: String, failed: String| Gpu {
        number,
        what,
        failed: Some(failed),
        write_gb_per_s: 0.0,
        read_gb_per_s: 0.0,
    };
    let device = match Device::new(driver.clone(), number) {
        Ok(device) => device,
        Err(why) => return none("cannot be used".to_string(), why.to_string()),
    };
    let what = device.attributes().to_string();
    match rates(&device) {
        Ok((write_gb_per_s, read_gb_per_s)) => {
            Gpu { number, what, failed: None, write_gb_per_s, read_gb_per_s }
        }
        Err(why) => none(what, why),
    }
}

/// Rates of copies, the second of two each, whose bytes were compared.
fn rates(device: &Arc<Device>) -> Result<(f64, f64), String> {
    let text = |e: DriverError| e.to_string();
    let vram = Vram::allocate(device, BYTES as u64).map_err(text)?;
    let memory = VramMemory::new(Arc::new(vram)).map_err(text)?;
    let mut back = vec![0; BYTES];
    let (mut write, mut read) = (0.0, 0.0);
    for seed in 1..=2 {
        let source: Vec<u8> = (0..BYTES).map(|i| (i / 7 * seed) as u8).collect();
        let start = BootClock.now_ns();
        memory.write(0, &source).map_err(|e| e.to_string())?;
        memory.flush();
        write = BYTES as f64 / (BootClock.now_ns() - start).max(1) as f64;
        let start = BootClock.now_ns();
        memory.read(0, &mut back).map_err(|e| e.to_string())?;
        read = BYTES as f64 / (BootClock.now_ns() - start).max(1) as f64;
        if back != source {
            return Err("other bytes came back".to_string());
        }
    }
    Ok((write, read))
}

/// Lines for people.
pub(super) fn lines(gpus: &Gpus) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(why) = &gpus.none {
        lines.push(format!("GPU                  none: {why}"));
    }
    for g in &gpus.devices {
        lines.push(format!("GPU {:<17}{}", g.number, g.what));
        lines.push(match &g.failed {
            Some(why) => format!("  copies             FAILED: {why}"),
            None => format!(
                "  copies             work: {:.1} GB/s there, {:.1} back",
                g.write_gb_per_s, g.read_gb_per_s
            ),
        });
    }
    lines
}
