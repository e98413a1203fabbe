//! Patterns over keys.

use crate::error::{Error, Result};
use crate::message::MAX_PATTERN_BYTES;
use regex::bytes::{Regex, RegexBuilder};

/// Largest compiled pattern; this also bounds the time per byte of a key.
const MAX_PROGRAM_BYTES: usize = 1 << 20;

/// Compiles a pattern. Matching is linear in the length of a key for every pattern, and bounded in
/// memory. `InvalidArgument` if it is too long, too large or malformed.
pub(crate) fn compile(pattern: &str) -> Result<Regex> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let n = pattern.len();
        let text = format!("a pattern has at most {MAX_PATTERN_BYTES} bytes, this one {n}");
        return Err(Error::invalid(text));
    }
    let built = RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).build();
    built.map_err(|e| Error::invalid(format!("the pattern cannot be compiled: {e}")))
}
