//! How each strategy spreads 100,000 keys. The tables in docs/results/placement.md are what these
//! tests print (`cargo test -p nkv-actors --lib placement -- --nocapture`).

use super::distance::{SAME_HOST, SAME_NODE};
use super::{Candidate, FARTHEST, Nearest, Placement, RackPath, Site, best};
use nkv_store::key::key_hash;
use std::fmt::Write;

const KEYS: usize = 100_000;
const OBJECT: u64 = 64 << 10;

/// Puts the keys one after the other; returns how many each rank got.
fn spread(placement: Placement, mut ranks: Vec<Candidate>, world: u32) -> Vec<usize> {
    let strategy = placement.strategy(world);
    let mut got = vec![0; ranks.len()];
    for i in 0..KEYS {
        let hash = key_hash(format!("block/{i}").as_bytes());
        let rank = best(&*strategy, hash, ranks.iter().copied()).unwrap();
        let at = ranks.iter().position(|c| c.rank == rank).unwrap();
        got[at] += 1;
        ranks[at].free_bytes = ranks[at].free_bytes.saturating_sub(OBJECT);
    }
    let mut line = format!("| {placement} |");
    got.iter().for_each(|n| write!(line, " {n} |").unwrap());
    println!("{line}");
    got
}

fn ranks(distances: &[u8]) -> Vec<Candidate> {
    let all = distances.iter().zip(0..);
    all.map(|(distance, rank)| Candidate { rank, distance: *distance, free_bytes: 64 << 30 })
        .collect()
}

/// Within this many standard deviations of a fair share.
fn is_even(got: &[usize]) -> bool {
    let share = KEYS as f64 / got.len() as f64;
    got.iter().all(|n| (*n as f64 - share).abs() < 5.0 * share.sqrt())
}

#[test]
fn hash_random_and_most_free_spread_evenly_over_8_ranks() {
    let alike = ranks(&[FARTHEST; 8]);
    for placement in [Placement::Hash, Placement::Random(0), Placement::Random(7)] {
        let got = spread(placement, alike.clone(), 8);
        assert!(is_even(&got), "{placement}: {got:?}");
    }
    let got = spread(Placement::MostFree, alike, 8);
    assert!(got.iter().all(|n| *n == KEYS / 8), "to the object: {got:?}");
}

#[test]
fn another_seed_draws_other_ranks_and_the_same_seed_the_same() {
    let alike = ranks(&[FARTHEST; 8]);
    let drawn = |seed| -> Vec<u32> {
        let strategy = Placement::Random(seed).strategy(8);
        (0..1_000).map(|key| best(&*strategy, key, alike.iter().copied()).unwrap()).collect()
    };
    assert_eq!(drawn(1), drawn(1));
    let same = drawn(1).iter().zip(drawn(2)).filter(|(a, b)| *a == b).count();
    assert!(same < 200, "{same} of 1000 keys at the same rank, 125 expected");
}

#[test]
fn a_rank_that_leaves_moves_only_its_own_keys() {
    let strategy = Placement::Random(3).strategy(8);
    let all = ranks(&[FARTHEST; 8]);
    for key in 0..10_000 {
        let before = best(&*strategy, key, all.iter().copied()).unwrap();
        let without_5 = all.iter().copied().filter(|c| c.rank != 5);
        let after = best(&*strategy, key, without_5).unwrap();
        assert!(before == 5 || after == before, "key {key}: {before}, then {after}");
    }
}

#[test]
fn most_free_fills_the_larger_memories_first() {
    let mut unequal = ranks(&[FARTHEST; 4]);
    for (candidate, gib) in unequal.iter_mut().zip([8, 4, 2, 1]) {
        candidate.free_bytes = gib << 30;
    }
    let got = spread(Placement::MostFree, unequal.clone(), 4);
    // What is left is equal at all that got any: 100,000 objects are 6.1 GiB.
    let left: Vec<u64> =
        unequal.iter().zip(&got).map(|(c, n)| c.free_bytes - *n as u64 * OBJECT).collect();
    let most = left.iter().max().unwrap();
    let unfair = |i: &usize| got[*i] > 0 && left[*i] + 2 * OBJECT < *most;
    assert_eq!((0..4).find(unfair), None, "{got:?} {left:?}");
}

#[test]
fn local_first_and_topology_spread_evenly_over_the_nearest() {
    // Two NUMA nodes of the writer's host, its rack, another rack.
    let distances = [0, 0, 1, 1, 2, 2, 3, 3];
    let got = spread(Placement::LocalFirst, ranks(&distances), 8);
    assert!(is_even(&got[..4]) && got[4..] == [0; 4], "its host: {got:?}");
    let got = spread(Placement::Topology, ranks(&distances), 8);
    assert!(is_even(&got[..2]) && got[2..] == [0; 6], "its NUMA node: {got:?}");
    let got = spread(Placement::Topology, ranks(&distances)[4..].to_vec(), 8);
    assert!(is_even(&got[..2]) && got[2..] == [0; 2], "its rack: {got:?}");
    let got = spread(Placement::LocalFirst, ranks(&distances)[4..].to_vec(), 8);
    assert!(is_even(&got), "any other: {got:?}");
}

#[test]
fn a_placement_is_written_as_it_is_read() {
    for text in ["hash", "random:7", "most-free", "local-first", "topology"] {
        assert_eq!(text.parse::<Placement>().unwrap().to_string(), text);
    }
    assert_eq!("random".parse(), Ok(Placement::Random(0)));
    for bad in ["", "Hash", "random:", "random:x", "random:-1", "nearest"] {
        assert!(bad.parse::<Placement>().is_err(), "{bad}");
    }
}

/// Hosts and their racks.
fn racks() -> Vec<(u64, RackPath)> {
    let all =
        [(1, "/a/r1"), (2, "/a/r1"), (3, "/a/r2"), (4, "/b/r1"), (5, "/"), (6, "/a"), (7, "/b/r1")];
    all.into_iter().map(|(boot_id, path)| (boot_id, path.parse().unwrap())).collect()
}

/// Where a rank, or a writer, may be: each host, on each NUMA node of two or on none.
fn sites(racks: &[(u64, RackPath)]) -> Vec<Site<'_>> {
    let nodes = [None, Some(0), Some(1)];
    let all = racks.iter().flat_map(|host| nodes.map(|numa_node| (host, numa_node)));
    all.map(|((boot_id, rack), numa_node)| Site { boot_id: *boot_id, numa_node, rack }).collect()
}

#[test]
fn a_distance_grows_from_numa_node_to_host_to_rack_to_row() {
    let racks = racks();
    let all = sites(&racks);
    let at = |host: usize, numa: usize| all[3 * host + numa];
    let own = at(0, 1);
    assert_eq!(own.to(at(0, 1)), SAME_NODE);
    assert_eq!(own.to(at(0, 2)), SAME_HOST);
    assert_eq!(own.to(at(1, 1)), 2, "another host of the rack");
    assert_eq!(own.to(at(2, 1)), FARTHEST - 1, "another rack of the row");
    assert_eq!(own.to(at(3, 1)), FARTHEST, "another row");
    assert_eq!(own.to(at(4, 1)), FARTHEST, "a host whose rack is not known");
    assert_eq!(at(3, 0).to(at(6, 0)), 2);
}

#[test]
fn the_nearest_rank_and_its_distance_give_all_other_distances() {
    let racks = racks();
    let all = sites(&racks);
    for writer in &all {
        for nearest in &all {
            let known = Nearest { rank: 0, distance: writer.to(*nearest) };
            // The ranks of a job in which none is nearer.
            for other in all.iter().filter(|other| writer.to(**other) >= known.distance) {
                let (exact, found) = (writer.to(*other), known.distance(nearest.to(*other)));
                assert_eq!(found, exact, "{writer:?} by {nearest:?} to {other:?}");
            }
        }
    }
}

#[test]
fn in_json_and_on_the_wire_a_placement_is_its_name() {
    let random = Placement::Random(7);
    assert_eq!(serde_json::to_string(&random).unwrap(), "\"random:7\"");
    let coded = bincode::serialize(&random).unwrap();
    assert_eq!(bincode::deserialize::<Placement>(&coded).unwrap(), random);
    assert!(bincode::deserialize::<Placement>(&bincode::serialize("nearest").unwrap()).is_err());
}
