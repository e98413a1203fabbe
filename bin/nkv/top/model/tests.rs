//! What is shown from samples of a cluster that works, loses ranks, and loses its master.

use super::super::collect::Sample;
use super::super::status_page::{ActorPage, NodePage};
use super::{Health, Model, Screen};
use nkv::message::{
    ClusterStats, ExportedMemory, MasterCounters, OwnerGauges, RankInfo, RankState, RankStats,
    Term, View,
};
use nkv_store::SegmentLayout;
use nkv_store::layout::Region;

const SECOND_NS: u64 = 1_000_000_000;

fn info(rank: u32) -> RankInfo {
    RankInfo {
        rank,
        segment_id: 0,
        world_size: 3,
        incarnation: 100 + u64::from(rank),
        boot_id: 1,
        numa_node: None,
        rack: Default::default(),
        pid: 7,
        control: "127.0.0.1:1".parse().unwrap(),
        local: None,
        data: None,
        fabric: None,
        http: Some("127.0.0.1:2".to_string()),
        memory: ExportedMemory::Private,
        key_fingerprint: 1,
        prefault: false,
        disk: false,
        layout: SegmentLayout {
            arena: Region { offset: 0, len: 1 << 20 },
            quarantine_ms: 50,
            ..SegmentLayout::default()
        },
    }
}

/// An owner that served `gets` gets of 4 KiB each, and stored half as many objects.
pub(crate) fn owner(gets: u64) -> OwnerGauges {
    OwnerGauges {
        heap_total: 64 << 20,
        heap_used: 16 << 20,
        live_bytes: 12 << 20,
        held_bytes: 4 << 20,
        objects: 3000,
        gets_served: gets,
        bytes_read: gets * 4096,
        commits: gets / 2,
        bytes_written: gets * 2048,
        ..OwnerGauges::default()
    }
}

fn page(rank: u32, gets: u64) -> NodePage {
    let actor = |name: &str| ActorPage { name: name.to_string(), ..ActorPage::default() };
    NodePage {
        incarnation: format!("{:016x}", 100 + rank),
        link: "joined".to_string(),
        owner: Some(owner(gets)),
        actors: vec![actor("owner"), actor("evictor")],
        ..NodePage::default()
    }
}

/// Three ranks at work, `second` seconds after the first sample: each does 100 gets a second, and
/// of 300 lookups a second two thirds are hits.
pub(crate) fn sample(second: u64) -> Sample {
    let ranks = (0..3).map(|rank| (info(rank), RankState::Alive)).collect();
    let term = Term { number: 5, master: 1 };
    let view = View { number: 3, term, world_size: 3, settled: true, ranks, ..View::default() };
    let stats = ClusterStats {
        objects: 9000,
        master: MasterCounters {
            lookup_hits: 200 * second,
            lookup_misses: 100 * second,
            ..MasterCounters::default()
        },
        ranks: (0..3)
            .map(|rank| RankStats {
                rank,
                incarnation: 100 + u64::from(rank),
                heard_ms: 12,
                largest_hole: 30 << 20,
                // As of the last heartbeat: older than what the rank reports itself.
                owner: owner(second * 99),
                ..RankStats::default()
            })
            .collect(),
        ..ClusterStats::default()
    };
    Sample {
        at_ns: 7 * SECOND_NS + second * SECOND_NS,
        master: Ok((view, stats)),
        nodes: (0..3).map(|rank| (rank, Ok(page(rank, second * 100)))).collect(),
    }
}

/// The sample without this rank, whose process is gone; `known`: the master knows it.
pub(crate) fn without(rank: u32, known: bool, mut sample: Sample) -> Sample {
    sample.nodes.insert(rank, Err("Connection refused".to_string()));
    if let (true, Ok((view, stats))) = (known, &mut sample.master) {
        view.ranks.retain(|(info, _)| info.rank != rank);
        stats.ranks.retain(|r| r.rank != rank);
    }
    sample
}

/// The master's process is gone too.
pub(crate) fn headless(sample: Sample) -> Sample {
    Sample { master: Err("Disconnected: refused".to_string()), ..without(0, false, sample) }
}

fn states(screen: &Screen) -> Vec<(&str, Health)> {
    screen.ranks.iter().map(|r| (r.state.as_str(), r.health)).collect()
}

#[test]
fn rates_and_ratios_are_of_the_time_between_two_looks() {
    let mut model = Model::new("j".to_string());
    let first = model.update(sample(0));
    assert_eq!((first.members, first.world_size), (3, 3));
    assert!(first.ranks.iter().all(|r| r.rates.is_none()), "nothing to compare with yet");
    let master = first.master.unwrap();
    assert_eq!((master.hit_ratio, master.hit_ratio_total), (None, None));
    let second = model.update(sample(2));
    let rates = second.ranks[1].rates.unwrap();
    assert_eq!((rates.gets, rates.puts, rates.bytes_read), (100.0, 50.0, 409_600.0));
    assert_eq!(second.total.gets, 300.0);
    let master = second.master.unwrap();
    assert_eq!(master.lookups_per_s, Some(300.0));
    assert!((master.hit_ratio.unwrap() - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(second.history, [(409_600 + 204_800) * 3]);
}

#[test]
fn a_rank_that_dies_is_unreachable_then_gone_and_others_go_on() {
    let mut model = Model::new("j".to_string());
    model.update(sample(0));
    let dying = model.update(without(1, false, sample(1)));
    assert_eq!(states(&dying)[1], ("unreachable", Health::Bad));
    assert_eq!(dying.ranks[1].silent.as_deref(), Some("Connection refused"));
    assert!(dying.ranks[1].actors.is_empty());
    let gone = model.update(without(1, true, sample(2)));
    assert_eq!(states(&gone)[1], ("gone", Health::Bad));
    assert!(gone.ranks[1].heap.is_none() && gone.ranks[1].rates.is_none());
    assert_eq!((gone.members, gone.total.gets), (2, 200.0));
}

#[test]
fn a_rank_that_never_joined_is_missing_and_one_without_http_is_shown_so() {
    let mut model = Model::new("j".to_string());
    assert_eq!(states(&model.update(without(2, true, sample(0))))[2], ("missing", Health::Bad));
    let mut drains = sample(1);
    if let Ok((view, _)) = &mut drains.master {
        view.ranks[0].1 = RankState::Draining;
        view.ranks[1].1 = RankState::Suspect;
        view.ranks[2].0.http = None;
    }
    drains.nodes.remove(&2);
    let screen = model.update(drains);
    let words: Vec<&str> = states(&screen).iter().map(|s| s.0).collect();
    assert_eq!(words, ["draining", "suspect", "alive"]);
    assert!(screen.ranks[2].silent.as_ref().unwrap().contains("--http off"));
    assert_eq!(screen.ranks[2].heap.unwrap().gets_served, 99, "as the master heard it");
}

#[test]
fn without_the_master_ranks_speak_for_themselves() {
    let mut model = Model::new("j".to_string());
    model.update(sample(0));
    let mut lost = headless(sample(3));
    if let Some(Ok(page)) = lost.nodes.get_mut(&2) {
        page.link = "lost: the master's link broke".to_string();
    }
    let screen = model.update(lost);
    assert_eq!(screen.master_lost, Some(("Disconnected: refused".to_string(), 3_000)));
    let words: Vec<&str> = states(&screen).iter().map(|s| s.0).collect();
    assert_eq!(words, ["unreachable", "alive", "lost"]);
    assert_eq!(screen.ranks[1].rates.unwrap().gets, 100.0);
    assert_eq!((screen.ranks[1].hole, screen.ranks[1].heard_ms), (None, None));
}

#[test]
fn a_new_master_and_a_random_u64_count_from_zero() {
    let mut model = Model::new("j".to_string());
    model.update(sample(50));
    let mut fresh = sample(51);
    if let Ok((view, stats)) = &mut fresh.master {
        view.term.number += 1;
        stats.master.lookup_hits = 3;
        view.ranks[1].0.incarnation = 999;
        stats.ranks[1].incarnation = 999;
    }
    let screen = model.update(fresh);
    assert_eq!(screen.master.unwrap().hit_ratio, None, "another master's counters say nothing");
    assert!(screen.ranks[1].rates.is_none() && screen.ranks[2].rates.is_some());
}

#[test]
fn actors_tell_their_state_restarts_and_trouble() {
    let mut model = Model::new("j".to_string());
    let mut sick = sample(0);
    if let Some(Ok(page)) = sick.nodes.get_mut(&1) {
        page.actors[0].state = "frozen".to_string();
        page.actors[0].frozen_in = Some("Touches".to_string());
        page.actors[1].restarts = 2;
        page.actors[1].last_error = Some("index out of bounds".to_string());
    }
    let screen = model.update(sick);
    let [owner, evictor] = &screen.ranks[1].actors[..] else { panic!("{screen:?}") };
    assert_eq!((owner.health, owner.state.as_str()), (Health::Bad, "frozen"));
    assert_eq!(owner.fault.as_deref(), Some("frozen in Touches"));
    assert_eq!((evictor.health, evictor.restarts), (Health::Odd, 2));
    assert_eq!(evictor.fault.as_deref(), Some("last panic: index out of bounds"));
}
