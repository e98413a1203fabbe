//! `nkv top` over a real cluster. Without a terminal: one screen with every rank, its heap and its
//! actors, also after a rank or the master was killed. On a terminal: it ends when the terminal
//! closes, and restores it.

use crate::cluster_process::{
    AtTerminal, Ended, ProcessCluster, Terminal, holds_within, run_to_end,
};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// Limit of one screen: two samples, each with the limits of the master and of a rank.
const LIMIT: Duration = nkv_pace::HANGS;
/// How long the cluster may take to detect a death.
const SEEN: Duration = nkv_pace::HANGS;
/// How long a view may take to show the cluster, and to end.
const VIEW: Duration = nkv_pace::HANGS;
/// Escape sequence that leaves the view.
const LEAVES: &str = "\x1b[?1049l";

fn top(cluster: &ProcessCluster, through: u32, args: &[&str]) -> Ended {
    run_to_end(cluster.cli(through, &[&["top", "--interval", "0.2"], args].concat()), LIMIT)
}

fn json(cluster: &ProcessCluster, through: u32) -> Value {
    let ended = top(cluster, through, &["--json"]);
    serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|e| panic!("no JSON ({e}): {}", ended.stderr))
}

#[test]
fn every_rank_is_shown_with_heap_and_actors_and_a_killed_one_as_gone() {
    let mut cluster = ProcessCluster::start(3, |command| {
        command.args(["--ttl-ms", "1000"]);
    });
    let handle = cluster.connect(0);
    for key in 0..50u32 {
        handle.put(&key.to_le_bytes(), &[7; 4096], &Default::default()).unwrap();
    }
    let screen = json(&cluster, 1);
    assert_eq!((&screen["members"], &screen["master"]["objects"]), (&3.into(), &50.into()));
    for (rank, actors) in [(0, 4), (1, 3), (2, 3)] {
        let row = &screen["ranks"][rank];
        assert_eq!((&row["rank"], &row["state"]), (&rank.into(), &"alive".into()), "{row}");
        assert_eq!(row["actors"].as_array().unwrap().len(), actors, "{row}");
        assert!(row["hole"].as_u64().unwrap() > 0 && row["rates"].is_object(), "{row}");
    }
    let objects = (0..3).map(|rank| screen["ranks"][rank]["heap"]["objects"].as_u64().unwrap());
    assert_eq!(objects.sum::<u64>(), 50);
    let text = top(&cluster, 1, &[]).stdout;
    assert!(text.contains("3 of 3 ranks") && text.contains("OWNER"), "{text}");
    assert!(!text.contains('\u{1b}'), "no control sequences without a terminal");

    cluster.kill9(2);
    // A single run has no history: a rank that was gone before is shown as missing.
    let gone = || {
        let state = json(&cluster, 1)["ranks"][2]["state"].clone();
        state == "gone" || state == "missing"
    };
    assert!(holds_within(SEEN, gone), "{}", json(&cluster, 1));
    assert_eq!(json(&cluster, 1)["ranks"][1]["state"], "alive");
}

#[test]
fn a_stopped_rank_holds_no_picture_up() {
    let cluster = ProcessCluster::start(3, |command| {
        command.args(["--ttl-ms", "60000"]);
    });
    cluster.node(2).stop();
    let silent = || {
        let screen = json(&cluster, 0);
        let row = &screen["ranks"][2];
        let why = row["silent"].as_str().unwrap_or_default();
        row["state"] == "unreachable" && why.contains("no answer within")
    };
    assert!(holds_within(SEEN, silent), "{}", json(&cluster, 0));
    cluster.node(2).signal(rustix::process::Signal::CONT);
    assert!(holds_within(SEEN, || json(&cluster, 0)["ranks"][2]["state"] == "alive"));
}

/// Starts it on a terminal and waits until it shows the cluster.
fn on(terminal: &mut Terminal, cluster: &ProcessCluster) -> AtTerminal {
    let view = terminal.start(cluster.cli(0, &["top", "--interval", "0.2"]));
    terminal.wait_for(VIEW, "q quits");
    assert!(!terminal.is_as_it_was());
    view
}

#[test]
fn a_view_whose_terminal_is_gone_ends() {
    let cluster = ProcessCluster::start(1, |_| {});
    let mut terminal = Terminal::new();
    let mut view = on(&mut terminal, &cluster);
    terminal.hang_up();
    assert!(view.wait(&mut terminal, VIEW).success());
}

#[test]
fn a_key_or_a_signal_ends_a_view_and_the_terminal_is_as_it_was() {
    let cluster = ProcessCluster::start(1, |_| {});
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = Terminal::new();
        let mut view = on(&mut terminal, &cluster);
        view.signal(signal);
        assert!(view.wait(&mut terminal, VIEW).success(), "{signal:?}");
        assert!(terminal.is_as_it_was() && terminal.seen().contains(LEAVES), "{signal:?}");
    }
    let mut terminal = Terminal::new();
    let mut view = on(&mut terminal, &cluster);
    terminal.type_in("q");
    assert!(view.wait(&mut terminal, VIEW).success());
    assert!(terminal.is_as_it_was() && terminal.seen().contains(LEAVES));
}

#[test]
fn a_signal_ends_a_view_whose_terminal_takes_no_output() {
    let cluster = ProcessCluster::start(1, |_| {});
    let mut terminal = Terminal::new();
    let mut view = on(&mut terminal, &cluster);
    terminal.stop_output();
    view.signal(Signal::TERM);
    assert!(view.wait(&mut terminal, VIEW).success());
    assert!(terminal.is_as_it_was());
}
