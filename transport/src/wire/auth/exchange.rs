//! Transfers the handshake's frames over a stream, async or blocking; `handshake` interprets them.
//! Reads take exactly the bytes of one frame, so the caller can use the stream afterwards. It has
//! no time limit of its own: the caller sets one.

use super::credentials::{AuthMeans, Channel};
use super::error::AuthError;
use super::frames::{ANSWER_BYTES, ANSWER_MAGIC, Answer, OPENING_BYTES};
use super::handshake::{HandshakeStep, Prover, ServerHandshake, check_first, wanted};
use super::session::Session;
use nkv_store::Random;
use std::io::{self, Read, Write};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zerocopy::IntoBytes;

fn closed(e: io::Error, got: usize) -> AuthError {
    use io::ErrorKind as K;
    match e.kind() {
        K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe | K::ConnectionAborted => {
            AuthError::Closed(got)
        }
        _ => AuthError::Io(e),
    }
}

/// The number of bytes read; end of stream is an error.
fn read(result: io::Result<usize>, got: usize) -> Result<usize, AuthError> {
    match result {
        Ok(0) => Err(AuthError::Closed(got)),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other.map_err(|e| closed(e, got)),
    }
}

/// Async and blocking transfer, written once: `$wait` is `.await` or nothing.
macro_rules! drivers {
    (
        $send_frame:ident, $prove:ident, ($($fun:tt)+), $reader:path, $writer:path, ($($wait:tt)*)
    ) => {
        $($fun)+ $send_frame<S: $writer + Unpin>(
            stream: &mut S,
            frame: &[u8],
        ) -> Result<(), AuthError> {
            stream.write_all(frame)$($wait)*.map_err(|e| closed(e, 0))?;
            stream.flush()$($wait)*.map_err(|e| closed(e, 0))
        }

        /// The client's end: proves its credentials and requires the proof of the node.
        pub $($fun)+ $prove<S: $reader + $writer + Unpin>(
            stream: &mut S,
            means: AuthMeans,
            channel: Channel,
            job: &str,
            random: &dyn Random,
        ) -> Result<Session, AuthError> {
            let (prover, opening) = Prover::new(means, channel, job, random)?;
            // A full node answers before it reads: its answer explains more than a broken pipe.
            let sent = $send_frame(stream, opening.as_bytes())$($wait)*;
            let mut answer: Answer = zerocopy::FromZeros::new_zeroed();
            let (bytes, mut got) = (answer.as_mut_bytes(), 0);
            while got < ANSWER_BYTES {
                let end = got + wanted(got, ANSWER_BYTES);
                match read(stream.read(&mut bytes[got..end])$($wait)*, got) {
                    Ok(n) => got += n,
                    Err(AuthError::Closed(0)) if sent.is_err() => {
                        return sent.and(Err(AuthError::Closed(0)));
                    }
                    Err(e) => return Err(e),
                }
                check_first(&bytes[..got], ANSWER_MAGIC)?;
            }
            let (session, finish) = prover.answered(&answer, random)?;
            if let Some(finish) = finish {
                $send_frame(stream, &finish)$($wait)*?;
            }
            Ok(session)
        }
    };
}

drivers!(send_frame, prove, (async fn), AsyncRead, AsyncWrite, (.await));
drivers!(send_frame_blocking, prove_blocking, (fn), Read, Write, ());

/// The node's end: requires the proof, and proves itself to a client that gave it. Calls `shown`
/// after the client's first valid message.
pub(super) async fn verify<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    mut entrance: ServerHandshake,
    shown: &dyn Fn(),
) -> Result<Session, AuthError> {
    let mut buf = [0; OPENING_BYTES];
    loop {
        let wants = entrance.wants();
        let n = read(stream.read(&mut buf[..wants]).await, entrance.got())?;
        match entrance.take(&buf[..n]) {
            HandshakeStep::More => {}
            HandshakeStep::Send(answer) => {
                shown();
                send_frame(stream, &answer).await?;
            }
            HandshakeStep::Over(answer, outcome) => {
                if let Some(answer) = answer {
                    send_frame(stream, &answer).await?;
                }
                return outcome;
            }
        }
    }
}
