//! Files with the names of segments that are not segments, and which of them are stale.

use super::*;
use crate::shm::sealed::{MODE, SEALS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

const NAME: &str = "nkv.test.0.1";

fn memfd(shown: &str, bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(shown, flags).unwrap();
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(MODE)).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn link_to(dir: &Path, name: &str, target: &str) -> PathBuf {
    let path = dir.join(name);
    symlink(target, &path).unwrap();
    path
}

fn descriptor(fd: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

/// A pid that no process has any more.
fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn i19_a_link_to_anything_but_the_sealed_segment_of_its_name_is_refused() {
    let dir = folder();
    let refused = |target: &str, why: &str| {
        let path = link_to(dir.path(), NAME, target);
        assert!(attach_in(dir.path(), NAME, false).is_err(), "{why}");
        std::fs::remove_file(path).unwrap();
    };
    for (shown, bytes, seals) in [
        (NAME, BYTES, SealFlags::empty()),
        (NAME, BYTES, SealFlags::SHRINK | SealFlags::GROW),
        (NAME, BYTES, SealFlags::GROW | SealFlags::SEAL),
        (NAME, BYTES, SEALS | SealFlags::WRITE),
        (NAME, 0, SEALS),
        ("nkv.test.0.2", BYTES, SEALS),
    ] {
        let fd = memfd(shown, bytes, seals);
        refused(&descriptor(&fd), &format!("{shown} of {bytes} bytes with {seals:?}"));
    }
    let open_to_all = memfd(NAME, BYTES, SEALS);
    rustix::fs::fchmod(&open_to_all, Mode::from_raw_mode(0o644)).unwrap();
    refused(&descriptor(&open_to_all), "another mode");
    let file = File::create(dir.path().join("other")).unwrap();
    file.set_len(BYTES).unwrap();
    refused(&descriptor(&file), "a file with a name");
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    refused(&descriptor(&pipe), "a pipe");
    refused(&format!("/proc/{}/fd/3", dead_pid()), "a process that is gone");
    let sealed = memfd(NAME, BYTES, SEALS);
    for odd in ["other", "/proc/self/fd/3", "/proc/1/fd/../fd/3", "/proc/1/fd/", "/proc//fd/3"] {
        refused(odd, odd);
    }
    refused(&format!("/dev/fd/{}", sealed.as_raw_fd()), "another way to a descriptor");
    std::fs::write(dir.path().join("nkv.test.0.3"), b"as earlier versions made them").unwrap();
    for bad in ["nkv.test.0.3", "nkv.missing", "../nkv.fine", "fine"] {
        assert!(attach_in(dir.path(), bad, false).is_err(), "{bad}");
    }
    link_to(dir.path(), NAME, &descriptor(&sealed));
    assert_eq!(attach_in(dir.path(), NAME, false).unwrap().len(), BYTES);
}

#[test]
fn what_a_link_names_by_chance_is_not_opened() {
    let dir = folder();
    let path = dir.path().join("fifo");
    let mode = Mode::from_raw_mode(MODE);
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
    let reader = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, mode).unwrap();
    link_to(dir.path(), NAME, &descriptor(&reader));
    attach_in(dir.path(), NAME, false).unwrap_err();
    assert_eq!(remove_stale_in(dir.path()), [NAME]);
    // A fifo reports this permanently once a process has opened it for writing and closed it.
    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
}

#[test]
fn links_that_lead_to_no_segment_are_stale_unless_their_lock_is_held() {
    let dir = folder();
    let (nowhere, other) = (format!("/proc/{}/fd/3", dead_pid()), memfd("other", BYTES, SEALS));
    link_to(dir.path(), "nkv.test.0.1", &nowhere);
    link_to(dir.path(), "nkv.test.0.2", &descriptor(&other));
    let locked = dir.path().join("nkv.test.0.3");
    let file = File::create(lock::path_for(&locked)).unwrap();
    drop(file);
    link_to(dir.path(), "nkv.test.0.3", &descriptor(&other));
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let living = line.split(' ').next().unwrap();
    let path = dir.path().join(living);
    // As seen from another pid namespace.
    std::fs::remove_file(&path).unwrap();
    symlink(&nowhere, &path).unwrap();
    let mut removed = remove_stale_in(dir.path());
    removed.sort();
    assert_eq!(removed, ["nkv.test.0.1", "nkv.test.0.2", "nkv.test.0.3"]);
    assert!(!lock::path_for(&locked).exists());
    assert!(path.symlink_metadata().is_ok() && lock::path_for(&path).exists());
    role.kill();
    assert_eq!(remove_stale_in(dir.path()), [living]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_living_segment_without_its_lock_and_a_lock_without_its_segment() {
    let dir = folder();
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let path = dir.path().join(line.split(' ').next().unwrap());
    std::fs::remove_file(lock::path_for(&path)).unwrap();
    assert!(remove_stale_in(dir.path()).is_empty(), "its process still has it");
    std::fs::write(dir.path().join("nkv.test.0.1.lock"), b"").unwrap();
    assert_eq!(remove_stale_in(dir.path()), ["nkv.test.0.1.lock"]);
    role.kill();
    assert_eq!(remove_stale_in(dir.path()).len(), 1);
}

#[test]
fn a_sweep_touches_nothing_but_stale_segments_locks_and_sockets() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name);
    for name in ["other.a", "nkv.test.0.1", "nkv.text.sock", "nkv.test.0.4.lock"] {
        std::fs::write(path(name), b"x").unwrap();
    }
    std::fs::create_dir(path("nkv.folder")).unwrap();
    symlink("other.a", path("nkv.test.0.2")).unwrap();
    symlink("nowhere", path("nkv.test.0.4")).unwrap();
    symlink("other.a", path("nkv.test.0.5.lock")).unwrap();
    drop(UnixListener::bind(path("nkv.test.3.2.sock")).unwrap());
    let mut removed = remove_stale_in(dir.path());
    removed.sort();
    assert_eq!(removed, ["nkv.test.0.1", "nkv.test.3.2.sock"]);
    let links = ["nkv.test.0.2", "nkv.test.0.4", "nkv.test.0.5.lock"];
    for kept in ["other.a", "nkv.text.sock", "nkv.folder", "nkv.test.0.4.lock"].iter().chain(&links)
    {
        assert!(path(kept).symlink_metadata().is_ok(), "{kept}");
    }
    assert!(remove_stale_in(&path("missing")).is_empty());
}
