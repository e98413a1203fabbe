//! What the ledger allows, and why: an object may end by a removal or another request, and by the
//! residuals that docs/reference/limits.md states. Each use of a residual is counted, so that a run
//! shows how often the rules were not fully tested.

use super::logs::LAG_MS;
use super::{History, LogicalTime, Put, Removal};
use crate::content::PutId;
use crate::oracle::Cause;
use crate::trace::Trace;
use std::collections::BTreeSet;

/// The members, and which of them have reported to the master.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// Incarnations in the master's view.
    pub members: BTreeSet<u64>,
    /// Of these, those whose link is up as far as the master knows.
    pub linked: BTreeSet<u64>,
    /// Incarnations whose link is joined.
    pub joined: BTreeSet<u64>,
    /// Incarnations whose link the master had all the time: it asked their logs.
    pub asked: BTreeSet<u64>,
}

impl Roster {
    /// True for a member that has reported: the master knows its objects.
    pub fn is_seated(&self, incarnation: u64) -> bool {
        self.members.contains(&incarnation) && self.joined.contains(&incarnation)
    }
}

impl History {
    /// An acknowledged object that ended other than by its owner's choice or death was asked to.
    pub(super) fn check_end_of(&mut self, trace: &Trace, id: PutId) {
        let put = self.put(id);
        let (Some((gone, Cause::Handling(doing))), true) = (put.gone, put.is_acked()) else {
            return;
        };
        if self.was_asked_to_go(put, gone) {
            return;
        }
        if self.time_is_over(put, put.gone_ms) {
            return self.excuse(Some("its time after the first read was over"));
        }
        // One of too many, while another is there or was there until its owner's own choice.
        let stays = |other: &Put| {
            let gone = other.gone.map(|(_, cause)| cause);
            other.spot.is_some() && matches!(gone, None | Some(Cause::Evicted | Cause::Died))
        };
        if self.others(put).any(stays) {
            return;
        }
        if let Some(word) = self.residual_of(put) {
            return self.excuse(Some(word));
        }
        // What was asked of it before it was declared gone: nothing of it is there for anybody now.
        if put.spot.is_some_and(|s| self.left.contains(&s.incarnation)) {
            return self.excuse(Some("a late word to a rank that is gone"));
        }
        let text = format!(
            "put {id} of {} was acknowledged, nobody removed it, and its owner retired it while it \
             handled {doing} ({:?})",
            self.name(put.key),
            put.spot
        );
        self.wrong(trace, text);
    }

    /// Whether a put that is to go after its first read may be gone by then, in virtual
    /// milliseconds. Clocks differ by 8%.
    pub(super) fn time_is_over(&self, put: &Put, now_ms: u64) -> bool {
        let latest = put.until_read_ms.and_then(|ttl| now_ms.checked_sub(ttl / 10 * 9));
        let was_read = |(began_ms, ended_ms): &(u64, Option<u64>)| {
            latest.is_some_and(|latest| *began_ms <= latest)
                && ended_ms.is_none_or(|ended_ms| ended_ms >= put.began_ms)
        };
        self.keys[put.key].reads.iter().any(was_read)
    }

    /// Counts a residual that was allowed.
    pub(super) fn excuse(&mut self, word: Option<&'static str>) {
        if let Some(word) = word {
            *self.excused.entry(word).or_default() += 1;
        }
    }

    /// A removal that had begun by then was not over when the put began.
    fn was_asked_to_go(&self, put: &Put, gone: LogicalTime) -> bool {
        self.keys[put.key].removals.values().any(|r| r.began < gone && r.may_take(put.began))
    }

    fn residual_of(&self, put: &Put) -> Option<&'static str> {
        // "Where such a put met a key of that rank, the older copy is retired when the report
        // comes, whatever became of the newer one", and what was put into that rank's own log
        // meanwhile; and "if the master dies once more, which of two values is kept depends on who
        // reports first".
        let others = self.keys[put.key].puts.iter().map(|p| self.put(*p));
        let others = others.filter(|o| !std::ptr::eq(*o, put));
        // Of objects of one key, one of them in a log, the master keeps the first that it hears of.
        let mut logged = others.clone().filter(|o| put.logged.or(o.logged).is_some());
        if logged.any(|o| self.was_known(o, put.began, put.gone_ms)) {
            return Some("another of its key was known first");
        }
        let lately = |o: &Put| put.logged.is_some() && o.began_ms + LAG_MS >= put.gone_ms;
        let mut others = others.filter(|o| put.gone.is_some_and(|(gone, _)| o.began < gone));
        let twice = others.any(|o| o.began > put.began || o.is_live() || lately(o));
        twice.then_some("put once more while its rank was silent")
    }

    /// The removal that makes it wrong to find this put, unless that is excused. `read_from`: what
    /// a reader read, indexes included; `members`: those of now.
    pub(super) fn removal_before(
        &self,
        put: &Put,
        began: LogicalTime,
        read_from: &[u64],
        members: &BTreeSet<u64>,
    ) -> Result<Option<&'static str>, &Removal> {
        let gone = |r: &&Removal| r.was_done_at(began) && put.was_over_at(r.began) && r.met(put);
        let here = put.spot.map(|s| s.incarnation).unwrap_or_default();
        let mut excuse = None;
        for removal in self.keys[put.key].removals.values().filter(gone) {
            // Its owner was no member any more when the removal was acknowledged.
            let lost = removal.late || !removal.members.contains(&here);
            let cut_off = read_from.contains(&here) && !members.contains(&here);
            // "A loss that only ranks knew which died together with the master is not known to the
            // next one", nor one that only ranks knew which the next one did not meet in time; and
            // whoever was a member of that one is a member for those that follow.
            let forgotten = removal.late
                || removal.knew.is_disjoint(members)
                || removal.came_back.contains(&here);
            match (lost, cut_off, forgotten) {
                // "An owner cut off from the master may still serve a whole object that was
                // removed."
                (true, true, _) => excuse = Some("read from an owner that was cut off"),
                (true, false, true) => excuse = Some("a loss that only the dead knew of"),
                _ => return Err(removal),
            }
        }
        Ok(excuse)
    }
}
