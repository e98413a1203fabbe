//! Counts of wrong bytes and failed operations of a run; the first few are listed with their key. A
//! run is good if both counts are zero.

use crate::content::Verdict;
use nkv::{Blocking, Error, ErrorKind};

/// Problems that are listed; the rest are only counted.
pub(crate) const LISTED: usize = 10;
/// Keys removed by one call.
const REMOVED_AT_ONCE: usize = 256;

/// Counts of problems, and the first [`LISTED`] of them as text.
#[derive(Debug, Default)]
pub(crate) struct ErrorTally {
    /// Bytes that differ from the content of their key and version.
    pub(crate) wrong_bytes: u64,
    /// Operations that ended in an error they should not have.
    pub(crate) failed: u64,
    listed: Vec<String>,
    unlisted: u64,
}

impl ErrorTally {
    /// Adds the result of comparing what was read under `key`.
    pub(crate) fn compared(&mut self, key: &[u8], verdict: Verdict) {
        if let Some(first) = verdict.first {
            self.wrong_bytes += verdict.wrong;
            self.list(format!(
                "{} wrong bytes in {}, the first at offset {first}",
                verdict.wrong,
                key.escape_ascii()
            ));
        }
    }

    /// Counts a failed operation.
    pub(crate) fn failed(&mut self, op: &str, key: &[u8], error: &Error) {
        self.failed += 1;
        self.list(format!("{op} {}: {error}", key.escape_ascii()));
    }

    /// Counts failed operations of which only the number is known.
    pub(crate) fn failed_elsewhere(&mut self, whose: &str, failed: u64) {
        if failed > 0 {
            self.failed += failed;
            self.list(format!("{failed} {whose} failed"));
        }
    }

    /// Removes keys and counts what fails; with `evictable` an absent key does not, since it may
    /// have been evicted.
    pub(crate) fn remove(&mut self, handle: &Blocking, keys: &[Vec<u8>], evictable: bool) {
        for keys in keys.chunks(REMOVED_AT_ONCE) {
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (key, outcome) in names.iter().zip(handle.remove_many(&names)) {
                if let Err(error) = outcome
                    && !(evictable && error.kind() == ErrorKind::NotFound)
                {
                    self.failed("remove", key, &error);
                }
            }
        }
    }

    /// Adds what another client counted.
    pub(crate) fn merge(&mut self, other: Self) {
        self.wrong_bytes += other.wrong_bytes;
        self.failed += other.failed;
        self.unlisted += other.unlisted;
        for text in other.listed {
            self.list(text);
        }
    }

    /// Whether every byte was right and nothing failed.
    pub(crate) fn is_clean(&self) -> bool {
        self.wrong_bytes == 0 && self.failed == 0
    }

    /// The listed problems, and how many more there were.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = self.listed.clone();
        if self.unlisted > 0 {
            lines.push(format!("and {} more", self.unlisted));
        }
        lines
    }

    fn list(&mut self, text: String) {
        if self.listed.len() < LISTED {
            self.listed.push(text);
        } else {
            self.unlisted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorTally, LISTED};
    use crate::content::Verdict;
    use nkv::Error;

    #[test]
    fn everything_is_counted_and_the_first_few_are_listed() {
        let mut tally = ErrorTally::default();
        tally.compared(b"fine", Verdict::default());
        assert!(tally.is_clean());
        tally.compared(b"bad\n", Verdict { wrong: 3, first: Some(17) });
        for _ in 0..LISTED + 4 {
            tally.failed("get", b"k", &Error::timeout("late"));
        }
        assert_eq!((tally.wrong_bytes, tally.failed), (3, LISTED as u64 + 4));
        let lines = tally.lines();
        assert_eq!(lines[0], "3 wrong bytes in bad\\n, the first at offset 17");
        assert_eq!(lines[1], "get k: Timeout: late");
        assert_eq!((lines.len(), lines[LISTED].as_str()), (LISTED + 1, "and 5 more"));
    }

    #[test]
    fn a_merge_keeps_the_bound_and_the_counts() {
        let (mut a, mut b) = (ErrorTally::default(), ErrorTally::default());
        for _ in 0..LISTED {
            a.failed("put", b"a", &Error::timeout("late"));
            b.failed("put", b"b", &Error::timeout("late"));
        }
        a.merge(b);
        assert_eq!(a.failed, 2 * LISTED as u64);
        assert_eq!(a.lines().last().unwrap(), &format!("and {LISTED} more"));
    }
}
