//! A disk that is full, broken, or gives other bytes than it was given.

use crate::disk::{Failing, Ram, Rng};
use crate::scene::{Clock, KINDS, Kind, Segment, content, is_saved, key};
use nkv_ssd::slab::Durability::{BestEffort, Persistent};
use nkv_ssd::{Engine, LoadError, Saved};
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

#[test]
fn i22_a_sync_that_fails_acknowledges_nothing() {
    let (ram, segment, name) = (Ram::new(), Segment::new(1 << 20), key("k"));
    let engine = open(&ram, Kind::Slab);
    ram.fails(Failing { syncs: true, ..Failing::default() });
    let saved = segment.save(&*engine, &name, &content(&name, 1, 10_000));
    assert!(matches!(saved, Saved::Error(_)), "{saved:?}");
    let again = segment.save(&*engine, &name, &content(&name, 1, 10_000));
    assert!(matches!(again, Saved::Error(_)), "there, and not for good: {again:?}");
    ram.fails(Failing::default());
    let there = segment.save(&*engine, &name, &content(&name, 1, 10_000));
    assert!(matches!(there, Saved::Dedup), "{there:?}");
    let after = ram.after_the_crash(true, &mut Rng::new(1));
    assert!(open(&after, Kind::Slab).find(&name).is_some(), "[I22]");
    engine.maintain().unwrap();
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
fn an_object_longer_than_a_slab_is_refused() {
    let (ram, segment, name) = (Ram::new(), Segment::new(4 << 20), key("k"));
    let engine = open(&ram, Kind::Slab);
    let saved = segment.save(&*engine, &name, &content(&name, 1, 2 << 20));
    let Saved::Error(error) = saved else { panic!("{saved:?}") };
    assert!(error.to_string().contains("no room for"), "{error}");
    assert_eq!(engine.stats().evicted, 0);
}
