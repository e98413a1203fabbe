//! Who of a ring's two ends sleeps, and for what: one word each. An end says that it will sleep,
//! then looks once more; the other publishes, then looks whether it must wake anybody. Between the
//! two steps each has a full fence, so that one of them sees the other. It does not sleep itself.

use super::layout::EndAt;
use nkv_store::{Memory, StoreError};

/// Looking, or doing something else that ends soon.
const AWAKE: u64 = 0;
/// Was asleep and has been woken, but has not run since.
const CALLED: u64 = 1;
/// Asleep. Further bits: what it waits for, and how it is woken.
const ASLEEP: u64 = 2;
const WANTS_BYTES: u64 = 4;
const WANTS_SPACE: u64 = 8;
const BY_DOORBELL: u64 = 16;

/// What an end waits for, or did for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Bytes to read.
    Bytes,
    /// Room to write.
    Space,
}

/// How a sleeping end is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeBy {
    /// It is a thread in `futex(FUTEX_WAIT)` on its word.
    Futex,
    /// It is an event loop that waits for a byte on the socket.
    Doorbell,
}

/// What is known of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Looking for bytes, or busy.
    Awake,
    /// On its way.
    Called,
    /// Not before it is woken.
    Asleep,
}

/// The two words as one end uses them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sleep {
    own: u64,
    peers: u64,
}

impl Sleep {
    pub(crate) fn new(at: &EndAt) -> Self {
        Self { own: at.own, peers: at.peers }
    }

    /// Offset of this end's own word, and of the other's.
    pub(crate) fn words(&self) -> (u64, u64) {
        (self.own, self.peers)
    }

    /// Says that this end will sleep; it must look once more before it does. The word's value until
    /// it is woken.
    pub(crate) fn announce<M: Memory + ?Sized>(
        &self,
        memory: &M,
        want: Wanted,
        by: WakeBy,
    ) -> Result<u64, StoreError> {
        let want = match want {
            Wanted::Bytes => WANTS_BYTES,
            Wanted::Space => WANTS_SPACE,
        };
        let word = match by {
            WakeBy::Futex => ASLEEP | want,
            WakeBy::Doorbell => ASLEEP | want | BY_DOORBELL,
        };
        memory.store(self.own, word)?;
        // Before the look that follows: either it sees what the other published, or the other sees
        // the word.
        memory.flush();
        Ok(word)
    }

    /// Says that this end is up.
    pub(crate) fn up<M: Memory + ?Sized>(&self, memory: &M) -> Result<(), StoreError> {
        memory.store(self.own, AWAKE)
    }

    /// After publishing bytes or room: how the other end must be woken, if it must. Only one of
    /// many is told to; a word that this end does not know wakes nobody.
    pub(crate) fn call<M: Memory + ?Sized>(
        &self,
        memory: &M,
        what: Wanted,
    ) -> Result<Option<WakeBy>, StoreError> {
        // After the publishing: see `announce`.
        memory.flush();
        let word = memory.load(self.peers)?;
        let wanted = match what {
            Wanted::Bytes => WANTS_BYTES,
            Wanted::Space => WANTS_SPACE,
        };
        if word & ASLEEP == 0 || word & wanted == 0 {
            return Ok(None);
        }
        // Found changed, it got up by itself, and looks again before it sleeps.
        let called = memory.compare_swap(self.peers, word, CALLED)? == word;
        let by = if word & BY_DOORBELL == 0 { WakeBy::Futex } else { WakeBy::Doorbell };
        Ok(called.then_some(by))
    }

    /// Whether looking for an answer has any sense.
    pub(crate) fn peer<M: Memory + ?Sized>(&self, memory: &M) -> Result<Peer, StoreError> {
        Ok(match memory.load(self.peers)? {
            AWAKE => Peer::Awake,
            CALLED => Peer::Called,
            _ => Peer::Asleep,
        })
    }
}
