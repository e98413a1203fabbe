//! Who may connect [I20]. Every connection, control or data, begins with a mutual challenge and
//! response over what the job shares: its secret, or else a cookie that only its user can read. It
//! authenticates connections; it encrypts nothing, and knows no message that comes after it.
//!
//! - [`Secret`] is what is shared, [`CookieFile`] stands in for it on one host.
//! - [`Credentials`] say what to prove towards an address, [`Guard`] what to demand of a peer.
//! - The handshake itself does no input or output: `exchange` moves its frames, async or blocking.

mod cookie;
mod credentials;
mod error;
mod exchange;
mod frames;
mod guard;
mod handshake;
mod refusals;
mod secret;

pub use cookie::CookieFile;
pub use credentials::{Channel, Credentials, Means};
pub use error::{AuthError, SecretError};
pub use exchange::{prove, prove_blocking};
pub use frames::{AUTH_VERSION, CHALLENGE_BYTES, OPENING_BYTES, PROOF_BYTES, VERDICT_BYTES};
pub use guard::Guard;
pub use secret::{MIN_SECRET_BYTES, SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};

#[cfg(test)]
mod tests;
