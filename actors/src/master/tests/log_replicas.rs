//! Replicas that a put wrote into several logs: owners announce them one after the other.

use super::bench::*;
use super::extras::{asked_to_make, missing, passes};
use super::log::{answers, in_log, is_asked, with_log_slots};
use crate::message::{
    LogObjectEntry, LogQuestion, MasterToOwner, OwnerToMaster, ReplicaSet, Request, Response,
    SeenView, Selection, SlotRef, Term,
};
use nkv_store::object::SetMark;

/// Three ranks with logs.
async fn three() -> (Bench, Vec<Rank>) {
    let bench = Bench::new(3).await;
    let mut ranks = Vec::new();
    for rank in 0..3 {
        let info = with_log_slots(info(rank, 100 + u64::from(rank), 3));
        ranks.push(bench.joins(info, Term::default(), false, SeenView::default()).await.unwrap());
    }
    for rank in &mut ranks {
        rank.reports(Vec::new()).await;
    }
    (bench, ranks)
}

/// The object of a put, at any of these ranks; puts differ by their numbers.
fn replica(k: &str, put: u64, wanted: u8) -> LogObjectEntry {
    let set = ReplicaSet::of_mark(SetMark::new(put, wanted));
    LogObjectEntry { set, ..in_log(k) }
}

/// Some milliseconds, in which all ranks send frames.
async fn pass(bench: &Bench, ms: u64, ranks: &[Rank]) {
    passes(bench, ms, &ranks.iter().collect::<Vec<_>>()).await;
}

/// Waits until the second and the third rank's replicas are.
async fn both_are_listed(bench: &Bench, ranks: &[Rank]) -> [SlotRef; 2] {
    let both = [ranks[1].at(3, 1), ranks[2].at(3, 1)];
    eventually("both are listed", async || located(bench).await, |at| *at == both).await;
    both
}

/// It was not asked to make replicas.
async fn makes_none(rank: &mut Rank) {
    let asked = rank.drain().await;
    assert!(asked.iter().all(|down| asked_to_make(down).is_none()), "{asked:?}");
}

#[tokio::test]
async fn i15_replicas_announced_by_several_logs_are_one_object_and_another_put_is_a_duplicate() {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    ranks[2].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    let both = both_are_listed(&bench, &ranks).await;
    ranks[0].sends(OwnerToMaster::Announced(vec![replica("k", 6, 2)])).await;
    let other = ranks[0].at(3, 1);
    let retired = |down: &MasterToOwner| match down {
        MasterToOwner::Retire(list) => Some(list.clone()),
        _ => None,
    };
    assert_eq!(ranks[0].receives(retired).await, [other]);
    assert_eq!(located(&bench).await, both);
}

/// A first replica is announced, and some seconds later the logs are asked for others.
async fn alone() -> (Bench, Vec<Rank>, u64) {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    let first = [ranks[1].at(3, 1)];
    eventually("it is listed", async || located(&bench).await, |at| *at == first).await;
    pass(&bench, 2_500, &ranks).await;
    assert_eq!(missing(&bench).await, 0, "the others may be on their way");
    pass(&bench, 750, &ranks).await;
    let (number, question) = is_asked(&mut ranks[2]).await;
    assert_eq!(question, LogQuestion::Find(vec![in_log("k").id]));
    (bench, ranks, number)
}

#[tokio::test]
async fn a_replica_that_no_log_has_is_made_by_the_one_that_does() {
    let (bench, mut ranks, number) = alone().await;
    answers(&ranks[2], number, Vec::new()).await;
    pass(&bench, 1_500, &ranks).await;
    assert_eq!(ranks[1].receives(asked_to_make).await, [key("k")]);
}

#[tokio::test]
async fn a_replica_whose_key_was_not_sent_is_found_by_asking_and_not_made_again() {
    let (bench, mut ranks, number) = alone().await;
    let nameless = LogObjectEntry { key: key(""), ..replica("k", 5, 2) };
    answers(&ranks[2], number, vec![nameless]).await;
    both_are_listed(&bench, &ranks).await;
    pass(&bench, 4_000, &ranks).await;
    makes_none(&mut ranks[1]).await;
}

#[tokio::test]
async fn a_replica_that_was_announced_and_evicted_is_not_made_again() {
    let (bench, mut ranks) = three().await;
    for rank in &ranks[1..] {
        rank.sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    }
    let both = both_are_listed(&bench, &ranks).await;
    ranks[2].sends(OwnerToMaster::Retired(vec![both[1]])).await;
    pass(&bench, 6_000, &ranks).await;
    makes_none(&mut ranks[1]).await;
}

#[tokio::test]
async fn a_replica_that_is_announced_in_time_is_not_made_again() {
    let (bench, mut ranks) = three().await;
    ranks[1].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    pass(&bench, 2_000, &ranks).await;
    ranks[2].sends(OwnerToMaster::Announced(vec![replica("k", 5, 2)])).await;
    both_are_listed(&bench, &ranks).await;
    pass(&bench, 4_000, &ranks).await;
    assert_eq!(missing(&bench).await, 0);
    makes_none(&mut ranks[1]).await;
}

#[tokio::test]
async fn i6_a_removal_ends_the_set_in_all_logs_before_it_is_done() {
    for request in [
        Request::Remove(vec![key("k")]),
        Request::RemoveMatching(Selection { pattern: Some("k".to_string()), from: None }),
    ] {
        let (bench, mut ranks) = three().await;
        let listed = replica("k", 5, 2);
        ranks[1].sends(OwnerToMaster::Announced(vec![listed.clone()])).await;
        let at = ranks[1].at(3, 1);
        eventually("it is listed", async || located(&bench).await, |found| *found == [at]).await;
        for rank in &mut ranks {
            rank.drain().await;
        }
        let removed = bench.asks(request);
        for rank in &mut ranks {
            let (number, _) = is_asked(rank).await;
            answers(rank, number, Vec::new()).await;
        }
        let set = (listed.id, SetMark::new(5, 2).word());
        let mut numbers = Vec::new();
        for rank in &mut ranks {
            let (number, question) = is_asked(rank).await;
            assert_eq!(question, LogQuestion::EndSets(vec![set]));
            numbers.push(number);
        }
        for (rank, number) in ranks.iter().zip(numbers) {
            assert!(!removed.is_finished());
            answers(rank, number, Vec::new()).await;
        }
        assert_eq!(ranks[1].retires().await, at);
        let answer = tokio::time::timeout(LIMIT, removed).await.expect("no answer").unwrap();
        assert!(
            matches!(&answer, Response::Done(done) if done[0].is_ok())
                || matches!(&answer, Response::Swept(swept) if swept.removed == 1),
            "{answer:?}"
        );
    }
}

/// It was not listed yet: the log says to which set it belonged.
#[tokio::test]
async fn i6_the_set_of_an_object_that_only_its_log_knew_is_ended_as_well() {
    let (bench, mut ranks) = three().await;
    let removed = bench.asks(Request::Remove(vec![key("k")]));
    for (n, rank) in ranks.iter_mut().enumerate() {
        let (number, _) = is_asked(rank).await;
        let set = replica("k", 5, 2);
        let gone = if n == 1 { vec![set.id] } else { Vec::new() };
        let served = if n == 1 { vec![set] } else { Vec::new() };
        let answer = OwnerToMaster::LogAnswer { number, served, removed: gone, taken: 0 };
        rank.sends(answer).await;
    }
    for rank in &mut ranks {
        let (number, question) = is_asked(rank).await;
        assert!(matches!(question, LogQuestion::EndSets(sets) if sets.len() == 1));
        assert!(!removed.is_finished());
        answers(rank, number, Vec::new()).await;
    }
    let Response::Done(done) = removed.await.unwrap() else { panic!("not done") };
    assert_eq!(done, [Ok(())]);
}

/// Its owner reports the end of what it retires before it answers.
#[tokio::test]
async fn i6_a_removal_of_all_ends_the_sets_that_logs_name() {
    let (bench, mut ranks) = three().await;
    let listed = replica("k", 5, 2);
    ranks[1].sends(OwnerToMaster::Announced(vec![listed.clone()])).await;
    let at = ranks[1].at(3, 1);
    eventually("it is listed", async || located(&bench).await, |found| *found == [at]).await;
    let all = Selection { pattern: None, from: None };
    let removed = bench.asks(Request::RemoveMatching(all));
    for (n, rank) in ranks.iter_mut().enumerate() {
        let (number, question) = is_asked(rank).await;
        assert_eq!(question, LogQuestion::RemoveAll);
        let served = if n == 1 { vec![listed.clone()] } else { Vec::new() };
        if n == 1 {
            rank.sends(OwnerToMaster::Retired(vec![at])).await;
        }
        let taken = served.len() as u64;
        let answer = OwnerToMaster::LogAnswer { number, served, removed: Vec::new(), taken };
        rank.sends(answer).await;
    }
    for rank in &mut ranks {
        let (number, question) = is_asked(rank).await;
        assert!(matches!(question, LogQuestion::EndSets(sets) if sets.len() == 1));
        assert!(!removed.is_finished());
        answers(rank, number, Vec::new()).await;
    }
    let answer = tokio::time::timeout(LIMIT, removed).await.expect("no answer").unwrap();
    assert!(matches!(&answer, Response::Swept(swept) if swept.removed == 1), "{answer:?}");
}

/// The first removal ends without an answer of one log; the set is not forgotten.
#[tokio::test]
async fn i6_a_set_that_a_failed_removal_named_is_ended_by_the_next_one() {
    let (bench, mut ranks) = three().await;
    let removed = bench.asks(Request::Remove(vec![key("k")]));
    let (number, _) = is_asked(&mut ranks[1]).await;
    let set = replica("k", 5, 2);
    let (gone, served) = (vec![set.id], vec![set]);
    let answer = OwnerToMaster::LogAnswer { number, served, removed: gone, taken: 0 };
    ranks[1].sends(answer).await;
    pass(&bench, 1_250, &ranks).await;
    let failed = tokio::time::timeout(LIMIT, removed).await.expect("no answer").unwrap();
    assert!(matches!(failed, Response::Failed(_)), "{failed:?}");
    for rank in &mut ranks {
        rank.drain().await;
    }
    let again = bench.asks(Request::Remove(vec![key("k")]));
    for rank in &mut ranks {
        let (number, _) = is_asked(rank).await;
        answers(rank, number, Vec::new()).await;
    }
    for rank in &mut ranks {
        let (number, question) = is_asked(rank).await;
        assert!(matches!(question, LogQuestion::EndSets(sets) if sets.len() == 1));
        answers(rank, number, Vec::new()).await;
    }
    let answer = tokio::time::timeout(LIMIT, again).await.expect("no answer").unwrap();
    assert!(matches!(&answer, Response::Done(done) if done[0].is_err()), "nothing was there");
}
