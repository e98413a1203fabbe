//! Error messages and exit statuses of failed commands, as text and as JSON.

use super::{LIMIT, nkv, piped};
use crate::cluster_process::{ProcessCluster, until};
use nkv::{ErrorKind, PutOptions, TransportChoice};

#[test]
fn exit_codes_tell_there_from_absent_from_wrong() {
    let cluster = ProcessCluster::start(3, |_| {});
    let put = piped(cluster.cli(0, &["put", "a", "--rank", "2"]), b"1");
    assert_eq!(String::from_utf8(put.stdout).unwrap(), "a: 1 B stored on rank 2\n");
    assert!(piped(cluster.cli(0, &["put", "b", "-", "--rank", "1"]), b"2").status.success());

    let both = nkv(&cluster, 1, &["exists", "a", "b"]);
    assert_eq!((both.code, both.stdout.as_str()), (0, "a: ready\nb: ready\n"));
    let one = nkv(&cluster, 2, &["exists", "a", "none"]);
    assert_eq!((one.code, one.stdout.as_str()), (1, "a: ready\nnone: absent\n"));

    let again = piped(cluster.cli(1, &["put", "a"]), b"other");
    assert_eq!(again.status.code(), Some(3));
    let stderr = String::from_utf8(again.stderr).unwrap();
    assert_eq!(stderr, "nkv: a exists on rank 2; values never change: nkv rm it first\n");

    let rm = nkv(&cluster, 2, &["rm", "a", "none", "b"]);
    assert_eq!((rm.code, rm.stdout.as_str()), (1, "a: removed\nnone: absent\nb: removed\n"));
    let gone = nkv(&cluster, 0, &["get", "a"]);
    assert_eq!((gone.code, gone.stdout.as_str()), (1, ""));
    assert!(gone.sentence().contains("no key a (never put,"), "{}", gone.stderr);
    assert_eq!(nkv(&cluster, 0, &["rm", "a"]).code, 1);

    let rank = nkv(&cluster, 0, &["put", "c", "/dev/null", "--rank", "7"]);
    assert_eq!(rank.code, 2);
    let text = "there is no rank 7; ranks are 0 to 2";
    assert!(rank.sentence().contains(text), "{}", rank.stderr);

    for wrong in [&["put"][..], &["frob"], &["get", "a", "--json"], &["put", ""]] {
        assert_eq!(nkv(&cluster, 0, wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_key_that_cannot_be_read_now_is_neither_there_nor_absent() {
    // So that the rank is not declared gone during the test.
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "600000"]);
    });
    assert!(piped(cluster.cli(0, &["put", "k", "--rank", "1"]), b"1").status.success());
    cluster.kill9(1);
    until(LIMIT, "the master sees that the link is down", || {
        let exists = nkv(&cluster, 0, &["exists", "k"]);
        (exists.code, exists.stdout.as_str()) == (4, "k: unreachable\n")
    });
    let both = nkv(&cluster, 0, &["exists", "k", "none"]);
    assert_eq!((both.code, both.stdout.as_str()), (1, "k: unreachable\nnone: absent\n"));
}

#[test]
fn errors_are_json_where_answers_are() {
    let cluster = ProcessCluster::start(1, |_| {});
    assert!(piped(cluster.cli(0, &["put", "there"]), b"1").status.success());
    let error = |args: &[&str]| {
        let ended = nkv(&cluster, 0, &[args, &["--json"]].concat());
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{args:?}");
        let output: serde_json::Value = serde_json::from_str(&ended.stderr).expect("JSON");
        let error = output["error"].clone();
        assert!(!error["message"].as_str().expect("a message").is_empty(), "{output}");
        let word = |name: &str| error[name].as_str().map(str::to_string);
        (ended.code, word("kind").expect("a kind"), word("key"))
    };
    let of =
        |code, kind: &str, key: Option<&str>| (code, kind.to_string(), key.map(str::to_string));
    let (nothing, file) = ("/dev/null", "/nowhere/f");
    assert_eq!(error(&["get", "none", "-o", nothing]), of(1, "NotFound", Some("none")));
    assert_eq!(error(&["get", r#""\x00""#, "-o", nothing]), of(1, "NotFound", Some(r#""\x00""#)));
    assert_eq!(error(&["put", "there", nothing]), of(3, "AlreadyExists", Some("there")));
    assert_eq!(error(&["frob"]), of(2, "InvalidArgument", None));
    assert_eq!(error(&["ls", "("]), of(2, "InvalidArgument", None));
    assert_eq!(error(&["status", "--job", "another"]), of(5, "Refused", None));
    assert_eq!(error(&["status", "--connect", "127.0.0.1:1"]), of(4, "Disconnected", None));
    assert_eq!(error(&["get", "there", "-o", file]), of(7, "Io", None));
}

#[test]
fn what_is_no_key_is_refused_by_every_command_and_by_every_verb() {
    let cluster = ProcessCluster::start(2, |_| {});
    let long = "k".repeat(1025);
    for key in ["", long.as_str(), r#""""#, r#""\q""#, "\"open"] {
        for command in [&["exists", "a"][..], &["rm", "a"], &["get"], &["put"]] {
            let ended = nkv(&cluster, 0, &[command, &[key]].concat());
            assert_eq!(
                (ended.code, ended.stdout.as_str()),
                (2, ""),
                "{command:?}: {}",
                ended.stderr
            );
        }
    }
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        let handle = cluster.connect_by(0, transport);
        for key in [&b""[..], long.as_bytes()] {
            let keys = [&b"a"[..], key];
            let outcomes = [
                handle.exists(&keys).map(drop),
                handle.match_prefix(&keys).map(drop),
                handle.lookup_mapped(&keys, &mut [false; 2]).map(drop),
                handle.get_location(key).map(drop),
                handle.get(key).map(drop),
                handle.get_into(key, &mut [0; 8]).map(drop),
                handle.get_many_into(&mut [(key, &mut [0; 8])]).pop().unwrap().map(drop),
                handle.get_view(key).map(drop),
                handle.put(key, b"v", &PutOptions::default()),
                handle.open_for_write(key, 1, &PutOptions::default()).map(drop),
                handle.commit(key),
                handle.remove(key),
            ];
            for (n, outcome) in outcomes.into_iter().enumerate() {
                let kind = outcome.map_err(|e| e.kind());
                assert_eq!(kind, Err(ErrorKind::InvalidArgument), "verb {n}, {} bytes", key.len());
            }
        }
    }
}
