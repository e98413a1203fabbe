//! Writers that outlive their plan's deadline: stopped in the middle of a copy, or with a late
//! commit. What the owner does depends on the data path; in every case no other object changes.

use super::relay::{Direction, Relay};
use super::scene::{
    HEAP_BYTES, LARGE_BYTES, QUARANTINE_MS, SLACK, Times, cluster, expect, expect_all, gauges, on,
    put, put_some, settled, stop_in_mid_write,
};
use super::writer::Writer;
use crate::cluster_process::{ProcessCluster, until};
use crate::content;
use nkv::message::Existence;
use nkv::{Blocking, ClientConfig, ErrorKind, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::time::Duration;

const TIMES: Times = Times { ttl_ms: 1_000, write_ttl_ms: 1_000 };
/// The owner whose memory is written.
const OWNER: u32 = 1;
/// Does not fit beside the large object: only its extent has room for it.
const SQUEEZED_BYTES: usize = 24 << 20;
/// How long others work while an extent is held: many quarantines.
const BESIDE_MS: u64 = 10 * QUARANTINE_MS;

/// A client of the cluster, and a writer that is stopped in the middle of its copy.
fn late(transport: TransportChoice) -> (ProcessCluster, Blocking, Writer, String) {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect(0);
    let mut writer = Writer::start(&cluster, transport);
    let (key, _) = stop_in_mid_write(&cluster, &mut writer, OWNER);
    until(SLACK, "the owner looks at the plan", || gauges(&cluster, OWNER).plans_expired > 0);
    (cluster, client, writer, key)
}

/// An error of a writer whose plan is over.
fn is_over(answer: Result<String, String>) -> bool {
    answer.is_err_and(|e| e.starts_with("Reclaimed"))
}

/// In shared memory only the writer's own process can stop its copy.
pub fn a_stopped_writer_by_shm_holds_its_extent_and_others_go_on() {
    let (cluster, client, mut writer, key) = late(TransportChoice::Shm);
    let since = BootClock.now_ms();
    let mut round = 0;
    while BootClock.now_ms() - since < BESIDE_MS {
        let keys = put_some(&client, &format!("beside/{round}"), 4, OWNER);
        expect_all(&client, &keys);
        for key in &keys {
            client.remove(key.as_bytes()).unwrap();
        }
        round += 1;
    }
    let held = gauges(&cluster, OWNER);
    // Its extent is used by nobody: a put that fits only there is refused.
    let squeezed = put(&client, "squeezed", SQUEEZED_BYTES, OWNER, 1);
    writer.resume();
    // Its copy was in flight; whether it is notified or not, it ends here.
    let _ = writer.answer();
    if squeezed.is_ok() {
        let got = client.get(b"squeezed").unwrap();
        let wrong = content::wrong(b"squeezed", 1, SQUEEZED_BYTES, &got);
        panic!("the extent of a writer that may still write was reused: {wrong} wrong bytes");
    }
    assert_eq!(squeezed.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(held.fencing, 1, "held, and counted: {held:?}");
    assert!(held.heap_used >= LARGE_BYTES, "{held:?}");

    settled(&client, OWNER, SLACK);
    put(&client, "squeezed", SQUEEZED_BYTES, OWNER, 1).expect("the space came back");
    assert!(is_over(writer.step("write 0")), "once resumed it writes nothing more");
    assert!(is_over(writer.step("publish")));
    expect(&client, "squeezed", SQUEEZED_BYTES, 1);
    assert_eq!(client.exists(&[key.as_bytes()]).unwrap(), [Existence::Absent]);
    assert!(gauges(&cluster, OWNER).reclaimed > 0);
}

/// Over tcp the owner's agent writes the bytes, and can refuse them: nothing waits for the writer.
pub fn a_stopped_writer_by_tcp_changes_nothing_in_its_reused_extent() {
    let (_cluster, client, mut writer, key) = late(TransportChoice::Tcp);
    // While it is stopped.
    settled(&client, OWNER, SLACK);
    put(&client, "squeezed", SQUEEZED_BYTES, OWNER, 1).expect("its extent is free again");
    let rest = HEAP_BYTES as usize * 9 / 10 - SQUEEZED_BYTES;
    put(&client, "rest", rest, OWNER, 2).expect("all of it");

    writer.resume();
    assert!(writer.answer().is_err(), "its write is not believed to have succeeded");
    assert!(is_over(writer.step("write 0")));
    // Nor may a writer that uses the plan's token without checking a deadline.
    let raw = writer.step("raw").expect_err("a token of a plan that is over");
    assert!(raw.contains("token"), "refused for another reason: {raw}");
    assert!(is_over(writer.step("publish")));
    expect(&client, "squeezed", SQUEEZED_BYTES, 1);
    expect(&client, "rest", rest, 2);
    assert_eq!(client.exists(&[key.as_bytes()]).unwrap(), [Existence::Absent]);
}

/// A commit is delayed; when it arrives its plan is over and another writer has the key.
pub fn a_late_commit_of_an_expired_plan_is_reclaimed_and_commits_nobody_elses() {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect(0);
    let relay = Relay::to(cluster.port());
    let config = ClientConfig {
        job: cluster.job().to_string(),
        call_timeout_ms: 20_000,
        ..ClientConfig::default()
    };
    let slow = Blocking::connect(relay.address(), config).unwrap();
    let key = b"late commit";
    let plan = slow.open_for_write(key, 4, &on(OWNER)).unwrap();
    plan.write_page(0, b"late").unwrap();
    relay.hold(Direction::Up);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| slow.publish(plan));
        until(SLACK, "the commit is on its way", || relay.held(Direction::Up) > 0);
        // READY without a commit: at the deadline the owner adopts it.
        until(SLACK, "the owner looks and adopts", || gauges(&cluster, OWNER).adopted == 1);
        until(SLACK, "it is found", || client.get(key).is_ok_and(|got| got == b"late"[..]));
        client.remove(key).unwrap();
        let theirs = client.open_for_write(key, 6, &on(OWNER)).unwrap();
        theirs.write_from(0, b"the").unwrap();

        relay.release(Direction::Up);
        let end = committing.join().expect("no panic");
        assert_eq!(end.unwrap_err().error.kind(), ErrorKind::Reclaimed);
        let found = client.get(key).map_err(|e| e.kind());
        assert_eq!(found, Err(ErrorKind::NotReady), "half an object of another writer is not read");
        theirs.write_from(3, b"irs").unwrap();
        client.publish(theirs).unwrap();
    });
    assert_eq!(client.get(key).unwrap(), &b"theirs"[..]);
}

/// A writer that was stopped past its deadline between two steps is notified, on either data path.
pub fn a_publish_past_the_deadline_is_reclaimed_and_leaves_nothing() {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect(0);
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let mut writer = Writer::start(&cluster, transport);
        let key = format!("expired by {transport}");
        let key = key.replace(' ', "-");
        writer.open(&key, (100_000, 100_000), OWNER, 0);
        writer.step("write 0").expect("in time");
        writer.stop();
        let limit = Duration::from_millis(TIMES.write_ttl_ms) + SLACK;
        let expired = || gauges(&cluster, OWNER).plans_expired;
        let before = u64::from(transport == TransportChoice::Tcp);
        until(limit, "the plan expires", || expired() > before);
        writer.resume();
        assert!(is_over(writer.step("publish")));
        settled(&client, OWNER, SLACK);
        let found = client.exists(&[key.as_bytes()]).unwrap();
        assert_eq!(found, [Existence::Absent]);
        put(&client, &key, 100_000, OWNER, 1).expect("its key is free");
        expect(&client, &key, 100_000, 1);
    }
}
