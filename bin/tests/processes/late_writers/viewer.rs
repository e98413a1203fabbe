//! A process that views an object in place, and is stopped or killed meanwhile: the object's space
//! stays pinned until the view or the process ends [I9].

use super::scene::{
    LOG_BYTES, SLACK, SMALL_BYTES, Times, cluster, expect, gauges, on, put, settled,
};
use super::writer::Writer;
use crate::cluster_process::until;
use crate::content;
use nkv::{PutOptions, TransportChoice};
use std::time::Duration;

const TIMES: Times = Times { ttl_ms: 1_000, write_ttl_ms: 2_000 };

/// Objects that fill the heap of rank 1 more than once.
fn fill_over(client: &nkv::Blocking, round: u32) {
    let opts: PutOptions = on(1);
    for i in 0..40 {
        let key = format!("fill/{round}/{i}");
        let value = content::bytes(key.as_bytes(), 0, 4 << 20);
        client.put(key.as_bytes(), &value, &opts).expect("room is made");
    }
}

pub fn i9_a_view_of_a_stopped_process_holds_its_object_until_it_is_dropped() {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect_by(0, TransportChoice::Shm);
    put(&client, "seen", SMALL_BYTES, 1, 5).unwrap();
    let mut viewer = Writer::start(&cluster, TransportChoice::Shm);
    viewer.step(&format!("view seen {SMALL_BYTES} 5")).expect("a view");
    viewer.stop();
    client.remove(b"seen").unwrap();
    until(SLACK, "only the view holds it", || gauges(&cluster, 1).pinned == 1);
    fill_over(&client, 0);
    // Longer than the membership's TTL: no clock ends a pin.
    std::thread::sleep(Duration::from_millis(TIMES.ttl_ms + 500));
    fill_over(&client, 1);
    assert_eq!(gauges(&cluster, 1).pinned, 1, "a stopped process still looks");
    viewer.resume();
    viewer.step("observe").expect("the bytes are what they were");
    viewer.step("unview").unwrap();
    until(SLACK, "its space is free", || gauges(&cluster, 1).pinned == 0);
    settled(&client, 1, SLACK);
}

pub fn i9_a_view_of_a_killed_process_ends_with_it() {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect_by(0, TransportChoice::Shm);
    for round in 0..5 {
        let key = format!("seen/{round}");
        put(&client, &key, SMALL_BYTES, 1, round).unwrap();
        let mut viewer = Writer::start(&cluster, TransportChoice::Shm);
        viewer.step(&format!("view {key} {SMALL_BYTES} {round}")).expect("a view");
        client.remove(key.as_bytes()).unwrap();
        until(SLACK, "only the view holds it", || gauges(&cluster, 1).pinned == 1);
        viewer.kill();
        until(SLACK, "its death freed it", || gauges(&cluster, 1).pinned == 0);
    }
    put(&client, "after", SMALL_BYTES, 1, 9).unwrap();
    expect(&client, "after", SMALL_BYTES, 9);
    settled(&client, 1, SLACK);
}

pub fn i9_a_log_goes_on_beside_a_view_and_takes_its_bytes_back_when_its_process_was_killed() {
    let cluster = cluster(2, TIMES);
    let client = cluster.connect_by(0, TransportChoice::Shm);
    let opts = on(1).device_alloc(true);
    let by_log = || client.client().write_counters().by_log;
    let put = |key: &str| {
        client.put(key.as_bytes(), &content::bytes(key.as_bytes(), 7, SMALL_BYTES), &opts).unwrap();
    };
    put("seen");
    assert_eq!(by_log(), 1, "through the log");
    let mut viewer = Writer::start(&cluster, TransportChoice::Shm);
    let view = format!("view seen {SMALL_BYTES} 7");
    until(SLACK, "a view", || viewer.step(&view).is_ok());
    // Several logs full, and slower than it makes room: the view holds its bytes, and not the tail.
    let mut n = 0;
    let mut fill = || {
        for _ in 0..5 * LOG_BYTES / SMALL_BYTES as u64 {
            n += 1;
            put(&format!("fill/{n}"));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    fill();
    assert!(by_log() > 2 * LOG_BYTES / SMALL_BYTES as u64, "through the log: {}", by_log());
    let passed = || gauges(&cluster, 1).log_passed_over_bytes;
    assert!(passed() > 0, "it was passed over");
    viewer.kill();
    until(SLACK, "its death freed it", || gauges(&cluster, 1).pinned == 0);
    fill();
    let before = passed();
    fill();
    assert_eq!(passed(), before, "nothing is passed over any more");
}
