//! Why a connection was not authenticated, and why a secret could not be read: texts for the person
//! who set up the two ends. None of them contains a secret.

use super::frames::AUTH_VERSION;
use std::path::{Path, PathBuf};

/// Shortest secret in bytes.
pub(super) const MIN_SECRET_BYTES: usize = 16;

/// Why a secret or cookie cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Too few bytes for a secret.
    #[error(
        "{from} holds a secret of {bytes} bytes; at least {MIN_SECRET_BYTES} are needed, such as \
         from: head -c 32 /dev/urandom | base64"
    )]
    TooShort {
        /// Variable or file.
        from: String,
        /// Its length.
        bytes: usize,
    },
    /// Too many bytes for a secret.
    #[error("{from} holds more than {limit} bytes: that is not a secret")]
    TooLong {
        /// Variable or file.
        from: String,
        /// Most bytes taken.
        limit: usize,
    },
    /// Others may read or change it.
    #[error(
        "{path} has mode {mode:03o}: others may read or change it; chmod {wanted:03o} {path}",
        path = .path.display()
    )]
    Mode {
        /// File or folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The permission bits that it should have.
        wanted: u32,
    },
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, not to {me}: remove it, or set NKV_SECRET for this job",
        path = .path.display()
    )]
    Owner {
        /// File or folder.
        path: PathBuf,
        /// Its user.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// Wrong kind of file: a link, a folder, a cookie of another length.
    #[error("{path} {why}", path = .path.display())]
    Kind {
        /// File or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Other users have created every folder that could hold a cookie.
    #[error(
        "no folder for the job's cookie can be used ({}): remove one of them, name one of your own \
         in XDG_RUNTIME_DIR, or set NKV_SECRET for this job",
        .0.join("; ")
    )]
    NoFolder(Vec<String>),
    /// Two sources of a secret are set.
    #[error("{0}")]
    Ambiguous(String),
    /// A system call failed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// How to give a secret.
const GIVE: &str = "NKV_SECRET, or NKV_SECRET_FILE or --secret-file with a file that holds it";

/// Why a connection was not authenticated.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The first bytes are not those of an nkv node or client.
    #[error("the other end does not speak nkv's handshake: {0}")]
    Foreign(String),
    /// Another version of the handshake.
    #[error(
        "the other end speaks version {theirs} of the handshake, this end {AUTH_VERSION}: run the \
         same release of nkv on both"
    )]
    Version {
        /// The version in its frame.
        theirs: u32,
    },
    /// Another job.
    #[error(
        "this is job '{node}', not '{client}'; set NKV_JOB alike on every rank, or use another \
         NKV_PORT"
    )]
    Job {
        /// The job of the node.
        node: String,
        /// The job that the client asked for.
        client: String,
    },
    /// A data port was used as a control port, or the other way round.
    #[error("{0}")]
    Channel(String),
    /// The job has a secret, this end none.
    #[error("the job has a secret and none was given here: set {GIVE}")]
    SecretNeeded,
    /// The job has a cookie, and this end found none.
    #[error(
        "the node accepts only processes of its own user on its own host, and {0}; run this \
         there, or give the nodes and this program one secret: {GIVE}"
    )]
    CookieNeeded(String),
    /// This end has a secret, the other end was started without.
    #[error(
        "a secret was given here, but the node was started without one: start every rank with the \
         same NKV_SECRET or --secret-file, or unset it here"
    )]
    NoSecretThere,
    /// Both have a secret, but not the same.
    #[error(
        "the secret given here differs from the job's: give every rank and client the same \
         NKV_SECRET or --secret-file"
    )]
    SecretDiffers,
    /// Both have a cookie, but not the same.
    #[error(
        "the job's cookie found here differs from the node's: is it of another user, container or \
         host? Give the nodes and this program one secret: {GIVE}"
    )]
    CookieDiffers,
    /// The other end could not prove that it knows the secret.
    #[error("the other end could not prove that it knows the job's secret: do not trust it")]
    Impostor,
    /// It has no connection free.
    #[error("{0}")]
    Busy(String),
    /// Reported by the guard: a peer that proved nothing.
    #[error("{0}")]
    Denied(&'static str),
    /// The other end closed before the handshake was complete.
    #[error("closed after {0} bytes of the handshake")]
    Closed(usize),
    /// Closed to make room: too many unauthenticated connections.
    #[error("closed before its handshake was done, to make room for others")]
    Crowded,
    /// It took too long.
    #[error("no handshake within {0} ms")]
    Late(u64),
    /// The stream failed.
    #[error("{0}")]
    Io(std::io::Error),
    /// This end's own secret or cookie cannot be used.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// A cryptographic step that cannot fail has failed.
    #[error("the handshake's cryptography failed: {0}")]
    Noise(String),
    /// No random bytes, no handshake.
    #[error("the kernel gives no random bytes: {0}")]
    Random(String),
}

impl SecretError {
    /// Wraps an errno with the file or folder that it is about.
    pub(super) fn io<E: Into<std::io::Error>>(path: &Path) -> impl Fn(E) -> Self {
        move |e| Self::Io { path: path.to_path_buf(), source: e.into() }
    }
}

impl AuthError {
    /// True if a retry fails in the same way until a secret, a job or a release is changed.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::Foreign(_)
                | Self::Busy(_)
                | Self::Closed(_)
                | Self::Crowded
                | Self::Late(_)
                | Self::Io(_)
                | Self::Noise(_)
                | Self::Random(_)
        )
    }
}
