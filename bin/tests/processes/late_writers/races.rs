//! Remove racing puts of the same key, from processes of their own. An object that was open or
//! stored when a remove began is not readable once the remove has returned, neither by key nor by
//! location [I6].

use super::scene::{Times, cluster};
use super::writer::{Answer, Writer};
use crate::cluster_process::ProcessCluster;
use crate::content;
use nkv::message::{ObjMeta, PlanDesc};
use nkv::{Blocking, ErrorKind, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const TIMES: Times = Times { ttl_ms: 2_000, write_ttl_ms: 5_000 };
/// The one key, its bytes in so many pages, and its owner.
const KEY: &str = "raced";
const PAGES: u64 = 3;
const PAGE_BYTES: u64 = 16 << 10;
const BYTES: u64 = PAGES * PAGE_BYTES;
const OWNER: u32 = 1;
/// How long they race.
const RACE_MS: u64 = 2_500;
/// A race with fewer removes proves nothing.
const MIN_REMOVES: u64 = 20;
const MIN_OVERTAKEN: u64 = 10;
/// Longest pause before a page is a multiple of this.
const PAGE_PAUSE: Duration = Duration::from_micros(500);
/// Pause of the remover.
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// One version of the key.
struct Version {
    number: u64,
    meta: ObjMeta,
    // Time from which on it is open, published or committed.
    opened_ns: u64,
    // Time at which a remove that began later returned.
    removed_ns: Option<u64>,
}

#[derive(Default)]
struct Race {
    versions: Mutex<Vec<Version>>,
    faults: Mutex<Vec<String>>,
    removes: AtomicU64,
    overtaken: AtomicU64,
    published: AtomicU64,
    read: AtomicU64,
    over: AtomicBool,
}

impl Race {
    fn versions(&self) -> std::sync::MutexGuard<'_, Vec<Version>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// When a remove that began after this version was open had returned.
    fn removed_ns(&self, number: u64) -> Option<u64> {
        self.versions().iter().find(|v| v.number == number).and_then(|v| v.removed_ns)
    }

    /// Opens, writes and publishes again and again; `first` and `step` number its versions.
    fn write(&self, mut writer: Writer, first: u64, step: u64) {
        let mut number = first;
        while !self.is_over() {
            number += step;
            let open = format!("open {KEY} {BYTES} {PAGE_BYTES} {OWNER} {number}");
            let Ok(text) = writer.step(&open).map_err(|e| self.expect_busy(&e)) else { continue };
            let opened_ns = BootClock.now_ns();
            let plan: PlanDesc = serde_json::from_str(&text).expect("a plan in JSON");
            let version = Version { number, meta: plan.meta, opened_ns, removed_ns: None };
            self.versions().push(version);
            let mut written = Ok(());
            for page in 0..PAGES {
                // Every other version is open for long enough to be overtaken.
                std::thread::sleep(PAGE_PAUSE * (number % 4) as u32);
                written = written.and_then(|()| writer.step(&format!("write {page}")).map(drop));
            }
            let began_ns = BootClock.now_ns();
            let published = written.and_then(|()| writer.step("publish"));
            self.judge_publish(number, began_ns, published);
        }
    }

    /// Another version is there, being written, or being removed; or this one was, while its writer
    /// attached.
    fn expect_busy(&self, e: &str) {
        if !["AlreadyExists", "NotReady", "Reclaimed"].iter().any(|kind| e.starts_with(kind)) {
            self.fault(format!("open: {e}"));
        }
    }

    fn judge_publish(&self, number: u64, began_ns: u64, end: Answer) {
        match end {
            Ok(_) => {
                self.published.fetch_add(1, Ordering::Relaxed);
                // A remove that had returned before ended its plan.
                if self.removed_ns(number).is_some_and(|at| at < began_ns) {
                    self.fault(format!("version {number} was removed, and published afterwards"));
                }
            }
            Err(e) if e.starts_with("Reclaimed") => {
                self.overtaken.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => self.fault(format!("write or publish of version {number}: {e}")),
        }
    }

    fn remove(&self, client: &Blocking) {
        while !self.is_over() {
            std::thread::sleep(REMOVE_PAUSE);
            let began_ns = BootClock.now_ns();
            match client.remove(KEY.as_bytes()) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => {
                    self.fault(format!("remove: {e}"));
                    continue;
                }
            }
            self.removes.fetch_add(1, Ordering::Relaxed);
            let now = BootClock.now_ns();
            let mut gone = Vec::new();
            for v in self.versions().iter_mut() {
                if v.removed_ns.is_none() && v.opened_ns < began_ns {
                    v.removed_ns = Some(now);
                    gone.push((v.number, v.meta.clone()));
                }
            }
            for (number, meta) in gone {
                let mut dst = vec![0; BYTES as usize];
                match client.read_into(&meta, &mut dst) {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    other => self.fault(format!(
                        "version {number} was removed, and read where it lay: {other:?}"
                    )),
                }
            }
        }
    }

    fn read(&self, client: &Blocking) {
        while !self.is_over() {
            let began_ns = BootClock.now_ns();
            let got = match client.get(KEY.as_bytes()) {
                Ok(got) => got,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotReady) => continue,
                Err(e) => {
                    self.fault(format!("get: {e}"));
                    continue;
                }
            };
            self.read.fetch_add(1, Ordering::Relaxed);
            let numbers: Vec<u64> = self.versions().iter().rev().map(|v| v.number).collect();
            let is = |n: &u64| content::wrong(KEY.as_bytes(), *n, BYTES as usize, &got) == 0;
            match numbers.into_iter().find(is) {
                // Written, published and read before its writer recorded it.
                None if self.is_over() => {}
                None => self.fault("bytes that are no version's".to_string()),
                Some(n) if self.removed_ns(n).is_some_and(|at| at < began_ns) => {
                    self.fault(format!("version {n} was removed, and is read"));
                }
                Some(_) => {}
            }
        }
    }
}

fn start(cluster: &ProcessCluster) -> (Writer, Writer, Blocking, Blocking) {
    (
        Writer::start(cluster, TransportChoice::Shm),
        Writer::start(cluster, TransportChoice::Tcp),
        cluster.connect(0),
        cluster.connect_by(1, TransportChoice::Tcp),
    )
}

pub fn what_a_remove_overtook_is_never_read_again() {
    let cluster = cluster(2, TIMES);
    let (by_shm, by_tcp, remover, reader) = start(&cluster);
    let race = Race::default();
    std::thread::scope(|scope| {
        scope.spawn(|| race.write(by_shm, 0, 2));
        scope.spawn(|| race.write(by_tcp, 1, 2));
        scope.spawn(|| race.remove(&remover));
        scope.spawn(|| race.read(&reader));
        std::thread::sleep(Duration::from_millis(RACE_MS));
        race.over.store(true, Ordering::Release);
    });
    let faults = race.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(faults.is_empty(), "{} faults: {:#?}", faults.len(), &faults[..faults.len().min(10)]);
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (removes, overtaken) = (count(&race.removes), count(&race.overtaken));
    println!(
        "{removes} removes, {} published, {overtaken} overtaken, {} reads",
        count(&race.published),
        count(&race.read)
    );
    assert!(removes >= MIN_REMOVES && overtaken >= MIN_OVERTAKEN, "{removes}, {overtaken}");
}
