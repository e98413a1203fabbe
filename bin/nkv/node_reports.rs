//! What `nkv status` asks: the master; and while the master cannot be reached, each node that the
//! user named, for its own state. It prints what the nodes report and concludes nothing from it.

use crate::cli_error::CliError;
use crate::retry_policy::is_starting;
use crate::{Cluster, output, status};
use nkv::message::{ClusterStats, NodeReport, View};
use nkv::{Address, Client, ClientConfig, Error};
use nkv_programs::sizes::show_bytes;
use nkv_programs::{endpoints, exit};
use nkv_store::clock::{BootClock, Clock};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A node's answer.
type Answer = (Address, Result<NodeReport, Error>);

/// Why the master did not answer, and the nodes' own reports.
type NoMaster = (CliError, Vec<Answer>);

/// `nkv status`: prints the master's answer. If there is none, prints the nodes' reports, and fails
/// with the error of the master's call.
pub(crate) fn status(cluster: &Cluster<'_>) -> Result<u8, CliError> {
    cluster.flags.fabric.find().map_err(CliError::usage)?;
    let asking = || cluster.runtime.block_on(ask(&cluster.nodes, &cluster.config));
    let (why, answers) = match cluster.retry.retry(|(why, _)| nobody_listens(why), asking) {
        Ok((view, stats)) => return status::show(&view, &stats, cluster),
        Err(failed) => failed,
    };
    // If no node answered, the error alone is printed.
    if answers.iter().any(|(_, answer)| answer.is_ok()) {
        cluster.show(&object(&answers, &why), || text(&answers))?;
        if matches!(why, CliError::Connect(_)) && answers.len() > 1 {
            return Err(CliError::NoMaster(answers.len()));
        }
    }
    Err(why)
}

/// True if nothing listens at any of the nodes yet.
fn nobody_listens(why: &CliError) -> bool {
    matches!(why, CliError::Connect(none) if none.all(is_starting))
}

/// The master's answer. If there is none, each node's report: all within the limit of one call. The
/// nodes are asked when half of that limit is over, or as soon as the request to the master has
/// failed.
///
/// # Errors
/// With the nodes' reports, if the master was not reached.
async fn ask(nodes: &[Address], config: &ClientConfig) -> Result<(View, ClusterStats), NoMaster> {
    let limit = Duration::from_millis(config.call_timeout_ms);
    let begun_ms = BootClock.now_ms();
    // Dropping the set ends what it does.
    let mut late = JoinSet::new();
    let ask_nodes = |late: &mut JoinSet<_>| {
        let spent = BootClock.now_ms().saturating_sub(begun_ms);
        let left = config.call_timeout_ms.saturating_sub(spent).max(1);
        late.spawn(reports(
            nodes.to_vec(),
            ClientConfig { call_timeout_ms: left, ..config.clone() },
        ));
    };
    let master = async {
        let client = endpoints::connect(nodes, config).await?;
        Ok((client.membership().await?, client.stats().await?))
    };
    let mut master = std::pin::pin!(master);
    let answer = match timeout(limit / 2, &mut master).await {
        Ok(answer) => answer,
        Err(_) => {
            ask_nodes(&mut late);
            timeout(limit / 2, master).await.unwrap_or_else(|_| {
                let ms = limit.as_millis();
                let why = format!("the master did not answer within {ms} ms");
                Err(CliError::Call(Error::timeout(why)))
            })
        }
    };
    let why = match answer {
        Ok(answer) => return Ok(answer),
        Err(why) => why,
    };
    if nobody_listens(&why) || why.exit_code() != exit::UNREACHED {
        return Err((why, Vec::new()));
    }
    if late.is_empty() {
        ask_nodes(&mut late);
    }
    let answers = late.join_next().await.and_then(Result::ok);
    Err((why, answers.unwrap_or_default()))
}

/// Asks every node at the same time.
async fn reports(nodes: Vec<Address>, config: ClientConfig) -> Vec<Answer> {
    let ask = |node: Address| {
        let config = config.clone();
        tokio::spawn(async move {
            let answer = Client::report_of(&node, &config).await;
            (node, answer)
        })
    };
    let asked: Vec<_> = nodes.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for one in asked {
        answers.extend(one.await);
    }
    answers
}

fn object(answers: &[Answer], why: &CliError) -> Value {
    let one = |(node, answer): &Answer| match answer {
        Ok(report) => json!({ "address": node.to_string(), "rank": rank(report) }),
        Err(error) => json!({
            "address": node.to_string(),
            "error": { "kind": error.kind().to_string(), "message": error.message() },
        }),
    };
    let nodes: Vec<_> = answers.iter().map(one).collect();
    json!({ "master": null, "why": why.to_string(), "nodes": nodes })
}

/// A report with incarnations and addresses as `nkv status --json` writes them.
fn rank(report: &NodeReport) -> Value {
    let mut rank = json!(report);
    let seen = report.seen.incarnations.iter().map(|incarnation| format!("{incarnation:016x}"));
    rank["seen"]["incarnations"] = seen.collect();
    rank["master"] = report.master.as_ref().map(Address::to_string).into();
    rank
}

fn text(answers: &[Answer]) -> String {
    let mut text = "the master is not reached; what these nodes know by themselves:\n".to_string();
    let mut shown: Option<&NodeReport> = None;
    for (node, answer) in answers {
        text += &match (answer, shown) {
            (Err(error), _) => format!("\n{node}: no answer: {}\n", error.message()),
            (Ok(report), Some(first)) if report.view == first.view => {
                let same = format!(
                    "  its last view has the same members as that of rank {}\n",
                    first.rank
                );
                format!("\n{node}: {}{same}", of_node(report))
            }
            (Ok(report), _) => {
                shown.get_or_insert(report);
                format!("\n{node}: {}{}", of_node(report), last_members(report))
            }
        };
    }
    text
}

fn of_node(report: &NodeReport) -> String {
    let draining = if report.draining { ", draining" } else { "" };
    let mut text = format!(
        "rank {} of {}, pid {}, up {}{draining}\n",
        report.rank,
        report.world_size,
        report.pid,
        ago(report.uptime_ms)
    );
    let first = report.segments.first();
    let link = first.map_or_else(String::new, |s| format!("for {}: {}", ago(s.link_ms), s.link));
    match &report.master {
        Some(master) => text += &format!("  link to the master {master}, {link}\n"),
        None => text += &format!("  it is the master; its own link to it, {link}\n"),
    }
    let header = ["  segment", "incarnation", "heap", "of", "objects", "plans"];
    let mut table = output::table(&header, 2);
    for s in &report.segments {
        table.add_row(vec![
            format!("  {}", s.segment),
            format!("{:016x}", s.incarnation),
            show_bytes(s.owner.heap_used),
            show_bytes(s.owner.heap_total),
            (s.owner.objects + s.owner.log_objects).to_string(),
            s.owner.plans_open.to_string(),
        ]);
    }
    text += &output::lines(&table);
    text + &format!(
        "  it obeys term {} and keeps view {} of term {}, of {} segments\n",
        report.term.number,
        report.seen.number,
        report.seen.term.number,
        report.seen.incarnations.len()
    )
}

/// The members in the last view that the node's handle received, which may be old.
fn last_members(report: &NodeReport) -> String {
    if report.view.ranks.is_empty() {
        return "  it has not received a view of the members yet\n".to_string();
    }
    let header = ["  last view", "segment", "state then", "control", "incarnation", "pid"];
    let mut table = output::table(&header, header.len());
    for (info, state) in &report.view.ranks {
        table.add_row(vec![
            format!("  rank {}", info.rank),
            info.segment_id.to_string(),
            state.to_string(),
            info.control.bare(),
            format!("{:016x}", info.incarnation),
            info.pid.to_string(),
        ]);
    }
    output::lines(&table)
}

/// A length of time with its unit, rounded down.
fn ago(ms: u64) -> String {
    match ms / 1_000 {
        s if s < 10 => format!("{}.{} s", s, ms % 1_000 / 100),
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::{ago, object, text};
    use crate::cli_error::CliError;
    use nkv::Error;
    use nkv::message::{NodeReport, OwnerGauges, SeenView, SegmentReport, Term, View};

    fn report() -> NodeReport {
        let owner = OwnerGauges { heap_total: 1 << 20, objects: 3, ..OwnerGauges::default() };
        let term = Term { number: 2, master: 9 };
        let link = "lost: the master closed the link".to_string();
        NodeReport {
            rank: 1,
            world_size: 3,
            pid: 77,
            uptime_ms: 61_000,
            draining: false,
            master: Some("h:7400".parse().unwrap()),
            term,
            seen: SeenView { term, number: 5, incarnations: vec![1, 2, 3] },
            view: View::default(),
            segments: vec![SegmentReport {
                segment: 0,
                incarnation: 0x11,
                link,
                link_ms: 2_500,
                owner,
            }],
        }
    }

    #[test]
    fn each_node_is_shown_with_its_report_or_its_error() {
        let answers = [
            ("h:1".parse().unwrap(), Err(Error::disconnected("cannot connect"))),
            ("h:2".parse().unwrap(), Ok(report())),
        ];
        let printed = text(&answers);
        assert!(printed.contains("tcp://h:1: no answer: cannot connect\n"), "{printed}");
        assert!(printed.contains("tcp://h:2: rank 1 of 3, pid 77, up 61 s\n"), "{printed}");
        let link = "tcp://h:7400, for 2.5 s: lost: the master closed the link\n";
        assert!(printed.contains(link), "{printed}");
        assert!(printed.contains("view 5 of term 2, of 3 segments"), "{printed}");
        let json = object(&answers, &CliError::from(Error::disconnected("x")));
        assert_eq!(json["nodes"][1]["rank"]["segments"][0]["owner"]["objects"], 3);
        assert_eq!(json["nodes"][0]["error"]["kind"], "Disconnected");
        let rank = &json["nodes"][1]["rank"];
        assert_eq!((&rank["master"], &rank["term"]["number"]), (&"tcp://h:7400".into(), &2.into()));
        assert_eq!(rank["seen"]["incarnations"][2], "0000000000000003");
        assert!(json["master"].is_null());
        let again = ("h:3".parse().unwrap(), Ok(NodeReport { rank: 2, ..report() }));
        let [one, two] = answers;
        let printed = text(&[one, two, again]);
        assert!(
            printed.ends_with("  its last view has the same members as that of rank 1\n"),
            "{printed}"
        );
    }

    #[test]
    fn times_are_short() {
        for (ms, printed) in
            [(940, "0.9 s"), (61_000, "61 s"), (600_000, "10 min"), (9_000_000, "2 h")]
        {
            assert_eq!(ago(ms), printed);
        }
    }
}
