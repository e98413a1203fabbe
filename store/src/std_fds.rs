//! Which of stdin, stdout and stderr were closed when this process began. Before `main` the runtime
//! opens /dev/null in their place, and what is written there is lost: so it is asked earlier.

use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each of the three.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Whether descriptor 0, 1 or 2 was closed; false for any other.
pub fn was_closed(fd: u8) -> bool {
    fd < 3 && CLOSED.load(Ordering::Relaxed) & (1 << fd) != 0
}

extern "C" fn check() {
    for fd in 0..3u8 {
        // SAFETY: asks for the flags of a number; it touches no memory, and a descriptor that is
        // not open is what it is asked about.
        let flags = unsafe { libc::fcntl(i32::from(fd), libc::F_GETFD) };
        if flags < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: an entry of this section is a function of the C calling convention, called once before
// `main`; this one takes no lock, allocates nothing, and does not unwind.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK: extern "C" fn() = check;

#[cfg(test)]
mod tests {
    use super::was_closed;

    #[test]
    fn streams_that_are_open_are_not_said_to_be_closed() {
        assert!(!was_closed(1) && !was_closed(2) && !was_closed(3));
    }
}
