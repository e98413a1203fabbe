//! Compares the counts of a replay with those of a plain set, and tests blocks that are lost,
//! changed or refused meanwhile.

use super::{Blocks, Replay};
use crate::content::Stream;
use crate::report::Report;
use nkv::message::{DiskMeta, Location, ObjMeta, SlotRef};
use nkv::{Error, ErrorKind};
use nkv_store::object::ObjectDesc;
use nkv_store::{KeyHasher, KeyId};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

const BLOCK: usize = 128;
const HASHER: KeyHasher = KeyHasher::new([7; 16]);

/// Blocks in a map, with faults that a test injects.
#[derive(Default)]
struct Pretended {
    stored: RefCell<HashMap<KeyId, Vec<u8>>>,
    /// Evicted at the next read.
    evict_before_read: RefCell<HashSet<KeyId>>,
    /// Not where the match found it, at the next read.
    move_before_read: RefCell<HashSet<KeyId>>,
    /// On disk alone.
    on_disk: RefCell<HashSet<KeyId>>,
    /// Kind of error of every read.
    reads_fail: Cell<Option<ErrorKind>>,
    /// Kind of error of every put.
    puts_fail: Cell<Option<ErrorKind>>,
    put_keys: RefCell<Vec<Vec<u8>>>,
}

fn fail(kind: ErrorKind) -> Error {
    Error::new(kind, "pretended")
}

impl Blocks for Pretended {
    fn longest_prefix(&self, keys: &[&[u8]]) -> nkv::Result<Vec<Location>> {
        let stored = self.stored.borrow();
        let ids = keys.iter().map(|key| HASHER.id(key));
        let location = |id: KeyId| match self.on_disk.borrow().contains(&id) {
            true => Location::Disk(DiskMeta { key: id, rank: 0, bytes_total: BLOCK as u64 }),
            false => Location::Memory(meta(id)),
        };
        Ok(ids.take_while(|id| stored.contains_key(id)).map(location).collect())
    }

    fn read(&self, items: &mut [(&ObjMeta, &mut [u8])]) -> Vec<nkv::Result<usize>> {
        let mut stored = self.stored.borrow_mut();
        for id in self.evict_before_read.borrow_mut().drain() {
            stored.remove(&id);
        }
        let mut read = |(at, dst): &mut (&ObjMeta, &mut [u8])| {
            if let Some(kind) = self.reads_fail.get() {
                return Err(fail(kind));
            }
            let stays = !self.move_before_read.borrow_mut().remove(&at.key);
            let value = stored.get(&at.key).filter(|_| stays);
            let value = value.ok_or_else(|| fail(ErrorKind::NotFound))?;
            let fits = value.len().min(dst.len());
            dst[..fits].copy_from_slice(&value[..fits]);
            Ok(value.len())
        };
        items.iter_mut().map(&mut read).collect()
    }

    fn read_keys(&self, items: &mut [(&[u8], &mut [u8])]) -> Vec<nkv::Result<usize>> {
        let stored = self.stored.borrow();
        let read = |(key, dst): &mut (&[u8], &mut [u8])| {
            let value = stored.get(&HASHER.id(key)).ok_or_else(|| fail(ErrorKind::NotFound))?;
            dst.copy_from_slice(value);
            Ok(value.len())
        };
        items.iter_mut().map(read).collect()
    }

    fn put(&self, items: &[(&[u8], &[u8])]) -> Vec<nkv::Result<()>> {
        let mut stored = self.stored.borrow_mut();
        let mut put = |(key, value): &(&[u8], &[u8])| {
            self.put_keys.borrow_mut().push(key.to_vec());
            match self.puts_fail.get() {
                Some(kind) => Err(fail(kind)),
                None => match stored.insert(HASHER.id(key), value.to_vec()) {
                    None => Ok(()),
                    Some(_) => Err(fail(ErrorKind::AlreadyExists)),
                },
            }
        };
        items.iter().map(&mut put).collect()
    }
}

fn meta(id: KeyId) -> ObjMeta {
    ObjMeta {
        object: ObjectDesc::at(0, BLOCK as u64, BLOCK as u32),
        key: id,
        rank: 0,
        at: SlotRef { incarnation: 1, slot: 0, epoch: 1 },
        header_off: 0,
    }
}

fn id_of(block: u64) -> KeyId {
    HASHER.id(&super::block_key(BLOCK, block))
}

fn replay(blocks: &Pretended, requests: &[&[u64]]) -> Report {
    let mut replay = Replay::new(BLOCK);
    for ids in requests {
        replay.request(blocks, ids);
    }
    replay.into_report()
}

/// Requests that share prefixes the way conversations do: each goes on from an earlier one.
fn conversations(requests: u64) -> Vec<Vec<u64>> {
    let (mut all, mut next, mut random): (Vec<Vec<u64>>, u64, u64) = (Vec::new(), 1, 1);
    for _ in 0..requests {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = (random >> 33) as usize;
        let mut ids = match all.len() {
            0 => vec![0],
            n => all[draw % n][..].to_vec(),
        };
        ids.truncate(1 + draw % 40);
        for _ in 0..1 + draw % 25 {
            ids.push(next);
            next += 1;
        }
        all.push(ids);
    }
    all
}

#[test]
fn with_room_for_all_the_ratio_is_that_of_a_plain_set() {
    let requests = conversations(1000);
    let (mut seen, mut hits, mut blocks) = (HashSet::<u64>::new(), 0, 0);
    for ids in &requests {
        hits += ids.iter().take_while(|id| seen.contains(*id)).count() as u64;
        blocks += ids.len() as u64;
        seen.extend(ids);
    }
    let cache = Pretended::default();
    let report = replay(&cache, &requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_eq!((report.requests, report.blocks, report.hit_blocks), (1000, blocks, hits));
    assert!((report.prefix_hit_ratio() - hits as f64 / blocks as f64).abs() < 1e-12);
    assert!(hits > blocks / 10, "the requests share too little to test anything");
    assert!(report.tally.is_clean(), "{:?}", report.tally.lines());
    assert_eq!(cache.stored.borrow().len(), seen.len());
    assert_eq!(cache.put_keys.borrow().len(), seen.len());
}

#[test]
fn a_block_evicted_between_match_and_read_is_no_hit_and_is_put_again() {
    let cache = Pretended::default();
    replay(&cache, &[&[1, 2, 3, 4]]);
    cache.evict_before_read.borrow_mut().insert(id_of(3));
    cache.put_keys.borrow_mut().clear();
    let report = replay(&cache, &[&[1, 2, 3, 4, 5]]);
    assert_eq!((report.blocks, report.hit_blocks), (5, 2));
    assert!(report.tally.is_clean(), "{:?}", report.tally.lines());
    let put: Vec<_> = [3, 5].map(|block| super::block_key(BLOCK, block)).to_vec();
    assert_eq!(*cache.put_keys.borrow(), put);
    assert_eq!(replay(&cache, &[&[1, 2, 3, 4, 5]]).hit_blocks, 5);
}

#[test]
fn a_block_that_was_moved_between_match_and_read_is_read_by_its_key() {
    let cache = Pretended::default();
    replay(&cache, &[&[1, 2, 3, 4]]);
    cache.move_before_read.borrow_mut().insert(id_of(3));
    cache.put_keys.borrow_mut().clear();
    let report = replay(&cache, &[&[1, 2, 3, 4]]);
    assert_eq!((report.hit_blocks, report.tally.is_clean()), (4, true));
    assert!(cache.put_keys.borrow().is_empty());
}

#[test]
fn any_other_error_of_a_read_is_a_failure_and_nothing_is_put_for_it() {
    let cache = Pretended::default();
    replay(&cache, &[&[1, 2]]);
    cache.put_keys.borrow_mut().clear();
    cache.reads_fail.set(Some(ErrorKind::Disconnected));
    let report = replay(&cache, &[&[1, 2]]);
    assert_eq!((report.hit_blocks, report.tally.failed), (0, 2));
    assert!(cache.put_keys.borrow().is_empty());
}

#[test]
fn a_put_that_another_client_did_first_is_no_failure_but_no_room_is() {
    let cache = Pretended::default();
    cache.puts_fail.set(Some(ErrorKind::AlreadyExists));
    assert_eq!(replay(&cache, &[&[1, 2]]).tally.failed, 0);
    cache.puts_fail.set(Some(ErrorKind::OutOfMemory));
    let report = replay(&cache, &[&[1, 2]]);
    assert_eq!(report.tally.failed, 2);
    assert!(report.tally.lines()[0].contains("OutOfMemory"), "{:?}", report.tally.lines());
}

#[test]
fn a_changed_a_short_and_a_long_block_are_wrong_bytes() {
    let cache = Pretended::default();
    replay(&cache, &[&[1, 2, 3]]);
    {
        let mut stored = cache.stored.borrow_mut();
        stored.get_mut(&id_of(1)).unwrap()[77] ^= 1;
        stored.get_mut(&id_of(2)).unwrap().truncate(BLOCK - 3);
        stored.get_mut(&id_of(3)).unwrap().push(0);
    }
    let report = replay(&cache, &[&[1, 2, 3]]);
    assert_eq!(report.tally.wrong_bytes, 1 + 3 + 1, "{:?}", report.tally.lines());
    assert_eq!(report.hit_blocks, 3);
}

#[test]
fn a_block_named_twice_in_one_request_is_put_once() {
    let cache = Pretended::default();
    let report = replay(&cache, &[&[1, 2, 1], &[]]);
    assert_eq!((report.requests, report.blocks, report.hit_blocks), (2, 3, 0));
    assert_eq!(cache.put_keys.borrow().len(), 2);
}

#[test]
fn a_request_larger_than_one_call_reads_and_puts_every_block_once() {
    let cache = Pretended::default();
    let mut replay = Replay::new(BLOCK);
    replay.per_call = 3;
    let ids: Vec<u64> = (0..10).collect();
    replay.request(&cache, &ids);
    replay.request(&cache, &ids);
    assert_eq!(replay.gets.count(), 10);
    let report = replay.into_report();
    assert_eq!((report.hit_blocks, cache.put_keys.borrow().len()), (10, 10));
    assert!(report.tally.is_clean(), "{:?}", report.tally.lines());
    let mut expected = vec![0; BLOCK];
    Stream::of(&super::block_key(BLOCK, 9), 0).fill(&mut expected);
    assert_eq!(cache.stored.borrow()[&id_of(9)], expected);
}

#[test]
fn blocks_on_disk_are_read_by_their_keys_each_to_its_own_place() {
    let cache = Pretended::default();
    assert_eq!(replay(&cache, &[&[1, 2, 3, 4, 5]]).hit_blocks, 0);
    for id in [1, 4] {
        cache.on_disk.borrow_mut().insert(HASHER.id(&super::block_key(BLOCK, id)));
    }
    let report = replay(&cache, &[&[1, 2, 3, 4, 5]]);
    assert_eq!((report.hit_blocks, report.disk_blocks), (5, 2));
    assert!(report.tally.is_clean());
}
