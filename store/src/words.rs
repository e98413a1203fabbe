//! The memory orders of every access to a segment are chosen here and nowhere else. Generic over
//! the words, the real atomics of a mapping or those of a model checker, so that a model runs the
//! same code as production. Does not interpret headers or states.

use crate::error::StoreError;
use std::sync::atomic::Ordering;

/// Aligned copies up to this many bytes are done word by word, each one atomic access: headers and
/// ring records are never seen with half a word changed [I1].
pub const WORDWISE_BYTES: usize = 64;

/// Raw access to the words and bytes of one region, with the order that the caller passes. Offsets
/// are bytes from its start. Callers use the functions of this module instead, which fix the
/// orders.
pub trait Words {
    /// `OutOfBounds` unless `len` bytes at `offset` are inside.
    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), StoreError>;
    /// Loads an aligned word.
    fn load_word(&self, offset: u64, order: Ordering) -> Result<u64, StoreError>;
    /// Stores an aligned word.
    fn store_word(&self, offset: u64, value: u64, order: Ordering) -> Result<(), StoreError>;
    /// Replaces an aligned word that equals `expect`, in order `done`, else loads it in order
    /// `failed`. Returns the word found.
    fn swap_word(
        &self,
        offset: u64,
        expect: u64,
        new: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, StoreError>;
    /// Adds to an aligned word; returns the word before.
    fn add_word(&self, offset: u64, add: u64, order: Ordering) -> Result<u64, StoreError>;
    /// Copies out, without ordering.
    fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError>;
    /// Copies in, without ordering.
    fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), StoreError>;
    /// A fence among the accesses above.
    fn fence(&self, order: Ordering);
    /// A hint to the hardware that these bytes will be read soon; changes nothing.
    fn prefetch(&self, _: u64, _: u64) {}
}

/// Loads a word: nothing read afterwards is older than what its writer had written before it.
#[inline]
pub fn load<W: Words + ?Sized>(words: &W, offset: u64) -> Result<u64, StoreError> {
    words.load_word(offset, Ordering::Acquire)
}

/// Stores a word: a reader that sees it sees everything written before it [I4].
#[inline]
pub fn store<W: Words + ?Sized>(words: &W, offset: u64, value: u64) -> Result<(), StoreError> {
    words.store_word(offset, value, Ordering::Release)
}

/// Compare-and-swap with the guarantees of both `load` and `store`; returns the word found.
#[inline]
pub fn compare_swap<W: Words + ?Sized>(
    words: &W,
    offset: u64,
    expect: u64,
    new: u64,
) -> Result<u64, StoreError> {
    words.swap_word(offset, expect, new, Ordering::AcqRel, Ordering::Acquire)
}

/// Fetch-and-add with the guarantees of both `load` and `store`; returns the word before.
#[inline]
pub fn fetch_add<W: Words + ?Sized>(words: &W, offset: u64, add: u64) -> Result<u64, StoreError> {
    words.add_word(offset, add, Ordering::AcqRel)
}

/// Copies out: nothing read afterwards is older than what the writers of these bytes had written
/// before them. The second header check of a reader relies on it [I7].
#[inline]
pub fn read<W: Words + ?Sized>(words: &W, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
    if wordwise(offset, dst.len()) {
        words.check("read", offset, dst.len() as u64)?;
        for (at, word) in (offset..).step_by(8).zip(dst.chunks_exact_mut(8)) {
            word.copy_from_slice(&load(words, at)?.to_ne_bytes());
        }
        return Ok(());
    }
    words.copy_out(offset, dst)?;
    words.fence(Ordering::Acquire);
    Ok(())
}

/// Copies in: none of the bytes is visible before a word stored earlier [I7], and a reader that
/// sees a word stored later sees them all [I4].
#[inline]
pub fn write<W: Words + ?Sized>(words: &W, offset: u64, src: &[u8]) -> Result<(), StoreError> {
    words.fence(Ordering::Release);
    if wordwise(offset, src.len()) {
        words.check("write", offset, src.len() as u64)?;
        for (at, chunk) in (offset..).step_by(8).zip(src.chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            store(words, at, u64::from_ne_bytes(word))?;
        }
        return Ok(());
    }
    words.copy_in(offset, src)
}

/// Every access before it is complete before any access after it; all such fences have one total
/// order.
#[inline]
pub fn flush<W: Words + ?Sized>(words: &W) {
    words.fence(Ordering::SeqCst);
}

fn wordwise(offset: u64, len: usize) -> bool {
    len <= WORDWISE_BYTES && len.is_multiple_of(8) && offset.is_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::{Words, compare_swap, fetch_add, flush, load, read, store, write};
    use crate::error::StoreError;
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

    /// One access as it was asked for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Access {
        Word(Ordering),
        Fence(Ordering),
        Copy,
    }

    /// Words that hold nothing and remember how they were accessed.
    #[derive(Default)]
    struct Recorder(RefCell<Vec<Access>>);

    impl Recorder {
        fn note(&self, access: Access) -> Result<u64, StoreError> {
            self.0.borrow_mut().push(access);
            Ok(0)
        }

        fn taken(&self) -> Vec<Access> {
            std::mem::take(&mut self.0.borrow_mut())
        }
    }

    impl Words for Recorder {
        fn check(&self, _: &'static str, _: u64, _: u64) -> Result<(), StoreError> {
            Ok(())
        }
        fn load_word(&self, _: u64, order: Ordering) -> Result<u64, StoreError> {
            self.note(Access::Word(order))
        }
        fn store_word(&self, _: u64, _: u64, order: Ordering) -> Result<(), StoreError> {
            self.note(Access::Word(order)).map(drop)
        }
        fn swap_word(
            &self,
            _: u64,
            _: u64,
            _: u64,
            done: Ordering,
            failed: Ordering,
        ) -> Result<u64, StoreError> {
            self.note(Access::Word(done))?;
            self.note(Access::Word(failed))
        }
        fn add_word(&self, _: u64, _: u64, order: Ordering) -> Result<u64, StoreError> {
            self.note(Access::Word(order))
        }
        fn copy_out(&self, _: u64, _: &mut [u8]) -> Result<(), StoreError> {
            self.note(Access::Copy).map(drop)
        }
        fn copy_in(&self, _: u64, _: &[u8]) -> Result<(), StoreError> {
            self.note(Access::Copy).map(drop)
        }
        fn fence(&self, order: Ordering) {
            self.0.borrow_mut().push(Access::Fence(order));
        }
    }

    #[test]
    fn i5_no_word_is_accessed_relaxed_and_copies_of_payload_lie_inside_fences() {
        let words = Recorder::default();
        load(&words, 0).unwrap();
        store(&words, 0, 1).unwrap();
        compare_swap(&words, 0, 1, 2).unwrap();
        fetch_add(&words, 0, 1).unwrap();
        read(&words, 0, &mut [0; 64]).unwrap();
        write(&words, 0, &[0; 64]).unwrap();
        flush(&words);
        let header = words.taken();
        assert_eq!(header.iter().filter(|a| matches!(a, Access::Word(_))).count(), 5 + 8 + 8);
        for relaxed in [Access::Word(Ordering::Relaxed), Access::Fence(Ordering::Relaxed)] {
            assert!(!header.contains(&relaxed), "{header:?}");
        }
        assert!(!header.contains(&Access::Copy), "a header is never copied as bytes: {header:?}");

        read(&words, 0, &mut [0; 65]).unwrap();
        assert_eq!(words.taken(), [Access::Copy, Access::Fence(Ordering::Acquire)]);
        write(&words, 0, &[0; 65]).unwrap();
        assert_eq!(words.taken(), [Access::Fence(Ordering::Release), Access::Copy]);
    }
}
