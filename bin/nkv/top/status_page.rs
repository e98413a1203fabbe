//! A rank's `/status`, fetched and read. Bounded in time and size, and lenient about nodes of
//! another build: absent fields get their default, unknown fields are ignored.

use nkv::message::OwnerGauges;
use nkv_actors::tier::TierFigures;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a rank may take to answer.
pub(super) const LIMIT: Duration = Duration::from_millis(900);
/// Largest answer; rank 0 lists every member, some 500 bytes each.
const MAX_BYTES: u64 = 16 << 20;

/// What is shown of a rank's own status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodePage {
    /// Incarnation, in hexadecimal.
    pub(super) incarnation: String,
    /// joining, joined, lost (with the reason), gone or left.
    pub(super) link: String,
    /// Shutting down.
    pub(super) draining: bool,
    /// Figures of its heap.
    #[serde(deserialize_with = "gauges")]
    pub(super) owner: Option<OwnerGauges>,
    /// Figures of its SSD tier, if it has one.
    pub(super) ssd: Option<TierFigures>,
    /// Its actors.
    pub(super) actors: Vec<ActorPage>,
}

/// What is shown of an actor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ActorPage {
    /// Which one.
    pub(super) name: String,
    /// Running or frozen.
    pub(super) state: String,
    /// Messages in its mailbox.
    pub(super) queue: u64,
    /// Times restarted after a panic.
    pub(super) restarts: u32,
    /// Where it is frozen.
    pub(super) frozen_in: Option<String>,
    /// Text of the last panic.
    pub(super) last_error: Option<String>,
}

/// Figures with another set of fields count as absent.
fn gauges<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<OwnerGauges>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

/// The status of the rank at `address` with this incarnation.
///
/// # Errors
/// A sentence, if it does not answer in time, answers with no status, or has another incarnation.
pub(super) async fn fetch(address: &str, incarnation: u64) -> Result<NodePage, String> {
    let body = match tokio::time::timeout(LIMIT, get(address, "/status")).await {
        Ok(answer) => answer.map_err(|e| e.to_string())?,
        Err(_) => return Err(format!("no answer within {} ms", LIMIT.as_millis())),
    };
    let page: NodePage = serde_json::from_str(&body).map_err(|e| format!("no status: {e}"))?;
    // A loopback address that another host reported leads to this host: another rank may listen
    // there.
    let meant = format!("{incarnation:016x}");
    if !page.incarnation.is_empty() && page.incarnation != meant {
        return Err(format!("{address} is not that rank's from here (or it started afresh)"));
    }
    Ok(page)
}

async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the body is not chunked and ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let line = head.lines().next().unwrap_or_default();
    if line.split_whitespace().nth(1) != Some("200") {
        return Err(std::io::Error::other(format!("answered {line:?} to GET {path}")));
    }
    Ok(body.to_string())
}

#[cfg(test)]
mod tests {
    use super::{NodePage, fetch};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Serves `answer` once; its address.
    async fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        address
    }

    #[tokio::test]
    async fn a_status_is_read_and_what_is_unknown_is_ignored() {
        let at = server(
            "HTTP/1.0 200 OK\r\n\r\n{\"incarnation\":\"000000000000000a\",\"link\":\"joined\",\
             \"new\":[1],\"owner\":{\"other\":1},\"actors\":[{\"name\":\"owner\",\"queue\":3}]}",
        )
        .await;
        let page = fetch(&at, 10).await.unwrap();
        assert_eq!((page.link.as_str(), page.actors[0].queue), ("joined", 3));
        assert!(page.owner.is_none(), "figures of another set");
    }

    #[tokio::test]
    async fn who_is_not_there_or_is_somebody_else_is_an_error_in_words() {
        let other = server("HTTP/1.0 200 OK\r\n\r\n{\"incarnation\":\"000000000000000b\"}").await;
        assert!(fetch(&other, 10).await.unwrap_err().contains("not that rank's"));
        let refusing = server("HTTP/1.0 503 Busy\r\n\r\n").await;
        assert!(fetch(&refusing, 10).await.unwrap_err().contains("503"));
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().to_string()
        };
        assert!(fetch(&closed, 10).await.unwrap_err().contains("refused"));
        // Nobody answers on a connection that is never accepted.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let error = fetch(&silent.local_addr().unwrap().to_string(), 10).await.unwrap_err();
        assert!(error.contains("no answer within"), "{error}");
    }

    #[test]
    fn the_status_of_a_real_node_is_understood() {
        let owner = nkv::message::OwnerGauges { objects: 4, ..Default::default() };
        let json = serde_json::json!({ "owner": owner, "draining": true, "term": {"number": 1} });
        let page: NodePage = serde_json::from_value(json).unwrap();
        assert_eq!((page.owner.unwrap().objects, page.draining), (4, true));
    }
}
