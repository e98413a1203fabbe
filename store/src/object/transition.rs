//! The states of a slot as its owner sees them, and all transitions in one match. It only decides;
//! the slot table applies.

use crate::arena::PackedExtent;
use crate::error::StoreError;

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Armed, no extent.
    Free,
    /// Given to a plan; a producer may write.
    Open(PackedExtent),
    /// Committed, readable.
    Live(PackedExtent),
    /// Retired, but a producer may still write: held without time limit.
    Fencing(PackedExtent),
    /// Retired, no producer can write, readers may still be copying: held for Q.
    Quarantined(PackedExtent),
    /// Out of epochs, never armed again [I3].
    Spent,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Open(_) => "open",
            State::Live(_) => "live",
            State::Fencing(_) => "fencing",
            State::Quarantined(_) => "quarantined",
            State::Spent => "spent",
        }
    }

    pub(super) fn extent(self) -> Option<PackedExtent> {
        match self {
            State::Free | State::Spent => None,
            State::Open(p) | State::Live(p) | State::Fencing(p) | State::Quarantined(p) => Some(p),
        }
    }
}

/// A slot: its epoch and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) epoch: u32,
    pub(super) state: State,
}

/// What may happen to a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A plan got this slot and extent.
    Open(PackedExtent),
    /// A producer wrote to it for a plan that the owner never received, and no producer can still
    /// write.
    Unheard(PackedExtent),
    /// The plan's producer published and committed; the header was checked.
    Commit,
    /// The object or the plan ends; `fenced`: no producer can write any more.
    Retire { fenced: bool },
    /// The producer of a retired plan can write no more.
    Fenced,
    /// Quarantine is over.
    Elapsed,
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The slot's new state.
    Become(Slot),
    /// It has happened before; nothing changes.
    Already,
    /// Not possible in this state, or for another epoch [I11].
    Refused,
}

/// All transitions of a slot. An event for another epoch than the slot's is refused [I11].
pub(super) fn decide(at: Slot, epoch: u32, event: Event) -> Decision {
    use Decision::{Already, Become, Refused};
    if at.epoch != epoch {
        return Refused;
    }
    let to = |state| Become(Slot { epoch, state });
    match (at.state, event) {
        (State::Free, Event::Open(extent)) => to(State::Open(extent)),
        (State::Free, Event::Unheard(extent)) => to(State::Quarantined(extent)),
        (State::Open(held), Event::Open(extent)) if held == extent => Already,
        (State::Open(extent), Event::Commit) => to(State::Live(extent)),
        (State::Live(_), Event::Commit) => Already,
        (State::Open(extent) | State::Live(extent), Event::Retire { fenced }) => {
            to(if fenced { State::Quarantined(extent) } else { State::Fencing(extent) })
        }
        (State::Fencing(extent), Event::Fenced) => to(State::Quarantined(extent)),
        (State::Quarantined(_), Event::Elapsed) => match epoch.checked_add(1) {
            Some(epoch) => Become(Slot { epoch, state: State::Free }),
            None => to(State::Spent),
        },
        _ => Refused,
    }
}

/// A refusal with the slot's state; `refused` names the request.
pub(super) fn refusal(slot: u32, at: Option<Slot>, asked_epoch: u32, refused: &str) -> StoreError {
    let (epoch, state) = match at {
        None => (0, "outside the header arena"),
        Some(at) if asked_epoch < at.epoch => (at.epoch, "past the epoch asked for"),
        Some(at) => (at.epoch, at.state.name()),
    };
    StoreError::WrongState {
        slot,
        epoch,
        state,
        refused: format!("{refused} at epoch {asked_epoch}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: PackedExtent = PackedExtent { first: 3, units: 2 };

    #[test]
    fn i11_every_event_of_another_epoch_is_refused() {
        let states = [
            State::Free,
            State::Open(PLACE),
            State::Live(PLACE),
            State::Fencing(PLACE),
            State::Quarantined(PLACE),
            State::Spent,
        ];
        let events = [
            Event::Open(PLACE),
            Event::Unheard(PLACE),
            Event::Commit,
            Event::Retire { fenced: true },
            Event::Retire { fenced: false },
            Event::Fenced,
            Event::Elapsed,
        ];
        for state in states {
            for event in events {
                for epoch in [6, 8] {
                    assert_eq!(decide(Slot { epoch: 7, state }, epoch, event), Decision::Refused);
                }
            }
        }
    }

    #[test]
    fn i3_the_last_epoch_is_never_armed_again() {
        let last = Slot { epoch: u32::MAX, state: State::Quarantined(PLACE) };
        let spent = Slot { epoch: u32::MAX, state: State::Spent };
        assert_eq!(decide(last, u32::MAX, Event::Elapsed), Decision::Become(spent));
        for event in [Event::Open(PLACE), Event::Unheard(PLACE), Event::Commit, Event::Elapsed] {
            assert_eq!(decide(spent, u32::MAX, event), Decision::Refused);
        }
    }

    #[test]
    fn a_slot_takes_sixteen_bytes() {
        assert_eq!(size_of::<Slot>(), 16);
    }
}
