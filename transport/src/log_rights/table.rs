//! The claims of one producer: the position of each as far as it is known, and the requests inside
//! it. Plain values under the lock of [`super::LogRights`]; it reads no memory and cuts no
//! connection.

use super::change::LogChange;
use crate::access::Cut;
use nkv_store::device_log::{Abandon, LogLayout};
use nkv_store::layout::state;
use std::sync::Arc;

/// What is known of a claim's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// An entry reserved for a fetch-and-add that has not begun.
    Asked,
    /// At least this bound: the fetch-and-add has begun. If no request is inside any more, its
    /// outcome stays unknown.
    Claiming(u64),
    /// The position that the fetch-and-add returned.
    Position(u64),
}

/// A request inside a claim.
#[derive(Debug)]
pub(super) struct User {
    pub(super) cut: Arc<dyn Cut>,
    /// The header's fields are among the changes permitted to this request.
    fields: bool,
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) at: At,
    pub(super) n: u64,
    /// The correct fields of this claim are in its header.
    pub(super) fields: bool,
    /// Something was written for this claim.
    pub(super) written: bool,
    /// Its only user may end it: nothing further is permitted.
    ending: bool,
    pub(super) users: Vec<User>,
}

impl Claim {
    pub(super) fn asked(n: u64, cut: &Arc<dyn Cut>) -> Claim {
        let users = vec![User { cut: cut.clone(), fields: false }];
        Claim { at: At::Asked, n, fields: false, written: false, ending: false, users }
    }

    /// Its position, if known.
    pub(super) fn position(&self) -> Option<u64> {
        match self.at {
            At::Position(p) => Some(p),
            At::Asked | At::Claiming(_) => None,
        }
    }

    /// The position, if the claim may be written: a whole claim below the limit.
    pub(super) fn below(&self, layout: &LogLayout, limit: u64) -> Option<u64> {
        let p = self.position().filter(|p| layout.is_claim(*p, self.n))?;
        (p + self.n <= limit).then_some(p)
    }

    /// Whether this change belongs to this claim, which begins at `p`.
    fn covers(&self, layout: &LogLayout, p: u64, change: &LogChange) -> bool {
        if let LogChange::Payload { from, to } = *change {
            let start = p % layout.log_bytes();
            return !layout.wraps(p, self.n) && from >= start && to <= start + self.n;
        }
        change.header().is_some_and(|(slot, epoch)| {
            slot == layout.slot(p) && epoch.is_none_or(|e| layout.epoch(p) == Some(e))
        })
    }

    pub(super) fn is_used_by(&self, cut: &Arc<dyn Cut>) -> bool {
        self.users.iter().any(|user| Arc::ptr_eq(&user.cut, cut))
    }

    /// Permits a request to make this change. `Err`: the reason.
    pub(super) fn allow(
        &mut self,
        layout: &LogLayout,
        p: u64,
        change: &LogChange,
        cut: &Arc<dyn Cut>,
    ) -> Result<(), String> {
        let n = self.n;
        if self.ending {
            return Err(format!("the claim of {n} bytes at {p} has its last verb already"));
        }
        let to = change.publishes();
        let skip = matches!(change, LogChange::Fields { .. }) || to == Some(state::DEAD);
        if layout.wraps(p, n) && !skip {
            return Err(format!(
                "the claim of {n} bytes at {p} crosses the log's end: write its fields and DEAD"
            ));
        }
        let own = self.users.iter().position(|user| Arc::ptr_eq(&user.cut, cut));
        let fields = self.fields || own.is_some_and(|i| self.users[i].fields);
        if to.is_some() && !fields {
            return Err(format!(
                "the claim of {n} bytes at {p} has no header yet: write its fields first"
            ));
        }
        if to.is_some_and(|to| to != state::WRITING) {
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

/// All open claims of one producer.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) claims: Vec<Claim>,
    /// Claims above the limit when their producer ended.
    pub(super) given_up: Vec<Abandon>,
    /// Its producer has ended: nothing is permitted any more.
    pub(super) closed: bool,
}

impl Table {
    /// The claim that a change belongs to, among those whose position `below` returns. If a slot
    /// has two, the later one: since it is below the limit, the earlier one is settled.
    pub(super) fn find(
        &self,
        layout: &LogLayout,
        change: &LogChange,
        below: impl Fn(&Claim) -> Option<u64>,
    ) -> Option<(usize, u64)> {
        let claims = self.claims.iter().enumerate();
        let here = claims.filter_map(|(i, claim)| below(claim).map(|p| (i, p)));
        let here = here.filter(|(i, p)| self.claims[*i].covers(layout, *p, change));
        here.max_by_key(|(_, p)| *p)
    }

    /// The claim inside of which this request makes this change.
    pub(super) fn find_used(
        &self,
        layout: &LogLayout,
        change: &LogChange,
        cut: &Arc<dyn Cut>,
    ) -> Option<(usize, u64)> {
        self.find(layout, change, |c| c.position().filter(|_| c.is_used_by(cut)))
    }

    /// The first claim of `n` bytes in this state that this request is making.
    pub(super) fn on_its_way(
        &mut self,
        n: u64,
        cut: &Arc<dyn Cut>,
        stage: impl Fn(At) -> bool,
    ) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|c| c.n == n && stage(c.at) && c.is_used_by(cut))
    }

    /// A request leaves every claim that it was inside.
    pub(super) fn leave(&mut self, cut: &Arc<dyn Cut>) {
        self.claims.retain_mut(|claim| {
            if !claim.is_used_by(cut) {
                return true;
            }
            claim.users.retain(|user| !Arc::ptr_eq(&user.cut, cut));
            // It was the only user, and did not execute the permitted end.
            claim.ending = false;
            // The fetch-and-add never began: nothing was claimed.
            claim.at != At::Asked
        });
    }
}
