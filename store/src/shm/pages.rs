//! The page size of segments. Huge pages avoid most of the address translation cost of small
//! objects. For a segment that is prefaulted at its start, the process requests huge pages one by
//! one, whatever the machine's setting is. Other segments get them only if the machine allows them
//! for all shared memory.

use super::{SHM_DIR, registry};
pub(crate) use crate::memory::HUGE_PAGE;
use std::fmt;
use std::path::Path;
use std::sync::Weak;

/// The pages of a segment that this process made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Bytes of the segment.
    pub bytes: u64,
    /// Bytes of it that were in pages of 2 MiB when it was made.
    pub huge_bytes: u64,
    /// Whether the machine gives huge pages on first touch to shared memory that asks for them.
    pub allowed: bool,
}

/// The pages of a segment that this process has mapped.
pub fn pages(file_name: &str) -> Option<Pages> {
    let path = Path::new(SHM_DIR).join(file_name);
    let mapping = registry().get(&path).and_then(Weak::upgrade)?;
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let allowed = allowed_by(&text.unwrap_or_default());
    Some(Pages { bytes: mapping.region().len(), huge_bytes: mapping.huge_bytes(), allowed })
}

/// `setting` is one line of words, with the active one in brackets.
fn allowed_by(setting: &str) -> bool {
    let chosen = setting.split_whitespace().find(|word| word.starts_with('['));
    matches!(chosen, Some("[always]" | "[within_size]" | "[advise]" | "[force]"))
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The remainder above the last multiple of 2 MiB can only be in small pages.
        let most = self.bytes / HUGE_PAGE * HUGE_PAGE;
        let percent = (self.huge_bytes * 100).checked_div(most).unwrap_or(0);
        match (self.huge_bytes, self.allowed) {
            (0, false) => f.write_str("pages of 4 KiB"),
            (0, true) => f.write_str("pages of 2 MiB where the kernel has them"),
            (huge, _) if huge == most => f.write_str("pages of 2 MiB"),
            _ => write!(f, "{percent} % in pages of 2 MiB, the rest of 4 KiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_for_all_shared_memory_is_the_word_in_brackets() {
        for allowed in ["always", "within_size", "advise", "force"] {
            assert!(allowed_by(&format!("never [{allowed}] deny\n")), "{allowed}");
        }
        for not in ["always advise [never] deny force\n", "always never [deny]\n", ""] {
            assert!(!allowed_by(not), "{not}");
        }
    }

    #[test]
    fn pages_are_described_by_what_the_kernel_gave() {
        let pages = |huge_bytes, allowed| {
            Pages { bytes: 5 * HUGE_PAGE + 100, huge_bytes, allowed }.to_string()
        };
        assert_eq!(pages(0, false), "pages of 4 KiB");
        assert_eq!(pages(0, true), "pages of 2 MiB where the kernel has them");
        assert_eq!(pages(5 * HUGE_PAGE, false), "pages of 2 MiB");
        assert_eq!(pages(HUGE_PAGE, false), "20 % in pages of 2 MiB, the rest of 4 KiB");
        let small = Pages { bytes: 100, huge_bytes: 0, allowed: false };
        assert_eq!(small.to_string(), "pages of 4 KiB");
    }
}
