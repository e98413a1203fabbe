//! In pages of which size segments lie. Huge ones spare most of the address translation that a small
//! object costs; the operator allows them, per file system of shared memory or for all.

use super::SHM_DIR;
use std::path::Path;

/// Size and alignment of a huge page on x86-64 and aarch64 with pages of 4 KiB.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

/// What the kernel gives a segment that asks for huge pages, as every segment does; while it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB.
    Huge,
    /// 4 KiB, until somebody allows huge ones: `mount -o remount,huge=advise /dev/shm`.
    Small,
}

/// Of which size the pages of segments made now are.
pub fn pages() -> Pages {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    pages_by(
        &read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        &read("/proc/self/mountinfo"),
        Path::new(SHM_DIR),
    )
}

/// `for_all` is one line of words, the valid one in brackets; `mounts` as in proc(5).
fn pages_by(for_all: &str, mounts: &str, dir: &Path) -> Pages {
    match for_all.split_whitespace().find(|word| word.starts_with('[')) {
        Some("[deny]") | None => return Pages::Small,
        Some("[force]") => return Pages::Huge,
        Some(_) => {}
    }
    // Of several mounted over each other the last one is seen.
    let options = mounts.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let at = Path::new(before.split(' ').nth(4)?);
        (at == dir).then(|| after.split(' ').nth(2)).flatten()
    });
    let huge = options.is_some_and(|options| {
        options.split(',').any(|o| matches!(o, "huge=always" | "huge=within_size" | "huge=advise"))
    });
    if huge { Pages::Huge } else { Pages::Small }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: &str = "always within_size advise [never] deny force\n";

    #[test]
    fn the_last_mount_of_the_folder_tells_unless_the_machine_decided_for_all() {
        let told = |for_all: &str, mounts: &str| pages_by(for_all, mounts, Path::new("/dev/shm"));
        let small = "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k\n";
        let huge = "30 25 0:27 / /dev/shm rw shared:3 - tmpfs tmpfs rw,size=1k,huge=advise\n";
        let never = huge.replace("advise", "never");
        let elsewhere = huge.replace("/dev/shm", "/dev/shm2");
        assert_eq!(told(NEVER, &format!("{small}{huge}")), Pages::Huge);
        for mounts in [small, "", &never, &elsewhere, &format!("{huge}{small}"), "no mount at all"]
        {
            assert_eq!(told(NEVER, mounts), Pages::Small, "{mounts}");
            assert_eq!(told("[force] never", mounts), Pages::Huge, "{mounts}");
        }
        assert_eq!(told("never [deny]", huge), Pages::Small);
        assert_eq!(told("", huge), Pages::Small, "a kernel without them");
    }
}
