//! Striped objects, under keys of their own. Memory is not judged, since it holds manifests and
//! stripes: a read must return all bytes of one put of its key, and at the end nothing is left.

use super::Worker;
use crate::content::{is_of, value};
use crate::ledger::Outcome;
use nkv::IfExists;

/// Keys of striped objects. No pattern of a removal matches their names.
const KEYS: u64 = 5;
/// Of a value, in pages of 4 KiB: one makes no stripes.
const PAGES: (u64, u64) = (1, 5);
/// Numbers of these puts begin here: no other put has them.
const FIRST_PUT: u64 = 1 << 40;

impl Worker {
    pub(super) async fn striped(&mut self) {
        if !self.cluster.plan.stripes {
            return;
        }
        let key = self.dice.below(KEYS) as usize;
        let name = format!("striped/key-{key}-").into_bytes();
        match self.dice.weighted(&[40, 45, 15]) {
            0 => self.put_striped(key, &name).await,
            1 => {
                let read = self.client.get(&name).await;
                self.report("get-striped", key, Outcome::of(&read));
                if let Ok(bytes) = read {
                    self.check_striped(key, &bytes);
                }
            }
            _ => {
                let done = self.client.remove(&name).await;
                self.report("remove-striped", key, Outcome::of(&done));
            }
        }
    }

    async fn put_striped(&mut self, key: usize, name: &[u8]) {
        let len = (self.dice.between(PAGES.0, PAGES.1) * 4096 - self.dice.below(4096)) as usize;
        let put = {
            let mut puts = self.cluster.striped.borrow_mut();
            puts.push((key, len));
            FIRST_PUT + puts.len() as u64 - 1
        };
        let stripes = self.dice.between(2, 5) as u8;
        let opts = self.options().stripes(stripes).device_alloc(false);
        let opts = match self.dice.permille(700) {
            true => opts.if_exists(IfExists::Keep),
            false => opts.if_exists(IfExists::Fail),
        };
        let done = self.client.put(name, &value(put, len), &opts).await;
        self.report("put-striped", key, Outcome::of(&done));
    }

    fn check_striped(&self, key: usize, bytes: &[u8]) {
        let puts = self.cluster.striped.borrow();
        let is_it = |(n, (of, len)): (u64, &(usize, usize))| {
            *of == key && *len == bytes.len() && is_of(FIRST_PUT + n, bytes)
        };
        if !(0..).zip(puts.iter()).any(is_it) {
            let text = format!("[I4] a read of striped/key-{key}- returned bytes of no put of it");
            self.cluster.ledger.wrong(text);
        }
    }
}
