//! The claims of one producer: where each begins as far as that is known, and which of its requests
//! are inside. Plain values under the lock of [`super::LogRights`]; reads no memory, cuts nobody.

use super::change::LogChange;
use crate::access::Cut;
use nkv_store::device_log::{Abandon, LogGeometry};
use std::sync::Arc;

/// Where a claim begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// A place in the table, kept for a fetch-and-add that has not begun.
    Asked,
    /// Not below this bound: the fetch-and-add has begun. With no request inside its outcome will
    /// never be known.
    Claiming(u64),
    /// The position that the fetch-and-add returned.
    Position(u64),
}

/// A request that is inside a claim.
#[derive(Debug)]
pub(super) struct User {
    pub(super) cut: Arc<dyn Cut>,
    /// Its fields are among what the request was allowed to write.
    fields: bool,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) at: At,
    pub(super) n: u64,
    /// The fields in its header are this claim's.
    pub(super) fields: bool,
    /// Something was written for it.
    pub(super) written: bool,
    /// Its only user was allowed to end it: nobody is allowed anything any more.
    ending: bool,
    pub(super) users: Vec<User>,
}

impl Claim {
    pub(super) fn asked(n: u64, cut: &Arc<dyn Cut>) -> Claim {
        let users = vec![User { cut: cut.clone(), fields: false }];
        Claim { at: At::Asked, n, fields: false, written: false, ending: false, users }
    }

    /// Where it begins, if that is known.
    pub(super) fn position(&self) -> Option<u64> {
        match self.at {
            At::Position(p) => Some(p),
            At::Asked | At::Claiming(_) => None,
        }
    }

    /// Whether it may be written at all: a whole claim below the limit.
    pub(super) fn below(&self, geometry: &LogGeometry, limit: u64) -> Option<u64> {
        let p = self.position().filter(|p| geometry.is_claim(*p, self.n))?;
        (p + self.n <= limit).then_some(p)
    }

    /// Whether this change is about this claim, which begins at `p`.
    fn covers(&self, geometry: &LogGeometry, p: u64, change: &LogChange) -> bool {
        if let LogChange::Payload { from, to } = *change {
            let start = p % geometry.log_bytes();
            return !geometry.wraps(p, self.n) && from >= start && to <= start + self.n;
        }
        change.header().is_some_and(|(slot, epoch)| {
            slot == geometry.slot(p) && epoch.is_none_or(|e| geometry.epoch(p) == Some(e))
        })
    }

    pub(super) fn is_used_by(&self, cut: &Arc<dyn Cut>) -> bool {
        self.users.iter().any(|user| Arc::ptr_eq(&user.cut, cut))
    }

    /// Lets a request do this to the claim. `Err`: the reason.
    pub(super) fn allow(
        &mut self,
        geometry: &LogGeometry,
        p: u64,
        change: &LogChange,
        cut: &Arc<dyn Cut>,
    ) -> Result<(), String> {
        let n = self.n;
        if self.ending {
            return Err(format!("the claim of {n} bytes at {p} has its last verb already"));
        }
        let skip = matches!(change, LogChange::Fields { .. } | LogChange::Dead { .. });
        if geometry.wraps(p, n) && !skip {
            return Err(format!(
                "the claim of {n} bytes at {p} does not lie in one piece: write its fields and DEAD"
            ));
        }
        let own = self.users.iter().position(|user| Arc::ptr_eq(&user.cut, cut));
        let fields = self.fields || own.is_some_and(|i| self.users[i].fields);
        if change.ends_or_begins() && !fields {
            return Err(format!(
                "the claim of {n} bytes at {p} has no header yet: write its fields first"
            ));
        }
        if change.ends() {
            let others = self.users.len() - usize::from(own.is_some());
            if others > 0 {
                return Err(format!(
                    "{others} other requests are inside the claim of {n} bytes at {p}: end it when \
                     they have ended"
                ));
            }
            self.ending = true;
        }
        let own = own.unwrap_or_else(|| {
            self.users.push(User { cut: cut.clone(), fields: false });
            self.users.len() - 1
        });
        self.users[own].fields |= matches!(change, LogChange::Fields { .. });
        Ok(())
    }
}

/// All claims of one producer that are not over.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) claims: Vec<Claim>,
    /// Above the limit when their producer ended.
    pub(super) given_up: Vec<Abandon>,
    /// Its producer has ended: nothing is allowed any more.
    pub(super) closed: bool,
}

impl Table {
    /// The claim that a change is about, among those of which `below` knows the position. If a slot
    /// has two, the later one: below the limit, it proves that the earlier is settled.
    pub(super) fn find(
        &self,
        geometry: &LogGeometry,
        change: &LogChange,
        below: impl Fn(&Claim) -> Option<u64>,
    ) -> Option<(usize, u64)> {
        let claims = self.claims.iter().enumerate();
        let here = claims.filter_map(|(i, claim)| below(claim).map(|p| (i, p)));
        let here = here.filter(|(i, p)| self.claims[*i].covers(geometry, *p, change));
        here.max_by_key(|(_, p)| *p)
    }

    /// The claim inside of which this request makes this change.
    pub(super) fn find_used(
        &self,
        geometry: &LogGeometry,
        change: &LogChange,
        cut: &Arc<dyn Cut>,
    ) -> Option<(usize, u64)> {
        self.find(geometry, change, |c| c.position().filter(|_| c.is_used_by(cut)))
    }

    /// The first claim of `n` bytes on the way of this request, at this stage of it.
    pub(super) fn on_its_way(
        &mut self,
        n: u64,
        cut: &Arc<dyn Cut>,
        stage: impl Fn(At) -> bool,
    ) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|c| c.n == n && stage(c.at) && c.is_used_by(cut))
    }

    /// A request is out: of every claim that it was inside.
    pub(super) fn leave(&mut self, cut: &Arc<dyn Cut>) {
        self.claims.retain_mut(|claim| {
            if !claim.is_used_by(cut) {
                return true;
            }
            claim.users.retain(|user| !Arc::ptr_eq(&user.cut, cut));
            // It was the only one, and did not come to the end that it was allowed.
            claim.ending = false;
            // Never begun: nothing was claimed.
            claim.at != At::Asked
        });
    }

    /// Claims that nobody is inside, of which nobody will ever know where they begin.
    pub(super) fn in_doubt(claim: &Claim) -> bool {
        claim.users.is_empty() && matches!(claim.at, At::Claiming(_))
    }
}
