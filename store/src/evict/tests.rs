//! Policies against a plain queue, and the order in which a prefix goes.

use super::*;
use proptest::prelude::*;

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
    p.touch_batch(&chain);
    p.touch_batch(&chain[..3]);
    assert_eq!(victims(p.as_mut()), [9, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn calls_about_another_epoch_are_ignored() {
    for kind in [PolicyKind::Lru, PolicyKind::Fifo] {
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
fn policies_and_watermarks_are_read_from_settings() {
    assert_eq!("lru".parse::<PolicyKind>().unwrap(), PolicyKind::Lru);
    assert_eq!(PolicyKind::Fifo.to_string().parse::<PolicyKind>().unwrap(), PolicyKind::Fifo);
    assert!("arc".parse::<PolicyKind>().unwrap_err().to_string().contains("lru or fifo"));
    assert_eq!("95/85".parse::<Watermarks>().unwrap(), Watermarks::default());
    for bad in ["95", "85/95", "101/50", "50/0", "a/b", "-1/-2", ""] {
        assert!(bad.parse::<Watermarks>().is_err(), "{bad}");
    }
}

#[test]
fn eviction_starts_above_hi_and_aims_at_lo() {
    let w = Watermarks { hi: 95, lo: 85 };
    assert!(!w.above_hi(95, 100) && w.above_hi(96, 100));
    assert_eq!(w.target_bytes(1000), 850);
    let full = Watermarks { hi: 100, lo: 99 };
    assert!(!full.above_hi(u64::MAX, u64::MAX));
    assert_eq!(full.target_bytes(u64::MAX), (u128::from(u64::MAX) * 99 / 100) as u64);
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
}
