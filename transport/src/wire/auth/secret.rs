//! The secret that a job shares. Only its HMAC key block is kept, and it is never printed. A secret
//! that is too short, or in a file that other users can read, is refused before use.

use super::error::MIN_SECRET_BYTES;
use super::error::SecretError;
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use nkv_store::KeyHasher;
use nkv_store::key::HASHER_KEY_BYTES;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Longest secret in bytes.
const MAX_SECRET_BYTES: usize = 4096;
/// Environment variable that contains a secret.
pub const SECRET_VARIABLE: &str = "NKV_SECRET";
/// Environment variable with the path of a file that contains a secret.
pub const SECRET_FILE_VARIABLE: &str = "NKV_SECRET_FILE";
/// Block length of SHA-256: a shorter key is padded with zeros to it, a longer one hashed (RFC
/// 2104).
const BLOCK_BYTES: usize = 64;
/// Label from which only the handshake's key is derived.
const PSK_LABEL: &[u8; 16] = b"nkv-auth psk v2\0";
/// Label from which only the hasher key is derived.
const HASHER_LABEL: &[u8; 16] = b"nkv-hash keys v1";
/// Bytes of a SHA-256 hash.
pub(super) const MAC_BYTES: usize = 32;
/// Permission bits that give access to other users.
pub(super) const OTHERS: u32 = 0o077;

/// The secret that every rank and client of a job has, and nobody else.
#[derive(Clone)]
pub struct Secret {
    block: Arc<[u8; BLOCK_BYTES]>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let differing = |all: u8, (a, b): (&u8, &u8)| all | (a ^ b);
        self.block.iter().zip(other.block.iter()).fold(0, differing) == 0
    }
}

impl Eq for Secret {}

impl Secret {
    /// A secret of these bytes; `from` names their source in errors.
    pub fn new(bytes: &[u8], from: &str) -> Result<Self, SecretError> {
        let from = || from.to_string();
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(SecretError::TooShort { from: from(), bytes: bytes.len() });
        }
        if bytes.len() > MAX_SECRET_BYTES {
            return Err(SecretError::TooLong { from: from(), limit: MAX_SECRET_BYTES });
        }
        let mut block = [0; BLOCK_BYTES];
        if bytes.len() <= BLOCK_BYTES {
            block[..bytes.len()].copy_from_slice(bytes);
        } else {
            block[..MAC_BYTES].copy_from_slice(&Sha256::digest(bytes));
        }
        Ok(Self { block: Arc::new(block) })
    }

    /// The secret in a file that only its user can read. Newlines at its end are ignored, so that
    /// `NKV_SECRET=$(cat FILE)` is the same secret.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        // Do not wait for a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(SecretError::io(path))?;
        let stat = rustix::fs::fstat(&opened).map_err(SecretError::io(path))?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            let why = "is not a file; give one that holds the secret".to_string();
            return Err(SecretError::Kind { path: path.to_path_buf(), why });
        }
        let mode = stat.st_mode & 0o777;
        if mode & OTHERS != 0 {
            return Err(SecretError::Mode { path: path.to_path_buf(), mode, wanted: 0o600 });
        }
        let mut bytes = Vec::new();
        // Room for a newline (LF or CRLF) after the longest secret.
        let limit = MAX_SECRET_BYTES as u64 + 3;
        File::from(opened).take(limit).read_to_end(&mut bytes).map_err(SecretError::io(path))?;
        let kept = bytes.iter().rposition(|b| !b"\r\n".contains(b)).map_or(0, |last| last + 1);
        Self::new(&bytes[..kept], &path.display().to_string())
    }

    /// The secret from the two variables, or from the file if one is given; none if nothing is set.
    ///
    /// `file` (a flag) takes precedence over both variables. Only one of the variables may be set,
    /// and an empty variable is an error, not the absence of a secret.
    pub fn choose(
        file: Option<&Path>,
        variable: Option<&OsStr>,
        file_variable: Option<&OsStr>,
    ) -> Result<Option<Self>, SecretError> {
        match (file, variable, file_variable) {
            (Some(path), ..) => Self::read(path).map(Some),
            (None, Some(_), Some(_)) => Err(SecretError::Ambiguous(format!(
                "{SECRET_VARIABLE} and {SECRET_FILE_VARIABLE} are both set: unset one of them"
            ))),
            (None, Some(text), None) => Self::new(text.as_bytes(), SECRET_VARIABLE).map(Some),
            (None, None, Some(path)) if path.is_empty() => Err(SecretError::Ambiguous(format!(
                "{SECRET_FILE_VARIABLE} is set to nothing: unset it, or name a file"
            ))),
            (None, None, Some(path)) => Self::read(Path::new(path)).map(Some),
            (None, None, None) => Ok(None),
        }
    }

    /// As [`Self::choose`], from this process's environment.
    pub fn find(file: Option<&Path>) -> Result<Option<Self>, SecretError> {
        let (text, path) =
            (std::env::var_os(SECRET_VARIABLE), std::env::var_os(SECRET_FILE_VARIABLE));
        Self::choose(file, text.as_deref(), path.as_deref())
    }

    /// The pre-shared key of the handshakes of a job.
    pub(super) fn psk(&self, job: &str) -> [u8; MAC_BYTES] {
        self.mac(&[PSK_LABEL, job.as_bytes()]).finalize().into_bytes().into()
    }

    /// The bytes of a cookie.
    pub(super) fn first_bytes(&self) -> &[u8; MAC_BYTES] {
        self.block.first_chunk().unwrap_or(&[0; MAC_BYTES])
    }

    /// The key hasher of the job's key identities [I16].
    pub fn key_hasher(&self, job: &str) -> KeyHasher {
        let mac = self.mac(&[HASHER_LABEL, job.as_bytes()]).finalize().into_bytes();
        let mut key = [0; HASHER_KEY_BYTES];
        key.copy_from_slice(&mac[..HASHER_KEY_BYTES]);
        KeyHasher::new(key)
    }

    /// HMAC-SHA256 under this secret, over a label of 16 bytes and one part, or several parts of
    /// fixed lengths.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new((&*self.block).into());
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn i20_secrets_are_equal_only_if_every_byte_is() {
        let of = |text: &str| Secret::new(text.as_bytes(), "test").unwrap();
        assert_eq!(of("one secret of sixteen"), of("one secret of sixteen"));
        assert_ne!(of("one secret of sixteen"), of("one secret of sixteeN"));
        // The same difference twice does not cancel itself.
        assert_ne!(of("aabb secret of sixteen"), of("bbbb secret of sixteen"));
    }
}
