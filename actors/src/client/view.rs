//! Views of objects in place, without a copy: a pin keeps the bytes of an object in place until its
//! view is dropped [I9]. Only for memory that this process maps, of the host or of a device.

use super::addresses::MappedSegment;
use super::find::{Located, SearchState, moves_on, shown};
use super::peer::Peer;
use super::{Client, check_keys};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{MAX_PLACES, ObjectDesc, SlotRef, Touch, Via};
use crate::striping::{MANIFEST_BYTES, Manifest};
use nkv_store::Memory;
use nkv_store::pins::{NoPin, PINS, Pin, PinnedBytes, Pins, TABLES};
use nkv_store::reader::{Hit, Reader};
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of one object in its owner's memory. They do not change while the view lives, even if
/// the object is removed or evicted. Its space is reused only after the drop, so drop views soon.
#[derive(Debug)]
pub struct ObjectView {
    bytes: PinnedBytes,
    at: (u32, u32),
    // Keeps the attachment: it detaches from its owner only after its last view is dropped.
    peer: Arc<Peer>,
}

impl ObjectView {
    /// The rank in whose memory the bytes lie.
    pub fn rank(&self) -> u32 {
        self.peer.rank
    }

    /// The slot of the object.
    pub(super) fn at(&self) -> SlotRef {
        let (slot, epoch) = self.at;
        SlotRef { incarnation: self.peer.incarnation, slot, epoch }
    }

    /// The owner's incarnation, and the offset of the first byte in its segment.
    pub(super) fn place(&self) -> (u64, u64) {
        let base = MappedSegment::of(&self.peer).map_or(0, |segment| segment.payload);
        let at = self.bytes.as_ptr().expose_provenance() as u64;
        (self.peer.incarnation, at.wrapping_sub(base))
    }
}

/// A view of what is stored under a key.
pub(crate) struct StoredView {
    view: ObjectView,
    /// Where its bytes begin in the segment.
    pub offset: u64,
    pub page_bytes: u32,
}

impl StoredView {
    /// The segment, and how many bytes are in view there.
    pub fn memory(&self) -> Option<(&dyn Memory, u64)> {
        let memory = self.view.peer.reader.as_ref()?.memory().memory();
        Some((&**memory, self.view.len() as u64))
    }
}

impl Deref for ObjectView {
    type Target = [u8];

    /// # Panics
    /// In a child made by fork, which has no such memory.
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One object in the memory of a device, as [`ObjectView`]: kernels of this process may read it.
/// Kernels that are queued do not keep it: wait for them before the drop.
#[derive(Debug)]
pub struct DeviceView {
    address: u64,
    bytes: u64,
    _pin: Pin,
    peer: Arc<Peer>,
}

impl DeviceView {
    /// The rank in whose memory the bytes lie.
    pub fn rank(&self) -> u32 {
        self.peer.rank
    }

    /// Their address, for kernels and the driver.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// None if the object changed before it was pinned.
type Viewed<T> = Option<Result<T>>;

impl Client {
    /// A view of an object in memory that this process maps: no byte is copied. `Unsupported` if it
    /// lies elsewhere (read it with `get_into`); `OutOfMemory` past 4,096 objects viewed per owner.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("view", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// let view = cache.get_view(b"block/1").await?;
    /// assert_eq!(&view[..], b"kv bytes");
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_view(&self, key: &[u8]) -> Result<ObjectView> {
        let view = self.view_stored(key).await?;
        self.whole_view(key, view)
    }

    /// A view of what is stored under a key: of a striped object its manifest.
    pub(super) async fn view_stored(&self, key: &[u8]) -> Result<ObjectView> {
        self.check_usable().map_err(|e| e.about(key))?;
        match self.view_now(key) {
            Some(view) => view.map_err(|e| e.about(key)),
            None => self.view_further(key).await,
        }
    }

    /// Views an object that the mapped indexes do not resolve.
    pub(super) async fn view_further(&self, key: &[u8]) -> Result<ObjectView> {
        let view = |peer: &Arc<Peer>, hit: &Hit, via| self.view_bytes(peer, hit, Some(via));
        self.view_located(key, view).await.map_err(|e| e.about(key))
    }

    /// A view of what is stored, for a copy of it: it counts for nothing and is reported to nobody.
    pub(super) async fn view_uncounted(&self, key: &[u8]) -> Result<ObjectView> {
        self.stored_in_place(key).await.map(|stored| stored.view)
    }

    /// The same with what a disk needs of it.
    pub(crate) async fn stored_in_place(&self, key: &[u8]) -> Result<StoredView> {
        self.check_usable()?;
        let view = |peer: &Arc<Peer>, hit: &Hit| {
            let page_bytes = ObjectDesc::of_header(&hit.header).page_bytes;
            let offset = hit.header.payload_base;
            let view = self.view_bytes(peer, hit, None)?;
            Some(view.map(|view| StoredView { view, offset, page_bytes }))
        };
        let found = self.find_mapped(&[self.shared.keys.now().id(key)]);
        if let Some((peer, hit)) = found.into_iter().next().flatten()
            && let Some(view) = view(&peer, &hit)
        {
            return view;
        }
        self.view_located(key, |peer, hit, _| view(peer, hit)).await
    }

    /// The view, unless it shows a manifest.
    pub(super) fn whole_view(&self, key: &[u8], view: ObjectView) -> Result<ObjectView> {
        match Manifest::decode(&view, key) {
            Some(manifest) => Err(striped(&manifest).about(key)),
            None => Ok(view),
        }
    }

    /// The same for an object whose payload is in a device that this process maps. `Unsupported` if
    /// it is not.
    pub async fn get_device_view(&self, key: &[u8]) -> Result<DeviceView> {
        self.check_usable().map_err(|e| e.about(key))?;
        let view = |peer: &Arc<Peer>, hit: &Hit, via| self.view_device(peer, hit, via);
        let view = self.view_located(key, view).await.map_err(|e| e.about(key))?;
        if view.bytes == MANIFEST_BYTES as u64
            && let Some(manifest) = Manifest::decode(&self.get_stored(key).await?, key)
        {
            return Err(striped(&manifest).about(key));
        }
        Ok(view)
    }

    #[tracing::instrument(level = "debug", name = "view", skip_all, fields(key = shown(key)))]
    async fn view_located<T>(
        &self,
        key: &[u8],
        view: impl Fn(&Arc<Peer>, &Hit, Via) -> Viewed<T>,
    ) -> Result<T> {
        check_keys(&[key])?;
        let id = self.shared.keys.now().id(key);
        let mut tried = SearchState::default();
        for _ in 0..MAX_PLACES {
            let located = self.locate(&[key], std::slice::from_ref(&tried), true).await;
            let Located { meta, via, others } = super::one(located)?.at(key)?;
            let (mut failed, known) = (None, tried.gone.len());
            for meta in std::iter::once(meta).chain(others) {
                let peer = match self.peer(meta.at.incarnation).await {
                    Ok(peer) => peer,
                    Err(e) => {
                        failed.get_or_insert(e);
                        continue;
                    }
                };
                let Some(reader) = &peer.reader else {
                    failed.get_or_insert(not_mapped(&peer));
                    continue;
                };
                if let Some(hit) = reader.read_slot(meta.at.slot, id)
                    && let Some(view) = view(&peer, &hit, via)
                {
                    return view;
                }
                self.shared.locations.forget(key);
                tried.gone.push(meta.at);
            }
            // What is gone may be elsewhere by now; what cannot be reached or mapped stays so.
            if let Some(failed) = failed.filter(|_| tried.gone.len() == known) {
                return Err(failed);
            }
        }
        Err(moves_on(key))
    }

    /// A view of an object that an index of a mapped segment resolves to. None: not found this way.
    pub(crate) fn view_now(&self, key: &[u8]) -> Option<Result<ObjectView>> {
        let found = self.find_mapped(&[self.shared.keys.now().id(key)]);
        let (peer, hit) = found.into_iter().next().flatten()?;
        self.view_bytes(&peer, &hit, Some(Via::Index))
    }

    fn view_bytes(&self, peer: &Arc<Peer>, hit: &Hit, via: Option<Via>) -> Viewed<ObjectView> {
        if !peer.reader.as_ref().is_some_and(Reader::maps_payloads) {
            return Some(Err(not_mapped(peer)));
        }
        let place = (hit.header.payload_base, hit.header.bytes_total);
        let bytes = self.pin(peer, hit, via, |pins, reader| {
            pins.pin_bytes((hit.slot, hit.epoch()), place, || reader.still(hit))
        });
        let at = (hit.slot, hit.epoch());
        Some(bytes?.map(|bytes| ObjectView { bytes, at, peer: peer.clone() }))
    }

    fn view_device(&self, peer: &Arc<Peer>, hit: &Hit, via: Via) -> Viewed<DeviceView> {
        let (offset, bytes) = (hit.header.payload_base, hit.header.bytes_total);
        let memory = peer.reader.as_ref().map(|reader| reader.memory().memory());
        // What RDMA devices wrote is there before READY, which was seen.
        memory.into_iter().for_each(|memory| memory.flush());
        let Some(address) = memory.and_then(|memory| memory.device_address(offset, bytes)) else {
            return Some(Err(Error::unsupported(format!(
                "it lies on rank {}, in no memory of a device that this process maps ({}): read \
                 it with get or get_into",
                peer.rank,
                peer.kind()
            ))));
        };
        let pin = self.pin(peer, hit, Some(via), |pins, reader| {
            pins.pin((hit.slot, hit.epoch()), || reader.still(hit))
        });
        Some(pin?.map(|pin| DeviceView { address, bytes, _pin: pin, peer: peer.clone() }))
    }

    fn pin<P>(
        &self,
        peer: &Peer,
        hit: &Hit,
        via: Option<Via>,
        pin: impl FnOnce(&Arc<Pins>, &Reader) -> std::result::Result<P, NoPin>,
    ) -> Viewed<P> {
        let Some((reader, pins)) = peer.reader.as_ref().zip(peer.pins.as_ref()) else {
            return Some(Err(no_pins(peer)));
        };
        match pin(pins, reader) {
            // Checked last: the memory of an owner that is gone may hold anything.
            Ok(pinned) if peer.is_alive() => {
                if let Some(via) = via {
                    let (slot, epoch, bytes) = (hit.slot, hit.epoch(), hit.header.bytes_total);
                    peer.note(Some(via), Touch { slot, epoch, bytes, read: true });
                    self.shared.reads.viewed.one();
                    self.shared.reads.via(via);
                }
                Some(Ok(pinned))
            }
            Ok(_) | Err(NoPin::Closed) => Some(Err(Error::disconnected(format!(
                "rank {} is gone, or this handle is closed",
                peer.rank
            )))),
            Err(NoPin::Changed) => {
                self.shared.reads.changed.one();
                None
            }
            Err(NoPin::Full) => Some(Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("{PINS} objects of rank {} are being viewed: drop some views", peer.rank),
            ))),
        }
    }
}

/// Why nothing can be read in place in the memory of this owner.
pub(super) fn no_pins(peer: &Peer) -> Error {
    Error::unsupported(format!(
        "rank {} has no room for the pins of one more handle: {TABLES} read in place already; \
         read with get_into, or close handles that are not used",
        peer.rank
    ))
}

/// Why there is no view of a striped object.
fn striped(manifest: &Manifest) -> Error {
    Error::unsupported(format!(
        "it is in {} stripes, in the memory of several ranks: read it with get_into",
        manifest.stripes()
    ))
}

/// Why there is no view of an object in the memory of this owner.
fn not_mapped(peer: &Peer) -> Error {
    Error::unsupported(format!(
        "it lies on rank {}, whose memory this process does not map ({}): read it with get_into",
        peer.rank,
        peer.kind()
    ))
}
