//! Addresses of control connections. Nothing is resolved or opened here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A control-plane address. Written `tcp://host:port` or `unix:///path`; a bare `host:port` is tcp.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Address {
    /// `host:port`; the host may be a name, an IPv4 address or a bracketed IPv6 address.
    Tcp(String),
    /// Path of a unix socket on this host.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(a) => write!(f, "tcp://{a}"),
            Address::Unix(p) => write!(f, "unix://{}", p.display()),
        }
    }
}

impl Address {
    /// `host:port` or a path, without the scheme.
    pub fn bare(&self) -> String {
        match self {
            Self::Tcp(host_port) => host_port.clone(),
            Self::Unix(path) => path.display().to_string(),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Some(path) = s.strip_prefix("unix://") {
            if path.is_empty() {
                return Err("unix:// needs a path, e.g. unix:///run/nkv.sock".to_string());
            }
            return Ok(Address::Unix(path.into()));
        }
        let tcp = s.strip_prefix("tcp://").unwrap_or(s);
        let bad = || format!("{s:?} is not an address; write HOST:PORT or unix:///PATH");
        let (host, port) = tcp.rsplit_once(':').ok_or_else(bad)?;
        let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || bare_v6 || host.contains('/') || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(Address::Tcp(tcp.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for s in ["tcp://node-3:7400", "tcp://[::1]:7400", "unix:///tmp/a b.sock"] {
            let read = s.parse::<Address>().unwrap();
            assert_eq!(read.to_string(), s);
            assert_eq!(read.bare(), s.split_once("://").unwrap().1);
        }
        let bare: Address = "127.0.0.1:80".parse().unwrap();
        assert_eq!(bare, Address::Tcp("127.0.0.1:80".to_string()));
        for s in ["", "host", "host:", ":80", "host:65536", "::1:80", "http://host:80", "unix://"] {
            assert!(s.parse::<Address>().is_err(), "{s}");
        }
    }
}
