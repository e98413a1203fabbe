//! Which memory an object should be in, and at which rank.

use super::ExportedMemory;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Memory that an object may be in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// Any.
    #[default]
    Any,
    /// Of a host.
    Host,
    /// Of a GPU.
    Device,
    /// The SSD of a node: the object is in memory as well, at first.
    Disk,
}

impl Medium {
    /// Whether a segment of this memory is meant.
    pub(crate) fn takes(self, memory: &ExportedMemory) -> bool {
        match self {
            Self::Any => true,
            Self::Host => !matches!(memory, ExportedMemory::Device { .. }),
            Self::Device => matches!(memory, ExportedMemory::Device { .. }),
            Self::Disk => false,
        }
    }
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Host => "host",
            Self::Device => "device",
            Self::Disk => "disk",
        })
    }
}

/// Where one replica of a put should go. A rank that has no room, or is gone, is passed over; a
/// medium is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preferred {
    /// The rank; by the job's placement if absent.
    pub rank: Option<u32>,
    /// The memory, in any segment of the rank.
    pub medium: Medium,
}

/// `RANK`, `MEDIUM` or `RANK:MEDIUM`; the medium `any` alone is anywhere.
impl std::str::FromStr for Preferred {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} names no rank and no memory: give RANK, RANK:host, RANK:device, \
                 RANK:disk, host, device, disk or any"
            ))
        };
        let medium = |name: &str| match name {
            "any" => Ok(Medium::Any),
            "host" => Ok(Medium::Host),
            "device" => Ok(Medium::Device),
            "disk" => Ok(Medium::Disk),
            _ => Err(wrong()),
        };
        let rank = |digits: &str| digits.parse().map(Some).map_err(|_| wrong());
        match text.split_once(':') {
            Some((number, name)) => Ok(Self { rank: rank(number)?, medium: medium(name)? }),
            None if text.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(Self { rank: rank(text)?, medium: Medium::Any })
            }
            None => Ok(Self { rank: None, medium: medium(text)? }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_names_a_rank_a_memory_or_both() {
        let of = |rank, medium| Some(Preferred { rank, medium });
        for (text, meant) in [
            ("", None),
            ("any", of(None, Medium::Any)),
            ("3", of(Some(3), Medium::Any)),
            ("device", of(None, Medium::Device)),
            (":host", None),
            ("12:device", of(Some(12), Medium::Device)),
            ("disk", of(None, Medium::Disk)),
            ("3:disk", of(Some(3), Medium::Disk)),
            ("3:", None),
            ("3:any", of(Some(3), Medium::Any)),
            ("-1", None),
            ("3:vram", None),
            ("99999999999", None),
            ("3:host:1", None),
            ("x:host", None),
        ] {
            assert_eq!(text.parse::<Preferred>().ok(), meant, "{text}");
        }
    }
}
