//! Reads and lookups, each answer checked against the ledger.

use super::writes::MAX_VALUE;
use super::{Worker, is_absent};
use crate::ledger::{KnownBy, Outcome, SlotEpoch};
use crate::stack;
use nkv::message::{Existence, ObjMeta};

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

    pub(super) async fn get(&mut self) {
        let (key, began) = (self.key(), self.cluster.ledger.moment());
        stack::read_from();
        let read = self.client.get(&self.name(key)).await;
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
        let read = self.client.get_many_into(&mut items).await;
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
        if let Ok(meta) = found {
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
        let read = self.client.read_into(&meta, &mut bytes).await;
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
        for (key, meta) in keys.into_iter().zip(run.unwrap_or_default()) {
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
