//! Whether keys are there and where: what indexes can tell without a message, and the master for
//! the rest. Here a location that was merely seen before counts for nothing: nobody will look at
//! its header.

use super::locations;
use super::{Client, check_keys, key_bytes, one};
use crate::error::Result;
use crate::message::{Existence, ObjMeta, Request, Response};
use crate::producer::AttachTo;
use std::collections::BTreeSet;

/// Keys of a prefix that are looked up before it is known whether there is a next one.
const STEP: usize = 128;
/// Turns between indexes and master until a prefix is taken to end: one of them may know of a key
/// that the other has not heard of yet.
const TURNS: usize = 4;

impl Client {
    /// Whether keys are there. `prefetch` asks for promotion from slower tiers; with DRAM as the
    /// only tier every readable key is where it is fastest already.
    pub async fn exists(&self, keys: &[&[u8]], prefetch: bool) -> Result<Vec<Existence>> {
        self.check_usable()?;
        check_keys(keys)?;
        let _no_slower_tier = prefetch;
        let mut found = vec![Existence::Absent; keys.len()];
        let known = self.find_by_index(keys);
        let rest: Vec<usize> = (0..keys.len()).filter(|i| known[*i].is_none()).collect();
        found.iter_mut().zip(&known).filter(|(_, k)| k.is_some()).for_each(|(f, _)| {
            *f = Existence::Ready;
        });
        if rest.is_empty() {
            return Ok(found);
        }
        let unknown: Vec<&[u8]> = rest.iter().map(|i| keys[*i]).collect();
        match self.call(Request::Exists(key_bytes(&unknown))).await? {
            Response::Existence { list, owners } if list.len() == unknown.len() => {
                rest.into_iter().zip(list).for_each(|(i, e)| found[i] = e);
                self.attach_to(owners);
                Ok(found)
            }
            other => Err(self.pool.unexpected("Exists", &other)),
        }
    }

    /// Locations of the longest run of readable keys from the first one.
    pub async fn match_prefix(&self, keys: &[&[u8]]) -> Result<Vec<ObjMeta>> {
        self.check_usable()?;
        check_keys(keys)?;
        let mut run = Vec::new();
        for _ in 0..TURNS {
            self.extend_by_index(keys, &mut run);
            if run.len() == keys.len() {
                break;
            }
            let rest = &keys[run.len()..];
            match self.call(Request::MatchPrefix(key_bytes(rest))).await {
                Ok(Response::Prefix(list)) if list.len() <= rest.len() => {
                    if list.is_empty() {
                        break;
                    }
                    self.attach_to(list.iter().map(|m| m.at.incarnation).collect());
                    run.extend(list);
                }
                Ok(other) => return Err(self.pool.unexpected("MatchPrefix", &other)),
                // A shorter run is a true answer, too.
                Err(e) if locations::unknown(e.kind) && !run.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(run)
    }

    fn extend_by_index(&self, keys: &[&[u8]], run: &mut Vec<ObjMeta>) {
        while run.len() < keys.len() {
            let step = &keys[run.len()..keys.len().min(run.len() + STEP)];
            let found = self.find_by_index(step);
            let before = run.len();
            run.extend(found.into_iter().map_while(|meta| meta));
            if run.len() < before + step.len() {
                return;
            }
        }
    }

    /// Where a key lies.
    pub async fn get_location(&self, key: &[u8]) -> Result<ObjMeta> {
        self.check_usable()?;
        check_keys(&[key])?;
        if let Some(Some(meta)) = self.find_by_index(&[key]).pop() {
            return Ok(meta);
        }
        let (keys, gone) = (key_bytes(&[key]), Vec::new());
        match self.call(Request::GetLocation { keys, gone }).await {
            Ok(Response::Locations(list)) => one(list),
            Ok(other) => Err(self.pool.unexpected("GetLocation", &other)),
            // Nobody could be asked: the last known location is the best there is.
            Err(e) if locations::unknown(e.kind) => self.shared.locations.known(key).ok_or(e),
            Err(e) => Err(e),
        }
    }

    /// The master named owners: those of this host are attached to, so that next time their indexes
    /// are asked first.
    fn attach_to(&self, owners: Vec<u64>) {
        let unattached: BTreeSet<u64> =
            owners.into_iter().filter(|o| self.shared.peers.get(*o).is_none()).collect();
        if !unattached.is_empty()
            && let Some(Err(error)) =
                self.shared.notify_producer(AttachTo(unattached.into_iter().collect()))
        {
            tracing::debug!(%error, "owners not met");
        }
    }
}
