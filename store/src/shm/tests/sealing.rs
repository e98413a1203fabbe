//! What no process can do to a segment's pages, and the size of these pages.

use super::*;
use crate::shm::mapping::BATCH;
use crate::shm::pages::HUGE_PAGE;
use std::fs::{File, OpenOptions};

/// The size of the mapping at `base` that the kernel maps by huge pages.
fn mapped_huge(base: usize) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{base:x}-")));
    let line = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn i19_nobody_can_take_pages_away_by_a_segments_name_or_descriptor() {
    let dir = folder();
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let file_name = line.split(' ').next().unwrap();
    let path = dir.path().join(file_name);
    let m = attach_in(dir.path(), file_name, false).unwrap();
    let whole = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let opened: [File; 2] = [whole(), link::open(&path).unwrap().0.into()];
    for file in &opened {
        for bytes in [0, BYTES - 1, BYTES + 1] {
            file.set_len(bytes).unwrap_err();
        }
        assert_eq!(file.metadata().unwrap().len(), BYTES);
    }
    OpenOptions::new().write(true).truncate(true).open(&path).unwrap_err();
    let cut = Command::new("truncate").args(["-s", "0"]).arg(&path).output().unwrap();
    assert!(!cut.status.success());
    let mut text = [0; 14];
    m.read(4096, &mut text).unwrap();
    assert_eq!(&text, b"from the child");
    m.write(BYTES - 1, b"x").unwrap();
    // Its other files can be truncated by anybody.
    File::create(lock::path_for(&path)).unwrap();
    assert!(swept_by_another(dir.path()).is_empty(), "the lock was lost");
    role.finish();
}

#[test]
fn pages_are_taken_in_huge_ones_as_far_as_the_kernel_has_them() {
    let dir = folder();
    let whole = BATCH + HUGE_PAGE;
    let bytes = whole + 5_000;
    let made = create_in(dir.path(), &name(0), bytes, Allocation::NOW).unwrap();
    let base = made.host_base().unwrap().as_ptr() as usize;
    assert_eq!(base as u64 % HUGE_PAGE, 0, "no huge page can be mapped elsewhere");
    let huge = made.mapping.huge_bytes();
    assert!(huge <= whole && mapped_huge(base) >= huge, "{huge} bytes are counted");
    for at in (0..bytes).step_by(4096) {
        let mut byte = [1];
        made.read(at, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
    made.write(bytes - 4, b"last").unwrap();
    // Reserved addresses were released: other mappings of the same size are not far.
    let small = create_in(dir.path(), &name(1), BYTES, Allocation::NOW).unwrap();
    assert_eq!(small.mapping.huge_bytes(), 0);
}
