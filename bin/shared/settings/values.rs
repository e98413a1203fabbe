//! Parses each kind of value. The caller adds the text's source (flag, variable, file) to the
//! error.

use nkv::ElectionChoice;
use nkv_store::evict::Watermarks;
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

/// One of some names.
pub(super) fn one_of<const N: usize>(
    names: [&'static str; N],
) -> impl Fn(&str) -> Result<&'static str, String> {
    move |text| {
        let named = names.into_iter().find(|name| *name == text);
        named.ok_or_else(|| format!("{} is expected", names.join(" or ")))
    }
}

/// Where HTTP is served.
pub(super) fn http_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "IP:PORT such as 127.0.0.1:0 is expected, or off".to_string())
}

/// Eviction watermarks.
pub(super) fn watermarks(text: &str) -> Result<Watermarks, String> {
    let wanted = "auto is expected, or two whole percentages of 1 to 100 without a sign, the first \
                  not below the second, such as 95/85";
    text.parse().map_err(|_| wanted.to_string())
}

/// RDMA devices that reach a rank's memory, each of which must be usable; empty: all that are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Devices(pub(super) Vec<String>);

impl std::fmt::Display for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { f.write_str("auto") } else { f.write_str(&self.0.join(",")) }
    }
}

pub(super) fn devices(text: &str) -> Result<Devices, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
    match text {
        "auto" => Ok(Devices::default()),
        _ if names.len() > MAX_PAIRS => Err(format!("at most {MAX_PAIRS} devices are used")),
        _ if names.iter().any(|name| matches!(name.as_str(), "" | "auto" | "none")) => {
            Err("auto, none, or names such as mlx5_0,mlx5_1 are expected".to_string())
        }
        _ if (1..names.len()).any(|i| names[..i].contains(&names[i])) => {
            Err("a device is named twice; for more queue pairs there is --rdma-pairs".to_string())
        }
        _ => Ok(Devices(names)),
    }
}

/// Queue pairs of one data path.
pub(super) fn pairs(text: &str) -> Result<usize, String> {
    match number(text)? {
        n @ 1..=MAX_PAIRS => Ok(n),
        n => Err(format!("{n} is not between 1 and {MAX_PAIRS}")),
    }
}

/// Who may be the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Election(pub(super) ElectionChoice);

impl std::fmt::Display for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            ElectionChoice::Rank0 => f.write_str("rank0"),
            ElectionChoice::Ranks => f.write_str("ranks"),
            ElectionChoice::Etcd(at) => write!(f, "etcd://{}", at.join(",")),
        }
    }
}

pub(super) fn election(text: &str) -> Result<Election, String> {
    Ok(Election(match (text, text.strip_prefix("etcd://")) {
        ("rank0", _) => ElectionChoice::Rank0,
        ("ranks", _) => ElectionChoice::Ranks,
        (_, Some(at)) => ElectionChoice::Etcd(at.split(',').map(str::to_string).collect()),
        _ => return Err("rank0, ranks or etcd://HOST:PORT,... is expected".to_string()),
    }))
}
