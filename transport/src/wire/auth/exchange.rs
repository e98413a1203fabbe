//! Moves the handshake's frames over a stream, async or blocking; what they mean is decided in
//! `handshake`. Reads take exactly the bytes of one frame, so the stream is then the caller's. It has
//! no time limit of its own: the caller's stream or timeout has.

use super::credentials::{Channel, Means};
use super::error::AuthError;
use super::frames::{CHALLENGE_MAGIC, OPENING_MAGIC, PROOF_MAGIC, Status, VERDICT_MAGIC};
use super::handshake::{Asked, Opened, Prover, Verifier};
use nkv_store::Random;
use std::io::{self, Read, Write};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// Bytes that name a frame.
const MAGIC_BYTES: usize = 8;
/// What is shown of bytes that are no frame.
const SHOWN_BYTES: usize = 8;

/// Decides over a magic as soon as it is there: one who speaks something else may never send as
/// many bytes as a frame has.
fn is_frame(bytes: &[u8], magic: u64) -> Result<(), AuthError> {
    if bytes.starts_with(&magic.to_le_bytes()) {
        return Ok(());
    }
    let shown = bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii();
    Err(AuthError::Foreign(format!("it begins with \"{shown}\"")))
}

fn closed(e: io::Error, got: usize) -> AuthError {
    use io::ErrorKind as K;
    match e.kind() {
        K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe | K::ConnectionAborted => {
            AuthError::Closed(got)
        }
        _ => AuthError::Io(e),
    }
}

/// The two ways of moving bytes, written once: `$wait` is `.await` or nothing.
macro_rules! drivers {
    ($take:ident, $give:ident, $prove:ident, $verify:ident, ($($fun:tt)+), $reader:path, $writer:path, ($($wait:tt)*)) => {
        $($fun)+ $take<S: $reader + Unpin, T: FromBytes + IntoBytes + KnownLayout>(
            stream: &mut S,
            magic: u64,
        ) -> Result<T, AuthError> {
            let mut frame = T::new_zeroed();
            let bytes = frame.as_mut_bytes();
            let mut got = 0;
            while got < bytes.len() {
                let end = if got < MAGIC_BYTES { MAGIC_BYTES } else { bytes.len() };
                match stream.read(&mut bytes[got..end])$($wait)* {
                    Ok(0) => return Err(AuthError::Closed(got)),
                    Ok(n) => got += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => return Err(closed(e, got)),
                }
                if got == MAGIC_BYTES {
                    is_frame(&bytes[..got], magic)?;
                }
            }
            Ok(frame)
        }

        $($fun)+ $give<S: $writer + Unpin>(stream: &mut S, frame: &[u8]) -> Result<(), AuthError> {
            stream.write_all(frame)$($wait)*.map_err(|e| closed(e, 0))?;
            stream.flush()$($wait)*.map_err(|e| closed(e, 0))
        }

        /// The client's end: proves what it can and has the node prove the same.
        pub $($fun)+ $prove<S: $reader + $writer + Unpin>(
            stream: &mut S,
            means: Means,
            channel: Channel,
            job: &str,
            random: &dyn Random,
        ) -> Result<(), AuthError> {
            let prover = Prover::new(means, channel, job, random)?;
            // One that is full answers before it reads: its answer says more than a broken pipe.
            let said = $give(stream, prover.opening())$($wait)*;
            let challenge = match $take(stream, CHALLENGE_MAGIC)$($wait)* {
                Err(AuthError::Closed(0)) if said.is_err() => return said,
                other => other?,
            };
            match prover.challenged(challenge)? {
                Asked::Nothing => Ok(()),
                Asked::Proof(proved) => {
                    $give(stream, proved.proof())$($wait)*?;
                    let verdict = $take(stream, VERDICT_MAGIC)$($wait)*?;
                    proved.judged(&verdict)
                }
            }
        }

        /// The node's end: demands the proof, and proves itself to a client that gave it.
        pub(super) $($fun)+ $verify<S: $reader + $writer + Unpin>(
            stream: &mut S,
            verifier: Verifier<'_>,
        ) -> Result<(), AuthError> {
            let opening = match $take(stream, OPENING_MAGIC)$($wait)* {
                Err(AuthError::Foreign(what)) => {
                    // An older nkv at least sees that this is a newer one.
                    let no = verifier.no(Status::Foreign, "");
                    $give(stream, no.as_bytes())$($wait)*?;
                    return Err(AuthError::Foreign(what));
                }
                other => other?,
            };
            match verifier.opened(opening)? {
                Opened::Welcome(challenge) => $give(stream, challenge.as_bytes())$($wait)*,
                Opened::Refused(challenge, why) => {
                    $give(stream, challenge.as_bytes())$($wait)*?;
                    Err(why)
                }
                Opened::Challenged(challenge, waiting) => {
                    $give(stream, challenge.as_bytes())$($wait)*?;
                    let proof = $take(stream, PROOF_MAGIC)$($wait)*?;
                    let (verdict, outcome) = waiting.proved(&proof);
                    $give(stream, verdict.as_bytes())$($wait)*?;
                    outcome
                }
            }
        }
    };
}

drivers!(
    take, give, prove, verify, (async fn), AsyncRead, AsyncWrite, (.await)
);
drivers!(
    take_blocking, give_blocking, prove_blocking, verify_blocking,
    (fn), Read, Write, ()
);
