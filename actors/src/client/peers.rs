//! The owners a handle is attached to. Those whose memory this process maps are kept in a list of
//! their own that readers take without a lock.

use super::peer::{Peer, Use};
use arc_swap::ArcSwap;
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

type ByIncarnation = BTreeMap<(u64, Use), Arc<Peer>>;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: RwLock<ByIncarnation>,
    // In the order of ranks.
    near: ArcSwap<Vec<Arc<Peer>>>,
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
        self.used_for(incarnation, Use::Everything)
    }

    /// The attachment that claims in the log of this one's owner, if there is one.
    pub(crate) fn claiming(&self, peer: Arc<Peer>) -> Option<Arc<Peer>> {
        if !peer.claims_elsewhere {
            return Some(peer);
        }
        self.used_for(peer.incarnation, Use::Claims)
    }

    fn used_for(&self, incarnation: u64, used_for: Use) -> Option<Arc<Peer>> {
        self.read().get(&(incarnation, used_for)).filter(|p| p.is_alive()).cloned()
    }

    /// Whether an owner takes new objects, as the membership says.
    pub(crate) fn take_puts(&self, incarnation: u64, takes: bool) {
        for used_for in [Use::Everything, Use::Claims] {
            if let Some(peer) = self.used_for(incarnation, used_for) {
                peer.take_puts(takes);
            }
        }
    }

    /// Whether there is an attachment that only claims.
    pub(crate) fn claims(&self, incarnation: u64) -> bool {
        self.used_for(incarnation, Use::Claims).is_some()
    }

    /// Owners that this handle could claim at by an attachment that it does not have.
    pub(crate) fn lacking(&self) -> Vec<u64> {
        let all = self.read();
        let there = |owner: u64| all.get(&(owner, Use::Claims)).is_some_and(|p| p.is_alive());
        let lacks = |p: &&Arc<Peer>| p.claims_elsewhere && p.is_alive() && !there(p.incarnation);
        all.values().filter(lacks).map(|p| p.incarnation).collect()
    }

    /// Whether an owner was attached to, and the link is no more.
    pub(crate) fn is_dead(&self, incarnation: u64) -> bool {
        self.read().get(&(incarnation, Use::Everything)).is_some_and(|p| !p.is_alive())
    }

    /// False if the handle is `closed`: it attaches to nobody any more. Asked under the lock, which who
    /// closes it takes afterwards: whoever is let in is told goodbye.
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

    /// Forgets the dead: their segments must not stay mapped here. One that only claimed is kept until another
    /// takes over what it had not told, as long as its owner is attached to.
    pub(crate) fn bury(&self) {
        if self.read().values().all(|p| p.is_alive()) {
            return;
        }
        let mut all = self.write();
        let main =
            |p: &Peer| all.get(&(p.incarnation, Use::Everything)).is_some_and(|m| m.is_alive());
        let kept: HashSet<u64> = all
            .values()
            .filter(|p| p.used_for == Use::Claims && main(p))
            .map(|p| p.incarnation)
            .collect();
        let over = |p: &Peer| !(p.used_for == Use::Claims && kept.contains(&p.incarnation));
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

    /// Whether something goes on through an earlier attachment to an owner: then no later one may say
    /// that nothing is, or will be, written there.
    pub(crate) fn writes_on(&self, incarnation: u64, but: Option<&Peer>) -> bool {
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.retain(|peer| peer.strong_count() > 0);
        let other = |p: &Peer| !but.is_some_and(|but| std::ptr::eq(but, p));
        former.iter().filter_map(Weak::upgrade).any(|p| p.incarnation == incarnation && other(&p))
    }

    /// Parts from every owner that is not among these members. Who is attached to was a member of the
    /// latest view, or of one that is still to come: the caller sees views in their order.
    pub(crate) fn part_from_others(&self, members: &HashSet<u64>) {
        let parted = |p: &Peer| !members.contains(&p.incarnation);
        let gone: Vec<_> = self.read().values().filter(|p| parted(p)).cloned().collect();
        gone.iter().for_each(|p| p.part());
        self.bury();
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.write());
        self.near.store(Arc::default());
        drop(all);
    }

    /// Every attachment, in the order of incarnations.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.read().values().cloned().collect()
    }

    /// Those that this process can read with loads alone.
    pub(crate) fn near(&self) -> arc_swap::Guard<Arc<Vec<Arc<Peer>>>> {
        self.near.load()
    }

    /// The first segment of a rank, if it is attached to.
    pub(crate) fn first_of(&self, rank: u32) -> Option<Arc<Peer>> {
        let first = |p: &&Arc<Peer>| p.rank == rank && p.first && p.is_alive();
        if let Some(near) = self.near.load().iter().find(first) {
            return Some(near.clone());
        }
        self.far(rank)
    }

    /// The first segment of a rank, if it is attached to by a transport and not mapped.
    pub(crate) fn far(&self, rank: u32) -> Option<Arc<Peer>> {
        let far = |p: &&Arc<Peer>| p.rank == rank && p.reader.is_none() && p.first;
        let read_by = |p: &&Arc<Peer>| far(p) && p.used_for == Use::Everything;
        self.read().values().find(read_by).filter(|p| p.is_alive()).cloned()
    }

    // Called under the lock, so that two changes are published in their order.
    fn publish(&self, all: &ByIncarnation) {
        let mut near: Vec<_> = all.values().filter(|p| p.reader.is_some()).cloned().collect();
        near.sort_by_key(|p| p.rank);
        self.near.store(Arc::new(near));
    }
}
