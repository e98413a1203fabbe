//! The attachments of a handle to owners. Those whose memory this process maps are also in a
//! separate list that readers load without a lock.

use super::peer::{AttachmentUse, Peer};
use arc_swap::ArcSwap;
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

type ByIncarnation = BTreeMap<(u64, AttachmentUse), Arc<Peer>>;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: RwLock<ByIncarnation>,
    // Ordered by rank.
    mapped: ArcSwap<Vec<Arc<Peer>>>,
    // Attachments whose link has ended, kept while a put or a plan still uses them.
    former: Mutex<Vec<Weak<Peer>>>,
}

impl Peers {
    fn read(&self) -> RwLockReadGuard<'_, ByIncarnation> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ByIncarnation> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attachment to the owner of an incarnation, if there is one and it is alive.
    pub(crate) fn get(&self, incarnation: u64) -> Option<Arc<Peer>> {
        self.used_for(incarnation, AttachmentUse::Everything)
    }

    /// The attachment that claims in the log of this one's owner, if there is one.
    pub(crate) fn claiming(&self, peer: Arc<Peer>) -> Option<Arc<Peer>> {
        if !peer.claims_elsewhere {
            return Some(peer);
        }
        self.used_for(peer.incarnation, AttachmentUse::Claims)
    }

    /// The attachment to an owner for a use, if there is one and it is alive.
    pub(crate) fn used_for(&self, incarnation: u64, used_for: AttachmentUse) -> Option<Arc<Peer>> {
        self.read().get(&(incarnation, used_for)).filter(|p| p.is_alive()).cloned()
    }

    /// Sets whether an owner takes new objects, as the membership view says.
    pub(crate) fn take_puts(&self, incarnation: u64, takes: bool) {
        for used_for in [AttachmentUse::Everything, AttachmentUse::Claims] {
            if let Some(peer) = self.used_for(incarnation, used_for) {
                peer.take_puts(takes);
            }
        }
    }

    /// Owners at which this handle could claim if it had a second attachment, which it lacks.
    pub(crate) fn lacking(&self) -> Vec<u64> {
        let all = self.read();
        let there =
            |owner: u64| all.get(&(owner, AttachmentUse::Claims)).is_some_and(|p| p.is_alive());
        let lacks = |p: &&Arc<Peer>| p.claims_elsewhere && p.is_alive() && !there(p.incarnation);
        all.values().filter(lacks).map(|p| p.incarnation).collect()
    }

    /// Whether this handle was attached to an owner and the link has ended.
    pub(crate) fn is_dead(&self, incarnation: u64) -> bool {
        self.read().get(&(incarnation, AttachmentUse::Everything)).is_some_and(|p| !p.is_alive())
    }

    /// Adds an attachment. False if the handle is `closed`. The flag is read under the lock, and
    /// closing takes the lock after it sets the flag, so every attachment added here gets a Detach.
    pub(crate) fn insert(&self, peer: Arc<Peer>, closed: &AtomicBool) -> bool {
        let mut all = self.write();
        if closed.load(Ordering::Relaxed) {
            return false;
        }
        // Dropped after the lock is released: the drop of a peer's last reference takes the owner's
        // lock.
        let before = all.insert((peer.incarnation, peer.used_for), peer.clone());
        let logs = before.as_ref().and_then(|before| before.log.as_ref()).zip(peer.log.as_ref());
        if let Some((before, log)) = logs {
            log.inherit(before);
        }
        self.publish(&all);
        drop(all);
        self.keep_former(before);
        true
    }

    /// Removes dead attachments, so that their segments do not stay mapped. One that only claimed
    /// is kept until another takes over its unreported keys, as long as this handle is attached to
    /// its owner.
    pub(crate) fn remove_dead(&self) {
        if self.read().values().all(|p| p.is_alive()) {
            return;
        }
        let mut all = self.write();
        let attached: HashSet<u64> = all
            .values()
            .filter(|p| p.used_for == AttachmentUse::Everything && p.is_alive())
            .map(|p| p.incarnation)
            .collect();
        let over = |p: &Peer| {
            p.used_for == AttachmentUse::Everything || !attached.contains(&p.incarnation)
        };
        let dead: Vec<_> = all.extract_if(.., |_, p| !p.is_alive() && over(p)).collect();
        self.publish(&all);
        drop(all);
        self.keep_former(dead.into_iter().map(|(_, peer)| peer));
    }

    fn keep_former(&self, peers: impl IntoIterator<Item = Arc<Peer>>) {
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.retain(|peer| peer.strong_count() > 0);
        former.extend(
            peers.into_iter().filter(|p| Arc::strong_count(p) > 1).map(|p| Arc::downgrade(&p)),
        );
    }

    /// Whether a write is in flight through an earlier attachment to an owner, other than `but`.
    /// Then no later attachment may send a Detach.
    pub(crate) fn writes_on(&self, incarnation: u64, but: Option<&Peer>) -> bool {
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.retain(|peer| peer.strong_count() > 0);
        let other = |p: &Peer| !but.is_some_and(|but| std::ptr::eq(but, p));
        former.iter().filter_map(Weak::upgrade).any(|p| p.incarnation == incarnation && other(&p))
    }

    /// Disconnects every owner that is not among these members. An owner with an attachment is a
    /// member of the latest view or of one still to come: the caller gets views in order.
    pub(crate) fn disconnect_others(&self, members: &HashSet<u64>) {
        let disconnected = |p: &Peer| !members.contains(&p.incarnation);
        let gone: Vec<_> = self.read().values().filter(|p| disconnected(p)).cloned().collect();
        gone.iter().for_each(|p| p.disconnect());
        self.remove_dead();
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.write());
        self.mapped.store(Arc::default());
        drop(all);
    }

    /// Every attachment, in the order of incarnations.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.read().values().cloned().collect()
    }

    /// Attachments that this process can read with plain loads.
    pub(crate) fn mapped(&self) -> arc_swap::Guard<Arc<Vec<Arc<Peer>>>> {
        self.mapped.load()
    }

    /// The attachment to the first segment of a rank, if there is a live one.
    pub(crate) fn first_of(&self, rank: u32) -> Option<Arc<Peer>> {
        let first = |p: &&Arc<Peer>| p.rank == rank && p.first && p.is_alive();
        self.mapped.load().iter().find(first).cloned().or_else(|| self.remote(rank))
    }

    /// The attachments to first segments that are alive, by rank.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (u32, Arc<Peer>)> {
        let first =
            |p: &&Arc<Peer>| p.first && p.used_for == AttachmentUse::Everything && p.is_alive();
        let all: Vec<_> = self.read().values().filter(first).cloned().collect();
        all.into_iter().map(|peer| (peer.rank, peer))
    }

    /// The attachment to the first segment of a rank, if there is a live one and the segment is not
    /// mapped.
    pub(crate) fn remote(&self, rank: u32) -> Option<Arc<Peer>> {
        let remote = |p: &&Arc<Peer>| p.rank == rank && p.reader.is_none() && p.first;
        let read_by = |p: &&Arc<Peer>| remote(p) && p.used_for == AttachmentUse::Everything;
        self.read().values().find(read_by).filter(|p| p.is_alive()).cloned()
    }

    // Called under the lock, so that two changes are published in their order.
    fn publish(&self, all: &ByIncarnation) {
        let mut mapped: Vec<_> = all.values().filter(|p| p.reader.is_some()).cloned().collect();
        mapped.sort_by_key(|p| p.rank);
        self.mapped.store(Arc::new(mapped));
    }
}
