//! Addresses of a cluster's nodes as users type them, and connecting through the first of them that
//! reaches the master. The client programs share this file; each includes it by path.

use crate::exit;
use nkv::{Address, Client, ClientConfig, Error, ErrorKind};
use nkv_store::clock::{BootClock, Clock};
use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

/// Rank 0's port unless one is given, and that of an address that names none; `NKV_PORT` names
/// another.
pub const DEFAULT_PORT: u16 = 7400;
/// Least share of the limit, in milliseconds, that each node gets, however many are tried.
const SHARE_AT_LEAST_MS: u64 = 100;

/// One address: HOST, HOST:PORT or unix:///PATH.
///
/// # Errors
/// One sentence if it is no address.
pub fn endpoint(text: &str) -> Result<Address, String> {
    with_port(text.trim(), default_port())
}

/// The default address: rank 0 on this host.
pub fn here() -> Address {
    Address::Tcp(format!("127.0.0.1:{}", default_port()))
}

/// Nodes read the same variable; [`check_port`] checks that it is a port.
fn default_port() -> u16 {
    check_port().ok().flatten().unwrap_or(DEFAULT_PORT)
}

/// The port that `NKV_PORT` names, if it names one.
///
/// # Errors
/// One sentence if it is set and is no port; a node prints the same.
pub fn check_port() -> Result<Option<u16>, String> {
    port(std::env::var_os("NKV_PORT").as_deref())
}

fn port(port_setting: Option<&OsStr>) -> Result<Option<u16>, String> {
    let Some(port_setting) = port_setting.filter(|port_setting| !port_setting.is_empty()) else {
        return Ok(None);
    };
    let text = port_setting.to_string_lossy();
    let port = text.trim().parse::<u16>().map_err(|_| {
        format!("NKV_PORT \"{}\": a port from 1 to 65535 is expected", text.escape_debug())
    })?;
    if port == 0 {
        return Err(
            "NKV_PORT is 0, with which rank 0 takes a free port: give the port in control= \
                    of its ready line, in NKV_PORT or as --connect HOST:PORT"
                .to_string(),
        );
    }
    Ok(Some(port))
}

fn with_port(text: &str, port: u16) -> Result<Address, String> {
    let read = text.parse::<Address>();
    let bad = || format!("{text:?} is not an address: write HOST, HOST:PORT or unix:///PATH");
    if read.is_ok() || text.starts_with("unix://") {
        return read;
    }
    let host = text.strip_prefix("tcp://").unwrap_or(text);
    if host.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{} (a port alone is none)", bad()));
    }
    let host = match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{host}]"),
        Err(_) => host.to_string(),
    };
    format!("{host}:{port}").parse().map_err(|_| bad())
}

/// Why no node reached the master: each node's error, in the order in which they were tried.
#[derive(Debug)]
pub struct NoneServes(pub Vec<(Address, Error)>);

impl NoneServes {
    /// One kind for all errors: a refusal is final, whatever the other nodes answered.
    pub fn kind(&self) -> ErrorKind {
        let mut kinds = self.0.iter().map(|(_, error)| error.kind());
        let refused = kinds.clone().find(|kind| *kind == ErrorKind::InvalidArgument);
        refused.or_else(|| kinds.next_back()).unwrap_or(ErrorKind::Disconnected)
    }

    /// The exit status of a program that ends with this error.
    pub fn exit_status(&self) -> u8 {
        match self.kind() {
            ErrorKind::InvalidArgument => exit::REFUSED,
            kind => exit::of(kind),
        }
    }

    /// True if `like` holds for each node's error.
    pub fn all(&self, like: impl Fn(&Error) -> bool) -> bool {
        self.0.iter().all(|(_, error)| like(error))
    }
}

impl fmt::Display for NoneServes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            // The message names the node and says what to do.
            [(_, error)] if error.kind() == ErrorKind::InvalidArgument => {
                f.write_str(error.message())
            }
            [(node, error)] => {
                write!(f, "cannot use a cluster: {}", of_node(node, error.message()))
            }
            all => {
                write!(f, "none of {} nodes reaches the master", all.len())?;
                let text = |(node, error): &(Address, Error)| of_node(node, error.message());
                all.iter().try_for_each(|answer| write!(f, "; {}", text(answer)))
            }
        }
    }
}

/// A node's error message, with its address once.
fn of_node(node: &Address, message: &str) -> String {
    let address = node.to_string();
    if message.contains(&address) { message.to_string() } else { format!("{address}: {message}") }
}

impl std::error::Error for NoneServes {}

/// Connects through the first of these nodes that reaches the master, within the limit of one call.
///
/// # Errors
/// [`NoneServes`] with each node's error.
pub async fn connect(nodes: &[Address], config: &ClientConfig) -> Result<Client, NoneServes> {
    let mut answers = Vec::new();
    let end_ms = BootClock.now_ms().saturating_add(config.call_timeout_ms);
    for (i, node) in nodes.iter().enumerate() {
        let connecting = Client::connect(node, config.clone());
        let others = (nodes.len() - i) as u64;
        let left_ms = end_ms.saturating_sub(BootClock.now_ms());
        let share = Duration::from_millis((left_ms / others).max(SHARE_AT_LEAST_MS));
        let answer = match nodes.len() {
            // The call keeps the limit itself.
            1 => connecting.await,
            _ => tokio::time::timeout(share, connecting).await.unwrap_or_else(|_| {
                let ms = share.as_millis();
                Err(Error::timeout(format!("no answer within its share of the limit, {ms} ms")))
            }),
        };
        match answer {
            Ok(client) => return Ok(client),
            Err(error) => answers.push((node.clone(), error)),
        }
    }
    Err(NoneServes(answers))
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_PORT, NoneServes, connect, with_port};
    use nkv::{ClientConfig, Error, ErrorKind, Secret};

    #[test]
    fn an_address_without_a_port_gets_one() {
        for (text, address) in [
            ("h", "tcp://h:7400"),
            ("tcp://h", "tcp://h:7400"),
            ("h:1", "tcp://h:1"),
            ("10.0.0.1", "tcp://10.0.0.1:7400"),
            ("::1", "tcp://[::1]:7400"),
            ("[::1]", "tcp://[::1]:7400"),
            ("[::1]:9", "tcp://[::1]:9"),
            ("unix:///tmp/s", "unix:///tmp/s"),
        ] {
            assert_eq!(with_port(text, DEFAULT_PORT).unwrap().to_string(), address);
        }
        assert_eq!(with_port("h", 9).unwrap().to_string(), "tcp://h:9");
    }

    #[test]
    fn a_port_that_is_none_is_refused_and_one_that_is_not_set_is_the_default() {
        let port = |text: &str| super::port(Some(text.as_ref()));
        assert_eq!((port("7000"), port(" 9 "), port("")), (Ok(Some(7000)), Ok(Some(9)), Ok(None)));
        for text in ["70000", "-1", "http", "7400/tcp", "0"] {
            let error = port(text).expect_err(text);
            assert!(error.contains("NKV_PORT") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be_one() {
        for text in
            ["", "7400", ":80", "h:", "h:65536", "http://h:80", "http://h", "unix://", "tcp://"]
        {
            let error = with_port(text, DEFAULT_PORT).expect_err(text);
            assert!(error.contains("unix:///"), "{error}");
        }
    }

    #[test]
    fn every_nodes_error_is_printed_and_a_refusal_is_final() {
        let at = |node: &str| node.parse().unwrap();
        let one = NoneServes(vec![(at("h:1"), Error::invalid("tcp://h:1 refused: x"))]);
        assert_eq!(one.to_string(), "tcp://h:1 refused: x");
        let one = NoneServes(vec![(at("h:1"), Error::disconnected("nobody"))]);
        assert_eq!(one.to_string(), "cannot use a cluster: tcp://h:1: nobody");
        let named = Error::disconnected("cannot connect to tcp://h:1: refused");
        let one = NoneServes(vec![(at("h:1"), named)]);
        assert_eq!(
            one.to_string(),
            "cannot use a cluster: cannot connect to tcp://h:1: refused",
            "its address once"
        );
        let both = NoneServes(vec![
            (at("h:1"), Error::invalid("no")),
            (at("h:2"), Error::disconnected("nobody")),
        ]);
        assert_eq!(both.kind(), ErrorKind::InvalidArgument);
        let text = both.to_string();
        assert!(text.contains("2 nodes") && text.contains("tcp://h:2: nobody"), "{text}");
    }

    /// A node that never answers uses up its own share of the limit, not that of the others.
    #[tokio::test]
    async fn every_node_is_tried_within_the_limit() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().unwrap().to_string();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let secret = Some(Secret::new(b"a secret of this test alone", "a test").unwrap());
        let config = ClientConfig { secret, call_timeout_ms: 400, ..ClientConfig::default() };
        let nodes = [silent.parse().unwrap(), nobody.to_string().parse().unwrap()];
        let NoneServes(answers) = connect(&nodes, &config).await.unwrap_err();
        let kinds: Vec<_> = answers.iter().map(|(_, e)| e.kind()).collect();
        assert_eq!(kinds, [ErrorKind::Timeout, ErrorKind::Disconnected], "{answers:?}");
    }
}
