//! Tables of which source wins for which setting, and the errors that stop a rank before it starts.

use super::{Given, Machine, Settings, resolve};
use crate::launcher::Env;
use crate::node_settings::{KEYS, SWITCHES, flag};
use nkv_actors::tier::{Durability, SsdConfig, SsdEngine, SsdPolicy};
use nkv_transport::fabric::FabricConfig;
use std::collections::BTreeMap;
use std::io::Write;

const MACHINE: Machine = Machine { memory_bytes: 16 << 30, cores: 4 };
const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "2"),
    ("WORLD_SIZE", "3"),
    ("LOCAL_WORLD_SIZE", "3"),
    ("MASTER_ADDR", "box.lan"),
    ("TORCHELASTIC_RUN_ID", "run7"),
];

const SECRET: (&str, &str) = ("NKV_SECRET", "sixteen bytes or");

/// A command line of pairs: a flag and its value.
fn flags(args: &[&str]) -> Given {
    let value = |name: &str| {
        let at = args.iter().rposition(|arg| *arg == name)?;
        Some(args[at + 1].to_string())
    };
    let valued = KEYS.iter().filter(|key| !SWITCHES.contains(&key.as_str()));
    let typed = valued.filter_map(|key| Some((key.as_str(), value(&flag(key))?)));
    let mut values: BTreeMap<_, _> = typed.collect();
    if args.contains(&"--pool-pinned") {
        values.insert("pool_pinned", "true".to_string());
    }
    if args.contains(&"--no-prefault") {
        values.insert("prefault", "false".to_string());
    }
    Given { values, config: value("--config").map(Into::into), named: flag }
}

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
}

fn settings(args: &[&str], pairs: &[(&str, &str)]) -> Result<Settings, String> {
    resolve(&flags(args), &env(pairs), MACHINE)
}

fn source(settings: &Settings, key: &str) -> String {
    settings.lines.iter().find(|line| line.key == key).unwrap().source.clone()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn alone_a_rank_is_the_whole_world_on_loopback() {
    let s = settings(&[], &[]).unwrap();
    assert_eq!((s.node.rank, s.node.world_size, s.node.port), (0, 1, 7400));
    assert_eq!((s.node.job.as_str(), s.node.master_host.as_str()), ("nkv", "127.0.0.1"));
    assert!(s.node.listen.is_loopback() && s.warnings.is_empty());
    assert_eq!(s.http, Some("127.0.0.1:0".parse().unwrap()));
    assert_eq!((s.node.join_timeout_ms, s.threads), (120_000, 4));
    assert!(s.lines.iter().all(|line| line.source.starts_with("default")));
}

#[test]
fn every_setting_of_the_table_is_taken_once() {
    let s = settings(&[], &[]).unwrap();
    let taken: Vec<&str> = s.lines.iter().map(|line| line.key).collect();
    assert_eq!(taken, *KEYS);
}

#[test]
fn flags_win_over_variables_over_the_file_over_the_launcher_over_defaults() {
    let file = file("rank = 1\nworld_size = 9\nttl_ms = 3333\n");
    let path = file.path().to_str().unwrap();
    let torchrun = [TORCHRUN, &[("NKV_PORT", "7")]].concat();
    let with_variable = [&torchrun[..], &[("NKV_RANK", "4")]].concat();
    for (args, pairs, rank, from) in [
        (&["--config", path, "--rank", "5"][..], &with_variable[..], 5, "--rank"),
        (&["--config", path], &with_variable[..], 4, "NKV_RANK"),
        (&["--config", path], &torchrun[..], 1, path),
        (&[], &torchrun[..], 2, "torchrun"),
        (&[], &[][..], 0, "default"),
    ] {
        let s = settings(args, pairs).unwrap();
        assert_eq!((s.node.rank, source(&s, "rank").as_str()), (rank, from), "{args:?}");
    }
    let s = settings(&["--port", "7"], &[("NKV_CONFIG", path)]).unwrap();
    assert_eq!((s.node.ttl_ms, source(&s, "ttl_ms").as_str()), (3333, path));
}

#[test]
fn an_empty_variable_counts_as_unset() {
    assert_eq!(settings(&[], &[("NKV_JOB", ""), ("NKV_RANK", "")]).unwrap().node.job, "nkv");
}

#[test]
fn the_job_is_the_users_else_the_launchers_else_nkv() {
    let slurm = [("SLURM_JOB_ID", "77"), ("SLURM_STEP_ID", "0")];
    let given = [&slurm[..], &[("NKV_JOB", "mine")]].concat();
    let run_id = [&slurm[..], &[("TORCHELASTIC_RUN_ID", "run7")]].concat();
    for (pairs, job) in
        [(&slurm[..], "77.0"), (&run_id[..], "run7"), (&given[..], "mine"), (&[][..], "nkv")]
    {
        assert_eq!(settings(&[], pairs).unwrap().node.job, job);
    }
}

#[test]
fn on_one_host_rank_0_is_where_the_ranks_listen() {
    let port = ("NKV_PORT", "7000");
    let torchrun = [TORCHRUN, &[port]].concat();
    let secret = [TORCHRUN, &[port, SECRET]].concat();
    for (args, pairs, expected) in [
        (&[][..], &torchrun[..], "127.0.0.1"),
        (&["--listen", "::1"], &torchrun[..], "::1"),
        (&["--listen", "10.0.0.5"], &secret[..], "10.0.0.5"),
        (&["--master-addr", "other"], &torchrun[..], "other"),
        (&["--rank", "1", "--world-size", "2"], &[port][..], "127.0.0.1"),
    ] {
        let s = settings(args, pairs).unwrap();
        assert_eq!(s.node.master_host, expected, "{args:?}");
    }
    let many = [TORCHRUN, &[port, ("LOCAL_WORLD_SIZE", "1")]].concat();
    assert_eq!(settings(&[], &many).unwrap().node.master_host, "box.lan");
}

#[test]
fn open_mpi_over_several_hosts_needs_the_host_of_rank_0() {
    let pairs = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("NKV_PORT", "7")];
    let error = settings(&[], &pairs).unwrap_err();
    assert!(error.contains("--master-addr"), "{error}");
    assert_eq!(settings(&["--master-addr", "n1"], &pairs).unwrap().node.master_host, "n1");
    let local = [&pairs[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
    assert_eq!(settings(&[], &local).unwrap().node.master_host, "127.0.0.1");
}

#[test]
fn half_a_launcher_environment_ends_with_2_unless_both_numbers_are_given() {
    let half = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let error = settings(&[], &half).unwrap_err();
    assert!(error.contains("MASTER_ADDR"), "{error}");
    assert!(settings(&["--rank", "0"], &half).is_err());
    let s = settings(&["--rank", "0", "--world-size", "1"], &half).unwrap();
    assert_eq!((s.node.world_size, s.warnings.len()), (1, 1));
}

#[test]
fn only_rank_0_takes_a_free_port() {
    let second = ["--world-size", "3", "--rank", "1"];
    assert_eq!(settings(&second, &[]).unwrap().node.port, 7400);
    let error = settings(&[&second[..], &["--port", "0"]].concat(), &[]).unwrap_err();
    assert!(error.contains("NKV_PORT"), "{error}");
    assert_eq!(settings(&["--world-size", "3", "--port", "0"], &[]).unwrap().node.port, 0);
}

#[test]
fn wrong_values_are_refused_with_their_source() {
    let file = file("ttl_ms = \"soon\"\n");
    let path = file.path().to_str().unwrap();
    for (args, pairs, named) in [
        (&["--rank", "x"][..], &[][..], "--rank"),
        (&["--rank", "1"], &[], "world of 1"),
        (&["--world-size", "0"], &[], "world of 0"),
        (&["--heap-bytes", "64MB"], &[], "--heap-bytes"),
        (&["--heap-bytes", "0"], &[], "heap_bytes 0: at least 1 byte"),
        (&["--heap-bytes", "100TiB"], &[], "heap_bytes 100 TiB: at most 8 TiB a rank"),
        (&["--watermarks", "85/95"], &[], "--watermarks"),
        (&["--policy", "random"], &[], "--policy"),
        (&["--memory", "disk"], &[], "--memory"),
        (&["--listen", "localhost"], &[], "--listen"),
        (&["--listen", "0.0.0.0"], &[], "--listen"),
        (&["--listen", "10.0.0.5"], &[], "NKV_SECRET"),
        (&["--listen", "::ffff:10.0.0.5"], &[], "no secret"),
        (&[], &[("NKV_SECRET", "")], "NKV_SECRET holds a secret of 0 bytes"),
        (&[], &[("NKV_SECRET", "hunter2")], "at least 16"),
        (&[], &[SECRET, ("NKV_SECRET_FILE", "f")], "both set"),
        (&["--secret-file", ""], &[SECRET], "--secret-file"),
        (&["--secret-file", "/nowhere/secret"], &[SECRET], "--secret-file: /nowhere/secret"),
        (&[], &[("NKV_SECRET_FILE", "/nowhere/secret")], "NKV_SECRET_FILE: /nowhere/secret"),
        (&["--ttl-ms", "1"], &[], "ttl_ms is 400 to "),
        (&["--ttl-ms", "399"], &[], "not 399"),
        (&["--page-bytes", "0"], &[], "page_bytes is at least 1, not 0"),
        (&["--data-connections", "0"], &[], "data_connections is at least 1, not 0"),
        (&["--http", "8080"], &[], "--http"),
        (&["--rdma-devices", "a,,b"], &[], "--rdma-devices"),
        (&["--rdma-devices", "none,a"], &[], "--rdma-devices"),
        (&["--rdma-devices", "a,b,a"], &[], "named twice"),
        (&["--rdma-devices", "none", "--rdma-pairs", "2"], &[], "rdma_devices none"),
        (&["--placement", "nearest"], &[], "--placement"),
        (&["--rack", "r1"], &[], "--rack"),
        (&["--rack-map", "/nowhere/racks"], &[], "No such file"),
        (&["--rdma-gid-index", "256"], &[], "--rdma-gid-index"),
        (&["--rdma-pairs", "9"], &[], "9 is not between 1 and 8"),
        (&["--threads", "257"], &[], "threads"),
        (&["--page-bytes", "4GiB"], &[], "--page-bytes"),
        (&["--job", "two words"], &[], "--job"),
        (&[], &[("NKV_PORT", "65536")], "NKV_PORT"),
        (&[], &[("NKV_PREFAULT", "maybe")], "NKV_PREFAULT"),
        (&["--config", path], &[], "ttl_ms"),
        (&["--config", "/nowhere/nkv.toml"], &[], "/nowhere/nkv.toml"),
    ] {
        let sentence = settings(args, pairs).unwrap_err();
        assert!(sentence.contains(named) && !sentence.contains('\n'), "{sentence}");
    }
}

#[test]
fn the_policy_of_heaps_leaves_nothing_to_a_log_unless_one_is_asked_for() {
    let parts = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        settings(&args, &[]).unwrap().node.parts()
    };
    let all = 64 << 20;
    assert_eq!(parts("--heap-bytes 64MiB --policy lru"), (all - (56 << 20), 56 << 20));
    assert_eq!(parts("--heap-bytes 64MiB --policy prefix"), (all, 0));
    let with = "--heap-bytes 64MiB --policy prefix --log-bytes 16MiB";
    assert_eq!(parts(with), (all - (16 << 20), 16 << 20));
}

#[test]
fn every_value_reaches_what_it_sets() {
    let args = "--job j --rank 1 --world-size 2 --master-addr h --port 9 --listen 127.0.0.2 --http \
                off --heap-bytes 3MiB --memory private --no-prefault --page-bytes 4KiB --log-bytes \
                64KiB --log-claim-ttl-ms 1500 --device-alloc off --policy fifo --watermarks 100/99 \
                --quarantine-ms 5 --write-ttl-ms 6000 --ttl-ms 7000 --heartbeat-ms 80 \
                --join-timeout-ms 90 --call-timeout-ms 100 --full-wait-ms 110 --rdma-devices b,a \
                --rdma-gid-index 3 --rdma-pairs 8 --data-connections 12 --drain-ms 13 --rejoins 14 \
                --threads 15 --log debug --ssd-dir /d --ssd-bytes 1GiB --ssd-policy write_through \
                --ssd-durability persistent --ssd-ttl-days 3 --ssd-engine files --election ranks \
                --master-lease-ms 900 --peers a:1,b:2 --control-port 7401 \
                --placement random:9 --rack /a/b";
    let s = settings(&args.split_whitespace().collect::<Vec<_>>(), &[]).unwrap();
    let n = &s.node;
    assert_eq!((n.job.as_str(), n.rank, n.world_size, n.port), ("j", 1, 2, 9));
    assert_eq!((n.master_host.as_str(), n.listen.to_string().as_str()), ("h", "127.0.0.2"));
    assert_eq!((n.heap_bytes, n.page_bytes, n.prefault), (3 << 20, 4096, false));
    assert_eq!((n.log_bytes, n.log_claim_ttl_ms, n.device_alloc), (Some(64 << 10), 1500, false));
    assert_eq!((n.memory, n.policy), (nkv::MemoryChoice::Private, nkv_store::PolicyKind::Fifo));
    assert_eq!((n.watermarks.to_string().as_str(), n.quarantine_ms), ("100/99", 5));
    assert_eq!((n.write_ttl_ms, n.ttl_ms, n.heartbeat_ms), (6000, 7000, 80));
    assert_eq!((n.join_timeout_ms, n.call_timeout_ms, n.full_wait_ms), (90, 100, 110));
    assert_eq!((&n.election, n.master_lease_ms), (&nkv::ElectionChoice::Ranks, 900));
    assert_eq!((&n.peers[..], n.control_port), (&["a:1".to_string(), "b:2".into()][..], 7401));
    assert_eq!(n.placement, nkv::Placement::Random(9));
    assert_eq!(n.rack.to_string(), "/a/b");
    let devices = vec!["b".to_string(), "a".to_string()];
    assert_eq!(n.fabric, Some(FabricConfig { devices, gid_index: Some(3), pairs: 8 }));
    assert_eq!((n.data_connections, s.drain_ms, s.rejoins, s.threads), (12, 13, 14, 15));
    assert_eq!((s.http, s.log.as_str()), (None, "debug"));
    let (policy, engine) = (SsdPolicy::WriteThrough, SsdEngine::Files);
    let durability = Durability::Persistent;
    let ssd = SsdConfig { policy, engine, durability, ..SsdConfig::new("/d", 1 << 30) };
    assert_eq!(n.ssd, Some(SsdConfig { ttl_s: 3 * 86_400, ..ssd }));
    assert_eq!(settings(&["--ssd-bytes", "1GiB"], &[]).unwrap().node.ssd, None);
}

#[test]
fn the_pool_is_pinned_with_the_gpu_of_this_rank_if_that_is_asked_for() {
    let pinned =
        |args: &[&str], pairs: &[(&str, &str)]| settings(args, pairs).unwrap().node.pool_pinned;
    assert_eq!(pinned(&[], &[]), None);
    assert_eq!(pinned(&["--pool-pinned"], &[]), Some(0));
    assert_eq!(pinned(&["--gpu", "3"], &[("NKV_POOL_PINNED", "true")]), Some(3));
    assert_eq!(pinned(&["--gpu", "3"], &[("NKV_POOL_PINNED", "off")]), None);
    assert!(settings(&[], &[("NKV_POOL_PINNED", "maybe")]).unwrap_err().contains("POOL_PINNED"));
}

#[test]
fn the_heap_is_aligned_and_bound_as_asked() {
    let of =
        |args: &[&str]| settings(args, &[]).map(|s| (s.node.heap_align.bytes(), s.node.numa_node));
    assert_eq!(of(&[]), Ok((4096, None)));
    assert_eq!(of(&["--heap-align", "2MiB", "--numa-node", "1"]), Ok((2 << 20, Some(1))));
    assert_eq!(of(&["--numa-node", "none"]), Ok((4096, None)));
    for wrong in ["0", "4095", "12KiB", "4MiB", "8GiB"] {
        let error = of(&["--heap-align", wrong]).unwrap_err();
        assert!(error.contains("--heap-align") && error.contains("power of two"), "{error}");
    }
}

#[test]
fn the_default_heap_is_shared_by_the_ranks_of_the_host() {
    let heap = |args: &[&str], pairs: &[(&str, &str)], memory_bytes| {
        let machine = Machine { memory_bytes, ..MACHINE };
        resolve(&flags(args), &env(pairs), machine).map(|s| s.node.heap_bytes)
    };
    let three = &["--world-size", "3", "--port", "0"][..];
    assert_eq!(heap(&[], &[], 16 << 30), Ok(1 << 30));
    assert_eq!(heap(&[], &[], 1 << 30), Ok(256 << 20));
    assert_eq!(heap(three, &[], 12 << 30), Ok(1 << 30));
    assert_eq!(heap(three, &[], 1 << 30), Ok(85 << 20));
    let far = &["--world-size", "3", "--rank", "1", "--port", "1", "--master-addr", "n1"][..];
    assert_eq!(heap(far, &[], 1 << 30), Ok(256 << 20));
    let local = [TORCHRUN, &[("LOCAL_WORLD_SIZE", "2"), ("NKV_PORT", "1")]].concat();
    assert_eq!(heap(&[], &local, 1 << 30), Ok(128 << 20));
    assert!(heap(&[], &[], 0).is_err());
}

#[test]
fn what_listens_beyond_this_host_is_warned_of() {
    let warnings = |args: &[&str], pairs: &[(&str, &str)]| settings(args, pairs).unwrap().warnings;
    assert!(warnings(&["--http", "0.0.0.0:80"], &[])[0].contains("HTTP"));
    let many = [TORCHRUN, &[("LOCAL_WORLD_SIZE", "1"), ("NKV_PORT", "7")]].concat();
    assert!(warnings(&[], &many)[0].contains("--listen"));
    assert!(warnings(&[], &[TORCHRUN, &[("NKV_PORT", "7")]].concat()).is_empty());
}

#[test]
fn i20_a_secret_comes_from_a_flag_a_variable_or_the_file_and_is_never_shown() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |f: &tempfile::NamedTempFile, mode| {
        f.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let held = file("the secret in the file\n");
    mode(&held, 0o600);
    let path = held.path().to_str().unwrap();
    let config = file(&format!("secret_file = \"{path}\"\n"));
    let config = config.path().to_str().unwrap();
    let (in_file, in_variable) = (b"the secret in the file", SECRET.1.as_bytes());
    let same_as = |bytes: &[u8]| Some(nkv::Secret::new(bytes, "test").unwrap());
    for (args, pairs, expected, source) in [
        (&["--secret-file", path][..], &[][..], &in_file[..], "--secret-file"),
        (&["--secret-file", path], &[SECRET], in_file, "--secret-file"),
        (&[], &[("NKV_SECRET_FILE", path)], in_file, "NKV_SECRET_FILE"),
        (&["--config", config], &[], in_file, config),
        (&["--config", config], &[SECRET], in_variable, "NKV_SECRET"),
        (&["--secret-file", "none", "--config", config], &[], b"", "--secret-file"),
        (&[], &[SECRET], in_variable, "NKV_SECRET"),
    ] {
        let s = settings(args, pairs).unwrap();
        let wanted = if expected.is_empty() { None } else { same_as(expected) };
        assert_eq!(s.node.secret, wanted, "{args:?}");
        assert_eq!(self::source(&s, "secret_file"), source);
        let shown = format!("{s:?}");
        assert!(!shown.contains("the secret in") && !shown.contains(SECRET.1), "{shown}");
    }
    assert!(settings(&["--listen", "10.0.0.5"], &[SECRET]).is_ok());
    mode(&held, 0o640);
    let error = settings(&["--secret-file", path], &[]).unwrap_err();
    assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
}

#[test]
fn the_effective_configuration_can_be_read_back_as_a_file() {
    let args = ["--job", "007", "--heap-bytes", "64MiB", "--watermarks", "90/80", "--http", "off"];
    let first = settings(&args, &[]).unwrap();
    let text: String =
        first.lines.iter().map(|line| format!("{} = {}\n", line.key, line.value)).collect();
    let file = file(&text);
    let again = settings(&["--config", file.path().to_str().unwrap()], &[]).unwrap();
    let values = |s: &Settings| s.lines.iter().map(|l| l.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&first), values(&again));
}

#[test]
fn the_masters_host_is_a_name_or_an_address_and_nothing_else() {
    for host in ["node-0", "10.0.0.7", "::1", "[fe80::1]"] {
        assert_eq!(settings(&["--master-addr", host], &[]).unwrap().node.master_host, host);
    }
    for wrong in ["", " ", "node-0:7400", "tcp://node-0"] {
        let error = settings(&["--master-addr", wrong], &[]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("--master-addr") && error.contains("the host of rank 0"), "{error}");
    }
}

#[test]
fn the_form_of_log_lines_is_one_of_two() {
    use crate::logging::LogFormat;
    assert_eq!(settings(&[], &[]).unwrap().log_format, LogFormat::Text);
    let json = settings(&[], &[("NKV_LOG_FORMAT", "json")]).unwrap();
    assert_eq!(json.log_format, LogFormat::Json);
    assert!(settings(&["--log-format", "xml"], &[]).unwrap_err().contains("text or json"));
}
