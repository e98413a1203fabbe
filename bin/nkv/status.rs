//! `nkv status`: the members, their addresses, and how full they are.

use crate::cli_error::CliError;
use crate::{Cluster, output};
use nkv::Address;
use nkv::message::{ClusterStats, OwnerGauges, RankState, RefusedRank, View};
use nkv_programs::sizes::show_bytes;
use serde::Serialize;

/// What is shown, and what `--json` prints.
#[derive(Debug, Serialize)]
struct Status {
    world_size: u32,
    members: usize,
    /// False while these are too few: then the master serves nothing.
    serves: bool,
    view: u64,
    /// The rank that is master, and its term.
    master: u32,
    term: u64,
    objects: u64,
    plans_open: u64,
    /// Which rank gets a new object.
    placement: String,
    /// Objects that have fewer replicas than they should, and are being given more.
    replicas_missing: u64,
    ranks: Vec<Rank>,
    missing: Vec<u32>,
    /// Ranks whose link to the master is down: gone after a TTL, unless they reconnect.
    link_down: Vec<u32>,
    /// Ranks that run and that the master refused.
    refused: Vec<RefusedRank>,
}

#[derive(Debug, Serialize)]
struct Rank {
    rank: u32,
    segment_id: u32,
    state: String,
    incarnation: String,
    pid: u32,
    /// The rack of its host; `/` if it is not known.
    rack: String,
    numa_node: Option<u32>,
    control: String,
    local: Option<String>,
    data: Option<String>,
    fabric: Option<String>,
    segment: String,
    heap_used: u64,
    heap_total: u64,
    log_live: u64,
    log_total: u64,
    objects: u64,
    log_objects: u64,
    disk_used: u64,
    disk_total: u64,
    disk_objects: u64,
    heard_ms: Option<u64>,
}

/// Prints it.
pub(crate) fn show(
    view: &View,
    stats: &ClusterStats,
    cluster: &Cluster<'_>,
) -> Result<u8, CliError> {
    let status = status(view, stats);
    cluster.show(&status, || text(&status))
}

fn status(view: &View, stats: &ClusterStats) -> Status {
    let mut ranks: Vec<Rank> = Vec::new();
    for (info, state) in &view.ranks {
        // The two answers were given at different times: a rank may be in only one of them.
        let figures = stats.ranks.iter().find(|r| r.incarnation == info.incarnation);
        let unknown = OwnerGauges { heap_total: info.layout.arena.len, ..OwnerGauges::default() };
        let owner = figures.map_or(unknown, |f| f.owner);
        ranks.push(Rank {
            rank: info.rank,
            segment_id: info.segment_id,
            state: state.to_string(),
            incarnation: format!("{:016x}", info.incarnation),
            pid: info.pid,
            rack: info.rack.to_string(),
            numa_node: info.numa_node,
            control: info.control.bare(),
            local: info.local.as_ref().map(Address::bare),
            data: info.data.clone(),
            fabric: info.fabric.clone(),
            segment: info.memory.name().unwrap_or_default().to_string(),
            heap_used: owner.heap_used,
            heap_total: owner.heap_total,
            log_live: owner.log_live_bytes,
            log_total: owner.log_total,
            objects: owner.objects,
            log_objects: owner.log_objects,
            disk_used: owner.disk_used,
            disk_total: owner.disk_total,
            disk_objects: owner.disk_objects,
            heard_ms: figures.map(|f| f.heard_ms),
        });
    }
    ranks.sort_by_key(|r| (r.rank, r.segment_id));
    let is_member = |n: &u32| view.nodes().any(|(info, _)| info.rank == *n);
    let missing: Vec<u32> = (0..view.world_size).filter(|n| !is_member(n)).collect();
    let down = view.nodes().filter(|(_, state)| *state == RankState::Suspect);
    let link_down: Vec<u32> = down.map(|(info, _)| info.rank).collect();
    let mut refused = stats.refused.clone();
    refused.retain(|r| missing.contains(&r.rank));
    Status {
        world_size: view.world_size,
        members: view.linked().count(),
        serves: view.has_quorum(),
        view: view.number,
        master: view.master,
        term: view.term.number,
        objects: stats.objects,
        plans_open: stats.plans_open,
        placement: view.placement.to_string(),
        replicas_missing: stats.master.repairs_waiting,
        ranks,
        missing,
        link_down,
        refused,
    }
}

fn text(status: &Status) -> String {
    // Columns for racks, device logs and disks, where there are any.
    let racks = status.ranks.iter().any(|r| r.rack != "/");
    let logs = status.ranks.iter().any(|r| r.log_total > 0);
    let disks = status.ranks.iter().any(|r| r.disk_total > 0);
    let mut header =
        vec!["rank", "segment", "state", "control", "data", "incarnation", "pid", "heap", "of"];
    header.push("objects");
    if logs {
        header.extend(["log", "of", "objects"]);
    }
    if disks {
        header.extend(["disk", "of", "objects"]);
    }
    if racks {
        header.push("rack");
    }
    header.push("heard");
    let mut table = output::table(&header, 6);
    for r in &status.ranks {
        let heard = r.heard_ms.map_or("-".to_string(), |ms| format!("{ms} ms ago"));
        let mut row = vec![
            r.rank.to_string(),
            r.segment_id.to_string(),
            r.state.clone(),
            r.control.clone(),
            r.data.clone().unwrap_or_else(|| "-".to_string()),
            r.incarnation.clone(),
            r.pid.to_string(),
            show_bytes(r.heap_used),
            show_bytes(r.heap_total),
            r.objects.to_string(),
        ];
        if logs {
            row.extend([show_bytes(r.log_live), show_bytes(r.log_total)]);
            row.push(r.log_objects.to_string());
        }
        if disks {
            row.extend([show_bytes(r.disk_used), show_bytes(r.disk_total)]);
            row.push(r.disk_objects.to_string());
        }
        if racks {
            row.push(r.rack.clone());
        }
        row.push(heard);
        table.add_row(row);
    }
    for rank in &status.missing {
        let refused = status.refused.iter().any(|r| r.rank == *rank);
        let state = if refused { "refused" } else { "missing" };
        let mut row = vec![rank.to_string(), "-".to_string(), state.to_string()];
        row.resize(header.len(), "-".to_string());
        table.add_row(row);
    }
    format!(
        "{}\n{} of {} ranks, {} objects, {} plans open; master: rank {}, term {}; placement: \
         {}\n{}{}{}{}",
        output::lines(&table),
        status.members,
        status.world_size,
        status.objects,
        status.plans_open,
        status.master,
        status.term,
        status.placement,
        too_few(status),
        replicas(status),
        links_down(status),
        refusals(status)
    )
}

/// A line about a master that serves nothing.
fn too_few(status: &Status) -> String {
    if status.serves {
        return String::new();
    }
    format!(
        "the master serves nothing: {} of {} ranks are linked to it, and it needs more than half, \
         or half with rank 0: start the others\n",
        status.members, status.world_size
    )
}

/// A line about replicas that are missing.
fn replicas(status: &Status) -> String {
    match status.replicas_missing {
        0 => String::new(),
        1 => "1 object lacks replicas: more are made as other ranks have room; add a rank if this \
              stays\n"
            .to_string(),
        n => format!(
            "{n} objects lack replicas: more are made as other ranks have room; add a rank if this \
             stays\n"
        ),
    }
}

/// Lines about ranks that are known and whose link is down.
fn links_down(status: &Status) -> String {
    let one = |rank: &u32| {
        let row = status.ranks.iter().find(|r| r.rank == *rank && r.segment_id == 0);
        let heard = row.and_then(|r| r.heard_ms);
        let ago = heard.map_or_else(String::new, |ms| format!(", last heard of {ms} ms ago"));
        format!("rank {rank}: its link to the master is down{ago}\n")
    };
    status.link_down.iter().map(one).collect()
}

fn refusals(status: &Status) -> String {
    let one = |r: &RefusedRank| {
        format!("rank {} (pid {}) was refused {} ms ago: {}\n", r.rank, r.pid, r.ago_ms, r.why)
    };
    status.refused.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::{status, text};
    use nkv::message::{
        ClusterStats, OwnerGauges, RankInfo, RankState, RankStats, RefusedRank, View,
    };
    use nkv_store::SegmentLayout;
    use nkv_store::layout::Region;

    fn info(rank: u32) -> RankInfo {
        RankInfo {
            rank,
            segment_id: 0,
            world_size: 3,
            incarnation: 16 + u64::from(rank),
            boot_id: 1,
            numa_node: None,
            rack: Default::default(),
            pid: 7,
            control: "127.0.0.1:1".parse().unwrap(),
            local: Some("unix:///s".parse().unwrap()),
            data: None,
            fabric: None,
            http: None,
            memory: Some("nkv.j.0.1".to_string()).into(),
            prefault: true,
            disk: false,
            key_fingerprint: 1,
            layout: SegmentLayout {
                arena: Region { offset: 0, len: 1 << 20 },
                quarantine_ms: 50,
                ..SegmentLayout::default()
            },
        }
    }

    fn cluster() -> (View, ClusterStats) {
        let ranks = vec![(info(2), RankState::Draining), (info(0), RankState::Alive)];
        let owner =
            OwnerGauges { heap_total: 4096, heap_used: 1024, objects: 5, ..OwnerGauges::default() };
        let known =
            RankStats { rank: 2, incarnation: 18, heard_ms: 9, owner, ..RankStats::default() };
        let view = View { world_size: 3, ranks, ..View::default() };
        (view, ClusterStats { objects: 5, ranks: vec![known], ..ClusterStats::default() })
    }

    #[test]
    fn ranks_are_shown_in_order_with_their_figures_and_who_is_missing() {
        let (view, stats) = cluster();
        let found = status(&view, &stats);
        let numbers: Vec<_> =
            found.ranks.iter().map(|r| (r.rank, r.objects, r.heap_total)).collect();
        assert_eq!(numbers, [(0, 0, 1 << 20), (2, 5, 4096)]);
        assert_eq!((found.missing.as_slice(), found.members), (&[1][..], 2));
        assert_eq!((found.ranks[0].heard_ms, found.ranks[1].heard_ms), (None, Some(9)));
        let text = text(&found);
        assert!(text.contains("missing") && text.contains("9 ms ago"), "{text}");
        assert!(
            text.ends_with(
                "2 of 3 ranks, 5 objects, 0 plans open; master: rank 0, term 0; placement: hash\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_rank_without_a_link_does_not_count_and_one_that_is_refused_is_said_to_run() {
        let (mut view, mut stats) = cluster();
        view.ranks[0].1 = RankState::Suspect;
        stats.refused = vec![RefusedRank { rank: 1, pid: 8, why: "its world".into(), ago_ms: 70 }];
        let found = status(&view, &stats);
        assert_eq!((found.members, found.link_down.as_slice()), (1, &[2][..]));
        let text = text(&found);
        let end = "1 of 3 ranks, 5 objects, 0 plans open; master: rank 0, term 0; placement: hash\n\
                   the master serves nothing: 1 of 3 ranks are linked to it, and it needs more \
                   than half, or half with rank 0: start the others\n\
                   rank 2: its link to the master is down, last heard of 9 ms ago\n\
                   rank 1 (pid 8) was refused 70 ms ago: its world\n";
        assert!(text.ends_with(end), "{text}");
        assert!(text.contains(" refused ") && !text.contains("missing"), "{text}");
    }

    #[test]
    fn racks_and_missing_replicas_are_shown_where_there_are_any() {
        let (mut view, mut stats) = cluster();
        assert!(!text(&status(&view, &stats)).contains("rack"));
        view.ranks[0].0.rack = "/dc1/r7".parse().unwrap();
        view.placement = nkv::Placement::Topology;
        stats.master.repairs_waiting = 4;
        let shown = text(&status(&view, &stats));
        for part in [" rack ", "/dc1/r7", "placement: topology\n", "4 objects lack replicas"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn a_device_log_has_columns_of_its_own_where_a_rank_has_one() {
        let (view, mut stats) = cluster();
        let lines = |stats: &ClusterStats| text(&status(&view, stats));
        assert!(!lines(&stats).contains(" log "), "{}", lines(&stats));
        let o = &mut stats.ranks[0].owner;
        (o.log_total, o.log_live_bytes, o.log_objects) = (64 << 20, 3 << 20, 768);
        let shown = lines(&stats);
        for part in [" log ", "64 MiB", "3 MiB", "768"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn a_mounted_segment_has_a_row_of_its_own_and_makes_no_member() {
        let (mut view, mut stats) = cluster();
        let mounted = RankInfo { segment_id: 1, incarnation: 99, ..info(2) };
        view.ranks.insert(0, (mounted, RankState::Alive));
        let owner = OwnerGauges { heap_total: 8192, objects: 7, ..OwnerGauges::default() };
        let row = RankStats { rank: 2, segment: 1, incarnation: 99, owner, ..RankStats::default() };
        stats.ranks.push(row);
        let found = status(&view, &stats);
        let rows: Vec<_> = found.ranks.iter().map(|r| (r.rank, r.segment_id, r.objects)).collect();
        assert_eq!(rows, [(0, 0, 0), (2, 0, 5), (2, 1, 7)]);
        assert_eq!((found.missing.as_slice(), found.members), (&[1][..], 2));
        assert!(text(&found).ends_with(
            "2 of 3 ranks, 5 objects, 0 plans open; master: rank 0, term 0; placement: hash\n"
        ));
    }

    #[test]
    fn the_json_names_what_scripts_read() {
        let (view, stats) = cluster();
        let json = serde_json::to_value(status(&view, &stats)).unwrap();
        assert_eq!(json["ranks"][1]["rank"], 2);
        assert_eq!(json["ranks"][1]["objects"], 5);
        assert_eq!(json["ranks"][1]["state"], "draining");
        assert_eq!(json["ranks"][1]["incarnation"], "0000000000000012");
        assert_eq!(json["ranks"][1]["local"], "/s");
        assert_eq!(json["world_size"], 3);
    }
}
