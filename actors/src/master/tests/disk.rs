//! Questions to nodes with disks: removals, whoever is away or leaves meanwhile [I6], and lookups.

use super::bench::{Bench, HASHER, LIMIT, Rank, info, key};
use super::log::with_log;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    DiskAnswer, DiskQuestion, DiskSelection, Location, MasterToOwner, OwnerToMaster, Promote,
    RankInfo, Request, Response, SeenView, Term,
};
use std::time::Duration;
use tokio::task::JoinHandle;

async fn joins(bench: &Bench, rank: u32, incarnation: u64) -> Rank {
    let info = RankInfo { disk: true, ..info(rank, incarnation, 2) };
    let joined = bench.joins(info, Term::default(), false, SeenView::default()).await;
    let mut joined = joined.unwrap();
    joined.reports(Vec::new()).await;
    joined
}

pub(super) async fn two_disks() -> (Bench, Rank, Rank) {
    let bench = Bench::new(2).await;
    let info = |rank| RankInfo { disk: true, ..info(rank, 100 + u64::from(rank), 2) };
    let join = |rank| bench.joins(info(rank), Term::default(), false, SeenView::default());
    let (mut first, mut second) = (join(0).await.unwrap(), join(1).await.unwrap());
    first.reports(Vec::new()).await;
    second.reports(Vec::new()).await;
    (bench, first, second)
}

pub(super) fn question(down: &MasterToOwner) -> Option<(u64, DiskQuestion)> {
    match down {
        MasterToOwner::AskDisk { number, question } => Some((*number, question.clone())),
        _ => None,
    }
}

fn removal_asked(down: &MasterToOwner) -> Option<(u64, DiskSelection)> {
    match question(down)? {
        (number, DiskQuestion::Remove { which, .. }) => Some((number, which)),
        (_, other) => panic!("{other:?}"),
    }
}

/// The disk of a rank is asked to remove this key.
async fn is_asked_to_remove(rank: &mut Rank, k: &str) -> u64 {
    let (number, which) = rank.receives(removal_asked).await;
    assert_eq!(which, DiskSelection::Keys(vec![key(k)]));
    number
}

pub(super) async fn answers(rank: &Rank, number: u64, answer: DiskAnswer) {
    rank.sends(OwnerToMaster::DiskAnswer { number, answer }).await;
}

/// The disk of a rank has removed this key, as it was asked.
async fn removes(rank: &mut Rank, k: &str) {
    let number = is_asked_to_remove(rank, k).await;
    answers(rank, number, DiskAnswer::default()).await;
}

pub(super) async fn end<T>(asked: JoinHandle<T>) -> T {
    tokio::time::timeout(LIMIT, asked).await.expect("no answer").unwrap()
}

fn removal(response: Response) -> Result<()> {
    match response {
        Response::Done(mut list) => list.remove(0),
        Response::Failed(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

fn lookup(promote: Promote) -> Request {
    Request::GetLocation { keys: vec![key("k")], gone: Vec::new(), promote }
}

async fn asked_about(rank: &mut Rank) -> Vec<DiskQuestion> {
    rank.drain().await.iter().filter_map(question).map(|(_, question)| question).collect()
}

/// A key is removed while the second rank is away.
async fn removed_without_the_second() -> (Bench, Rank) {
    let (bench, mut first, second) = two_disks().await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    first.drain().await;
    let asked = bench.asks(Request::Remove(vec![key("k")]));
    removes(&mut first, "k").await;
    assert_eq!(removal(end(asked).await).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    (bench, first)
}

#[tokio::test]
async fn i6_a_disk_that_was_away_removes_before_it_is_asked_for_anything() {
    let (bench, mut first) = removed_without_the_second().await;
    let mut second = joins(&bench, 1, 201).await;
    // The first question, before anything is asked for.
    let number = is_asked_to_remove(&mut second, "k").await;
    answers(&second, number, DiskAnswer::default()).await;
    let over = |d: &MasterToOwner| matches!(d, MasterToOwner::RemovalOver { .. }).then_some(());
    second.receives(over).await;
    let found = bench.asks(lookup(Promote::No));
    for rank in [&mut first, &mut second] {
        let (find, asked) = rank.receives(question).await;
        assert_eq!(asked, DiskQuestion::Find(vec![key("k")]));
        answers(rank, find, DiskAnswer::default()).await;
    }
    end(found).await;
}

#[tokio::test]
async fn i6_a_missed_removal_is_sent_until_the_disk_has_done_it() {
    let (bench, mut first) = removed_without_the_second().await;
    let mut second = joins(&bench, 1, 201).await;
    // Its answer is lost with the link, and with the next process it comes again.
    is_asked_to_remove(&mut second, "k").await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    let mut second = joins(&bench, 1, 202).await;
    let number = is_asked_to_remove(&mut second, "k").await;
    let failed = Some(Error::not_ready("the disk is broken"));
    answers(&second, number, DiskAnswer { failed, ..DiskAnswer::default() }).await;
    // What this disk has is not found before it has confirmed.
    first.drain().await;
    let found = bench.asks(lookup(Promote::No));
    let (find, _) = first.receives(question).await;
    answers(&first, find, DiskAnswer::default()).await;
    let Response::Locations(list) = end(found).await else { panic!("no locations") };
    assert_eq!(list[0].as_ref().err().map(Error::kind), Some(ErrorKind::NotFound));
    assert_eq!(asked_about(&mut second).await, []);
    for _ in 0..4 {
        bench.clock.advance_ms(300);
        for rank in [&first, &second] {
            rank.sends(OwnerToMaster::Retired(Vec::new())).await;
        }
        bench.ticks().await;
    }
    removes(&mut second, "k").await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    let mut second = joins(&bench, 1, 203).await;
    bench.ticks().await;
    assert_eq!(asked_about(&mut second).await, [], "it is known now");
}

#[tokio::test]
async fn i6_a_disk_that_left_while_it_was_asked_hears_of_the_removal_when_it_is_back() {
    let (bench, mut first, mut second) = two_disks().await;
    first.drain().await;
    let asked = bench.asks(Request::Remove(vec![key("k")]));
    is_asked_to_remove(&mut second, "k").await;
    removes(&mut first, "k").await;
    second.hangs_up().await;
    // Its successor is another process: nobody knows what became of the question.
    let mut second = joins(&bench, 1, 201).await;
    bench.ticks().await;
    first.drain().await;
    second.sends(OwnerToMaster::Retired(Vec::new())).await;
    while !asked.is_finished() {
        bench.clock.advance_ms(10);
        for rank in [&mut first, &mut second] {
            rank.drain().await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(removal(end(asked).await).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    second.drain().await;
    for rank in [&first, &second] {
        bench.clock.advance_ms(600);
        rank.sends(OwnerToMaster::Retired(Vec::new())).await;
    }
    bench.ticks().await;
    removes(&mut second, "k").await;
}

/// Otherwise the disks would have removed what memory keeps, although the caller is told that
/// nothing was removed.
#[tokio::test]
async fn a_removal_that_an_owner_of_a_log_cannot_do_asks_no_disk() {
    let (bench, first, logs) = with_log().await;
    first.hangs_up().await;
    let info = RankInfo { disk: true, ..info(0, 200, 2) };
    let joined = bench.joins(info, Term::default(), false, SeenView::default()).await;
    let mut first = joined.unwrap();
    first.reports(Vec::new()).await;
    logs.hangs_up().await;
    let error = removal(bench.ask(Request::Remove(vec![key("k")])).await).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.message().contains("nothing was removed"), "{error}");
    assert_eq!(asked_about(&mut first).await, []);
}

#[tokio::test]
async fn i6_each_round_of_a_removal_by_pattern_asks_the_disks() {
    let (bench, mut first, mut second) = two_disks().await;
    let mut from = None;
    for _ in 0..2 {
        let of = crate::message::Selection { pattern: Some("^k".into()), from };
        let asked = bench.asks(Request::RemoveMatching(of));
        for rank in [&mut first, &mut second] {
            let (number, which) = rank.receives(removal_asked).await;
            assert_eq!(which, DiskSelection::Matching("^k".into()));
            answers(rank, number, DiskAnswer { count: 3, ..DiskAnswer::default() }).await;
        }
        let Response::Swept(swept) = end(asked).await else { panic!("not swept") };
        assert_eq!(swept.on_disk, if from.is_none() { 6 } else { 0 }, "they are counted once");
        from = Some(HASHER.id(b"a"));
    }
}

#[tokio::test]
async fn of_two_disks_with_a_key_the_second_is_asked_when_the_first_has_lost_it() {
    let (bench, mut first, mut second) = two_disks().await;
    let asked = bench.asks(lookup(Promote::Wait { rank: None }));
    for rank in [&mut first, &mut second] {
        let (number, _) = rank.receives(question).await;
        let found = vec![(0, 4096)];
        answers(rank, number, DiskAnswer { found, ..DiskAnswer::default() }).await;
    }
    let promote = DiskQuestion::Promote { keys: vec![key("k")], rank: None, find: false };
    let (number, asked_first) = first.receives(question).await;
    assert_eq!(asked_first, promote);
    let not_done = vec![(0, Error::not_found("damaged"))];
    answers(&first, number, DiskAnswer { not_done, ..DiskAnswer::default() }).await;
    let (number, asked_second) = second.receives(question).await;
    assert_eq!(asked_second, promote);
    answers(&second, number, DiskAnswer::default()).await;
    let Response::Locations(list) = end(asked).await else { panic!("no locations") };
    let [Location::Disk(disk)] = &list[0].as_ref().unwrap()[..] else { panic!("{list:?}") };
    assert_eq!((disk.rank, disk.key), (1, HASHER.id(b"k")));
}

/// What it brought back meanwhile would stay in memory.
#[tokio::test]
async fn i6_a_disk_that_joins_during_a_removal_is_asked_for_nothing_before_it_was_sent_it() {
    let (bench, mut first, second) = two_disks().await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    first.drain().await;
    let removal = bench.asks(Request::Remove(vec![key("k")]));
    let number = is_asked_to_remove(&mut first, "k").await;
    let mut second = joins(&bench, 1, 201).await;
    second.drain().await;
    // Only the first is asked, and what it says is the answer.
    let found = bench.asks(lookup(Promote::Begin { rank: None }));
    let (find, _) = first.receives(question).await;
    answers(&first, find, DiskAnswer::default()).await;
    end(found).await;
    assert_eq!(asked_about(&mut second).await, []);
    answers(&first, number, DiskAnswer::default()).await;
    end(removal).await;
    for _ in 0..2 {
        bench.clock.advance_ms(600);
        for rank in [&first, &second] {
            rank.sends(OwnerToMaster::Retired(Vec::new())).await;
        }
        bench.ticks().await;
    }
    removes(&mut second, "k").await;
}

/// Between two rounds it has not ended.
#[tokio::test]
async fn i6_a_disk_that_joins_between_two_rounds_of_a_removal_is_sent_it_first() {
    let (bench, mut first, second) = two_disks().await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    first.drain().await;
    let of = crate::message::Selection { pattern: Some("^k".into()), from: None };
    let round = bench.asks(Request::RemoveMatching(of));
    let (number, _) = first.receives(removal_asked).await;
    answers(&first, number, DiskAnswer::default()).await;
    end(round).await;
    let mut second = joins(&bench, 1, 201).await;
    let (_, which) = second.receives(removal_asked).await;
    assert_eq!(which, DiskSelection::Matching("^k".into()));
}

#[tokio::test]
async fn a_key_that_only_a_disk_has_is_removed_with_success() {
    let (bench, mut first, mut second) = two_disks().await;
    let asked = bench.asks(Request::Remove(vec![key("j"), key("k")]));
    let removed = [vec![HASHER.id(b"k")], Vec::new()];
    for (rank, removed) in [&mut first, &mut second].into_iter().zip(removed) {
        let (number, _) = rank.receives(removal_asked).await;
        answers(rank, number, DiskAnswer { removed, ..DiskAnswer::default() }).await;
    }
    let Response::Done(list) = end(asked).await else { panic!("not done") };
    let kinds = list.iter().map(|done| done.as_ref().err().map(Error::kind));
    assert_eq!(kinds.collect::<Vec<_>>(), [Some(ErrorKind::NotFound), None]);
}

/// One of them was put over the other, which only a disk had.
#[tokio::test]
async fn a_key_of_which_two_disks_have_objects_of_different_lengths_is_not_found() {
    let (bench, mut first, mut second) = two_disks().await;
    let asked = bench.asks(lookup(Promote::Wait { rank: None }));
    for (rank, bytes) in [(&mut first, 4096), (&mut second, 8192)] {
        let (number, _) = rank.receives(question).await;
        let found = vec![(0, bytes)];
        answers(rank, number, DiskAnswer { found, ..DiskAnswer::default() }).await;
    }
    let Response::Locations(list) = end(asked).await else { panic!("no locations") };
    assert_eq!(list[0].as_ref().err().map(Error::kind), Some(ErrorKind::NotFound));
    assert_eq!(asked_about(&mut first).await, []);
}

/// It need not be asked first whether it has it.
#[tokio::test]
async fn the_only_disk_is_asked_to_bring_a_key_back_at_once() {
    let (bench, mut first, second) = two_disks().await;
    second.hangs_up().await;
    bench.a_ttl_passes(&[&first]).await;
    first.drain().await;
    let not_found = |found: Response| {
        let Response::Locations(list) = found else { panic!("no locations") };
        assert_eq!(list[0].as_ref().err().map(Error::kind), Some(ErrorKind::NotFound));
    };
    let promote = DiskQuestion::Promote { keys: vec![key("k")], rank: None, find: true };
    let damaged = vec![(0, Error::not_found("damaged"))];
    let missed = DiskAnswer::default();
    let lost = DiskAnswer { found: vec![(0, 4096)], not_done: damaged, ..DiskAnswer::default() };
    for answer in [missed, lost] {
        let asked = bench.asks(lookup(Promote::Wait { rank: None }));
        let (number, question) = first.receives(question).await;
        assert_eq!(question, promote);
        answers(&first, number, answer).await;
        not_found(end(asked).await);
    }
    // It came back, and went again before the answer.
    let asked = bench.asks(lookup(Promote::Wait { rank: None }));
    let (number, _) = first.receives(question).await;
    answers(&first, number, DiskAnswer { found: vec![(0, 4096)], ..DiskAnswer::default() }).await;
    let Response::Locations(list) = end(asked).await else { panic!("no locations") };
    let [Location::Disk(disk)] = &list[0].as_ref().unwrap()[..] else { panic!("{list:?}") };
    assert_eq!((disk.rank, disk.bytes_total), (0, 4096));
    // No answer is not an absence.
    let asked = bench.asks(lookup(Promote::Wait { rank: None }));
    first.receives(question).await;
    for _ in 0..8 {
        bench.clock.advance_ms(300);
        first.sends(OwnerToMaster::Retired(Vec::new())).await;
        bench.ticks().await;
    }
    let Response::Locations(list) = end(asked).await else { panic!("no locations") };
    assert_eq!(list[0].as_ref().err().map(Error::kind), Some(ErrorKind::Disconnected));
}
