//! Records in which process a value was made. A child made by fork has copies of its parent's
//! values, but their files, sockets and queue pairs are shared with the parent, its runtime has no
//! threads, and segments are not mapped there (MADV_DONTFORK). So a handle returns an error instead
//! of crashing, and dropping a value in a child touches nothing outside the child.

use crate::memory::AnonMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Error text of a handle used in a forked child.
pub const MESSAGE: &str = "this process was forked from the one that created this nkv handle, and \
                           has neither its memory nor its connections: connect again in the \
                           child, or start it by exec (Python: multiprocessing's \"spawn\")";

/// A word that the kernel clears in a forked child; after that it holds the child's number. None
/// before Linux 4.14.
static NUMBER: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(wiped_on_fork);
/// The last number that this process or an ancestor took: a child continues from it.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process in which a value was made: this one, or an ancestor that forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMark(u64);

impl ProcessMark {
    /// This process.
    pub fn here() -> Self {
        Self(number())
    }

    /// False in a child forked since. Costs one load.
    #[inline]
    pub fn is_here(self) -> bool {
        number() == self.0
    }
}

/// A value whose drop affects what the process shares with its children: dropped in the process
/// that made it, leaked in a child.
#[derive(Debug)]
pub struct OwnProcessOnly<T> {
    value: ManuallyDrop<T>,
    made: ProcessMark,
}

impl<T> OwnProcessOnly<T> {
    /// A value made by this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), made: ProcessMark::here() }
    }

    /// The value; None in a child, where it is leaked.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is not used or dropped after it.
        this.made.is_here().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

impl<T> Deref for OwnProcessOnly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OwnProcessOnly<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OwnProcessOnly<T> {
    fn drop(&mut self) {
        if self.made.is_here() {
            // SAFETY: dropped here and nowhere else, and nobody has `self` after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[inline]
fn number() -> u64 {
    match *NUMBER {
        Some(word) => match word.load(Ordering::Relaxed) {
            0 => take_number(word),
            number => number,
        },
        None => u64::from(std::process::id()),
    }
}

#[cold]
fn take_number(word: &AtomicU64) -> u64 {
    // Above the numbers of all processes from which values in this one may come.
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(taken) => taken,
    }
}

fn wiped_on_fork() -> Option<&'static AtomicU64> {
    use rustix::mm::{Advice, madvise};
    const PAGE: usize = 4096;
    let page = AnonMap::new(PAGE).ok()?;
    let at = page.base().as_ptr();
    // SAFETY: the page just mapped, which holds nothing yet.
    unsafe { madvise(at.cast(), PAGE, Advice::LinuxWipeOnFork) }.ok()?;
    // Never unmapped.
    std::mem::forget(page);
    // SAFETY: mapped for ever, aligned, zero, and accessed atomically alone.
    Some(unsafe { AtomicU64::from_ptr(at.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends by a status: 7 if it was dropped.
    struct Ends;

    impl Drop for Ends {
        fn drop(&mut self) {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(7) };
        }
    }

    fn status_of_child(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls nothing but loads, stores and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = child();
            // SAFETY: as above.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_forked_child_knows_what_was_made_in_which_process() {
        let made = ProcessMark::here();
        assert!(made.is_here());
        let status = status_of_child(|| {
            let own = ProcessMark::here();
            let known = !made.is_here() && own.is_here() && own != made;
            // And so does a child of the child, of both.
            let below = status_of_child(|| i32::from(made.is_here() || own.is_here()));
            i32::from(!known || below != 0)
        });
        assert_eq!(status, 0, "the child has its parent's mark");
        assert!(made.is_here());
    }

    #[test]
    fn what_is_of_its_process_ends_there_and_nowhere_else() {
        let mut held = Some(OwnProcessOnly::new(Ends));
        let parents = status_of_child(|| {
            drop(held.take());
            3
        });
        // Not here either: the test would end with it.
        std::mem::forget(held);
        assert_eq!(parents, 3, "the child dropped what is its parent's");
        let own = status_of_child(|| {
            drop(OwnProcessOnly::new(Ends));
            3
        });
        assert_eq!(own, 7, "the child did not drop its own");
    }
}
