//! Binds shared memory to one NUMA node: whoever touches a page first, it is allocated there.

use super::limits::meminfo;
use crate::error::StoreError;
use crate::memory::HostRegion;
use std::io;
use std::path::Path;

/// Strict binding (linux/mempolicy.h).
const MPOL_BIND: libc::c_long = 2;
/// Bits of the mask that the kernel is given: the most nodes that it can be built for.
const MOST_NODES: u32 = 1024;
const NODES: &str = "/sys/devices/system/node";

/// Before the first page is touched. The node must have room for the whole region: otherwise the
/// kernel would end processes to make some.
pub(super) fn bind(region: &HostRegion, node: u32) -> Result<(), StoreError> {
    let list = std::fs::read_to_string(format!("{NODES}/has_memory")).map_err(|e| {
        StoreError::InvalidConfig(format!(
            "memory of NUMA node {node}: this kernel lists no nodes ({NODES}/has_memory: {e}); \
             leave numa_node out"
        ))
    })?;
    let there = node_list(&list);
    if !there.contains(&node) || node >= MOST_NODES {
        return Err(StoreError::InvalidConfig(format!(
            "there is no NUMA node {node} with memory: this machine has {there:?}"
        )));
    }
    let left = left_in(node, Path::new(NODES));
    if let Some(left) = left.filter(|left| region.len() > *left) {
        return Err(StoreError::NotEnoughMemory(format!(
            "{} bytes do not fit into NUMA node {node}, which has {left} left: ask for less, or \
             name another of the nodes {there:?}",
            region.len()
        )));
    }
    let mut mask = [0u64; (MOST_NODES / 64) as usize];
    mask[(node / 64) as usize] = 1 << (node % 64);
    // SAFETY: the region is mapped, and the mask has the bits that are announced: the kernel
    // counts one less than it is given. No byte of either is changed.
    let done = unsafe {
        let (base, bits) = (region.base().as_ptr(), u64::from(MOST_NODES) + 1);
        libc::syscall(libc::SYS_mbind, base, region.len(), MPOL_BIND, mask.as_ptr(), bits, 0)
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let why = match error.raw_os_error() {
        Some(libc::EPERM) => "this container forbids it: docker run --cap-add SYS_NICE",
        Some(libc::ENOSYS) => "this kernel has no NUMA",
        _ => "this process may use the nodes of Mems_allowed_list in /proc/self/status",
    };
    Err(StoreError::InvalidConfig(format!(
        "memory cannot be bound to NUMA node {node} (mbind: {error}): {why}; or leave numa_node out"
    )))
}

/// The numbers in a list such as `0-1,4`.
fn node_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(MOST_NODES as usize).collect()
}

/// Bytes of a node that are free or can be made free: those of files count, those of shared memory
/// do not.
fn left_in(node: u32, nodes: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(nodes.join(format!("node{node}/meminfo"))).ok()?;
    let of = |name: &str| meminfo(&text, &format!("Node {node} {name}:"));
    let files = of("FilePages")?.saturating_sub(of("Shmem")?);
    Some(of("MemFree")?.saturating_add(files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Allocation, SegmentName, create_in};

    #[test]
    fn lists_of_nodes_are_read() {
        assert_eq!(node_list("0\n"), [0]);
        assert_eq!(node_list("0-2,7,9-10\n"), [0, 1, 2, 7, 9, 10]);
        assert_eq!(node_list("\n"), [0u32; 0]);
    }

    #[test]
    fn what_a_node_has_left_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node1");
        std::fs::create_dir(&path).unwrap();
        let text = "Node 1 MemTotal:  900 kB\nNode 1 MemFree:  100 kB\n\
                    Node 1 FilePages:  70 kB\nNode 1 Shmem:  20 kB\nNode 1 ShmemHugePages: 5 kB\n";
        std::fs::write(path.join("meminfo"), text).unwrap();
        assert_eq!(left_in(1, dir.path()), Some(150 << 10));
        assert_eq!(left_in(2, dir.path()), None);
    }

    /// The policy of this process's mapping at `base`, if the kernel says it.
    fn policy_at(base: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let begins = format!("{base:x} ");
        let line = maps.lines().find(|line| line.trim_start_matches('0').starts_with(&begins))?;
        line.split_whitespace().nth(1).map(str::to_string)
    }

    #[test]
    fn a_segment_lies_on_the_node_that_was_asked_for() {
        // The first that has memory and that this process may use.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        let list = std::fs::read_to_string(format!("{NODES}/has_memory")).unwrap_or_default();
        let there = node_list(&list);
        let usable = node_list(allowed.unwrap_or_default());
        let node = there.iter().copied().find(|node| usable.contains(node));
        let dir = tempfile::tempdir().unwrap();
        let name = SegmentName { job: "numa".to_string(), rank: 0, incarnation: 1 };
        let on = |numa_node| Allocation { numa_node: Some(numa_node), ..Allocation::NOW };
        let made = match create_in(dir.path(), &name, 1 << 20, on(node.unwrap_or(0))) {
            Ok(made) => made,
            Err(error) => {
                let text = error.to_string();
                let forbidden = text.contains("forbids it") || text.contains("has no NUMA");
                return assert!(forbidden || there.is_empty(), "{text}");
            }
        };
        if let Some(policy) = policy_at(made.region.base().as_ptr() as usize) {
            assert_eq!(policy, format!("bind:{}", node.unwrap()));
        }
        let other = SegmentName { incarnation: 2, ..name };
        for none in [1023, 1024, u32::MAX] {
            let error = create_in(dir.path(), &other, 1 << 20, on(none)).unwrap_err();
            assert!(matches!(error, StoreError::InvalidConfig(_)), "{error}");
            assert!(error.to_string().contains(&format!("no NUMA node {none}")), "{error}");
        }
    }
}
