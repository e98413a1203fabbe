//! A doubly linked list threaded through an array indexed by slot, so that every operation is O(1)
//! and nothing is allocated per object. It keeps an order and implements no policy.

/// No slot: the ends of the list.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
    epoch: u32,
    held: bool,
    bytes: u64,
}

const EMPTY: Node = Node { older: NONE, newer: NONE, epoch: 0, held: false, bytes: 0 };

/// Objects from oldest to newest. The array grows up to the highest slot ever held, below `slots`.
#[derive(Debug)]
pub(super) struct SlotList {
    nodes: Vec<Node>,
    slots: u32,
    oldest: u32,
    newest: u32,
    len: usize,
    bytes: u64,
}

impl SlotList {
    pub(super) fn new(slots: u32) -> Self {
        Self { nodes: Vec::new(), slots, oldest: NONE, newest: NONE, len: 0, bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows the array to include the slot; false if there is no such slot.
    fn has_node(&mut self, slot: u32) -> bool {
        let at = slot as usize;
        if slot < self.slots && at >= self.nodes.len() {
            self.nodes.resize(at + 1, EMPTY);
        }
        slot < self.slots
    }

    /// Adds as the oldest, unless the slot is already held at any epoch.
    pub(super) fn push_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if !self.has_node(slot) || self.nodes[slot as usize].held {
            return;
        }
        let newer = self.oldest;
        self.nodes[slot as usize] = Node { older: NONE, newer, epoch, held: true, bytes };
        self.bytes += bytes;
        self.len += 1;
        self.oldest = slot;
        match self.nodes.get_mut(newer as usize) {
            Some(next) => next.older = slot,
            None => self.newest = slot,
        }
    }

    /// Adds as the newest; replaces an older epoch of the slot, ignores a late admission of one.
    pub(super) fn push(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if !self.has_node(slot) {
            return;
        }
        let at = slot as usize;
        if self.nodes[at].held {
            if self.nodes[at].epoch >= epoch {
                return;
            }
            self.unlink(slot);
        }
        self.nodes[at] = Node { epoch, bytes, ..EMPTY };
        self.link_newest(slot);
    }

    /// Moves an object to the newest end; false if it is not held.
    pub(super) fn renew(&mut self, slot: u32, epoch: u32) -> bool {
        let held = self.holds(slot, epoch);
        if held {
            self.unlink(slot);
            self.link_newest(slot);
        }
        held
    }

    /// Removes an object and returns its bytes; None if it is not held.
    pub(super) fn remove(&mut self, slot: u32, epoch: u32) -> Option<u64> {
        self.holds(slot, epoch).then(|| {
            self.unlink(slot);
            self.nodes[slot as usize].bytes
        })
    }

    /// Removes and returns the oldest: slot, epoch, bytes.
    pub(super) fn pop(&mut self) -> Option<(u32, u32, u64)> {
        let slot = self.oldest;
        let node = *self.nodes.get(slot as usize)?;
        self.unlink(slot);
        Some((slot, node.epoch, node.bytes))
    }

    /// The epoch held of a slot.
    pub(super) fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.nodes.get(slot as usize).filter(|n| n.held).map(|n| n.epoch)
    }

    fn holds(&self, slot: u32, epoch: u32) -> bool {
        self.epoch_of(slot) == Some(epoch)
    }

    fn link_newest(&mut self, slot: u32) {
        let before = self.newest;
        let node = &mut self.nodes[slot as usize];
        node.older = before;
        node.newer = NONE;
        node.held = true;
        self.bytes += node.bytes;
        self.len += 1;
        self.newest = slot;
        match self.nodes.get_mut(before as usize) {
            Some(previous) => previous.newer = slot,
            None => self.oldest = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Node { older, newer, bytes, .. } = self.nodes[slot as usize];
        match self.nodes.get_mut(older as usize) {
            Some(n) => n.newer = newer,
            None => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(n) => n.older = older,
            None => self.newest = older,
        }
        self.nodes[slot as usize].held = false;
        self.bytes -= bytes;
        self.len -= 1;
    }
}
