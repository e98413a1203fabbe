//! The memory that simulated machines leave for a segment.

use super::*;
use std::fs;

const MIB: u64 = 1 << 20;

struct Machine(tempfile::TempDir);

impl Machine {
    fn new(cgroup: &str) -> Machine {
        let m = Machine(tempfile::tempdir().unwrap());
        m.file("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8192 kB\nBuffers: 1 kB\n");
        m.file("proc/self/cgroup", cgroup);
        m
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn cgroup(&self) -> Option<u64> {
        cgroup_room(self.0.path()).map(|(room, _)| room)
    }
}

#[test]
fn mem_available_is_read_in_bytes() {
    let m = Machine::new("");
    assert_eq!(meminfo_available(m.0.path()), Some(8192 * 1024));
    assert!(mem_available() > 0 && available_bytes() > 0);
}

#[test]
fn the_tightest_group_up_to_the_root_counts() {
    let m = Machine::new("0::/job/step\n");
    assert_eq!(m.cgroup(), None);
    m.file("sys/fs/cgroup/job/step/memory.max", "max\n");
    assert_eq!(m.cgroup(), None);
    m.file("sys/fs/cgroup/job/memory.max", "4194304\n");
    m.file("sys/fs/cgroup/job/memory.current", "1048576\n");
    assert_eq!(m.cgroup(), Some(3 * MIB));
    m.file("sys/fs/cgroup/job/step/memory.max", "2097152\n");
    m.file("sys/fs/cgroup/job/step/memory.current", "1572864\n");
    assert_eq!(m.cgroup(), Some(MIB / 2));
    m.file("sys/fs/cgroup/job/step/memory.stat", "file 1\ninactive_file 1048576\nslab 0\n");
    assert_eq!(m.cgroup(), Some(3 * MIB / 2), "page cache is given back");
    m.file("sys/fs/cgroup/job/memory.current", "9999999\n");
    assert_eq!(m.cgroup(), Some(0), "over its limit");
}

#[test]
fn version_one_limits_count_and_its_no_limit_does_not() {
    let m = Machine::new("9:cpu:/x\n4:memory:/docker/abc\n0::/\n");
    m.file("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(m.cgroup(), None);
    // Inside a container the host's path does not exist: only the mount's root is used.
    m.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "5242880\n");
    m.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n");
    m.file("sys/fs/cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 1048576\n");
    assert_eq!(m.cgroup(), Some(4 * MIB));
}

#[test]
fn a_path_outside_the_namespace_does_not_leave_the_mount() {
    let m = Machine::new("0::/../../secret\n");
    m.file("sys/secret/memory.max", "1\n");
    m.file("sys/fs/cgroup/memory.max", "7340032\n");
    assert_eq!(m.cgroup(), Some(7 * MIB));
}

#[test]
fn the_least_room_decides() {
    let cgroup = Some((2 * MIB, PathBuf::from("/g")));
    let room = Headroom { machine: Some(3 * MIB), cgroup };
    assert_eq!(room.least(), Some(2 * MIB));
    assert_eq!(Headroom { cgroup: None, ..room.clone() }.least(), Some(3 * MIB));
    assert_eq!(Headroom { machine: Some(MIB), ..room }.least(), Some(MIB));
}

#[test]
fn the_refusal_has_the_numbers_and_the_remedies() {
    check_room(4096).unwrap();
    let refused = check_room(1 << 50).unwrap_err();
    assert!(matches!(refused, StoreError::NotEnoughMemory(_)));
    let text = refused.to_string();
    for part in ["1125899906842624", "MemAvailable", "control groups", "--memory", "memory limit"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_segment_above_the_limit_of_file_sizes_is_refused_with_both_limits() {
    file_size_fits(MIB, Some(MIB), Some(MIB)).unwrap();
    file_size_fits(u64::MAX, None, None).unwrap();
    let error = file_size_fits(3 * MIB, Some(MIB), None).unwrap_err().to_string();
    for part in ["3145728 bytes", "1048576 bytes", "ulimit -f", "hard limit: unlimited"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}
