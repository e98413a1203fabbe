//! Striped objects: puts that cut a value into stripes for several ranks, and reads that join them.
//! A put writes the stripes, all of them at once, and then the manifest: before that nobody finds
//! the object. A read that misses a stripe removes the manifest: the object is gone, and its key
//! can be put again.

use super::find::shown;
use super::{Client, IfExists, PutOptions, key_bytes, one};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Existence, KeyBytes, Location, RankState, Request};
use crate::striping::{MANIFEST_BYTES, MAX_STRIPES, Manifest, check_new, put_of, stripes_of};
use bytes::Bytes;
use nkv_store::Key;
use nkv_store::key::key_hash;

/// Stripes of a value above `ClientConfig::stripe_above`, at most.
const USUAL_STRIPES: u8 = 8;

impl Client {
    /// How many stripes a put of a value of so many bytes makes now, with so many ranks; 1: it is
    /// stored as a whole.
    #[inline]
    pub fn stripes_for(&self, bytes: usize, opts: &PutOptions) -> u8 {
        let above = self.shared.config.stripe_above;
        let wanted = match opts.stripes {
            Some(stripes) => stripes,
            None if above > 0 && bytes as u64 > above => USUAL_STRIPES,
            None => 1,
        };
        if wanted < 2 || opts.restores {
            return 1;
        }
        let most = wanted.min(MAX_STRIPES).min(self.shared.ranks_for_stripes());
        stripes_of(bytes as u64, most).max(1)
    }

    /// Refuses the key of a put that is not the user's.
    #[inline]
    pub(super) fn check_new(key: &[u8], opts: &PutOptions) -> Result<()> {
        match opts.restores {
            true => Ok(Key::check(key)?),
            false => check_new(key),
        }
    }

    /// Puts a value in stripes. The number of replicas made of each; 0 if the key was stored.
    pub(super) async fn put_striped(
        &self,
        key: &[u8],
        value: &[u8],
        (stripes, opts): (u8, &PutOptions),
    ) -> Result<u32> {
        if self.has_whole(key).await? {
            return is_stored(opts);
        }
        let random = &self.shared.env.random;
        let put = u128::from(random.u64()) << 64 | u128::from(random.u64());
        let manifest = Manifest::new(key, put, value.len() as u64, stripes);
        let keys = manifest.keys();
        let chunks = value.chunks(manifest.stripe_bytes as usize);
        let items: Vec<(&[u8], &[u8])> = keys.iter().map(|k| &k[..]).zip(chunks).collect();
        let ranks = self.shared.spread_over(key_hash(key), items.len(), opts.preferred_rank);
        let of_stripes = opts.for_stripes_of(key).if_exists(IfExists::Keep);
        let made = self.put_unstriped(&items, (&of_stripes, &ranks)).await;
        if let Some(n) = made.iter().position(Result::is_err)
            && let Err(e) = &made[n]
        {
            let made: Vec<&[u8]> = keys
                .iter()
                .zip(&made)
                .filter(|(_, made)| made.is_ok())
                .map(|(k, _)| &k[..])
                .collect();
            self.give_up_stripes(&made).await;
            // Then the stripes of this one were removed.
            if self.has_whole(key).await == Ok(true) {
                return is_stored(opts);
            }
            return Err(of_stripe(e, (n, keys.len()), &keys[n]));
        }
        let fewest = made.into_iter().flatten().min().unwrap_or_default();
        let stored = manifest.encode();
        let opts = opts.clone().page_bytes(manifest.page_bytes());
        let first = ranks.get(..1).unwrap_or_default();
        let put = one(self.put_unstriped(&[(key, &stored)], (&opts, first)).await);
        match put {
            // Ok(0): another put was first.
            Err(_) | Ok(0) => {
                let made: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
                self.give_up_stripes(&made).await;
            }
            Ok(_) => self.shared.writes.striped.one(),
        }
        put.map(|made| made.min(fewest))
    }

    /// Whether a key has an object, and if that is striped, all of its stripes.
    async fn has_whole(&self, key: &[u8]) -> Result<bool> {
        let found = self.exists(&[key]).await?;
        if matches!(found[..], [Existence::Absent | Existence::Writing]) {
            return Ok(false);
        }
        let manifest = match self.get_location(key).await {
            Ok(location) => self.manifest_of(key, location.bytes_total()).await,
            Err(e) => Err(e),
        };
        let manifest = match manifest {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let keys = manifest.keys();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        if !self.exists(&keys).await?.contains(&Existence::Absent) {
            return Ok(true);
        }
        self.remove_manifest(key, &manifest).await.map_err(|e| {
            let text = format!("what is left of a lost object of this key: {}", e.message());
            e.with_message(text)
        })?;
        Ok(false)
    }

    /// Removes the stripes of a put that failed. What cannot be removed now is evicted some day.
    async fn give_up_stripes(&self, keys: &[&[u8]]) {
        let removed = self.remove_many(keys).await;
        let gone = |e: &Error| e.kind() == ErrorKind::NotFound;
        let left = removed.iter().filter(|r| r.as_ref().is_err_and(|e| !gone(e))).count();
        if left > 0 {
            tracing::debug!(left, "stripes of a put that failed are left to eviction");
        }
    }

    /// The manifest of a key under which so many bytes are stored, if it has one.
    pub(super) async fn manifest_of(&self, key: &[u8], stored: u64) -> Result<Option<Manifest>> {
        match stored == MANIFEST_BYTES as u64 {
            true => Ok(Manifest::decode(&self.get_stored(key).await?, key)),
            false => Ok(None),
        }
    }

    /// Has the stripes of an object have so many replicas, if it has stripes.
    pub(super) async fn replicate_stripes(
        &self,
        (key, stored): (&[u8], u64),
        wanted: u8,
    ) -> Result<()> {
        let Some(manifest) = self.manifest_of(key, stored).await? else { return Ok(()) };
        let keys = manifest.keys();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let answer = self.call(Request::Replicate { keys: key_bytes(&keys), wanted }).await;
        let done = self.done("Replicate", answer, keys.len()).into_iter().enumerate();
        done.filter_map(|(n, done)| Some((n, done.err()?)))
            .next()
            .map_or(Ok(()), |(n, e)| Err(of_stripe(&e, (n, keys.len()), keys[n])))
    }

    /// The value of a key, given what is stored under it.
    pub(super) async fn whole(&self, key: &[u8], stored: Bytes) -> Result<Bytes> {
        let Some(manifest) = Manifest::decode(&stored, key) else { return Ok(stored) };
        // Checked before the buffer is allocated.
        let view = self.shared.view();
        let memory = view.ranks.iter().map(|(info, _)| info.layout.payloads().len);
        if manifest.bytes_total > memory.fold(0, u64::saturating_add) {
            let text = format!("a value of {} bytes, which fit no memory", manifest.bytes_total);
            return Err(Error::invalid(text));
        }
        let mut room = self.shared.buffers.take(manifest.bytes_total as usize);
        self.join(key, &manifest, room.bytes_mut()).await?;
        Ok(room.into_bytes())
    }

    /// Reads the values of those items into which manifests were read.
    pub(super) async fn join_all(
        &self,
        items: &mut [(&[u8], &mut [u8])],
        read: &mut [Result<usize>],
    ) {
        for ((key, dst), read) in items.iter_mut().zip(read) {
            let stored = read.as_ref().map_or(0, |n| *n);
            if let Some(manifest) = Manifest::decode(&dst[..stored], key) {
                *read = self.join(key, &manifest, dst).await.map_err(|e| e.about(key));
            } else if dst.len() < MANIFEST_BYTES
                && read.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidArgument)
                && let Ok(bytes) = self.get_size(key).await
                && bytes > MANIFEST_BYTES as u64
            {
                *read = Err(super::read::too_small(bytes, dst.len()).about(key));
            }
        }
    }

    /// Reads all stripes to where they belong in `dst`.
    async fn join(&self, key: &[u8], manifest: &Manifest, dst: &mut [u8]) -> Result<usize> {
        let bytes = manifest.bytes_total as usize;
        if dst.len() < bytes {
            return Err(super::read::too_small(manifest.bytes_total, dst.len()));
        }
        let keys = manifest.keys();
        let chunks = dst[..bytes].chunks_mut(manifest.stripe_bytes as usize);
        let mut items: Vec<(&[u8], &mut [u8])> = keys.iter().map(|k| &k[..]).zip(chunks).collect();
        let read = self.read_stored(&mut items).await;
        for (n, (read, (_, chunk))) in read.into_iter().zip(&items).enumerate() {
            let of = || nth(n, keys.len());
            match read {
                Ok(len) if len == chunk.len() => {}
                Ok(len) => {
                    let text = format!("{} has {len} bytes, not {}", of(), chunk.len());
                    return Err(Error::corrupt(text));
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    self.shared.reads.lost.one();
                    if self.may_come_back().await {
                        let text = "is not there: the disk of a rank that is away may have it";
                        return Err(Error::not_found(format!("{} {text}", of())));
                    }
                    // If that fails, the next read tries again.
                    let removed = self.remove_manifest(key, manifest).await;
                    tracing::debug!(?removed, "an object has lost a stripe");
                    let text = format!("{} is gone, and with it the object", of());
                    return Err(Error::not_found(text));
                }
                Err(e) => return Err(of_stripe(&e, (n, keys.len()), &keys[n])),
            }
        }
        self.shared.reads.striped.one();
        Ok(bytes)
    }

    /// Whether a rank is away, and ranks have disks: what it had may come back.
    async fn may_come_back(&self) -> bool {
        let Ok(view) = self.membership().await else { return true };
        let here = view.nodes().filter(|(_, state)| *state == RankState::Alive).count();
        here < view.world_size as usize && view.ranks.iter().any(|(info, _)| info.disk)
    }

    /// Removes a manifest from disks, and from memory where no other object has its key by now.
    async fn remove_manifest(&self, key: &[u8], manifest: &Manifest) -> Result<()> {
        let meta = match self.get_location(key).await {
            Ok(Location::Memory(meta)) => meta,
            // A read brings it into memory first.
            Ok(Location::Disk(_)) => return Err(Error::not_ready("the object is on disk alone")),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        if put_of(&meta.object) != Some(manifest.page_bytes()) {
            return Ok(());
        }
        self.shared.locations.forget(key);
        let list = vec![(KeyBytes::from(key), meta.at)];
        let answer = self.call(Request::RemoveAt(list)).await;
        one(self.done("RemoveAt", answer, 1))
    }
}

/// The result of a put over a key that has an object.
fn is_stored(opts: &PutOptions) -> Result<u32> {
    match opts.if_exists {
        IfExists::Keep => Ok(0),
        IfExists::Fail => {
            Err(Error::already_exists("the key is stored; values are immutable, remove it first"))
        }
    }
}

/// The error of a stripe, without the stripe's key, which the caller does not know.
fn of_stripe(e: &Error, (n, of): (usize, usize), key: &[u8]) -> Error {
    let why = e.message().replace(&format!("key {}", shown(key)), "this stripe");
    let error = Error::new(e.kind(), format!("{}: {why}", nth(n, of)));
    match e.rank() {
        Some(rank) => error.at_rank(rank),
        None => error,
    }
}

/// As errors name a stripe; `n` counts from 0.
fn nth(n: usize, of: usize) -> String {
    format!("stripe {} of {of}", n + 1)
}
