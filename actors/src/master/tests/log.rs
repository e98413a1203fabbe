//! Questions to the owners of device logs whose links fail [I6] [I15].

use super::bench::{Bench, LIMIT, Rank, info, key};
use crate::ErrorKind;
use crate::message::{Down, LogQuestion, RankInfo, Request, Response, SeenView, Term, Up};

async fn joins(bench: &Bench, incarnation: u64, obeyed: Term) -> Rank {
    let info = RankInfo { log_slots: 8, ..info(1, incarnation, 2) };
    bench.joins(info, obeyed, false, SeenView::default()).await.unwrap()
}

/// Two ranks, the second with a log.
async fn with_log() -> (Bench, Rank, Rank) {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    let mut logs = joins(&bench, 101, Term::default()).await;
    first.reports(Vec::new()).await;
    logs.reports(Vec::new()).await;
    (bench, first, logs)
}

async fn is_asked(rank: &mut Rank) -> (u64, LogQuestion) {
    let asked = |d: &Down| match d {
        Down::AskLog { number, question } => Some((*number, question.clone())),
        _ => None,
    };
    rank.hears(asked).await
}

async fn outcome(asked: tokio::task::JoinHandle<Response>) -> Result<(), ErrorKind> {
    match tokio::time::timeout(LIMIT, asked).await.expect("no answer").unwrap() {
        Response::Locations(mut list) => list.remove(0).map(drop).map_err(|e| e.kind),
        Response::Done(mut list) => list.remove(0).map_err(|e| e.kind),
        other => panic!("{other:?}"),
    }
}

/// Time by hand stands still but for this: nothing is waited for to the end of its limit.
fn a_moment_passes(bench: &Bench) {
    bench.clock.advance_ms(50);
}

#[tokio::test]
async fn i15_a_log_whose_owner_was_replaced_is_not_waited_for() {
    for request in [Request::GetLocation(vec![key("k")]), Request::Remove(vec![key("k")])] {
        let (bench, mut first, mut logs) = with_log().await;
        let asked = bench.asks(request);
        is_asked(&mut logs).await;
        logs.hangs_up().await;
        let mut next = joins(&bench, 102, Term::default()).await;
        next.reports(Vec::new()).await;
        a_moment_passes(&bench);
        // A removal also waits until they keep the loss.
        first.drain().await;
        next.drain().await;
        assert_eq!(outcome(asked).await, Err(ErrorKind::NotFound));
    }
}

#[tokio::test]
async fn i15_a_question_that_was_lost_with_its_link_is_asked_on_the_next_one() {
    let (bench, _first, mut logs) = with_log().await;
    let asked = bench.asks(Request::GetLocation(vec![key("k")]));
    let (number, _) = is_asked(&mut logs).await;
    logs.hangs_up().await;
    let mut again = joins(&bench, 101, bench.members.term()).await;
    again.reports(Vec::new()).await;
    let (same, question) = is_asked(&mut again).await;
    assert_eq!(same, number);
    assert!(matches!(question, LogQuestion::Find(keys) if keys.len() == 1));
    again.says(Up::LogAnswer { number, served: Vec::new(), removed: Vec::new() }).await;
    a_moment_passes(&bench);
    assert_eq!(outcome(asked).await, Err(ErrorKind::NotFound));
}
