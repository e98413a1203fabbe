//! A doubly linked list threaded through an array indexed by slot, so that every operation is O(1)
//! and nothing is allocated per object. It keeps an order and implements no policy.

/// No slot: the ends of the list.
const NONE: u32 = u32::MAX;
/// As the older neighbour: the node is not in the list. Not a slot either: those are below 2^31.
const UNHELD: u32 = u32::MAX - 1;

/// The two ends of the list, and the two neighbours of a node: index of an array of two.
const OLDEST: usize = 0;
const NEWEST: usize = 1;

/// Packed: there is one for each slot, and 4 of 24 bytes would be padding.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed(4))]
struct Node {
    beside: [u32; 2],
    epoch: u32,
    bytes: u64,
}

const EMPTY: Node = Node { beside: [UNHELD; 2], epoch: 0, bytes: 0 };

impl Node {
    fn is_held(&self) -> bool {
        self.beside[OLDEST] != UNHELD
    }
}

/// Objects from oldest to newest. The array grows up to the highest slot ever held, below `slots`.
#[derive(Debug)]
pub(super) struct SlotList {
    nodes: Vec<Node>,
    slots: u32,
    ends: [u32; 2],
    len: usize,
    bytes: u64,
}

impl SlotList {
    pub(super) fn new(slots: u32) -> Self {
        Self { nodes: Vec::new(), slots, ends: [NONE; 2], len: 0, bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds as the oldest, unless the slot is already held at any epoch.
    pub(super) fn push_oldest(&mut self, slot: u32, epoch: u32, bytes: u64) {
        if self.epoch_of(slot).is_none() {
            self.add(OLDEST, slot, epoch, bytes);
        }
    }

    /// Adds as the newest; replaces an older epoch of the slot, ignores a late admission of one.
    pub(super) fn push(&mut self, slot: u32, epoch: u32, bytes: u64) {
        match self.epoch_of(slot) {
            Some(held) if held >= epoch => return,
            Some(_) => self.unlink(slot),
            None => {}
        }
        self.add(NEWEST, slot, epoch, bytes);
    }

    /// Moves an object to the newest end; false if it is not held.
    pub(super) fn renew(&mut self, slot: u32, epoch: u32) -> bool {
        let held = self.holds(slot, epoch);
        if held {
            self.unlink(slot);
            self.link(NEWEST, slot);
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
        let slot = self.ends[OLDEST];
        let node = *self.nodes.get(slot as usize)?;
        self.unlink(slot);
        Some((slot, node.epoch, node.bytes))
    }

    /// The epoch held of a slot.
    pub(super) fn epoch_of(&self, slot: u32) -> Option<u32> {
        self.nodes.get(slot as usize).filter(|n| n.is_held()).map(|n| n.epoch)
    }

    fn holds(&self, slot: u32, epoch: u32) -> bool {
        self.epoch_of(slot) == Some(epoch)
    }

    /// Adds an object that is not held; none if there is no such slot.
    fn add(&mut self, end: usize, slot: u32, epoch: u32, bytes: u64) {
        if slot >= self.slots {
            return;
        }
        let at = slot as usize;
        if at >= self.nodes.len() {
            self.nodes.resize(at + 1, EMPTY);
        }
        self.nodes[at] = Node { epoch, bytes, ..EMPTY };
        self.link(end, slot);
    }

    fn link(&mut self, end: usize, slot: u32) {
        let last = std::mem::replace(&mut self.ends[end], slot);
        let node = &mut self.nodes[slot as usize];
        node.beside[end] = NONE;
        node.beside[1 - end] = last;
        self.bytes += node.bytes;
        self.len += 1;
        match self.nodes.get_mut(last as usize) {
            Some(last) => last.beside[end] = slot,
            None => self.ends[1 - end] = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Node { beside, bytes, .. } = self.nodes[slot as usize];
        for end in [OLDEST, NEWEST] {
            match self.nodes.get_mut(beside[end] as usize) {
                Some(n) => n.beside[1 - end] = beside[1 - end],
                None => self.ends[end] = beside[1 - end],
            }
        }
        self.nodes[slot as usize].beside[OLDEST] = UNHELD;
        self.bytes -= bytes;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::Node;

    #[test]
    fn a_node_takes_20_bytes() {
        assert_eq!(size_of::<Node>(), 20);
    }
}
