//! Listings and removals by pattern, and the rules that they share with lookups and removes.

use super::bench::{Bench, LIMIT, Rank, TTL_MS, live};
use crate::ErrorKind;
use crate::actor::Crash;
use crate::message::{
    KeyState, MasterToOwner, OwnerToMaster, Request, Response, Selection, SlotRef, Swept,
};

fn removal(pattern: &str) -> Request {
    Request::RemoveMatching(Selection { pattern: Some(pattern.to_string()), from: None })
}

fn listing() -> Request {
    Request::List { of: Selection::default(), after: None, limit: 100 }
}

fn swept(response: Response) -> Result<Swept, ErrorKind> {
    match response {
        Response::Swept(s) => {
            assert!(s.next.is_none(), "so few keys are one round");
            Ok(s)
        }
        Response::Failed(e) => Err(e.kind()),
        other => panic!("{other:?}"),
    }
}

async fn listed(bench: &Bench) -> Result<Vec<(String, KeyState)>, ErrorKind> {
    match bench.ask(listing()).await {
        Response::Listed { keys, .. } => {
            let row =
                |l: crate::message::Listed| (String::from_utf8(l.key.into()).unwrap(), l.state);
            Ok(keys.into_iter().map(row).collect())
        }
        Response::Failed(e) => Err(e.kind()),
        other => panic!("{other:?}"),
    }
}

/// The slots of the next Retire.
async fn next_retire(rank: &mut Rank) -> Vec<SlotRef> {
    rank.receives(|d| match d {
        MasterToOwner::Retire(list) => Some(list.clone()),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_round_of_a_removal_is_one_frame_to_each_owner() {
    let (bench, mut ranks) = Bench::whole(2).await;
    for (number, key) in ["a1", "a2", "a3", "b"].iter().enumerate() {
        bench.put(number as u64, key, &mut ranks[0]).await;
    }
    bench.put(9, "a4", &mut ranks[1]).await;
    for r in &mut ranks {
        r.drain().await;
    }
    let waits = bench.asks(removal("^a"));
    let [mut first, second] = [next_retire(&mut ranks[0]).await, next_retire(&mut ranks[1]).await];
    assert_eq!((first.len(), second.len()), (3, 1));
    let left = first.split_off(1);
    ranks[0].sends(OwnerToMaster::Retired(first)).await;
    ranks[1].sends(OwnerToMaster::Retired(second)).await;
    assert!(!waits.is_finished(), "two owners' words are missing");
    ranks[0].sends(OwnerToMaster::Retired(left)).await;
    assert_eq!(swept(waits.await.unwrap()), Ok(Swept { removed: 4, ..Swept::default() }));
    let frames = ranks[0].drain().await;
    assert!(!frames.iter().any(|d| matches!(d, MasterToOwner::Retire(_))), "{frames:?}");
    assert_eq!(listed(&bench).await, Ok(vec![("b".to_string(), KeyState::Ready)]));
}

#[tokio::test]
async fn i6_a_removal_whose_owner_is_silent_counts_what_was_confirmed() {
    let (bench, mut ranks) = Bench::whole(2).await;
    bench.put(1, "a", &mut ranks[0]).await;
    bench.put(2, "b", &mut ranks[1]).await;
    let waits = bench.asks(removal(""));
    let slots = next_retire(&mut ranks[0]).await;
    ranks[0].sends(OwnerToMaster::Retired(slots)).await;
    let silent = next_retire(&mut ranks[1]).await;
    bench.clock.advance_ms(TTL_MS / 2);
    ranks[1].sends(OwnerToMaster::Retired(Vec::new())).await;
    bench.clock.advance_ms(TTL_MS / 2);
    ranks[1].sends(OwnerToMaster::Retired(Vec::new())).await;
    bench.clock.advance_ms(TTL_MS / 2);
    let s = swept(waits.await.unwrap()).unwrap();
    assert_eq!((s.removed, s.unconfirmed), (1, 1));
    let why = s.why.unwrap();
    assert_eq!(why.kind(), ErrorKind::Disconnected, "{why}");
    assert!(why.message().contains("rank 1"), "{why}");
    assert_eq!(listed(&bench).await, Ok(vec![("b".to_string(), KeyState::Removing)]));
    ranks[1].sends(OwnerToMaster::Retired(silent)).await;
    assert_eq!(listed(&bench).await, Ok(Vec::new()), "it stays removed");
}

#[tokio::test]
async fn nothing_is_listed_or_removed_before_every_rank_was_met() {
    let bench = Bench::new(2).await;
    let mut first = bench.join(0, 100).await.unwrap();
    first.reports(vec![live(0, 1, "a")]).await;
    assert_eq!(listed(&bench).await, Err(ErrorKind::NotReady));
    assert_eq!(swept(bench.ask(removal("")).await), Err(ErrorKind::NotReady));
    let mut second = bench.join(1, 101).await.unwrap();
    second.reports(vec![live(0, 1, "b")]).await;
    let names: Vec<_> = listed(&bench).await.unwrap().into_iter().map(|(k, _)| k).collect();
    assert_eq!(names, ["a", "b"]);
    let heard = first.drain().await;
    assert!(!heard.iter().any(|d| matches!(d, MasterToOwner::Retire(_))), "{heard:?}");
}

#[tokio::test]
async fn a_master_that_few_ranks_obey_lists_and_removes_nothing() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[0]).await;
    ranks.pop().unwrap().hangs_up().await;
    assert!(listed(&bench).await.is_ok(), "two of three obey");
    ranks.pop().unwrap().hangs_up().await;
    assert_eq!(listed(&bench).await, Err(ErrorKind::Disconnected));
    assert_eq!(swept(bench.ask(removal("")).await), Err(ErrorKind::Disconnected));
    let heard = ranks[0].drain().await;
    assert!(!heard.iter().any(|d| matches!(d, MasterToOwner::Retire(_))), "{heard:?}");
}

#[tokio::test]
async fn i6_a_removal_waits_until_the_others_keep_the_loss_of_a_rank() {
    let (bench, mut ranks) = Bench::whole(3).await;
    bench.put(1, "k", &mut ranks[1]).await;
    ranks[2].drain().await;
    ranks[2].keeps_views = false;
    ranks.remove(1).sends(OwnerToMaster::Leave).await;
    ranks[0].drain().await;
    // The key was lost with its rank: there is nothing to remove, but the answer must wait.
    let waits = bench.asks(removal("^k$"));
    bench.goes_on_meanwhile().await;
    assert!(!waits.is_finished(), "rank 2 does not keep the view that lacks rank 1 yet");
    let number = ranks[1]
        .receives(|d| match d {
            MasterToOwner::View(v) if !v.incarnations.contains(&101) => Some(v.number),
            _ => None,
        })
        .await;
    ranks[1].sends(OwnerToMaster::ViewSeen { number }).await;
    assert_eq!(swept(waits.await.unwrap()), Ok(Swept::default()));
}

/// Answers the rank's next request: reports its one object, or retires it.
async fn reports_and_retires(rank: &mut Rank, at: SlotRef) {
    let up = rank
        .receives(|d| match d {
            MasterToOwner::RequestReport { number } => {
                let slots = vec![live(at.slot, at.epoch, "k")];
                Some(OwnerToMaster::Report { number: *number, slots, last: true })
            }
            MasterToOwner::Retire(list) => Some(OwnerToMaster::Retired(list.clone())),
            _ => None,
        })
        .await;
    rank.sends(up).await;
}

#[tokio::test]
async fn a_round_begun_before_a_panic_looks_again_once_everything_is_in_sight() {
    // The panic is queued right behind the request, before its pattern has run. If this thread was
    // delayed in between, the answer was lost with the panic, and the test tries again.
    for _ in 0..20 {
        let (bench, mut ranks) = Bench::whole(1).await;
        let at = bench.put(1, "k", &mut ranks[0]).await.meta.at;
        let mut waits = bench.asks(removal("^k"));
        tokio::task::yield_now().await;
        bench.master.call(Crash, LIMIT).await.unwrap_err();
        let answer = loop {
            tokio::select! {
                answer = &mut waits => break answer,
                received = reports_and_retires(&mut ranks[0], at) => received,
            }
        };
        if let Ok(response) = answer {
            assert_eq!(swept(response), Ok(Swept { removed: 1, ..Swept::default() }));
            return;
        }
    }
    panic!("twenty times the panic came too late");
}
