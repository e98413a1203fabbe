//! Waiting for objects that are being written, or that nobody has opened yet. In mapped memory the
//! caller watches the words itself: indexes, and headers of open plans. For all else it has one
//! request at the master, which is answered when something has changed. Neither polls the other.

mod waits;
mod watching;

use super::find::{moves_on, shown};
use super::read::Miss;
use super::{Client, check_keys, filled, key_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{
    AwaitReady, MAX_AWAIT_MS, MAX_BATCH, MAX_PLACES, ObjMeta, Readiness, Request, Response,
    SlotRef, Via,
};
use crate::race::race;
use bytes::Bytes;
use nkv_store::KeyId;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use waits::Answer;
pub(super) use waits::Waits;
use watching::{CHECKS_PER_YIELD, KEYS_PER_CHECK};

/// Pause after a request that failed, before it is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the master waits for an answer of owners at least.
const LEAST_WAIT_MS: u64 = 30;

/// Where a key can be read, and what led there.
type Found = (ObjMeta, Via);

/// What is known about a key.
#[derive(Debug)]
struct Awaited {
    key: Box<[u8]>,
    id: KeyId,
    /// Where it was found and then could not be read.
    gone: SmallVec<[SlotRef; 1]>,
    /// Where a plan writes it, in mapped memory.
    writing: Option<ObjMeta>,
}

/// Keys in the order in which they become readable. Made by [`Client::when_ready`].
pub struct WhenReady {
    client: Client,
    keys: Vec<Awaited>,
    // Which of them are not READY yet.
    pending: BTreeSet<usize>,
    found: VecDeque<(usize, Result<Found>)>,
    // The request at the master, and the keys in it.
    asked: Option<(Vec<usize>, Answer)>,
    // Whether the master has answered once: without any time, too.
    has_asked: bool,
    // Why the last one failed, or the last read; and whether the next one is worth a pause.
    failed: Option<Error>,
    pauses: bool,
    // The key at which the next check begins.
    check_from: usize,
    // When the caller began to wait for the next key.
    waits_from_ns: u64,
    limit: Duration,
    until_ns: u64,
    // Whether it was tried to attach to the owners that the keys' hashes lead to.
    attached: bool,
}

impl std::fmt::Debug for WhenReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WhenReady({} of {} keys pending)", self.pending.len(), self.keys.len())
    }
}

/// What ended a wait.
enum Woken {
    Answered(Result<Response>),
    Pause,
}

impl Client {
    /// Bytes of an object, once it is READY: also if it is still being written, or not even opened.
    /// `Timeout` if that takes longer than `limit`, which is 30 ms at least. `Reclaimed` if a plan
    /// that writes it meanwhile ends without it: the message says why. If the producer of a put
    /// through a log dies, the wait lasts until its limit.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # use std::time::Duration;
    /// # example::on_one_rank("get-when-ready", async |cache| {
    /// let prefill = cache.clone();
    /// let decode = cache.get_when_ready(b"block/1", Duration::from_secs(5));
    /// let put = async { prefill.put(b"block/1", b"kv bytes", &PutOptions::default()).await };
    /// let (bytes, put) = tokio::join!(decode, put);
    /// put?;
    /// assert_eq!(bytes?, &b"kv bytes"[..]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_when_ready(&self, key: &[u8], limit: Duration) -> Result<Bytes> {
        if let Some(done) = self.get_now(key) {
            return done;
        }
        let mut when = self.when_ready(&[key], limit).map_err(|e| e.about(key))?;
        let next = when.next().await;
        next.map_or_else(|| Err(Error::internal("a key that was never decided")), |(_, done)| done)
    }

    /// Reads many once they are READY, each as soon as it is; one result per item, in order. What
    /// is undefined is as in [`Client::get_into`].
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # use std::time::Duration;
    /// # example::on_one_rank("get-many-when-ready", async |cache| {
    /// cache.put(b"layer/0", b"first", &PutOptions::default()).await?;
    /// let (mut one, mut two) = ([0; 64], [0; 64]);
    /// let mut items: [(&[u8], &mut [u8]); 2] = [(b"layer/0", &mut one), (b"layer/1", &mut two)];
    /// let read = cache.get_many_when_ready_into(&mut items, Duration::from_millis(20)).await;
    /// assert_eq!(read[0], Ok(5));
    /// assert_eq!(read[1].as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn get_many_when_ready_into(
        &self,
        items: &mut [(&[u8], &mut [u8])],
        limit: Duration,
    ) -> Vec<Result<usize>> {
        let mut done = self.read_many_now(items);
        let open: Vec<usize> = (0..items.len()).filter(|i| done[*i].is_none()).collect();
        let keys: Vec<&[u8]> = open.iter().map(|i| items[*i].0).collect();
        let mut when = match self.when_ready(&keys, limit) {
            Ok(when) => when,
            Err(e) => return filled(done, open.iter().map(|_| Err(e.clone())).collect()),
        };
        while let Some(located) = when.next_locations().await {
            let mut wanted = BTreeMap::new();
            for (n, located) in located {
                match located {
                    Ok(found) => drop(wanted.insert(open[n], (n, found))),
                    Err(e) => done[open[n]] = Some(Err(e)),
                }
            }
            let mut reads: Vec<_> = items
                .iter_mut()
                .enumerate()
                .filter_map(|(i, (_, dst))| Some((&wanted.get(&i)?.1, &mut **dst)))
                .map(|((meta, via), dst)| ((meta, Some(*via)), dst))
                .collect();
            let read = self.read_all(&mut reads).await;
            for ((i, (n, (meta, _))), read) in wanted.iter().zip(read) {
                let read = read.map_err(|miss| when.missed(*n, meta.at, miss));
                done[*i] = match read {
                    Ok(n) => Some(Ok(n)),
                    Err(Some(e)) => Some(Err(e)),
                    Err(None) => continue,
                };
            }
        }
        let mut done = filled(done, Vec::new());
        self.join_all(items, &mut done).await;
        done
    }

    /// Keys in the order in which they become readable, for callers that begin with what is there:
    /// the layers of a prompt whose prefill is still running. What is not READY after `limit` from
    /// now is a `Timeout`.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # use std::time::Duration;
    /// # example::on_one_rank("when-ready", async |cache| {
    /// cache.put(b"layer/1", b"kv bytes", &PutOptions::default()).await?;
    /// let layers: [&[u8]; 2] = [b"layer/0", b"layer/1"];
    /// let mut ready = cache.when_ready(&layers, Duration::from_secs(5))?;
    /// let (layer, bytes) = ready.next().await.unwrap();
    /// assert_eq!((layer, bytes?), (1, bytes::Bytes::from_static(b"kv bytes")));
    /// # Ok(())
    /// # });
    /// ```
    pub fn when_ready(&self, keys: &[&[u8]], limit: Duration) -> Result<WhenReady> {
        self.check_usable()?;
        check_keys(keys)?;
        if keys.len() > MAX_BATCH {
            let text = format!("{} keys to wait for; at most {MAX_BATCH} at once", keys.len());
            return Err(Error::invalid(text));
        }
        let awaited = |key: &[u8]| {
            let id = self.shared.keys.now().id(key);
            Awaited { key: key.into(), id, gone: SmallVec::new(), writing: None }
        };
        let now_ns = self.shared.env.clock.now_ns();
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Ok(WhenReady {
            client: self.clone(),
            keys: keys.iter().map(|key| awaited(key)).collect(),
            pending: (0..keys.len()).collect(),
            found: VecDeque::new(),
            asked: None,
            has_asked: false,
            failed: None,
            pauses: false,
            check_from: 0,
            waits_from_ns: now_ns,
            limit,
            until_ns: now_ns.saturating_add(limit_ns),
            attached: false,
        })
    }
}

impl WhenReady {
    /// The next key that is READY, as its number among the keys, with its bytes; or one that failed
    /// as [`Client::get_when_ready`] does. None once all have been returned. If this call is
    /// dropped, the next one returns what it would have returned.
    pub async fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        loop {
            self.wait().await;
            let (n, located) = self.found.front()?.clone();
            let read = match &located {
                Ok((meta, via)) => {
                    let key = &self.keys.get(n)?.key;
                    let read = match self.client.read_whole(meta, Some(*via)).await {
                        Ok(stored) => self.client.whole(key, stored).await.map_err(|e| match e {
                            // A stripe is gone, and with it the object.
                            e if e.kind() == ErrorKind::NotFound => Miss::Changed,
                            e => Miss::Fatal(e),
                        }),
                        Err(miss) => Err(miss),
                    };
                    Some((meta.at, read))
                }
                Err(_) => None,
            };
            self.found.pop_front();
            let done = match (located, read) {
                (_, Some((_, Ok(bytes)))) => Ok(bytes),
                (_, Some((at, Err(miss)))) => match self.missed(n, at, miss) {
                    Some(e) => Err(e),
                    None => continue,
                },
                (located, None) => located.map(|_| Bytes::new()),
            };
            return Some((n, done));
        }
    }

    /// As [`WhenReady::next`], with the location in place of the bytes, for
    /// [`Client::read_into`].
    pub async fn next_location(&mut self) -> Option<(usize, Result<ObjMeta>)> {
        self.wait().await;
        self.found.pop_front().map(|(n, located)| (n, located.map(|(meta, _)| meta)))
    }

    /// All keys of which something is known, once there is one; None at the end.
    async fn next_locations(&mut self) -> Option<Vec<(usize, Result<Found>)>> {
        self.wait().await;
        let found: Vec<_> = self.found.drain(..).collect();
        (!found.is_empty()).then_some(found)
    }

    /// The next key with this error: the handle cannot be used here.
    pub(super) fn failed(&mut self, e: &Error) -> Option<(usize, Result<Bytes>)> {
        self.fail_all(|_| e.clone());
        self.found.pop_front().map(|(n, _)| (n, Err(e.clone())))
    }

    /// An object could not be read where it was found: its key is awaited again, unless this is an
    /// error that stays.
    fn missed(&mut self, n: usize, at: SlotRef, miss: Miss) -> Option<Error> {
        let Awaited { key, gone, writing, .. } = &mut self.keys[n];
        match miss {
            Miss::Fatal(e) if stays(e.kind()) => return Some(e.about(key)),
            Miss::Changed if gone.len() >= MAX_PLACES => return Some(moves_on(key).about(key)),
            Miss::Changed => gone.push(at),
            Miss::Fatal(e) | Miss::Unreached(e) => (self.failed, self.pauses) = (Some(e), true),
        }
        *writing = None;
        self.client.shared.locations.forget(key);
        self.pending.insert(n);
        None
    }

    /// Waits until something is found, or nothing is left to wait for.
    async fn wait(&mut self) {
        self.waits_from_ns = self.now_ns();
        if std::mem::take(&mut self.pauses) {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        while self.found.is_empty() && !self.pending.is_empty() {
            if let Err(e) = self.client.check_usable() {
                return self.fail_all(|_| e.clone());
            }
            // A thread serves its connection only now and then while it spins.
            for _ in 0..if self.spins() { CHECKS_PER_YIELD } else { 1 } {
                self.check_words();
                if !self.found.is_empty() {
                    return;
                }
            }
            if self.now_ns() >= self.until_ns && self.has_asked {
                return self.time_is_over();
            }
            if !std::mem::replace(&mut self.attached, true) {
                self.attach().await;
            }
            match self.woken().await {
                Woken::Answered(answer) => self.answered(answer).await,
                Woken::Pause => {}
            }
        }
    }

    /// Until the master answers, or it is time for the next check.
    async fn woken(&mut self) -> Woken {
        let asked = self.asked.take();
        let (of, mut answer) = asked.unwrap_or_else(|| self.ask());
        let pause = self.pause();
        let answered = async { Woken::Answered(answer.as_mut().await) };
        let paused = async {
            pause.await;
            Woken::Pause
        };
        let woken = race(answered, paused).await;
        self.asked = Some((of, answer));
        woken
    }

    /// Asks the master about everything that is pending.
    fn ask(&self) -> (Vec<usize>, Answer) {
        let of: Vec<usize> = self.pending.iter().copied().collect();
        let pending = || self.pending.iter().map(|n| &self.keys[*n]);
        let keys: Vec<&[u8]> = pending().map(|p| &*p.key).collect();
        let left_ms = self.until_ns.saturating_sub(self.now_ns()).div_ceil(1_000_000);
        // Owners are asked, too, before nothing is the answer.
        let wait_ms = left_ms.clamp(LEAST_WAIT_MS, MAX_AWAIT_MS);
        let shared = &self.client.shared;
        let request = AwaitReady {
            keys: key_bytes(&keys),
            wait_ms,
            mapped: shared.peers.mapped().iter().map(|peer| peer.incarnation).collect(),
            watched: pending().filter_map(|p| Some(p.writing.as_ref()?.at)).collect(),
            gone: pending().flat_map(|p| p.gone.iter().copied()).collect(),
        };
        let limit = Duration::from_millis(wait_ms) + self.client.limit();
        shared.messages.waited.one();
        (of, self.client.waits.ask(Request::AwaitReady(request), limit))
    }

    /// Takes the master's answer.
    async fn answered(&mut self, answer: Result<Response>) {
        let Some((of, _)) = self.asked.take() else { return };
        self.has_asked = true;
        let list = match answer {
            Ok(Response::Readiness(list)) => list,
            Ok(other) => {
                let e = self.client.pool.unexpected("AwaitReady", &other);
                return self.fail_all(|_| e.clone());
            }
            Err(e) if e.kind() == ErrorKind::InvalidArgument => {
                return self.fail_all(|_| e.clone());
            }
            // The master may be starting, or its host may be cut off.
            Err(e) => {
                self.failed = Some(e);
                return tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        self.failed = None;
        for (n, of_key) in list {
            let Some(n) = of.get(n as usize) else { continue };
            // Its words may have been seen meanwhile.
            if !self.pending.contains(n) {
                continue;
            }
            let Awaited { key, gone, writing, .. } = &mut self.keys[*n];
            let decided = match of_key {
                Readiness::Ready(places) => {
                    let new = places.into_iter().find(|meta| !gone.contains(&meta.at));
                    new.inspect(|meta| self.client.shared.locations.keep(key, meta))
                        .map(|meta| Ok((meta, Via::Master)))
                }
                Readiness::Writing(meta) => {
                    *writing = Some(meta);
                    None
                }
                Readiness::Ended(e) => Some(Err(e.about(key))),
            };
            if let Some(decided) = decided {
                self.pending.remove(n);
                self.found.push_back((*n, decided));
            }
        }
    }

    fn time_is_over(&mut self) {
        // Each check is of some keys: none fails that could be read.
        for _ in 0..self.pending.len().div_ceil(KEYS_PER_CHECK) {
            self.check_words();
        }
        let (ms, failed) = (self.limit.as_millis(), self.failed.take());
        let why = failed.map(|e| format!("; the last thing that went wrong: {}", e.message()));
        let why = why.unwrap_or_default();
        self.fail_all(|Awaited { key, writing, gone, .. }| {
            let state = match writing {
                Some(meta) => format!("it is being written to rank {}", meta.rank),
                None if gone.is_empty() => "no readable object was seen".to_string(),
                None => format!("it was seen and gone again {} times", gone.len()),
            };
            Error::timeout(format!("key {} was not READY within {ms} ms: {state}{why}", shown(key)))
        });
    }

    fn fail_all(&mut self, why: impl Fn(&Awaited) -> Error) {
        for n in std::mem::take(&mut self.pending) {
            let of = &self.keys[n];
            self.found.push_back((n, Err(why(of).about(&of.key))));
        }
    }

    fn now_ns(&self) -> u64 {
        self.client.shared.env.clock.now_ns()
    }
}

/// Whether an error of a read will be the same later.
fn stays(kind: ErrorKind) -> bool {
    use ErrorKind::{Corrupt, InvalidArgument, Unsupported};
    matches!(kind, InvalidArgument | Corrupt | Unsupported)
}

impl Drop for WhenReady {
    fn drop(&mut self) {
        match self.asked.take() {
            // A forked child must not touch its parent's sockets.
            Some(asked) if !self.client.shared.made.is_here() => std::mem::forget(asked),
            Some((_, answer)) => self.client.waits.park(answer),
            None => {}
        }
    }
}
