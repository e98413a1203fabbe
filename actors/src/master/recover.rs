//! State from the owners' reports: after a rank's (re)join, and for every rank after a panic of the
//! Master actor. Calls that arrive meanwhile are parked and answered from the rebuilt state.

use super::Master;
use super::objects::{Entry, PlanInfo, State};
use super::placement::{RankBook, Taken};
use crate::message::{Down, EndCause, PlanOpened, SlotContent, SlotEntry, SlotRef};
use hashbrown::HashMap;
use nkv_store::Key;
use nkv_store::arena::Extent;

/// A rebuilt master waits so long for reports; ranks that are silent by then report when they join.
const RECOVER_LIMIT_MS: u64 = 1_000;
/// Slots in a report that are kept until its last part: more than any heap of this layout has.
const MAX_REPORT_SLOTS: usize = 1 << 31;

impl Master {
    /// At boot: ask every member for a report.
    pub(super) fn recover(&mut self) {
        self.recover_until_ms = self.now_ms() + RECOVER_LIMIT_MS;
        for info in self.truth.members.infos() {
            let rank = info.rank;
            self.books.insert(rank, RankBook::new(info));
            self.recovering.insert(rank);
            self.truth.members.send(rank, Down::ReportPlease);
        }
    }

    pub(super) fn unpark(&mut self) {
        while let Some((ask, reply)) = self.parked.pop_front() {
            self.answer(ask, reply);
        }
        self.flush_commits();
    }

    pub(super) fn report(&mut self, rank: u32, slots: Vec<SlotEntry>, last: bool) {
        let Some(book) = self.books.get_mut(&rank) else {
            return;
        };
        if book.report.len() + slots.len() > MAX_REPORT_SLOTS {
            return;
        }
        book.report.extend(slots);
        if !last {
            return;
        }
        let report = std::mem::take(&mut book.report);
        self.apply_report(rank, report);
        self.recovering.remove(&rank);
        self.truth.members.set_reported(rank);
        self.retry_waiting(rank);
        if self.recovering.is_empty() {
            self.unpark();
        }
    }

    /// The report is the truth of this rank: its entries replace what was known of it.
    fn apply_report(&mut self, rank: u32, report: Vec<SlotEntry>) {
        let Some(info) = self.books.get(&rank).map(|b| b.info.clone()) else {
            return;
        };
        let lost = self.plans_the_owner_never_met(rank, &report);
        let kept: Vec<_> = lost.iter().map(|p| p.at).collect();
        self.forget_what_the_report_lacks(rank, &report, &kept);
        let (mut taken, mut free) = (HashMap::new(), HashMap::new());
        let mut duplicates = Vec::new();
        for e in report {
            let at = SlotRef {
                incarnation: info.incarnation,
                slot: e.slot,
                epoch: e.epoch,
            };
            match e.what {
                SlotContent::Free if kept.contains(&at) => {}
                SlotContent::Free => {
                    free.insert(e.slot, e.epoch);
                }
                SlotContent::Held {
                    extent_offset,
                    extent_len,
                } => {
                    let extent = Extent {
                        offset: extent_offset,
                        len: extent_len,
                    };
                    taken.insert(
                        e.slot,
                        Taken {
                            epoch: e.epoch,
                            extent,
                            key: None,
                        },
                    );
                }
                SlotContent::Open(p) => {
                    let extent = Extent {
                        offset: p.extent_offset,
                        len: p.extent_len,
                    };
                    let key = self.reported_plan(rank, &p);
                    taken.insert(
                        e.slot,
                        Taken {
                            epoch: e.epoch,
                            extent,
                            key,
                        },
                    );
                }
                SlotContent::Live {
                    key,
                    extent_offset,
                    extent_len,
                    bytes_total,
                    page_bytes,
                    ..
                } => {
                    let extent = Extent {
                        offset: extent_offset,
                        len: extent_len,
                    };
                    let key = Key::new(&key.0).ok();
                    let id = key.as_ref().map(Key::id);
                    taken.insert(
                        e.slot,
                        Taken {
                            epoch: e.epoch,
                            extent,
                            key: id,
                        },
                    );
                    let live = (extent, bytes_total, page_bytes);
                    if !key.is_some_and(|k| self.reported_live(rank, at, k, live)) {
                        duplicates.push(at);
                    }
                }
            }
        }
        for p in &lost {
            let extent = Extent {
                offset: p.extent_offset,
                len: p.extent_len,
            };
            let key = Key::new(&p.key.0).ok().map(|k| k.id());
            taken.insert(
                p.at.slot,
                Taken {
                    epoch: p.at.epoch,
                    extent,
                    key,
                },
            );
        }
        match RankBook::rebuild(info, taken, free) {
            Ok(book) => drop(self.books.insert(rank, book)),
            Err(error) => tracing::error!(rank, %error, "a report that contradicts itself"),
        }
        if !duplicates.is_empty() {
            self.truth.members.send(rank, Down::Retire(duplicates));
        }
        for p in lost {
            let (plan, at) = (p.plan, p.at);
            self.truth.members.send(rank, Down::PlanOpened(p));
            self.truth.members.send(
                rank,
                Down::EndPlan {
                    plan,
                    at,
                    cause: EndCause::Unknown,
                },
            );
        }
    }

    /// Plans granted over a link that broke before the owner heard of them: their slots stay taken,
    /// and the owner opens them only to fence their producers [I10].
    fn plans_the_owner_never_met(&self, rank: u32, report: &[SlotEntry]) -> Vec<PlanOpened> {
        let known: HashMap<(u32, u32), bool> = report
            .iter()
            .map(|e| ((e.slot, e.epoch), !matches!(e.what, SlotContent::Free)))
            .collect();
        let higher: HashMap<u32, u32> = report.iter().map(|e| (e.slot, e.epoch)).collect();
        let unmet = |e: &&Entry| {
            let at = (e.at.slot, e.at.epoch);
            let moved_on = higher
                .get(&e.at.slot)
                .is_some_and(|epoch| *epoch > e.at.epoch);
            !known.get(&at).copied().unwrap_or(false) && !moved_on
        };
        let mut lost = Vec::new();
        for e in self
            .objects
            .values()
            .filter(|e| e.rank == rank)
            .filter(unmet)
        {
            let State::Writing(plan) = e.state else {
                continue;
            };
            let Some(p) = self.plans.get(&plan) else {
                continue;
            };
            lost.push(PlanOpened {
                plan,
                token: p.token,
                at: e.at,
                extent_offset: e.extent.offset,
                extent_len: e.extent.len,
                key: crate::message::KeyBytes(e.key.as_bytes().to_vec()),
                producer: p.producer,
                request: p.request,
                deadline_ms: self.truth.settings.write_ttl_ms,
                bytes_total: e.bytes_total,
                page_bytes: e.page_bytes,
            });
        }
        lost
    }

    fn forget_what_the_report_lacks(&mut self, rank: u32, report: &[SlotEntry], kept: &[SlotRef]) {
        let present: hashbrown::HashSet<(u32, u32)> = report
            .iter()
            .filter(|e| matches!(e.what, SlotContent::Live { .. } | SlotContent::Open(_)))
            .map(|e| (e.slot, e.epoch))
            .collect();
        let gone: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, e)| e.rank == rank && !kept.contains(&e.at))
            .filter(|(_, e)| !present.contains(&(e.at.slot, e.at.epoch)))
            .map(|(id, e)| (*id, e.at))
            .collect();
        for (id, at) in gone {
            self.drop_entry(id, at);
        }
    }

    fn reported_plan(&mut self, rank: u32, p: &PlanOpened) -> Option<nkv_store::KeyId> {
        let key = Key::new(&p.key.0).ok()?;
        let id = key.id();
        if let Some(e) = self.objects.get(&id) {
            // Another plan won, or its EndPlan was lost with the link: say it again.
            let cause = match e.state {
                State::Removing => Some(EndCause::Removed),
                _ if e.at != p.at => Some(EndCause::Unknown),
                _ => None,
            };
            if let Some(cause) = cause {
                self.truth.members.send(
                    rank,
                    Down::EndPlan {
                        plan: p.plan,
                        at: p.at,
                        cause,
                    },
                );
            }
            return Some(id);
        }
        let entry = Entry {
            key,
            rank,
            at: p.at,
            extent: Extent {
                offset: p.extent_offset,
                len: p.extent_len,
            },
            header_off: self.header_off(rank, p.at.slot),
            bytes_total: p.bytes_total,
            page_bytes: p.page_bytes,
            state: State::Writing(p.plan),
            remove_until_ms: 0,
        };
        self.objects.insert(id, entry);
        let (producer, request, token) = (p.producer, p.request, p.token);
        let info = PlanInfo {
            rank,
            at: p.at,
            producer,
            request,
            token,
            ending: false,
        };
        self.plans.insert(p.plan, info);
        Some(id)
    }

    /// False if the key is live elsewhere: the first report heard keeps it.
    fn reported_live(
        &mut self,
        rank: u32,
        at: SlotRef,
        key: Key,
        (extent, bytes_total, page_bytes): (Extent, u64, u32),
    ) -> bool {
        let id = key.id();
        if let Some(e) = self.objects.get_mut(&id) {
            if e.at == at && matches!(e.state, State::Writing(_)) {
                // Its Committed or Adopted crossed the report.
                if let State::Writing(plan) = e.state {
                    self.plans.remove(&plan);
                }
                e.state = State::Live;
            }
            // A Retire may have been lost with the link: what was removed never comes back [I6].
            return e.at == at && e.state != State::Removing;
        }
        let header_off = self.header_off(rank, at.slot);
        let state = State::Live;
        let remove_until_ms = 0;
        let entry = Entry {
            key,
            rank,
            at,
            extent,
            header_off,
            bytes_total,
            page_bytes,
            state,
            remove_until_ms,
        };
        self.objects.insert(id, entry);
        true
    }
}
