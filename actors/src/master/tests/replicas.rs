//! An entry with two replicas: what is located, what one loss leaves, what a removal asks for.

use super::bench::*;
use crate::actor::{Context, Message, On, Reply};
use crate::master::Master;
use crate::master::entry::Replica;
use crate::message::{
    KeyBytes, MasterToOwner, ObjectDesc, OwnerToMaster, Request, Response, SegmentId, SlotRef,
};
use crate::{Client, ClientConfig, Cluster, MemoryChoice, NodeConfig, PutOptions, TransportChoice};
use nkv_store::arena::Extent;

/// Gives the entry of a key one more replica. No put writes two yet.
pub(crate) struct AddReplica {
    key: KeyBytes,
    replica: Replica,
    first: bool,
}

impl Message for AddReplica {
    type Reply = ();
}

impl On<AddReplica> for Master {
    fn on(&mut self, m: AddReplica, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let id = self.id_of(&m.key);
        let number = self.objects.number(&id).expect("the entry of a key that was put");
        if let Some(allocator) = self.allocators.get_mut(&m.replica.segment_id) {
            allocator.list(m.replica.at.slot, m.replica.at.epoch, number);
        }
        self.objects.get_mut(&id).expect("it is there").add(m.replica, m.first);
        reply.send(());
    }
}

fn replica_at(rank: &Rank, slot: u32) -> Replica {
    let at = SlotRef { incarnation: rank.info.incarnation, slot, epoch: 1 };
    let extent = Extent { offset: extent_of(slot), len: UNIT };
    Replica {
        segment_id: SegmentId { rank: rank.info.rank, segment: 0 },
        at,
        object: ObjectDesc { extent, bytes_total: UNIT, page_bytes: 4096 },
    }
}

async fn located(bench: &Bench, k: &str) -> Vec<SlotRef> {
    let asked =
        Request::GetLocation { keys: vec![key(k)], gone: Vec::new(), promote: Default::default() };
    let Response::Locations(mut list) = bench.ask(asked).await else { panic!("no locations") };
    list.remove(0).unwrap().into_iter().map(|location| at(&location)).collect()
}

/// A key with its first replica on rank 1 and one more on rank 2.
async fn stored_twice() -> (Bench, Vec<Rank>, SlotRef, SlotRef) {
    let (bench, mut ranks) = Bench::whole(3).await;
    let first = bench.put(1, "k", &mut ranks[1]).await.meta.at;
    let second = replica_at(&ranks[2], 3);
    let add = AddReplica { key: key("k"), replica: second, first: false };
    bench.master.call(add, LIMIT).await.unwrap();
    (bench, ranks, first, second.at)
}

#[tokio::test]
async fn a_key_is_found_at_each_of_its_replicas_and_lives_as_long_as_one() {
    let (bench, mut ranks, first, second) = stored_twice().await;
    assert_eq!(located(&bench, "k").await, [first, second]);
    ranks[1].sends(OwnerToMaster::Retired(vec![first])).await;
    eventually("the first is gone", async || located(&bench, "k").await, |at| *at == [second])
        .await;
    ranks.pop().unwrap().hangs_up().await;
    assert!(bench.found("k").await.is_err(), "no replica can be reached");
}

#[tokio::test]
async fn a_replica_whose_link_is_down_is_not_named_and_the_other_is() {
    let (bench, mut ranks, _, second) = stored_twice().await;
    ranks.remove(1).hangs_up().await;
    assert_eq!(located(&bench, "k").await, [second]);
}

#[tokio::test]
async fn i6_a_removal_is_done_when_each_replica_is_retired() {
    let (bench, mut ranks, first, second) = stored_twice().await;
    // A removal is confirmed once all know the membership.
    for rank in &mut ranks {
        rank.drain().await;
    }
    let removed = bench.asks(Request::Remove(vec![key("k")]));
    for (rank, at) in [(1, first), (2, second)] {
        let retire = |down: &MasterToOwner| match down {
            MasterToOwner::Retire(list) => Some(list.clone()),
            _ => None,
        };
        assert_eq!(ranks[rank].receives(retire).await, [at]);
    }
    ranks[1].sends(OwnerToMaster::Retired(vec![first])).await;
    bench.goes_on_meanwhile().await;
    assert!(!removed.is_finished(), "one replica can still be read");
    ranks[2].sends(OwnerToMaster::Retired(vec![second])).await;
    assert_eq!(done(removed.await.unwrap()), Ok(()));
}

/// The first location names a slot that never held the key: the reader goes on to the second
/// without asking the master again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_finds_the_first_replica_gone_takes_the_second() {
    let job = format!("two-replicas-{}", std::process::id());
    let memory = MemoryChoice::Private;
    let (heap_bytes, log_bytes) = (8 << 20, Some(0));
    let config =
        NodeConfig { job: job.clone(), memory, heap_bytes, log_bytes, ..NodeConfig::default() };
    let cluster = Cluster::start(3, config).await.unwrap();
    let hasher = cluster.node(0).hasher();
    // Looked up at the rank that its hash selects, which is not the one that has it.
    let key = (0u32..).map(u32::to_le_bytes).find(|key| hasher.id(key).hash % 3 == 0).unwrap();
    cluster.client().put(&key, b"value", &PutOptions::default().preferred_rank(1)).await.unwrap();
    let there = cluster.node(2).info();
    let at = SlotRef { incarnation: there.incarnation, slot: there.layout.log_slots, epoch: 9 };
    let object = ObjectDesc::at(there.layout.arena.offset, 5, 4096);
    let replica = Replica { segment_id: there.id(), at, object };
    let add = AddReplica { key: KeyBytes::from(&key[..]), replica, first: true };
    cluster.node(0).master().unwrap().call(add, LIMIT).await.unwrap();
    let config = ClientConfig { job, transport: TransportChoice::Tcp, ..ClientConfig::default() };
    let client = Client::connect(&cluster.node(0).info().control, config).await.unwrap();
    let asked = |client: &Client| {
        let times = client.call_times().requests;
        times
            .iter()
            .find(|(kind, _)| *kind == "locate")
            .map_or(0, |(_, times)| times.counts.iter().sum())
    };
    assert_eq!(client.get(&key).await.unwrap(), &b"value"[..]);
    assert_eq!(asked(&client), 1);
    let mut buffer = [0; 5];
    let fresh = client.for_another_runtime();
    let read = fresh.get_many_into(&mut [(&key[..], &mut buffer[..])]).await;
    assert_eq!((read, &buffer), (vec![Ok(5)], b"value"));
    client.close().await;
    cluster.stop().await;
}
