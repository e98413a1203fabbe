//! Keys that callers wait for at the master, and sets of replicas that are removed: what the owner
//! does with what its log accepts.

use super::{Bench, HASHER, LIMIT};
use crate::message::{LogObjectEntry, LogQuestion, MasterToOwner, OwnerToMaster, ReplicaSet};
use crate::owner::log::Drain;
use nkv_store::device_log::{ClaimStep, ControlLine, LogPut};
use nkv_store::object::SetMark;
use nkv_store::op::Op;

const LOG: u64 = 16 * 4096;

impl Bench {
    /// Puts into the log, as a producer that never reports its key.
    fn logs(&self, key: &[u8]) {
        self.logs_in_set(key, SetMark::NONE);
    }

    fn logs_in_set(&self, key: &[u8], mark: SetMark) {
        let (memory, layout) = (&**self.heap.memory(), self.heap.layout().device_log().unwrap());
        let put = LogPut::new(layout, HASHER.id(key), 4096, 100).unwrap().in_set(mark);
        let mut line = ControlLine::unread();
        line.read().run(memory).unwrap();
        let mut claim = put.fetch_add();
        claim.run(memory).unwrap();
        let Op::FetchAdd { old, .. } = claim else { panic!("{claim:?}") };
        let ClaimStep::Write(write) = put.claimed(old).next(line.heap_limit()) else {
            panic!("no room");
        };
        let object = write.publication();
        object.whole(&[1; 100]).iter_mut().for_each(|op| op.run(memory).unwrap());
    }

    async fn asked(&mut self, question: LogQuestion) -> Vec<LogObjectEntry> {
        self.receives(MasterToOwner::AskLog { number: 5, question }).await;
        self.sent_to_master(|up| match up {
            OwnerToMaster::LogAnswer { number: 5, served, .. } => Some(served.clone()),
            _ => None,
        })
        .await
    }

    async fn accepted(&mut self) -> Vec<LogObjectEntry> {
        self.owner.call(Drain, LIMIT).await.unwrap();
        self.sent_to_master(|up| match up {
            OwnerToMaster::Accepted(list) => Some(list.clone()),
            _ => None,
        })
        .await
    }
}

fn awaits(keys: &[&[u8]], wait_ms: u64) -> LogQuestion {
    LogQuestion::Await { keys: keys.iter().map(|key| HASHER.id(key)).collect(), wait_ms }
}

#[tokio::test]
async fn what_is_awaited_is_sent_as_it_is_accepted_and_once() {
    let mut bench = Bench::with_log(LOG).await;
    bench.logs(b"there");
    let there = bench.asked(awaits(&[b"there", b"k", b"later"], 60_000)).await;
    assert_eq!(there.len(), 1, "what is there is the answer");
    bench.logs(b"other");
    bench.logs(b"k");
    let accepted = bench.accepted().await;
    assert_eq!(accepted.len(), 1);
    assert_eq!((accepted[0].id, &*accepted[0].key), (HASHER.id(b"k"), &b""[..]));
    // The master lists it, so it learns of its end.
    assert!(bench.tables.lock().is_reported(accepted[0].slot, accepted[0].epoch));
    bench.logs(b"later");
    let accepted = bench.accepted().await;
    assert_eq!(accepted.iter().map(|o| o.id).collect::<Vec<_>>(), [HASHER.id(b"later")]);
}

#[tokio::test]
async fn a_key_whose_time_is_over_is_not_awaited() {
    let mut bench = Bench::with_log(LOG).await;
    bench.asked(awaits(&[b"k"], 0)).await;
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    bench.logs(b"k");
    bench.owner.call(Drain, LIMIT).await.unwrap();
    // Answered after the pass that accepted it.
    bench.receives(MasterToOwner::AskLog { number: 5, question: awaits(&[], 0) }).await;
    let first = bench.sent_to_master(|up| match up {
        OwnerToMaster::Accepted(_) => Some(false),
        OwnerToMaster::LogAnswer { .. } => Some(true),
        _ => None,
    });
    assert!(first.await, "it is announced later, with its key string");
}

fn find(key: &[u8]) -> LogQuestion {
    LogQuestion::Find(vec![HASHER.id(key)])
}

#[tokio::test]
async fn i6_a_replica_of_a_set_that_was_removed_is_not_served_whenever_it_comes() {
    let mut bench = Bench::with_log(LOG).await;
    let (mark, other) = (SetMark::new(1, 2), SetMark::new(2, 2));
    bench.logs_in_set(b"k", mark);
    let served = bench.asked(find(b"k")).await;
    assert_eq!(served[0].set, ReplicaSet::of_mark(mark), "known as soon as it is found");
    // What it retires for a removal it names with its set.
    let gone = bench.asked(LogQuestion::Remove(vec![HASHER.id(b"k")])).await;
    assert_eq!(gone[0].set.mark(), Some(mark.word()));
    bench.asked(LogQuestion::EndSets(vec![(HASHER.id(b"k"), mark.word())])).await;
    bench.logs_in_set(b"k", mark);
    assert!(bench.asked(find(b"k")).await.is_empty(), "another replica that came late");
    // A panic of the actor changes nothing.
    bench.owner.call(crate::actor::Crash, LIMIT).await.unwrap_err();
    bench.logs_in_set(b"k", mark);
    assert!(bench.asked(find(b"k")).await.is_empty());
    bench.logs_in_set(b"k", other);
    assert_eq!(bench.asked(find(b"k")).await.len(), 1, "a later put of the key");
    // The master retires what it lists; what it does not know is retired here.
    bench.logs_in_set(b"unlisted", other);
    let ids = [HASHER.id(b"k"), HASHER.id(b"unlisted")];
    bench.asked(LogQuestion::EndSets(ids.map(|id| (id, other.word())).to_vec())).await;
    assert_eq!(bench.asked(find(b"k")).await.len(), 1);
    assert!(bench.asked(find(b"unlisted")).await.is_empty());
}
