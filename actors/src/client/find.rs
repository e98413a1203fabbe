//! Lookup of locations, in this order: the indexes of mapped segments, locations seen before, the
//! index of the rank that the key's hash selects (read one-sided), the master. Every location is a
//! hint: the header there decides [I2].

use super::locations::{self, Hint};
use super::peer::Peer;
use super::{Client, check_keys, filled, key_bytes, spread};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    Location, MAX_PLACES, ObjMeta, ObjectDesc, Promote, Request, Response, SlotRef, Via,
};
use nkv_store::KeyId;
use nkv_store::index::{BUCKET_BYTES, ENTRIES, Entry, buckets_of};
use nkv_store::layout::{HEADER_BYTES, ObjHeader};
use nkv_store::reader::Hit;
use nkv_transport::verbs::{Find, Op};
use smallvec::SmallVec;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// If the client has a location to fall back on, the master gets this fraction of the call's limit.
const STAND_IN_SHARE: u32 = 4;
/// An odd number with random bits: spreads handles over replicas.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keys in one batch of one-sided lookups.
const REMOTE_BATCH: usize = 128;

/// Where an object can be read.
#[derive(Debug, Clone)]
pub(super) struct Located {
    pub meta: ObjMeta,
    /// The source of the location.
    pub via: Via,
    /// Further replicas, to be read if this one cannot be.
    pub others: Vec<ObjMeta>,
}

/// What a lookup for a read found.
#[derive(Debug, Clone)]
pub(super) enum Found {
    /// Where it can be read.
    At(Located),
    /// On a disk alone, with so many bytes.
    OnDisk(u64),
}

impl Found {
    /// Where it can be read; an error if it did not come back from disk.
    pub fn at(self, key: &[u8]) -> Result<Located> {
        match self {
            Self::At(located) => Ok(located),
            Self::OnDisk(_) => Err(not_kept(key)),
        }
    }
}

/// The error for a key that was brought back from disk and evicted again before it was read.
pub(super) fn not_kept(key: &[u8]) -> Error {
    Error::not_ready(format!(
        "key {} is on disk, and memory has no room to keep what is brought back until it is read: \
         read fewer keys at once, or give the ranks more memory",
        shown(key)
    ))
}

/// Locations of one key, as the master gives them.
#[derive(Debug, Clone)]
enum Known {
    At(Vec<ObjMeta>),
    OnDisk(u64),
}

impl Known {
    fn of(list: Vec<Location>) -> Self {
        match list.first() {
            Some(Location::Disk(disk)) => Self::OnDisk(disk.bytes_total),
            _ => Self::At(list.into_iter().filter_map(Location::into_memory).collect()),
        }
    }
}

impl Located {
    fn by(via: Via, meta: ObjMeta) -> Self {
        Self { meta, via, others: Vec::new() }
    }

    /// The first of a master's locations; None of an empty list.
    fn first(mut metas: Vec<ObjMeta>) -> Option<Self> {
        let others = metas.split_off(metas.len().min(1));
        Some(Self { meta: metas.pop()?, via: Via::Master, others })
    }
}

/// What a call knows so far about where one key is not.
#[derive(Debug, Clone, Default)]
pub(super) struct SearchState {
    /// Locations where it was retired, removed or overwritten. It never comes back there, since
    /// epochs are not reused [I3].
    pub gone: SmallVec<[SlotRef; 1]>,
    /// A hint pointed to an owner that cannot be reached: from here on only the master's answers
    /// are used.
    pub unreached: bool,
    /// The index of the rank that the key's hash selects was just searched in vain.
    pub searched: bool,
    /// Replicas that the master named and that were not tried yet: the next location is one of
    /// these, without asking again.
    pub next: Vec<ObjMeta>,
}

impl SearchState {
    /// Whether a hint may be followed.
    fn allows(&self, meta: &ObjMeta) -> bool {
        !self.unreached && !self.gone.contains(&meta.at)
    }
}

impl Client {
    /// The identities of keys under the hasher of the job that this handle is connected to.
    pub(super) fn ids_of<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Vec<KeyId> {
        let hasher = self.shared.keys.now();
        keys.map(|key| hasher.id(key)).collect()
    }

    /// The rank on whose host this handle is used, if it is known.
    pub(crate) fn home(&self) -> Option<u32> {
        self.shared.home
    }

    /// Whether the job has one rank.
    pub(crate) fn is_alone(&self) -> bool {
        self.shared.world.load(Ordering::Relaxed) == 1
    }

    /// Locations of keys, one result per key. `tried` holds, per key, the locations to skip. Only
    /// the master decides on NotFound. With `promote`, some of what only disks have is brought back
    /// before the answer: of one key always that.
    pub(super) async fn locate(
        &self,
        keys: &[&[u8]],
        tried: &[SearchState],
        promote: bool,
    ) -> Vec<Result<Found>> {
        debug_assert_eq!(keys.len(), tried.len());
        let found = self.find_unasked(keys, tried);
        let rest: Vec<usize> = (0..keys.len()).filter(|i| found[*i].is_none()).collect();
        if rest.is_empty() {
            return found.into_iter().flatten().map(|found| Ok(Found::At(found))).collect();
        }
        let unknown: Vec<&[u8]> = rest.iter().map(|i| keys[*i]).collect();
        let gone = rest.iter().flat_map(|i| tried[*i].gone.iter().copied()).collect();
        let answer = self.ask_master(&unknown, gone, promote).await.into_iter();
        let answer = answer.zip(rest).map(|(answer, i)| led(answer, keys[i], &tried[i])).collect();
        filled(found.into_iter().map(|known| Some(Ok(Found::At(known?)))).collect(), answer)
    }

    /// Locations that can be found without a message.
    fn find_unasked(&self, keys: &[&[u8]], tried: &[SearchState]) -> Vec<Option<Located>> {
        let ids = self.ids_of(keys.iter().copied());
        let mapped = self.metas_mapped(&ids).into_iter();
        let mapped = mapped.zip(tried).map(|(meta, tried)| meta.filter(|meta| tried.allows(meta)));
        let by_index = |meta: Option<ObjMeta>| meta.map(|meta| Located::by(Via::Index, meta));
        let mut found: Vec<_> = mapped.map(by_index).collect();
        let mut ask = BTreeSet::new();
        for (i, ((known, tried), key)) in found.iter_mut().zip(tried).zip(keys).enumerate() {
            if !tried.next.is_empty() {
                *known = Located::first(tried.next.clone());
            } else if known.is_none() {
                let cached = match self.shared.locations.read_by(key) {
                    Hint::At(meta) => Some(meta).filter(|m| tried.allows(m)),
                    Hint::Ask => {
                        ask.insert(i);
                        None
                    }
                    Hint::Unknown => None,
                };
                // Only while this handle is attached to its owner, and the owner is alive.
                let cached = cached.filter(|m| self.shared.peers.get(m.at.incarnation).is_some());
                *known = cached.map(|meta| Located::by(Via::Cache, meta));
            }
        }
        let asks = |i: &usize| tried[*i].unreached || tried[*i].searched || ask.contains(i);
        let open = |i: &usize| found[*i].is_none() && !asks(i);
        let wanted: Vec<usize> = (0..keys.len()).filter(open).collect();
        for (i, meta) in self.find_remote(keys, &ids, &wanted) {
            found[i] = tried[i].allows(&meta).then_some(Located::by(Via::Index, meta));
        }
        found
    }

    fn metas_mapped(&self, ids: &[KeyId]) -> Vec<Option<ObjMeta>> {
        let mapped = self.find_mapped(ids).into_iter().zip(ids);
        mapped.map(|(hit, id)| hit.map(|(peer, hit)| meta_of(&peer, *id, &hit))).collect()
    }

    /// Locations from indexes, confirmed by the headers, without a message.
    pub(super) fn find_by_index(&self, keys: &[&[u8]]) -> Vec<Option<ObjMeta>> {
        let ids = self.ids_of(keys.iter().copied());
        let mut found = self.metas_mapped(&ids);
        let wanted: Vec<usize> = (0..keys.len()).filter(|i| found[*i].is_none()).collect();
        for (i, meta) in self.find_remote(keys, &ids, &wanted) {
            found[i] = Some(meta);
        }
        found
    }

    /// Reads the indexes of the ranks that the keys' hashes select, one-sided, if they are not
    /// mapped.
    fn find_remote(
        &self,
        keys: &[&[u8]],
        ids: &[KeyId],
        wanted: &[usize],
    ) -> Vec<(usize, ObjMeta)> {
        let mut found = Vec::new();
        let mut by_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for i in wanted {
            let Some(rank) = self.shared.likely_rank(ids[*i].hash) else { continue };
            by_rank.entry(rank).or_default().push(*i);
        }
        let now = self.shared.env.clock.now_ns();
        let asked = by_rank.into_iter().filter_map(|(rank, wanted)| {
            let peer = self.shared.peers.remote(rank).filter(|peer| !peer.is_unresponsive(now))?;
            Some((peer, (wanted, Vec::new())))
        });
        let mut asked: Vec<_> = asked.collect();
        self.at_owners(&mut asked, |peer, (wanted, hits)| self.find_at(peer, ids, wanted, hits));
        for (i, meta) in asked.into_iter().flat_map(|(_, (_, hits))| hits) {
            self.shared.locations.keep_found(keys[i], &meta);
            found.push((i, meta));
        }
        found
    }

    /// The lookups at one rank.
    fn find_at(
        &self,
        peer: &Arc<Peer>,
        ids: &[KeyId],
        wanted: &[usize],
        hits: &mut Vec<(usize, ObjMeta)>,
    ) {
        for part in wanted.chunks(REMOTE_BATCH) {
            let asked: Vec<_> = part.iter().map(|i| ids[*i]).collect();
            // A rank whose read fails is skipped for a while: the master knows the locations.
            let Ok(found) = look_up_remote(peer, &asked) else {
                return peer.mark_unresponsive(self.shared.env.clock.now_ns());
            };
            hits.extend(part.iter().zip(found).filter_map(|(i, meta)| Some((*i, meta?))));
        }
    }

    /// Replicas in the order in which to read them: of memory that this process maps, of ranks of
    /// this host, of others, of ranks that did not answer. Among equal ones handles begin at
    /// different ones.
    fn nearest_first(&self, known: Known, here: &OnceCell<BTreeSet<u32>>) -> Known {
        let Known::At(mut list) = known else { return known };
        if list.len() > 1 {
            let (now, own) = (self.shared.env.clock.now_ns(), self.shared.producer_id);
            let distance = |meta: &ObjMeta| match self.shared.peers.get(meta.at.incarnation) {
                Some(peer) if peer.is_unresponsive(now) => 3,
                Some(peer) if peer.reader.is_some() => 0,
                _ if here.get_or_init(|| self.ranks_here()).contains(&meta.rank) => 1,
                _ => 2,
            };
            let order = |meta: &ObjMeta| (meta.at.incarnation ^ own).wrapping_mul(MIX);
            list.sort_by_cached_key(|meta| (distance(meta), order(meta)));
        }
        Known::At(list)
    }

    /// The ranks of this host.
    fn ranks_here(&self) -> BTreeSet<u32> {
        let (view, here) = (self.shared.view(), self.shared.env.machine.boot_id());
        let ranks = view.ranks.iter().map(|(info, _)| info);
        ranks.filter(|info| info.boot_id == here).map(|info| info.rank).collect()
    }

    /// Asks the master. If it does not answer, or does not know yet, the last known location is
    /// used instead: the read there finds out whether it is still valid.
    async fn ask_master(
        &self,
        keys: &[&[u8]],
        gone: Vec<SlotRef>,
        promote: bool,
    ) -> Vec<Result<Known>> {
        let kept = &self.shared.locations;
        let known: Option<Vec<_>> = keys.iter().map(|k| kept.known(k)).collect();
        let limit = match known {
            Some(known) if kept.is_master_unresponsive(self.shared.env.clock.now_ns()) => {
                self.shared.reads.stood_in.add(known.len());
                return known.into_iter().map(|meta| Ok(Known::At(vec![meta]))).collect();
            }
            // With a location to fall back on, most of the call's time is left for the read.
            Some(_) => self.limit() / STAND_IN_SHARE,
            None => self.limit(),
        };
        let promote = match promote {
            true => Promote::Wait { rank: None },
            false => Promote::No,
        };
        let request = Request::GetLocation { keys: key_bytes(keys), gone, promote };
        let answer = match self.call_within(request, limit).await {
            Ok(Response::Locations(list)) if list.len() == keys.len() => list,
            Ok(other) => spread(keys.len(), self.pool.unexpected("GetLocation", &other)),
            Err(e) => {
                if locations::unknown(e.kind()) {
                    kept.mark_master_unresponsive(self.shared.env.clock.now_ns());
                }
                spread(keys.len(), e)
            }
        };
        let here = OnceCell::new();
        let stand_in = |(answer, key): (Result<Vec<Location>>, &&[u8])| {
            // An invalid key is InvalidArgument, whatever the master answers.
            check_keys(&[key])?;
            let answer = answer.map(|list| self.nearest_first(Known::of(list), &here));
            match &answer {
                Ok(Known::At(list)) => list.first().into_iter().for_each(|m| kept.keep(key, m)),
                Ok(Known::OnDisk(_)) => kept.forget(key),
                Err(e) if locations::unknown(e.kind()) => {
                    if let Some(meta) = kept.known(key) {
                        self.shared.reads.stood_in.one();
                        return Ok(Known::At(vec![meta]));
                    }
                }
                Err(_) => {}
            }
            answer
        };
        answer.into_iter().zip(keys).map(stand_in).collect()
    }
}

/// The master's answer without the locations that were tried already; NotReady if none is left.
fn led(answer: Result<Known>, key: &[u8], tried: &SearchState) -> Result<Found> {
    let known = answer.map_err(|e| match e.kind() {
        ErrorKind::NotFound if !tried.gone.is_empty() => {
            Error::not_found(format!("key {} was evicted or removed while it was read", shown(key)))
        }
        _ => e,
    })?;
    let mut places = match known {
        Known::At(list) => list,
        Known::OnDisk(bytes) => return Ok(Found::OnDisk(bytes)),
    };
    let gone = places.first().map(|meta| (meta.at.slot, meta.rank));
    places.retain(|meta| !tried.gone.contains(&meta.at));
    Located::first(places).map(Found::At).ok_or_else(|| {
        let (slot, rank) = gone.unwrap_or_default();
        Error::not_ready(format!(
            "key {} is no longer in slot {slot} of rank {rank}, and it is not known yet whether \
             it is elsewhere: try again",
            shown(key),
        ))
    })
}

/// The error for a key that changed at every location tried.
pub(super) fn moves_on(key: &[u8]) -> Error {
    Error::not_ready(format!(
        "key {} was put again and evicted or removed {MAX_PLACES} times while it was read: read it \
         again",
        shown(key)
    ))
}

pub(super) fn shown(key: &[u8]) -> String {
    nkv_store::Key::new(key).map_or_else(|e| e.to_string(), |k| k.to_string())
}

/// The location of an object whose header was read.
pub(super) fn meta_of(peer: &Peer, key: KeyId, hit: &Hit) -> ObjMeta {
    ObjMeta {
        key,
        rank: peer.rank,
        at: SlotRef { incarnation: peer.incarnation, slot: hit.slot, epoch: hit.epoch() },
        header_off: peer.layout.header_off(hit.slot),
        object: ObjectDesc::of_header(&hit.header),
    }
}

/// Has the owner's end look the keys up, if it can: one round trip for any number of keys. None if
/// it cannot.
fn look_up_there(peer: &Peer, keys: &[KeyId]) -> Option<Result<Vec<Option<ObjMeta>>>> {
    let mut finds: Vec<_> = keys.iter().map(|key| Find::new(*key, &mut [])).collect();
    let done = peer.verbs.find(&mut finds)?;
    let meta = |find: &Find<'_>| Some(meta_of(peer, find.key, &find.hit(&peer.layout)?));
    Some(done.map(|()| finds.iter().map(meta).collect()).map_err(Error::from))
}

/// Reads the buckets, then the headers that they point to: two batches of reads for any number of
/// keys, or one round trip where the owner's end looks them up.
fn look_up_remote(peer: &Arc<Peer>, keys: &[KeyId]) -> Result<Vec<Option<ObjMeta>>> {
    if let Some(found) = look_up_there(peer, keys) {
        return found;
    }
    let mut found = vec![None; keys.len()];
    let homes = keys.iter().map(|k| buckets_of(&peer.layout.index, *k));
    let Some(homes) = homes.collect::<Option<Vec<_>>>() else { return Ok(found) };
    // Both buckets of a key, which are adjacent.
    let mut pairs = vec![[0u64; 2 * ENTRIES]; keys.len()];
    let mut reads: Vec<_> = homes
        .iter()
        .zip(&mut pairs)
        .map(|(buckets, pair)| Op::Read {
            offset: buckets[0].min(buckets[1]),
            dst: pair.as_mut_bytes(),
        })
        .collect();
    peer.verbs.post(0, &mut reads)?;
    drop(reads);
    let named = keys.iter().zip(&pairs).enumerate().flat_map(|(i, (key, pair))| {
        let entries = pair.iter().filter_map(|word| Entry::of_word(u64::from_le(*word), *key));
        entries.map(move |entry| (i, entry))
    });
    let mut probes: Vec<_> = named
        .filter(|(_, e)| e.slot < peer.layout.slots)
        .map(|(i, e)| (i, e, [ObjHeader::default(); 2]))
        .collect();
    if probes.is_empty() {
        return Ok(found);
    }
    // Each header is read twice, in order: if both are equal, the first read is consistent.
    let mut reads: Vec<_> = probes
        .iter_mut()
        .flat_map(|(_, entry, headers)| {
            let offset = peer.layout.header_off(entry.slot);
            headers.each_mut().map(|header| Op::Read { offset, dst: header.as_mut_bytes() })
        })
        .collect();
    peer.verbs.post(0, &mut reads)?;
    drop(reads);
    for (i, entry, [header, again]) in &probes {
        let settled = header.publish == again.publish && header.owner == again.owner;
        let hit = Hit::of(&peer.layout, entry.slot, *header, keys[*i]);
        let hit = hit.filter(|hit| settled && entry.is_about(hit.epoch()));
        if let (Some(hit), None) = (hit, &found[*i]) {
            found[*i] = Some(meta_of(peer, keys[*i], &hit));
        }
    }
    Ok(found)
}

const _: () = assert!(size_of::<ObjHeader>() == HEADER_BYTES as usize);
const _: () = assert!(size_of::<[u64; ENTRIES]>() == BUCKET_BYTES as usize);
