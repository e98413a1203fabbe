//! Removals, of one key, of many and by pattern.

use super::{Worker, is_absent};
use crate::cluster::Cluster;
use crate::ledger::{KnownBy, LogicalTime, Outcome, Roster};
use std::rc::Rc;

/// Removals in progress: given up if dropped before they ended.
struct Removing {
    cluster: Rc<Cluster>,
    began: LogicalTime,
    left: Vec<usize>,
}

impl Removing {
    fn end(&mut self, key: usize, outcome: Outcome) {
        self.left.retain(|k| *k != key);
        let roster = self.cluster.roster(self.began);
        self.cluster.ledger.end_removal(self.began, key, outcome, &roster);
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        for key in std::mem::take(&mut self.left) {
            let (ledger, nobody) = (&self.cluster.ledger, Roster::default());
            ledger.end_removal(self.began, key, Outcome::Dropped, &nobody);
        }
    }
}

impl Worker {
    fn begin_removal(&self, keys: &[usize], known_by: KnownBy) -> Removing {
        let began = self.cluster.ledger.begin_removal(keys, known_by);
        Removing { cluster: self.cluster.clone(), began, left: keys.to_vec() }
    }

    fn removed(&self, removing: &mut Removing, key: usize, done: &nkv::Result<()>) {
        removing.end(key, Outcome::of(done));
        if is_absent(done) {
            let roster = self.cluster.roster(removing.began);
            self.cluster.ledger.check_absence((key, removing.began), KnownBy::ByAll, &roster);
        }
    }

    pub(super) async fn remove(&mut self) {
        let key = self.key();
        let mut removing = self.begin_removal(&[key], KnownBy::ByAll);
        let done = self.client.remove(&self.name(key)).await;
        self.report("remove", key, Outcome::of(&done));
        self.removed(&mut removing, key, &done);
    }

    pub(super) async fn remove_many(&mut self) {
        let keys = self.some_keys(5);
        let mut removing = self.begin_removal(&keys, KnownBy::ByAll);
        let names: Vec<_> = keys.iter().map(|k| self.name(*k)).collect();
        let names: Vec<_> = names.iter().map(|k| &k[..]).collect();
        let done = self.client.remove_many(&names).await;
        for (key, done) in keys.into_iter().zip(done) {
            self.report("remove-many", key, Outcome::of(&done));
            self.removed(&mut removing, key, &done);
        }
    }

    pub(super) async fn remove_matching(&mut self) {
        let all = 0..self.cluster.ledger.keys();
        let family = self.dice.below(self.cluster.plan.families as u64);
        let last = self.dice.below(10);
        let (pattern, hit) = match self.dice.permille(500) {
            true => (format!("^family-{family:02}/"), format!("family-{family:02}/")),
            false => (format!("{last}$"), last.to_string()),
        };
        let matches = |k: &usize| {
            let name = self.name(*k);
            if pattern.starts_with('^') {
                name.starts_with(hit.as_bytes())
            } else {
                name.ends_with(hit.as_bytes())
            }
        };
        let keys: Vec<usize> = all.filter(matches).collect();
        let mut removing = self.begin_removal(&keys, KnownBy::ByTheMaster);
        let done = self.client.remove_matching(&pattern).await;
        self.report("remove-matching", 0, Outcome::of(&done));
        keys.iter().for_each(|key| removing.end(*key, Outcome::of(&done)));
    }

    pub(super) async fn remove_all(&mut self) {
        let keys: Vec<usize> = (0..self.cluster.ledger.keys()).collect();
        let mut removing = self.begin_removal(&keys, KnownBy::ByAll);
        let done = self.client.remove_all().await;
        self.report("remove-all", 0, Outcome::of(&done));
        keys.iter().for_each(|key| removing.end(*key, Outcome::of(&done)));
    }
}
