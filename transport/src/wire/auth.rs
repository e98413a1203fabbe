//! Who may connect [I20]. Every connection, control or data, begins with a handshake under what the
//! job shares: its secret, or else a cookie that only its user can read. It knows no message that
//! comes after it, but what it leaves behind binds them all to it.
//!
//! - [`Secret`] is what is shared, [`CookieFile`] stands in for it on one host.
//! - [`Credentials`] say what to prove towards an address, [`Guard`] what to demand of a peer.
//! - [`Session`] encrypts what follows on a control connection, and has the keys of the tags of a
//!   data connection.
//! - The handshake itself does no input or output: `exchange` moves its frames, async or blocking.

mod cookie;
mod credentials;
mod error;
mod exchange;
mod frames;
mod guard;
mod handshake;
mod noise;
mod refusals;
mod secret;
mod session;

pub use cookie::CookieFile;
pub use credentials::{AuthMeans, Channel, Credentials};
pub use error::{AuthError, SecretError};
pub use exchange::{prove, prove_blocking};
pub use frames::{ANSWER_BYTES, AUTH_VERSION, FINISH_BYTES, OPENING_BYTES};
pub use guard::{Guard, next_to_evict};
pub(crate) use handshake::{HandshakeStep, ServerHandshake};
pub use secret::{MIN_SECRET_BYTES, SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};
pub use session::Session;
pub(crate) use session::{TAG_BYTES, TagKey, TagKeys};

#[cfg(test)]
mod tests;
