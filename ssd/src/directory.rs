//! What a directory knows of itself: its format, and the key under which it hashes keys.

use crate::engine::SsdError;
use crate::storage::{Storage, read_small, write_small};
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// Name of the file that describes the directory.
pub const DESCRIPTION: &str = "nkv-ssd.json";
/// The format that this code reads and writes.
pub const FORMAT: u32 = 1;

/// A directory, as its description says. It is made once, and never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// [`FORMAT`].
    pub format: u32,
    /// The engine that wrote it: `slab` or `files`.
    pub engine: String,
    /// Random: every record names it, so one of another directory is never taken for ours.
    pub id: String,
    /// Random, secret: 16 bytes in hexadecimal under which keys are hashed. Nobody who lacks it can
    /// make two keys with one digest.
    digest_key: String,
    /// Length of one slab in bytes; 0 for `files`.
    pub slab_bytes: u64,
}

/// SipHash-2-4 of 128 bits of a key, under the directory's key. Unlike the identity of a key in a
/// job [I16] it stays the same when the job is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyDigest(pub [u8; 16]);

impl Directory {
    /// Reads the description, or makes it in an empty directory.
    ///
    /// # Errors
    /// [`SsdError::Directory`] for another format or engine, and for a description that is damaged:
    /// nothing was changed then.
    pub fn open(
        storage: &dyn Storage,
        engine: &str,
        slab_bytes: u64,
    ) -> Result<Directory, SsdError> {
        let shown = storage.shown();
        match read_small(storage, DESCRIPTION)? {
            Some(bytes) => Self::parse(&bytes, engine)
                .map_err(|why| SsdError::Directory(format!("{shown}/{DESCRIPTION} {why}"))),
            None => {
                let made = Self::new(engine, slab_bytes)?;
                let text = serde_json::to_vec(&made).map_err(std::io::Error::other)?;
                write_small(storage, DESCRIPTION, &text)?;
                Ok(made)
            }
        }
    }

    /// The description of a directory that was made before, of whichever engine.
    ///
    /// # Errors
    /// [`SsdError::Directory`] if there is none, or as [`Self::open`].
    pub fn existing(storage: &dyn Storage) -> Result<Directory, SsdError> {
        #[derive(Deserialize)]
        struct Engine {
            engine: String,
        }
        let shown = storage.shown();
        let of = |why: String| SsdError::Directory(format!("{shown}/{DESCRIPTION} {why}"));
        let none = || of("is not there: name the directory of one rank".to_owned());
        let bytes = read_small(storage, DESCRIPTION)?.ok_or_else(none)?;
        let named: Option<Engine> = serde_json::from_slice(&bytes).ok();
        let engine = named.map_or_else(|| "slab".to_owned(), |named| named.engine);
        Self::parse(&bytes, &engine).map_err(of)
    }

    /// The length of a slab that a description names, if it is one.
    pub(crate) fn slab_bytes_of(description: &[u8]) -> Option<u64> {
        serde_json::from_slice::<Self>(description).ok().map(|found| found.slab_bytes)
    }

    fn new(engine: &str, slab_bytes: u64) -> Result<Directory, SsdError> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
        let (id, key) = random.split_at(16);
        let engine = engine.to_owned();
        Ok(Self { format: FORMAT, engine, id: hex(id), digest_key: hex(key), slab_bytes })
    }

    fn parse(bytes: &[u8], engine: &str) -> Result<Directory, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let remedy = "move the directory away, or name another one";
        let damaged = |error| format!("is damaged ({error}): {remedy}");
        let Format { format } = serde_json::from_slice(bytes).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!(
                "is of format {format}, and this nkv knows format {FORMAT}: export the objects \
                 with the nkv that wrote them, or {remedy}"
            ));
        }
        let found: Directory = serde_json::from_slice(bytes).map_err(damaged)?;
        if found.engine != engine {
            let other = &found.engine;
            return Err(format!("is of the engine {other}, not {engine}: use it, or {remedy}"));
        }
        let whole = unhex(&found.id).is_some() && unhex(&found.digest_key).is_some();
        let slabs = (engine == "files") == (found.slab_bytes == 0);
        if !whole || !slabs || !found.slab_bytes.is_multiple_of(crate::piece::BLOCK as u64) {
            return Err(format!("is damaged: {remedy}"));
        }
        Ok(found)
    }

    /// The random name as bytes, for the pages of a journal.
    pub(crate) fn id_bytes(&self) -> [u8; 16] {
        unhex(&self.id).unwrap_or_default()
    }

    /// The digest of a key.
    pub fn digest(&self, key: &[u8]) -> KeyDigest {
        let mut hasher = SipHasher24::new_with_key(&unhex(&self.digest_key).unwrap_or_default());
        hasher.write(key);
        KeyDigest(hasher.finish128().as_bytes())
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes of hexadecimal of exactly that length.
fn unhex(text: &str) -> Option<[u8; 16]> {
    unhex_any(text)?.try_into().ok()
}

/// Bytes of hexadecimal.
pub(crate) fn unhex_any(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
