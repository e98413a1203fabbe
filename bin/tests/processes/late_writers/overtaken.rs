//! Writers whose plan was granted by a former master: rank 0 is killed and started again while they
//! are stopped, or while their grant is in flight. The owner fences all writes of the lower term
//! before it reports to the new master.

use super::relay::{Direction, Relay};
use super::scene::{
    SLACK, SMALL_BYTES, TRIES, Times, expect, expect_all, gauges, kind_in_time, memory_of, on, put,
    put_some, relayed_cluster, row, settled, stop_in_mid_write, try_to_stop,
};
use super::writer::Writer;
use crate::cluster_process::{ProcessCluster, until};
use nkv::message::{Existence, ObjMeta};
use nkv::{Blocking, ClientConfig, ErrorKind, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::heap::Heap;
use nkv_store::layout::{low, state};
use nkv_store::object::read_header;
use std::time::Duration;

/// The deadline is far: only the change of terms can end a plan.
const TIMES: Times = Times { ttl_ms: 1_500, write_ttl_ms: 20_000 };
/// The owner whose memory is written.
const OWNER: u32 = 1;
/// A rank that is not involved.
const OTHER: u32 = 2;
/// Keys of each owner.
const KEYS: u64 = 12;
/// Does not fit beside the large object: it is stored only if the large object's extent is free.
const SQUEEZED: &str = "squeezed";
const SQUEEZED_BYTES: usize = 24 << 20;

/// Its attachment is notified of the term by the owner's welcome.
pub fn a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_a_late_attachment() {
    refuses_a_grant_that_arrives_after_the_term(false);
}

/// Its attachment was notified of the term before; its owner never received the plan.
pub fn a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_an_attached_writer() {
    refuses_a_grant_that_arrives_after_the_term(true);
}

/// A grant arrives after rank 0 was killed and started again, when its owner already obeys the new
/// term.
fn refuses_a_grant_that_arrives_after_the_term(attached: bool) {
    let (mut cluster, link) = relayed_cluster(2, TIMES);
    let relay = Relay::to(cluster.port());
    let config = ClientConfig {
        job: cluster.job().to_string(),
        call_timeout_ms: 20_000,
        transport: TransportChoice::Shm,
        ..ClientConfig::default()
    };
    let slow = Blocking::connect(relay.address(), config).unwrap();
    if attached {
        put(&slow, "before", SMALL_BYTES, OWNER, 0).unwrap();
        link.hold(Direction::Down);
    }
    // Long enough to be distinguished from every other request by its length.
    let overtaken = "overtaken".repeat(100);
    relay.hold_answer_to(overtaken.len());
    std::thread::scope(|scope| {
        let opening =
            scope.spawn(|| slow.open_for_write(overtaken.as_bytes(), 5, &on(OWNER)).map(|_| ()));
        until(SLACK, "the grant is on its way", || relay.held(Direction::Down) > 0);
        cluster.kill9(0);
        link.lose(Direction::Down);
        cluster.restart(0);
        let client = cluster.connect(1);
        until(SLACK, "the owner obeys the new term", || {
            put(&client, "obeys", SMALL_BYTES, OWNER, 0).is_ok()
        });
        relay.release(Direction::Down);
        let end = opening.join().expect("no panic");
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Reclaimed, "a plan of the lower term");
        assert_eq!(slots_being_written(&cluster), 0, "refused after its first byte");
        put(&client, &overtaken, SMALL_BYTES, OWNER, 1).expect("the key is free");
        expect(&client, &overtaken, SMALL_BYTES, 1);
        settled(&client, OWNER, SLACK);
    });
}

fn slots_being_written(cluster: &ProcessCluster) -> usize {
    let heap = Heap::open(memory_of(cluster, OWNER)).expect("the owner's heap");
    let slots = 0..heap.layout().slots;
    let word = |slot| read_header(&heap, slot).expect("a slot of the heap").publish;
    slots.filter(|slot| low(word(*slot)) == state::WRITING).count()
}

/// A cluster in which rank 0 was restarted while a writer to rank 1 is stopped in the middle of its
/// copy.
struct Overtaken {
    cluster: ProcessCluster,
    // Connected before: it has every location.
    client: Blocking,
    writer: Writer,
    // Being written.
    key: String,
    // Acknowledged, in the owner's heap and in another's.
    owners: Vec<(String, ObjMeta)>,
    others: Vec<String>,
}

/// `heard`: the owner received the writer's plan; if not, the message was lost with the master.
fn overtaken(heard: bool) -> Overtaken {
    let (mut cluster, link) = relayed_cluster(3, TIMES);
    let client = cluster.connect(0);
    let locate = |key: String| {
        let location = client.get_location(key.as_bytes()).expect("just put");
        (key, location.into_memory().expect("no node has a disk"))
    };
    let owners = put_some(&client, "owner", KEYS, OWNER).into_iter().map(locate).collect();
    let others = put_some(&client, "other", KEYS, OTHER);
    client.remove(b"owner/0").unwrap();
    let mut writer = Writer::start(&cluster, TransportChoice::Shm);
    // It is attached from here on: its next plan needs no message to the owner.
    writer.open("attaches", (10, 10), OWNER, 0);
    writer.step("abort").expect("aborted");
    let key = if heard {
        stop_in_mid_write(&cluster, &mut writer, OWNER).0
    } else {
        stop_unheard_of(&cluster, &link, &client, &mut writer)
    };
    cluster.kill9(0);
    link.lose(Direction::Down);
    cluster.restart(0);
    Overtaken { cluster, client, writer, key, owners, others }
}

/// As [`stop_in_mid_write`], while nothing reaches the owner from the master.
fn stop_unheard_of(
    cluster: &ProcessCluster,
    link: &Relay,
    client: &Blocking,
    writer: &mut Writer,
) -> String {
    for version in 0..TRIES {
        settled(client, OWNER, SLACK);
        link.hold(Direction::Down);
        if let Some((key, _)) = try_to_stop(cluster, writer, OWNER, version) {
            assert_eq!(gauges(cluster, OWNER).plans_open, 0, "the owner heard of the plan");
            return key;
        }
        link.release(Direction::Down);
    }
    panic!("{TRIES} copies were over before the writer stood");
}

impl Overtaken {
    /// One-sided reads succeed, whatever the masters do.
    fn expect_located(&self) {
        for (key, meta) in self.owners.iter().skip(1) {
            let mut dst = vec![0; SMALL_BYTES];
            self.client.read_into(meta, &mut dst).unwrap_or_else(|e| panic!("read {key}: {e}"));
            let wrong = crate::content::wrong(key.as_bytes(), 0, SMALL_BYTES, &dst);
            assert_eq!(wrong, 0, "wrong bytes in {key}");
        }
    }

    /// The owner delays its report; within one TTL the other ranks are served.
    fn expect_others_to_go_on(&self, fresh: &Blocking) {
        let since = BootClock.now_ms();
        self.expect_located();
        let limit = Duration::from_millis(TIMES.ttl_ms) + SLACK;
        until(limit, "a put on another rank", || {
            put(fresh, "meanwhile", SMALL_BYTES, OTHER, 0).is_ok()
        });
        let took = BootClock.now_ms() - since;
        println!("others went on {took} ms after rank 0's return");
        expect_all(fresh, &self.others);
        expect(fresh, "meanwhile", SMALL_BYTES, 0);
        assert_eq!(fresh.get_location(b"meanwhile").unwrap().rank(), OTHER);
        // Objects that only this owner holds are not answered as absent, and its heap takes no
        // puts.
        for (key, _) in self.owners.iter().skip(1) {
            let kind = kind_in_time("get", || fresh.get(key.as_bytes()));
            assert_eq!(kind, Some(ErrorKind::NotReady), "{key}, whose owner has not reported");
        }
        put(fresh, SQUEEZED, SQUEEZED_BYTES, OWNER, 0).unwrap();
        assert_ne!(fresh.get_location(SQUEEZED.as_bytes()).unwrap().rank(), OWNER);
        self.expect_located();
    }

    /// The owner reports: all its objects are found by their keys, and removed ones are not.
    fn expect_report(&self, fresh: &Blocking) {
        until(SLACK, "the owner's report", || fresh.get(b"owner/1").is_ok());
        expect(fresh, SQUEEZED, SQUEEZED_BYTES, 0);
        for (key, _) in self.owners.iter().skip(1) {
            expect(fresh, key, SMALL_BYTES, 0);
        }
        let gone = fresh.exists(&[b"owner/0", self.key.as_bytes()]).unwrap();
        assert_eq!(gone, [Existence::Absent; 2]);
        put(fresh, "again", SMALL_BYTES, OWNER, 0).unwrap();
        assert_eq!(fresh.get_location(b"again").unwrap().rank(), OWNER);
        put(fresh, &self.key, SMALL_BYTES, OWNER, 7).expect("its key is free");
        expect(fresh, &self.key, SMALL_BYTES, 7);
        for rank in [OWNER, OTHER] {
            settled(fresh, rank, SLACK);
        }
        assert_eq!(row(&fresh.stats().unwrap(), OWNER).owner.fencing, 0);
    }
}

/// The writer runs again: its plan is over, and it is notified.
fn reports_when_the_writer_runs_again(heard: bool) {
    let mut o = overtaken(heard);
    let fresh = o.cluster.connect(0);
    o.expect_others_to_go_on(&fresh);
    o.writer.resume();
    let _ = o.writer.answer();
    o.expect_report(&fresh);
    for step in ["write 0", "publish"] {
        let end = o.writer.step(step).expect_err("its plan is of a lower term");
        assert!(end.starts_with("Reclaimed"), "{step}: {end}");
    }
    expect(&fresh, &o.key, SMALL_BYTES, 7);
}

pub fn an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_runs_again() {
    reports_when_the_writer_runs_again(true);
}

/// Its slot looks free: only the answer of its process proves that nothing writes there any more.
pub fn an_owner_with_a_stopped_writer_of_an_unknown_plan_reports_when_it_runs_again() {
    reports_when_the_writer_runs_again(false);
}

pub fn an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_dies() {
    let mut o = overtaken(true);
    let fresh = o.cluster.connect(0);
    o.expect_others_to_go_on(&fresh);
    o.writer.kill();
    o.expect_report(&fresh);
}
