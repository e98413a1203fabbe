//! Striped objects at ranks as processes: the rank of a stripe is killed, and its objects are gone
//! cleanly.

use crate::cluster_process::{ProcessCluster, run_to_end, until};
use nkv::message::Existence;
use nkv::{Blocking, ErrorKind, PutOptions, TransportChoice};
use nkv_pace::HANGS;

const LEN: usize = 3 << 20;
const KEYS: usize = 8;

fn content(key: usize) -> Vec<u8> {
    let seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(key as u64 + 1);
    (0..LEN as u64 / 8).flat_map(|i| seed.wrapping_mul(2 * i + 1).to_le_bytes()).collect()
}

fn name(key: usize) -> Vec<u8> {
    format!("layer/{key}").into_bytes()
}

fn put(handle: &Blocking, key: usize) {
    let opts = PutOptions::default().stripes(3).preferred_rank(0);
    handle.put(&name(key), &content(key), &opts).unwrap();
}

#[test]
fn i18_a_killed_rank_costs_the_objects_of_its_stripes_and_no_wrong_byte() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let mut cluster = ProcessCluster::start(3, |command| {
            command.args(["--heap-bytes", "64MiB", "--ttl-ms", "2000"]);
        });
        let handle = cluster.connect_by(0, transport);
        (0..KEYS).for_each(|key| put(&handle, key));
        (0..KEYS).for_each(|key| assert!(handle.get(&name(key)).unwrap() == content(key)));
        // A rank that is late for a moment gets none of the stripes that are put meanwhile.
        let listed = handle.list(None, None, KEYS).unwrap();
        let has_2 = |of: &Vec<u8>| {
            let of = listed.iter().find(|l| *l.key == of[..]).unwrap();
            of.rank == 2 || of.others.contains(&2)
        };
        let lost: Vec<usize> = (0..KEYS).filter(|key| has_2(&name(*key))).collect();
        assert!(lost.len() > KEYS / 2, "{listed:?}");
        cluster.kill9(2);
        for key in lost.iter().copied() {
            let error = handle.get(&name(key)).unwrap_err();
            let clean = matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Disconnected | ErrorKind::Timeout
            );
            assert!(clean, "{error}");
        }
        until(HANGS, "the master knows it", || {
            handle.get(&name(lost[0])).is_err_and(|e| e.kind() == ErrorKind::NotFound)
        });
        for key in &lost[1..] {
            assert_eq!(handle.get(&name(*key)).unwrap_err().kind(), ErrorKind::NotFound);
        }
        let keys: Vec<Vec<u8>> = lost.iter().copied().map(name).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        assert_eq!(handle.exists(&keys).unwrap(), vec![Existence::Absent; keys.len()]);
        // The two that are left share them now.
        (0..KEYS).for_each(|key| put(&handle, key));
        (0..KEYS).for_each(|key| assert!(handle.get(&name(key)).unwrap() == content(key)));
        handle.close();
    }
}

#[test]
fn i6_a_master_that_was_killed_removes_stripes_that_it_learns_of_from_their_owners() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--heap-bytes", "64MiB"]);
    });
    // All but the master has them.
    let handle = cluster.connect(1);
    for key in 0..KEYS {
        let opts = PutOptions::default().stripes(2).preferred_rank(1);
        handle.put(&name(key), &content(key), &opts).unwrap();
    }
    cluster.kill9(0);
    cluster.restart(0);
    cluster.wait_ready(HANGS);
    let handle = cluster.connect(2);
    (0..KEYS).for_each(|key| assert!(handle.get(&name(key)).unwrap() == content(key)));
    let listed = handle.list(None, None, 100).unwrap();
    assert_eq!(listed.len(), KEYS);
    assert!(listed.iter().all(|row| row.bytes_total == LEN as u64), "{listed:?}");
    (0..KEYS).for_each(|key| handle.remove(&name(key)).unwrap());
    until(HANGS, "all memory is free", || {
        handle.stats().unwrap().ranks.iter().all(|r| r.owner.live_bytes == 0)
    });
}

#[test]
fn a_read_while_a_rank_with_a_disk_is_away_costs_nothing_that_its_disk_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let mut cluster = ProcessCluster::start(3, move |command| {
        command.args(["--heap-bytes", "64MiB", "--ttl-ms", "2000", "--ssd-bytes", "256MiB"]);
        command.args(["--ssd-policy", "write_through", "--ssd-durability", "persistent"]);
        command.arg("--ssd-dir").arg(&path);
    });
    let handle = cluster.connect(0);
    put(&handle, 1);
    until(HANGS, "all is on disk", || {
        handle.evict_ranks_until_below(&[0, 1, 2], 0.0);
        handle.exists(&[&name(1)]).unwrap() == [Existence::OnDisk]
    });
    cluster.kill9(2);
    let gone = |e: nkv::Error| e.kind() == ErrorKind::NotFound;
    until(HANGS, "the master knows it", || handle.get(&name(1)).is_err_and(gone));
    cluster.restart(2);
    cluster.wait_ready(HANGS);
    let handle = cluster.connect(0);
    until(HANGS, "it is whole again", || {
        handle.get(&name(1)).is_ok_and(|bytes| bytes == content(1))
    });
}

#[test]
fn nkv_put_cuts_a_value_and_get_joins_it() {
    let cluster = ProcessCluster::start(2, |_| {});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content(1)).unwrap();
    let path = file.path().to_str().unwrap();
    let run = |args: &[&str]| {
        let done = run_to_end(cluster.cli(0, args), HANGS);
        (done.code, done.stdout)
    };
    let (code, text) = run(&["put", "k", path, "--stripes", "3"]);
    assert!(code == 0 && text.contains("stored in 2 stripes, not 3: "), "{code} {text}");
    let (code, text) = run(&["replicate", "k", "-n", "2"]);
    assert!(code == 0 && text.contains("k: 2 of 2 replicas"), "{code} {text}");

    let back = tempfile::NamedTempFile::new().unwrap();
    let (code, text) = run(&["get", "k", "-o", back.path().to_str().unwrap()]);
    assert!(code == 0, "{text}");
    assert!(std::fs::read(back.path()).unwrap() == content(1));
    let (_, text) = run(&["ls", "--long"]);
    assert!(text.contains("3145728      1,0  ready"), "{text}");
    let (code, text) = run(&["put", "k2", path, "--stripes", "65"]);
    assert_eq!(code, 2, "{text}");
}
