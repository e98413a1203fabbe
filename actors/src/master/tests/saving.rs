//! Saving on request: which disks are asked, and what the answer says.

use super::bench::{Bench, Rank, info, key};
use super::disk::{answers, end, question, two_disks};
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskAnswer, DiskQuestion, DiskSave, OwnerToMaster, RankInfo, Request, Response, SaveAt,
    SeenView, Term,
};
use tokio::task::JoinHandle;

fn save(k: &str, disks: &[Option<u32>], but: &[u32]) -> Request {
    let at = SaveAt { disks: disks.to_vec(), but: but.to_vec() };
    Request::SaveToDisk { keys: vec![key(k)], at: vec![at] }
}

type Outcomes = std::result::Result<Vec<(u32, Option<ErrorKind>)>, ErrorKind>;

/// For each disk that was asked None, or why it does not have it: `Timeout`, it is at work.
async fn saved(asked: JoinHandle<Response>) -> Outcomes {
    let outcome = |(rank, outcome)| match outcome {
        DiskSave::Done { bytes: 4096 } => (rank, None),
        DiskSave::Done { bytes } => panic!("{bytes} bytes"),
        DiskSave::AtWork => (rank, Some(ErrorKind::Timeout)),
        DiskSave::Failed(e) => (rank, Some(e.kind())),
    };
    match end(asked).await {
        Response::OnDisks(mut list) => {
            let of_key = list.remove(0).map_err(|e| e.kind())?;
            Ok(of_key.into_iter().map(outcome).collect())
        }
        Response::Failed(e) => Err(e.kind()),
        other => panic!("{other:?}"),
    }
}

async fn is_asked_to_save(rank: &mut Rank, k: &str) -> u64 {
    let (number, asked) = rank.receives(question).await;
    assert_eq!(asked, DiskQuestion::Save(vec![key(k)]));
    number
}

/// These disks say that they have nothing of it.
async fn find_nothing<const N: usize>(ranks: [&mut Rank; N], k: &str) {
    for rank in ranks {
        let (number, asked) = rank.receives(question).await;
        assert_eq!(asked, DiskQuestion::Find(vec![key(k)]));
        answers(rank, number, DiskAnswer::default()).await;
    }
}

fn has_it() -> DiskAnswer {
    DiskAnswer { found: vec![(0, 4096)], ..DiskAnswer::default() }
}

fn failed(error: Error) -> DiskAnswer {
    DiskAnswer { not_done: vec![(0, error)], ..DiskAnswer::default() }
}

#[tokio::test]
async fn the_disk_of_a_rank_that_has_the_object_is_asked_and_others_if_more_are_wanted() {
    let (bench, mut first, mut second) = two_disks().await;
    bench.put(1, "k", &mut second).await;
    let asked = bench.asks(save("k", &[None], &[]));
    find_nothing([&mut first, &mut second], "k").await;
    let number = is_asked_to_save(&mut second, "k").await;
    answers(&second, number, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![(1, None)]));
    // By name, wherever it is in memory; and where those that have it are not meant.
    for (disks, but) in [(Some(0), vec![]), (None, vec![1])] {
        let asked = bench.asks(save("k", &[disks], &but));
        find_nothing([&mut first, &mut second], "k").await;
        let number = is_asked_to_save(&mut first, "k").await;
        answers(&first, number, has_it()).await;
        assert_eq!(saved(asked).await, Ok(vec![(0, None)]));
    }
    let asked = bench.asks(save("k", &[None], &[0, 1]));
    find_nothing([&mut first, &mut second], "k").await;
    assert_eq!(saved(asked).await, Ok(vec![]));
    let asked = bench.asks(save("k", &[None, None, None], &[]));
    find_nothing([&mut first, &mut second], "k").await;
    let (of_first, of_second) =
        (is_asked_to_save(&mut first, "k").await, is_asked_to_save(&mut second, "k").await);
    answers(&first, of_first, failed(Error::not_ready("the disk is full"))).await;
    answers(&second, of_second, has_it()).await;
    let full = Some(ErrorKind::NotReady);
    assert_eq!(saved(asked).await, Ok(vec![(0, full), (1, None)]), "there is no third");
}

#[tokio::test]
async fn what_only_disks_have_is_confirmed_by_one_and_what_is_nowhere_is_not_found() {
    let (bench, mut first, mut second) = two_disks().await;
    for (found, expected) in
        [(vec![(0, 4096)], Ok(vec![(0, None)])), (Vec::new(), Err(ErrorKind::NotFound))]
    {
        let asked = bench.asks(save("k", &[None], &[]));
        for (rank, found) in [(&mut first, found.clone()), (&mut second, Vec::new())] {
            let (number, asked) = rank.receives(question).await;
            assert_eq!(asked, DiskQuestion::Find(vec![key("k")]));
            answers(rank, number, DiskAnswer { found, ..DiskAnswer::default() }).await;
        }
        // It may be on its way there only.
        if !found.is_empty() {
            let number = is_asked_to_save(&mut first, "k").await;
            answers(&first, number, has_it()).await;
        }
        assert_eq!(saved(asked).await, expected);
    }
}

#[tokio::test]
async fn a_disk_that_takes_long_goes_on_and_is_said_to_be_at_work() {
    let (bench, mut first, mut second) = two_disks().await;
    bench.put(0, "k", &mut first).await;
    let asked = bench.asks(save("k", &[None, None], &[]));
    find_nothing([&mut first, &mut second], "k").await;
    is_asked_to_save(&mut first, "k").await;
    let number = is_asked_to_save(&mut second, "k").await;
    answers(&second, number, has_it()).await;
    for _ in 0..10 {
        bench.clock.advance_ms(200);
        for rank in [&first, &second] {
            rank.sends(OwnerToMaster::Retired(Vec::new())).await;
        }
        bench.ticks().await;
    }
    assert_eq!(saved(asked).await, Ok(vec![(0, Some(ErrorKind::Timeout)), (1, None)]));
}

#[tokio::test]
async fn a_rank_that_is_named_is_not_replaced_by_another() {
    let (bench, mut first, second) = two_disks().await;
    bench.put(0, "k", &mut first).await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    first.drain().await;
    let asked = bench.asks(save("k", &[Some(1)], &[]));
    find_nothing([&mut first], "k").await;
    assert_eq!(saved(asked).await, Ok(vec![(1, Some(ErrorKind::Disconnected))]));
    let asked = bench.asks(save("k", &[None], &[]));
    find_nothing([&mut first], "k").await;
    let number = is_asked_to_save(&mut first, "k").await;
    answers(&first, number, failed(Error::invalid("another object is there"))).await;
    assert_eq!(saved(asked).await, Ok(vec![(0, Some(ErrorKind::InvalidArgument))]));
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
        let asked = bench.asks(save("k", &[Some(rank)], &[]));
        find_nothing([&mut ranks[0]], "k").await;
        assert_eq!(saved(asked).await, Err(ErrorKind::InvalidArgument));
    }
    // Without a name the other one takes it, though it is not in its memory.
    let asked = bench.asks(save("k", &[None], &[]));
    find_nothing([&mut ranks[0]], "k").await;
    let number = is_asked_to_save(&mut ranks[0], "k").await;
    answers(&ranks[0], number, has_it()).await;
    assert_eq!(saved(asked).await, Ok(vec![(0, None)]));
    assert_eq!(bench.found("k").await.map(|at| at.incarnation), Ok(101));
}

#[tokio::test]
async fn a_disk_that_has_the_object_comes_first_and_one_that_has_another_is_an_error() {
    let (bench, mut first, mut second) = two_disks().await;
    let stored = bench.put(1, "k", &mut second).await.meta.object.bytes_total;
    for (bytes, expected) in
        [(stored, Ok(vec![(0, None)])), (stored + 1, Err(ErrorKind::InvalidArgument))]
    {
        let asked = bench.asks(save("k", &[None], &[]));
        let (number, _) = first.receives(question).await;
        let found = vec![(0, bytes)];
        answers(&first, number, DiskAnswer { found, ..DiskAnswer::default() }).await;
        find_nothing([&mut second], "k").await;
        if bytes == stored {
            let number = is_asked_to_save(&mut first, "k").await;
            answers(&first, number, has_it()).await;
        }
        assert_eq!(saved(asked).await, expected);
    }
}
