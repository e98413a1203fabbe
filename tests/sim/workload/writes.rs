//! Puts: whole, in batches, and page by page with pauses in which a plan may end.

use super::Worker;
use crate::content::PutId;
use crate::ledger::{Ledger, Outcome};
use nkv::{ErrorKind, PutOptions, WritePlan};
use std::sync::Arc;

/// Longest value in bytes.
pub const MAX_VALUE: u64 = 12 << 10;

/// A put in progress: given up if it is dropped before it ended.
struct Putting {
    ledger: Arc<Ledger>,
    put: PutId,
}

impl Putting {
    fn end(&self, outcome: Outcome) {
        self.ledger.end_put(self.put, outcome);
    }
}

impl Drop for Putting {
    fn drop(&mut self) {
        // Changes nothing if it has ended.
        self.ledger.end_put(self.put, Outcome::Dropped);
    }
}

impl Worker {
    fn size(&mut self) -> usize {
        // Replicas of empty objects cannot be told apart from other puts.
        let empty = if self.cluster.plan.makes_replicas() { 0 } else { 2 };
        let (low, high) = match self.dice.weighted(&[empty, 15, 60, 23]) {
            0 => (0, 0),
            1 => (1, 64),
            2 => (65, 4096),
            _ => (4097, MAX_VALUE),
        };
        self.dice.between(low, high) as usize
    }

    fn begin(&mut self, key: usize, opts: &PutOptions) -> (Putting, Vec<u8>) {
        let by_log = *opts == opts.clone().device_alloc(true);
        let ledger = self.cluster.ledger.clone();
        let (put, value) = ledger.begin_put(key, self.size(), by_log);
        let several = *opts != opts.clone().replicas(1);
        if by_log && several {
            self.cluster.coverage.borrow_mut().count("puts: of several replicas, into logs");
        }
        if several || self.cluster.plan.makes_extras() {
            ledger.asks_for_replicas(put);
        }
        if let Some(ttl) = self.until_read {
            ledger.ends_after_read(put, ttl);
        }
        (Putting { ledger, put }, value)
    }

    pub(super) async fn put(&mut self) {
        let (key, opts) = (self.key(), self.options());
        let (putting, value) = self.begin(key, &opts);
        let done = self.client.put(&self.name(key), &value, &opts).await;
        putting.end(Outcome::of(&done));
        self.report("put", key, Outcome::of(&done));
    }

    pub(super) async fn put_many(&mut self) {
        let (keys, opts) = (self.some_keys(6), self.options());
        let (putting, values): (Vec<_>, Vec<_>) =
            keys.iter().map(|k| self.begin(*k, &opts)).unzip();
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let items: Vec<_> = names.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
        let done = self.client.put_many(&items, &opts).await;
        for ((key, putting), done) in keys.iter().zip(&putting).zip(done) {
            putting.end(Outcome::of(&done));
            self.report("put-many", *key, Outcome::of(&done));
        }
    }

    pub(super) async fn put_by_pages(&mut self) {
        // A put page by page needs a plan.
        let (key, opts) = (self.key(), self.options().device_alloc(false).replicas(1));
        let (putting, value) = self.begin(key, &opts);
        let name = self.name(key);
        let opened = self.client.open_for_write(&name, value.len() as u64, &opts).await;
        self.report("open", key, Outcome::of(&opened));
        let plan = match opened {
            Ok(plan) => plan,
            Err(e) => return putting.end(Outcome::of::<()>(&Err(e))),
        };
        let whole = self.write_pages(&plan, &value).await;
        let (outcome, by_key) = self.finish(plan, &name, whole).await;
        if by_key {
            putting.ledger.by_key(putting.put);
        }
        putting.end(outcome);
        self.report("put-pages", key, outcome);
    }

    /// Writes the pages in some order; false if one was refused, or left out.
    async fn write_pages(&mut self, plan: &WritePlan, value: &[u8]) -> bool {
        let mut pages: Vec<u32> = (0..plan.n_pages()).collect();
        for last in (1..pages.len()).rev() {
            pages.swap(last, self.dice.below(last as u64 + 1) as usize);
        }
        let slow = self.dice.permille(150);
        for page in pages {
            if slow && self.dice.permille(300) {
                let ttl = self.cluster.plan.config(0).write_ttl_ms;
                tokio::time::sleep(self.dice.ms(0, ttl)).await;
            }
            if self.dice.permille(10) {
                return false;
            }
            let at = page as usize * plan.page_bytes() as usize;
            let end = value.len().min(at + plan.page_bytes() as usize);
            if let Err(e) = plan.write_page(page, &value[at..end]) {
                self.report("write-page", 0, Outcome::of::<()>(&Err(e)));
                return false;
            }
        }
        true
    }

    /// How it ended, and whether the handle looked for its plan by the key.
    async fn finish(&mut self, plan: WritePlan, name: &[u8], whole: bool) -> (Outcome, bool) {
        let outcome = match self.dice.weighted(&[70, 10, 10, 10]) {
            0 => Outcome::of(&plan.publish().await.map_err(nkv::Error::from)),
            1 if whole => {
                let done = self.client.commit(name).await;
                drop(plan);
                return (Outcome::of(&done), true);
            }
            2 => {
                let done = plan.abort().await;
                self.report("abort", 0, Outcome::of(&done));
                Outcome::of::<()>(&Err(nkv::Error::new(ErrorKind::Reclaimed, "aborted")))
            }
            _ => Outcome::Dropped,
        };
        (outcome, false)
    }
}
