//! Messages about objects on the disks of nodes: from the master to the owner of a node's first
//! segment, which answers for the node's disk, and back.

use super::{KeyBytes, KeyId, ObjMeta};
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Which kind of memory holds an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// A segment: DRAM, or VRAM if its payloads lie there.
    Memory,
    /// The SSD of a node. A read brings it back into memory first.
    Disk,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        })
    }
}

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// In a segment, to be read there.
    Memory(ObjMeta),
    /// On the disk of a node alone.
    Disk(DiskMeta),
}

/// An object on the disk of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskMeta {
    /// Identity of the key.
    pub key: KeyId,
    /// Rank of the node.
    pub rank: u32,
    /// Logical bytes.
    pub bytes_total: u64,
}

impl From<ObjMeta> for Location {
    fn from(meta: ObjMeta) -> Self {
        Self::Memory(meta)
    }
}

impl Location {
    /// The tier that holds it.
    pub fn tier(&self) -> Tier {
        match self {
            Self::Memory(_) => Tier::Memory,
            Self::Disk(_) => Tier::Disk,
        }
    }

    /// The rank that holds it.
    pub fn rank(&self) -> u32 {
        match self {
            Self::Memory(meta) => meta.rank,
            Self::Disk(disk) => disk.rank,
        }
    }

    /// Logical bytes.
    pub fn bytes_total(&self) -> u64 {
        match self {
            Self::Memory(meta) => meta.object.bytes_total,
            Self::Disk(disk) => disk.bytes_total,
        }
    }

    /// Where it lies in memory; None if it does not.
    pub fn in_memory(&self) -> Option<&ObjMeta> {
        match self {
            Self::Memory(meta) => Some(meta),
            Self::Disk(_) => None,
        }
    }

    /// As [`Self::in_memory`].
    pub fn into_memory(self) -> Option<ObjMeta> {
        match self {
            Self::Memory(meta) => Some(meta),
            Self::Disk(_) => None,
        }
    }
}

/// Whether a lookup brings objects that only a disk has back into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promote {
    /// It does not.
    #[default]
    No,
    /// It begins that, and is answered before it is done.
    Begin {
        /// Rank whose memory is preferred; that of the disk if absent.
        rank: Option<u32>,
    },
    /// It is answered once that is done.
    Wait {
        /// Rank whose memory is preferred; that of the disk if absent.
        rank: Option<u32>,
    },
}

/// What the master asks the nodes that have a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskQuestion {
    /// Which of these keys the disk has.
    Find(Vec<KeyBytes>),
    /// Bring these into memory; answered once that is done for each, or has failed.
    Promote {
        /// The keys.
        keys: Vec<KeyBytes>,
        /// Rank whose memory is preferred; the node's own if absent.
        rank: Option<u32>,
        /// Say as well what the disk has of them: it was not asked before.
        find: bool,
    },
    /// Save these, wherever they are in memory; answered once that is done for each, or has failed.
    Save(Vec<KeyBytes>),
    /// Remove from disk, and save and promote nothing of it until `RemovalOver`.
    Remove {
        /// Random number of the removal.
        removal: u64,
        /// What to remove.
        which: DiskSelection,
    },
}

/// On which disks an object is to be saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveAt {
    /// The rank of each disk; any if absent. 1 to [`super::MAX_REPLICAS`] of them.
    pub disks: Vec<Option<u32>>,
    /// Ranks whose disks are not meant by any: they have it, or could not save it.
    pub but: Vec<u32>,
}

/// What became of an object at a disk that was to save it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskSave {
    /// It is there.
    Done {
        /// Logical bytes of what is stored under its key.
        bytes: u64,
    },
    /// The disk is not done with it.
    AtWork,
    /// It is not there.
    Failed(Error),
}

/// What a removal covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskSelection {
    /// These keys.
    Keys(Vec<KeyBytes>),
    /// Keys in which this regular expression matches somewhere.
    Matching(String),
    /// Every key.
    All,
}

/// The answer to a [`DiskQuestion`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAnswer {
    /// To `Find`, `Save`, and to a `Promote` that asks for it: what is there, by the number of its
    /// key in the question, with its bytes.
    pub found: Vec<(u32, u64)>,
    /// To `Promote` and `Save`: what is not in memory now, or not on disk, by the number of its
    /// key, and why.
    pub not_done: Vec<(u32, Error)>,
    /// To `Remove` of keys: those that were there.
    pub removed: Vec<KeyId>,
    /// To `Remove` of a pattern or of all: how many objects were there. The same again until the
    /// removal is over, for one that is asked for in several rounds or once more.
    pub count: u64,
    /// To `Remove`: why it is not done.
    pub failed: Option<Error>,
}
