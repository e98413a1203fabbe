use super::{Flags, Mode, Watermarks, Weights, watermarks};
use clap::Parser;
use nkv_transport::fabric::FabricConfig;
use std::time::Duration;

fn mode(args: &[&str]) -> Result<Mode, String> {
    let flags = Flags::try_parse_from([&["nkv-load"], args].concat());
    flags.map_err(|e| e.to_string())?.mode()
}

#[test]
fn the_flags_say_which_run_is_meant() {
    assert_eq!(mode(&[]), Ok(Mode::Embedded));
    assert_eq!(mode(&["--inject-corruption"]), Ok(Mode::Embedded));
    assert_eq!(mode(&["--connect", "h:1", "--clients", "4", "--mix", "1:1:0"]), Ok(Mode::Mix));
    assert_eq!(mode(&["--trace", "f", "--heap-bytes", "64MiB"]), Ok(Mode::Trace));
    assert_eq!(mode(&["--trace", "f", "--connect", "h:1"]), Ok(Mode::Trace));
    let generated = ["--trace", "generated:chat,seed=2", "--heap-percent", "10%"];
    assert_eq!(mode(&generated), Ok(Mode::Trace));
    assert_eq!(mode(&["--bench", "--transport", "embedded", "--pause-us", "9"]), Ok(Mode::Bench));
    assert_eq!(mode(&["--bench", "--transport", "tcp", "--connect", "h:1"]), Ok(Mode::Bench));
    let ring = ["--budgets", "--ring-bytes", "64MiB", "--connect", "h:1"];
    assert_eq!(mode(&ring), Ok(Mode::Budgets));
    let own = ["--bench", "--to-bytes", "--get-pool-bytes", "0", "--data-stripes", "2"];
    assert_eq!(mode(&own), Ok(Mode::Bench));
    assert_eq!(mode(&["--lookups", "1000", "--connect", "h:1"]), Ok(Mode::Lookups));
    assert_eq!(mode(&["--pour", "1", "--connect", "h:1"]), Ok(Mode::Pour));
}

#[test]
fn flags_that_would_be_ignored_are_refused() {
    for args in [
        &["--clients", "2"][..],
        &["--size", "4KiB"],
        &["--block-bytes", "4KiB"],
        &["--clients", "2", "--inject-corruption"],
        &["--trace", "f", "--bench"],
        &["--trace", "f", "--connect", "h:1", "--heap-bytes", "1GiB"],
        &["--trace", "f", "--connect", "h:1", "--policy", "lru"],
        &["--trace", "f", "--connect", "h:1", "--heap-percent", "10"],
        &["--trace", "f", "--heap-bytes", "1GiB", "--heap-percent", "10"],
        &["--trace", "f", "--heap-percent", "0"],
        &["--trace", "generated:talk"],
        &["--heap-percent", "10"],
        &["--trace", "f", "--duration", "3"],
        &["--connect", "h:1", "--inject-corruption"],
        &["--rdma-devices", "rxe0"],
        &["--connect", "h:1", "--transport", "tcp", "--rdma-devices", "rxe0"],
        &["--rdma-pairs", "2"],
        &["--pause-us", "5"],
        &["--to-bytes"],
        &["--to-bytes", "--budgets", "--connect", "h:1"],
        &["--bench", "--get-pool-bytes", "1MiB"],
        &["--data-stripes", "2"],
        &["--trace", "f", "--data-stripes", "2"],
        &["--trace", "f", "--pause-us", "5"],
        &["--transport", "embedded"],
        &["--bench", "--transport", "shm"],
        &["--bench", "--transport", "embedded", "--connect", "h:1"],
        &["--budgets"],
        &["--lookups", "5"],
        &["--pour", "1"],
        &["--budgets", "--bench", "--connect", "h:1"],
        &["--budgets", "--lookups", "5", "--connect", "h:1"],
        &["--budgets", "--duration", "5", "--connect", "h:1"],
        &["--budgets", "--clients", "5", "--connect", "h:1"],
        &["--lookups", "5", "--ring-bytes", "1MiB", "--connect", "h:1"],
        &["--ring-bytes", "1MiB", "--connect", "h:1"],
        &["--lookups", "5", "--transport", "tcp", "--connect", "h:1"],
        &["--trace", "f", "--budgets", "--connect", "h:1"],
    ] {
        assert!(mode(args).is_err(), "{args:?}");
    }
    let message = mode(&["--bench", "--duration", "5"]).unwrap_err();
    assert!(message.contains("--bench") && !message.contains("--lookups"), "{message}");
}

#[test]
fn flags_of_a_trace_are_refused_in_every_other_run() {
    let flags = "--block-bytes 4KiB --heap-bytes 1MiB --watermarks 90/80 --quarantine-ms 3 \
                 --policy fifo --speed 2 --requests 5";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let runs: [&[&str]; 8] = [
        &[],
        &["--duration", "1"],
        &["--bench"],
        &["--budgets", "--connect", "h:1"],
        &["--lookups", "5", "--connect", "h:1"],
        &["--pour", "1", "--connect", "h:1"],
        &["--inject-corruption"],
        &["--connect", "h:1"],
    ];
    for (flag, run) in flags.chunks(2).flat_map(|f| runs.map(|run| (f, run))) {
        assert!(mode(&[flag, run].concat()).is_err(), "{flag:?} {run:?}");
        assert_eq!(mode(&[&["--trace", "f"], flag].concat()), Ok(Mode::Trace));
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for args in [
        &["--connect", "h:1", "--clients", "0"][..],
        &["--connect", "h:1", "--clients", "257"],
        &["--connect", "h:1", "--data-stripes", "17"],
        &["--connect", "h:1", "--rdma-pairs", "9"],
        &["--connect", "h:1", "--rdma-devices", "a,,b"],
        &["--connect", "h:1", "--rdma-devices", "none"],
        &["--connect", "h:1", "--rdma-pairs", "0"],
        &["--connect", "h:1", "--rdma-gid-index", "256"],
        &["--connect", "h:1", "--size", "0"],
        &["--connect", "h:1", "--size", "2GiB"],
        &["--connect", "h:1", "--duration", "0"],
        &["--connect", "h:1", "--lookups", "0"],
        &["--connect", "h:1", "--pour", "0"],
        &["--connect", "h:1", "--duration", "nan"],
        &["--connect", "h:1", "--pause-us", "1000001"],
        &["--trace", "f", "--speed", "-1"],
        &["--trace", "f", "--policy", "random"],
    ] {
        assert!(mode(args).is_err(), "{args:?}");
    }
}

#[test]
fn weights_and_watermarks_are_read_and_checked() {
    assert_eq!("2:3:0".parse(), Ok(Weights { put: 2, get: 3, exists: 0 }));
    for text in ["", "1:2", "0:0:0", "1:2:3:4", "a:1:1", "1:a:1:1", "1:-1:1", "2000000:1:1"] {
        assert!(text.parse::<Weights>().is_err(), "{text}");
    }
    assert_eq!(watermarks("100/99"), Ok(Watermarks::Percent { hi: 100, lo: 99 }));
    for text in ["", "95", "85/95", "101/5", "95/0", "95/85/75", "a/b"] {
        assert!(watermarks(text).is_err(), "{text}");
    }
}

#[test]
fn a_run_lasts_15_seconds_by_default() {
    let flags = |args: &[&str]| Flags::try_parse_from([&["nkv-load"], args].concat()).unwrap();
    assert_eq!(flags(&[]).run_length(), Duration::from_secs(15));
    assert_eq!(flags(&["--duration", "1.5s"]).run_length(), Duration::from_millis(1500));
}

#[test]
fn devices_are_named_in_order_and_all_are_meant_by_none() {
    let config = |args: &[&str]| {
        let flags = Flags::try_parse_from([&["nkv-load", "--connect", "h:1"], args].concat());
        flags.unwrap().fabric.config()
    };
    assert_eq!(config(&[]), FabricConfig::default());
    let some = config(&["--rdma-devices", "b,a", "--rdma-gid-index", "3", "--rdma-pairs", "8"]);
    let devices = vec!["b".to_string(), "a".to_string()];
    assert_eq!(some, FabricConfig { devices, gid_index: Some(3), pairs: 8 });
}

#[test]
fn devices_are_taken_where_the_program_can_go_through_them() {
    let parsed = mode(&["--connect", "h:1", "--rdma-devices", "rxe0"]);
    match cfg!(feature = "rdma") {
        true => assert_eq!(parsed, Ok(Mode::Mix)),
        false => assert!(parsed.unwrap_err().contains("without the feature rdma")),
    }
}
