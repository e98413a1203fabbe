//! What both engines do, on a real directory.

use crate::scene::{
    Clock, DAY_S, KINDS, Kind, SLAB, Segment, content, is_saved, key, slab_options,
};
use nkv_ssd::Durability::{BestEffort, Persistent};
use nkv_ssd::{Disk, Engine, LoadError, Object, Payload, Saved, SlabEngine, SsdError};
use nkv_store::{AnonMemory, Key, Memory};
use std::path::Path;
use std::sync::Arc;

fn open(kind: Kind, path: &Path, clock: &Clock) -> Box<dyn Engine> {
    kind.open(Arc::new(Disk::open(path).unwrap()), clock, 8, BestEffort).unwrap()
}

#[test]
fn objects_of_any_length_are_read_as_they_were_saved_also_after_a_start() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let segment = Segment::new(1 << 20);
        let engine = open(kind, dir.path(), &clock);
        let lengths = [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145, 700_000];
        for len in lengths {
            let name = key(&format!("key of {len}"));
            assert!(is_saved(&segment.save(&*engine, &name, &content(&name, 1, len))), "{len}");
        }
        engine.sync().unwrap();
        drop(engine);
        let engine = open(kind, dir.path(), &clock);
        for len in lengths {
            let name = key(&format!("key of {len}"));
            assert_eq!(segment.load(&*engine, &name).unwrap(), content(&name, 1, len), "{kind:?}");
        }
        let (keys, _) = engine.keys(0, 100).unwrap();
        assert_eq!(keys.len(), lengths.len());
        assert_eq!(engine.validate().unwrap().missing_cleaned, 0);
    }
}

#[test]
fn payloads_that_no_disk_takes_from_where_they_lie_go_by_way_of_a_buffer() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(4 << 20), open(kind, dir.path(), &clock));
        let (name, bytes) = (key("k"), content(&key("k"), 1, 1_000_001));
        // A payload longer than one buffer, between blocks.
        let saved = segment.save_at(&*engine, 64, &name, &bytes);
        match kind {
            Kind::Slab => assert!(is_saved(&saved), "{saved:?}"),
            Kind::Files => assert!(is_saved(&saved)),
        }
        assert_eq!(segment.load_at(&*engine, 1_500_072, &name).unwrap(), bytes);
        assert_eq!(segment.load(&*engine, &name).unwrap(), bytes);
    }
}

#[test]
fn a_second_save_is_skipped_and_two_objects_of_one_key_are_refused_for_an_hour() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        let (name, first) = (key("k"), content(&key("k"), 1, 5000));
        assert!(is_saved(&segment.save(&*engine, &name, &first)));
        assert!(matches!(segment.save(&*engine, &name, &first), Saved::Dedup));
        let other = content(&name, 2, 6000);
        assert!(matches!(segment.save(&*engine, &name, &other), Saved::Collision));
        assert!(matches!(segment.load(&*engine, &name), Err(LoadError::NotFound)), "neither");
        clock.advance_s(3599);
        assert!(matches!(segment.save(&*engine, &name, &first), Saved::Collision));
        clock.advance_s(1);
        assert!(is_saved(&segment.save(&*engine, &name, &other)));
        assert_eq!(segment.load(&*engine, &name).unwrap(), other);
        let stats = engine.stats();
        assert_eq!((stats.save_success, stats.save_dedup_skip), (2, 1));
        assert_eq!((stats.hash_collision_detected, stats.objects), (2, 1));
    }
}

#[test]
fn another_layout_is_another_object() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let engine = open(Kind::Slab, dir.path(), &clock);
    let memory = AnonMemory::new(8192).unwrap();
    let payload = Payload { memory: &memory as &dyn Memory, offset: 0, len: 8192 };
    let name = key("k");
    let save = |layout| engine.save(&[Object { key: &name, layout, payload }]).pop().unwrap();
    assert!(is_saved(&save(7)));
    assert_eq!(engine.find(&name).map(|found| found.layout), Some(7));
    assert!(matches!(save(8), Saved::Collision));
}

#[test]
fn i6_what_was_removed_does_not_come_back_with_a_start() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        let (one, other) = (key("one"), key("other"));
        for name in [&one, &other] {
            assert!(is_saved(&segment.save(&*engine, name, &content(name, 1, 5000))));
        }
        assert_eq!(engine.remove(&[&one, &key("none")]).unwrap(), 1);
        drop(engine);
        let engine = open(kind, dir.path(), &clock);
        assert_eq!(engine.find(&one), None);
    }
}

#[test]
fn i6_all_can_be_removed_at_once_and_none_of_it_comes_back() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        let keys: Vec<_> = (0..50).map(|i| key(&format!("k/{i}"))).collect();
        for name in &keys {
            assert!(is_saved(&segment.save(&*engine, name, &content(name, 1, 5000))));
        }
        assert_eq!(engine.remove_all().unwrap(), 50);
        assert_eq!((engine.stats().objects, engine.remove_all().unwrap()), (0, 0));
        assert!(is_saved(&segment.save(&*engine, &keys[0], &content(&keys[0], 2, 6000))));
        engine.maintain().unwrap();
        drop(engine);
        let engine = open(kind, dir.path(), &clock);
        assert!(keys[1..].iter().all(|name| engine.find(name).is_none()));
        assert_eq!(engine.find(&keys[0]).map(|found| found.len), Some(6000));
    }
}

#[test]
fn what_nobody_used_for_the_time_to_live_is_removed_and_what_was_used_stays() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        let (used, unused) = (key("used"), key("unused"));
        for name in [&unused, &used] {
            assert!(is_saved(&segment.save(&*engine, name, &content(name, 1, 5000))));
        }
        // Used so often that no use is long after the one before.
        for _ in 0..5 * 24 * 4 {
            clock.advance_s(900);
            segment.load(&*engine, &used).unwrap();
        }
        engine.maintain().unwrap();
        clock.advance_s(3 * DAY_S);
        drop(engine);
        // Also over a start.
        let engine = open(kind, dir.path(), &clock);
        engine.maintain().unwrap();
        if kind == Kind::Slab {
            assert_eq!(engine.find(&unused), None, "{kind:?}");
            assert_eq!(engine.stats().expired, 1);
        }
        assert_eq!(segment.load(&*engine, &used).unwrap(), content(&used, 1, 5000));
    }
}

#[test]
fn the_capacity_is_obeyed_and_what_was_used_longest_ago_goes_first() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        let names: Vec<Key> = (0..200).map(|number| key(&format!("key/{number}"))).collect();
        for name in &names {
            let saved = segment.save(&*engine, name, &content(name, 1, 100_000));
            assert!(is_saved(&saved), "{saved:?}");
            assert!(segment.load(&*engine, &names[0]).is_ok(), "used all the time");
            let stats = engine.stats();
            assert!(stats.used_bytes <= stats.capacity_bytes && stats.capacity_bytes <= 8 * SLAB);
        }
        assert!(engine.stats().evicted > 100);
        assert_eq!(engine.find(&names[1]), None);
        assert_eq!(segment.load(&*engine, &names[199]).unwrap(), content(&names[199], 1, 100_000));
    }
}

#[test]
fn two_nodes_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = Disk::open(dir.path()).unwrap();
    let refused = Disk::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("another process uses"), "{refused}");
    drop(first);
    Disk::open(dir.path()).unwrap();
}

#[test]
fn a_directory_of_another_format_engine_or_no_sense_is_refused_and_left_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    drop(open(Kind::Slab, dir.path(), &clock));
    let description = dir.path().join("nkv-ssd.json");
    let good = std::fs::read_to_string(&description).unwrap();
    let refuses = |kind: Kind, text: &str| {
        std::fs::write(&description, format!("{text:<4096}")).unwrap();
        let storage = Arc::new(Disk::open(dir.path()).unwrap());
        let refused = kind.open(storage, &clock, 8, BestEffort).unwrap_err();
        assert!(matches!(refused, SsdError::Directory(_)), "{refused}");
        refused.to_string()
    };
    let older = refuses(Kind::Slab, &good.trim_end().replace("\"format\":1", "\"format\":0"));
    assert!(older.contains("format 0") && older.contains("move the directory away"), "{older}");
    let other = refuses(Kind::Files, good.trim_end());
    assert!(other.contains("engine slab"), "{other}");
    assert!(refuses(Kind::Slab, "{").contains("damaged"));
    std::fs::write(&description, good).unwrap();
    open(Kind::Slab, dir.path(), &clock);
}

#[test]
fn foreign_files_are_left_alone() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let foreign = [
            "notes.txt",
            "slab-x.dat",
            "slab-123.dat",
            "journal-zz",
            "journal-00000000000000AB",
            "journal-ffffffffffffffff",
            "journal-notes.tmp",
            "nkv-ssd.json.bak.tmp",
            "model.safetensors",
            "a.tmp",
        ];
        for name in foreign {
            std::fs::write(dir.path().join(name), "not ours").unwrap();
        }
        let (segment, engine) = (Segment::new(1 << 20), open(kind, dir.path(), &clock));
        assert!(is_saved(&segment.save(&*engine, &key("k"), b"ours")));
        drop(engine);
        let engine = open(kind, dir.path(), &clock);
        engine.maintain().unwrap();
        for name in foreign {
            assert!(dir.path().join(name).exists(), "{kind:?} removed {name}");
        }
    }
}

#[test]
fn slabs_follow_the_capacity_over_starts() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
    let segment = Segment::new(1 << 20);
    let with = |slabs| {
        let options = slab_options(&clock, slabs, Persistent);
        SlabEngine::open(Arc::new(Disk::open(dir.path()).unwrap()), options)
    };
    let engine = with(4).unwrap();
    let names: Vec<Key> = (0..30).map(|number| key(&format!("key/{number}"))).collect();
    for name in &names {
        assert!(is_saved(&segment.save(&engine, name, &content(name, 1, 100_000))));
    }
    drop(engine);
    let engine = with(2).unwrap();
    assert_eq!(engine.stats().capacity_bytes, 2 * SLAB);
    let left = names.iter().filter(|name| engine.find(name).is_some()).count();
    assert!((10..30).contains(&left), "{left}");
    for name in names.iter().filter(|name| engine.find(name).is_some()) {
        assert_eq!(segment.load(&engine, name).unwrap(), content(name, 1, 100_000));
    }
    drop(engine);
    assert_eq!(with(6).unwrap().stats().capacity_bytes, 6 * SLAB);
    let none = with(0).unwrap_err().to_string();
    assert!(none.contains("at least one slab"), "{none}");
}

#[test]
fn many_threads_save_load_and_remove_at_once() {
    for kind in KINDS {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::new());
        let storage = Arc::new(Disk::open(dir.path()).unwrap());
        let engine = &*kind.open(storage, &clock, 4, Persistent).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let segment = Segment::new(1 << 20);
                    for round in 0..60u64 {
                        let name = key(&format!("key/{}", (round + thread) % 3));
                        let bytes = content(&name, 1, 30_000);
                        match round % 5 {
                            4 => drop(engine.remove(&[&name]).unwrap()),
                            3 => match segment.load(engine, &name) {
                                Ok(read) => assert!(read == bytes, "[I21]"),
                                Err(LoadError::NotFound) => {}
                                Err(error) => panic!("{error}"),
                            },
                            _ => {
                                let saved = segment.save(engine, &name, &bytes);
                                assert!(!matches!(saved, Saved::Error(_)), "{saved:?}");
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(engine.validate().unwrap().missing_cleaned, 0);
    }
}
