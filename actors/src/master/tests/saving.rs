//! Saving on request: which disks are asked, and what the answer says.

use super::bench::{Bench, Rank, info, key};
use super::disk::{answers, end, question, two_disks};
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskAnswer, DiskQuestion, OwnerToMaster, RankInfo, Request, Response, SeenView, Term,
};
use tokio::task::JoinHandle;

fn save(k: &str, disks: &[Option<u32>]) -> Request {
    Request::SaveToDisk { keys: vec![key(k)], disks: disks.to_vec() }
}

async fn saved(asked: JoinHandle<Response>) -> std::result::Result<Vec<u32>, ErrorKind> {
    match end(asked).await {
        Response::OnDisks(mut list) => list.remove(0).map_err(|e| e.kind()),
        Response::Failed(e) => Err(e.kind()),
        other => panic!("{other:?}"),
    }
}

async fn is_asked_to_save(rank: &mut Rank, k: &str) -> u64 {
    let (number, asked) = rank.receives(question).await;
    assert_eq!(asked, DiskQuestion::Save(vec![key(k)]));
    number
}

fn has_it() -> DiskAnswer {
    DiskAnswer { found: vec![(0, 4096)], ..DiskAnswer::default() }
}

#[tokio::test]
async fn the_disk_of_a_rank_that_has_the_object_is_asked_and_others_if_more_are_wanted() {
    let (bench, mut first, mut second) = two_disks().await;
    bench.put(1, "k", &mut second).await;
    let asked = bench.asks(save("k", &[None]));
    let number = is_asked_to_save(&mut second, "k").await;
    answers(&second, number, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![1]));
    // By name, wherever it is in memory.
    let asked = bench.asks(save("k", &[Some(0)]));
    let number = is_asked_to_save(&mut first, "k").await;
    answers(&first, number, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![0]));
    let asked = bench.asks(save("k", &[None, None, None]));
    let (of_first, of_second) =
        (is_asked_to_save(&mut first, "k").await, is_asked_to_save(&mut second, "k").await);
    let failed = vec![(0, Error::not_ready("the disk is full"))];
    answers(&first, of_first, DiskAnswer { not_done: failed, ..DiskAnswer::default() }).await;
    answers(&second, of_second, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![1]), "there is no third, and the first failed");
}

#[tokio::test]
async fn the_reason_of_the_only_disk_is_the_answer() {
    let (bench, mut first, _second) = two_disks().await;
    bench.put(0, "k", &mut first).await;
    let asked = bench.asks(save("k", &[None]));
    let number = is_asked_to_save(&mut first, "k").await;
    let not_done = vec![(0, Error::invalid("another object is there"))];
    answers(&first, number, DiskAnswer { not_done, ..DiskAnswer::default() }).await;
    assert_eq!(saved(asked).await, Err(ErrorKind::InvalidArgument));
}

#[tokio::test]
async fn what_is_on_disk_alone_is_saved_there_and_what_is_nowhere_is_not_found() {
    let (bench, mut first, mut second) = two_disks().await;
    for (found, expected) in
        [(vec![(0, 4096)], Ok(vec![0])), (Vec::new(), Err(ErrorKind::NotFound))]
    {
        let asked = bench.asks(save("k", &[None]));
        for (rank, found) in [(&mut first, found), (&mut second, Vec::new())] {
            let (number, asked) = rank.receives(question).await;
            assert_eq!(asked, DiskQuestion::Find(vec![key("k")]));
            answers(rank, number, DiskAnswer { found, ..DiskAnswer::default() }).await;
        }
        assert_eq!(saved(asked).await, expected);
    }
}

#[tokio::test]
async fn a_disk_that_takes_long_goes_on_and_the_caller_asks_again() {
    let (bench, mut first, _second) = two_disks().await;
    bench.put(0, "k", &mut first).await;
    let asked = bench.asks(save("k", &[None]));
    is_asked_to_save(&mut first, "k").await;
    for _ in 0..10 {
        bench.clock.advance_ms(200);
        first.sends(OwnerToMaster::Retired(Vec::new())).await;
        bench.ticks().await;
    }
    assert_eq!(saved(asked).await, Err(ErrorKind::Timeout));
}

#[tokio::test]
async fn a_rank_without_a_disk_is_an_error_of_its_own() {
    let bench = Bench::new(2).await;
    let mut ranks = Vec::new();
    for (rank, disk) in [(0, true), (1, false)] {
        let info = RankInfo { disk, ..info(rank, 100 + u64::from(rank), 2) };
        let joined = bench.joins(info, Term::default(), false, SeenView::default()).await;
        let mut joined = joined.unwrap();
        joined.reports(Vec::new()).await;
        ranks.push(joined);
    }
    bench.put(1, "k", &mut ranks[1]).await;
    for rank in [1, 2] {
        let asked = bench.asks(save("k", &[Some(rank)]));
        assert_eq!(saved(asked).await, Err(ErrorKind::InvalidArgument));
    }
    // Without a name the other one takes it, though it is not in its memory.
    let asked = bench.asks(save("k", &[None]));
    let number = is_asked_to_save(&mut ranks[0], "k").await;
    answers(&ranks[0], number, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![0]));
    assert_eq!(bench.found("k").await.map(|at| at.incarnation), Ok(101));
}
