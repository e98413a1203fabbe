//! Immutable bytes that clones share, behind a pointer of eight bytes. A master and an owner hold
//! millions of key strings: an `Arc<[u8]>` takes 16 bytes more for each, and its pointer 8 more.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// What the pointer leads to; the bytes follow it.
struct Head {
    holders: AtomicU32,
    len: u16,
}

/// Most holders of one allocation, as of an `Arc`: beyond it the count could wrap.
const MAX_HOLDERS: u32 = u32::MAX / 2;

/// See the file's first paragraph.
///
/// Invariant: `0` was returned by [`ThinBytes::new`], whose allocation has a `Head` followed by
/// `len` initialised bytes, and `holders` counts the values that have this pointer. Nothing writes
/// to it but `holders`.
pub(super) struct ThinBytes(NonNull<Head>);

// SAFETY: by the invariant nothing but an atomic count changes, so all threads may read it; the
// last holder frees it, on whichever thread.
unsafe impl Send for ThinBytes {}
// SAFETY: as above.
unsafe impl Sync for ThinBytes {}

fn layout(len: u16) -> Layout {
    match Layout::from_size_align(size_of::<Head>() + usize::from(len), align_of::<Head>()) {
        Ok(layout) => layout,
        Err(_) => unreachable!("64 KiB are within every limit of an allocation"),
    }
}

impl ThinBytes {
    /// A copy of the bytes; None if there are 64 KiB or more.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let len = u16::try_from(bytes.len()).ok()?;
        let layout = layout(len);
        // SAFETY: the layout has the size of a `Head` at least, so not 0.
        let allocated = unsafe { alloc(layout) }.cast::<Head>();
        let Some(head) = NonNull::new(allocated) else { handle_alloc_error(layout) };
        // SAFETY: the allocation has room for a `Head` at its alignment and for `len` bytes behind
        // it, and nobody else has it.
        unsafe {
            head.write(Head { holders: AtomicU32::new(1), len });
            head.add(1)
                .cast::<u8>()
                .copy_from_nonoverlapping(NonNull::from(bytes).cast::<u8>(), bytes.len());
        }
        Some(Self(head))
    }

    fn head(&self) -> &Head {
        // SAFETY: by the invariant it is initialised and lives as long as `self`.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        let len = usize::from(self.head().len);
        // SAFETY: by the invariant so many initialised bytes follow the head, live as long as
        // `self` and do not change.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(1).cast::<u8>(), len) }
    }
}

impl Clone for ThinBytes {
    fn clone(&self) -> Self {
        // Relaxed, as of an `Arc`: whoever clones holds it already.
        if self.head().holders.fetch_add(1, Ordering::Relaxed) > MAX_HOLDERS {
            // As an `Arc` does. Unwinding would leave the count as it is.
            std::process::abort();
        }
        Self(self.0)
    }
}

impl Drop for ThinBytes {
    fn drop(&mut self) {
        let layout = layout(self.head().len);
        if self.head().holders.fetch_sub(1, Ordering::Release) == 1 {
            // Reads by the other holders happened before the memory is given back.
            fence(Ordering::Acquire);
            // SAFETY: this was the last holder, and the layout is that of `new`.
            unsafe { dealloc(self.0.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back_and_64_kib_are_refused() {
        for len in (0..70).chain([1024, usize::from(u16::MAX)]) {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let kept = ThinBytes::new(&bytes).unwrap();
            let again = kept.clone();
            drop(kept);
            assert_eq!(again.as_slice(), bytes);
        }
        assert!(ThinBytes::new(&vec![0; 1 << 16]).is_none());
        assert_eq!(size_of::<Option<ThinBytes>>(), 8);
        assert_eq!(size_of::<Head>(), 8);
    }

    #[test]
    fn the_last_holder_gives_the_memory_back() {
        let resident_pages = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
        };
        let (bytes, before) = (vec![1; usize::from(u16::MAX)], resident_pages());
        for _ in 0..8192 {
            let kept = ThinBytes::new(&bytes).unwrap();
            drop(kept.clone());
        }
        // 512 MiB in pages of 4 KiB; tests beside this one take some, too.
        assert!(resident_pages() < before + (64 << 20 >> 12));
    }

    #[test]
    fn holders_are_counted_by_any_thread() {
        let kept = ThinBytes::new(b"shared").unwrap();
        let holders = |of: &ThinBytes| of.head().holders.load(Ordering::Relaxed);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..1_000 {
                        let more = kept.clone();
                        assert_eq!(more.as_slice(), b"shared");
                    }
                });
            }
        });
        assert_eq!(holders(&kept), 1);
        let second = kept.clone();
        assert_eq!((holders(&kept), second.as_slice().as_ptr()), (2, kept.as_slice().as_ptr()));
    }
}
