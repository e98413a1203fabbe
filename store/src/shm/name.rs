//! Names of segments, made of job, rank and incarnation, so that two jobs on one host do not
//! collide; and the check of names received from others, which are not trusted.

use super::SHM_DIR;
use crate::error::StoreError;
use std::path::PathBuf;

/// Prefix of every segment's file name.
pub(super) const PREFIX: &str = "nkv.";
/// Suffix of the name of a segment's unix socket.
pub(super) const SOCKET_SUFFIX: &str = ".sock";
/// Suffix of the name of a segment's lock file.
pub(super) const LOCK_SUFFIX: &str = ".lock";
/// Longest job part of a file name: leaves room for a socket path below 108 bytes.
const JOB_BYTES: usize = 40;
/// Hexadecimal digits of the hash in a job part that differs from the job.
const HASH_DIGITS: usize = 16;
/// Longest file name accepted, in bytes.
const NAME_MAX: usize = 255;

/// The name of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SegmentName {
    /// Job id; any text.
    pub job: String,
    /// Rank that contributes the segment.
    pub rank: u32,
    /// Its incarnation [I3].
    pub incarnation: u64,
}

impl SegmentName {
    /// File name under /dev/shm: `nkv.<job>.<rank>.<incarnation>`, the incarnation in 16
    /// hexadecimal digits. The job keeps [A-Za-z0-9_-] and at most 40 bytes. A job that had to be
    /// changed, or that looks like a changed one, ends in its hash, so that two jobs never share a
    /// name.
    pub fn file_name(&self) -> String {
        format!("{PREFIX}{}.{}.{:016x}", job_part(&self.job), self.rank, self.incarnation)
    }

    /// Path of the node's unix socket, below the kernel's limit of 108 bytes. Bind it after the
    /// segment was created and remove it before the segment is dropped: a socket without a segment
    /// is stale.
    pub fn socket_path(&self) -> PathBuf {
        PathBuf::from(format!("{SHM_DIR}/{}{SOCKET_SUFFIX}", self.file_name()))
    }
}

/// The part of a file name that represents a job, as in [`SegmentName::file_name`].
pub fn job_part(job: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let as_it_is = !job.is_empty() && job.len() <= JOB_BYTES && job.chars().all(kept);
    if as_it_is && !is_hashed(job) {
        return job.to_string();
    }
    let shown = JOB_BYTES - HASH_DIGITS - 1;
    let safe: String = job.chars().take(shown).map(|c| if kept(c) { c } else { '_' }).collect();
    let hash = xxhash_rust::xxh3::xxh3_64(job.as_bytes());
    format!("{safe}-{hash:016x}")
}

/// True for text that ends like a changed job.
fn is_hashed(job: &str) -> bool {
    let digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    job.len()
        .checked_sub(HASH_DIGITS + 1)
        .and_then(|at| job.as_bytes().get(at..))
        .is_some_and(|tail| tail[0] == b'-' && tail[1..].iter().all(|&c| digit(c)))
}

/// True if a file of this name may be a segment.
pub(super) fn is_segment(file_name: &str) -> bool {
    let beside = [SOCKET_SUFFIX, LOCK_SUFFIX].iter().any(|suffix| file_name.ends_with(suffix));
    file_name.starts_with(PREFIX) && !beside
}

/// Refuses names that could reach outside the folder or are not segment names.
pub(super) fn check_file_name(file_name: &str) -> Result<(), StoreError> {
    let plain = !file_name.contains(['/', '\0']) && file_name.len() <= NAME_MAX;
    if plain && is_segment(file_name) {
        return Ok(());
    }
    Err(StoreError::BadSegment(format!(
        "\"{}\" is not the name of one: those are {PREFIX}<job>.<rank>.<incarnation>",
        file_name.chars().take(NAME_MAX).collect::<String>().escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(job: &str) -> SegmentName {
        SegmentName { job: job.to_string(), rank: 3, incarnation: 0x12ab }
    }

    #[test]
    fn plain_jobs_keep_their_name() {
        assert_eq!(named("train_7-b").file_name(), "nkv.train_7-b.3.00000000000012ab");
        let path = named("train_7-b").socket_path();
        assert_eq!(path, PathBuf::from("/dev/shm/nkv.train_7-b.3.00000000000012ab.sock"));
    }

    #[test]
    fn jobs_that_only_look_alike_have_different_names() {
        let hashed = job_part("a/b");
        let long = "x".repeat(41);
        let longer = "x".repeat(42);
        let jobs = ["a/b", "a.b", "a_b", "", " ", "_", &hashed, &long, &longer];
        let mut names: Vec<String> = jobs.iter().map(|j| named(j).file_name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), jobs.len(), "{names:?}");
    }

    #[test]
    fn names_that_reach_elsewhere_are_refused() {
        for bad in [
            "",
            "nkv",
            "nkv./../x",
            "../nkv.a",
            "x.nkv.",
            "nkv.a.0.1.sock",
            "nkv.a.0.1.lock",
            "nkv.\0",
        ] {
            assert!(matches!(check_file_name(bad), Err(StoreError::BadSegment(_))), "{bad:?}");
        }
        check_file_name(&named("a").file_name()).unwrap();
    }

    proptest! {
        #[test]
        fn any_job_gives_a_valid_name_and_a_short_socket_path(job in ".{0,80}", rank: u32) {
            let name = SegmentName { job, rank, incarnation: u64::MAX };
            let file = name.file_name();
            prop_assert!(check_file_name(&file).is_ok());
            prop_assert!(job_part(&name.job).len() <= JOB_BYTES);
            prop_assert!(name.socket_path().as_os_str().len() < 108);
            let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            prop_assert!(file.chars().all(safe));
        }
    }
}
