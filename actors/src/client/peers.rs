//! The owners a handle is attached to. Those whose memory this process maps are kept in a list of
//! their own that readers take without a lock.

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
    // In the order of ranks.
    mapped: ArcSwap<Vec<Arc<Peer>>>,
    // Those whose link is no more, as long as a put or a plan goes on through them.
    former: Mutex<Vec<Weak<Peer>>>,
}

impl Peers {
    fn read(&self) -> RwLockReadGuard<'_, ByIncarnation> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ByIncarnation> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of an incarnation, if it is attached to and alive.
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

    fn used_for(&self, incarnation: u64, used_for: AttachmentUse) -> Option<Arc<Peer>> {
        self.read().get(&(incarnation, used_for)).filter(|p| p.is_alive()).cloned()
    }

    /// Whether an owner takes new objects, as the membership says.
    pub(crate) fn take_puts(&self, incarnation: u64, takes: bool) {
        for used_for in [AttachmentUse::Everything, AttachmentUse::Claims] {
            if let Some(peer) = self.used_for(incarnation, used_for) {
                peer.take_puts(takes);
            }
        }
    }

    /// Whether there is an attachment that only claims.
    pub(crate) fn claims(&self, incarnation: u64) -> bool {
        self.used_for(incarnation, AttachmentUse::Claims).is_some()
    }

    /// Owners that this handle could claim at by an attachment that it does not have.
    pub(crate) fn lacking(&self) -> Vec<u64> {
        let all = self.read();
        let there =
            |owner: u64| all.get(&(owner, AttachmentUse::Claims)).is_some_and(|p| p.is_alive());
        let lacks = |p: &&Arc<Peer>| p.claims_elsewhere && p.is_alive() && !there(p.incarnation);
        all.values().filter(lacks).map(|p| p.incarnation).collect()
    }

    /// Whether an owner was attached to, and the link is no more.
    pub(crate) fn is_dead(&self, incarnation: u64) -> bool {
        self.read().get(&(incarnation, AttachmentUse::Everything)).is_some_and(|p| !p.is_alive())
    }

    /// False if the handle is `closed`: it attaches to nobody any more. Asked under the lock, which
    /// who closes it takes afterwards: whoever is let in is sent goodbye.
    pub(crate) fn insert(&self, peer: Arc<Peer>, closed: &AtomicBool) -> bool {
        let mut all = self.write();
        if closed.load(Ordering::Relaxed) {
            return false;
        }
        // Dropped once the lock is free: the last of a peer takes the owner's lock.
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

    /// Forgets the dead: their segments must not stay mapped here. One that only claimed is kept
    /// until another takes over what it had not told, as long as its owner is attached to.
    pub(crate) fn remove_dead(&self) {
        if self.read().values().all(|p| p.is_alive()) {
            return;
        }
        let mut all = self.write();
        let main = |p: &Peer| {
            all.get(&(p.incarnation, AttachmentUse::Everything)).is_some_and(|m| m.is_alive())
        };
        let kept: HashSet<u64> = all
            .values()
            .filter(|p| p.used_for == AttachmentUse::Claims && main(p))
            .map(|p| p.incarnation)
            .collect();
        let over =
            |p: &Peer| !(p.used_for == AttachmentUse::Claims && kept.contains(&p.incarnation));
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

    /// Whether something goes on through an earlier attachment to an owner: then no later one may
    /// say that nothing is, or will be, written there.
    pub(crate) fn writes_on(&self, incarnation: u64, but: Option<&Peer>) -> bool {
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.retain(|peer| peer.strong_count() > 0);
        let other = |p: &Peer| !but.is_some_and(|but| std::ptr::eq(but, p));
        former.iter().filter_map(Weak::upgrade).any(|p| p.incarnation == incarnation && other(&p))
    }

    /// Parts from every owner that is not among these members. Who is attached to was a member of
    /// the latest view, or of one that is still to come: the caller sees views in their order.
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

    /// Those that this process can read with loads alone.
    pub(crate) fn mapped(&self) -> arc_swap::Guard<Arc<Vec<Arc<Peer>>>> {
        self.mapped.load()
    }

    /// The first segment of a rank, if it is attached to.
    pub(crate) fn first_of(&self, rank: u32) -> Option<Arc<Peer>> {
        let first = |p: &&Arc<Peer>| p.rank == rank && p.first && p.is_alive();
        if let Some(mapped) = self.mapped.load().iter().find(first) {
            return Some(mapped.clone());
        }
        self.remote(rank)
    }

    /// The first segment of a rank, if it is attached to by a transport and not mapped.
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
