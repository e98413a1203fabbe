//! Values in several buffers, and many values at once, by every transport of one host.

use crate::embedding::log::{at_rest, gauges, with_log};
use crate::embedding::{bytes, client_by};
use nkv_actors::{Client, Cluster, ErrorKind, IfExists, PutOptions, TransportChoice};
use nkv_store::testkit::Unaddressable;
use nkv_store::{AnonMemory, Memory};
use nkv_transport::verbs::{DeviceBuffer, Source, Target};

const RANKS: u32 = 2;

async fn handles(cluster: &Cluster) -> Vec<(&'static str, Client)> {
    vec![
        ("embedded", cluster.client()),
        ("shm", client_by(cluster, TransportChoice::Shm).await),
        ("tcp", client_by(cluster, TransportChoice::Tcp).await),
    ]
}

/// Cuts bytes into parts of these lengths, with what is left at the end.
fn cut<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    for len in lens {
        let (part, rest) = bytes.split_at((*len).min(bytes.len()));
        parts.push(part);
        bytes = rest;
    }
    parts.push(bytes);
    parts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_one_object_whatever_their_lengths() {
    let cluster = Cluster::start(RANKS, with_log("parts")).await.unwrap();
    let opts = PutOptions::default().device_alloc(true);
    let many = vec![3; 100];
    for (name, handle) in handles(&cluster).await {
        let lens: [&[usize]; 6] = [&[], &[0], &[1, 7, 0, 4096], &[65_536], &[99_999, 1], &many];
        for (i, lens) in lens.into_iter().enumerate() {
            let key = format!("{name}/{i}");
            let value = bytes(100_000, i as u8);
            handle.put_parts(key.as_bytes(), &cut(&value, lens), &opts).await.unwrap();
            assert_eq!(handle.get(key.as_bytes()).await.unwrap(), value, "{key}");
            let mut room = vec![0; 100_010];
            let mut rest = &mut room[..];
            let mut places = Vec::new();
            for len in lens.iter().chain([&100_010]) {
                let (place, later) = rest.split_at_mut((*len).min(rest.len()));
                places.push(place);
                rest = later;
            }
            let read = handle.get_into_parts(key.as_bytes(), &mut places).await.unwrap();
            assert!(read == value.len() && room[..read] == value, "{key}");
            let (mut a, mut b) = (vec![0; 50_000], vec![0; 49_999]);
            let small = handle.get_into_parts(key.as_bytes(), &mut [&mut a, &mut b]).await;
            assert_eq!(small.unwrap_err().kind(), ErrorKind::InvalidArgument, "{key}");
        }
        let absent = handle.get_into_parts::<Target<'_>>(b"absent", &mut []).await;
        assert_eq!(absent.unwrap_err().kind(), ErrorKind::NotFound);
    }
    // By the log, whether they were joined first or not.
    for rank in 0..RANKS as usize {
        at_rest(&cluster, rank).await;
    }
    let taken: u64 = (0..RANKS as usize).map(|rank| gauges(&cluster, rank).log_accepted).sum();
    assert_eq!(taken, 3 * 6);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_put_in_parts_and_read_whole() {
    let cluster = Cluster::start(RANKS, with_log("parts-many")).await.unwrap();
    let by_log = PutOptions::default().device_alloc(true);
    for (name, handle) in handles(&cluster).await {
        let keys: Vec<_> = (0..60).map(|i| format!("{name}/{i}").into_bytes()).collect();
        let values: Vec<_> = (0..60).map(|i| bytes(1 + 997 * i, i as u8)).collect();
        let parts: Vec<_> = values.iter().map(|value| cut(value, &[500, 20_000])).collect();
        let items: Vec<(&[u8], &[&[u8]])> =
            keys.iter().zip(&parts).map(|(k, p)| (&k[..], &p[..])).collect();
        let put = handle.put_many_parts(&items, &by_log).await;
        assert!(put.iter().all(Result::is_ok), "{name}: {put:?}");
        let mut names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        names.insert(30, b"absent");
        let mut found = handle.get_many(&names).await;
        assert_eq!(found.remove(30).unwrap_err().kind(), ErrorKind::NotFound);
        for (found, value) in found.into_iter().zip(&values) {
            assert!(found.unwrap() == value, "{name}");
        }
        let bad: [(&[u8], &[&[u8]]); 2] = [(b"", &[b"x"]), (b"good", &[b"a", b"b"])];
        let put = handle.put_many_parts(&bad, &by_log).await;
        assert!(put[0].is_err() && put[1].is_ok(), "{name}: {put:?}");
    }
    cluster.stop().await;
}

/// Memory of a device with these bytes.
fn in_device(bytes: &[u8]) -> Unaddressable {
    let memory = AnonMemory::new(bytes.len().max(1) as u64).unwrap();
    memory.write(0, bytes).unwrap();
    Unaddressable(memory)
}

fn whole(device: &Unaddressable) -> DeviceBuffer<'_> {
    DeviceBuffer::new(device, 0, device.len() as usize).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_in_a_device_are_stored_and_read_by_log_and_by_plan() {
    let cluster = Cluster::start(RANKS, with_log("parts-device")).await.unwrap();
    let paths = [
        ("log", PutOptions::default().device_alloc(true)),
        ("plan", PutOptions::default().device_alloc(false)),
        ("fail", PutOptions::default().if_exists(IfExists::Fail)),
    ];
    for (name, handle) in handles(&cluster).await {
        for (path, opts) in &paths {
            for size in [1, 4_096, 300_001] {
                let key = format!("{name}/{path}/{size}");
                let (value, tail) = (bytes(size, 7), bytes(40, 9));
                let device = in_device(&value);
                let parts = [Source::Device(whole(&device)), Source::Host(&tail)];
                handle.put_sources(key.as_bytes(), &parts, opts).await.unwrap();
                let both = [&value[..], &tail].concat();
                assert_eq!(handle.get(key.as_bytes()).await.unwrap(), both, "{key}");
                let (into, mut rest) = (in_device(&vec![0; size]), [0; 100]);
                let mut places = [Target::Device(whole(&into)), Target::Host(&mut rest)];
                let read = handle.get_into_parts(key.as_bytes(), &mut places).await.unwrap();
                let mut there = vec![0; size];
                into.read(0, &mut there).unwrap();
                assert!(read == size + 40 && there == value && rest[..40] == tail, "{key}");
                let again = handle.put_sources(key.as_bytes(), &parts, opts).await;
                let refused = again.err().map(|e| e.kind());
                let fails = (*path == "fail").then_some(ErrorKind::AlreadyExists);
                assert_eq!(refused, fails, "{key}");
            }
            let small = in_device(&[0; 100]);
            let mut place = [Target::Device(whole(&small))];
            let key = format!("{name}/{path}/4096");
            let refused = handle.get_into_parts(key.as_bytes(), &mut place).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_parts_and_many_objects_of_a_device_keep_their_order() {
    let cluster = Cluster::start(RANKS, with_log("parts-devices")).await.unwrap();
    let opts = PutOptions::default().device_alloc(true);
    for (name, handle) in handles(&cluster).await {
        // More parts than one chain of verbs has.
        let value = bytes(90_000, 1);
        let devices: Vec<_> = cut(&value, &[900; 99]).into_iter().map(in_device).collect();
        let parts: Vec<_> = devices.iter().map(|d| Source::Device(whole(d))).collect();
        let key = format!("{name}/parts");
        handle.put_sources(key.as_bytes(), &parts, &opts).await.unwrap();
        assert_eq!(handle.get(key.as_bytes()).await.unwrap(), value, "{key}");
        let keys: Vec<_> = (0..30).map(|i| format!("{name}/{i}").into_bytes()).collect();
        let values: Vec<_> = (0..30).map(|i| in_device(&bytes(3_000 + i, i as u8))).collect();
        let parts: Vec<_> = values.iter().map(|v| [Source::Device(whole(v))]).collect();
        let mut items: Vec<(&[u8], &[Source<'_>])> =
            keys.iter().zip(&parts).map(|(k, p)| (&k[..], &p[..])).collect();
        items.insert(11, (b"", &[]));
        let mut put = handle.put_many_sources(&items, &opts).await;
        assert!(put.remove(11).is_err() && put.iter().all(Result::is_ok), "{name}: {put:?}");
        let places: Vec<_> = (0..30).map(|i| in_device(&vec![0; 3_000 + i])).collect();
        let mut targets: Vec<_> = places.iter().map(|p| [Target::Device(whole(p))]).collect();
        let mut wanted: Vec<(&[u8], &mut [Target<'_>])> =
            keys.iter().zip(&mut targets).map(|(k, t)| (&k[..], &mut t[..])).collect();
        wanted.insert(5, (b"absent", &mut []));
        let mut read = handle.get_many_into_parts(&mut wanted).await;
        assert_eq!(read.remove(5).unwrap_err().kind(), ErrorKind::NotFound);
        for (i, (read, place)) in read.into_iter().zip(&places).enumerate() {
            let mut there = vec![0; 3_000 + i];
            place.read(0, &mut there).unwrap();
            assert!(read == Ok(3_000 + i) && there == bytes(3_000 + i, i as u8), "{name}/{i}");
        }
    }
    cluster.stop().await;
}
