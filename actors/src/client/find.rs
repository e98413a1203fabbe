//! Where objects lie: mapped segments' indexes, then locations seen before, then the index of the
//! rank that the key's hash names, read one-sided, and only then the master. A location is a hint
//! everywhere: the header it leads to decides [I2].

use super::counters::Reads;
use super::locations;
use super::peer::Peer;
use super::{Client, check_keys, key_bytes, spread};
use crate::error::Result;
use crate::message::{ObjMeta, Request, Response, SlotRef, Via, WireKeyId};
use nkv_store::index::{BUCKET_BYTES, ENTRIES, Entry, buckets_of};
use nkv_store::layout::{HEADER_BYTES, ObjHeader, epoch_of};
use nkv_store::object::{Expect, validate};
use nkv_store::reader::Hit;
use nkv_store::{Key, KeyId};
use nkv_transport::verbs::Op;
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// Part of a call's limit that a master gets whose answer the client can do without.
const STAND_IN_SHARE: u32 = 4;
/// Keys that one batch of one-sided lookups asks for.
const FAR_BATCH: usize = 64;
/// Both buckets of a key, which lie side by side.
const PAIR_BYTES: usize = 2 * BUCKET_BYTES as usize;

/// A location, and who told it.
pub(super) type Located = (ObjMeta, Via);

impl Client {
    /// Locations of keys. With `from_master`, all of them by its word: what was known was wrong.
    pub(super) async fn locate(&self, keys: &[&[u8]], from_master: bool) -> Vec<Result<Located>> {
        let mut found: Vec<Option<Located>> = match from_master {
            true => vec![None; keys.len()],
            false => self.find_unasked(keys),
        };
        let rest: Vec<usize> = (0..keys.len()).filter(|i| found[*i].is_none()).collect();
        if rest.is_empty() {
            return found.into_iter().flatten().map(Ok).collect();
        }
        let unknown: Vec<&[u8]> = rest.iter().map(|i| keys[*i]).collect();
        let mut told = self.ask_master(&unknown).await.into_iter();
        let answers = found.iter_mut().map(|known| match known.take() {
            Some(known) => Some(Ok(known)),
            None => told.next().map(|t| t.map(|meta| (meta, Via::Master))),
        });
        answers.flatten().collect()
    }

    /// What can be known without a message.
    fn find_unasked(&self, keys: &[&[u8]]) -> Vec<Option<Located>> {
        let ids: Vec<_> = keys.iter().map(|key| KeyId::of(key)).collect();
        let near = self.metas_near(&ids).into_iter();
        let mut found: Vec<_> = near.map(|meta| meta.map(|meta| (meta, Via::Index))).collect();
        for (known, key) in found.iter_mut().zip(keys).filter(|(known, _)| known.is_none()) {
            let cached = self.shared.locations.known(key);
            // Only while its owner's incarnation is attached to and alive.
            let alive = |m: &ObjMeta| self.shared.peers.get(m.at.incarnation).is_some();
            *known = cached.filter(alive).map(|meta| (meta, Via::Cache));
        }
        let wanted: Vec<usize> = (0..keys.len()).filter(|i| found[*i].is_none()).collect();
        for (i, meta) in self.find_far(keys, &ids, &wanted) {
            found[i] = Some((meta, Via::Index));
        }
        found
    }

    fn metas_near(&self, ids: &[KeyId]) -> Vec<Option<ObjMeta>> {
        let near = self.find_near(ids).into_iter().zip(ids);
        let meta = |(found, id): (Option<(Arc<Peer>, Hit)>, &KeyId)| {
            found.map(|(peer, hit)| meta_of(&peer, *id, hit.slot, &hit.header))
        };
        near.map(meta).collect()
    }

    /// What an index says and a header confirms, without a message.
    pub(super) fn find_by_index(&self, keys: &[&[u8]]) -> Vec<Option<ObjMeta>> {
        let ids: Vec<_> = keys.iter().map(|key| KeyId::of(key)).collect();
        let mut found = self.metas_near(&ids);
        let wanted: Vec<usize> = (0..keys.len()).filter(|i| found[*i].is_none()).collect();
        for (i, meta) in self.find_far(keys, &ids, &wanted) {
            found[i] = Some(meta);
        }
        found
    }

    /// Reads the indexes of the ranks that the hashes of the keys name, where they are not mapped.
    fn find_far(&self, keys: &[&[u8]], ids: &[KeyId], wanted: &[usize]) -> Vec<(usize, ObjMeta)> {
        let world = u64::from(self.shared.world());
        let mut found = Vec::new();
        if world == 0 {
            return found;
        }
        let mut by_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for i in wanted {
            by_rank.entry((ids[*i].hash % world) as u32).or_default().push(*i);
        }
        for (rank, wanted) in by_rank {
            let now = self.shared.env.clock.now_ns();
            let far = self.shared.peers.far(rank).filter(|peer| !peer.is_silent(now));
            let Some(peer) = far else { continue };
            for part in wanted.chunks(FAR_BATCH) {
                let asked: Vec<_> = part.iter().map(|i| ids[*i]).collect();
                let read = peer.run_blocking(|| look_up_far(&peer, &asked));
                // One that fails is asked nothing, for a while: the master knows.
                let Ok(hits) = read else {
                    peer.was_silent(self.shared.env.clock.now_ns());
                    break;
                };
                for (i, meta) in part.iter().zip(hits) {
                    if let Some(meta) = meta {
                        self.shared.locations.keep(keys[*i], &meta);
                        found.push((*i, meta));
                    }
                }
            }
        }
        found
    }

    /// Asks the master; where it does not answer, or cannot know, the last known location stands
    /// in: whoever reads there finds out whether it still holds.
    async fn ask_master(&self, keys: &[&[u8]]) -> Vec<Result<ObjMeta>> {
        let kept = &self.shared.locations;
        let all_known = kept.knows_all(keys);
        if all_known && kept.spare_master(self.shared.env.clock.now_ns()) {
            let known: Vec<_> = keys.iter().map_while(|k| kept.known(k)).map(Ok).collect();
            if known.len() == keys.len() {
                Reads::count(&self.shared.reads.stood_in, known.len() as u64);
                return known;
            }
        }
        // A read that needs no answer leaves its owner the rest of the call's time.
        let limit = self.limit() / if all_known { STAND_IN_SHARE } else { 1 };
        let request = Request::GetLocation(key_bytes(keys));
        let told = match self.call_within(request, limit).await {
            Ok(Response::Locations(list)) if list.len() == keys.len() => list,
            Ok(other) => spread(keys.len(), self.pool.unexpected("GetLocation", &other)),
            Err(e) => {
                if locations::unknown(e.kind) {
                    kept.master_silent(self.shared.env.clock.now_ns());
                }
                spread(keys.len(), e)
            }
        };
        let stand_in = |(told, key): (Result<ObjMeta>, &&[u8])| match told {
            // Whatever the master says, or does not.
            _ if Key::check(key).is_err() => check_keys(&[key]).and(told),
            Ok(meta) => {
                kept.keep(key, &meta);
                Ok(meta)
            }
            Err(e) if locations::unknown(e.kind) => match kept.known(key) {
                Some(meta) => {
                    Reads::count(&self.shared.reads.stood_in, 1);
                    Ok(meta)
                }
                None => Err(e),
            },
            Err(e) => Err(e),
        };
        told.into_iter().zip(keys).map(stand_in).collect()
    }
}

/// The location of an object whose header was read.
fn meta_of(peer: &Peer, key: KeyId, slot: u32, header: &ObjHeader) -> ObjMeta {
    ObjMeta {
        key: WireKeyId::from(key),
        rank: peer.rank,
        at: SlotRef { incarnation: peer.incarnation, slot, epoch: epoch_of(header.owner) },
        header_off: peer.header_off(slot),
        payload_off: header.payload_base,
        bytes_total: header.bytes_total,
        page_bytes: header.page_size,
        n_pages: header.n_pages,
    }
}

/// Buckets, then the headers they name: two batches of reads for any number of keys.
fn look_up_far(peer: &Arc<Peer>, keys: &[KeyId]) -> Result<Vec<Option<ObjMeta>>> {
    let mut found = vec![None; keys.len()];
    let homes: Vec<_> = keys.iter().map_while(|k| buckets_of(&peer.index, *k)).collect();
    if homes.len() < keys.len() {
        return Ok(found);
    }
    let mut pairs = vec![[0u64; 2 * ENTRIES]; keys.len()];
    let mut reads: Vec<_> = homes
        .iter()
        .zip(&mut pairs)
        .map(|(buckets, pair)| Op::Read {
            offset: buckets[0].min(buckets[1]),
            dst: pair.as_mut_bytes(),
        })
        .collect();
    debug_assert!(reads.iter().all(|op| op.range().1 == PAIR_BYTES as u64));
    peer.verbs.post(0, &mut reads)?;
    drop(reads);
    let named = keys.iter().zip(&pairs).enumerate().flat_map(|(i, (key, pair))| {
        let entries = pair.iter().filter_map(|word| Entry::of_word(u64::from_le(*word), *key));
        entries.map(move |entry| (i, entry))
    });
    let mut looks: Vec<_> = named
        .filter(|(_, e)| e.slot < peer.slots)
        .map(|(i, e)| (i, e, unread(), unread()))
        .collect();
    if looks.is_empty() {
        return Ok(found);
    }
    // Twice, in order: a header that is the same both times was of one moment.
    let mut reads: Vec<_> = looks
        .iter_mut()
        .flat_map(|(_, entry, header, again)| {
            let offset = peer.header_off(entry.slot);
            let both = [header, again];
            both.map(|header| Op::Read { offset, dst: header.as_mut_bytes() })
        })
        .collect();
    peer.verbs.post(0, &mut reads)?;
    drop(reads);
    for (i, entry, header, again) in &looks {
        let expect = Expect {
            key: Some(keys[*i]),
            epoch: None,
            payload_base: header.payload_base,
            bytes_total: header.bytes_total,
        };
        let there = header.publish == again.publish
            && header.owner == again.owner
            && entry.is_about(epoch_of(header.owner))
            && validate(header, &expect, &peer.payloads).is_ok();
        if there && found[*i].is_none() {
            found[*i] = Some(meta_of(peer, keys[*i], entry.slot, header));
        }
    }
    Ok(found)
}

fn unread() -> ObjHeader {
    ObjHeader::new_zeroed()
}

const _: () = assert!(size_of::<ObjHeader>() == HEADER_BYTES as usize);
