//! What a put may ask for. Not a message: the master gets only what concerns it.

use super::peer::Peer;
use crate::error::{Error, Result};
use crate::message::{MAX_REPLICAS, Medium, Preferred};
use nkv_store::key::MAX_KEY_BYTES;
use nkv_store::{Key, KeyId, Retention};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a put over a key that has an object means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfExists {
    /// The object that is there stays, and the put is Ok: values are immutable, and a key names one
    /// content.
    #[default]
    Keep,
    /// The put is `AlreadyExists`. It asks the master. Beside a put by a log that begins at the
    /// same time, both may be Ok, and the log's object is the one that is served.
    Fail,
}

fn group_name(name: &[u8]) -> Result<Key> {
    Key::new(name).map_err(|_| {
        let text =
            format!("the name of a group has 1 to {MAX_KEY_BYTES} bytes, not {}", name.len());
        Error::invalid(text)
    })
}

/// Options of a put. The default asks for nothing.
///
/// ```
/// use nkv_actors::PutOptions;
///
/// let opts = PutOptions::default().preferred_rank(3).page_bytes(64 << 10);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Rank that should own the object, in any of its segments; by the job's placement if absent.
    pub(crate) preferred_rank: Option<u32>,
    /// In which memory its first replica should be.
    pub(crate) medium: Medium,
    /// Where further replicas should go.
    pub(crate) further: Vec<Preferred>,
    /// Bytes per page; if 0, those that rank 0 was started with (256 KiB by default).
    pub(crate) page_bytes: u32,
    /// Whether the object may go into the owner's device log, without asking the master: true,
    /// false, or as the handle is configured if absent. Objects larger than a quarter of the log
    /// take a plan, and so do all objects while the log is full.
    pub(crate) device_alloc: Option<bool>,
    /// What to do if the key has an object.
    pub(crate) if_exists: IfExists,
    /// Replicas of the object, each at another rank; 0 and 1 mean one.
    pub(crate) replicas: u8,
    /// The rank of each disk that is to have it as well; any if absent.
    pub(crate) disks: Vec<Option<u32>>,
    /// Stripes of the object; as the handle is configured if absent.
    pub(crate) stripes: Option<u8>,
    /// What is put was stored before and is brought back as it was: it may be nkv's own.
    pub(crate) restores: bool,
    /// What the evictor is to do with the object.
    pub(crate) retention: Retention,
    /// The groups of what is put.
    pub(crate) groups: Groups,
}

/// Which groups objects belong to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Groups {
    #[default]
    None,
    /// All to one.
    Same(Key),
    /// Those of these keys.
    ByKey(Arc<BTreeMap<Vec<u8>, Key>>),
}

impl PutOptions {
    /// The rank that should own the object, in any of its segments; None: by the job's
    /// placement, which is by hash of the key if nothing else was set.
    #[must_use]
    pub fn preferred_rank(mut self, rank: impl Into<Option<u32>>) -> Self {
        self.preferred_rank = rank.into();
        self
    }

    /// Where each replica should go, the first one first: as many are asked for at least, and those
    /// beyond go by the job's placement. The first one waits for room at its rank, a further one
    /// goes elsewhere; either does if its rank is gone. Memory of another kind does not do: the
    /// replica is not made then, or the put fails if it is the first. A rank named twice is an
    /// error. A put that names a kind of memory takes a plan.
    ///
    /// [`Medium::Disk`] is a copy on the SSD of a rank, besides those in memory, of which there is
    /// one at least: the put waits for it, and fails if it is not made, though the object is stored
    /// in memory then. See [`Client::save_to_disk`].
    ///
    /// [`Client::save_to_disk`]: crate::Client::save_to_disk
    ///
    /// ```
    /// use nkv_actors::PutOptions;
    /// use nkv_actors::message::{Medium, Preferred};
    ///
    /// let gpu = Preferred { rank: Some(3), medium: Medium::Device };
    /// let opts = PutOptions::default().at([gpu, "1:host".parse().unwrap()]);
    /// ```
    #[must_use]
    pub fn at(mut self, replicas: impl IntoIterator<Item = Preferred>) -> Self {
        let (disks, memory): (Vec<_>, Vec<_>) =
            replicas.into_iter().partition(|wish| wish.medium == Medium::Disk);
        self.disks = disks.into_iter().map(|wish| wish.rank).collect();
        let mut memory = memory.into_iter();
        let first = memory.next().unwrap_or_default();
        (self.preferred_rank, self.medium) = (first.rank, first.medium);
        self.further = memory.take(usize::from(MAX_REPLICAS)).collect();
        self
    }

    /// The same without disks.
    pub(crate) fn in_memory(&self) -> Self {
        Self { disks: Vec::new(), ..self.clone() }
    }

    /// Replicas that are asked for.
    pub(crate) fn wanted_replicas(&self) -> u8 {
        self.replicas.max(self.further.len() as u8 + 1)
    }

    /// Bytes per page; 0: those that rank 0 was started with (256 KiB by default).
    #[must_use]
    pub fn page_bytes(mut self, bytes: u32) -> Self {
        self.page_bytes = bytes;
        self
    }

    /// What to do if the key has an object: keep it and return Ok (the default), or fail.
    #[must_use]
    pub fn if_exists(mut self, what: IfExists) -> Self {
        self.if_exists = what;
        self
    }

    /// Replicas of the object, each at another rank, on other hosts as far as there are any: 8 at
    /// most. They go into logs, as a single object does. A put that makes fewer is `Ok`, and the
    /// others are made later; [`Client::put_replicas`], which takes plans, says how many it made.
    /// What is read from a device by a plan gets one.
    ///
    /// [`Client::put_replicas`]: crate::Client::put_replicas
    #[must_use]
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replicas = replicas;
        self
    }

    /// Stripes into which the value is cut, each for another rank, so that several hosts and links
    /// share a large object: 64 at most, and no more than there are ranks; 1: none; None: as the
    /// handle is configured, by `ClientConfig::stripe_above`. Such a put takes plans. If one stripe
    /// is lost, the object is. What is put from a device by a plan, or page by page, has none.
    #[must_use]
    pub fn stripes(mut self, stripes: impl Into<Option<u8>>) -> Self {
        self.stripes = stripes.into();
        self
    }

    /// What the evictors of the ranks that have the object do with it when they need room. Anything
    /// but [`Retention::Usual`] takes a plan: a log keeps nothing by itself. A put of a key that is
    /// stored changes nothing. Hard pins have half of a heap at most: beyond that a put fails
    /// (`OutOfMemory`). What is put from a device by a plan has it, too.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// The group that the object belongs to: a read of one of its objects counts as a read of all,
    /// and when one is evicted, the others are among the first to follow. Ranks learn of groups
    /// some 0.2 s after a put, and of what happens at other ranks some 0.2 s later. A hint: nothing
    /// depends on it, and a put of a key that is stored adds nothing.
    ///
    /// # Errors
    /// `InvalidArgument`: a name has 1 to 1,024 bytes, as keys have.
    pub fn group(mut self, name: &[u8]) -> Result<Self> {
        self.groups = Groups::Same(group_name(name)?);
        Ok(self)
    }

    /// Of the objects of a batch, each a group of its own: keys, and the names of their groups.
    /// Other keys have none.
    ///
    /// # Errors
    /// As [`PutOptions::group`].
    pub fn groups<'a>(
        mut self,
        names: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self> {
        let of_key = |(key, name): (&[u8], &[u8])| Ok((key.to_vec(), group_name(name)?));
        let of_keys = names.into_iter().map(of_key).collect::<Result<BTreeMap<_, _>>>()?;
        self.groups = Groups::ByKey(Arc::new(of_keys));
        Ok(self)
    }

    /// Whether this key is in a group.
    pub(crate) fn has_group(&self, key: &[u8]) -> bool {
        self.group_of(key).is_some()
    }

    fn group_of(&self, key: &[u8]) -> Option<&Key> {
        match &self.groups {
            Groups::None => None,
            Groups::Same(name) => Some(name),
            Groups::ByKey(names) => names.get(key),
        }
    }

    /// The number, in the job of this owner, of the group of a key.
    pub(crate) fn group_at(&self, peer: &Peer, key: &[u8]) -> Option<KeyId> {
        self.group_of(key).map(|name| peer.hasher.id(name.as_bytes()))
    }

    /// For the stripes of this key.
    pub(crate) fn for_stripes_of(&self, key: &[u8]) -> Self {
        let groups = self.group_of(key).cloned().map_or(Groups::None, Groups::Same);
        Self { groups, ..self.clone() }
    }

    /// For what comes back from a disk.
    pub(crate) fn restores(mut self) -> Self {
        self.restores = true;
        self
    }

    /// Whether the object may go into the owner's device log, without asking the master; None: as
    /// the handle is configured. Objects larger than a quarter of the log take a plan, and so do
    /// all objects while the log is full.
    #[must_use]
    pub fn device_alloc(mut self, allowed: impl Into<Option<bool>>) -> Self {
        self.device_alloc = allowed.into();
        self
    }
}
