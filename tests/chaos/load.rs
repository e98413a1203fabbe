//! The load: tasks that put, get, look up and remove through their own handles and judge every
//! answer at once. They pause between calls, so that two cores leave room for what is tested.

use super::board::{Board, Doomed, POOL_KEYS, Stored, tells_of_death};
use super::content;
use super::random::Random;
use nkv::message::{Existence, PutOptions};
use nkv::{Address, Client, ClientConfig, Error, ErrorKind, TransportChoice};
use std::sync::Arc;
use std::time::Duration;

/// Largest object: several pages of [`PAGE_BYTES`].
const MAX_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u32 = 64 << 10;
/// Longest pause between two calls of a task.
const MAX_PAUSE_US: u64 = 2_000;
/// Keys in one batch of `exists`.
const EXISTS_KEYS: u64 = 8;

/// Connects to any node of the cluster.
pub async fn connect(node: &Address, job: &str, transport: TransportChoice) -> Client {
    let config = ClientConfig { job: job.to_string(), transport, ..ClientConfig::default() };
    Client::connect(node, config).await.unwrap_or_else(|e| panic!("connect to {node}: {e}"))
}

/// One task of the load.
pub struct Worker {
    /// Its handle.
    pub client: Client,
    /// What all tasks know.
    pub board: Arc<Board>,
    /// Its choices.
    pub random: Random,
    /// Begins its keys.
    pub name: String,
    /// Ranks of the cluster.
    pub ranks: u32,
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
                0..=5 => self.get().await,
                6..=11 => self.read_where_it_lay().await,
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

    /// An error on an object of `incarnation` (None: wherever it lies, it is not the doomed one's).
    fn judge(&self, verb: &str, key: &[u8], e: &Error, excused: bool) {
        if !excused || !tells_of_death(e) {
            let (key, doomed) = (String::from_utf8_lossy(key), self.board.doomed());
            self.board.calls.fault(format!("{verb} {key}: {e} (doomed: {doomed:?})"));
        }
    }

    fn on_doomed(stored: &Stored, before: Option<Doomed>, after: Option<Doomed>) -> bool {
        let lies = stored.meta.as_ref().map(|m| m.at.incarnation);
        let dooms = |d: Option<Doomed>| d.is_some_and(|d| Some(d.incarnation) == lies);
        dooms(before) || dooms(after)
    }

    async fn get(&mut self) {
        let Some(s) = self.board.pick(&mut self.random) else {
            return;
        };
        let (before, what) = (self.board.doomed(), shown(&s.key));
        match self.board.calls.make("get", &what, self.client.get(&s.key)).await {
            Ok(got) => drop(self.board.calls.compare(&s.key, s.version, s.len, &got)),
            Err(e) => {
                let excused = Self::on_doomed(&s, before, self.board.doomed());
                self.judge("get", &s.key, &e, excused);
            }
        }
    }

    /// One-sided, without asking anyone where it lies now.
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
            Err(e) => {
                let excused = Self::on_doomed(&s, before, self.board.doomed());
                self.judge("read_into", &s.key, &e, excused);
            }
        }
    }

    async fn exists(&mut self) {
        let before = self.board.doomed();
        let some = (0..EXISTS_KEYS).filter_map(|_| self.board.pick(&mut self.random));
        let some: Vec<_> = some.collect();
        let keys: Vec<&[u8]> = some.iter().map(|s| &s.key[..]).collect();
        let asked = self.client.exists(&keys, false);
        // Only the master is needed, and it lives.
        match self.board.calls.make("exists", "a batch", asked).await {
            Ok(list) => {
                for (s, found) in some.iter().zip(list) {
                    let excused = Self::on_doomed(s, before, self.board.doomed());
                    if found != Existence::Ready && !excused {
                        let text = format!("exists {}: {found:?}", shown(&s.key));
                        self.board.calls.fault(text);
                    }
                }
            }
            Err(e) => self.judge("exists", b"a batch", &e, false),
        }
    }

    /// Puts a fresh key somewhere, and learns where.
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
        let preferred =
            self.random.percent(70).then(|| self.random.below(self.ranks.into()) as u32);
        let bytes = content::bytes(&key, version, len);
        let opts = PutOptions { preferred_segment: preferred, page_bytes: PAGE_BYTES };
        let (before, what) = (self.board.doomed(), shown(&key));
        let put = self.client.put(&key, &bytes, &opts);
        let done = self.board.calls.make("put", &what, put).await;
        let mut stored = Stored { key, version, len, meta: None };
        let doomed = before.or(self.board.doomed());
        // Routed by the key's hash it may meet the doomed rank; sent to a living one it may not.
        let may_meet = doomed.is_some_and(|d| preferred.is_none_or(|p| p == d.rank));
        if let Err(e) = done {
            self.judge("put", &stored.key, &e, may_meet);
            self.board.add_unsure(stored);
            return None;
        }
        let found = self.client.get_location(&stored.key);
        match self.board.calls.make("get_location", &what, found).await {
            Ok(meta) => stored.meta = Some(meta),
            Err(e) => {
                let doomed = doomed.or(self.board.doomed());
                let may_meet = doomed.is_some_and(|d| preferred.is_none_or(|p| p == d.rank));
                self.judge("get_location after put", &stored.key, &e, may_meet);
                self.board.add_unsure(stored);
                return None;
            }
        }
        Some(stored)
    }

    /// A location never comes back, whatever lies there by now [I3].
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
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::Disconnected) => {}
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

    /// What was removed never comes back.
    async fn put_and_remove(&mut self) {
        let Some(s) = self.put_fresh().await else {
            return;
        };
        let (before, what) = (self.board.doomed(), shown(&s.key));
        let gone = self.board.calls.make("remove", &what, self.client.remove(&s.key)).await;
        let excused = |s: &Stored, board: &Board| Self::on_doomed(s, before, board.doomed());
        if let Err(e) = gone {
            self.judge("remove", &s.key, &e, excused(&s, &self.board));
            self.board.add_unsure(s);
            return;
        }
        match self.board.calls.make("get removed", &what, self.client.get(&s.key)).await {
            Err(e) if e.kind == ErrorKind::NotFound => self.gone.push(s),
            Ok(_) => self.board.calls.fault(format!("{what} was removed and is read")),
            Err(e) => self.judge("get removed", &s.key, &e, excused(&s, &self.board)),
        }
    }
}

/// A key in a message.
pub fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
