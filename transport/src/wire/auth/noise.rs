//! The cryptography of the handshake, from the crate `snow`: the Noise pattern NNpsk0. Its
//! pre-shared key is derived from what the job shares and from the job's name. No other file uses
//! `snow`, and this file does not decide who is admitted.

use super::error::AuthError;
use super::frames::{FINISH_BYTES, NOISE_BYTES, Prologue};
use super::secret::Secret;
use super::session::{Session, TAG_KEYS_BYTES, TagKeys};
use nkv_store::Random;
use snow::params::NoiseParams;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};
use std::sync::LazyLock;
use zerocopy::IntoBytes;

static PARAMS: LazyLock<NoiseParams> = LazyLock::new(|| {
    let params = "Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse();
    params.expect("a pattern and primitives that this build has")
});

/// One handshake in progress, at either end.
pub(super) struct Noise(Box<HandshakeState>);

/// `snow`'s primitives with random bytes drawn beforehand: an ephemeral key needs 32 bytes once.
pub(super) struct Primitives {
    pub seed: [u8; 32],
}

/// These bytes; returned once.
struct Drawn(Option<[u8; 32]>);

impl snow::types::Random for Drawn {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), snow::Error> {
        let seed = self.0.take().ok_or(snow::Error::Rng)?;
        let seed = seed.get(..to.len()).ok_or(snow::Error::Rng)?;
        to.copy_from_slice(seed);
        Ok(())
    }
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
        Some(Box::new(Drawn(Some(self.seed))))
    }

    fn resolve_dh(&self, choice: &snow::params::DHChoice) -> Option<Box<dyn snow::types::Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(
        &self,
        choice: &snow::params::HashChoice,
    ) -> Option<Box<dyn snow::types::Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(
        &self,
        choice: &snow::params::CipherChoice,
    ) -> Option<Box<dyn snow::types::Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Random bytes; without them there is no handshake.
pub(super) fn drawn<const N: usize>(random: &dyn Random) -> Result<[u8; N], AuthError> {
    let mut bytes = [0; N];
    random.fill(&mut bytes).map_err(|e| AuthError::Random(e.to_string()))?;
    Ok(bytes)
}

/// An error that cannot happen with the fixed sizes and the fixed order here.
fn failed(e: snow::Error) -> AuthError {
    AuthError::Noise(e.to_string())
}

impl Noise {
    /// One end, made by `build`: the client's is the initiator.
    pub(super) fn new(
        secret: &Secret,
        job: &str,
        prologue: &Prologue,
        random: &dyn Random,
        build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> Result<Self, AuthError> {
        let (psk, seed) = (secret.psk(job), drawn(random)?);
        let builder = Builder::with_resolver(PARAMS.clone(), Box::new(Primitives { seed }));
        let made = builder.psk(0, &psk).and_then(|b| b.prologue(prologue.as_bytes()));
        Ok(Self(Box::new(made.and_then(build).map_err(failed)?)))
    }

    pub(super) fn write(&mut self) -> Result<[u8; NOISE_BYTES], AuthError> {
        let mut message = [0; NOISE_BYTES];
        self.0.write_message(&[], &mut message).map_err(failed)?;
        Ok(message)
    }

    /// An error if the other end has another secret, or a frame was changed.
    pub(super) fn read(&mut self, message: &[u8; NOISE_BYTES]) -> Result<(), snow::Error> {
        // No payload; the buffer is for the tag only.
        self.0.read_message(message, &mut [0; NOISE_BYTES]).map(drop)
    }

    /// Both messages are exchanged: the client chooses the tag keys and sends them in its first
    /// message of the session.
    pub(super) fn finish(
        self,
        random: &dyn Random,
    ) -> Result<(Session, [u8; FINISH_BYTES]), AuthError> {
        let keys = drawn::<TAG_KEYS_BYTES>(random)?;
        let mut transport = self.0.into_transport_mode().map_err(failed)?;
        let mut finish = [0; FINISH_BYTES];
        transport.write_message(&keys, &mut finish).map_err(failed)?;
        Ok((Session::new(transport, TagKeys::of_client(&keys)), finish))
    }

    /// Only this message authenticates the client to the node: message 1 may be a replay of an
    /// overheard one, this message cannot be.
    pub(super) fn finished(self, finish: &[u8; FINISH_BYTES]) -> Result<Session, snow::Error> {
        let mut transport = self.0.into_transport_mode()?;
        let mut keys = [0; TAG_KEYS_BYTES];
        match transport.read_message(finish, &mut keys)? {
            TAG_KEYS_BYTES => Ok(Session::new(transport, TagKeys::of_node(&keys))),
            _ => Err(snow::Error::Decrypt),
        }
    }
}
