//! Records every call of the load: how long it took, how it ended, whether a byte was wrong. It
//! does not stop at the first fault; the list of faults is bounded.

use crate::content;
use nkv::{Error, Result};
use nkv_pace::{HANGS, Stopwatch, Took};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every call ends within this, whichever process died.
pub const CALL_LIMIT_MS: u64 = 2_000;
/// What may be added to it here: three ranks, the load and the checks share two cores.
pub const CALL_MARGIN_MS: u64 = 300;
/// Most faults kept as text.
const MAX_FAULTS: usize = 20;

/// Counts so far.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Calls ended.
    pub calls: u64,
    /// Time of the slowest call.
    pub slowest_ms: u64,
    /// Description of that call.
    pub slowest: String,
    /// Bytes that were not what was written.
    pub wrong_bytes: u64,
    /// How calls ended, by verb and outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Faults: events that may not happen.
    pub faults: Vec<String>,
    /// Number of faults, also those not kept.
    pub faults_seen: u64,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Sums>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts so far.
    pub fn sums(&self) -> Sums {
        self.lock().clone()
    }

    /// Records a fault.
    pub fn fault(&self, what: String) {
        let mut sums = self.lock();
        sums.faults_seen += 1;
        if sums.faults.len() < MAX_FAULTS {
            sums.faults.push(what);
        }
    }

    /// Records the end of a call; `end` is `Ok` or the kind of its error.
    pub fn ended(&self, verb: &str, end: &str, what: &str, took: Took) {
        {
            let mut sums = self.lock();
            sums.calls += 1;
            *sums.outcomes.entry(format!("{verb}:{end}")).or_default() += 1;
            if took.ms > sums.slowest_ms {
                sums.slowest_ms = took.ms;
                sums.slowest = format!("{verb} {what} -> {end}");
            }
        }
        if !took.within(CALL_LIMIT_MS + CALL_MARGIN_MS) {
            self.fault(format!("{verb} {what} took {took} and ended with {end}"));
        }
    }

    /// Makes a call and records it; a call that hangs is dropped, so that the run itself ends.
    pub async fn make<T>(
        &self,
        verb: &str,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let watch = Stopwatch::start();
        let result = tokio::time::timeout(HANGS, work)
            .await
            .unwrap_or_else(|_| Err(Error::internal(format!("{verb} {what} hung for {HANGS:?}"))));
        let end = result.as_ref().map_or_else(|e| e.kind().to_string(), |_| "Ok".to_string());
        self.ended(verb, &end, what, watch.took());
        result
    }

    /// Compares what a read brought; true if it is right.
    pub fn compare(&self, key: &[u8], version: u64, len: usize, got: &[u8]) -> bool {
        let wrong = content::wrong(key, version, len, got);
        if wrong > 0 {
            self.lock().wrong_bytes += wrong;
            let (shown, n) = (String::from_utf8_lossy(key), got.len());
            self.fault(format!("{wrong} wrong bytes: read {n} of key {shown}, which has {len}"));
        }
        wrong == 0
    }

    /// Fails the test if there was a fault.
    pub fn assert_no_fault(&self, context: &str) {
        let sums = self.sums();
        assert!(
            sums.faults_seen == 0,
            "{context}: {} faults, wrong_bytes={}, slowest_call_ms={}\n  {}\noutcomes: {:?}",
            sums.faults_seen,
            sums.wrong_bytes,
            sums.slowest_ms,
            sums.faults.join("\n  "),
            sums.outcomes
        );
    }
}
