//! The load: tasks that put, get, look up and remove through their own handles and check every
//! answer at once. They pause between calls, so that two cores leave room for what is tested.

use super::board::{
    Fate, POOL_KEYS, SharedState, Stored, Victim, is_expected_of_dead_rank,
    is_expected_without_master,
};
use crate::content;
use crate::random::Random;
use nkv::message::Existence;
use nkv::{Address, Client, ClientConfig, Error, ErrorKind, PutOptions, TransportChoice};
use nkv_store::key::key_hash;
use std::sync::Arc;
use std::time::Duration;

/// Largest object: several pages of [`PAGE_BYTES`].
const MAX_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u32 = 64 << 10;
/// Longest pause between two calls of a task.
const MAX_PAUSE_US: u64 = 2_000;
/// Keys in one batch of `exists`.
const EXISTS_KEYS: u64 = 8;
/// Of a hundred puts so many ask for a log.
const LOG_PERCENT: u64 = 50;
/// Of a hundred views so many are held, each for at most this long.
const HELD_PERCENT: u64 = 30;
const MAX_HELD_MS: u64 = 10;

/// Connects to any node of the cluster.
pub async fn connect(node: &Address, job: &str, transport: TransportChoice) -> Client {
    let config = ClientConfig { job: job.to_string(), transport, ..ClientConfig::default() };
    Client::connect(node, config).await.unwrap_or_else(|e| panic!("connect to {node}: {e}"))
}

/// The doomed rank before and after a call.
type Dooms = (Option<Victim>, Option<Victim>);

/// One task of the load.
pub struct Worker {
    /// Its handle.
    pub client: Client,
    /// State shared by all tasks.
    pub board: Arc<SharedState>,
    /// Its random choices.
    pub random: Random,
    /// Prefix of its keys.
    pub name: String,
    /// Ranks of the cluster.
    pub ranks: u32,
    /// True if it maps the memory of the ranks, and so can view objects in place.
    pub maps: bool,
    /// Keys it made.
    pub made: u64,
    /// What it removed.
    pub gone: Vec<Stored>,
}

impl Worker {
    /// Works until the board says stop.
    pub async fn run(mut self) -> Self {
        while !self.board.stopped() {
            match self.random.below(20) {
                0..=3 => self.get().await,
                4..=7 if self.maps => self.view_in_place().await,
                4..=11 => self.read_where_it_lay().await,
                12..=13 => self.exists().await,
                14 => self.read_what_is_gone().await,
                15..=17 if self.board.len() < POOL_KEYS => self.put().await,
                _ => self.put_and_remove().await,
            }
            let pause = Duration::from_micros(self.random.below(MAX_PAUSE_US));
            tokio::time::sleep(pause).await;
        }
        self
    }

    /// Checks the error of a call that needs the master and an owner; `meets`: that owner may be
    /// the doomed one.
    fn judge(&self, verb: &str, key: &[u8], e: &Error, (dooms, meets): (Dooms, bool)) {
        let without_master = [dooms.0, dooms.1].into_iter().flatten().any(Victim::is_master);
        let excused = (meets && is_expected_of_dead_rank(e))
            || (without_master && is_expected_without_master(e));
        if !excused {
            self.fault(verb, key, e);
        }
    }

    fn fault(&self, verb: &str, key: &[u8], e: &Error) {
        let (key, doomed) = (String::from_utf8_lossy(key), self.board.doomed());
        self.board.calls.fault(format!("{verb} {key}: {e} (doomed: {doomed:?})"));
    }

    fn on_doomed(stored: &Stored, dooms: Dooms) -> bool {
        let lies = stored.meta.as_ref().map(|m| m.at.incarnation);
        [dooms.0, dooms.1].into_iter().flatten().any(|d| Some(d.incarnation) == lies)
    }

    async fn get(&mut self) {
        if let Some(s) = self.board.pick(&mut self.random) {
            self.get_of(&s).await;
        }
    }

    async fn get_of(&self, s: &Stored) {
        let (before, what) = (self.board.doomed(), shown(&s.key));
        match self.board.calls.make("get", &what, self.client.get(&s.key)).await {
            Ok(got) => drop(self.board.calls.compare(&s.key, s.version, s.len, &got)),
            Err(e) if self.board.log_made_room(s, &e) => {}
            Err(e) => {
                let dooms = (before, self.board.doomed());
                self.judge("get", &s.key, &e, (dooms, Self::on_doomed(s, dooms)));
            }
        }
    }

    /// Views an object; some views are held for a while, and their bytes must not change until they
    /// are dropped [I9].
    async fn view_in_place(&mut self) {
        let Some(s) = self.board.pick(&mut self.random) else {
            return;
        };
        let (before, what) = (self.board.doomed(), shown(&s.key));
        match self.board.calls.make("get_view", &what, self.client.get_view(&s.key)).await {
            Ok(view) => {
                self.board.calls.compare(&s.key, s.version, s.len, &view);
                if self.random.percent(HELD_PERCENT) {
                    let held = self.random.between(1, MAX_HELD_MS);
                    tokio::time::sleep(Duration::from_millis(held)).await;
                    self.board.calls.compare(&s.key, s.version, s.len, &view);
                }
            }
            Err(e) if self.board.log_made_room(&s, &e) => {}
            Err(e) => {
                let dooms = (before, self.board.doomed());
                self.judge("get_view", &s.key, &e, (dooms, Self::on_doomed(&s, dooms)));
            }
        }
    }

    /// Reads one-sided by an old location.
    async fn read_where_it_lay(&mut self) {
        let Some(s) = self.board.pick(&mut self.random) else {
            return;
        };
        let Some(meta) = &s.meta else {
            return self.get().await;
        };
        let (before, what) = (self.board.doomed(), shown(&s.key));
        let mut dst = vec![0; s.len];
        let read = self.client.read_into(meta, &mut dst);
        match self.board.calls.make("read_into", &what, read).await {
            Ok(n) => drop(self.board.calls.compare(&s.key, s.version, s.len, &dst[..n])),
            // The log's owner may have copied it: then it is found by its key.
            Err(e) if e.kind() == ErrorKind::NotFound && self.board.mark(&s).is_some() => {
                self.get_of(&s).await;
            }
            Err(e) if self.board.log_made_room(&s, &e) => {}
            // It needs only the owner, so the master's absence excuses no error.
            Err(e) => {
                let on_doomed = Self::on_doomed(&s, (before, self.board.doomed()));
                if !on_doomed || !is_expected_of_dead_rank(&e) {
                    self.fault("read_into", &s.key, &e);
                }
            }
        }
    }

    async fn exists(&mut self) {
        let before = self.board.doomed();
        let some = (0..EXISTS_KEYS).filter_map(|_| self.board.pick(&mut self.random));
        let some: Vec<_> = some.collect();
        let keys: Vec<&[u8]> = some.iter().map(|s| &s.key[..]).collect();
        let asked = self.client.exists(&keys);
        // Only the master is needed.
        match self.board.calls.make("exists", "a batch", asked).await {
            Ok(list) => {
                for (s, found) in some.iter().zip(list) {
                    if found == Existence::Ready || self.is_found(s).await {
                        continue;
                    }
                    // Read after the answer.
                    let excused = Self::on_doomed(s, (before, self.board.doomed()));
                    if !excused && !self.board.passed(s) {
                        let text = format!("exists {}: {found:?}", shown(&s.key));
                        self.board.calls.fault(text);
                    }
                }
            }
            Err(e) => {
                let dooms = (before, self.board.doomed());
                self.judge("exists", b"a batch", &e, (dooms, false));
            }
        }
    }

    /// An object in a log is listed once its producer has sent its key, and can be read before
    /// that; a killed producer sent no keys.
    async fn is_found(&self, s: &Stored) -> bool {
        self.board.mark(s).is_some() && self.client.get_location(&s.key).await.is_ok()
    }

    /// Puts a new key and asks for its location.
    async fn put(&mut self) {
        if let Some(put) = self.put_fresh().await {
            self.board.add(put);
        }
    }

    async fn put_fresh(&mut self) -> Option<Stored> {
        self.made += 1;
        let key = format!("{}/{}", self.name, self.made).into_bytes();
        let version = self.random.next();
        let len = self.object_len();
        let by_log = self.random.percent(LOG_PERCENT);
        let preferred =
            self.random.percent(70).then(|| self.random.below(self.ranks.into()) as u32);
        let bytes = content::bytes(&key, version, len);
        let opts = PutOptions::default()
            .preferred_rank(preferred)
            .page_bytes(PAGE_BYTES)
            .device_alloc(by_log);
        // In case the object's location is not known afterwards.
        let owner = preferred.unwrap_or((key_hash(&key) % u64::from(self.ranks)) as u32);
        let mark = self.board.logs.mark_now(owner).filter(|_| by_log);
        let (before, what) = (self.board.doomed(), shown(&key));
        let put = self.client.put(&key, &bytes, &opts);
        let verb = if by_log { "put into a log" } else { "put" };
        let done = self.board.calls.make(verb, &what, put).await;
        let mut stored = Stored { key, version, len, meta: None, mark };
        let dooms = |board: &SharedState| (before, board.doomed());
        // Routed by the key's hash it may need the doomed rank; with a living preferred rank it may
        // not.
        let meets = |(a, b): Dooms| {
            let mut doomed = [a, b].into_iter().flatten();
            doomed.any(|d| preferred.is_none_or(|p| p == d.rank))
        };
        if let Err(e) = done {
            let dooms = dooms(&self.board);
            self.judge("put", &stored.key, &e, (dooms, meets(dooms)));
            self.board.add_failed(stored, &e);
            return None;
        }
        let found = self.client.get_location(&stored.key);
        let found = self.board.calls.make("get_location", &what, found).await;
        match found.map(|at| at.into_memory().expect("no node has a disk")) {
            Ok(meta) => {
                if !self.board.logs.knows(meta.at.incarnation)
                    && let Ok(view) = self.client.membership().await
                {
                    self.board.logs.note(&view);
                }
                stored.mark = self.board.logs.mark_of(&meta);
                stored.meta = Some(meta);
            }
            Err(e) if self.board.log_made_room(&stored, &e) => return None,
            Err(e) => {
                let dooms = dooms(&self.board);
                self.judge("get_location after put", &stored.key, &e, (dooms, meets(dooms)));
                // Acknowledged: it may be lost only if it was put on the doomed rank.
                let fate = if meets(dooms) { Fate::Either } else { Fate::Whole };
                self.board.add_unsure(stored, fate);
                return None;
            }
        }
        Some(stored)
    }

    /// A location of a removed object is never readable again, whatever lies there now [I3].
    async fn read_what_is_gone(&mut self) {
        if self.gone.is_empty() {
            return;
        }
        let s = &self.gone[self.random.below(self.gone.len() as u64) as usize];
        let Some(meta) = &s.meta else { return };
        let (what, mut dst) = (shown(&s.key), vec![0; s.len]);
        let read = self.client.read_into(meta, &mut dst);
        match self.board.calls.make("read_into gone", &what, read).await {
            // Disconnected: its owner died since, in this round or an earlier one.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Disconnected) => {}
            Ok(_) => self.board.calls.fault(format!("{what} was removed and is read where it lay")),
            Err(e) => self.board.calls.fault(format!("{what}, removed, read where it lay: {e}")),
        }
    }

    fn object_len(&mut self) -> usize {
        let len = match self.random.below(10) {
            0 => self.random.below(2),
            1..=5 => self.random.between(1, 16 << 10),
            _ => self.random.between(16 << 10, MAX_BYTES),
        };
        len as usize
    }

    /// Puts and removes a key, which must stay absent.
    async fn put_and_remove(&mut self) {
        let Some(s) = self.put_fresh().await else {
            return;
        };
        let (before, what) = (self.board.doomed(), shown(&s.key));
        // Held until it was removed and looked up: its bytes must not change.
        let view = if self.maps { self.client.get_view(&s.key).await.ok() } else { None };
        let gone = self.board.calls.make("remove", &what, self.client.remove(&s.key)).await;
        if gone.as_ref().is_err_and(|e| self.board.log_made_room(&s, e)) {
            return;
        }
        if let Err(e) = gone {
            let dooms = (before, self.board.doomed());
            // The log of a dead rank may hold any key until that rank is gone.
            let meets = dooms.0.or(dooms.1).is_some();
            self.judge("remove", &s.key, &e, (dooms, meets));
            self.board.add_unsure(s, Fate::Either);
            return;
        }
        match self.board.calls.make("get removed", &what, self.client.get(&s.key)).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Ok(_) => self.board.calls.fault(format!("{what} was removed and is read")),
            Err(e) => {
                let dooms = (before, self.board.doomed());
                self.judge("get removed", &s.key, &e, (dooms, Self::on_doomed(&s, dooms)));
            }
        }
        if let Some(view) = view {
            self.board.calls.compare(&s.key, s.version, s.len, &view);
        }
        self.gone.push(s);
    }
}

/// A key in a message.
pub fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
