//! Keys that callers wait for at the master: what the log accepts under them is sent at once, and
//! not with its key string later.

use hashbrown::HashMap;
use nkv_store::KeyId;
use nkv_store::device_log::LogObject;

/// Most keys that are awaited at a time. What is accepted under further ones is announced with its
/// key string, up to 200 ms later.
const MAX_AWAITED: usize = 1 << 18;

/// How often keys whose time is over are forgotten.
const EXPIRE_EVERY_NS: u64 = 100_000_000;

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(super) struct AwaitedKeys {
    until_ns: HashMap<KeyId, u64>,
    // When those are forgotten next whose time is over.
    next_ns: u64,
}

impl AwaitedKeys {
    /// Awaits a key until a time on the owner's clock.
    pub(super) fn insert(&mut self, key: KeyId, until_ns: u64) {
        if self.until_ns.len() < MAX_AWAITED || self.until_ns.contains_key(&key) {
            let until = self.until_ns.entry(key).or_default();
            *until = until_ns.max(*until);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.until_ns.is_empty()
    }

    /// Takes those of these objects whose keys are awaited.
    pub(super) fn take(&mut self, accepted: &[LogObject]) -> Vec<LogObject> {
        let awaited = |o: &&LogObject| self.until_ns.remove(&o.key).is_some();
        accepted.iter().filter(awaited).copied().collect()
    }

    pub(super) fn contains(&self, key: &KeyId) -> bool {
        self.until_ns.contains_key(key)
    }

    /// Forgets keys whose time is over.
    pub(super) fn expire(&mut self, now_ns: u64) {
        if now_ns >= self.next_ns && !self.until_ns.is_empty() {
            self.until_ns.retain(|_, until| *until > now_ns);
            self.next_ns = now_ns + EXPIRE_EVERY_NS;
        }
    }
}
