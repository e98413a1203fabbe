//! The metrics `process_*` that Prometheus' own libraries show of a process. They are read at each
//! scrape; values that the system does not provide are left out.

use super::text::{Sort, Text};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// Seconds since 1970 of the first call, which is made at the start of the process.
#[expect(clippy::disallowed_methods, reason = "a date for Prometheus; nothing is computed from it")]
pub(crate) fn started() -> f64 {
    static AT: OnceLock<Duration> = OnceLock::new();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    AT.get_or_init(now).as_secs_f64()
}

/// Writes the available values.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) fn write(text: &mut Text) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Less the descriptor of the folder being read.
    let open = std::fs::read_dir("/proc/self/fd").map(|all| all.count().saturating_sub(1) as f64);
    let most = getrlimit(Resource::Nofile).current.map(|n| n as f64);
    let (gauge, counter) = (Sort::Gauge, Sort::Counter);
    for (name, sort, help, value) in [
        ("process_cpu_seconds_total", counter, "Processor time, user and system", Some(cpu)),
        ("process_resident_memory_bytes", gauge, "Memory it holds", bytes(&status, "VmRSS:")),
        ("process_virtual_memory_bytes", gauge, "Memory it maps", bytes(&status, "VmSize:")),
        ("process_threads", gauge, "Threads", field(&status, "Threads:")),
        ("process_open_fds", gauge, "Open file descriptors", open.ok()),
        ("process_max_fds", gauge, "Most file descriptors it may open", most),
        ("process_start_time_seconds", gauge, "When it started, since 1970", Some(started())),
    ] {
        if let Some(value) = value {
            text.metric(name, sort, help);
            text.sample(name, &[], value);
        }
    }
}

fn field(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A field that the kernel gives in KiB.
fn bytes(status: &str, name: &str) -> Option<f64> {
    field(status, name).map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::{bytes, field};

    #[test]
    fn the_kernels_fields_are_read_in_bytes() {
        let status = "Name:\tnkv\nVmRSS:\t    2048 kB\nThreads:\t7\n";
        assert_eq!(
            (bytes(status, "VmRSS:"), field(status, "Threads:")),
            (Some(2097152.0), Some(7.0))
        );
        assert_eq!(bytes(status, "VmSize:"), None);
    }
}
