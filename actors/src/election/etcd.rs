//! What the ranks of a job keep in etcd, by its JSON gateway (`/v3/...`): where each of them is,
//! and which of them may be master. Keys begin with `/nkv/JOB/`, and end a minute after the job.

use crate::error::{Error, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use nkv_transport::wire::Address;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One request to one endpoint.
const REQUEST_LIMIT: Duration = Duration::from_millis(400);
/// Life of what a node wrote, after its last sign of life, in seconds.
const LEASE_S: u64 = 60;
/// Largest answer.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// The etcd cluster of one node.
#[derive(Debug)]
pub(crate) struct Etcd {
    endpoints: Vec<String>,
    prefix: String,
    agent: ureq::Agent,
    // The endpoint that answered last.
    last: AtomicUsize,
    lease: Mutex<Option<String>>,
}

#[derive(Deserialize)]
struct Pair {
    key: String,
    value: String,
    mod_revision: String,
}

#[derive(Deserialize, Default)]
struct Range {
    #[serde(default)]
    kvs: Vec<Pair>,
}

impl Etcd {
    /// Of a job; `endpoints` as host:port.
    pub(crate) fn new(endpoints: &[String], job: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_LIMIT));
        Self {
            endpoints: endpoints.to_vec(),
            prefix: format!("/nkv/{job}/"),
            agent: config.build().into(),
            last: AtomicUsize::new(0),
            lease: Mutex::default(),
        }
    }

    /// Blocks for as long as all endpoints together may take.
    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let (n, first) = (self.endpoints.len(), self.last.load(Ordering::Relaxed));
        let mut why = String::new();
        for i in (first..first + n).map(|i| i % n) {
            let url = format!("http://{}/v3/{path}", self.endpoints[i]);
            match self.agent.post(&url).send_json(body) {
                Ok(mut answer) => {
                    let limited = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES);
                    match limited.read_json() {
                        Ok(value) => {
                            self.last.store(i, Ordering::Relaxed);
                            return Ok(value);
                        }
                        Err(e) => why = format!("{url}: {e}"),
                    }
                }
                Err(e) => why = format!("{url}: {e}"),
            }
        }
        Err(Error::disconnected(format!("etcd: {why}")))
    }

    fn key(&self, name: &str) -> String {
        BASE64.encode(format!("{}{name}", self.prefix))
    }

    fn range(&self, body: &Value) -> Result<Vec<Pair>> {
        let answer = self.post("kv/range", body)?;
        let range: Range = serde_json::from_value(answer)
            .map_err(|e| Error::disconnected(format!("etcd answered something else: {e}")))?;
        Ok(range.kvs)
    }

    /// The revision of the key of the master, which the next holder must know; 0 if nobody has it.
    pub(crate) fn revision(&self) -> Result<u64> {
        let found = self.range(&json!({ "key": self.key("master") }))?;
        let revision = found.first().map_or(Ok(0), |pair| pair.mod_revision.parse());
        revision.map_err(|e| Error::disconnected(format!("etcd: a revision that is none: {e}")))
    }

    /// Takes the key from the holder of this revision; 0: from nobody. False if another was first.
    pub(crate) fn take(&self, revision: u64, rank: u32, control: &Address) -> Result<bool> {
        let (key, lease) = (self.key("master"), self.leased()?);
        let compare = json!({ "key": key, "target": "MOD", "mod_revision": revision.to_string() });
        let value = BASE64.encode(format!("{rank} {control}"));
        let put = json!({ "requestPut": { "key": key, "value": value, "lease": lease } });
        let done = self.post("kv/txn", &json!({ "compare": [compare], "success": [put] }))?;
        // Left out by the gateway if false.
        Ok(done.get("succeeded").and_then(Value::as_bool).unwrap_or(false))
    }

    /// Writes where this rank is, and keeps what it wrote alive.
    pub(crate) fn publish(&self, rank: u32, control: &Address) -> Result<()> {
        let kept = self.lease();
        if let Some(lease) = kept {
            let answer = self.post("lease/keepalive", &json!({ "ID": lease }))?;
            // A lease that is over has no TTL.
            let ttl = answer.pointer("/result/TTL").and_then(Value::as_str);
            if ttl.is_none_or(|ttl| ttl == "0") {
                *self.lock() = None;
            }
        }
        let (key, lease) = (self.key(&format!("ranks/{rank}")), self.leased()?);
        let value = BASE64.encode(control.to_string());
        let put = json!({ "key": key, "value": value, "lease": lease });
        self.post("kv/put", &put).map(drop)
    }

    /// Where ranks of the job are, or were within the last minute.
    pub(crate) fn ranks(&self) -> Result<Vec<(u32, Address)>> {
        let (from, to) = (self.key("ranks/"), self.key("ranks0"));
        let found = self.range(&json!({ "key": from, "range_end": to }))?;
        let of = |pair: &Pair| {
            let key = text_of(&pair.key)?;
            let rank = key.rsplit('/').next()?.parse().ok()?;
            Some((rank, text_of(&pair.value)?.parse().ok()?))
        };
        Ok(found.iter().filter_map(of).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> Option<String> {
        self.lock().clone()
    }

    fn leased(&self) -> Result<String> {
        if let Some(lease) = self.lease() {
            return Ok(lease);
        }
        let granted = self.post("lease/grant", &json!({ "TTL": LEASE_S.to_string() }))?;
        let id = granted.get("ID").and_then(Value::as_str).map(str::to_string);
        let id = id.ok_or_else(|| Error::disconnected("etcd granted no lease".to_string()))?;
        Ok(self.lock().insert(id).clone())
    }
}

fn text_of(base64: &str) -> Option<String> {
    String::from_utf8(BASE64.decode(base64).ok()?).ok()
}
