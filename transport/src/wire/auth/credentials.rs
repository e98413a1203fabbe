//! What to prove to an address, and the texts about it. A job's secret is used for every address.
//! Without one a unix socket needs no proof, since the kernel reports both users, and tcp (then
//! limited to loopback by the nodes) uses the job's cookie.

use super::cookie::{self, CookieFile};
use super::error::{AuthError, SecretError};
use super::secret::Secret;
use crate::wire::Address;
use nkv_store::{KeyHasher, OsRandom, Random};
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::TryFromBytes;

/// Purpose of a connection; a proof for one channel is not valid for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Channel {
    /// The control port and the unix socket.
    Control = 1,
    /// The tcp agent.
    Data = 2,
}

impl Channel {
    /// The text that a port of this channel sends to a client of the other.
    pub(super) fn not_the_other(self) -> &'static str {
        match self {
            Self::Control => "this is a control port, not a data port",
            Self::Data => "this is a data port, not a control port",
        }
    }
}

/// What one end of a connection can prove, or requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthMeans {
    /// Nothing; the text says why, as in "no cookie was found". It admits nobody.
    Nothing(String),
    /// The kernel's information about the process at the other end of a unix socket.
    Kernel,
    /// Knowledge of the job's cookie.
    Cookie(Secret),
    /// Knowledge of the job's secret.
    Secret(Secret),
}

/// [`AuthMeans`] without the secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub(super) enum AuthKind {
    Nothing = 0,
    Cookie = 1,
    Secret = 2,
    Kernel = 3,
}

impl AuthKind {
    pub(super) fn from_wire(n: u32) -> Option<Self> {
        Self::try_read_from_bytes(&n.to_ne_bytes()).ok()
    }
}

impl AuthMeans {
    pub(super) fn kind(&self) -> AuthKind {
        match self {
            Self::Nothing(_) => AuthKind::Nothing,
            Self::Kernel => AuthKind::Kernel,
            Self::Cookie(_) => AuthKind::Cookie,
            Self::Secret(_) => AuthKind::Secret,
        }
    }

    /// The secret or cookie that keys the handshake.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Nothing(_) | Self::Kernel => None,
            Self::Cookie(secret) | Self::Secret(secret) => Some(secret),
        }
    }

    /// A client's error: it has these means, the node requires others.
    pub(super) fn lacks(&self, needs: AuthKind) -> AuthError {
        match (self, needs) {
            (_, AuthKind::Secret) => AuthError::SecretNeeded,
            (Self::Secret(_), _) => AuthError::NoSecretThere,
            (Self::Nothing(why), AuthKind::Cookie) => AuthError::CookieNeeded(why.clone()),
            (has, needs) => {
                AuthError::Foreign(format!("it refuses {:?} for {needs:?}", has.kind()))
            }
        }
    }

    /// A node's text about a client that offers other means than these.
    pub(super) fn not_offered(&self, offers: Option<AuthKind>) -> &'static str {
        match (self, offers) {
            (_, None) => "it offers a proof that this release does not support",
            (Self::Secret(_), Some(_)) => "it has no secret, and this job has one",
            (_, Some(AuthKind::Secret)) => "it has a secret, and this node was started without one",
            (_, Some(AuthKind::Nothing)) => "it has neither a secret nor the job's cookie",
            (_, Some(AuthKind::Cookie | AuthKind::Kernel)) => {
                "it offers a proof that is not required here"
            }
        }
    }
}

/// Where the cookie comes from, if there is no secret.
#[derive(Debug, Clone)]
enum CookieSource {
    Secret(Secret),
    /// The node in this process holds it.
    Held(Arc<CookieFile>),
    /// Read for every connection: after all nodes were restarted there is a new cookie.
    Looked,
}

/// What this process can prove for a job.
#[derive(Debug, Clone)]
pub struct Credentials {
    job: Arc<str>,
    basis: CookieSource,
    // Source of the keys of its handshakes.
    random: Arc<dyn Random>,
}

impl Credentials {
    /// For a client of `job`: its secret, or the cookie that exists when it connects.
    pub fn of_client(job: &str, secret: Option<Secret>) -> Self {
        Self::new(job, secret.map_or(CookieSource::Looked, CookieSource::Secret))
    }

    /// For a node of `job`: its secret, or the job's cookie, which is created if there is none.
    /// Blocks on the file system for about a second at most.
    pub fn of_node(job: &str, secret: Option<Secret>) -> Result<Self, SecretError> {
        Ok(match secret {
            Some(_) => Self::of_client(job, secret),
            None => Self::of_cookie(job, CookieFile::hold(job)?),
        })
    }

    /// For a node that holds this cookie.
    pub fn of_cookie(job: &str, cookie: CookieFile) -> Self {
        Self::new(job, CookieSource::Held(Arc::new(cookie)))
    }

    fn new(job: &str, basis: CookieSource) -> Self {
        Self { job: job.into(), basis, random: Arc::new(OsRandom) }
    }

    /// The same, with another source of random keys than the kernel: for simulation.
    pub fn with_random(self, random: Arc<dyn Random>) -> Self {
        Self { random, ..self }
    }

    /// The random source for the keys of its handshakes.
    pub fn random(&self) -> &dyn Random {
        &*self.random
    }

    /// The job.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// What to prove to this address, or what a node requires of clients at this address.
    pub fn means(&self, address: &Address) -> Result<AuthMeans, SecretError> {
        match address {
            Address::Unix(_) => Ok(self.on_unix_socket()),
            Address::Tcp(_) => self.on_tcp(),
        }
    }

    /// The means on a unix socket.
    pub fn on_unix_socket(&self) -> AuthMeans {
        match &self.basis {
            CookieSource::Secret(secret) => AuthMeans::Secret(secret.clone()),
            CookieSource::Held(_) | CookieSource::Looked => AuthMeans::Kernel,
        }
    }

    /// The means on a tcp connection. An error only if a cookie exists that must not be used.
    pub fn on_tcp(&self) -> Result<AuthMeans, SecretError> {
        match &self.basis {
            CookieSource::Secret(secret) => Ok(AuthMeans::Secret(secret.clone())),
            CookieSource::Held(cookie) => Ok(AuthMeans::Cookie(cookie.secret().clone())),
            CookieSource::Looked => Ok(match cookie::find(&self.job)? {
                Some(secret) => AuthMeans::Cookie(secret),
                None => AuthMeans::Nothing(cookie::nowhere(&self.job)),
            }),
        }
    }

    /// Whether it holds a cookie file, which somebody else could remove.
    pub fn has_cookie(&self) -> bool {
        matches!(self.basis, CookieSource::Held(_))
    }

    /// Puts a node's cookie back if it is missing; returns its new path then. Blocks on the file
    /// system.
    pub fn put_back(&self) -> Result<Option<PathBuf>, SecretError> {
        match &self.basis {
            CookieSource::Held(cookie) => cookie.put_back(),
            CookieSource::Secret(_) | CookieSource::Looked => Ok(None),
        }
    }

    /// The key hasher of the job's key identities [I16], for a node: the same at every node of the
    /// job, also at later ones, as long as one of them lives. A node sends it to clients.
    pub fn key_hasher(&self) -> Option<KeyHasher> {
        match &self.basis {
            CookieSource::Secret(secret) => Some(secret.key_hasher(&self.job)),
            CookieSource::Held(cookie) => Some(cookie.secret().key_hasher(&self.job)),
            CookieSource::Looked => None,
        }
    }

    /// Called when a node ends: the last one of its job on this host removes the cookie.
    pub fn let_go(&self) {
        if let CookieSource::Held(cookie) = &self.basis {
            cookie.let_go();
        }
    }

    /// A description for people, without secrets.
    pub fn shown(&self) -> String {
        match &self.basis {
            CookieSource::Secret(_) => "the job's secret".to_string(),
            CookieSource::Held(cookie) => {
                format!("this user on this host ({})", cookie.path().display())
            }
            CookieSource::Looked => "this user on this host".to_string(),
        }
    }
}
