//! Reads and lookups, each answer checked against the ledger.

use super::writes::MAX_VALUE;
use super::{Worker, is_absent};
use crate::ledger::{KnownBy, Outcome, Reading, SlotEpoch};
use crate::stack;
use nkv::message::{Existence, Location, ObjMeta};

/// How long a read waits for an object at most.
const AWAITED_MS: u64 = 300;
/// Keys in one page of a listing.
const LISTED: u64 = 50;

fn spot(meta: &ObjMeta) -> SlotEpoch {
    let at = meta.at;
    SlotEpoch { incarnation: at.incarnation, slot: at.slot, epoch: at.epoch }
}

impl Worker {
    /// The answer is that no owner has it; owners of logs were asked too.
    fn absent(&self, key: usize, began: u64) {
        let roster = self.cluster.roster(began);
        self.cluster.ledger.check_absence((key, began), KnownBy::ByAll, &roster);
    }

    fn reading(&self, keys: &[usize]) -> Vec<Reading> {
        keys.iter().map(|key| self.cluster.ledger.reading(*key)).collect()
    }

    pub(super) async fn get(&mut self) {
        let (key, began) = (self.key(), self.cluster.ledger.moment());
        stack::read_from();
        let reading = self.cluster.ledger.reading(key);
        let read = self.client.get(&self.name(key)).await;
        drop(reading);
        self.report("get", key, Outcome::of(&read));
        if is_absent(&read) {
            self.absent(key, began);
        }
        if let Ok(bytes) = read {
            self.cluster.check_bytes(key, began, &bytes, &stack::read_from());
        }
    }

    pub(super) async fn get_many(&mut self) {
        let (keys, began) = (self.some_keys(6), self.cluster.ledger.moment());
        stack::read_from();
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let mut buffers = vec![vec![0; MAX_VALUE as usize]; keys.len()];
        let pairs = names.iter().zip(&mut buffers);
        let mut items: Vec<_> = pairs.map(|(k, b)| (&k[..], &mut b[..])).collect();
        let reading = self.reading(&keys);
        let read = self.client.get_many_into(&mut items).await;
        drop(reading);
        let from = stack::read_from();
        for ((key, buffer), read) in keys.into_iter().zip(&buffers).zip(read) {
            self.report("get-many", key, Outcome::of(&read));
            if is_absent(&read) {
                self.absent(key, began);
            }
            if let Ok(n) = read {
                self.cluster.check_bytes(key, began, &buffer[..n], &from);
            }
        }
    }

    pub(super) async fn get_when_ready(&mut self) {
        let (key, began) = (self.key(), self.cluster.ledger.moment());
        let limit = self.dice.ms(0, AWAITED_MS);
        stack::read_from();
        let reading = self.cluster.ledger.reading(key);
        let read = self.client.get_when_ready(&self.name(key), limit).await;
        drop(reading);
        self.report("get-when-ready", key, Outcome::of(&read));
        if let Ok(bytes) = read {
            self.cluster.check_bytes(key, began, &bytes, &stack::read_from());
        }
    }

    /// In buffers or, as layers, in the order in which they are READY.
    pub(super) async fn get_many_when_ready(&mut self) {
        let (keys, began) = (self.some_keys(6), self.cluster.ledger.moment());
        let limit = self.dice.ms(0, AWAITED_MS);
        stack::read_from();
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let reading = self.reading(&keys);
        let mut read: Vec<(usize, nkv::Result<Vec<u8>>)> = Vec::new();
        if self.dice.permille(500) {
            let names: Vec<_> = names.iter().map(|k| &k[..]).collect();
            let Ok(mut layers) = self.client.when_ready(&names, limit) else { return };
            while let Some((n, bytes)) = layers.next().await {
                read.push((keys[n], bytes.map(|bytes| bytes.to_vec())));
            }
        } else {
            let mut buffers = vec![vec![0; MAX_VALUE as usize]; keys.len()];
            let pairs = names.iter().zip(&mut buffers);
            let mut items: Vec<_> = pairs.map(|(k, b)| (&k[..], &mut b[..])).collect();
            let lengths = self.client.get_many_when_ready_into(&mut items, limit).await;
            let whole = |(n, bytes): (nkv::Result<usize>, Vec<u8>)| n.map(|n| bytes[..n].to_vec());
            let whole = lengths.into_iter().zip(buffers).map(whole);
            read.extend(keys.iter().copied().zip(whole));
        }
        drop(reading);
        let from = stack::read_from();
        for (key, bytes) in read {
            self.report("get-many-when-ready", key, Outcome::of(&bytes));
            if let Ok(bytes) = bytes {
                self.cluster.check_bytes(key, began, &bytes, &from);
            }
        }
    }

    pub(super) async fn exists(&mut self) {
        let (keys, began) = (self.some_keys(8), self.cluster.ledger.moment());
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let names: Vec<_> = names.iter().map(|k| &k[..]).collect();
        let found = self.client.exists(&names).await;
        self.report("exists", keys[0], Outcome::of(&found));
        for (key, found) in keys.into_iter().zip(found.unwrap_or_default()) {
            if found == Existence::Absent {
                let roster = self.cluster.roster(began);
                self.cluster.ledger.check_absence((key, began), KnownBy::ByTheMaster, &roster);
            }
        }
    }

    pub(super) async fn get_location(&mut self) {
        let (key, began) = (self.key(), self.cluster.ledger.moment());
        let found = self.client.get_location(&self.name(key)).await;
        self.report("get-location", key, Outcome::of(&found));
        if is_absent(&found) {
            self.absent(key, began);
        }
        // No node has a disk here.
        if let Some(meta) = found.ok().and_then(Location::into_memory) {
            // If the master does not answer this may be the last known location: only a hint.
            self.cluster.ledger.check_hint(key, spot(&meta));
            self.remember(key, meta);
        }
    }

    pub(super) async fn read_where_it_was(&mut self) {
        if self.remembered.is_empty() {
            return;
        }
        let (key, meta) = self.dice.pick(&self.remembered).clone();
        let began = self.cluster.ledger.moment();
        stack::read_from();
        let mut bytes = vec![0; meta.object.bytes_total as usize];
        let reading = self.cluster.ledger.reading(key);
        let read = self.client.read_into(&meta, &mut bytes).await;
        drop(reading);
        self.report("read-into", key, Outcome::of(&read));
        if read.is_ok() {
            self.cluster.check_bytes(key, began, &bytes, &stack::read_from());
        }
    }

    pub(super) async fn match_prefix(&mut self) {
        let members = self.cluster.plan.members;
        let first = self.dice.below(self.cluster.plan.families as u64) as usize * members;
        let keys: Vec<usize> = (first..first + members).collect();
        let began = self.cluster.ledger.moment();
        stack::read_from();
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let names: Vec<_> = names.iter().map(|k| &k[..]).collect();
        let run = self.client.match_prefix(&names).await;
        self.report("match-prefix", first, Outcome::of(&run));
        let (from, members) = (stack::read_from(), self.cluster.roster(began).members);
        let run = run.unwrap_or_default().into_iter().filter_map(Location::into_memory);
        for (key, meta) in keys.into_iter().zip(run) {
            self.cluster.ledger.check_location((key, began), spot(&meta), &from, &members);
            self.remember(key, meta);
        }
    }

    pub(super) async fn list(&mut self) {
        let page = self.dice.between(1, LISTED) as usize;
        let listed = self.client.list(Some("family"), None, page).await;
        self.report("list", 0, Outcome::of(&listed));
        let names = listed.iter().flatten().map(|l| &l.key);
        self.cluster.ledger.check_names(names.map(|name| &**name));
    }
}
