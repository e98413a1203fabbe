//! What its own user does to a segment by accident: everything under its name is cut and
//! overwritten while nodes and clients use it. Nobody dies, and every value is right [I19].

use crate::cluster_process::{ProcessCluster, left_in_shm};
use nkv::{Blocking, PutOptions, TransportChoice};
use nkv_store::shm::SHM_DIR;
use nkv_store::threads::spawn_named;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds in which every file is truncated, at least.
const CUTS: u64 = 30;
/// Values at once.
const KEYS: u64 = 8;

/// Files of a job that can be truncated: its segments, and the locks beside them.
fn files_of(job: &str) -> Vec<PathBuf> {
    let all = left_in_shm(job).into_iter().map(|name| Path::new(SHM_DIR).join(name));
    all.filter(|p| !p.metadata().unwrap().file_type().is_socket()).collect()
}

/// Runs the shell script on the file in a process of its own; true if it was refused.
fn refused(script: &str, file: &Path) -> bool {
    let output = Command::new("sh").args(["-c", script, "sh"]).arg(file).output().unwrap();
    !output.status.success()
}

/// Truncates and overwrites every file in every way, round after round.
fn cut_all(files: &[PathBuf], rounds: &AtomicU64) {
    for round in 0..CUTS {
        for file in files {
            let cut = [
                refused("truncate -s 0 \"$1\"", file),
                refused("truncate -s 5000 \"$1\"", file),
                refused(": >\"$1\"", file),
            ];
            let segment = file.is_symlink();
            assert!(cut.iter().all(|refused| *refused == segment), "{}: {cut:?}", file.display());
        }
        rounds.store(round + 1, Ordering::Release);
    }
}

fn value(key: u64, round: u64) -> Vec<u8> {
    let seed = key * 31 + round;
    (0..100_000u64).map(|i| (i * 7 + seed) as u8).collect()
}

fn use_it(handle: &Blocking, round: u64) {
    for key in 0..KEYS {
        let name = format!("k{key}");
        let rank = Some((key % 2) as u32);
        let on = PutOptions::default().preferred_rank(rank);
        handle.put(name.as_bytes(), &value(key, round), &on).unwrap();
    }
    for key in 0..KEYS {
        let name = format!("k{key}");
        assert!(handle.get(name.as_bytes()).unwrap() == value(key, round)[..], "a wrong byte");
        handle.remove(name.as_bytes()).unwrap();
    }
}

#[test]
fn i19_a_segment_that_its_own_user_truncates_keeps_every_byte_and_kills_nobody() {
    let cluster = ProcessCluster::start(2, |_| {});
    let files = files_of(cluster.job());
    assert_eq!(files.iter().filter(|file| file.is_symlink()).count(), 2, "{files:?}");
    let rounds = Arc::new(AtomicU64::new(0));
    let done = rounds.clone();
    let cutting = spawn_named("cutting", move || cut_all(&files, &done)).unwrap();
    let (mapped, remote) =
        (cluster.connect_by(0, TransportChoice::Shm), cluster.connect_by(1, TransportChoice::Tcp));
    let mut round = 0;
    while !cutting.is_finished() {
        use_it(&mapped, round);
        use_it(&remote, round);
        round += 1;
    }
    cutting.join().unwrap();
    assert_eq!(rounds.load(Ordering::Acquire), CUTS);
    assert!(round > 0, "nothing was put meanwhile");
    // A new client maps what is left.
    use_it(&cluster.connect_by(1, TransportChoice::Shm), round);
    for rank in 0..2 {
        assert_eq!(cluster.get(rank, "/healthz").0, 200);
    }
}

#[test]
fn a_segment_whose_name_leads_nowhere_is_mapped_by_the_descriptor_that_its_rank_passes() {
    let cluster = ProcessCluster::start(2, |_| {});
    let segments: Vec<_> =
        files_of(cluster.job()).into_iter().filter(|file| file.is_symlink()).collect();
    assert_eq!(segments.len(), 2);
    for segment in &segments {
        // Like the name as seen from another pid namespace.
        std::fs::remove_file(segment).unwrap();
        std::os::unix::fs::symlink("/proc/1/fd/1000000", segment).unwrap();
    }
    let handle = cluster.connect_by(0, TransportChoice::Shm);
    use_it(&handle, 1);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for segment in &segments {
        let shown = segment.file_name().unwrap().to_string_lossy().into_owned();
        assert!(maps.contains(&shown), "{shown} is not mapped: {maps}");
    }
    assert!(nkv_store::shm::remove_stale().iter().all(|name| !name.contains(cluster.job())));
}
