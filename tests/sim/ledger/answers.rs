//! Checks the answers that clients got.

use super::{KnownBy, Ledger, LogicalTime, Put, Removal, Roster, SlotEpoch};
use crate::content::{PutId, is_of};
use crate::plan::{JOB, secret};
use std::collections::BTreeSet;

impl Ledger {
    /// A read that began then returned these bytes, taken from these incarnations.
    pub fn check_bytes(
        &self,
        (key, began): (usize, LogicalTime),
        bytes: &[u8],
        read_from: &[u64],
        members: &BTreeSet<u64>,
    ) {
        let mut history = self.lock();
        let whose = |p: &&PutId| {
            let put = history.put(**p);
            put.spot.is_some() && put.len == bytes.len() && is_of(put.content, bytes)
        };
        // If two puts match, as with empty values, the later one is assumed.
        let Some(put) = history.keys[key].puts.iter().rev().find(whose).copied() else {
            let text = format!(
                "a read of {} returned {} bytes that were never put under it: {}",
                history.name(key),
                bytes.len(),
                bytes[..bytes.len().min(16)].escape_ascii()
            );
            return history.wrong(&self.trace, text);
        };
        self.trace.event("read", (key, put), || format!("key {key}: put {put}"));
        // Of several replicas it was read from one of those that were read.
        let content = history.put(put).content;
        let was_read = |p: &Put| {
            p.spot.is_some_and(|s| read_from.contains(&s.incarnation) || read_from.is_empty())
        };
        let alike = history.keys[key].puts.iter().map(|p| history.put(*p));
        let alike: Vec<&Put> = alike.filter(|p| p.content == content && was_read(p)).collect();
        let alike = if alike.is_empty() { vec![history.put(put)] } else { alike };
        let judged = |p: &Put| history.removal_before(p, began, read_from, members);
        let judged = alike.iter().map(|p| judged(p));
        let judged = judged.clone().find(Result::is_ok).or_else(|| judged.clone().next());
        let removal = match judged {
            None => return,
            Some(Ok(excuse)) => return history.excuse(excuse),
            Some(Err(removal)) => removal,
        };
        let text = format!(
            "[I6] a read of {} returned put {put}, which was removed: {removal:?}, read from \
             {read_from:016x?}, {:?}",
            history.name(key),
            history.put(put)
        );
        history.wrong(&self.trace, text);
    }

    /// A lookup that began at `began` answered that this key lies there: from the master, or from
    /// the indexes of these incarnations.
    pub fn check_location(
        &self,
        (key, began): (usize, LogicalTime),
        spot: SlotEpoch,
        read_from: &[u64],
        members: &BTreeSet<u64>,
    ) {
        let mut history = self.lock();
        let name = history.name(key);
        let Some(&put) = history.at.get(&spot) else {
            let text = format!("{name} is said to lie at {spot:?}, where nothing was");
            return history.wrong(&self.trace, text);
        };
        if history.put(put).key != key {
            let text = format!("{name} is said to lie at {spot:?}, which is put {put}");
            return history.wrong(&self.trace, text);
        }
        let removal = match history.removal_before(history.put(put), began, read_from, members) {
            Ok(excuse) => return history.excuse(excuse),
            Err(removal) => removal,
        };
        let text =
            format!("[I6] put {put} of {name} was found at {spot:?}, and was removed: {removal:?}");
        history.wrong(&self.trace, text);
    }

    /// A handle believes that this key lies there, or did.
    pub fn check_hint(&self, key: usize, spot: SlotEpoch) {
        let mut history = self.lock();
        let whose = history.at.get(&spot).map(|p| history.put(*p).key);
        if whose != Some(key) {
            let text =
                format!("{} is located at {spot:?}, which is of {whose:?}", history.name(key));
            history.wrong(&self.trace, text);
        }
    }

    /// These keys were listed.
    pub fn check_names<'n>(&self, names: impl Iterator<Item = &'n [u8]>) {
        let mut history = self.lock();
        let hasher = secret().key_hasher(JOB);
        for name in names {
            if !history.by_id.contains_key(&hasher.id(name)) {
                let text = format!("{} is listed, which nobody ever put", name.escape_ascii());
                history.wrong(&self.trace, text);
            }
        }
    }

    /// A lookup that began at `began` answered that there is no such key.
    pub fn check_absence(
        &self,
        (key, began): (usize, LogicalTime),
        known_by: KnownBy,
        roster: &Roster,
    ) {
        let mut history = self.lock();
        let asked = |put: &Put| {
            history.keys[put.key].removals.values().any(|r: &Removal| r.may_take(put.began))
        };
        let hidden = |p: &&PutId| {
            let put = history.put(**p);
            let there = put.is_acked() && put.was_over_at(began) && put.is_live();
            // Of several replicas the master may know only one that is gone.
            let alike = |other: &Put| {
                other.is_live() && other.spot.is_some_and(|s| roster.is_seated(s.incarnation))
            };
            let there = there && history.others(put).all(alike);
            // The master may not know an object in a log yet: then its owner had to be asked.
            let known = put.logged.is_none() || known_by == KnownBy::ByAll;
            // `exists` does not cover a rank whose link is down, and that rank may not know it yet.
            let heard = |s: SlotEpoch| roster.asked.contains(&s.incarnation);
            let seated = |s: SlotEpoch| roster.is_seated(s.incarnation) && heard(s);
            let goes = history.time_is_over(put, self.trace.now_ms());
            there && known && put.spot.is_some_and(seated) && !asked(put) && !goes
        };
        let Some(put) = history.keys[key].puts.iter().find(hidden).copied() else { return };
        let text = format!(
            "{} was said not to be there, and put {put} of it was acknowledged, removed by nobody \
             and is readable at {:?}",
            history.name(key),
            history.put(put).spot
        );
        history.wrong(&self.trace, text);
    }

    /// Acknowledged puts that must be readable, with their spots: called at the end, when nothing
    /// fails any more.
    pub fn must_be_there(&self, roster: &Roster) -> Vec<(usize, SlotEpoch)> {
        let history = self.lock();
        let live = history.puts.iter().filter(|p| p.is_acked() && p.is_live());
        let now_ms = self.trace.now_ms();
        let live = live.filter(|p| !history.time_is_over(p, now_ms));
        let found = live.filter_map(|p| Some((p.key, p.spot?)));
        found.filter(|(_, s)| roster.is_seated(s.incarnation)).collect()
    }

    /// Readable objects on an incarnation, acknowledged or not.
    pub fn readable_on(&self, incarnation: u64) -> usize {
        let history = self.lock();
        let here = |p: &&Put| p.spot.is_some_and(|s| s.incarnation == incarnation);
        let besides = history.besides.keys().filter(|s| s.incarnation == incarnation).count();
        history.puts.iter().filter(here).filter(|p| p.is_live()).count() + besides
    }

    /// Keys of objects that are readable, however many replicas of them, but for those that were
    /// put into logs.
    pub fn keys_in_heaps(&self, members: &[u64]) -> usize {
        let history = self.lock();
        let here = |p: &&Put| p.spot.is_some_and(|s| members.contains(&s.incarnation));
        let live = history.puts.iter().filter(|p| p.is_live() && p.logged.is_none());
        let live = live.filter(here);
        let besides = history.besides.iter().filter(|(s, _)| members.contains(&s.incarnation));
        let besides: BTreeSet<_> = besides.map(|(_, id)| *id).collect();
        live.map(|p| p.key).collect::<BTreeSet<_>>().len() + besides.len()
    }

    /// Something can be read there now.
    pub fn is_readable(&self, spot: SlotEpoch) -> bool {
        let history = self.lock();
        history.at.get(&spot).is_some_and(|p| history.put(*p).is_live())
    }

    /// The name of a key.
    pub fn key_name(&self, key: usize) -> Vec<u8> {
        self.lock().keys[key].name.clone()
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.lock().keys.len()
    }
}
