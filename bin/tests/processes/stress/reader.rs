//! A reading process: it reads single keys, batches, in place and by location, and calls `exists`.
//! Every read returns the exact bytes of some version of the key, or no object.

use super::call_log::CallLog;
use super::process::{Stopped, Task};
use super::values::{self, KEYS, MAX_BYTES};
use crate::random::Random;
use nkv::message::Location;
use nkv::{Blocking, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Keys of one batch.
const BATCH: u64 = 8;
/// Longest hold of most views, and of some that are held for more than one lap of a log.
const HOLD_MS: u64 = 10;
const LONG_HOLD_MS: u64 = 600;
const LONG_PERCENT: u64 = 3;

struct Reader {
    client: Blocking,
    random: Random,
    // The present generation of each writer.
    generations: Arc<Vec<AtomicU64>>,
    buffers: Vec<Vec<u8>>,
    call_log: CallLog,
}

/// Works until it is asked to stop.
pub fn run(
    client: Blocking,
    task: &Task,
    generations: Arc<Vec<AtomicU64>>,
    stopped: &Stopped,
) -> Result<()> {
    let buffers = (0..BATCH).map(|_| vec![0; MAX_BYTES]).collect();
    let random = Random::new(task.seed, 0);
    let mut reader = Reader { client, random, generations, buffers, call_log: CallLog::default() };
    while !stopped.is() {
        let key = reader.key();
        match reader.random.below(10) {
            0..=2 => reader.get(&key),
            3..=4 => reader.get_many(),
            5..=7 => reader.read_view(&key),
            8 => reader.exists(),
            _ => reader.match_prefix(),
        }
    }
    reader.call_log.print_sums();
    reader.client.close();
    Ok(())
}

impl Reader {
    fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(KEYS);
        self.key_of(number)
    }

    /// A key of a present writer, or of a killed one.
    fn key_of(&mut self, number: u64) -> Vec<u8> {
        let writer = self.random.below(self.generations.len() as u64);
        let generation = self.generations[writer as usize].load(Ordering::Relaxed);
        let before = u64::from(self.random.percent(20));
        values::key(writer, generation.saturating_sub(before), number)
    }

    fn batch(&mut self) -> Vec<Vec<u8>> {
        (0..BATCH).map(|_| self.key()).collect()
    }

    fn check(&mut self, verb: &str, key: &[u8], got: &[u8]) {
        if let Err(what) = values::version(key, got) {
            self.call_log.fault(&format!("{verb}: {what}"));
        }
        self.call_log.count(verb, "Ok");
    }

    fn get(&mut self, key: &[u8]) {
        match self.client.get(key) {
            Ok(got) => self.check("get", key, &got),
            Err(e) => self.call_log.failed("get", key, &e),
        }
    }

    fn get_many(&mut self) {
        let keys = self.batch();
        let mut buffers = std::mem::take(&mut self.buffers);
        let mut items: Vec<(&[u8], &mut [u8])> =
            keys.iter().zip(&mut buffers).map(|(k, b)| (&k[..], &mut b[..])).collect();
        let results = self.client.get_many_into(&mut items);
        for ((key, buffer), result) in keys.iter().zip(&buffers).zip(results) {
            match result {
                Ok(n) => self.check("get_many", key, &buffer[..n]),
                Err(e) => self.call_log.failed("get_many", key, &e),
            }
        }
        self.buffers = buffers;
    }

    /// Checks that the bytes of a view do not change until it is dropped [I9].
    fn read_view(&mut self, key: &[u8]) {
        match self.client.get_view(key) {
            Ok(view) => {
                let before = values::version(key, &view);
                let longest =
                    if self.random.percent(LONG_PERCENT) { LONG_HOLD_MS } else { HOLD_MS };
                std::thread::sleep(Duration::from_millis(self.random.below(longest)));
                let after = values::version(key, &view);
                if before.is_err() || before != after {
                    self.call_log.fault(&format!("a view: {before:?}, and later {after:?}"));
                }
                self.call_log.count("view", "Ok");
            }
            // Not by tcp: a copy then.
            Err(e) if e.kind() == ErrorKind::Unsupported => self.get(key),
            Err(e) => self.call_log.failed("view", key, &e),
        }
    }

    fn exists(&mut self) {
        let keys = self.batch();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        match self.client.exists(&keys) {
            Ok(list) if list.len() == keys.len() => self.call_log.count("exists", "Ok"),
            Ok(list) => self.call_log.fault(&format!("{} answers about {BATCH} keys", list.len())),
            Err(e) => self.call_log.failed("exists", b"a batch", &e),
        }
    }

    /// Reads matched objects by their locations.
    fn match_prefix(&mut self) {
        let first = self.key();
        let keys: Vec<Vec<u8>> = std::iter::once(first).chain(self.batch()).collect();
        let refs: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let metas = match self.client.match_prefix(&refs) {
            Ok(metas) => metas,
            Err(e) => return self.call_log.failed("match_prefix", b"a batch", &e),
        };
        self.call_log.count("match_prefix", "Ok");
        let mut buffer = vec![0; MAX_BYTES];
        let metas = metas.into_iter().filter_map(Location::into_memory);
        for (key, meta) in keys.iter().zip(metas) {
            match self.client.read_into(&meta, &mut buffer) {
                Ok(n) => self.check("read_into", key, &buffer[..n]),
                Err(e) => self.call_log.failed("read_into", key, &e),
            }
        }
    }
}
