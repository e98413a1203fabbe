//! Authentication [I20]. Every connection, control or data, begins with a handshake keyed by what
//! the job shares: its secret, or else a cookie that only its user can read. It does not interpret
//! the messages that follow, but its result authenticates all of them.
//!
//! - [`Secret`] is the shared secret, [`CookieFile`] replaces it on one host.
//! - [`Credentials`] decide what to prove to an address, [`Guard`] what to require of a peer.
//! - [`Session`] encrypts what follows on a control connection, and holds the tag keys of a data
//!   connection.
//! - The handshake itself does no input or output: `exchange` transfers its frames, async or
//!   blocking.

mod cookie;
mod credentials;
mod error;
mod exchange;
mod frames;
mod guard;
mod handshake;
mod noise;
mod secret;
mod session;

pub use cookie::CookieFile;
pub use credentials::{AuthMeans, Channel, Credentials};
pub use error::{AuthError, SecretError};
pub use exchange::{prove, prove_blocking};
pub use frames::{ANSWER_BYTES, FINISH_BYTES, OPENING_BYTES};
pub use guard::{Guard, next_to_evict};
pub(crate) use handshake::{HandshakeStep, ServerHandshake};
pub use secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};
pub use session::Session;
pub(crate) use session::{TAG_BYTES, TagKeys};

#[cfg(test)]
mod tests;
