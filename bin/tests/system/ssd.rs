//! Ranks with an SSD tier as processes: what they saved outlives them, what was removed does not
//! come back, and a directory that cannot be used is a clear error.

use crate::cluster_process::{
    EXIT_LIMIT, ProcessCluster, clean_command, node_command, run_to_end, until,
};
use nkv::message::{Existence, Medium, Preferred, Tier};
use nkv::{Blocking, ErrorKind, PutOptions, Retention, SavedOn, TransportChoice};
use nkv_pace::HANGS;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCK: usize = 32 << 10;
/// All is saved, for good: what a test sees saved must be there after a kill.
const PERSISTENT: [&str; 4] = ["--ssd-policy", "write_through", "--ssd-durability", "persistent"];

fn start(ranks: u32, dir: &Path, flags: &[&'static str]) -> ProcessCluster {
    let (dir, flags) = (dir.to_path_buf(), flags.to_vec());
    ProcessCluster::start(ranks, move |command| {
        command.arg("--ssd-dir").arg(&dir).args(["--ssd-bytes", "256MiB"]).args(&flags);
    })
}

fn content(key: &str) -> Vec<u8> {
    let seed = nkv_store::key::key_hash(key.as_bytes());
    (0..BLOCK as u64 / 8).flat_map(|i| seed.wrapping_mul(2 * i + 1).to_le_bytes()).collect()
}

fn put(handle: &Blocking, key: &str, opts: &PutOptions) {
    handle.put(key.as_bytes(), &content(key), opts).expect("a put");
}

/// A figure of a rank's SSD tier.
fn figure(cluster: &ProcessCluster, rank: u32, name: &str) -> u64 {
    let (code, body) = cluster.get(rank, "/status");
    assert_eq!(code, 200, "{body}");
    let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    status["ssd"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {body}"))
}

/// Objects that ranks have saved for good since they started. What is found on a disk may be lost
/// yet: its line in the journal follows.
fn saved(cluster: &ProcessCluster, ranks: impl IntoIterator<Item = u32>) -> u64 {
    ranks.into_iter().map(|rank| figure(cluster, rank, "ssd_save_success")).sum()
}

fn is_whole(handle: &Blocking, key: &str) -> bool {
    match handle.get(key.as_bytes()) {
        Ok(bytes) => {
            assert!(bytes == content(key), "{key} has other bytes");
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{key}: {e}");
            false
        }
    }
}

#[test]
fn i22_ranks_that_were_all_killed_serve_what_they_had_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(3, dir.path(), &PERSISTENT);
    let keys: Vec<String> = (0..90).map(|i| format!("k/{i}")).collect();
    let handles = [cluster.connect(0), cluster.connect_by(1, TransportChoice::Tcp)];
    for (key, handle) in keys.iter().zip(handles.iter().cycle()) {
        put(handle, key, &PutOptions::default());
    }
    until(HANGS, "all are on disk", || saved(&cluster, 0..3) == 90);
    drop(handles);
    (0..3).for_each(|rank| cluster.kill9(rank));
    (0..3).for_each(|rank| cluster.restart(rank));
    cluster.wait_ready(EXIT_LIMIT);
    let (_, health) = cluster.get(1, "/healthz");
    assert_eq!(health, "ok\nshutdown_clean false shutdown_partial_flush false\n");
    let handle = cluster.connect(2);
    let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let run = handle.match_prefix(&names).unwrap();
    assert_eq!(run.len(), 90, "prefix hits go on");
    assert!(run.iter().all(|at| at.tier() == Tier::Disk));
    for by in [TransportChoice::Auto, TransportChoice::Tcp] {
        let handle = cluster.connect_by(0, by);
        assert!(keys.iter().all(|key| is_whole(&handle, key)));
    }
}

/// Its policy saves nothing by itself, and it promises nothing for a power loss: what was asked for
/// is there after a kill all the same.
#[test]
fn i22_what_was_saved_on_request_outlives_a_kill_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(2, dir.path(), &["--ssd-policy", "evict_only"]);
    let handle = cluster.connect(0);
    let disk = |rank| Preferred { rank, medium: Medium::Disk };
    put(&handle, "put", &PutOptions::default().at([disk(None)]));
    put(&handle, "there", &PutOptions::default().at([disk(Some(1))]));
    put(&handle, "memory", &PutOptions::default());
    put(&handle, "saved", &PutOptions::default());
    let saved = handle.save_to_disk(&[b"saved"], &[None, None]).remove(0);
    (0..2).for_each(|rank| cluster.kill9(rank));
    assert_eq!(saved.map(|saved| saved.ranks), Ok(vec![0, 1]));
    drop(handle);
    (0..2).for_each(|rank| cluster.restart(rank));
    cluster.wait_ready(EXIT_LIMIT);
    let handle = cluster.connect_by(1, TransportChoice::Tcp);
    assert_eq!(handle.get_location(b"there").unwrap().rank(), 1);
    assert!(["put", "there", "saved"].iter().all(|key| is_whole(&handle, key)));
    assert!(!is_whole(&handle, "memory"));
}

/// The disk's rank reads over tcp: that counts as no read, and each object is read once.
#[test]
fn what_lies_in_memory_that_is_not_mapped_is_saved_at_another_rank() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--ssd-policy", "evict_only", "--memory", "private"];
    let cluster = start(2, dir.path(), &flags);
    let handle = cluster.connect(0);
    let there = |rank, medium| Preferred { rank: Some(rank), medium };
    let opts = PutOptions::default().at([there(0, Medium::Any), there(1, Medium::Disk)]);
    let until_read = Retention::UntilRead(Duration::from_secs(1));
    put(&handle, "once", &opts.clone().retention(until_read));
    let keys: Vec<String> = (0..40).map(|i| format!("k/{i}")).collect();
    let values: Vec<Vec<u8>> = keys.iter().map(|key| content(key)).collect();
    let items: Vec<(&[u8], &[u8])> =
        keys.iter().map(|key| key.as_bytes()).zip(values.iter().map(|v| &v[..])).collect();
    assert!(handle.put_many(&items, &opts).iter().all(Result::is_ok));
    assert_eq!(saved(&cluster, [1]), 41);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_whole(&handle, "once"), "nobody had read it before");
    let names: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let again = handle.save_to_disk(&names, &[Some(1)]);
    let at_1 = |saved: &SavedOn| (&saved.ranks[..], &saved.missing) == (&[1], &None);
    assert!(again.iter().all(|saved| saved.as_ref().is_ok_and(at_1)));
    assert_eq!(saved(&cluster, [1]), 41);
}

#[test]
fn a_rank_that_ends_in_order_says_so_at_its_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(1, dir.path(), &["--ssd-policy", "write_through"]);
    assert!(cluster.get(0, "/healthz").1.contains("shutdown_clean true"), "a new directory");
    let handle = cluster.connect(0);
    put(&handle, "k", &PutOptions::default());
    handle.close();
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, EXIT_LIMIT).code, 0);
    cluster.restart(0);
    let (_, health) = cluster.get(0, "/healthz");
    assert_eq!(health, "ok\nshutdown_clean true shutdown_partial_flush false\n");
    assert!(is_whole(&cluster.connect(0), "k"), "it was saved before the end");
    let metrics = cluster.get(0, "/metrics").1;
    assert!(metrics.contains("\nnkv_ssd_load_success_total{rank=\"0\"} 1\n"), "{metrics}");
}

#[test]
fn i6_a_removal_reaches_the_disk_of_a_rank_that_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let flags = &[&PERSISTENT[..], &["--ttl-ms", "1500"]].concat();
    let mut cluster = start(2, dir.path(), flags);
    let (handle, there) = (cluster.connect(0), PutOptions::default().preferred_rank(1));
    let keys = ["removed", "in a pattern/1", "in a pattern/2", "kept"];
    keys.iter().for_each(|key| put(&handle, key, &there));
    until(HANGS, "all are on disk", || saved(&cluster, [1]) == 4);
    cluster.kill9(1);
    until(HANGS, "it is gone", || handle.stats().is_ok_and(|stats| stats.ranks.len() == 1));
    assert_eq!(handle.remove(b"removed").unwrap_err().kind(), ErrorKind::NotFound);
    handle.remove_matching("^in a pattern/").unwrap();
    cluster.restart(1);
    cluster.wait_ready(EXIT_LIMIT);
    let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let found = handle.exists(&names).unwrap();
    assert_eq!(found[..3], [Existence::Absent; 3]);
    assert_eq!(found[3], Existence::OnDisk);
    assert!(is_whole(&handle, "kept"));
    // It may be put, and saved, again.
    put(&handle, "removed", &there);
    until(HANGS, "it is on disk again", || figure(&cluster, 1, "ssd_objects") == 2);
}

/// How often the rank is killed: NKV_SSD_KILLS, or 8.
fn kills() -> u64 {
    std::env::var("NKV_SSD_KILLS").map_or(8, |text| text.parse().unwrap())
}

#[test]
fn i23_killed_again_and_again_under_load_it_has_no_wrong_byte_and_loses_nothing_saved() {
    let dir = tempfile::tempdir().unwrap();
    let flags = [&PERSISTENT[..], &["--heap-bytes", "8MiB"]].concat();
    let mut cluster = start(1, dir.path(), &flags);
    let (mut next, mut before) = (0, 0);
    for round in 0..kills() {
        let handle = cluster.connect(0);
        let first = next;
        // The kill meets saves at any point: the load does not wait for them.
        // Of 200 rounds, too, the disk has room for all.
        let puts = if round < 8 { 40 + 13 * round } else { 15 + 3 * (round % 8) };
        while next < first + puts {
            put(&handle, &format!("k/{next}"), &PutOptions::default());
            next += 1;
        }
        // Counted once it is on disk for good.
        let saved = before + figure(&cluster, 0, "ssd_save_success");
        cluster.kill9(0);
        cluster.restart(0);
        cluster.wait_ready(EXIT_LIMIT);
        let found = figure(&cluster, 0, "ssd_objects");
        assert!(found >= saved, "round {round}: {saved} were saved, {found} are there");
        let handle = cluster.connect(0);
        let names: Vec<String> = (0..next).map(|n| format!("k/{n}")).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let there: Vec<bool> =
            handle.exists(&keys).unwrap().iter().map(|at| *at != Existence::Absent).collect();
        let count = there.iter().filter(|there| **there).count();
        assert_eq!(count as u64, found, "round {round}");
        // All of a few rounds; of many, what was put in the last one and a part of the rest.
        let is_read = |n: u64| round < 8 || n >= first || n % 10 == round % 10;
        for (n, name) in (0..).zip(&names).filter(|(n, _)| is_read(*n)) {
            assert_eq!(is_whole(&handle, name), there[n as usize], "round {round}: {name}");
        }
        before = found;
    }
}

#[test]
fn a_disk_that_lost_its_bytes_is_a_miss_and_memory_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(1, dir.path(), &PERSISTENT);
    let handle = cluster.connect(0);
    (0..20).for_each(|i| put(&handle, &format!("k/{i}"), &PutOptions::default()));
    until(HANGS, "all are on disk", || saved(&cluster, [0]) == 20);
    cluster.kill9(0);
    cluster.restart(0);
    // A start that meets a short file drops what lay there: the bytes go after it.
    cluster.wait_ready(EXIT_LIMIT);
    for entry in std::fs::read_dir(dir.path().join("rank-0")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|name| name == "dat") {
            OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
        }
    }
    let handle = cluster.connect(0);
    assert!((0..20).all(|i| !is_whole(&handle, &format!("k/{i}"))));
    let lost = figure(&cluster, 0, "ssd_load_fail") + figure(&cluster, 0, "ssd_load_corrupt");
    assert!(lost >= 20, "{lost}");
    put(&handle, "after", &PutOptions::default());
    assert!(is_whole(&handle, "after"));
}

#[test]
fn a_directory_that_cannot_be_used_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(1, dir.path(), &[]);
    let blocked = dir.path().join("a file");
    std::fs::write(&blocked, "x").unwrap();
    for (path, expected) in [
        (dir.path(), "another process uses"),
        (Path::new("/proc/nkv"), "--ssd-dir /proc/nkv/rank-0: "),
        (&blocked, "a file/rank-0: "),
    ] {
        let mut command = node_command(&crate::cluster_process::new_job());
        command.args(["--port", "0", "--heap-bytes", "4MiB", "--ssd-bytes", "64MiB"]);
        command.arg("--ssd-dir").arg(path);
        let ended = run_to_end(command, HANGS);
        assert_eq!(ended.code, i32::from(nkv_programs::exit::LOCAL), "{}", ended.stderr);
        let last = ended.stderr.trim_end().lines().last().unwrap_or_default();
        assert!(last.contains(expected), "{}", ended.stderr);
    }
    drop(cluster);
}

/// What `nkv ssd` prints, and its exit status.
fn nkv_ssd(args: &[&OsStr]) -> (i32, String) {
    let mut command = clean_command(env!("CARGO_BIN_EXE_nkv"));
    let done = command.arg("ssd").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    (done.status.code().unwrap_or(-1), text.into_owned())
}

#[test]
fn a_directory_is_checked_repaired_exported_and_filled_without_a_rank() {
    let (dir, other, files) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |what: &str, args: &[&Path]| {
        let args: Vec<&OsStr> = args.iter().map(|path| path.as_os_str()).collect();
        nkv_ssd(&[&[OsStr::new(what)], &args[..]].concat())
    };
    let mut cluster = start(1, dir.path(), &PERSISTENT);
    let handle = cluster.connect(0);
    (0..20).for_each(|i| put(&handle, &format!("k/{i}"), &PutOptions::default()));
    until(HANGS, "all are on disk", || figure(&cluster, 0, "ssd_objects") == 20);
    let (code, text) = run("check", &[dir.path()]);
    assert!(code == 7 && text.contains("another process uses"), "{code} {text}");
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, EXIT_LIMIT).code, 0);
    let (code, text) = run("check", &[dir.path()]);
    assert!(code == 0 && text.contains("20 objects"), "{code} {text}");
    // One byte of the first slab: of a payload.
    let slab = dir.path().join("rank-0/slab-00000.dat");
    let mut bytes = std::fs::read(&slab).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&slab, bytes).unwrap();
    for _ in 0..2 {
        let (code, text) = run("check", &[dir.path()]);
        assert!(code == 1 && text.contains("19 objects") && text.contains("1 damaged"), "{text}");
    }
    let (code, text) = run("export", &[dir.path(), files.path()]);
    assert!(code == 1 && text.contains("19 objects"), "{text}");
    let (code, text) = run("repair", &[dir.path()]);
    assert!(code == 0 && text.contains("1 removed"), "{text}");
    // Of a header.
    let mut bytes = std::fs::read(&slab).unwrap();
    let record = bytes.chunks(4096).rposition(|block| block[8] == b'{').unwrap() * 4096;
    bytes[record + 100] ^= 1;
    std::fs::write(&slab, bytes).unwrap();
    let (code, text) = run("check", &[dir.path()]);
    assert!(code == 1 && text.contains("18 objects") && text.contains("1 damaged"), "{text}");
    let (code, text) = run("repair", &[dir.path()]);
    assert!(code == 0 && text.contains("1 removed"), "{text}");
    let (code, text) = run("check", &[dir.path()]);
    assert!(code == 0 && text.contains("18 objects"), "{text}");
    let (code, text) = run("export", &[dir.path(), &dir.path().join("rank-0")]);
    assert!(code != 0 && text.contains("name a folder for the files"), "{code} {text}");
    // Into the directory of another rank, which made it.
    let mut cluster = start(1, other.path(), &PERSISTENT);
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, EXIT_LIMIT).code, 0);
    let rank_0 = other.path().join("rank-0");
    std::fs::write(files.path().join("x.safetensors"), b"garbage").unwrap();
    let (code, text) = run("import", &[&rank_0, files.path()]);
    assert!(code == 1 && text.contains("19 objects") && text.contains("1 not imported"), "{text}");
    let (code, text) = run("import", &[&rank_0, files.path()]);
    assert!(code == 1 && text.contains("19 there already"), "{text}");
    // A file of another content than what is there; what is there stays.
    let of_key = |text: &str| -> String { text.bytes().map(|b| format!("{b:02x}")).collect() };
    let payload = [7; 100];
    let sum = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&payload));
    let write = |name: &str, metadata: &[(&str, &str)]| {
        let view = safetensors::tensor::TensorView::new(
            safetensors::tensor::Dtype::U8,
            vec![100],
            &payload,
        )
        .unwrap();
        let metadata = metadata.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        let whole = safetensors::serialize([("payload", view)], Some(metadata.collect())).unwrap();
        std::fs::write(files.path().join(name), whole).unwrap();
    };
    let k = of_key("k/5");
    write("y.safetensors", &[("key", &k), ("layout", "4096"), ("xxh3_128", &sum)]);
    let new = of_key("new");
    write("z.safetensors", &[("key", &new), ("layout", "0")]);
    let (code, text) = run("import", &[&rank_0, files.path()]);
    assert!(code == 1 && text.contains("3 not imported"), "{text}");
    assert!(text.contains("another length") && text.contains("no xxh3_128"), "{text}");
    cluster.restart(0);
    cluster.wait_ready(EXIT_LIMIT);
    let handle = cluster.connect(0);
    let whole = (0..20).filter(|i| is_whole(&handle, &format!("k/{i}"))).count();
    assert_eq!(whole, 19);
    let (code, text) = run("check", &[files.path()]);
    assert!(code == 7 && text.contains("nkv-ssd.json"), "{code} {text}");
    let (code, text) = run("import", &[&rank_0, other.path()]);
    assert!(code != 0 && text.contains("no .safetensors file"), "{code} {text}");
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, EXIT_LIMIT).code, 0);
    let journal = std::fs::read_dir(&rank_0).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("journal-");
    std::fs::remove_file(journal.into_iter().find(is_one).unwrap()).unwrap();
    let (code, text) = run("check", &[&rank_0, Path::new("--json")]);
    let checked: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &checked["directories"][0]["journal_pages_damaged"]), (1, &1.into()));
}

#[test]
fn removals_by_pattern_and_the_status_count_what_only_disks_have() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(1, dir.path(), &PERSISTENT);
    let handle = cluster.connect(0);
    (0..20).for_each(|i| put(&handle, &format!("k/{i}"), &PutOptions::default()));
    until(HANGS, "all are on disk", || figure(&cluster, 0, "ssd_objects") == 20);
    cluster.term(0);
    assert_eq!(cluster.wait_exit(0, EXIT_LIMIT).code, 0);
    cluster.restart(0);
    cluster.wait_ready(EXIT_LIMIT);
    let run = |args: &[&str]| {
        let done = run_to_end(cluster.cli(0, args), HANGS);
        (done.code, done.stdout)
    };
    let status = |figure: &str| -> serde_json::Value {
        let status: serde_json::Value =
            serde_json::from_str(&run(&["status", "--json"]).1).unwrap();
        status["ranks"][0][figure].clone()
    };
    until(HANGS, "the master has heard of the disk", || status("disk_objects") == 20);
    assert!(status("disk_used").as_u64().unwrap() > 0);
    let (code, text) = run(&["rm", "--matching", "^k/1[0-9]$"]);
    assert_eq!((code, &*text), (0, "0 keys removed from memory, 10 objects from disk\n"));
    let (code, text) = run(&["rm", "--matching", "^k/1[0-9]$", "--json"]);
    let removed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, removed), (1, serde_json::json!({"removed": 0, "removed_from_disk": 0})));
    let (code, text) = run(&["rm", "--all", "--yes"]);
    assert_eq!((code, &*text), (0, "0 keys removed from memory, 10 objects from disk\n"));
}

#[test]
fn top_shows_the_tier_and_the_doctor_measures_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(1, dir.path(), &["--ssd-policy", "write_through"]);
    put(&cluster.connect(0), "k", &PutOptions::default());
    until(HANGS, "it is on disk", || figure(&cluster, 0, "ssd_objects") == 1);
    let top = |args: &[&str]| {
        let args = [&["top", "--interval", "0.2"], args].concat();
        run_to_end(cluster.cli(0, &args), HANGS).stdout
    };
    let screen: serde_json::Value = serde_json::from_str(&top(&["--json"])).unwrap();
    assert_eq!(screen["ranks"][0]["ssd"]["figures"]["ssd_objects"], 1, "{screen}");
    assert!(top(&[]).contains("SSD USED"));
    let doctor = |dir: &Path| {
        let mut command = clean_command(env!("CARGO_BIN_EXE_nkv"));
        command.args(["doctor", "--json", "--ssd-dir"]).arg(dir);
        let done = run_to_end(command, HANGS);
        let found: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        (done.code, found["ssd"].clone())
    };
    let (code, found) = doctor(dir.path());
    assert_eq!(code, 0, "{found}");
    for figure in ["write_mib_per_s", "read_mib_per_s", "persistent_save_ms"] {
        assert!(found[figure].as_f64().unwrap() > 0.0, "{found}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "it leaves nothing");
    let (code, found) = doctor(&dir.path().join("absent"));
    assert!(code == 1 && found["failed"].is_string(), "{code} {found}");
}
