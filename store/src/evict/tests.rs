//! Policies against a plain queue, and the order in which a prefix is evicted.

use super::*;
use proptest::prelude::*;

const KINDS: [PolicyKind; 4] =
    [PolicyKind::Lru, PolicyKind::Lru2, PolicyKind::Prefix, PolicyKind::Fifo];

/// Touches a prefix, given head first, from its end to its start.
fn touch_prefix(policy: &mut dyn Policy, prefix: &[(u32, u32)]) {
    prefix.iter().rev().for_each(|&(slot, epoch)| policy.touch(slot, epoch));
}

fn victims(policy: &mut dyn Policy) -> Vec<u32> {
    std::iter::from_fn(|| policy.victim().map(|(slot, ..)| slot)).collect()
}

#[test]
fn lru_evicts_what_was_not_used_and_fifo_what_came_first() {
    for (kind, order) in [(PolicyKind::Lru, [1, 2, 0]), (PolicyKind::Fifo, [0, 1, 2])] {
        let mut p = kind.build(8);
        for slot in 0..3 {
            p.admit(slot, 1, 100);
        }
        p.touch(0, 1);
        assert_eq!((p.len(), p.bytes()), (3, 300));
        assert_eq!(victims(p.as_mut()), order, "{kind}");
        assert_eq!((p.len(), p.bytes()), (0, 0));
    }
}

#[test]
fn a_prefix_loses_its_tail_before_its_head() {
    let mut p = PolicyKind::Lru.build(16);
    let chain: Vec<(u32, u32)> = (0..6).map(|slot| (slot, 1)).collect();
    for &(slot, epoch) in &chain {
        p.admit(slot, epoch, 1);
    }
    p.admit(9, 1, 1);
    // Two requests share the first blocks; the second one is shorter.
    touch_prefix(p.as_mut(), &chain);
    touch_prefix(p.as_mut(), &chain[..3]);
    assert_eq!(victims(p.as_mut()), [9, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn what_was_used_once_goes_before_what_was_used_again() {
    let mut p = PolicyKind::Lru2.build(16);
    for slot in 0..10 {
        p.admit(slot, 1, 10);
    }
    touch_prefix(p.as_mut(), &[(0, 1), (1, 1), (2, 1)]);
    // A scan of new objects, each later than the last touch, displaces only other probation
    // objects.
    for slot in 10..16 {
        p.admit(slot, 1, 10);
    }
    assert_eq!((p.len(), p.bytes()), (16, 160));
    assert_eq!(victims(p.as_mut())[13..], [2, 1, 0], "protected, the head last");
}

#[test]
fn the_protected_segment_gives_back_what_is_too_much() {
    let mut p = PolicyKind::Lru2.build(16);
    for slot in 0..10 {
        p.admit(slot, 1, 10);
    }
    for slot in 0..5 {
        p.touch(slot, 1);
    }
    // Three of ten stay protected; 0 and 1 are the newest on probation.
    assert_eq!(victims(p.as_mut()), [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]);
    p.admit(0, 2, 1000);
    p.touch(0, 2);
    p.admit(1, 2, 1);
    assert_eq!(victims(p.as_mut()), [0, 1], "what is larger than the segment is not protected");
}

/// 1,024 batches of two objects, of which the policy has the newest 512; `read`: whether first ones
/// are read, and whether last ones are.
fn batches(read: (bool, bool)) -> Box<dyn Policy> {
    let mut p = PolicyKind::Prefix.build(1024);
    for batch in 0..1024_u32 {
        let (slot, epoch) = (batch % 512 * 2, batch / 512 + 1);
        p.forget(slot, epoch - 1);
        p.forget(slot + 1, epoch - 1);
        p.admit(slot, epoch, 10);
        p.admit_last(slot + 1, epoch, 10);
        if read.0 {
            p.touch(slot, epoch);
        }
        if read.1 {
            p.touch(slot + 1, epoch);
        }
    }
    p
}

#[test]
fn last_objects_of_batches_go_first_where_few_of_them_are_read() {
    let mut p = batches((true, false));
    p.forget(1023, 2);
    p.admit_last(1023, 3, 10);
    assert_eq!(p.len(), 1024);
    let order = victims(p.as_mut());
    assert!(order[..400].iter().all(|slot| slot % 2 == 1), "{order:?}");
}

#[test]
fn last_objects_of_batches_stay_as_others_do_where_they_are_read() {
    for read in [(true, true), (false, false)] {
        let mut p = batches(read);
        // Newer than all others, and not read yet.
        for slot in (1..32).step_by(2) {
            p.forget(slot, 2);
            p.admit_last(slot, 3, 10);
        }
        let order = victims(p.as_mut());
        let lasts = order[..512].iter().filter(|slot| *slot % 2 == 1).count();
        assert!((192..=320).contains(&lasts), "{read:?}: {lasts} of the first 512");
        assert!(
            order[..100].iter().all(|slot| slot % 2 == 0 || *slot >= 32),
            "{read:?}: {order:?}"
        );
    }
}

#[test]
fn a_last_object_that_is_read_is_protected() {
    let mut p = batches((true, false));
    p.touch(1021, 2);
    let order = victims(p.as_mut());
    assert!(order.iter().position(|slot| *slot == 1021) > Some(1000), "{order:?}");
}

#[test]
fn a_new_epoch_of_a_protected_slot_starts_on_probation() {
    let mut p = PolicyKind::Lru2.build(8);
    for slot in 0..8 {
        p.admit(slot, 1, 10);
    }
    p.touch(0, 1);
    p.admit(0, 1, 99);
    assert_eq!(p.bytes(), 80, "it is held already");
    p.admit(0, 2, 10);
    assert_eq!((p.len(), p.bytes()), (8, 80));
    p.touch(1, 1);
    p.forget(1, 1);
    p.forget(1, 1);
    assert_eq!(victims(p.as_mut()), [2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn calls_about_another_epoch_are_ignored() {
    for kind in KINDS {
        let mut p = kind.build(4);
        p.admit(0, 5, 10);
        p.admit(1, 1, 10);
        p.touch(0, 4);
        p.forget(0, 6);
        p.admit(0, 4, 99);
        assert_eq!((p.len(), p.bytes()), (2, 20));
        p.admit(0, 6, 30);
        assert_eq!((p.len(), p.bytes()), (2, 40));
        assert_eq!(p.victim(), Some((1, 1, 10)), "a new epoch is a new object");
        assert_eq!(p.victim(), Some((0, 6, 30)));
        assert_eq!(p.victim(), None);
        p.admit(4, 1, 1);
        assert!(p.is_empty(), "slot 4 of 4 does not exist");
    }
}

#[test]
fn what_is_admitted_as_the_oldest_goes_first_and_moves_nobody() {
    for kind in KINDS {
        let mut p = kind.build(8);
        p.admit(3, 2, 30);
        p.admit(4, 1, 40);
        for (slot, bytes) in [(2, 20), (1, 10), (8, 1)] {
            p.admit_oldest(slot, 1, bytes);
        }
        p.admit_oldest(3, 1, 99);
        p.admit_oldest(4, 2, 99);
        assert_eq!((p.len(), p.bytes()), (4, 100), "{kind}");
        assert_eq!([p.epoch_of(3), p.epoch_of(1), p.epoch_of(0)], [Some(2), Some(1), None]);
        assert_eq!(victims(p.as_mut()), [1, 2, 3, 4], "{kind}");
        p.admit_oldest(5, 1, 1);
        p.admit(6, 1, 1);
        assert_eq!(victims(p.as_mut()), [5, 6], "{kind}: into an empty one");
    }
    let mut p = PolicyKind::Lru2.build(8);
    (0..8).for_each(|slot| p.admit(slot, 1, 10));
    p.touch(0, 1);
    p.admit_oldest(0, 1, 10);
    assert_eq!((p.bytes(), p.epoch_of(0)), (80, Some(1)), "a protected one is held");
}

#[test]
fn policies_and_watermarks_are_read_from_settings() {
    for kind in KINDS {
        assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
    }
    assert_eq!("lru2".parse::<PolicyKind>().unwrap(), PolicyKind::Lru2);
    let unknown = "arc".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(unknown.contains("lru, lru2, prefix or fifo"), "{unknown}");
    let given = Watermarks::Percent { hi: 95, lo: 85 };
    assert_eq!("95/85".parse::<Watermarks>().unwrap(), given);
    for marks in [given, Watermarks::Auto] {
        assert_eq!(marks.to_string().parse::<Watermarks>().unwrap(), marks);
    }
    for bad in ["95", "85/95", "101/50", "50/0", "a/b", "-1/-2", "", "aut"] {
        assert!(bad.parse::<Watermarks>().is_err(), "{bad}");
    }
}

#[test]
fn eviction_starts_above_hi_and_aims_at_lo() {
    let of = |hi, lo, bytes| Marks::new(Watermarks::Percent { hi, lo }, bytes, false);
    let mut w = of(95, 85, 1000);
    w.admitted(500);
    assert!(!w.exceeded_by(950) && w.exceeded_by(951));
    assert_eq!(w.target(), 850);
    let full = of(100, 99, u64::MAX);
    assert!(!full.exceeded_by(u64::MAX));
    assert_eq!(full.target(), (u128::from(u64::MAX) * 99 / 100) as u64);
}

#[test]
fn a_heap_without_a_log_keeps_room_for_two_objects_of_the_largest_size() {
    let beside = Marks::new(Watermarks::Auto, 10_000, true);
    assert!(!beside.exceeded_by(9_500) && beside.exceeded_by(9_501));
    let mut alone = Marks::new(Watermarks::Auto, 10_000, false);
    // Where eviction starts, and where it stops.
    let marks = |marks: &Marks| {
        let hi = (0..=10_000).rev().find(|used| !marks.exceeded_by(*used)).unwrap();
        (hi, marks.target())
    };
    assert_eq!(marks(&alone), (9_900, 9_900));
    alone.admitted(10);
    assert_eq!(marks(&alone), (9_900, 9_900), "at least 1 % of it");
    alone.admitted(200);
    assert_eq!(marks(&alone), (9_600, 9_600));
    alone.admitted(9_000);
    assert_eq!(marks(&alone), (9_500, 8_500), "at most 15 % of it");
    (0..100).for_each(|_| alone.admitted(100));
    assert_eq!(marks(&alone), (9_500, 8_500), "until as much was put as it holds");
    alone.admitted(100);
    assert_eq!(marks(&alone), (9_800, 9_800));
    alone.is_in_pieces();
    assert_eq!(marks(&alone), (9_700, 9_700));
    (0..30).for_each(|_| alone.is_in_pieces());
    assert_eq!(marks(&alone), (9_500, 8_500));
    (0..101).for_each(|_| alone.admitted(100));
    assert_eq!(marks(&alone), (9_800, 9_800), "until as much was put as it holds");
}

#[test]
fn what_goes_first_has_marks_of_its_own_and_puts_that_wait_get_what_they_want() {
    let alone = Marks::new(Watermarks::Auto, 10_000, false);
    assert_eq!((alone.target_of_first(9_500), alone.target_of_first(9_501)), (None, Some(8_500)));
    let given = Marks::new(Watermarks::Percent { hi: 80, lo: 60 }, 10_000, false);
    assert_eq!((given.target_of_first(8_000), given.target_of_first(8_001)), (None, Some(6_000)));
    assert_eq!(alone.target_for(50, 50), 9_900);
    assert_eq!(alone.target_for(500, 700), 9_300);
    assert_eq!(alone.target_for(500, 7_000), 8_500);
    assert_eq!(alone.target_for(5_000, 7_000), 5_000);
    assert_eq!(given.target_for(500, 700), 6_000);
    assert_eq!(alone.target_for(u64::MAX, u64::MAX), 0);
}

/// Slots in order of eviction, as a policy should have them.
#[derive(Default)]
struct Queue(Vec<(u32, u32, u64)>);

impl Queue {
    fn find(&self, slot: u32, epoch: u32) -> Option<usize> {
        self.0.iter().position(|&(s, e, _)| (s, e) == (slot, epoch))
    }

    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        match self.0.iter().position(|&(s, ..)| s == slot) {
            Some(at) if self.0[at].1 >= epoch => return,
            Some(at) => drop(self.0.remove(at)),
            None => {}
        }
        self.0.push((slot, epoch, bytes));
    }
}

/// Two queues, as two-segment LRU should have them.
#[derive(Default)]
struct Queues {
    probation: Queue,
    protected: Queue,
}

impl Queues {
    fn bytes(&self) -> u64 {
        self.probation.0.iter().chain(&self.protected.0).map(|v| v.2).sum()
    }

    fn admit(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if self.protected.0.iter().any(|v| v.0 == slot && v.1 >= epoch) {
            return;
        }
        self.protected.0.retain(|v| v.0 != slot);
        self.probation.admit(slot, epoch, bytes);
    }

    fn touch(&mut self, slot: u32, epoch: u32) {
        let used = match (self.probation.find(slot, epoch), self.protected.find(slot, epoch)) {
            (Some(at), _) => self.probation.0.remove(at),
            (None, Some(at)) => self.protected.0.remove(at),
            (None, None) => return,
        };
        self.protected.0.push(used);
        while self.protected.0.iter().map(|v| v.2).sum::<u64>() > self.bytes() * 30 / 100 {
            self.probation.0.push(self.protected.0.remove(0));
        }
    }

    fn forget(&mut self, slot: u32, epoch: u32) {
        for queue in [&mut self.probation, &mut self.protected] {
            queue.0.retain(|&(s, e, _)| (s, e) != (slot, epoch));
        }
    }

    fn victim(&mut self) -> Option<(u32, u32, u64)> {
        let queues = [&mut self.probation, &mut self.protected];
        queues.into_iter().find(|q| !q.0.is_empty()).map(|q| q.0.remove(0))
    }
}

proptest! {
    #[test]
    fn a_policy_is_a_queue(
        lru: bool, ops in prop::collection::vec((0u8..5, 0u32..6, 1u32..4, 0u64..100), 0..200)
    ) {
        let mut p = if lru { PolicyKind::Lru } else { PolicyKind::Fifo }.build(6);
        let mut q = Queue::default();
        for (op, slot, epoch, bytes) in ops {
            match op {
                0 | 1 => { p.admit(slot, epoch, bytes); q.admit(slot, epoch, bytes); }
                2 => {
                    p.touch(slot, epoch);
                    if let (true, Some(at)) = (lru, q.find(slot, epoch)) {
                        let used = q.0.remove(at);
                        q.0.push(used);
                    }
                }
                3 => { p.forget(slot, epoch); q.0.retain(|&(s, e, _)| (s, e) != (slot, epoch)); }
                _ => {
                    let oldest = (!q.0.is_empty()).then(|| q.0.remove(0));
                    prop_assert_eq!(p.victim(), oldest);
                }
            }
            prop_assert_eq!(p.len(), q.0.len());
            prop_assert_eq!(p.bytes(), q.0.iter().map(|v| v.2).sum::<u64>());
        }
    }

    #[test]
    fn two_segments_are_two_queues(
        ops in prop::collection::vec((0u8..6, 0u32..12, 1u32..3, 0u64..100), 0..300)
    ) {
        let mut p = PolicyKind::Lru2.build(12);
        let mut q = Queues::default();
        for (op, slot, epoch, bytes) in ops {
            match op {
                0 | 1 => { p.admit(slot, epoch, bytes); q.admit(slot, epoch, bytes); }
                2 | 3 => { p.touch(slot, epoch); q.touch(slot, epoch); }
                4 => { p.forget(slot, epoch); q.forget(slot, epoch); }
                _ => prop_assert_eq!(p.victim(), q.victim()),
            }
            prop_assert_eq!(p.len(), q.probation.0.len() + q.protected.0.len());
            prop_assert_eq!(p.bytes(), q.bytes());
        }
        prop_assert_eq!(
            std::iter::from_fn(|| p.victim()).collect::<Vec<_>>(),
            std::iter::from_fn(|| q.victim()).collect::<Vec<_>>()
        );
    }
}

mod retained {
    use super::*;
    use crate::retention::Retention;
    use std::time::Duration;

    const SLOTS: u32 = 8;
    const SECOND: u64 = 1_000;

    fn kinds(n: u8) -> Retention {
        let soft = |s| Retention::SoftPin(Duration::from_secs(s));
        let until_read = Retention::UntilRead(Duration::from_secs(1));
        let (first, hard) = (Retention::EvictFirst, Retention::HardPin);
        let kinds = [first, soft(2), soft(9), hard, until_read, Retention::Extra];
        kinds.get(usize::from(n)).copied().unwrap_or_default()
    }

    fn candidate(slot: u32, retention: Retention) -> Candidate {
        Candidate { slot, epoch: 1, bytes: 100, retention }
    }

    fn victims(held: &mut Retained, now_ms: u64) -> Vec<u32> {
        std::iter::from_fn(|| held.victim(now_ms).map(|(slot, ..)| slot)).collect()
    }

    #[test]
    fn the_first_go_before_all_and_soft_pins_last_and_hard_pins_never() {
        for kind in KINDS {
            let mut held = Retained::new(kind, SLOTS);
            for (slot, n) in [(0, 2), (1, 9), (2, 3), (3, 1), (4, 0), (5, 9)] {
                held.admit(candidate(slot, kinds(n)), 0);
            }
            assert_eq!((held.len(), held.bytes()), (5, 600), "{kind}");
            // Of two soft pins first the one that ends first.
            assert_eq!(victims(&mut held, 0), [4, 1, 5, 3, 0], "{kind}");
            assert_eq!((held.len(), held.bytes(), held.epoch_of(2)), (0, 100, Some(1)));
            held.forget(2, 1);
            assert_eq!((held.bytes(), held.epoch_of(2)), (0, None));
        }
    }

    #[test]
    fn a_soft_pin_ends_some_time_after_the_last_use() {
        let mut held = Retained::new(PolicyKind::Lru, SLOTS);
        held.admit(candidate(0, kinds(1)), 0);
        held.admit(candidate(1, kinds(9)), 0);
        held.touch(0, 1, SECOND);
        // Its pin ends three seconds after the start, and it is the most recently used.
        assert_eq!(held.victim(2 * SECOND), Some((1, 1, 100)));
        held.admit(candidate(2, kinds(9)), 2 * SECOND);
        assert_eq!(held.victim(2 * SECOND), Some((2, 1, 100)), "set aside");
        held.admit(candidate(3, kinds(9)), 2 * SECOND);
        assert_eq!(held.victim(3 * SECOND), Some((0, 1, 100)), "ended, and the oldest");
        held.admit(candidate(0, kinds(1)), 3 * SECOND);
        held.admit(candidate(4, kinds(9)), 3 * SECOND);
        assert_eq!(victims(&mut held, 3 * SECOND), [3, 4, 0]);
    }

    #[test]
    fn one_that_was_set_aside_is_the_newest_once_it_is_used() {
        let mut held = Retained::new(PolicyKind::Lru, SLOTS);
        held.admit(candidate(0, kinds(2)), 0);
        held.admit(candidate(1, kinds(9)), 0);
        held.admit(candidate(2, kinds(9)), 0);
        assert_eq!(held.victim(0), Some((1, 1, 100)));
        held.touch(0, 1, 0);
        // After its pin has ended it goes in its turn.
        assert_eq!(victims(&mut held, 9 * SECOND), [2, 0]);
    }

    #[test]
    fn what_is_to_go_first_does_unless_it_is_pinned() {
        for kind in KINDS {
            let mut held = Retained::new(kind, SLOTS);
            (0..3).for_each(|slot| held.admit(candidate(slot, kinds(9)), 0));
            held.admit(candidate(3, kinds(2)), 0);
            held.admit(candidate(4, kinds(3)), 0);
            for slot in [2, 3, 4, 5] {
                held.go_first(&candidate(slot, Retention::EvictFirst));
            }
            assert_eq!((held.len(), held.bytes()), (4, 500), "{kind}");
            assert_eq!(held.victim(0), Some((2, 1, 100)), "{kind}");
            assert_eq!(victims(&mut held, 0).last(), Some(&3), "{kind}");
        }
    }

    fn goes_first(retention: Retention) -> bool {
        matches!(retention, Retention::EvictFirst | Retention::Extra)
    }

    /// Whether the second says nothing new of the first.
    fn is_alike(held: &Candidate, c: &Candidate) -> bool {
        let kind = |r: Retention| if goes_first(r) { Retention::Extra } else { r };
        let kinds = (kind(held.retention), kind(c.retention));
        c.retention == Retention::Usual
            || std::mem::discriminant(&kinds.0) == std::mem::discriminant(&kinds.1)
    }

    #[derive(Debug, Default)]
    struct Model(Vec<(Candidate, u64, bool)>);

    impl Model {
        fn until(c: &Candidate, used_ms: u64) -> Option<u64> {
            match c.retention {
                Retention::SoftPin(ttl) => Some(used_ms + ttl.as_millis() as u64),
                _ => None,
            }
        }

        fn take(&mut self, at: Option<usize>) -> Option<(u32, u32, u64)> {
            at.map(|at| self.0.remove(at).0).map(|c| (c.slot, c.epoch, c.bytes))
        }

        fn aside(&self, now_ms: u64) -> Option<usize> {
            let aside = |(_, (c, used, aside)): &(usize, &(Candidate, u64, bool))| {
                Self::until(c, *used).is_some_and(|until| *aside && until <= now_ms)
            };
            let listed = self.0.iter().enumerate().filter(aside);
            listed.min_by_key(|(_, (c, used, _))| (Self::until(c, *used), c.slot)).map(|(i, _)| i)
        }

        fn victim(&mut self, now_ms: u64) -> Option<(u32, u32, u64)> {
            let first = self.0.iter().position(|(c, ..)| goes_first(c.retention));
            if let Some(at) = first.or_else(|| self.aside(now_ms)) {
                return self.take(Some(at));
            }
            for at in 0..self.0.len() {
                let (c, used, aside) = self.0[at];
                if aside || c.retention == Retention::HardPin {
                    continue;
                }
                if Self::until(&c, used).is_none_or(|until| until <= now_ms) {
                    return self.take(Some(at));
                }
                self.0[at].2 = true;
            }
            let last = self.aside(u64::MAX);
            self.take(last)
        }
    }

    proptest! {
        #[test]
        fn any_order_of_calls_is_the_models(
            ops in prop::collection::vec((0u8..9, 0..SLOTS, 1u32..3, 0u64..3000, 0u8..8), 0..300)
        ) {
            let (mut held, mut model) = (Retained::new(PolicyKind::Lru, SLOTS), Model::default());
            let mut now = 0;
            for (op, slot, epoch, n, kind) in ops {
                let at = model.0.iter().position(|(c, ..)| c.slot == slot);
                let here = at.filter(|at| model.0[*at].0.epoch == epoch);
                match op {
                    0..=2 => {
                        let c = Candidate { slot, epoch, bytes: n, retention: kinds(kind) };
                        held.admit(c, now);
                        let replaces = |held: &Candidate| {
                            held.epoch < epoch || held.epoch == epoch && !is_alike(held, &c)
                        };
                        if at.is_none_or(|at| replaces(&model.0[at].0)) {
                            at.map(|at| model.0.remove(at));
                            model.0.push((c, now, false));
                        }
                    }
                    3 => {
                        held.touch(slot, epoch, now);
                        if let Some(at) = here {
                            let (c, ..) = model.0.remove(at);
                            model.0.push((c, now, false));
                        }
                    }
                    4 => { held.forget(slot, epoch); here.map(|at| model.0.remove(at)); }
                    5 => prop_assert_eq!(held.victim(now), model.victim(now)),
                    // They stay until their owner has them removed.
                    6 => drop(held.take_due(now, 2)),
                    7 => {
                        let bytes = here.map_or(n, |at| model.0[at].0.bytes);
                        let c = Candidate { slot, epoch, bytes, retention: Retention::EvictFirst };
                        held.go_first(&c);
                        let is_usual = |at: &usize| model.0[*at].0.retention == Retention::Usual;
                        if let Some(at) = here.filter(is_usual) {
                            model.0.remove(at);
                            model.0.push((c, now, false));
                        }
                    }
                    _ => now += n,
                }
                let evictable = model.0.iter().filter(|(c, ..)| c.retention != Retention::HardPin);
                prop_assert_eq!(held.len(), evictable.count());
                prop_assert_eq!(held.bytes(), model.0.iter().map(|(c, ..)| c.bytes).sum::<u64>());
                for slot in 0..SLOTS {
                    let known = model.0.iter().find(|(c, ..)| c.slot == slot);
                    prop_assert_eq!(held.epoch_of(slot), known.map(|(c, ..)| c.epoch));
                }
            }
        }
    }
}
