//! Counters of a slot table.

use super::transition::State;

/// Counters of a slot table. Bytes are those of extents, as allocated, so in a segment without open
/// or held slots `live_bytes` equals the arena's used bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of committed objects.
    pub live_bytes: u64,
    /// Of these, bytes of hard pins.
    pub hard_bytes: u64,
    /// Bytes of open plans.
    pub open_bytes: u64,
    /// Bytes retired but not free yet: fencing and in quarantine.
    pub held_bytes: u64,
    /// Committed objects.
    pub live_objects: u64,
    /// Open plans.
    pub open_plans: u64,
    /// Slots in quarantine.
    pub quarantined: u64,
    /// Slots whose producer is not fenced yet.
    pub fencing: u64,
    /// Slots out of epochs, never used again [I3].
    pub spent: u64,
    /// Live objects that the index has no room for.
    pub index_overflow: u64,
    /// Slots that a scan found written to for plans that the owner had not received.
    pub unheard: u64,
}

/// Adds a slot's state to the counters, or subtracts it, by `change`.
pub(super) fn count(usage: &mut Usage, state: State, change: impl Fn(&mut u64, u64)) {
    match state {
        State::Free => {}
        State::Open(p) => {
            change(&mut usage.open_plans, 1);
            change(&mut usage.open_bytes, p.bytes());
        }
        State::Live(p) => {
            change(&mut usage.live_objects, 1);
            change(&mut usage.live_bytes, p.bytes());
        }
        State::Fencing(p) => {
            change(&mut usage.fencing, 1);
            change(&mut usage.held_bytes, p.bytes());
        }
        State::Quarantined(p) => {
            change(&mut usage.quarantined, 1);
            change(&mut usage.held_bytes, p.bytes());
        }
        State::Spent => change(&mut usage.spent, 1),
    }
}
