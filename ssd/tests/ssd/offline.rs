//! Directories that no rank uses: a check leaves them as they are.

use crate::disk::{Failing, Ram};
use crate::scene::{Clock, KINDS, Kind, SLAB, Segment, content, is_saved, key, slab_options};
use nkv_ssd::Durability::Persistent;
use nkv_ssd::offline::{self, Access};
use nkv_ssd::storage::{Disk, Untouched};
use nkv_ssd::{Engine, Payload, SlabEngine};
use nkv_store::{AnonMemory, Key};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OBJECTS: usize = 24;

fn names() -> Vec<Key> {
    (0..OBJECTS).map(|number| key(&format!("key/{number}"))).collect()
}

/// Objects on three slabs.
fn filled(dir: &Path, kind: Kind) {
    let disk = Arc::new(Disk::open(dir).unwrap());
    let engine = kind.open(disk, &Clock::new(), 4, Persistent).unwrap();
    let segment = Segment::new(1 << 20);
    for name in names() {
        assert!(is_saved(&segment.save(&*engine, &name, &content(&name, 1, 100_000))));
    }
}

/// Every file with its bytes.
fn bytes_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn open(dir: &Path, access: Access) -> Box<dyn Engine> {
    offline::open(dir, access, Clock::new().wall()).unwrap()
}

/// Objects that are whole, of those that are found.
fn whole(engine: &dyn Engine) -> usize {
    let memory = AnonMemory::new(1 << 20).unwrap();
    let is_whole = |name: &&Key| {
        let found = engine.find(name);
        let into = |len| Payload { memory: &memory, offset: 0, len };
        found.is_some_and(|found| engine.verify(name, into(found.len)).is_ok())
    };
    names().iter().filter(is_whole).count()
}

fn slab(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("slab-{number:05}.dat"))
}

#[test]
fn a_slab_that_is_missing_costs_its_objects_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), Kind::Slab);
    assert_eq!(whole(&*open(dir.path(), Access::Read)), OBJECTS);
    std::fs::remove_file(slab(dir.path(), 1)).unwrap();
    std::fs::write(dir.path().join("slab-x.dat"), "of somebody else").unwrap();
    let before = bytes_of(dir.path());
    let engine = open(dir.path(), Access::Read);
    let left = whole(&*engine);
    assert!((OBJECTS / 2..OBJECTS).contains(&left), "{left}");
    // What cannot be read is not listed, and all the rest is.
    let (keys, _) = engine.keys(0, 100).unwrap();
    assert_eq!(keys.len(), left);
    drop(engine);
    assert_eq!(bytes_of(dir.path()), before, "a check changes nothing");
    let engine = open(dir.path(), Access::Change);
    assert_eq!(whole(&*engine), left);
    assert!(slab(dir.path(), 3).exists());
}

#[test]
fn a_check_sees_damage_of_the_journal_and_of_headers_and_changes_nothing() {
    for (kind, prefix) in [(Kind::Slab, "journal-"), (Kind::Files, "")] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), kind);
        let suffix = if kind == Kind::Slab { "" } else { ".safetensors" };
        let is_one = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(prefix) && name.ends_with(suffix) && name.len() > 10
        };
        let damaged = bytes_of(dir.path()).keys().find(is_one).unwrap().clone();
        let mut bytes = std::fs::read(&damaged).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&damaged, bytes).unwrap();
        let before = bytes_of(dir.path());
        for _ in 0..2 {
            let engine = open(dir.path(), Access::Read);
            let stats = engine.stats();
            let seen = stats.stale_index_cleaned + stats.journal_pages_damaged;
            assert!(seen > 0, "{kind:?} {stats:?}");
            assert!(kind == Kind::Slab || whole(&*engine) == OBJECTS - 1);
            engine.maintain().unwrap();
            engine.sync().unwrap();
        }
        assert_eq!(bytes_of(dir.path()), before, "{kind:?}");
    }
}

/// A start says so, too, and goes on without the objects: which of them were removed is not known.
#[test]
fn i6_a_journal_that_is_missing_or_empty_counts_as_damaged() {
    for is_empty in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), Kind::Slab);
        assert_eq!(open(dir.path(), Access::Read).stats().journal_pages_damaged, 0);
        let is_one = |path: &&PathBuf| path.to_string_lossy().contains("journal-");
        let journal = bytes_of(dir.path()).keys().find(is_one).unwrap().clone();
        match is_empty {
            true => std::fs::write(&journal, "").unwrap(),
            false => std::fs::remove_file(&journal).unwrap(),
        }
        for access in [Access::Read, Access::Change] {
            let engine = open(dir.path(), access);
            let stats = engine.stats();
            assert_eq!((stats.journal_pages_damaged, stats.objects), (1, 0), "{is_empty}");
        }
        assert_eq!(open(dir.path(), Access::Read).stats().journal_pages_damaged, 0);
    }
}

/// A start that was refused, for want of room, or killed before it made a journal, lost nothing.
#[test]
fn a_directory_that_no_start_has_finished_lost_nothing() {
    for left in ["the description", "a part of its slabs"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), Kind::Slab);
        let cut = |path: &Path| std::fs::File::create(path).unwrap().set_len(4096).unwrap();
        for path in bytes_of(dir.path()).keys() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match left {
                _ if name.starts_with("journal-") => std::fs::remove_file(path).unwrap(),
                "the description" if name.starts_with("slab-") => {
                    std::fs::remove_file(path).unwrap()
                }
                _ if name == "slab-00002.dat" => cut(path),
                _ => {}
            }
        }
        for access in [Access::Read, Access::Change] {
            assert_eq!(open(dir.path(), access).stats().journal_pages_damaged, 0, "{left}");
        }
    }
}

#[test]
fn i6_a_journal_whose_directory_lost_its_description_counts_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), Kind::Slab);
    std::fs::remove_file(dir.path().join(nkv_ssd::directory::DESCRIPTION)).unwrap();
    let disk = Arc::new(Disk::open(dir.path()).unwrap());
    let engine = Kind::Slab.open(disk, &Clock::new(), 4, Persistent).unwrap();
    assert_eq!((engine.stats().journal_pages_damaged, engine.stats().objects), (1, 0));
}

#[test]
fn what_is_done_to_an_untouched_directory_is_not_done() {
    for kind in KINDS {
        let ram = Ram::new();
        let segment = Segment::new(1 << 20);
        let (name, other) = (key("k"), key("other"));
        let open = |storage| kind.open(storage, &Clock::new(), 4, Persistent).unwrap();
        let engine = open(Arc::new(ram.clone()));
        assert!(is_saved(&segment.save(&*engine, &name, &content(&name, 1, 1000))));
        drop(engine);
        let engine = open(Arc::new(Untouched(Arc::new(ram.clone()))));
        engine.remove(&[&name]).unwrap();
        segment.save(&*engine, &other, &content(&other, 1, 1000));
        engine.remove_all().unwrap();
        engine.sync().unwrap();
        drop(engine);
        let engine = open(Arc::new(ram));
        assert_eq!(segment.load(&*engine, &name).unwrap(), content(&name, 1, 1000), "{kind:?}");
        assert!(engine.find(&other).is_none());
    }
}

/// Otherwise one bad sector would stop each removal by pattern, and each repair.
#[test]
fn i6_a_header_that_the_disk_does_not_give_is_dropped_and_the_rest_goes_on() {
    for kind in KINDS {
        let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names());
        let engine = kind.open(Arc::new(ram.clone()), &Clock::new(), 8, Persistent).unwrap();
        for name in &names {
            assert!(is_saved(&segment.save(&*engine, name, &content(name, 1, 10_000))));
        }
        ram.fails(Failing { reads: true, ..Failing::default() });
        let (keys, next) = engine.keys(0, 4).unwrap();
        assert!(keys.is_empty() && next == Some(4), "{kind:?} {keys:?}");
        ram.fails(Failing::default());
        // Not found, so that a removal of what it may have been holds.
        let found: Vec<bool> = names[..4].iter().map(|name| engine.find(name).is_some()).collect();
        assert_eq!(found, [false; 4], "{kind:?}");
        let (keys, _) = engine.keys(0, 100).unwrap();
        assert_eq!(keys.len(), names.len() - 4);
    }
}

#[test]
fn a_directory_with_no_slab_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::open(dir.path()).unwrap());
    drop(SlabEngine::open(disk, slab_options(&Clock::new(), 2, Persistent)).unwrap());
    (0..2).for_each(|number| std::fs::remove_file(slab(dir.path(), number)).unwrap());
    let engine = open(dir.path(), Access::Read);
    assert_eq!((engine.stats().objects, engine.stats().capacity_bytes), (0, SLAB));
}
