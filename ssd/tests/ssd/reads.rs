//! Large reads of a real file, by io_uring where the kernel has it and by `preadv`.

use crate::scene::{Clock, KINDS, Segment, content, is_saved, key};
use nkv_ssd::piece::Piece;
use nkv_ssd::storage::{Disk, Storage};
use nkv_ssd::{Durability, Engine, LoadError, Payload};
use nkv_store::{AnonMemory, Buffer, Key, OwnMemory};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

const BLOCK: usize = 4096;

/// A file of `blocks` blocks, each filled with another byte.
fn disks(blocks: usize) -> (tempfile::TempDir, Vec<Disk>) {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name);
    let disks = vec![
        Disk::open(&folder("a")).unwrap(),
        Disk::open(&folder("b")).unwrap().without_io_uring(),
    ];
    for disk in &disks {
        let file = disk.open("f", true).unwrap();
        let mut bytes = Buffer::new(blocks * BLOCK).unwrap();
        for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
            block.fill(number as u8);
        }
        file.write(0, &[Piece::of_buffer(&mut bytes)]).unwrap();
    }
    (dir, disks)
}

#[test]
fn every_length_is_read_whole_and_reported_from_its_start_on() {
    let (_dir, disks) = disks(700);
    assert_eq!(disks[1].reads_by(), "preadv");
    for disk in disks {
        let file = disk.open("f", false).unwrap();
        for payload in [0, 1, 63, 64, 127, 128, 129, 256, 320, 511, 650] {
            let mut buffer = Buffer::new((payload + 2) * BLOCK).unwrap();
            let (head, rest) = buffer.split_at_mut(BLOCK);
            let (payload_bytes, last) = rest.split_at_mut(payload * BLOCK);
            let mut pieces = [head, payload_bytes, last].map(Piece::of_buffer);
            let mut reported = Vec::new();
            file.read_along(7 * BLOCK as u64, &mut pieces, &mut |n| reported.push(n)).unwrap();
            assert!(reported.is_sorted(), "{reported:?}");
            assert_eq!(reported.last(), Some(&(((payload + 2) * BLOCK) as u64)));
            let whole = buffer.chunks(BLOCK).enumerate();
            whole.for_each(|(number, block)| {
                assert!(block.iter().all(|b| *b == (number + 7) as u8))
            });
        }
    }
}

#[test]
fn what_is_reported_is_there_already() {
    let (_dir, disks) = disks(512);
    for disk in disks {
        let file = disk.open("f", false).unwrap();
        let memory = nkv_store::AnonMemory::huge(512 * BLOCK as u64).unwrap();
        let mut pieces = [Piece::of_memory(&memory, 0, 512 * BLOCK).unwrap()];
        let mut checked = 0;
        let mut check = |bytes: u64| {
            for at in (checked..bytes).step_by(BLOCK) {
                let mut first = [0];
                nkv_store::Memory::read(&memory, at, &mut first).unwrap();
                assert_eq!(u64::from(first[0]), at / BLOCK as u64 % 256);
            }
            checked = bytes;
        };
        file.read_along(0, &mut pieces, &mut check).unwrap();
        assert_eq!(checked, 512 * BLOCK as u64);
    }
}

#[test]
fn a_file_that_ends_before_is_an_error() {
    let (_dir, disks) = disks(300);
    for disk in disks {
        let file = disk.open("f", false).unwrap();
        let mut buffer = Buffer::new(512 * BLOCK).unwrap();
        let mut reported = 0;
        let mut pieces = [Piece::of_buffer(&mut buffer)];
        let read = file.read_along(0, &mut pieces, &mut |bytes| reported = bytes);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(reported <= 300 * BLOCK as u64, "{reported}");
    }
}

#[test]
fn a_panic_in_the_middle_leaves_no_read_behind() {
    let (_dir, disks) = disks(700);
    for disk in disks {
        let file = disk.open("f", false).unwrap();
        let mut buffer = Buffer::new(700 * BLOCK).unwrap();
        let mut pieces = [Piece::of_buffer(&mut buffer)];
        let file = std::panic::AssertUnwindSafe(file);
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            file.read_along(0, &mut pieces, &mut |_| panic!("of the test"))
        }));
        assert!(read.is_err());
        // Nothing writes there any more, and the disk goes on.
        buffer.fill(1);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(buffer.iter().all(|byte| *byte == 1));
        let mut pieces = [Piece::of_buffer(&mut buffer)];
        file.read(0, &mut pieces).unwrap();
        assert_eq!(buffer[5 * BLOCK], 5);
    }
}

/// A buffer that its caller has alone is checked where its bytes lie.
#[test]
fn i21_what_is_loaded_into_a_buffer_of_its_own_is_whole_or_refused() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let storage = Arc::new(Disk::open(dir.path()).unwrap());
        let engine = kind.open(storage, &clock, 4, Durability::BestEffort).unwrap();
        let segment = Segment::new(1 << 20);
        let mut buffer = AnonMemory::huge(1 << 20).unwrap();
        let mut load = |engine: &dyn Engine, key: &Key, len: u64| {
            let own = OwnMemory::of(&mut buffer);
            let done = engine.load(key, Payload { memory: &own, offset: 0, len });
            done.map(|_| buffer.bytes(len as usize).to_vec())
        };
        let lengths = [0u64, 1, 4095, 4096, 5000, 262_144, 262_145, 600_001];
        for len in lengths {
            let name = key(&format!("{len}"));
            let bytes = content(&name, 1, len);
            assert!(is_saved(&segment.save(&*engine, &name, &bytes)));
            assert!(load(&*engine, &name, len).unwrap() == bytes, "{kind:?} {len}");
        }
        // A byte of the last chunk of the last one; a start would notice by itself.
        let damaged = content(&key("600001"), 1, 600_001)[599_900..600_000].to_vec();
        let mut flipped = 0;
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            let Some(at) = bytes.windows(damaged.len()).position(|w| w == damaged) else {
                continue;
            };
            bytes[at] ^= 1;
            OpenOptions::new().write(true).open(&path).unwrap().write_all(&bytes).unwrap();
            flipped += 1;
        }
        assert_eq!(flipped, 1, "{kind:?}");
        let error = load(&*engine, &key("600001"), 600_001).unwrap_err();
        assert!(matches!(error, LoadError::Corrupt(_)), "{kind:?}: {error}");
        assert!(load(&*engine, &key("262145"), 262_145).is_ok());
    }
}
