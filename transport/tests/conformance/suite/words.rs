//! Words: atomics, compare-and-swap, and headers that are never read with half a word changed.

use crate::fixtures::{Fixture, TOKEN};
use nkv_store::threads::spawn_named;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn i1_atomics_of_four_threads_add_up(f: Fixture) {
    const EACH: u64 = 500;
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let verbs = f.verbs.clone();
            spawn_named("adder", move || {
                let mut seen = Vec::new();
                for _ in 0..EACH {
                    seen.push(verbs.fetch_add(TOKEN, 64, t + 1).unwrap());
                    // A counter by compare-and-swap beside it.
                    let mut now = verbs.load(128).unwrap();
                    loop {
                        match verbs.compare_swap(TOKEN, 128, now, now + 1).unwrap() {
                            found if found == now => break,
                            found => now = found,
                        }
                    }
                }
                seen
            })
            .unwrap()
        })
        .collect();
    let mut seen: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    assert_eq!(f.memory.load(64).unwrap(), EACH * (1 + 2 + 3 + 4));
    assert_eq!(f.memory.load(128).unwrap(), EACH * 4);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u64, EACH * 4, "two additions found the same word");
}

pub fn i1_words_written_beside_each_other_are_never_torn(f: Fixture) {
    // Every word of the header always has eight equal bytes.
    let done = Arc::new(AtomicBool::new(false));
    let (verbs, d) = (f.verbs.clone(), done.clone());
    let writer = spawn_named("writer", move || {
        for i in 0..2_000u32 {
            verbs.write(TOKEN, 4096, &[i as u8; 64]).unwrap();
            verbs.write(TOKEN, 4096 + 32, &[!i as u8; 8]).unwrap();
        }
        d.store(true, Ordering::SeqCst);
    })
    .unwrap();
    while !done.load(Ordering::SeqCst) {
        let mut header = [0; 64];
        f.verbs.read(4096, &mut header).unwrap();
        for word in header.chunks(8) {
            assert!(word.iter().all(|b| *b == word[0]), "{header:?}");
        }
    }
    writer.join().unwrap();
}

pub fn compare_swap_returns_what_it_found(f: Fixture) {
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 1, 2).unwrap(), 0);
    assert_eq!(f.memory.load(8).unwrap(), 0, "a failed swap changed the word");
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 0, u64::MAX).unwrap(), 0);
    assert_eq!(f.verbs.compare_swap(TOKEN, 8, 0, 1).unwrap(), u64::MAX);
    assert_eq!(f.verbs.fetch_add(TOKEN, 8, 3).unwrap(), u64::MAX);
    assert_eq!(f.verbs.load(8).unwrap(), 2);
}
