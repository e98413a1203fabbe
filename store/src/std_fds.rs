//! Which of stdin, stdout and stderr were closed when this process started. Before `main` the
//! runtime opens /dev/null in their place, and what is written there is lost, so the check runs
//! earlier.

use std::sync::atomic::{AtomicU8, Ordering};

/// One bit per descriptor.
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
    use std::process::Command;

    /// Set in a process that this test starts: which of its streams the shell closed.
    const CLOSED_BY_THE_SHELL: &str = "NKV_TEST_CLOSED_FD";
    /// The exit status of a child that checked what it was started for.
    const CHECKED: i32 = 86;

    #[test]
    fn a_stream_that_was_closed_at_the_start_is_seen_and_no_other() {
        if let Ok(closed) = std::env::var(CLOSED_BY_THE_SHELL) {
            (0..4u8).for_each(|fd| assert_eq!(was_closed(fd), closed == fd.to_string(), "{fd}"));
            std::process::exit(CHECKED);
        }
        let itself = std::env::current_exe().unwrap();
        let module = module_path!().split_once("::").unwrap().1;
        let name = format!("{module}::a_stream_that_was_closed_at_the_start_is_seen_and_no_other");
        for closed in ["0", "1", "2", "none"] {
            let close = if closed == "none" { String::new() } else { format!("{closed}>&-") };
            let status = Command::new("sh")
                .args(["-c", &format!("exec \"$0\" --exact \"$1\" {close}")])
                .args([itself.as_os_str(), name.as_ref()])
                .env(CLOSED_BY_THE_SHELL, closed)
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(CHECKED), "with {closed} closed: {status}");
        }
    }
}
