//! A disk that is full, broken, or gives other bytes than it was given.

use crate::disk::{Failing, Ram, Rng};
use crate::scene::{Clock, KINDS, Kind, Segment, content, is_saved, key, slab_options};
use nkv_ssd::Durability::{BestEffort, Persistent};
use nkv_ssd::slab::SlabOptions;
use nkv_ssd::{Engine, LoadError, Saved, SlabEngine, Storage};
use nkv_store::Key;
use std::io::ErrorKind;
use std::sync::Arc;

fn open(ram: &Ram, kind: Kind) -> Box<dyn Engine> {
    kind.open(Arc::new(ram.clone()), &Clock::new(), 8, Persistent).unwrap()
}

fn names(count: usize) -> Vec<Key> {
    (0..count).map(|number| key(&format!("key/{number}"))).collect()
}

fn fill(engine: &dyn Engine, segment: &Segment, names: &[Key]) {
    for name in names {
        assert!(is_saved(&segment.save(engine, name, &content(name, 1, 10_000))));
    }
}

#[test]
fn a_write_that_fails_is_an_error_and_the_next_one_goes_on() {
    for kind in KINDS {
        let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
        let engine = open(&ram, kind);
        let bytes = content(&name, 1, 10_000);
        for error in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::Other] {
            ram.fails(Failing { writes: Some(error), ..Failing::default() });
            let saved = segment.save(&*engine, &name, &bytes);
            assert!(matches!(saved, Saved::Error(_)), "{saved:?}");
            assert_eq!(engine.find(&name), None);
        }
        assert_eq!(engine.stats().save_fail, 3);
        ram.fails(Failing::default());
        assert!(is_saved(&segment.save(&*engine, &name, &bytes)));
        assert_eq!(segment.load(&*engine, &name).unwrap(), bytes);
    }
}

/// What was acknowledged after a sync that failed is there after a loss of power, whatever became
/// of the rest.
#[test]
fn i22_a_sync_that_fails_acknowledges_nothing_and_the_next_ones_hold() {
    for kind in KINDS {
        for fails in [(true, false), (false, true), (true, true)] {
            let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(6));
            let engine = open(&ram, kind);
            let save = |name: &Key| segment.save(&*engine, name, &content(name, 1, 10_000));
            assert!(is_saved(&save(&names[0])) && is_saved(&save(&names[1])));
            ram.fails(Failing { syncs: fails.0, names: fails.1, ..Failing::default() });
            let mut promised = Vec::new();
            for name in &names[2..4] {
                match save(name) {
                    Saved::Saved | Saved::Dedup => promised.push(name),
                    other => assert!(matches!(other, Saved::Error(_)), "{other:?}"),
                }
            }
            let removed = engine.remove(&[&names[0]]).is_ok();
            ram.fails(Failing::default());
            for name in &names[3..] {
                assert!(matches!(save(name), Saved::Saved | Saved::Dedup), "{kind:?}");
                promised.push(name);
            }
            let after = ram.after_the_crash(true, &mut Rng::new(1));
            drop(engine);
            let engine = open(&after, kind);
            promised.push(&names[1]);
            for name in promised {
                let read = segment.load(&*engine, name);
                assert!(read.is_ok(), "[I22] {kind:?} {fails:?}: {read:?}");
            }
            if removed {
                assert_eq!(engine.find(&names[0]), None, "[I6] {kind:?} {fails:?}");
            }
        }
    }
}

/// A new journal is begun, and its name cannot be synced.
#[test]
fn i22_lines_go_to_the_journal_that_the_next_start_reads() {
    let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(4));
    let engine = open(&ram, Kind::Slab);
    fill(&*engine, &segment, &names[..2]);
    ram.fails(Failing { syncs: true, ..Failing::default() });
    engine.remove(&[&names[0]]).unwrap_err();
    ram.fails(Failing { names: true, ..Failing::default() });
    // The broken journal is replaced, under a name that may be lost: nothing is acknowledged.
    let saved = segment.save(&*engine, &names[2], &content(&names[2], 1, 10_000));
    assert!(matches!(saved, Saved::Error(_)), "{saved:?}");
    ram.fails(Failing::default());
    fill(&*engine, &segment, &names[3..]);
    for power_lost in [false, true] {
        let after = ram.after_the_crash(power_lost, &mut Rng::new(2));
        let engine = open(&after, Kind::Slab);
        assert_eq!(engine.find(&names[0]), None, "[I6]");
        for name in [&names[1], &names[3]] {
            assert!(segment.load(&*engine, name).is_ok(), "[I22] power lost: {power_lost}");
        }
    }
}

#[test]
fn a_journal_that_cannot_be_written_does_not_empty_the_directory() {
    let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(700));
    let engine = open(&ram, Kind::Slab);
    fill(&*engine, &segment, &names);
    let before = engine.stats().objects;
    ram.fails(Failing { writes: Some(ErrorKind::StorageFull), ..Failing::default() });
    for _ in 0..1000 {
        let _ = engine.maintain();
        let saved = segment.save(&*engine, &key("new"), &content(&key("new"), 1, 10_000));
        assert!(matches!(saved, Saved::Error(_)), "{saved:?}");
    }
    let lost = before - engine.stats().objects;
    assert!(lost < before / 10, "{lost} of {before}");
}

#[test]
fn a_load_into_memory_that_is_not_there_leaves_the_object_on_disk() {
    for kind in KINDS {
        let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
        let engine = open(&ram, kind);
        fill(&*engine, &segment, std::slice::from_ref(&name));
        assert!(matches!(segment.load_at(&*engine, (1 << 20) - 64, &name), Err(LoadError::Io(_))));
        assert!(segment.load(&*engine, &name).is_ok(), "{kind:?}");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_dropped_and_can_be_saved_again() {
    for kind in KINDS {
        let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
        let engine = open(&ram, kind);
        let bytes = content(&name, 1, 10_000);
        assert!(is_saved(&segment.save(&*engine, &name, &bytes)));
        ram.fails(Failing { reads: true, ..Failing::default() });
        assert!(matches!(segment.load(&*engine, &name), Err(LoadError::Io(_))));
        ram.fails(Failing::default());
        assert_eq!(engine.find(&name), None);
        assert!(is_saved(&segment.save(&*engine, &name, &bytes)));
        assert_eq!(engine.stats().load_fail, 1);
    }
}

#[test]
fn i21_a_flipped_bit_in_a_record_is_never_served() {
    for (kind, files) in [(Kind::Slab, "slab-"), (Kind::Files, "")] {
        let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(20));
        let engine = open(&ram, kind);
        fill(&*engine, &segment, &names);
        ram.damage(files, |bytes| {
            // One bit in each 6,000 bytes: of some objects the header, of some the payload.
            (0..bytes.len()).step_by(6000).for_each(|at| bytes[at] ^= 4);
        });
        let mut damaged = 0;
        for name in &names {
            match segment.load(&*engine, name) {
                Ok(bytes) => assert!(bytes == content(name, 1, 10_000), "[I21] {kind:?}"),
                Err(LoadError::Corrupt(_)) => damaged += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(damaged > 10, "{damaged}");
        assert_eq!(engine.stats().load_corrupt, damaged);
        assert_eq!(engine.stats().objects, 20 - damaged);
    }
}

#[test]
fn i6_a_flipped_bit_in_the_journal_brings_nothing_back_that_was_removed() {
    for page in 0..60 {
        let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(20));
        let engine = open(&ram, Kind::Slab);
        fill(&*engine, &segment, &names);
        engine.remove(&names[..10].iter().collect::<Vec<_>>()).unwrap();
        fill(&*engine, &segment, &names[..5]);
        engine.remove(&[&names[0]]).unwrap();
        fill(&*engine, &segment, &names[..1]);
        drop(engine);
        ram.damage("journal-", |bytes| bytes[page * 4096 + 300] ^= 1);
        let engine = open(&ram, Kind::Slab);
        for name in &names[5..10] {
            assert_eq!(engine.find(name), None, "[I6] page {page}");
        }
        for name in &names {
            if engine.find(name).is_some() {
                assert_eq!(segment.load(&*engine, name).unwrap(), content(name, 1, 10_000));
            }
        }
    }
}

#[test]
fn a_disk_with_too_little_room_is_refused_with_the_numbers() {
    let ram = Ram::new();
    ram.has_free(10 << 20);
    let refused = Kind::Slab.open(Arc::new(ram), &Clock::new(), 8, BestEffort).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("8388608 bytes") && text.contains("10485760 are free"), "{text}");
}

#[test]
fn an_object_longer_than_a_slab_or_than_all_is_refused_and_nothing_goes_for_it() {
    for kind in KINDS {
        let (ram, segment, name) = (Ram::new(), Segment::new(16 << 20), key("k"));
        let engine = open(&ram, kind);
        fill(&*engine, &segment, &names(10));
        let saved = segment.save(&*engine, &name, &content(&name, 1, 9 << 20));
        let Saved::Error(error) = saved else { panic!("{saved:?}") };
        assert!(error.to_string().contains("no room for"), "{error}");
        assert_eq!((engine.stats().evicted, engine.stats().objects), (0, 10), "{kind:?}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_written() {
    for (slab_bytes, capacity_bytes) in [(0, 1 << 20), (10_000, 1 << 20), (2 << 20, 1 << 20)] {
        let ram = Ram::new();
        let options = SlabOptions {
            slab_bytes,
            capacity_bytes,
            ..slab_options(&Clock::new(), 8, Persistent)
        };
        let refused = SlabEngine::open(Arc::new(ram.clone()), options).unwrap_err();
        assert!(refused.to_string().contains("multiple of 4096"), "{refused}");
        assert_eq!(ram.list().unwrap(), Vec::<String>::new());
    }
}

/// A file that could not be removed must not be found at the next start, once a repeated removal
/// has succeeded.
#[test]
fn i6_a_removal_that_is_repeated_after_an_error_removes_the_file() {
    for all in [false, true] {
        let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
        let engine = open(&ram, Kind::Files);
        fill(&*engine, &segment, std::slice::from_ref(&name));
        let remove = || match all {
            true => engine.remove_all(),
            false => engine.remove(&[&name]),
        };
        ram.fails(Failing { removals: true, ..Failing::default() });
        remove().unwrap_err();
        assert_eq!(engine.find(&name), None);
        ram.fails(Failing::default());
        remove().unwrap();
        drop(engine);
        assert_eq!(open(&ram, Kind::Files).find(&name), None);
    }
}

/// Not the first one only, whichever that is.
#[test]
fn one_file_that_cannot_be_removed_keeps_no_other() {
    for stuck in 0..5 {
        let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(5));
        let engine = open(&ram, Kind::Files);
        fill(&*engine, &segment, &names);
        ram.fails(Failing { removals: true, ..Failing::default() });
        names.iter().for_each(|name| drop(engine.remove(&[name]).unwrap_err()));
        let used = engine.stats().used_bytes;
        assert!(used > 5 * 10_000, "they take room: {used}");
        ram.fails(Failing { removals_until_one_fails: Some(stuck), ..Failing::default() });
        engine.maintain().unwrap_err();
        ram.fails(Failing::default());
        assert_eq!(engine.stats().used_bytes, used / 5, "{stuck}");
        engine.maintain().unwrap();
        assert_eq!(engine.stats().used_bytes, 0);
    }
}

#[test]
fn a_panic_while_an_object_is_written_ends_its_save() {
    for kind in KINDS {
        let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
        let engine = open(&ram, kind);
        ram.fails(Failing { panics: true, ..Failing::default() });
        let save = || segment.save(&*engine, &name, &content(&name, 1, 10_000));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(save)).unwrap_err();
        ram.fails(Failing::default());
        assert!(is_saved(&save()), "{kind:?}: not Busy for good");
    }
}

#[test]
fn files_that_could_not_be_removed_count_until_they_are() {
    let (ram, segment, names) = (Ram::new(), Segment::new(1 << 20), names(3));
    let engine = open(&ram, Kind::Files);
    fill(&*engine, &segment, &names);
    ram.fails(Failing { removals: true, ..Failing::default() });
    engine.remove(&[&names[0]]).unwrap_err();
    // Saved again under the name of the file that stayed: that one is not removed later.
    fill(&*engine, &segment, &names[..1]);
    engine.remove(&[&names[1]]).unwrap_err();
    ram.fails(Failing::default());
    engine.maintain().unwrap();
    drop(engine);
    let engine = open(&ram, Kind::Files);
    let found: Vec<bool> = names.iter().map(|name| engine.find(name).is_some()).collect();
    assert_eq!(found, [true, false, true]);
}
