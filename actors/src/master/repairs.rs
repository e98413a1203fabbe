//! Replicas that are missing: of objects that had more of them than are left after the loss of a
//! rank, or of which somebody wants more. The node of a living replica is asked to make them, a few
//! at a time, and asked again until they are there. What a master saw evicted it does not have made
//! again.

use super::Master;
use super::entry::{Entry, Replica, State};
use crate::error::{Error, Result};
use crate::message::{
    EndCause, KeyBytes, MAX_REPLICAS, MasterToOwner, ReplicaSet, SLOTS_PER_FRAME, SegmentId,
    SlotRef,
};
use hashbrown::{HashMap, HashSet};
use nkv_store::{KeyId, Retention};
use std::collections::{BTreeMap, VecDeque};

/// Objects that wait for replicas at most; what is beyond stays with fewer.
const MOST_WAITING: usize = 1 << 20;
/// A replica that a put did not make is remembered while fewer wait: losses are not crowded out.
const MOST_UNMADE: usize = 1 << 16;
/// Objects, and their bytes, that nodes are asked for at one tick of 10 ms.
const AT_ONCE: usize = 32;
const BYTES_AT_ONCE: u64 = 16 << 20;
/// Objects that nodes were asked for and that have not come to an end.
const MOST_ASKED: usize = 512;
/// After so long an object is looked at again, and a node is asked again if nothing was begun:
/// longer each time, up to a bound; and how often.
const AGAIN_MS: u64 = 100;
const MOST_AGAIN_MS: u64 = 3_000;
/// Owners of logs announce all replicas of a put within this time.
const ANNOUNCED_MS: u64 = 3_000;
/// Then the logs are asked for what they have not announced: for so many objects at one tick. They
/// have this time.
const ASKED_MS: u64 = 1_200;
const MOST_ASKED_FOR: usize = 256;
const MOST_TRIES: u32 = 24;

#[derive(Debug)]
struct Waiting {
    id: KeyId,
    tries: u32,
}

/// The first replica of a put that a log has announced.
#[derive(Debug)]
struct Announced {
    until_ms: u64,
    id: KeyId,
    at: SlotRef,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    waiting: VecDeque<Waiting>,
    /// Asked for: when they are looked at again, and how often they were asked for.
    asked: HashMap<KeyId, (u64, u32)>,
    /// No rank can take or give one now: when they are looked at again, in this order.
    later: VecDeque<(u64, Waiting)>,
    known: HashSet<KeyId>,
    /// Put into logs, of which not all have announced it: when they are looked at, in this order.
    announced: VecDeque<Announced>,
    /// The same after the logs were asked.
    asked_logs: VecDeque<Announced>,
    /// Of these objects: the first replica.
    unannounced: HashMap<KeyId, SlotRef>,
    /// Replicas that are being retired because they were too many.
    surplus: HashSet<SlotRef>,
}

impl Repairs {
    /// Whether this one was to go; it is gone now.
    pub(super) fn was_surplus(&mut self, at: SlotRef) -> bool {
        !self.surplus.is_empty() && self.surplus.remove(&at)
    }

    fn add(&mut self, id: KeyId) {
        if self.known.len() < MOST_WAITING && self.known.insert(id) {
            self.waiting.push_back(Waiting { id, tries: 0 });
        }
    }

    fn add_later(&mut self, id: KeyId, until_ms: u64) {
        if self.known.len() < MOST_UNMADE && self.known.insert(id) {
            self.later.push_back((until_ms, Waiting { id, tries: 0 }));
        }
    }

    /// An object is gone.
    pub(super) fn ended(&mut self, id: &KeyId, at: SlotRef) {
        self.was_surplus(at);
        if !self.unannounced.is_empty() {
            self.unannounced.remove(id);
        }
        if !self.known.is_empty() {
            self.forget(id);
        }
    }

    fn waits_for_others(&self, first: &Announced) -> bool {
        self.unannounced.get(&first.id) == Some(&first.at)
    }

    fn forget(&mut self, id: &KeyId) {
        self.known.remove(id);
        self.asked.remove(id);
    }
}

/// What is to be done about an object.
enum Next {
    /// All its replicas are live.
    Whole,
    /// They are being written.
    Begun,
    /// No rank can take one or give one now.
    Later,
    /// This node has one and is asked.
    Ask(SegmentId, KeyBytes),
    /// An extra replica is where a replica could be.
    Replace(Replica),
    /// It is gone.
    Gone,
}

impl Master {
    /// An object may have fewer replicas than it should.
    pub(super) fn note_short(&mut self, id: KeyId) {
        let short = |e: &Entry| {
            let (made, wanted) = (e.made(), self.wanted(&id, e));
            made.0 < wanted.0 || made.1 < wanted.1
        };
        if self.objects.get(&id).is_some_and(short) {
            self.repairs.add(id);
        }
    }

    /// A replica of a put was not made, or its plan ended: it may be made now.
    pub(super) fn note_unmade(&mut self, id: KeyId) {
        let few = |e: &Entry| e.is_live() && e.begun().0 < usize::from(e.set().wanted);
        if self.objects.get(&id).is_some_and(few) {
            let until_ms = self.now_ms() + MOST_AGAIN_MS;
            self.repairs.add_later(id, until_ms);
        }
    }

    /// A log announced the first replica of a put. The others are announced soon, or were not made.
    pub(super) fn expect_others(&mut self, id: KeyId) {
        let Some(e) = self.objects.get(&id).filter(|e| e.set().wanted > 1) else { return };
        let (until_ms, at) = (self.now_ms() + ANNOUNCED_MS, e.at());
        self.repairs.announced.push_back(Announced { until_ms, id, at });
        self.repairs.unannounced.insert(id, at);
    }

    /// A log announced a further one. What is evicted from now on is not made again.
    pub(super) fn has_others(&mut self, id: KeyId) {
        let few = |e: &Entry| e.made().0 < usize::from(e.set().wanted);
        if !self.repairs.unannounced.is_empty() && !self.objects.get(&id).is_some_and(few) {
            self.repairs.unannounced.remove(&id);
        }
    }

    /// Asks the logs for replicas that were not announced in time, and then has those made that no
    /// log has.
    fn note_unannounced(&mut self) {
        let now = self.now_ms();
        let due = |list: &VecDeque<Announced>| {
            list.front().is_some_and(|first| first.until_ms <= now || list.len() > MOST_WAITING)
        };
        while due(&self.repairs.asked_logs)
            && let Some(first) = self.repairs.asked_logs.pop_front()
        {
            if self.repairs.waits_for_others(&first) {
                self.repairs.unannounced.remove(&first.id);
                self.note_short(first.id);
            }
        }
        let mut keys = Vec::new();
        while keys.len() < MOST_ASKED_FOR
            && due(&self.repairs.announced)
            && let Some(first) = self.repairs.announced.pop_front()
        {
            let waits = self.repairs.waits_for_others(&first);
            let Some(e) = self.objects.get(&first.id).filter(|_| waits) else { continue };
            keys.push(KeyBytes::shared(e.key.clone()));
            let until_ms = now + ASKED_MS;
            self.repairs.asked_logs.push_back(Announced { until_ms, ..first });
        }
        if !keys.is_empty() {
            self.ask_logs_for(keys);
        }
    }

    /// A new term: nothing is listed.
    pub(super) fn forget_announced(&mut self) {
        self.repairs.announced.clear();
        self.repairs.asked_logs.clear();
        self.repairs.unannounced.clear();
    }

    /// How many objects have fewer replicas than they should.
    pub(super) fn waiting_repairs(&self) -> u64 {
        self.repairs.known.len() as u64
    }

    /// Asks nodes for what is missing; called at every tick.
    pub(super) fn repair(&mut self) {
        self.note_unannounced();
        if self.repairs.known.is_empty()
            || self.check_all_reported().is_err()
            || self.check_quorum().is_err()
        {
            return;
        }
        let now = self.now_ms();
        let due = self.repairs.asked.extract_if(|_, (until_ms, _)| *until_ms <= now);
        // The one that waited longest is the first, in an order that does not depend on the map's.
        let mut due: Vec<_> = due.map(|(id, (until_ms, tries))| (until_ms, id, tries)).collect();
        due.sort_unstable();
        // In front: what was begun is brought to its end first.
        for (_, id, tries) in due.into_iter().rev() {
            self.repairs.waiting.push_front(Waiting { id, tries });
        }
        // Behind what was lost just now.
        let is_due = |(until_ms, _): &(u64, Waiting)| *until_ms <= now;
        while self.repairs.waiting.len() < AT_ONCE && self.repairs.later.front().is_some_and(is_due)
        {
            self.repairs.waiting.extend(self.repairs.later.pop_front().map(|(_, later)| later));
        }
        let (mut bytes, mut frames) = (0, BTreeMap::<SegmentId, Vec<KeyBytes>>::new());
        for _ in 0..AT_ONCE {
            if bytes >= BYTES_AT_ONCE || self.repairs.asked.len() >= MOST_ASKED {
                break;
            }
            let Some(Waiting { id, tries }) = self.repairs.waiting.pop_front() else { break };
            let again_ms = now + (AGAIN_MS << tries.min(8)).min(MOST_AGAIN_MS);
            let next = self.next_of(&id, tries);
            match next {
                Next::Gone => self.repairs.forget(&id),
                Next::Whole => {
                    let made = match self.is_hot(&id) {
                        true => &mut self.counters.hot_objects,
                        false => &mut self.counters.replicas_repaired,
                    };
                    *made += u64::from(tries > 0);
                    self.repairs.forget(&id);
                }
                Next::Ask(..) | Next::Replace(_) if tries >= MOST_TRIES => {
                    self.counters.repairs_given_up += 1;
                    self.repairs.forget(&id);
                }
                Next::Begun => {
                    self.repairs.asked.insert(id, (again_ms, tries + 1));
                }
                Next::Replace(extra) => {
                    self.repairs.surplus.insert(extra.at);
                    let retire = MasterToOwner::Retire(vec![extra.at]);
                    self.durable.members.send(extra.segment_id, retire);
                    self.repairs.asked.insert(id, (again_ms, tries + 1));
                }
                Next::Later => {
                    self.repairs.later.push_back((now + MOST_AGAIN_MS, Waiting { id, tries }));
                }
                Next::Ask(segment_id, key) => {
                    bytes += self.objects.get(&id).map_or(0, |e| e.replica().object.bytes_total);
                    frames.entry(segment_id).or_default().push(key);
                    self.repairs.asked.insert(id, (again_ms, tries + 1));
                }
            }
        }
        for (segment_id, list) in frames {
            self.durable.members.send(segment_id, MasterToOwner::MakeReplicas(list));
        }
    }

    fn next_of(&self, id: &KeyId, tries: u32) -> Next {
        let Some(e) = self.objects.get(id) else { return Next::Gone };
        let wanted = self.wanted(id, e);
        if e.state() == State::Removing {
            return Next::Gone;
        }
        let enough = |(asked_for, extras)| asked_for >= wanted.0 && extras >= wanted.1;
        if e.is_live() && enough(e.made()) {
            return Next::Whole;
        }
        let holders: Vec<SegmentId> =
            e.replicas().map(|r| r.segment_id).filter(|s| self.reachable(*s)).collect();
        if !e.is_live() || enough(e.begun()) {
            return Next::Begun;
        }
        let taken: Vec<SegmentId> = e.places().map(|r| r.segment_id).collect();
        let bytes = e.replica().object.bytes_total;
        if holders.is_empty() {
            return Next::Later;
        }
        let lacks = e.begun().0 < wanted.0;
        let retention = match lacks {
            true => e.retention(),
            false => Retention::Extra,
        };
        if !self.takes_another(&taken, bytes, retention) {
            // Not the only one that can be read.
            let mut extras = e.replicas().filter(|r| e.is_extra(r.at));
            let kept = e.replicas().any(|r| !e.is_extra(r.at) && self.reachable(r.segment_id));
            let extra = extras.find(|r| self.reachable(r.segment_id));
            let extra = extra.filter(|_| kept && lacks);
            return extra.map_or(Next::Later, Next::Replace);
        }
        // Each time another one, as far as there are several.
        let holder = holders[tries as usize % holders.len()];
        let key = KeyBytes::shared(e.key.clone());
        Next::Ask(holder, key)
    }

    /// Keys are to have so many replicas: more are made, and those that are too many retired.
    pub(super) fn replicate(&mut self, keys: &[KeyBytes], wanted: u8) -> Vec<Result<()>> {
        let mut owners = BTreeMap::new();
        let done = keys.iter().map(|key| self.replicate_one(key, wanted, &mut owners)).collect();
        for (segment_id, ForOwner { retire, sets }) in owners {
            for part in sets.chunks(SLOTS_PER_FRAME) {
                self.durable.members.send(segment_id, MasterToOwner::InSet(part.to_vec()));
            }
            for part in retire.chunks(SLOTS_PER_FRAME) {
                self.durable.members.send(segment_id, MasterToOwner::Retire(part.to_vec()));
            }
        }
        done
    }

    fn replicate_one(
        &mut self,
        key: &[u8],
        wanted: u8,
        owners: &mut BTreeMap<SegmentId, ForOwner>,
    ) -> Result<()> {
        if !(1..=MAX_REPLICAS).contains(&wanted) {
            return Err(Error::invalid(format!("{wanted} replicas: 1 to {MAX_REPLICAS}")));
        }
        // One that a rank has still to report would not be counted.
        self.check_all_reported()?;
        let (id, fresh) = (self.id_of(key), self.durable.random.u64().max(1));
        let readable = self.entry(key)?.filter(|e| self.is_readable(e)).is_some();
        let Some(e) = self.objects.get(&id).filter(|_| readable) else {
            return Err(Error::not_found("no such key in memory, or it is being written"));
        };
        // Those that can be read stay.
        let (extras, mut live): (Vec<_>, Vec<_>) = e.replicas().partition(|r| e.is_extra(r.at));
        live.sort_by_key(|r| !self.reachable(r.segment_id));
        let mut surplus = live.split_off(live.len().min(usize::from(wanted)));
        // They would be where the others are to be; but for the last replica.
        if live.iter().any(|r| self.reachable(r.segment_id)) {
            surplus.extend(extras);
        }
        let full = live.len() == usize::from(wanted);
        let unwritten: Vec<_> = e.plans().filter(|_| full).map(|(plan, _)| plan).collect();
        let known = e.set();
        let set_id = if known == ReplicaSet::NONE { fresh } else { known.id };
        let set = ReplicaSet { id: set_id, wanted };
        for r in e.places().filter(|_| set != known) {
            owners.entry(r.segment_id).or_default().sets.push((r.at, set));
        }
        for r in surplus {
            self.repairs.surplus.insert(r.at);
            owners.entry(r.segment_id).or_default().retire.push(r.at);
        }
        if let Some(e) = self.objects.get_mut(&id) {
            e.belongs_to(set);
        }
        self.hot.forget(&id);
        unwritten.into_iter().for_each(|plan| self.end_plan(plan, EndCause::Aborted));
        self.note_short(id);
        Ok(())
    }

    /// An owner reports one of the replicas with another set than the others have: it did not hear
    /// of theirs, or its object moved meanwhile.
    pub(super) fn mend_set(
        &self,
        id: KeyId,
        segment_id: SegmentId,
        at: SlotRef,
        reported: ReplicaSet,
    ) {
        let known = self.objects.get(&id).filter(|e| e.is_at(at)).map(Entry::set);
        if let Some(set) = known.filter(|set| *set != ReplicaSet::NONE && *set != reported) {
            self.durable.members.send(segment_id, MasterToOwner::InSet(vec![(at, set)]));
        }
    }
}

/// What an owner is sent for a change of replicas.
#[derive(Default)]
struct ForOwner {
    retire: Vec<SlotRef>,
    sets: Vec<(SlotRef, ReplicaSet)>,
}
