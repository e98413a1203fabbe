//! Where a host stands, as a path.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Levels of a path at most.
pub(super) const MAX_LEVELS: usize = 8;
/// Bytes of a path at most.
const MAX_BYTES: usize = 128;

/// The rack of a host, as a path from the widest to the narrowest, such as `/dc1/row3/rack7`. `/`
/// is where hosts are whose rack is not known: all in one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RackPath(String);

impl RackPath {
    /// Whether it is not known.
    pub fn is_unknown(&self) -> bool {
        self.0 == "/"
    }

    /// Levels that two paths share from the widest on; all of one path may be fewer than the
    /// other's.
    pub(super) fn shared_levels(&self, other: &Self) -> usize {
        let both = self.0.split('/').zip(other.0.split('/')).skip(1);
        both.take_while(|(a, b)| a == b).count()
    }
}

impl Default for RackPath {
    fn default() -> Self {
        Self("/".to_string())
    }
}

impl fmt::Display for RackPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<RackPath> for String {
    fn from(path: RackPath) -> Self {
        path.0
    }
}

impl TryFrom<String> for RackPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for RackPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(levels) = text.strip_prefix('/') else {
            return Err(format!("'{}' is no path of a rack: it begins with /", short(text)));
        };
        if levels.is_empty() {
            return Ok(Self::default());
        }
        if text.len() > MAX_BYTES || levels.split('/').count() > MAX_LEVELS {
            return Err(format!(
                "'{}' is too long for the path of a rack: it has {MAX_LEVELS} levels and \
                 {MAX_BYTES} bytes at most",
                short(text)
            ));
        }
        let bad = |level: &str| level.is_empty() || !level.bytes().all(|b| b.is_ascii_graphic());
        if levels.split('/').any(bad) {
            return Err(format!(
                "'{}' is no path of a rack: it consists of names of visible ASCII characters, \
                 each behind a /",
                short(text)
            ));
        }
        Ok(Self(text.to_string()))
    }
}

/// For an error text.
fn short(text: &str) -> String {
    text.chars().take(MAX_BYTES).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::RackPath;

    #[test]
    fn a_path_has_named_levels_and_a_bounded_length() {
        for good in ["/", "/r", "/dc1/row3/rack7", "/1/2/3/4/5/6/7/8"] {
            assert_eq!(good.parse::<RackPath>().unwrap().to_string(), good);
        }
        let long = format!("/{}", "x".repeat(128));
        for bad in ["", "r", "r/s", "//", "/r/", "/r//s", "/a b", "/\u{7}", "/ä", &long] {
            assert!(bad.parse::<RackPath>().is_err(), "{bad}");
        }
        let nine = "/1/2/3/4/5/6/7/8/9".parse::<RackPath>().unwrap_err();
        assert!(nine.contains("8 levels"), "{nine}");
        assert!(
            RackPath::default().is_unknown() && !"/r".parse::<RackPath>().unwrap().is_unknown()
        );
    }

    #[test]
    fn what_arrives_is_checked() {
        assert!(serde_json::from_str::<RackPath>("\"/dc1/r2\"").is_ok());
        assert!(serde_json::from_str::<RackPath>("\"dc1\"").is_err());
    }
}
