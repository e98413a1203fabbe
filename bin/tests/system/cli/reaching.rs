//! Connecting to the cluster, and the messages if it cannot be reached: through one named node,
//! through several, and through a living rank whose master is gone.

use super::{LIMIT, nkv};
use crate::cluster_process::{ProcessCluster, clean_command, run_to_end, until};
use nkv::{Client, ClientConfig, ErrorKind, PutOptions, Secret};

#[test]
fn who_cannot_be_reached_is_named_with_what_to_do() {
    let cluster = ProcessCluster::start(1, |_| {});
    let mut nowhere = clean_command(env!("CARGO_BIN_EXE_nkv"));
    nowhere.args(["status", "--connect", "127.0.0.1:1"]);
    let ended = run_to_end(nowhere, LIMIT);
    assert_eq!(ended.code, 4);
    assert!(ended.sentence().contains("127.0.0.1:1"), "{}", ended.stderr);
    assert!(ended.sentence().contains("start that node, or connect"), "{}", ended.stderr);

    let other = nkv(&cluster, 0, &["status", "--job", "another"]);
    assert_eq!(other.code, 5);
    let remedy = format!("serves job '{0}', not 'another': give --job {0}", cluster.job());
    assert!(other.sentence().contains(&remedy), "{}", other.stderr);

    let mut http = clean_command(env!("CARGO_BIN_EXE_nkv"));
    http.args(["status", "--job", cluster.job(), "--connect", cluster.http(0)]);
    let ended = run_to_end(http, LIMIT);
    assert_eq!(ended.code, 4);
    assert!(ended.sentence().contains("use control= of the ready line"), "{}", ended.stderr);
}

#[test]
fn a_node_that_is_not_named_is_rank_0_of_this_host_and_of_several_the_first_that_leads_on_serves() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let through = |nodes: Option<&str>| {
        let mut status = clean_command(env!("CARGO_BIN_EXE_nkv"));
        status.env("NKV_JOB", cluster.job()).env("NKV_PORT", cluster.port().to_string());
        status.args(["status", "--json"]).args(nodes.map(|n| format!("--connect={n}")));
        run_to_end(status, LIMIT)
    };
    for nodes in [None, Some("localhost"), Some("127.0.0.1:1,127.0.0.1")] {
        assert_eq!(through(nodes).code, 0, "{nodes:?}: {}", through(nodes).stderr);
    }
    let rank_1 = cluster.node(1).control().to_string();
    let both = format!("127.0.0.1:1,{rank_1}");
    assert_eq!(through(Some(&both)).code, 0);
    cluster.kill9(0);
    let none = nkv(&cluster, 1, &["get", "k", "--connect", &both]);
    assert_eq!(none.code, 4);
    let output = none.sentence();
    assert!(output.contains("none of 2 nodes reaches the master"), "{output}");
    assert!(
        output.contains("; cannot connect to tcp://127.0.0.1:1: ")
            && output.contains("answers, but not"),
        "{output}"
    );
}

#[test]
fn while_the_master_is_gone_status_says_what_each_node_knows() {
    let mut cluster = ProcessCluster::start(3, |_| {});
    let handle = cluster.connect(0);
    let to_rank_1 = PutOptions::default().preferred_rank(1);
    handle.put(b"k", b"value", &to_rank_1).unwrap();
    until(LIMIT, "rank 1 has heard of its object", || {
        let shown = nkv(&cluster, 1, &["stats", "--json"]);
        let output: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        output["ranks"][1]["owner"]["objects"] == 1
    });
    let (first, rank_1) = (cluster.address(0).to_string(), cluster.address(1).to_string());
    cluster.kill9(0);
    let nodes = format!("{first},{rank_1}");
    let shown = || nkv(&cluster, 1, &["status", "--connect", &nodes, "--json"]);
    until(LIMIT, "rank 1 says that its link is lost, and what it holds", || {
        let shown = shown();
        assert_eq!(shown.code, 4, "{}", shown.stderr);
        let output: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        let (rank_0, rank_1) = (&output["nodes"][0], &output["nodes"][1]["rank"]);
        assert!(output["master"].is_null());
        assert_eq!(rank_0["error"]["kind"], "Disconnected", "{rank_0}");
        assert_eq!(rank_1["segments"][0]["owner"]["objects"], 1, "{rank_1}");
        assert_eq!(rank_1["view"]["ranks"].as_array().unwrap().len(), 3, "{rank_1}");
        assert_eq!(rank_1["seen"]["incarnations"].as_array().unwrap().len(), 3, "{rank_1}");
        rank_1["segments"][0]["link"].as_str().unwrap().starts_with("lost: ")
    });
    let text = nkv(&cluster, 1, &["status", "--connect", &nodes]);
    assert_eq!(text.code, 4);
    assert!(text.stdout.contains(&format!("{first}: no answer: ")), "{}", text.stdout);
    assert!(text.stdout.contains(&format!("{rank_1}: rank 1 of 3, ")), "{}", text.stdout);
    assert!(text.stdout.contains(&format!("link to the master {first}, for ")), "{}", text.stdout);
    assert!(text.sentence().starts_with("nkv: none of 2 nodes"), "{}", text.stderr);
    // The master's answer is shown again as soon as it is back.
    cluster.restart(0);
    cluster.wait_ready(LIMIT);
    assert_eq!(nkv(&cluster, 1, &["status", "--connect", &nodes]).code, 0);
}

#[test]
fn a_living_rank_is_not_blamed_for_a_master_that_is_gone() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let master = cluster.node(0).control().to_string();
    cluster.kill9(0);
    let ended = nkv(&cluster, 1, &["get", "k"]);
    assert_eq!(ended.code, 4);
    let asked = cluster.node(1).control();
    let whom = format!("tcp://{asked} answers, but not the master tcp://{master} it names: ");
    let output = ended.sentence();
    assert!(output.contains(&whom), "{output}");
    assert!(output.contains("if that rank is down start it again"), "{output}");
}

#[test]
fn a_rank_says_once_that_its_master_is_gone_and_when_it_is_back() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let count_lines = |cluster: &ProcessCluster, what: &str| {
        cluster.node(1).stderr().lines().filter(|line| line.contains(what)).count()
    };
    cluster.kill9(0);
    until(LIMIT, "rank 1 says so", || count_lines(&cluster, "no link to the master any more") > 0);
    assert_eq!(count_lines(&cluster, "joined again"), 0);
    cluster.restart(0);
    until(LIMIT, "rank 1 says so", || count_lines(&cluster, "joined again") > 0);
    assert_eq!(count_lines(&cluster, "no link to the master any more"), 1);
}

#[test]
fn i20_what_a_node_knows_is_told_to_nobody_who_does_not_share_its_secret() {
    let cluster = ProcessCluster::start(1, |_| {});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = |secret| {
        let job = cluster.job().to_string();
        let config = ClientConfig { job, secret, ..ClientConfig::default() };
        runtime.block_on(Client::report_of(&cluster.address(0), &config))
    };
    assert_eq!(report(None).map(|known| known.pid), Ok(cluster.node(0).pid()));
    let other = Secret::new(b"a secret of this test alone", "a test").unwrap();
    assert_eq!(report(Some(other)).map_err(|e| e.kind()), Err(ErrorKind::InvalidArgument));
}
