//! `nkv mount` and `nkv unmount` against ranks in processes of their own: memory that other
//! processes map comes and goes, by shared memory and by tcp, and nothing of it is left when its
//! rank is killed.

use crate::cluster_process::{Ended, ProcessCluster, left_in_shm, run_to_end, until};
use nkv::{Blocking, ErrorKind, PutOptions, TransportChoice};
use std::time::Duration;

const LIMIT: Duration = nkv_pace::HANGS;
/// Bytes of one value: some dozens fill the first segment and a mounted one alike.
const LEN: usize = 200_000;

fn nkv(cluster: &ProcessCluster, args: &[&str]) -> Ended {
    run_to_end(cluster.cli(0, args), LIMIT)
}

fn value(n: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i as u8).wrapping_mul(7).wrapping_add(n as u8)).collect()
}

/// Puts `n` values on rank 1.
fn fill(handle: &Blocking, n: usize) {
    let opts = PutOptions::default().preferred_rank(1);
    for i in 0..n {
        handle.put(format!("k{i}").as_bytes(), &value(i), &opts).unwrap();
    }
}

/// Which of these values lie on an incarnation.
fn on(handle: &Blocking, n: usize, incarnation: u64) -> Vec<usize> {
    let at = |i: &usize| handle.get_location(format!("k{i}").as_bytes()).unwrap();
    let on = |i: &usize| at(i).in_memory().is_some_and(|meta| meta.at.incarnation == incarnation);
    (0..n).filter(on).collect()
}

fn mounted(handle: &Blocking) -> Vec<u64> {
    let view = handle.membership().unwrap();
    let mounted = view.ranks.iter().filter(|(info, _)| info.segment_id > 0);
    mounted.map(|(info, _)| info.incarnation).collect()
}

#[test]
fn a_rank_gains_and_loses_a_segment_by_command_while_others_map_it() {
    let cluster = ProcessCluster::start(2, |_| {});
    let readers: Vec<_> = [TransportChoice::Shm, TransportChoice::Tcp]
        .map(|by| cluster.connect_by(0, by))
        .into_iter()
        .collect();
    let files = left_in_shm(cluster.job()).len();
    for _ in 0..2 {
        let mount = nkv(&cluster, &["mount", "16MiB", "--rank", "1"]);
        assert_eq!(mount.stdout, "segment 1 of rank 1: 16 MiB mounted\n", "{}", mount.stderr);
        assert_eq!(left_in_shm(cluster.job()).len(), files + 2, "a name and its lock");
        fill(&readers[0], 40);
        let there = on(&readers[1], 40, mounted(&readers[0])[0]);
        assert!(there.len() > 10 && there.len() < 40, "both are used: {there:?}");
        for handle in &readers {
            for i in 0..40 {
                assert!(handle.get(format!("k{i}").as_bytes()).unwrap() == value(i), "k{i}");
            }
        }
        let status = nkv(&cluster, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        assert_eq!((&status["members"], &status["ranks"][2]["segment_id"]), (&2.into(), &1.into()));
        let (_, own) = cluster.get(1, "/status");
        let own: serde_json::Value = serde_json::from_str(&own).unwrap();
        assert_eq!(own["segments"][0]["link"], "joined", "{own}");
        assert!(own["segments"][0]["attachments"].as_u64() >= Some(1), "{own}");
        let (_, metrics) = cluster.get(1, "/metrics");
        let line = format!("nkv_objects_ready{{rank=\"1\",segment=\"1\"}} {}", there.len());
        assert!(metrics.contains(&line), "{line} in {metrics}");

        // Locations that clients found before are no longer readable by any data path.
        let key = format!("k{}", there[0]);
        let old = readers[0].get_location(key.as_bytes()).unwrap().into_memory().unwrap();
        let unmount = nkv(&cluster, &["unmount", "1", "--rank", "1"]);
        let expected = format!("segment 1 of rank 1: unmounted with {} objects\n", there.len());
        assert_eq!(unmount.stdout, expected, "{}", unmount.stderr);
        assert_eq!(left_in_shm(cluster.job()).len(), files);
        for handle in &readers {
            let e = handle.read_into(&old, &mut vec![0; LEN]).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Disconnected), "{e}");
            for i in 0..40 {
                match handle.get(format!("k{i}").as_bytes()) {
                    Ok(got) => assert!(!there.contains(&i) && got == value(i), "k{i}"),
                    Err(e) => assert!(there.contains(&i) && e.kind() == ErrorKind::NotFound, "{e}"),
                }
            }
        }
        assert_eq!(nkv(&cluster, &["get", &key]).code, 1);
        assert_eq!(readers[0].remove_all().unwrap().in_memory, 40 - there.len() as u64);
    }
}

#[test]
fn a_refused_mount_or_unmount_names_the_remedy() {
    let cluster = ProcessCluster::start(2, |_| {});
    let files = left_in_shm(cluster.job()).len();
    for (args, code, expected) in [
        (&["mount", "4TiB", "--rank", "1"][..], 6, "Ask for a smaller heap"),
        (&["mount", "0", "--rank", "1"], 2, "give 1 to "),
        (&["mount", "1MiB", "--rank", "9"], 2, "there is no rank 9; ranks are 0 to 1"),
        (&["unmount", "0", "--rank", "1"], 2, "segment 0 of rank 1 cannot be unmounted"),
        (&["unmount", "3", "--rank", "1"], 1, "there is no segment 3 of rank 1; none is mounted"),
    ] {
        let ended = nkv(&cluster, args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(ended.sentence().contains(expected), "{args:?}: {}", ended.stderr);
    }
    assert_eq!(left_in_shm(cluster.job()).len(), files);
    let json = nkv(&cluster, &["mount", "1MiB", "--rank", "0", "--json"]);
    assert_eq!(json.stdout, "{\"bytes\":1048576,\"rank\":0,\"segment\":1}\n", "{}", json.stderr);
    let json = nkv(&cluster, &["unmount", "1", "--rank", "0", "--json"]);
    assert!(json.stdout.contains("\"confirmed\":true"), "{}", json.stdout);
}

#[test]
fn a_rank_that_is_stopped_or_gone_is_not_waited_for() {
    let mut cluster = ProcessCluster::start(3, |command| {
        // So that rank 1 is not declared gone during the test.
        command.args(["--ttl-ms", "600000"]);
    });
    cluster.node(1).stop();
    let commands: [&[&str]; 3] = [
        &["mount", "1MiB", "--rank", "1"],
        &["unmount", "1", "--rank", "1"],
        &["evict", "--until-below", "0%", "--rank", "1"],
    ];
    let expected =
        format!("rank 1 (pid {}) gave no sign of life for 300 ms", cluster.node(1).pid());
    for command in commands {
        let ended = nkv(&cluster, &[command, &["--timeout-ms", "300"]].concat());
        assert_eq!(ended.code, 4, "{command:?}: {}", ended.stderr);
        assert!(ended.sentence().contains(&expected), "{command:?}: {}", ended.stderr);
    }

    // The other ranks evict, and the error names those that did not.
    let evict = ["evict", "--until-below", "0%", "--timeout-ms", "300"];
    let ended = nkv(&cluster, &evict);
    assert_eq!((ended.code, ended.stdout.lines().count()), (4, 2), "{}", ended.stdout);
    assert!(ended.sentence().contains("rank 1 did not evict: "), "{}", ended.stderr);
    cluster.node(1).signal(rustix::process::Signal::CONT);
    cluster.kill9(2);
    until(LIMIT, "the link of rank 2 is down", || {
        let status = nkv(&cluster, &["status"]).stdout;
        status.contains("2 of 3 ranks, ")
            && status.contains("\nrank 2: its link to the master is down")
    });
    let ended = nkv(&cluster, &[&evict[..3], &["--json"]].concat());
    assert_eq!(ended.code, 4);
    let expected: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&expected["evicted"][1]["rank"], &expected["not_reached"][0]["rank"]),
        (&1.into(), &2.into())
    );
    assert!(ended.stderr.contains("the link of rank 2"), "{}", ended.stderr);
}

#[test]
fn a_killed_or_ended_rank_leaves_no_mounted_segment_behind() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let files = left_in_shm(cluster.job()).len();
    let handle = cluster.connect_by(0, TransportChoice::Shm);
    for _ in 0..2 {
        assert_eq!(nkv(&cluster, &["mount", "16MiB", "--rank", "1"]).code, 0);
    }
    fill(&handle, 40);
    let gone = mounted(&handle);
    assert_eq!(gone.len(), 2);
    cluster.kill9(1);
    assert_eq!(left_in_shm(cluster.job()).len(), files + 4, "nobody was left to remove them");
    cluster.restart(1);
    // Its objects are gone on all its segments, without waiting for a TTL.
    for i in 0..40 {
        let e = handle.get(format!("k{i}").as_bytes()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "k{i}: {e}");
    }
    assert_eq!(left_in_shm(cluster.job()).len(), files);
    assert!(mounted(&handle).is_empty());
    fill(&handle, 4);

    // A second signal ends it at once, and it unlinks mounted segments too.
    assert_eq!(nkv(&cluster, &["mount", "64MiB", "--rank", "1"]).code, 0);
    let opts = PutOptions::default().preferred_rank(1);
    let plan = handle.open_for_write(b"open", 4096, &opts).unwrap();
    assert_eq!(plan.desc().unwrap().meta.at.incarnation, mounted(&handle)[0]);
    cluster.term(1);
    until(LIMIT, "it drains", || cluster.get(1, "/status").1.contains("\"draining\":true"));
    let e = handle.mount_segment(1, 1 << 20).unwrap_err();
    assert!(e.message().contains("shutting down"), "{e}");
    let ended = cluster.end_at_once(1, rustix::process::Signal::TERM);
    assert_eq!(ended.code, 128 + 15, "{}", ended.stderr);
    assert_eq!(left_in_shm(cluster.job()).len(), files / 2);
    drop(plan);
}
