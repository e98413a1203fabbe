//! Whether this process is a fork of the one that loaded nkv. Segments are not mapped in a child made
//! by fork (MADV_DONTFORK), its runtime has no threads and its connections are its parent's: a handle
//! must say so instead of crashing.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// What a handle says in such a child.
pub const MESSAGE: &str = "this process was forked from the one that made this nkv handle, whose memory and connections it \
     does not have: connect anew in the child, or start it by exec (Python: multiprocessing's \
     \"spawn\")";

/// A byte that is 1 in the process that made it and 0 in its forked children.
static MARK: LazyLock<&'static AtomicU8> = LazyLock::new(mark);

/// True in a child made by fork after the first call in its parent. One load.
#[inline]
pub fn is_child() -> bool {
    MARK.load(Ordering::Relaxed) == 0
}

/// Remembers that it is this process in which handles are made. Called when one is.
pub fn mark_here() {
    LazyLock::force(&MARK);
}

fn mark() -> &'static AtomicU8 {
    match wiped_on_fork() {
        Some(byte) => byte,
        // Before Linux 4.14: no fork is ever noticed, as before.
        None => Box::leak(Box::new(AtomicU8::new(1))),
    }
}

fn wiped_on_fork() -> Option<&'static AtomicU8> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE: usize = 4096;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice; never unmapped.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) }
        .ok()?;
    // SAFETY: the page just mapped, which holds nothing yet.
    unsafe { madvise(at, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: mapped for ever, aligned, and accessed atomically alone.
    let byte = unsafe { AtomicU8::from_ptr(at.cast()) };
    byte.store(1, Ordering::Relaxed);
    Some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_knows_that_it_is_one() {
        mark_here();
        assert!(!is_child());
        // SAFETY: the child calls nothing but an atomic load and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(is_child())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), 1, "the child took itself for its parent");
        assert!(!is_child());
    }
}
