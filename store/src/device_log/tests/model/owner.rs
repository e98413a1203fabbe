//! The owner of the model: its steps in any order, the hole rule spread over many of them.

use super::{Actual, Bug, COPIER, Model, RULES, Step, Wrong};
use crate::device_log::tests::Index;
use crate::device_log::*;
use std::collections::HashSet;

impl Model {
    pub(super) fn owner_step(&mut self) -> Step {
        let now = self.now;
        match self.dice.below(100) {
            0..35 => {
                self.w.log.accept(now, &mut self.w.index).unwrap();
            }
            35..60 => {
                self.w.log.retire_ahead(now, &mut self.w.index).unwrap();
                self.w.log.restart_quarantines(now);
            }
            60..80 => self.pass(),
            80..84 => self.read_mail(),
            84..93 => self.hole_rule()?,
            96..98 if self.dice.one_in(3) => self.remove(),
            93..96 => {
                let survivors = self.w.log.survivors().unwrap();
                self.w.moves.give(survivors);
            }
            98.. if self.dice.one_in(4) => self.restart()?,
            _ => {}
        }
        self.observe()
    }

    /// The tail moves past everything it may pass.
    fn pass(&mut self) {
        let early = self.bug == Bug::SkipsTheQuarantine;
        let now = if early { u64::MAX } else { self.now };
        let ignores = self.bug == Bug::IgnoresPins;
        let pins = &self.pins;
        let unpinned = |slot, epoch| ignores || !pins.contains(&(slot, epoch));
        self.w.log.advance(now, unpinned).unwrap();
    }

    /// One abandoned claim arrives; its producer, if it still exists, is notified.
    fn read_mail(&mut self) {
        let Some((id, abandon)) = self.mail.pop_front() else {
            return;
        };
        self.w.log.abandon(abandon).unwrap();
        if let Some(producer) = self.producers.iter_mut().find(|other| other.id == id) {
            producer.replied = true;
        }
    }

    /// A removal, or the master's notice that another copy was first.
    fn remove(&mut self) {
        let live: Vec<LogObject> = self.w.log.live().collect();
        if !live.is_empty() {
            let object = live[self.dice.below(live.len() as u64) as usize];
            let now = self.now;
            let retired =
                self.w.log.retire(object.slot, object.epoch, now, &mut self.w.index).unwrap();
            assert_eq!(retired, Retire::Done);
            self.w.log.restart_quarantines(now);
        }
    }

    fn hole_rule(&mut self) -> Step {
        let Some(mut asking) = self.asking.take() else {
            // Producers to ask are listed after the position was read.
            let check = self.w.log.hole(self.now).unwrap();
            if let Some(check) = check {
                self.asked_below = check.below();
                let all = self.producers.iter().map(|p| p.id);
                self.asking = Some(check.ask(all.chain([COPIER])));
            }
            return Ok(());
        };
        for id in asking.outstanding().to_vec() {
            if id == COPIER {
                if self.w.moves.is_clear_below(asking.below()) {
                    asking.clear(&id);
                }
                continue;
            }
            match self.producers.iter_mut().find(|producer| producer.id == id) {
                // Replaced since: it was dead and could write no more.
                None => asking.fenced(&id),
                Some(p) if !p.dead && p.claims.clear_below(asking.below()) => asking.clear(&id),
                Some(p) if p.dead && self.dice.one_in(3) => {
                    if self.bug != Bug::SkipsTheFence {
                        p.fence();
                    }
                    self.met.fences += 1;
                    asking.fenced(&id);
                }
                Some(_) => {}
            }
        }
        match asking.all_clear() {
            Err(asking) => self.asking = Some(asking),
            Ok(report) => {
                self.nobody_writes()?;
                self.w.log.close_holes(report, self.now, &mut self.w.index).unwrap();
            }
        }
        Ok(())
    }

    /// No claim that is about to be void is open for a producer that can still write [I14].
    fn nobody_writes(&self) -> Step {
        let open = self.actual.range(..self.asked_below).filter(|(_, actual)| !actual.done);
        for (&p, actual) in open {
            let writer = self.producers.iter().find(|producer| producer.id == actual.producer);
            let writes = writer.map_or(actual.producer == COPIER, |writer| !writer.fenced);
            if self.all_seeing && writes {
                return Err(Wrong::VoidUnderAWriter(p));
            }
        }
        Ok(())
    }

    /// The actor restarts: table and directory are rebuilt.
    fn restart(&mut self) -> Step {
        let now = self.now;
        let live = |log: &DeviceLog| log.live().map(|o| (o.slot, o.epoch)).collect::<HashSet<_>>();
        let before = live(&self.w.log);
        self.note_counts(self.w.log.counts());
        self.met.restarts += 1;
        self.asking = None;
        let index = std::mem::take(&mut self.w.index);
        self.w.index = Index { objects: Default::default(), ..index };
        let (memory, layout) = (self.w.memory.clone(), self.w.layout);
        let index = &mut self.w.index;
        self.w.log =
            DeviceLog::rebuild(memory, layout, (RULES, self.w.moves.clone()), now, index).unwrap();
        self.w.log.restart_quarantines(now);
        self.w.log.find_left_behind(self.pins.iter().copied()).unwrap();
        let after = live(&self.w.log);
        if self.all_seeing && before != after {
            return Err(Wrong::Restart(format!("{before:?} became {after:?}")));
        }
        Ok(())
    }

    /// The copying thread makes a step.
    pub(super) fn copier_step(&mut self) {
        self.copier.step().unwrap();
        for (p, (slot, epoch)) in self.w.moves.pending() {
            let of = self.w.layout.position(slot, epoch).unwrap();
            let Actual { n, name, key, .. } = self.actual[&of];
            let (done, acknowledged) = (false, false);
            let copy = Actual { n, producer: COPIER, name, key, done, acknowledged };
            self.actual.entry(p).or_insert(copy);
        }
        // Of its claims it writes to the last one alone.
        let moves = &self.w.moves;
        let left = self.actual.iter_mut().filter(|(p, _)| moves.is_clear_below(**p + 1));
        left.filter(|(_, a)| a.producer == COPIER).for_each(|(_, copy)| copy.done = true);
    }

    pub(super) fn note_counts(&mut self, counts: LogCounts) {
        self.met.skipped += counts.skipped.claims;
        self.met.abandoned += counts.abandoned.claims;
        self.met.voided += counts.voided.claims;
        self.met.duplicates += counts.duplicates.claims;
        self.met.removed += counts.removed.claims;
        self.met.evicted += counts.evicted.claims;
        self.met.copies += counts.copies.claims;
        self.met.stale_copies += counts.stale_copies.claims;
        self.met.passed_over += counts.passed_over.claims;
    }
}
