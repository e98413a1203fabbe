//! Parses each kind of value. The caller adds the text's source (flag, variable, file) to the
//! error.

use clap::ValueEnum;
use nkv_actors::node::MemoryChoice;
use nkv_programs::logging::LogFormat;
use nkv_transport::fabric::MAX_PAIRS;
use std::net::SocketAddr;
use std::str::FromStr;

/// A whole number of the type asked for.
pub(super) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    let bits = 8 * size_of::<T>();
    text.trim().parse().map_err(|_| {
        format!("a whole number of at most {bits} bits and without a unit is expected")
    })
}

/// On or off.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("true or false is expected".to_string()),
    }
}

/// A job id: any text without blanks, since it appears in lines that programs read.
pub(super) fn job_name(text: &str) -> Result<String, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("a job id has no blanks or control characters".to_string());
    }
    Ok(text.to_string())
}

/// Where rank 0 is: a name or an address, and no port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/';
    let port = text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':'));
    if text.is_empty() || text.contains(odd) || port {
        return Err(
            "the host of rank 0 is expected, such as node-0 or 10.0.0.7, and nothing else: \
                    its port is --port"
                .to_string(),
        );
    }
    Ok(text.to_string())
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    LogFormat::from_str(text, false).map_err(|_| "text or json is expected".to_string())
}

/// Where HTTP is served, if at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Http(pub(super) Option<SocketAddr>);

impl std::fmt::Display for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("off"),
        }
    }
}

pub(super) fn http_address(text: &str) -> Result<Http, String> {
    if text == "off" {
        return Ok(Http(None));
    }
    let address = text.parse();
    address
        .map(|a| Http(Some(a)))
        .map_err(|_| "IP:PORT such as 127.0.0.1:0 is expected, or off".to_string())
}

/// Eviction watermarks in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    /// Eviction starts above this.
    pub(super) hi: u32,
    /// Eviction ends below this.
    pub(super) lo: u32,
}

impl std::fmt::Display for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.hi, self.lo)
    }
}

pub(super) fn watermarks(text: &str) -> Result<Marks, String> {
    let parts = text.split_once('/').map(|(hi, lo)| (hi.trim().parse(), lo.trim().parse()));
    match parts {
        Some((Ok(hi), Ok(lo))) if 0 < lo && lo <= hi && hi <= 100 => Ok(Marks { hi, lo }),
        _ => Err("two percentages are expected, the higher first, such as 95/85".to_string()),
    }
}

/// The kind of memory, with its spelling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(pub(super) MemoryChoice);

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            MemoryChoice::Shm => "shm",
            MemoryChoice::Private => "private",
        })
    }
}

pub(super) fn memory(text: &str) -> Result<Kind, String> {
    match text {
        "shm" => Ok(Kind(MemoryChoice::Shm)),
        "private" => Ok(Kind(MemoryChoice::Private)),
        _ => Err("shm or private is expected".to_string()),
    }
}

/// Which RDMA devices reach a rank's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Devices {
    /// All devices that can be used.
    Auto,
    /// No device.
    Off,
    /// These devices, each of which must be usable.
    Named(Vec<String>),
}

impl Devices {
    /// `None`: no device; an empty list: all that can be used.
    pub(super) fn names(self) -> Option<Vec<String>> {
        match self {
            Self::Auto => Some(Vec::new()),
            Self::Off => None,
            Self::Named(names) => Some(names),
        }
    }
}

impl std::fmt::Display for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("none"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

pub(super) fn devices(text: &str) -> Result<Devices, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
    match text {
        "auto" => Ok(Devices::Auto),
        "none" => Ok(Devices::Off),
        _ if names.len() > MAX_PAIRS => Err(format!("at most {MAX_PAIRS} devices are used")),
        _ if names.iter().any(|name| matches!(name.as_str(), "" | "auto" | "none")) => {
            Err("auto, none, or names such as mlx5_0,mlx5_1 are expected".to_string())
        }
        _ if (1..names.len()).any(|i| names[..i].contains(&names[i])) => {
            Err("a device is named twice; for more queue pairs there is --rdma-pairs".to_string())
        }
        _ => Ok(Devices::Named(names)),
    }
}

/// Index in a port's GID table; `None`: the preferred entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GidIndex(pub(super) Option<u8>);

impl std::fmt::Display for GidIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(index) => write!(f, "{index}"),
            None => f.write_str("auto"),
        }
    }
}

pub(super) fn gid_index(text: &str) -> Result<GidIndex, String> {
    match text {
        "auto" => Ok(GidIndex(None)),
        _ => number(text).map(|index| GidIndex(Some(index))),
    }
}

/// Queue pairs of one data path; 0: as many as there are devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pairs(pub(super) usize);

impl std::fmt::Display for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("auto"),
            n => write!(f, "{n}"),
        }
    }
}

pub(super) fn pairs(text: &str) -> Result<Pairs, String> {
    if text == "auto" {
        return Ok(Pairs(0));
    }
    match number(text)? {
        n @ 1..=MAX_PAIRS => Ok(Pairs(n)),
        n => Err(format!("{n} is not between 1 and {MAX_PAIRS}")),
    }
}
