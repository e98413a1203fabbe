//! The sleep protocol of a ring's two ends: one word each. An end announces that it will sleep,
//! then checks once more; the other publishes, then checks whether it must wake the first. Each has
//! a full fence between the two steps, so at least one of them sees the other. This file does not
//! sleep itself.

use nkv_store::{Memory, StoreError};

/// Polling, or busy for a short time.
const AWAKE: u64 = 0;
/// Was asleep and has been woken, but has not run since.
const CALLED: u64 = 1;
/// Asleep. Further bits: what it waits for, and how it is woken.
pub(super) const ASLEEP: u64 = 2;

/// What an end waits for, or has provided to the other: a bit of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Wanted {
    /// Bytes to read.
    Bytes = 4,
    /// Room to write.
    Space = 8,
}

/// How a sleeping end is woken: a bit of the word, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum WakeBy {
    /// It is a thread in `futex(FUTEX_WAIT)` on its word.
    Futex = 0,
    /// It is an event loop that waits for a byte on the socket.
    Doorbell = 16,
}

/// The two words, from the point of view of one end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sleep {
    /// Offset of this end's own word, and of the other's.
    pub own: u64,
    pub peers: u64,
}

impl Sleep {
    /// Announces that this end will sleep; it must check once more before it does. Returns the
    /// word's value until it is woken.
    pub(crate) fn announce<M: Memory + ?Sized>(
        &self,
        memory: &M,
        want: Wanted,
        by: WakeBy,
    ) -> Result<u64, StoreError> {
        let word = ASLEEP | want as u64 | by as u64;
        memory.store(self.own, word)?;
        // A fence before the check that follows: either the check sees what the other end
        // published, or the other end sees the word.
        memory.flush();
        Ok(word)
    }

    /// Marks this end as awake.
    pub(crate) fn up<M: Memory + ?Sized>(&self, memory: &M) -> Result<(), StoreError> {
        memory.store(self.own, AWAKE)
    }

    /// After publishing bytes or room: how the other end must be woken, if at all. Of several
    /// callers only one has to wake it; a word with an unknown value wakes nobody.
    pub(crate) fn call<M: Memory + ?Sized>(
        &self,
        memory: &M,
        what: Wanted,
    ) -> Result<Option<WakeBy>, StoreError> {
        // After publishing: see `announce`.
        memory.flush();
        let word = memory.load(self.peers)?;
        if word & ASLEEP == 0 || word & what as u64 == 0 {
            return Ok(None);
        }
        // If the word has changed, that end woke up by itself and checks again before it sleeps.
        let called = memory.compare_swap(self.peers, word, CALLED)? == word;
        let by = if word & WakeBy::Doorbell as u64 == 0 { WakeBy::Futex } else { WakeBy::Doorbell };
        Ok(called.then_some(by))
    }

    /// Whether the other end polls or is busy, so that polling for an answer is useful.
    pub(crate) fn peer_is_awake<M: Memory + ?Sized>(&self, memory: &M) -> Result<bool, StoreError> {
        Ok(memory.load(self.peers)? == AWAKE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::memory::AnonMemory;

    #[test]
    fn an_end_is_woken_once_for_what_it_waits_for_and_by_nothing_else() {
        let m = AnonMemory::new(64).unwrap();
        let (here, there) = (Sleep { own: 0, peers: 8 }, Sleep { own: 8, peers: 0 });
        let all = [Wanted::Bytes, Wanted::Space];
        let both = Wanted::Bytes as u64 | Wanted::Space as u64;
        for unknown in [AWAKE, CALLED, both, ASLEEP, u64::MAX << 5] {
            m.store(8, unknown).unwrap();
            for what in all {
                assert!(here.call(&m, what).unwrap().is_none(), "{unknown:#x}");
            }
            assert_eq!(m.load(8).unwrap(), unknown);
        }
        for (i, by) in [WakeBy::Futex, WakeBy::Doorbell].into_iter().enumerate() {
            let (what, other) = (all[i], all[1 - i]);
            there.announce(&m, what, by).unwrap();
            assert!(m.load(8).unwrap() & ASLEEP != 0 && !here.peer_is_awake(&m).unwrap());
            assert!(here.call(&m, other).unwrap().is_none());
            assert_eq!(here.call(&m, what).unwrap(), Some(by));
            assert!(m.load(8).unwrap() == CALLED && !here.peer_is_awake(&m).unwrap());
            assert!(here.call(&m, what).unwrap().is_none(), "one of many callers wakes it");
            there.up(&m).unwrap();
            assert!(here.peer_is_awake(&m).unwrap());
        }
    }
}
